"""Tests of encryption over S3: a large object goes up in parts, each read twice (signed, then sent), and reads back."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.encryption import write_key_file
from tests.fakes3 import FakeS3
from tests.s3_rules import BUCKET
from tiered.object_store.encrypted import EncryptedStore
from tiered.object_store.encrypted_object import stored_size
from tiered.object_store.key_file import KeyFile
from tiered.object_store.s3 import S3Store
from tiered.ports import FileSlice, GetResult, Ok
from tiered.system.clock import SystemClock, SystemRng
from tiered.system.local_disk import LocalDisk

PART_BYTES = 300_000
SIZE = 3 << 20


def test_upload_in_parts_reads_back(tmp_path: Path, fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    block = random.Random(1).randbytes(1 << 20)
    disk = LocalDisk(str(tmp_path / "disk"))
    file = disk.open("segment", create=True)
    file.append([block] * (SIZE >> 20))

    async def main() -> None:
        clock = SystemClock()
        s3 = S3Store(BUCKET, "sealed", clock, SystemRng(), part_bytes=PART_BYTES)
        store = EncryptedStore(s3, KeyFile(str(write_key_file(tmp_path / "keys")), clock))
        uploaded = await store.upload("k", [FileSlice(file, 0, SIZE), b"footer"])
        assert isinstance(uploaded, Ok)
        for start, length in ((SIZE, 100), (2 << 20, 1 << 20), (PART_BYTES - 10, 20)):
            got = await store.get("k", start, length)
            assert got == GetResult((block * 3 + b"footer")[start : start + length], SIZE + 6, uploaded.version)
        await store.close()

    asyncio.run(main())
    disk.close()
    body = fake.rules.buckets[BUCKET].pop("sealed/k").body
    assert len(body) == stored_size(SIZE + 6) and block[:64] not in body
