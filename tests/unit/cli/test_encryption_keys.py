"""Tests of `tiered encryption`: key files that it makes and changes, and the keys that a bucket needs."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from stat import S_IMODE

import pytest

from tests.encryption import KEYS, key_line, write_key_file
from tiered.object_store.encrypted_object import HEADER_BYTES
from tiered.object_store.key_ring import parse_key_ring
from tiered.object_store.url import open_store
from tiered.records.native import crc32c
from tiered.system.clock import SystemClock, SystemRng
from tiered_api.cli.exits import Exit
from tiered_api.cli.main import main


def of_newer_version(sealed: bytes) -> bytes:
    """Returns an encrypted object as a newer program writes it."""
    clear = sealed[:8] + b"\0\2" + sealed[10 : HEADER_BYTES - 4]
    return clear + crc32c(clear).to_bytes(4, "big") + sealed[HEADER_BYTES:]


def ports() -> tuple[SystemClock, SystemRng]:
    """Returns the clock and the random numbers of a store."""
    return SystemClock(), SystemRng()


def test_new_key_is_random_for_its_user_alone_and_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("a", "b")]
    for file in files:
        assert main(["encryption", "add", str(file), "--id", "first", "--active"]) == Exit.OK
    said = capsys.readouterr().out
    assert said.splitlines()[0] == f"key first was added: {files[0]} has 1 key, first encrypts new objects"
    rings = [parse_key_ring(file.read_text(), "f") for file in files]
    assert rings[0].keys["first"] != rings[1].keys["first"] and rings[0].keys["first"].reveal() not in said
    assert [S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]


def test_second_key_is_added_beside_the_first_and_activated_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# mine\n{key_line('one', active=True)}\n")
    file.chmod(0o640)
    assert main(["encryption", "add", str(file), "--id", "next"]) == Exit.OK
    ring = parse_key_ring(file.read_text(), "f")
    assert (list(ring.keys), ring.active, ring.find("one")) == (["one", "next"], "one", KEYS["one"])
    assert main(["encryption", "activate", str(file), "next"]) == Exit.OK
    assert parse_key_ring(file.read_text(), "f").active == "next"
    assert file.read_text().startswith("# mine\n") and S_IMODE(file.stat().st_mode) == 0o640
    assert capsys.readouterr().out.endswith(f"key next is active: {file} has 2 keys, next encrypts new objects\n")
    assert os.listdir(tmp_path) == ["keys"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("add keys --id one", "keys has a key one already: name another one by --id"),
        ("add keys --id a/b", "'a/b' is no id of a key"),
        ("activate keys three", "keys has no key three"),
        ("activate none one", "none has no key one"),
        ("remove keys three --store file:store", "keys has no key three"),
        ("remove keys one --store file:store", "key one encrypts new objects: activate another one first"),
        ("remove none one --store file:store", "none: it cannot be read: No such file or directory"),
        ("add nowhere/keys", "nowhere/keys cannot be written: No such file or directory"),
        ("add open --id x", "other users may read or change it (mode 0644): chmod 600, or 640 for its group"),
    ],
)
def test_change_that_is_no_ring_leaves_the_file_as_it_is(
    words: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_key_file(tmp_path / "keys")
    write_key_file(tmp_path / "open").chmod(0o644)
    before = (tmp_path / "keys").read_bytes()
    assert main(["encryption", *words.split()]) != Exit.OK
    assert why in capsys.readouterr().err
    assert (tmp_path / "keys").read_bytes() == before and sorted(os.listdir(tmp_path)) == ["keys", "open"]


def test_list_counts_objects_by_key_without_the_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"file://{tmp_path}/store"

    async def fill() -> None:
        for active, count in (("", 3), ("one", 2), ("two", 1)):
            keys = write_key_file(tmp_path / "keys", "one", "two", active=active)
            store = open_store(f"{place}?keys={keys}", SystemClock(), SystemRng())
            for number in range(count):
                await store.put(f"{active}/{number}" if active else f"plain/{number}", b"12345")
            await store.close()

    asyncio.run(fill())
    damaged, newer = tmp_path / "store" / "two" / "0", tmp_path / "store" / "one" / "1"
    damaged.write_bytes(damaged.read_bytes()[:100])
    newer.write_bytes(of_newer_version(newer.read_bytes()))
    assert main(["encryption", "list", "--store", place, "--format", "json"]) == Exit.OK
    said = capsys.readouterr()
    assert [json.loads(line) for line in said.out.splitlines()] == [
        {"key": "-", "objects": 3, "bytes": 15},
        {"key": "?", "objects": 2, "bytes": 100 + (128 + 5 + 16)},
        {"key": "one", "objects": 1, "bytes": 128 + 5 + 16},
    ]
    assert sorted(said.err.splitlines()) == [
        "tiered: one/1 has version 2 of encrypted objects, this program reads up to 1: upgrade it",
        "tiered: the header of an encrypted object is damaged where=two/0 position=0",
    ]


def test_key_is_removed_once_no_object_needs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, file = f"file://{tmp_path}/store", tmp_path / "keys"

    async def fill() -> None:
        for active in ("one", "two"):
            store = open_store(f"{place}?keys={write_key_file(file, 'one', 'two', active=active)}", *ports())
            await store.put(f"{active}/0", b"12345")
            await store.put(f"{active}/1", b"12345")
            await store.close()

    asyncio.run(fill())
    file.write_text("# mine\n" + file.read_text())
    before, words = file.read_bytes(), ["encryption", "remove", str(file), "one", "--store", place]
    assert main(words) == Exit.USAGE
    assert f"{place} has 2 objects under key one, which {file} keeps" in capsys.readouterr().err
    for number in (0, 1):
        (tmp_path / "store" / "one" / str(number)).unlink()
    damaged = tmp_path / "store" / "two" / "0"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:100])
    assert main(words) == Exit.USAGE
    assert "has 1 objects whose key is not known, which may be one: the header of" in capsys.readouterr().err
    assert file.read_bytes() == before
    damaged.write_bytes(whole)
    assert main([*words, "--dry-run"]) == Exit.OK
    assert capsys.readouterr().out == f"key one can be removed: no object of {place} needs it\n"
    assert file.read_bytes() == before
    assert main(words) == Exit.OK
    assert capsys.readouterr().out == f"key one was removed: {file} has 1 key, two encrypts new objects\n"
    ring = parse_key_ring(file.read_text(), "f")
    assert (list(ring.keys), ring.active) == (["two"], "two") and file.read_text().startswith("# mine\n")


def test_rewrite_encrypts_a_plain_bucket_and_says_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"file://{tmp_path}/store"

    async def fill() -> None:
        store = open_store(place, SystemClock(), SystemRng())
        await store.put("a", b"12345")
        await store.put("b", b"12345")
        await store.close()

    asyncio.run(fill())
    keys = write_key_file(tmp_path / "keys")
    assert main(["encryption", "rewrite", "--store", place]) == Exit.USAGE
    assert "no key encrypts new objects" in capsys.readouterr().err
    assert main(["encryption", "rewrite", "--store", f"{place}?keys={keys}"]) == Exit.OK
    assert capsys.readouterr().out == "2 objects of 10 bytes are encrypted anew, 0 are left\n"
    damaged = tmp_path / "store" / "a"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    other = write_key_file(tmp_path / "other", "one", "two", active="two")
    assert main(["encryption", "rewrite", "--store", f"{place}?keys={other}"]) == Exit.FAILED
    said = capsys.readouterr()
    assert said.out == "1 objects of 149 bytes are encrypted anew, 1 are left\n"
    assert said.err == "tiered: encrypted object has 148 of 149 bytes where=a position=148\n"


def test_rewrite_goes_on_behind_objects_that_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"file://{tmp_path}/store"

    async def fill(key: str, data: bytes, keys: Path) -> None:
        store = open_store(f"{place}?keys={keys}", SystemClock(), SystemRng())
        await store.put(key, data)
        await store.close()

    old, both = write_key_file(tmp_path / "old"), write_key_file(tmp_path / "both", "one", "two", active="two")
    lost = write_key_file(tmp_path / "lost", "gone", active="gone")
    asyncio.run(fill("a", b"newer", old))
    asyncio.run(fill("b", b"of a key that is gone", lost))
    asyncio.run(fill("c", b"12345", old))
    newer = tmp_path / "store" / "a"
    newer.write_bytes(of_newer_version(newer.read_bytes()))
    assert main(["encryption", "rewrite", "--store", f"{place}?keys={both}"]) == Exit.FAILED
    said = capsys.readouterr()
    assert said.out == "1 objects of 149 bytes are encrypted anew, 2 are left\n"
    assert said.err.splitlines() == [
        "tiered: a has version 2 of encrypted objects, this program reads up to 1: upgrade it",
        f"tiered: b is encrypted by key gone, which {both} does not have: add the key",
    ]
