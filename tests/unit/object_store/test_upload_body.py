"""Tests of an upload body, several parts that read as one file: windows, seeks, and files that vanish or shrink
meanwhile."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest

from tests.sim.harness.disk import SimDisk
from tiered.errors import Unavailable
from tiered.object_store.upload_body import UploadBody
from tiered.ports import Disk, File, FileSlice
from tiered.system.local_disk import LocalDisk

DATA = random.Random(1).randbytes(10_000)


@pytest.fixture(params=["local", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return LocalDisk(str(tmp_path)) if request.param == "local" else SimDisk(random.Random(1))


@pytest.fixture
def file(disk: Disk) -> File:
    file = disk.open("f", create=True)
    file.append([DATA])
    return file


def test_window_may_span_parts(file: File) -> None:
    parts = UploadBody([b"abc", FileSlice(file, 100, 1000), b"", memoryview(b"xyz")])
    whole = b"abc" + DATA[100:1100] + b"xyz"
    assert (parts.size, parts.join()) == (1006, whole)
    for start, length in ((0, 1006), (0, 2), (2, 3), (500, 10), (1000, 6), (1005, 1), (1006, 0)):
        assert parts.window(start, length).read() == whole[start : start + length]


def test_window_can_be_read_again(file: File) -> None:
    window = UploadBody([b"abc", FileSlice(file, 0, 100)]).window(1, 50)
    whole = (b"abc" + DATA)[1:51]
    assert (window.read(10), window.tell(), window.read()) == (whole[:10], 10, whole[10:])
    assert (window.read(), window.seek(0), window.read(5)) == (b"", 0, whole[:5])
    assert (window.seek(-3, io.SEEK_END), window.read()) == (47, whole[-3:])
    assert (window.seek(-1000, io.SEEK_CUR), window.tell(), len(window)) == (0, 0, 50)
    assert window.readable() and window.seekable()


def test_removed_file_is_still_uploaded(disk: Disk, file: File) -> None:
    parts = UploadBody([FileSlice(file, 0, 100)])
    disk.remove("f")
    assert parts.join() == DATA[:100]


def test_closed_file_with_a_descriptor_is_still_uploaded(tmp_path: Path) -> None:
    file = LocalDisk(str(tmp_path)).open("f", create=True)
    file.append([DATA])
    parts = UploadBody([FileSlice(file, 0, 100)])
    file.close()
    assert parts.join() == DATA[:100]


def test_shortened_file_is_an_error_and_no_short_object(file: File) -> None:
    parts = UploadBody([FileSlice(file, 0, 10_000)])
    file.truncate(5000)
    with pytest.raises(Unavailable, match="became shorter"):
        parts.join()


def test_closed_file_is_not_uploaded(tmp_path: Path) -> None:
    file = LocalDisk(str(tmp_path)).open("f", create=True)
    file.close()
    with pytest.raises(Unavailable):
        UploadBody([FileSlice(file, 0, 100)]).join()
