"""Tests of faults that only the real disk has: it is full, it fails, or another process holds it."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenario import run_alone, run_by
from tests.unit.hot.fixtures import DIRECTORY, append, batch, config, open_log
from tiered.errors import Refused, Unavailable
from tiered.hot.segment_files import OpenFiles
from tiered.system.local_disk import (
    OPEN_FILES_WANTED,
    RESERVE_BYTES,
    LocalDisk,
    LockFile,
    allow_open_files,
    reserve_blocks,
)
from tiered_api.cli.broker.directories import claim_data_directory
from tiered_api.cli.exits import Exit
from tiered_api.cli.main import main

LIMIT_BYTES = 1 << 20
HOLDER = """
import sys
from tiered.system.local_disk import LockFile
lock = LockFile(sys.argv[1])
lock.acquire()
print("held", flush=True)
input()
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LocalDisk]:
    disk = LocalDisk(str(tmp_path / "data"))
    yield disk
    disk.close()


@pytest.fixture
def small_files() -> Iterator[None]:
    """Limits the file size of this process: a write across the limit is short, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_append_that_does_not_fit_is_rolled_back(disk: LocalDisk, small_files: None) -> None:
    file = disk.open("f", create=True)
    file.append([b"x" * (LIMIT_BYTES - 100)])
    with pytest.raises(Unavailable, match="append failed path=f") as caught:
        file.append([b"y" * 60, b"z" * 60])
    assert not caught.value.final
    assert (file.size(), os.stat(disk.root + "/f").st_size) == (LIMIT_BYTES - 100, LIMIT_BYTES - 100)
    assert file.append([b"y" * 100]) == LIMIT_BYTES


@run_by(run_alone)
async def test_failed_sync_ends_writes_and_not_reads(*, disk: LocalDisk) -> None:
    file = disk.open("f", create=True)
    file.append([b"abc"])
    pipe, other = os.pipe()  # a descriptor that cannot be synced stands for a dying drive
    with pytest.raises(Unavailable, match="sync failed path=g") as caught:
        await disk.sync_descriptor(pipe, "g", os.fsync)
    os.close(other)
    assert caught.value.final
    for write in (lambda: file.append([b"x"]), lambda: file.truncate(0), lambda: disk.rename("f", "g")):
        with pytest.raises(Unavailable, match="sync failed path=g") as caught:
            write()
        assert caught.value.final
    with pytest.raises(Unavailable):
        await file.sync()
    assert file.pread(0, 9) == b"abc"
    disk.remove("f")
    assert disk.list(".") == []


@run_by(run_alone)
async def test_failed_sync_of_a_cancelled_caller_ends_writes_too(*, disk: LocalDisk) -> None:
    """The kernel reports a lost write once: the next sync would succeed and prove nothing."""
    file = disk.open("f", create=True)
    may_fail = threading.Event()

    def fail(descriptor: int) -> None:
        assert may_fail.wait(10)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    syncing = asyncio.ensure_future(disk.sync_descriptor(os.dup(file.fileno()), "f", fail))
    while not syncing.cancelled():
        await asyncio.sleep(0)
        syncing.cancel()
        await asyncio.gather(syncing, return_exceptions=True)
    may_fail.set()
    disk.close()  # waits for it
    with pytest.raises(Unavailable, match="sync failed path=f") as caught:
        await file.sync()
    assert caught.value.final


@pytest.mark.parametrize(
    ("number", "final"),
    [(errno.EIO, True), (errno.EROFS, True), (errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EMFILE, False)],
)
def test_failed_file_system_is_final_and_a_full_one_is_not(disk: LocalDisk, number: int, final: bool) -> None:
    error = disk.make_error("append", "f", OSError(number, os.strerror(number)))
    assert error.final is final
    assert disk.make_error("pread", "f", OSError(number, os.strerror(number)), read_only=True).final is final


@pytest.mark.parametrize(
    ("number", "failed", "full_count"),
    [(errno.EIO, True, 0), (errno.EROFS, True, 0), (errno.ENOSPC, False, 1), (errno.EDQUOT, False, 1),
     (errno.EMFILE, False, 0)],
)  # fmt: skip
def test_write_errors_tell_a_full_disk_from_a_failed_one(
    disk: LocalDisk, number: int, failed: bool, full_count: int
) -> None:
    why = str(disk.make_error("append", "f", OSError(number, os.strerror(number))))
    errors = disk.write_errors()
    assert (errors.failure, errors.full_count) == (why if failed else "", full_count)
    assert errors.full == (why if full_count else "")


def test_file_system_that_does_not_say_its_space_is_unavailable(
    disk: LocalDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "statvfs", fail)
    with pytest.raises(Unavailable, match="space failed") as caught:
        disk.space()
    assert not caught.value.final and not disk.write_errors().failure


@run_by(run_alone)
async def test_sync_without_a_free_descriptor_is_unavailable(*, disk: LocalDisk) -> None:
    file = disk.open("f", create=True)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        for sync in (file.sync(), disk.sync_dir(".")):
            with pytest.raises(Unavailable, match="Too many open files") as caught:
                await sync
            assert not caught.value.final
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    await file.sync()


@run_by(run_alone)
async def test_slow_delete_of_a_file_delays_nobody(*, disk: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink, may_go = os.unlink, threading.Event()

    def slowly(path: str) -> None:
        assert may_go.wait(10)
        unlink(path)

    disk.open("f", create=True).close()
    monkeypatch.setattr(os, "unlink", slowly)
    going = asyncio.ensure_future(disk.discard("f"))
    await asyncio.sleep(0)
    assert disk.exists("f") and not going.done()
    may_go.set()
    await going
    assert not disk.exists("f")


@run_by(run_alone)
async def test_discard_notices_a_failing_drive_too(*, disk: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file = disk.open("f", create=True)
    monkeypatch.setattr(os, "unlink", fail)
    with pytest.raises(Unavailable, match="remove failed path=f") as caught:
        await disk.discard("f")
    assert caught.value.final
    with pytest.raises(Unavailable, match="remove failed path=f"):
        file.append([b"x"])


def test_unusable_data_directory_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Refused, match="file/data"):
        LocalDisk(str(tmp_path / "file" / "data"))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a file system that makes no directories")
def test_directory_that_no_file_system_makes_is_refused_by_name() -> None:
    for root in ("/proc/none", "/proc/none/deeper"):
        with pytest.raises(Refused, match=root):
            LocalDisk(root)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EIO])
def test_directory_that_the_system_denies_is_unavailable(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The setting is right, and a supervisor may try again: exit code 4, as for a bucket."""

    def no(path: str, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "mkdir", no)
    why = f"cannot use the data directory {tmp_path}/data: {os.strerror(number)}"
    with pytest.raises(Unavailable, match=why):
        LocalDisk(str(tmp_path / "data"))
    assert main(["up", "--data-dir", str(tmp_path / "data")]) == Exit.UNAVAILABLE
    assert capsys.readouterr().err == f"tiered: {why}\n"
    monkeypatch.setattr(os, "open", no)
    with pytest.raises(Unavailable, match=f"cannot lock {tmp_path}/.lock: {os.strerror(number)}"):
        LockFile(str(tmp_path / ".lock")).acquire()


def test_lock_has_one_holder_and_names_it(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    with LockFile(path), pytest.raises(Unavailable, match=f"{tmp_path} is in use by process {os.getpid()}"):
        LockFile(path).acquire()
    with LockFile(path):
        assert Path(path).read_text() == f"{os.getpid()}\n"


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    holder.kill()
    holder.communicate()
    LockFile(path).acquire()


def test_lock_that_cannot_be_created_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"cannot lock {tmp_path}/none/.lock: No such file or directory"):
        LockFile(str(tmp_path / "none" / ".lock")).acquire()


def test_broker_raises_its_file_limit_to_that_of_the_user() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        allow_open_files()
        raised = min(before[1], OPEN_FILES_WANTED)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, before[1])
        size = int(Path("/proc/self/status").read_text().partition("FDSize:")[2].split()[0])
        assert size >= raised, "the table of descriptors does not grow later"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_many_logs_share_few_open_files(disk: LocalDisk) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    mine = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * mine + 40, before[1]))
    try:
        files = OpenFiles(disk)
        for number in range(500):
            assert files.get(f"f{number}", create=True).append([b"x"]) == 1
        assert files.get("f0").pread(0, 9) == b"x"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_blocks_are_reserved_behind_the_end_without_a_new_size(disk: LocalDisk) -> None:
    file = disk.open("f", create=True)
    if not reserve_blocks(file.fileno(), 0, 4096):
        return  # this file system cannot: then nothing is reserved, and nothing else changes
    file.truncate(0)
    data = b"x" * (1 << 20)
    for count in range(1, 11):
        assert file.append([data]) == count << 20
        stat = os.stat(disk.root + "/f")
        assert stat.st_size == count << 20
        ahead = stat.st_blocks * 512 - stat.st_size
        assert ahead <= RESERVE_BYTES and (ahead > 0 or count != 5), count
    file.truncate(5)
    assert os.stat(disk.root + "/f").st_blocks * 512 <= 4096 * 2
    assert disk.open("f", write=False).pread(0, 10) == b"xxxxx"


@run_by(run_alone)
async def test_closed_segment_frees_its_reserved_blocks(*, disk: LocalDisk) -> None:
    log = await open_log(disk, config(segment_bytes=64 << 20))
    for number in range(6):
        append(log, batch(number, size=900_000))
    path = f"{disk.root}/{DIRECTORY}/{0:020d}.log"
    reserved = os.stat(path).st_blocks * 512 - os.stat(path).st_size
    log.roll()
    kept = os.stat(path).st_blocks * 512 - os.stat(path).st_size
    assert kept < 64 << 10 and os.stat(path).st_size > 5 << 20
    assert reserved > 1 << 20 or not reserve_blocks(disk.open("f", create=True).fileno(), 0, 4096)


def test_file_system_without_reservation_is_tried_once(disk: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def refuse(*arguments: int) -> int:
        asked.append(arguments)
        return -1

    monkeypatch.setattr("tiered.system.local_disk._fallocate", lambda: refuse)
    file = disk.open("f", create=True)
    for count in range(1, 11):
        assert file.append([b"x" * (1 << 20)]) == count << 20
    assert len(asked) == 1 and file.pread(0, 5) == b"xxxxx"


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_mode & 0o7777 for path in [root, *root.rglob("*")]}


def test_files_of_a_disk_are_private_for_any_umask(tmp_path: Path, umask: None) -> None:
    disk = LocalDisk(str(tmp_path / "srv" / "data"))
    disk.make_dirs("log")
    disk.make_dirs("log/t-0/deep")
    disk.open("log/t-0/f", create=True).close()
    with LockFile(disk.resolve(".lock")):
        assert modes(tmp_path / "srv") == {
            **dict.fromkeys([".", "data", "data/log", "data/log/t-0", "data/log/t-0/deep"], 0o700),
            **dict.fromkeys(["data/.lock", "data/log/t-0/f"], 0o600),
        }
    disk.close()


def test_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / ".lock").symlink_to(precious)
    with pytest.raises((Refused, Unavailable), match=f"cannot lock {tmp_path}/.lock"):
        LockFile(str(tmp_path / ".lock")).acquire()
    assert precious.read_text() == "precious"


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage().partition(" path=")[0]) for record in caplog.records]


def test_start_makes_an_open_data_directory_private(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has one line about it, once."""
    caplog.set_level(logging.INFO, "tiered")
    data = tmp_path / "data"
    for name in ("log", "bucket", "broker-1"):
        (data / name).mkdir(parents=True)
    data.chmod(0o2775)
    claim_data_directory(str(data))
    claim_data_directory(str(data))
    assert data.stat().st_mode & 0o7777 == 0o700
    assert lines(caplog) == [("INFO", "data directory was open to others")]


def test_directory_with_other_files_keeps_its_mode(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A start in a home directory or in /tmp must not make it private."""
    tmp_path.chmod(0o755)
    (tmp_path / "letters").mkdir()
    claim_data_directory(str(tmp_path))
    assert tmp_path.stat().st_mode & 0o7777 == 0o755
    assert lines(caplog) == [("WARNING", "data directory is open to others and holds other files")]


def test_directory_of_another_user_is_reported_and_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    claim_data_directory(str(tmp_path))
    assert tmp_path.stat().st_mode & 0o7777 == 0o777
    assert lines(caplog) == [("WARNING", "data directory belongs to another user")]
