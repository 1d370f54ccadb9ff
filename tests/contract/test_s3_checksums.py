"""Tests of stores that want a checksum with deletes and puts, and of those that know only the oldest one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.fakes3 import FakeS3
from tests.s3_rules import BUCKET
from tests.scenario import run_alone, run_by
from tiered.errors import Unavailable
from tiered.object_store.s3 import S3Store
from tiered.object_store.s3_refusals import may_lack_checksum
from tiered.ports import GetResult, Ok
from tiered.system.clock import SystemClock, SystemRng

PART_BYTES = 5 << 20
IN_PARTS = PART_BYTES * 8 + 1


@pytest.fixture
def strict(fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    fake.rules.deletes_need_md5 = fake.rules.puts_need_checksum = True
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    yield fake


def open_store(name: str) -> S3Store:
    return S3Store(BUCKET, name, SystemClock(), SystemRng(), part_bytes=PART_BYTES)


@pytest.mark.parametrize("size", [3, IN_PARTS])
@run_by(run_alone)
async def test_upload_is_repeated_with_its_checksum_once(*, strict: FakeS3, size: int) -> None:
    data = os.urandom(size)
    store = open_store(f"up{size}")
    assert isinstance(await store.upload("a", [data[:1], data[1:]]), Ok)
    first = strict.requests["PUT"]
    assert isinstance(await store.upload("b", [data]), Ok)
    parts = -(-size // PART_BYTES) if size == IN_PARTS else 1
    assert strict.requests["PUT"] - first == parts, "the store's wish is known"
    assert parts < first <= parts + 4
    for key in ("a", "b"):
        got = await store.get(key)
        assert isinstance(got, GetResult) and got.data == data
    await store.delete(["a", "b"])
    await store.close()


@run_by(run_alone)
async def test_conditional_puts_carry_the_checksum_in_their_only_request(*, strict: FakeS3) -> None:
    store = open_store("conditional")
    first = await store.put("k", b"first", if_absent=True)
    assert isinstance(first, Ok)
    assert isinstance(await store.put("k", b"second", if_match=first.version), Ok)
    assert strict.requests["PUT"] == 2
    await store.delete(["k"])
    await store.close()


@run_by(run_alone)
async def test_wish_that_begins_while_the_store_is_in_use_is_learnt(*, strict: FakeS3) -> None:
    """An administrator sets a default retention."""
    strict.rules.puts_need_checksum = False
    store = open_store("later")
    assert isinstance(await store.upload("a", [b"abc"]), Ok)
    assert strict.requests["PUT"] == 1
    strict.rules.puts_need_checksum = True
    assert isinstance(await store.upload("a", [b"abc"]), Ok)
    assert strict.requests["PUT"] == 3
    await store.delete(["a"])
    await store.close()


@run_by(run_alone)
async def test_other_refusal_of_an_upload_is_not_repeated(*, fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    store = S3Store("other-bucket", "", SystemClock(), SystemRng())
    with pytest.raises(Unavailable, match="NoSuchBucket"):
        await store.upload("a", [b"abc"])
    assert fake.requests["PUT"] == 1
    await store.close()


@pytest.mark.parametrize(
    ("status", "code", "message", "lacks"),
    [
        (400, "InvalidRequest", "refused", True),
        (400, "MissingContentMD5", "", True),
        (400, "InvalidArgument", "Content-MD5 OR x-amz-checksum- HTTP header is required", True),
        (400, "InvalidArgument", "no such thing", False),
        (400, "BadDigest", "The Content-MD5 you specified did not match", False),
        (403, "InvalidRequest", "", False),
    ],
)
def test_refusals_for_a_missing_checksum(status: int, code: str, message: str, lacks: bool) -> None:
    assert may_lack_checksum(status, code, message) == lacks
