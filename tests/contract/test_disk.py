"""Contract of Disk and File, on a real directory and on the simulated disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.sim.harness.disk import SimDisk
from tests.sim.harness.loop import SimLoop
from tiered.errors import Unavailable
from tiered.ports import Disk, File
from tiered.system.local_disk import LocalDisk


class Case(NamedTuple):
    disk: Disk
    run: Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["local", "simulated"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    if request.param == "local":
        disk = LocalDisk(str(tmp_path / "data"))
        yield Case(disk, asyncio.run)
        disk.close()
    else:
        yield Case(SimDisk(random.Random(1)), SimLoop(1).run)


@pytest.fixture
def disk(case: Case) -> Disk:
    return case.disk


def open_with(disk: Disk, path: str, data: bytes) -> File:
    file = disk.open(path, create=True)
    file.append([data])
    return file


def test_append_writes_all_parts_in_order_and_returns_the_size(disk: Disk) -> None:
    file = disk.open("f", create=True)
    assert file.append([b"one", bytearray(b"two"), memoryview(b"three")]) == 11
    assert file.append([b"!"]) == 12
    assert (file.pread(0, 100), file.size()) == (b"onetwothree!", 12)


def test_append_of_many_parts_writes_all(disk: Disk) -> None:
    file = disk.open("f", create=True)
    parts = [b"%04d" % number for number in range(3000)]
    assert file.append(parts) == 12_000
    assert file.pread(0, 12_000) == b"".join(parts)


def test_append_of_nothing_changes_nothing(disk: Disk) -> None:
    file = open_with(disk, "f", b"abc")
    assert file.append([]) == 3
    assert file.append([b""]) == 3


def test_append_to_an_existing_file_continues_at_its_end(disk: Disk) -> None:
    open_with(disk, "f", b"abc").close()
    file = disk.open("f")
    assert file.append([b"def"]) == 6
    assert file.pread(0, 10) == b"abcdef"


def test_pread_is_shorter_only_at_the_end(disk: Disk) -> None:
    file = open_with(disk, "f", b"0123456789")
    assert [file.pread(at, 4) for at in (0, 4, 8, 10, 50)] == [b"0123", b"4567", b"89", b"", b""]


def test_read_returns_what_pread_does(case: Case) -> None:
    async def body() -> None:
        file = open_with(case.disk, "f", b"0123456789")
        assert [await file.read(at, 4) for at in (0, 4, 8, 10, 50)] == [b"0123", b"4567", b"89", b"", b""]
        reading = asyncio.ensure_future(case.disk.open("f", write=False).read(2, 3))
        await asyncio.sleep(0)
        file.close()
        assert await reading == b"234", "a file may be closed while it is read"

    case.run(body())


def test_pwrite_replaces_bytes_and_may_extend(disk: Disk) -> None:
    file = open_with(disk, "f", b"0123456789")
    file.pwrite(2, b"xy")
    file.pwrite(12, memoryview(b"z"))
    assert file.pread(0, 20) == b"01xy456789\0\0z"
    assert file.append([b"end"]) == 16


def test_truncate_cuts_and_appends_continue_there(disk: Disk) -> None:
    file = open_with(disk, "f", b"0123456789")
    file.truncate(4)
    assert (file.size(), file.append([b"x"]), file.pread(0, 10)) == (4, 5, b"0123x")


def test_second_handle_sees_writes_of_the_first(disk: Disk) -> None:
    writer = disk.open("f", create=True)
    reader = disk.open("f", write=False)
    writer.append([b"abc"])
    assert (reader.size(), reader.pread(0, 10)) == (3, b"abc")


def test_map_is_the_whole_file_read_only(disk: Disk) -> None:
    view = open_with(disk, "f", b"0123456789").map()
    assert (bytes(view[3:6]), len(view), view.readonly) == (b"345", 10, True)


def test_fileno_reads_the_file_or_is_minus_one(disk: Disk) -> None:
    file = open_with(disk, "f", b"abc")
    if file.fileno() >= 0:
        with open(f"/dev/fd/{file.fileno()}", "rb") as again:
            assert again.read() == b"abc"
    else:
        assert file.fileno() == -1


def test_open_without_create_needs_the_file(disk: Disk) -> None:
    with pytest.raises(Unavailable, match="f"):
        disk.open("f")
    assert not disk.exists("f")


def test_open_with_create_needs_the_directory(disk: Disk) -> None:
    with pytest.raises(Unavailable):
        disk.open("nowhere/f", create=True)


def test_list_is_sorted_and_empty_for_a_missing_directory(disk: Disk) -> None:
    disk.make_dirs("d/sub")
    for name in ("b", "a", "c"):
        disk.open(f"d/{name}", create=True).close()
    assert (disk.list("d"), disk.list("none"), disk.list("d/a")) == (["a", "b", "c", "sub"], [], [])


def test_root_is_listed_as_a_dot(disk: Disk) -> None:
    disk.make_dirs("d")
    assert disk.list(".") == ["d"]


def test_make_dirs_creates_all_parents_and_may_be_repeated(disk: Disk) -> None:
    disk.make_dirs("a/b/c")
    disk.make_dirs("a/b/c")
    assert disk.exists("a/b/c") and disk.list("a/b") == ["c"]


def test_rename_replaces_a_file(disk: Disk) -> None:
    open_with(disk, "new", b"new").close()
    open_with(disk, "old", b"old").close()
    disk.rename("new", "old")
    assert (disk.exists("new"), disk.open("old").pread(0, 9)) == (False, b"new")


def test_rename_moves_a_whole_directory(disk: Disk) -> None:
    disk.make_dirs("from/sub")
    open_with(disk, "from/sub/f", b"x").close()
    disk.rename("from", "to")
    assert (disk.exists("from"), disk.open("to/sub/f").pread(0, 9)) == (False, b"x")


def test_rename_of_a_missing_file_fails(disk: Disk) -> None:
    with pytest.raises(Unavailable):
        disk.rename("none", "new")


def test_remove_deletes_files_and_whole_directories(disk: Disk) -> None:
    disk.make_dirs("d/sub")
    open_with(disk, "d/sub/f", b"x").close()
    open_with(disk, "f", b"x").close()
    for path in ("f", "d", "none"):
        disk.remove(path)
    assert disk.list(".") == []


def test_discard_deletes_files_and_whole_directories(case: Case) -> None:
    async def body() -> None:
        case.disk.make_dirs("d/sub")
        open_with(case.disk, "d/sub/f", b"x").close()
        held = open_with(case.disk, "f", b"x")
        for path in ("f", "d", "none"):
            await case.disk.discard(path)
        assert case.disk.list(".") == []
        assert held.pread(0, 9) == b"x"

    case.run(body())


def test_open_file_is_usable_without_its_name(disk: Disk) -> None:
    file = open_with(disk, "f", b"abc")
    disk.remove("f")
    assert (disk.exists("f"), file.pread(0, 9)) == (False, b"abc")


def test_closed_file_is_unusable(disk: Disk) -> None:
    file = open_with(disk, "f", b"abc")
    file.close()
    file.close()
    with pytest.raises(Unavailable):
        file.pread(0, 1)


def test_space_is_positive_and_within_the_total(disk: Disk) -> None:
    space = disk.space()
    assert 0 < space.free <= space.total


def test_boot_mark_is_the_same_while_the_machine_runs(disk: Disk) -> None:
    disk.make_dirs("d")
    mark = disk.boot_mark("d")
    disk.make_dirs("d/e")
    assert mark == disk.boot_mark("d") and "\n" not in mark and mark.startswith("boot=")


def test_files_and_directories_are_synced(case: Case) -> None:
    async def body() -> None:
        case.disk.make_dirs("d")
        file = open_with(case.disk, "d/f", b"abc")
        await asyncio.gather(file.sync(), file.sync(), case.disk.sync_dir("d"), case.disk.sync_dir("."))
        assert file.append([b"def"]) == 6

    case.run(body())


def test_file_may_be_closed_during_its_sync(case: Case) -> None:
    async def body() -> None:
        file = open_with(case.disk, "f", b"abc")
        syncing = asyncio.ensure_future(file.sync())
        await asyncio.sleep(0)
        file.close()
        await syncing
        assert case.disk.open("f").pread(0, 9) == b"abc"

    case.run(body())


def test_sync_of_a_missing_directory_fails(case: Case) -> None:
    async def body() -> None:
        with pytest.raises(Unavailable):
            await case.disk.sync_dir("none")

    case.run(body())


@pytest.mark.parametrize("path", ["/etc/passwd", "../f", "d/../../f", ""])
def test_path_never_leaves_the_directory(disk: Disk, path: str) -> None:
    with pytest.raises(AssertionError):
        disk.open(path, create=True)
