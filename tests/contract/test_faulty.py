"""Tests of the faulty store: each fault has its effect, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from tests.sim.harness.clock import SimClock
from tests.sim.harness.disk import SimDisk
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.store import SimBucket, SimStore
from tiered.errors import Unavailable
from tiered.object_store.faulty import FaultKind, FaultRule, Faults, RequestThrottle
from tiered.ports import Conflict, FileSlice, GetResult, NotFound, Ok, Unknown


def run(faults: Faults, body: Callable[[SimStore, SimClock], Awaitable[None]]) -> None:
    loop = SimLoop(1)
    clock = SimClock(loop)

    async def main() -> None:
        await body(SimBucket(loop).store(faults, clock), clock)

    loop.run(main())


def test_error_leaves_no_object() -> None:
    async def body(store: SimStore, clock: SimClock) -> None:
        assert isinstance(await store.put("k", b"x"), Unknown)
        assert clock.mono_ns() == 1_000_000_000
        assert await store.get("k") == NotFound()

    run(Faults([FaultRule(FaultKind.ERROR, times=1)]), body)


def test_lost_reply_leaves_the_object() -> None:
    async def body(store: SimStore, clock: SimClock) -> None:
        assert isinstance(await store.put("k", b"x"), Unknown)
        assert isinstance(await store.get("k"), GetResult)

    run(Faults([FaultRule(FaultKind.LOST_REPLY, times=1)]), body)


def test_late_write_lands_when_due_if_its_condition_holds_then() -> None:
    async def body(store: SimStore, clock: SimClock) -> None:
        assert isinstance(await store.put("k", b"late", if_absent=True), Unknown)
        assert isinstance(await store.put("free", b"late", if_absent=True), Unknown)
        assert isinstance(await store.put("k", b"mine", if_absent=True), Ok)
        assert await store.get("free") == NotFound()
        await clock.sleep(30)
        found = [await store.get("k"), await store.get("free")]
        assert [got.data for got in found if isinstance(got, GetResult)] == [b"mine", b"late"]

    run(Faults([FaultRule(FaultKind.LATE_APPLY, ("put",), seconds=20, times=2)]), body)


def test_late_write_lands_after_the_death_of_its_sender() -> None:
    loop = SimLoop(1)
    clock, bucket = SimClock(loop), SimBucket(loop)

    async def main() -> None:
        dead = bucket.store(Faults([FaultRule(FaultKind.LATE_APPLY, seconds=5)]), clock)
        await dead.put("k", b"late")
        dead.revoke()
        await clock.sleep(5)
        assert isinstance(await bucket.store(Faults(), clock).get("k"), GetResult)
        assert isinstance(await dead.put("k2", b"x"), Unknown)
        assert await bucket.store(Faults(), clock).get("k2") == NotFound()

    loop.run(main())


def test_lost_reply_of_a_delete_is_unavailable_without_the_object() -> None:
    async def body(store: SimStore, clock: SimClock) -> None:
        await store.put("k", b"x")
        with pytest.raises(Unavailable):
            await store.delete(["k"])
        assert await store.get("k") == NotFound()

    run(Faults([FaultRule(FaultKind.LOST_REPLY, ("delete",))]), body)


def test_late_upload_has_the_bytes_of_its_request() -> None:
    file = SimDisk(random.Random(1)).open("f", create=True)
    file.append([b"segment"])

    async def body(store: SimStore, clock: SimClock) -> None:
        assert isinstance(await store.upload("k", [FileSlice(file, 0, 7), b" footer"]), Unknown)
        file.truncate(0)
        await clock.sleep(10)
        got = await store.get("k")
        assert isinstance(got, GetResult) and got.data == b"segment footer"

    run(Faults([FaultRule(FaultKind.LATE_APPLY, ("upload",), seconds=5)]), body)


def test_conflict_leaves_no_object() -> None:
    async def body(store: SimStore, clock: SimClock) -> None:
        assert await store.put("k", b"x", if_absent=True) == Conflict()
        assert await store.get("k") == NotFound()

    run(Faults([FaultRule(FaultKind.CONFLICT, ("put",))]), body)


def test_reads_can_be_cut_or_damaged() -> None:
    async def body(store: SimStore, clock: SimClock) -> None:
        await store.put("k", b"01234567")
        cut, rotten, whole = [await store.get("k") for _ in range(3)]
        assert isinstance(cut, GetResult) and cut.data == b"0123"
        assert isinstance(rotten, GetResult) and isinstance(whole, GetResult)
        wrong = [a ^ b for a, b in zip(rotten.data, whole.data, strict=True) if a != b]
        assert len(wrong) == 1 and wrong[0].bit_count() == 1

    run(
        Faults([FaultRule(FaultKind.TRUNCATED, ("get",), times=1), FaultRule(FaultKind.FLIPPED, ("get",), times=1)]),
        body,
    )


def test_stale_list_lacks_young_objects() -> None:
    async def body(store: SimStore, clock: SimClock) -> None:
        await store.put("old", b"x")
        await clock.sleep(60)
        await store.put("young", b"x")
        assert [entry.key for entry in await store.list("")] == ["old"]
        await clock.sleep(60)
        assert [entry.key for entry in await store.list("")] == ["old", "young"]

    run(Faults([FaultRule(FaultKind.STALE_LIST, ("list",), seconds=30)]), body)


def test_stale_list_has_full_pages_of_old_objects() -> None:
    """The list ends at the last old object, and not at a page with only young ones."""

    async def body(store: SimStore, clock: SimClock) -> None:
        await store.put("z", b"x")
        await clock.sleep(60)
        for name in "abcd":
            await store.put(name, b"x")
        assert [entry.key for entry in await store.list("", limit=2)] == ["z"]

    run(Faults([FaultRule(FaultKind.STALE_LIST, ("list",), seconds=30)], list_keys=2), body)


def test_stale_list_hides_objects_of_another_writer() -> None:
    loop = SimLoop(1)
    bucket, clock = SimBucket(loop), SimClock(loop)

    async def body() -> None:
        await bucket.store(Faults(), clock).put("k", b"x")
        stale = bucket.store(Faults([FaultRule(FaultKind.STALE_LIST, ("list",), seconds=30)]), clock)
        assert await stale.list("") == []
        await clock.sleep(60)
        assert [entry.key for entry in await stale.list("")] == ["k"]

    loop.run(body())


def test_lists_come_in_pages() -> None:
    async def body(store: SimStore, clock: SimClock) -> None:
        for number in range(5):
            await store.put(str(number), b"x")
        pages, page = list[list[str]](), await store.list("")
        while page:
            pages.append([entry.key for entry in page])
            page = await store.list("", page[-1].key)
        assert pages == [["0", "1"], ["2", "3"], ["4"]]

    run(Faults(list_keys=2), body)


def test_excess_requests_are_throttled_for_a_while() -> None:
    """The refusal is immediate and named; a refused request has no effect."""
    throttle = RequestThrottle(rate=2.0, burst=3.0, seconds=1.0)

    async def body(store: SimStore, clock: SimClock) -> None:
        began = clock.mono_ns()
        assert [type(await store.put(str(number), b"x")) for number in range(5)] == [Ok, Ok, Ok, Unknown, Unknown]
        for call in (store.get("0"), store.list(""), store.delete(["0"])):
            with pytest.raises(Unavailable, match="SlowDown"):
                await call
        assert clock.mono_ns() == began and (store.hits[FaultKind.THROTTLE], throttle.refused_count) == (5, 5)
        await clock.sleep(1.0)
        assert [entry.key for entry in await store.list("")] == ["0", "1", "2"]
        await clock.sleep(10.0)
        assert [type(await store.put("x", b"x")) for _ in range(3)] == [Ok, Ok, Ok], "as many at a time as before"

    run(Faults(throttle=throttle), body)


def test_rules_match_by_verb_key_and_count() -> None:
    async def body(store: SimStore, clock: SimClock) -> None:
        await store.put("meta/1", b"x")
        answers = [type(await store.put("data/1", b"x")) for _ in range(4)]
        assert answers == [Ok, Unknown, Unknown, Ok]
        assert (store.calls["put"], store.hits[FaultKind.ERROR]) == (5, 2)

    run(Faults([FaultRule(FaultKind.ERROR, ("put",), key="data/", skip=1, times=2)]), body)


def test_outage_fails_all_requests_until_it_ends() -> None:
    faults = Faults(outage=True)

    async def body(store: SimStore, clock: SimClock) -> None:
        assert isinstance(await store.put("k", b"x"), Unknown)
        for call in (store.get("k"), store.list(""), store.delete(["k"])):
            with pytest.raises(Unavailable):
                await call
        faults.outage = False
        assert isinstance(await store.put("k", b"x"), Ok)

    run(faults, body)


def test_slow_link_delays_by_size() -> None:
    async def body(store: SimStore, clock: SimClock) -> None:
        await store.put("k", bytes(8_500_000))
        before = clock.mono_ns()
        await store.get("k")
        assert clock.mono_ns() - before == 130_000_000

    run(Faults(first_byte_seconds=0.03, bytes_per_second=85_000_000), body)


def test_chance_is_drawn_from_the_given_stream() -> None:
    def hits(seed: int) -> list[bool]:
        faults = Faults([FaultRule(FaultKind.ERROR, probability=0.5)], random.Random(seed))
        return [faults.find_fault("get", "k") is not None for _ in range(50)]

    assert hits(1) == hits(1) != hits(2)
