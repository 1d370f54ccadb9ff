"""Tests that memory does not grow with the size of an upload."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes3 import FakeS3
from tests.s3_rules import BUCKET

SIZE = 96 << 20
GROWTH_MAX = 24 << 20

UPLOAD = f"""
import asyncio, resource, sys
from tiered.object_store.url import open_store
from tiered.system.local_disk import LocalDisk
from tiered.ports import FileSlice, Ok
from tiered.system.clock import SystemClock, SystemRng

async def main(url, folder):
    file = LocalDisk(folder).open("segment", create=True)
    file.truncate({SIZE})
    store = open_store(url, SystemClock(), SystemRng())
    assert isinstance(await store.upload("small", [b"x"]), Ok)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert isinstance(await store.upload("big", [FileSlice(file, 0, {SIZE}), b"footer"]), Ok)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


def growth(url: str, folder: Path, environment: dict[str, str]) -> int:
    """Returns the largest growth of a process during its upload, in bytes."""
    command = [sys.executable, "-c", UPLOAD, url, str(folder / "disk")]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=240, check=True
    )
    return int(done.stdout)


def test_memory_of_an_upload_is_bounded_on_a_directory(tmp_path: Path) -> None:
    assert growth(f"file://{tmp_path}/store", tmp_path, {}) < GROWTH_MAX
    assert (tmp_path / "store" / "big").stat().st_size == SIZE + 6


@pytest.mark.skipif(sys.platform == "darwin", reason="ru_maxrss counts other units there")
def test_memory_of_an_upload_is_bounded_on_s3(tmp_path: Path, fake: FakeS3) -> None:
    assert growth(f"s3://{BUCKET}/memory", tmp_path, fake.environment) < GROWTH_MAX
    assert len(fake.rules.buckets[BUCKET].pop("memory/big").body) == SIZE + 6
