"""Tests of the S3 store's results when the reply is lost, late, broken or a refusal: against the fake server, one fault
at a time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tests.fakes3 import FakeS3, HttpFault
from tests.s3_rules import BUCKET
from tests.scenario import run_by, run_by_fixture
from tiered.errors import Unavailable
from tiered.object_store import s3
from tiered.object_store.faulty import FaultKind
from tiered.object_store.s3 import S3Store
from tiered.ports import Conflict, GetResult, NotFound, Ok, Unknown
from tiered.system.clock import SystemClock, SystemRng

T = TypeVar("T")
PART_BYTES = 5 << 20
Run = Callable[[Callable[[S3Store], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def run(fake: FakeS3, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Run:
    """Runs a body with a store of small parts on the fake server, below a prefix of its own."""
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)

    def run_body(body: Callable[[S3Store], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            store = S3Store(BUCKET, request.node.name, SystemClock(), SystemRng(), part_bytes=PART_BYTES)
            try:
                await body(store)
            finally:
                await store.close()

        asyncio.run(main())

    return run_body


@run_by(run_by_fixture, "run")
async def test_conditional_put_is_sent_once_and_unknown_after_a_503(store: S3Store, *, fake: FakeS3) -> None:
    fake.faults.append(HttpFault(FaultKind.ERROR, ("PUT",), times=1))
    assert isinstance(await store.put("k", b"x", if_absent=True), Unknown)
    assert fake.requests["PUT"] == 1
    assert await store.get("k") == NotFound()


@run_by(run_by_fixture, "run")
async def test_lost_reply_is_unknown_and_the_object_exists(store: S3Store, *, fake: FakeS3) -> None:
    fake.faults.append(HttpFault(FaultKind.LOST_REPLY, ("PUT",), times=1))
    assert isinstance(await store.put("k", b"mine", if_absent=True), Unknown)
    assert fake.requests["PUT"] == 1
    got = await store.get("k")
    assert isinstance(got, GetResult) and got.data == b"mine"


@run_by(run_by_fixture, "run")
async def test_lost_reply_of_a_swap_is_unknown_and_the_object_is_new(store: S3Store, *, fake: FakeS3) -> None:
    first = await store.put("k", b"first")
    assert isinstance(first, Ok)
    fake.faults.append(HttpFault(FaultKind.LOST_REPLY, ("PUT",), times=1))
    assert isinstance(await store.put("k", b"second", if_match=first.version), Unknown)
    got = await store.get("k")
    assert isinstance(got, GetResult) and got.data == b"second"


@run_by(run_by_fixture, "run")
async def test_put_may_land_after_its_timeout(store: S3Store, *, fake: FakeS3) -> None:
    fake.faults.append(HttpFault(FaultKind.LATE_APPLY, ("PUT",), times=1, seconds=0.3))
    assert isinstance(await store.put("k", b"late", if_absent=True), Unknown)
    assert await store.get("k") == NotFound()
    async with asyncio.timeout(120):
        while isinstance(await store.get("k"), NotFound):
            await asyncio.sleep(0.02)


@run_by(run_by_fixture, "run")
async def test_409_is_a_conflict_without_a_write(store: S3Store, *, fake: FakeS3) -> None:
    fake.faults.append(HttpFault(FaultKind.CONFLICT, ("PUT",), times=1))
    assert await store.put("k", b"x", if_absent=True) == Conflict()
    assert await store.get("k") == NotFound()


@run_by(run_by_fixture, "run")
async def test_put_without_condition_is_retried(store: S3Store, *, fake: FakeS3) -> None:
    fake.faults.append(HttpFault(FaultKind.LOST_REPLY, ("PUT",), times=1))
    assert isinstance(await store.put("k", b"x"), Ok)
    assert fake.requests["PUT"] == 2


@pytest.mark.parametrize(("status", "final"), [(403, False), (501, True)])
@run_by(run_by_fixture, "run")
async def test_refusal_is_final_only_if_the_store_lacks_the_feature(
    store: S3Store, *, fake: FakeS3, status: int, final: bool
) -> None:
    fake.faults.append(HttpFault(FaultKind.ERROR, status=status))
    for call in (store.put("k", b"x", if_absent=True), store.get("k"), store.list(""), store.delete(["k"])):
        with pytest.raises(Unavailable, match=re.escape(store.url)) as caught:
            await call
        assert caught.value.final == final
        assert caught.value.refused == (status == 403)


@run_by(run_by_fixture, "run")
async def test_missing_bucket_is_unavailable(_: S3Store, *, fake: FakeS3) -> None:
    store = S3Store("no-such-bucket", "", SystemClock(), SystemRng())
    with pytest.raises(Unavailable, match="NoSuchBucket"):
        await store.put("k", b"x", if_absent=True)
    with pytest.raises(Unavailable, match="NoSuchBucket"):
        await store.get("k")
    await store.close()


@pytest.mark.parametrize("length", [None, 400_000])
@run_by(run_by_fixture, "run")
async def test_body_that_breaks_off_is_read_again(store: S3Store, *, fake: FakeS3, length: int | None) -> None:
    data = bytes(range(200)) * 2500
    await store.put("k", data)
    fake.faults.append(HttpFault(FaultKind.TRUNCATED, ("GET",), times=1))
    got = await store.get("k", 0, length)
    assert isinstance(got, GetResult) and got.data == data[:length]
    assert fake.requests["GET"] == 2


def test_body_that_breaks_off_every_time_is_unavailable(
    fake: FakeS3, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered.object_store.s3.BACKOFF_SECONDS", 0.001)

    async def body(store: S3Store) -> None:
        await store.put("k", b"0123456789")
        fake.faults.append(HttpFault(FaultKind.TRUNCATED, ("GET",)))
        with pytest.raises(Unavailable, match=r"the body breaks off: .*IncompleteRead"):
            await store.get("k", 2, 6)

    run(body)


@pytest.mark.parametrize(("start", "length"), [(0, None), (2, 6)])
@run_by(run_by_fixture, "run")
async def test_damaged_bytes_are_returned_unchecked(
    store: S3Store, *, fake: FakeS3, start: int, length: int | None
) -> None:
    await store.put("k", b"0123456789")
    fake.faults.append(HttpFault(FaultKind.FLIPPED, ("GET",), times=1))
    got = await store.get("k", start, length)
    assert isinstance(got, GetResult) and len(got.data) == (length or 10) and got.data not in b"0123456789"


@run_by(run_by_fixture, "run")
async def test_range_is_read_despite_a_checksum_of_the_whole_object(store: S3Store, *, fake: FakeS3) -> None:
    fake.rules.whole_checksums = True
    await store.upload("k", [b"0123456789"])
    got = await store.get("k", 2, 6)
    assert isinstance(got, GetResult) and got.data == b"234567" and fake.requests["GET"] == 1


@pytest.mark.parametrize("size", [10, 9 * PART_BYTES])
@run_by(run_by_fixture, "run")
async def test_upload_damaged_in_transfer_is_refused(store: S3Store, *, fake: FakeS3, size: int) -> None:
    fake.faults.append(HttpFault(FaultKind.FLIPPED, ("PUT",)))
    with pytest.raises(Unavailable, match="XAmzContentSHA256Mismatch"):
        await store.upload("k", [bytes(size)])
    with pytest.raises(Unavailable, match="XAmzContentSHA256Mismatch"):
        await store.put("k", bytes(10), if_absent=True)
    assert await store.get("k") == NotFound()


@run_by(run_by_fixture, "run")
async def test_listing_may_be_stale(store: S3Store, *, fake: FakeS3) -> None:
    await store.put("k", b"x")
    fake.faults.append(HttpFault(FaultKind.STALE_LIST, ("LIST",), times=1, seconds=60))
    assert await store.list("") == []
    assert [entry.key for entry in await store.list("")] == ["k"]


def test_listing_of_endless_empty_pages_is_unavailable(fake: FakeS3, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty list would mean that there are no objects."""
    monkeypatch.setattr(s3, "EMPTY_PAGES_MAX", 1)

    async def body(store: S3Store) -> None:
        await store.put("k", b"x")
        fake.rules.sparse_listings = True
        with pytest.raises(Unavailable, match="1 pages gave no key"):
            await store.list("k")

    run(body)


BIG = bytes(range(256)) * (9 * PART_BYTES // 256)


@run_by(run_by_fixture, "run")
async def test_large_upload_is_sent_in_parts(store: S3Store, *, fake: FakeS3) -> None:
    assert isinstance(await store.upload("k", [BIG[:1000], BIG[1000:]]), Ok)
    assert (fake.requests["PUT"], fake.rules.uploads) == (9, {})
    got = await store.get("k")
    assert isinstance(got, GetResult) and got.data == BIG


@run_by(run_by_fixture, "run")
async def test_lost_reply_to_the_end_of_an_upload_is_resolved(store: S3Store, *, fake: FakeS3) -> None:
    fake.faults.append(HttpFault(FaultKind.LOST_REPLY, ("POST",), skip=1, times=1))
    result = await store.upload("k", [BIG])
    got = await store.get("k", 0, 10)
    assert isinstance(got, GetResult) and result == Ok(got.version)


@run_by(run_by_fixture, "run")
async def test_failed_upload_is_aborted(store: S3Store, *, fake: FakeS3) -> None:
    fake.faults.append(HttpFault(FaultKind.ERROR, ("PUT",), skip=3, status=403))
    with pytest.raises(Unavailable):
        await store.upload("k", [BIG])
    assert fake.rules.uploads == {}
    assert await store.get("k") == NotFound()
