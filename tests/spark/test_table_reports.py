"""Tests of `tiered table ls`, `describe`, `history` and `diff` over tables of real loads, without a JVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.log_folder import LOG, open_folder
from pyspark_tiered.delta.table_log import TableLog
from pyspark_tiered.load.load import LoadOptions, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.proof.last_verify import PATH, LastVerify, decode_last_verify, encode_last_verify, write_last_verify
from pyspark_tiered.typed.form import ValueRules
from tests.spark import filling
from tiered.errors import Refused
from tiered.ids import PartitionId
from tiered_api.cli.main import main

TOPIC = filling.topic_id(1)


def write(store: str, partition: int, first: int, values: list[bytes]) -> None:
    rows = [(filling.BASE_MS + i, b"k", value, ()) for i, value in enumerate(values, first)]
    filling.upload(store, "t", PartitionId(TOPIC, partition), list(filling.segments(rows, base_offset=first)))


@pytest.fixture(scope="module", params=["directory", pytest.param("s3", marks=pytest.mark.also("stores"))])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the root of a store and a warehouse. Topic t is loaded twice, and has three records more."""
    folder = tmp_path_factory.mktemp("reports")
    is_local = request.param == "directory"
    root = f"file://{folder}" if is_local else f"s3://{request.getfixturevalue('bucket')}/{folder.name}"
    filling.create_topic(f"{root}/store", "t", TOPIC, 2)
    options = LoadOptions(values=ValueRules("json"))
    write(f"{root}/store", 0, 0, [b'{"a": 1}', b"dead", b'{"a": 2}'])
    load(f"{root}/store", "t", f"{root}/tables", engine=NativeEngine(), options=options)
    write(f"{root}/store", 0, 3, [b'{"b": 1}'])
    write(f"{root}/store", 1, 0, [b'{"b": 1}'])
    load(f"{root}/store", "t", f"{root}/tables", engine=NativeEngine(), options=options)
    write(f"{root}/store", 1, 1, [b"{}", b"{}", b"{}"])
    write_last_verify(f"{spark_url(f'{root}/tables')}/t", LastVerify(filling.BASE_MS, 1, 5, 0))
    return root


def run(place: str, capfd: pytest.CaptureFixture[str], *words: str, store: bool = False) -> list[Any]:
    more = ["--store", f"{place}/store"] if store else []
    assert main(["table", *words, "--warehouse", f"{place}/tables", "--format", "json", *more]) == 0
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_ls_has_a_row_for_each_table(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    raw, dead, typed = run(place, capfd, "ls", store=True)
    assert [each["table"] for each in (raw, dead, typed)] == ["t", "t__dead", "t_typed"]
    assert [each["kind"] for each in (raw, dead, typed)] == ["raw", "dead letters", "typed"]
    assert [each["rows"] for each in (raw, dead, typed)] == [5, 1, 4]
    assert (raw["version"], raw["files"], raw["lag"], raw["dead_letters"]) == (1, 2, 3, 1)
    assert raw["newest_ms"] == filling.BASE_MS + 3
    assert raw["bytes"] > 0 and raw["loaded_ms"] > filling.BASE_MS
    assert raw["verified"] == {"ok": True, "at_ms": filling.BASE_MS, "table_version": 1, "rows": 5, "faults": 0}
    assert run(place, capfd, "ls")[0]["lag"] is None


def test_describe_has_columns_and_the_lag_of_each_partition(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    (found,) = run(place, capfd, "describe", "t_typed", store=True)
    assert found["partitions"] == [
        {"partition": 0, "next_offset": 4, "log_end": 4, "lag": 0},
        {"partition": 1, "next_offset": 1, "log_end": 4, "lag": 3},
    ]
    assert (found["columns"]["_partition"], found["columns"]["a"]) == ("int", "bigint")
    assert found["columns"]["_headers"] == "array<struct<key:string,value:binary>>"
    assert found["properties"]["tiered.topic.name"] == "t"


def test_history_has_the_offsets_of_each_version(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    new, old = run(place, capfd, "history", "t")
    assert (new["version"], new["operation"], new["rows"]) == (1, "load", 2)
    assert (new["offsets"], old["offsets"]) == ({"0": [3, 4], "1": [0, 1]}, {"0": [0, 3]})
    assert [each["version"] for each in run(place, capfd, "history", "t", "--max", "1")] == [1]


def test_diff_has_what_changed(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    (found,) = run(place, capfd, "diff", "t", "0")
    assert (found["from"], found["to"], found["rows"], found["files_removed"]) == (0, 1, 2, 0)
    assert found["offsets"] == {"0": [3, 4], "1": [0, 1]}
    (typed,) = run(place, capfd, "diff", "t_typed", "0")
    assert typed["columns"]["b"] == [None, "bigint"]
    (same,) = run(place, capfd, "diff", "t", "1", "1")
    assert (same["rows"], same["offsets"], same["columns"], same["properties"]) == (0, {}, {}, {})


def test_text_output_has_columns_and_dates(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    where = ["--warehouse", f"{place}/tables"]
    assert main(["table", "ls", *where]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["TABLE", "KIND", "ROWS", "FILES"]
    assert "version 1 2023-11-14 22:13:20" in lines[1]
    assert main(["table", "describe", "t", *where]) == 0
    assert "version 1: 5 rows in 2 files" in capfd.readouterr().out
    assert main(["table", "history", "t", *where]) == 0
    assert "0: 3-4; 1: 0-1" in capfd.readouterr().out
    assert main(["table", "diff", "t_typed", "0", *where]) == 0
    assert "column b: added, bigint" in capfd.readouterr().out


@pytest.mark.parametrize(
    "words, why",
    [
        (["describe", "nothing"], "there is no table nothing"),
        (["history", "../store"], "the name of a table is that of a topic"),
        (["diff", "t", "0", "99"], "no version 99: the newest one is 1"),
    ],
)
def test_table_or_version_that_is_not_there_is_refused(
    place: str, capfd: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    assert main(["table", *words, "--warehouse", f"{place}/tables"]) == 2
    assert why in capfd.readouterr().err


def test_missing_warehouse_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "ls", "--warehouse", str(tmp_path / "none")]) == 2
    assert "no warehouse" in capfd.readouterr().err


def test_directory_without_permission_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(self: object, folder: str, after: str = "") -> list[str]:
        raise PermissionError(13, "Permission denied", f"{tmp_path}/{folder}")

    folder = open_folder(f"file:{tmp_path}")
    monkeypatch.setattr(type(folder), "list_names", deny)
    with pytest.raises(Refused, match=f"no permission to read {tmp_path}/{LOG}"):
        TableLog(folder).versions()


def test_old_version_whose_commits_are_gone_is_refused(tmp_path: Path) -> None:
    from pyspark_tiered.delta.table_form import Advance
    from pyspark_tiered.load.native_table import NativeTable

    table = NativeTable(f"file:{tmp_path}/t", "t", TOPIC)
    for end in range(1, 13):
        assert table.commit([], [Advance(0, end - 1 or -1, end)])
    log = TableLog(table.folder)
    assert log.read_version(5).version == 5
    for version in range(10):
        (tmp_path / "t" / LOG / f"{version:020d}.json").unlink()
    with pytest.raises(Refused, match=r"version 5 .* is gone"):
        log.read_version(5)
    assert [log.read_version(version).versions() for version in (10, 11)] == [{f"{TOPIC}/0": 11}, {f"{TOPIC}/0": 12}]
    assert log.read().version == 11
    assert table.commit([], [Advance(0, 12, 13)])
    assert log.read().versions() == {f"{TOPIC}/0": 13}


def test_result_of_verify_is_kept(tmp_path: Path) -> None:
    result = LastVerify(1, 2, 3, 4)
    write_last_verify(f"file:{tmp_path}", result)
    assert decode_last_verify((tmp_path / PATH).read_bytes()) == result
    later = encode_last_verify(result).replace(b'"version": 1', b'"version": 2')
    assert [decode_last_verify(data) for data in (None, b"{", b"[]", b"{}", later)] == [None] * 5
