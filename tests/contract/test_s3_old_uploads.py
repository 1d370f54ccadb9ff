"""Tests of uploads in parts whose process was killed: a later process ends them, and no others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import boto3
import pytest

from tests.fakes3 import FakeS3, HttpFault, S3Server
from tests.s3_rules import BUCKET
from tests.scenario import run_alone, run_by
from tiered.errors import Unavailable
from tiered.object_store import s3
from tiered.object_store.faulty import FaultKind
from tiered.object_store.s3 import S3Store
from tiered.ports import Ok
from tiered.system.clock import SystemClock, SystemRng

DAY = 24 * 3600


@pytest.fixture
def parts(fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    yield fake
    fake.rules.begun.clear()
    fake.rules.uploads.clear()


def begin(fake: FakeS3, key: str, age_seconds: float) -> str:
    """Leaves an upload that began so long ago, with one part."""
    upload = f"upload-{len(fake.rules.begun):04d}"
    fake.rules.uploads[upload] = {1: b"part"}
    fake.rules.begun[upload] = (BUCKET, key, time.time() - age_seconds)
    return upload


def end_old(prefix: str = "", root: str = "ours") -> int:
    async def body() -> int:
        store = S3Store(BUCKET, root, SystemClock(), SystemRng())
        try:
            return await store.end_old_uploads(prefix)
        finally:
            await store.close()

    return asyncio.run(body())


def test_uploads_older_than_a_day_below_the_prefix_are_ended(parts: FakeS3) -> None:
    old = [begin(parts, f"ours/data/{number}", DAY + 60) for number in range(3)]
    kept = [
        begin(parts, "ours/data/young", DAY - 60),
        begin(parts, "ours2/data/old", 3 * DAY),
        begin(parts, "theirs/data/old", 3 * DAY),
    ]
    assert end_old() == len(old)
    assert list(parts.rules.begun) == kept
    assert end_old() == 0


def test_uploads_of_a_table_are_ended_and_those_beside_it_stay(parts: FakeS3) -> None:
    kept = begin(parts, "wh/orders_typed/part", 2 * DAY)
    begin(parts, "wh/orders/part", 2 * DAY)
    assert end_old("wh/orders/", root="") == 1
    assert list(parts.rules.begun) == [kept]


def test_work_of_one_call_is_bounded_and_continues(parts: FakeS3) -> None:
    for number in range(s3.ABORTS_MAX + 20):
        begin(parts, f"ours/{number:04d}", 2 * DAY)
    assert end_old() == s3.ABORTS_MAX
    assert end_old() == 20
    assert not parts.rules.begun


def test_old_uploads_behind_a_page_of_young_ones_are_ended(parts: FakeS3) -> None:
    for number in range(s3.LIST_KEYS + 5):
        begin(parts, f"ours/{number:04d}", 60)
    begin(parts, "ours/z", 2 * DAY)
    assert end_old() == 1


def test_store_that_refuses_keeps_the_uploads_without_an_error(parts: FakeS3) -> None:
    begin(parts, "ours/k", 2 * DAY)
    parts.faults.append(HttpFault(FaultKind.ERROR, ("LIST",), status=403))
    assert end_old() == 0
    parts.faults[:] = [HttpFault(FaultKind.ERROR, ("DELETE",), status=403)]
    assert end_old() == 0
    assert len(parts.rules.begun) == 1


@run_by(run_alone)
async def test_own_upload_is_never_old(*, parts: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "OLD_UPLOAD_SECONDS", -60)
    parts.faults.append(HttpFault(FaultKind.DELAY, ("PUT",), seconds=0.5))
    store = S3Store(BUCKET, "ours", SystemClock(), SystemRng(), part_bytes=5 << 20)
    upload = asyncio.create_task(store.upload("k", [bytes(41 << 20)]))
    while not parts.rules.begun:
        await asyncio.sleep(0.01)
    assert await store.end_old_uploads("") == 0
    assert isinstance(await upload, Ok)
    await store.close()


def test_store_that_does_not_reply_is_unavailable(parts: FakeS3) -> None:
    parts.faults.append(HttpFault(FaultKind.ERROR, ("LIST",), status=500))
    with pytest.raises(Unavailable):
        end_old()


def test_moto_ends_an_old_upload(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in moto_server.environment.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    for key in ("ours/k", "theirs/k"):
        client.create_multipart_upload(Bucket=BUCKET, Key=key)
    assert end_old() == 1, "moto says of each upload that it began in 2010"
    left = client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
    assert [upload["Key"] for upload in left] == ["theirs/k"]
