"""Tests of the archive of a bundle: its bounds, and what it says of what is left out."""

from __future__ import annotations

import json
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from tiered.errors import Refused
from tiered_api.cli.debug import archive
from tiered_api.cli.debug.archive import Bundle, file_name
from tiered_api.cli.debug.machine import describe_directory, find_logs, read_log_end


def test_archive_has_its_files_below_one_folder_and_a_manifest(tmp_path: Path) -> None:
    made = Bundle()
    made.add_json("cluster.json", {"healthy": True})
    made.leave_out("brokers/2", "it is fenced")
    for name in ("b.tar.gz", "b.zip"):
        assert made.write(tmp_path / name, {"asked": "x"}) == (tmp_path / name).stat().st_size
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    with tarfile.open(tmp_path / "b.tar.gz") as tar, zipfile.ZipFile(tmp_path / "b.zip") as packed:
        assert tar.getnames() == packed.namelist() == ["b/manifest.json", "b/cluster.json"]
        manifest = json.loads(packed.read("b/manifest.json"))
    assert manifest["left_out"] == [{"file": "brokers/2", "why": "it is fenced"}] and manifest["asked"] == "x"
    assert manifest["files"] == {"cluster.json": len(made.files["cluster.json"])}
    assert any("records" in each for each in manifest["never_included"])


def test_bundle_is_written_neither_over_a_file_nor_in_another_format(tmp_path: Path) -> None:
    (tmp_path / "there.zip").touch()
    for name in ("there.zip", "b.rar", "absent/b.zip"):
        with pytest.raises(Refused, match="--out"):
            Bundle().write(tmp_path / name, {})


def test_files_are_bounded_each_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FILE_BYTES", 10)
    monkeypatch.setattr(archive, "TOTAL_BYTES", 15)
    made = Bundle()
    made.add("a.txt", b"0123456789end")
    made.add("b.json", b"[1, 2, 3]")
    made.add("c.txt", b"12345")
    made.add("d.txt", b"late")
    assert made.files == {"a.txt": b"3456789end", "c.txt": b"12345"}
    assert [each["file"] for each in made.left_out] == ["a.txt", "b.json", "d.txt"]


def test_end_of_a_log_begins_with_a_whole_line_and_has_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    path.write_bytes(b"first line\nsecond password=x\nthird\n")
    assert read_log_end(path, 30) == b"second password=[hidden]\nthird\n"
    assert read_log_end(path) == b"first line\nsecond password=[hidden]\nthird\n"


def test_segments_of_a_data_directory_are_listed_and_never_read(tmp_path: Path) -> None:
    segment = tmp_path / "log" / "t-0" / "00000000000000000000.log"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(b"a record")
    (tmp_path / "broker.log").touch()
    meta = "#\nversion=1\ncluster.id=c\nnode.id=1\ndirectory.id=proof\n"
    (tmp_path / "log" / "meta.properties").write_text(meta)
    assert [each.name for each in find_logs(tmp_path)] == ["broker.log"]
    found = describe_directory(tmp_path)
    assert [each["file"] for each in found["files"]] == [
        "broker.log", "log/meta.properties", "log/t-0/00000000000000000000.log",
    ]  # fmt: skip
    assert found["files"][2]["bytes"] == 8 and found["owner"] == {"version": "1", "cluster.id": "c", "node.id": "1"}
    with pytest.raises(Refused, match="--data-dir"):
        find_logs(tmp_path / "absent")


def test_names_of_topics_are_safe_names_of_files() -> None:
    assert file_name("../a/b") == "..%2Fa%2Fb" and len(file_name("x" * 249)) == 100
    assert file_name("..") == "%2E%2E" and file_name("a..b") == "a..b"
