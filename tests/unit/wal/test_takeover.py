"""Tests of takeovers: the fence is in the right slot whatever a list shows, and no acknowledged record is missing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar
from unittest.mock import patch

import pytest

from tests.scenario import in_rig
from tests.seeds import first_seeds
from tests.unit.wal.rig import ONE, THREE, TWO, Broker, MemoryLog, Rig
from tiered.errors import Corrupt, Unavailable
from tiered.ids import NO_EPOCH, PartitionId
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.wal.history import join_extents
from tiered.wal.layout import Fence, decode, encode_fence, slot_key
from tiered.wal.trimming import LISTED_NS
from tiered.wal.window import WindowSettings


def fences_of(rig: Rig, owner: Broker) -> list[Fence]:
    """Returns the fences in the chain of a broker."""
    found = []
    for slot, (_, stored) in enumerate(sorted(rig.bucket.objects.items())):
        each = decode(stored.data, owner.chain, slot, "cluster", len(stored.data))
        if isinstance(each, Fence):
            found.append(each)
    return found


@in_rig(Rig)
async def test_records_of_a_dead_owner_are_read_in_order(rig: Rig) -> None:
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 1)
    for number in range(40):
        owner.append(ONE, b"%02d" % number)
        await owner.wait_stored(ONE, number + 1)
    fenced = await other.take_over(owner.chain, 2, ONE)
    assert fenced.end == 40
    assert await other.read(fenced.extents_of(ONE)) == b"".join(b"%02d" % number for number in range(40))


@in_rig(Rig)
async def test_chain_that_never_began_is_fenced_at_its_first_slot(rig: Rig) -> None:
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 1)
    fenced = await other.take_over(owner.chain, 2, ONE)
    assert (fenced.end, fenced.extents_of(ONE)) == (0, [])
    owner.append(ONE, b"late")
    await rig.clock.sleep(1.0)
    assert owner.fenced == [ONE] and owner.stored[ONE] == 0


@in_rig(Rig)
async def test_list_that_lacks_the_newest_objects_misleads_nobody(rig: Rig) -> None:
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 1)
    for number in range(20):
        owner.append(ONE, b"a")
        await owner.wait_stored(ONE, number + 1)
        await rig.clock.sleep(120.0)
    await owner.writer.trim({ONE: 20})
    other.fail(FaultRule(FaultKind.STALE_LIST, ("list",), seconds=LISTED_NS / 1e9))
    fenced = await other.take_over(owner.chain, 2, ONE)
    assert fenced.end == 20
    owner.append(ONE, b"late")
    await rig.clock.sleep(1.0)
    assert owner.fenced == [ONE]


@in_rig(Rig)
async def test_short_pages_of_a_list_cost_no_fences(rig: Rig) -> None:
    """A store may list few keys in each page. Each takeover of a dead chain puts one fence, behind all others."""
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 1)
    for number in range(30):
        owner.append(ONE, b"a")
        await owner.wait_stored(ONE, number + 1)
    other.faults.list_keys = 2
    for number in range(5):
        assert (await other.take_over(owner.chain, 2 + number, ONE)).end == 30 + number
    assert len(fences_of(rig, owner)) == 5


@in_rig(Rig)
async def test_list_that_ends_early_costs_fences_and_no_records(rig: Rig) -> None:
    """The list of a chain whose owner lives is bounded: the owner may add a page during each request."""
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 1)
    for number in range(30):
        owner.append(ONE, b"%02d" % number)
        await owner.wait_stored(ONE, number + 1)
    other.faults.list_keys = 2
    with patch("tiered.wal.takeover.LIVE_PAGES_MAX", 1):
        fenced = await other.take_over(owner.chain, 2, ONE)
    assert len(fences_of(rig, owner)) > 1, "the first fence was far behind"
    found = await other.read(join_extents(fenced.extents_of(ONE), 0, NO_EPOCH))
    assert found == b"".join(b"%02d" % number for number in range(30))


@in_rig(Rig)
async def test_takeover_of_a_long_chain_has_few_tasks(rig: Rig) -> None:
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 1)
    for number in range(40):
        owner.append(ONE, b"a")
        await owner.wait_stored(ONE, number + 1)
    before, most = len(asyncio.all_tasks()), 0
    taking = asyncio.ensure_future(other.take_over(owner.chain, 2, ONE))
    with patch("tiered.wal.takeover.TASKS_AT_ONCE", 8):
        while not taking.done():
            most = max(most, len(asyncio.all_tasks()) - before)
            await asyncio.sleep(0)
    assert (await taking).end == 40 and most <= 8 + 1


@in_rig(Rig)
async def test_owner_that_puts_faster_than_the_fence_is_stopped(rig: Rig) -> None:
    """The owner lives, and leads other partitions. It puts a window every 10 ms; the other broker is far away."""
    owner, other = rig.broker(1, settings=WindowSettings(10_000_000, 1_000)), rig.broker(2, "j")
    for each in (ONE, TWO):
        owner.lead(each, 1)
    other.faults.first_byte_seconds = 0.1
    written = 0

    async def write() -> None:
        nonlocal written
        while True:
            for each in (ONE, TWO):
                if each not in owner.fenced:
                    owner.append(each, b"%06d" % written)
            written += 1
            await rig.clock.sleep(0.004)

    rig.spawn("writer", write())
    await rig.clock.sleep(1.0)
    async with asyncio.timeout(20.0):
        fenced = await other.take_over(owner.chain, 2, ONE)
    stored = owner.stored[ONE]
    found = await other.read(join_extents(fenced.extents_of(ONE), 0, NO_EPOCH))
    assert len(found) >= stored * 6 and found[: stored * 6] == b"".join(b"%06d" % each for each in range(stored))
    before = owner.stored[TWO]
    await owner.wait_stored(TWO, before + 100)
    assert owner.fenced == [ONE] and owner.stored[ONE] == stored, "and goes on with its other partitions"
    assert max(fences_of(rig, owner), key=lambda each: each.slot).decided <= fenced.end, (
        "slots before the stop may have been free"
    )
    third = rig.broker(3, "k")
    again = await third.take_over(owner.chain, 3, ONE)
    assert again.end > fenced.end and again.extents_of(ONE) == fenced.extents_of(ONE)


@in_rig(Rig)
async def test_fence_ahead_of_free_slots_misleads_nobody(rig: Rig) -> None:
    """It stopped the owner, and its broker died before it took the slots before it. So did the owner."""
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 1)
    for number in range(3):
        owner.append(ONE, b"a")
        await owner.wait_stored(ONE, number + 1)
    ahead = encode_fence(owner.chain, 12, "dead", "cluster", 3, {ONE: 2})
    await other.store.put(slot_key(owner.chain, 12), ahead, if_absent=True)
    fenced = await other.take_over(owner.chain, 3, ONE)
    assert fenced.end == 3 and len(fenced.extents_of(ONE)) == 3


@in_rig(Rig)
async def test_two_who_take_over_get_a_slot_each(rig: Rig) -> None:
    owner, second, third = rig.broker(1), rig.broker(2, "j"), rig.broker(3, "k")
    for each in (ONE, TWO):
        owner.lead(each, 1)
        owner.append(each, b"a")
    await owner.wait_stored(TWO, 1)
    assert (await second.take_over(owner.chain, 2, ONE)).end == 1
    assert (await third.take_over(owner.chain, 2, TWO)).end == 2
    owner.append(ONE, b"b")
    owner.append(TWO, b"b")
    await rig.clock.sleep(1.0)
    assert sorted(owner.fenced) == [ONE, TWO] and owner.stored == {ONE: 1, TWO: 1}


@in_rig(Rig)
async def test_missing_object_is_an_error_and_not_a_shorter_log(rig: Rig) -> None:
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 1)
    for number in range(3):
        owner.append(ONE, b"a")
        await owner.wait_stored(ONE, number + 1)
    await other.store.delete([slot_key(owner.chain, 1)])
    fenced = await other.take_over(owner.chain, 2, ONE)
    with pytest.raises(Corrupt, match="from offset 0 to 2 are missing"):
        join_extents(fenced.extents_of(ONE), 0, NO_EPOCH)


@in_rig(Rig)
async def test_object_that_comes_back_below_deleted_ones_does_not_count(rig: Rig) -> None:
    """A put that lands late takes a slot that was deleted: the fence of an attempt that was given up would hide the
    records of the slots behind it."""
    owner, other, third = rig.broker(1), rig.broker(2, "j"), rig.broker(3, "k")
    owner.lead(ONE, 1)
    for number in range(4):
        owner.append(ONE, b"a")
        await owner.wait_stored(ONE, number + 1)
    await other.store.delete([slot_key(owner.chain, slot) for slot in (0, 1)])
    late = encode_fence(owner.chain, 0, "late", "cluster", 0, {ONE: 5})
    await other.store.put(slot_key(owner.chain, 0), late, if_absent=True)
    fenced = await third.take_over(owner.chain, 6, ONE)
    assert [each.extent.base_offset for each in fenced.extents_of(ONE)] == [2, 3]


@in_rig(Rig)
async def test_next_takeover_of_a_chain_reads_new_objects_only(rig: Rig) -> None:
    """Partitions come from one broker in several steps."""
    owner, other = rig.broker(1), rig.broker(2, "j")
    for each in (ONE, TWO):
        owner.lead(each, 1)
    for number in range(50):
        for each in (ONE, TWO):
            owner.append(each, b"a")
        await owner.wait_stored(TWO, number + 1)
    await other.take_over(owner.chain, 2, ONE)
    owner.append(TWO, b"b")
    await owner.wait_stored(TWO, 51)
    before = rig.bucket.requests
    fenced = await other.take_over(owner.chain, 2, TWO)
    assert rig.bucket.requests - before < 10
    assert await other.read(join_extents(fenced.extents_of(TWO), 0, NO_EPOCH)) == b"a" * 50 + b"b"


@in_rig(Rig)
async def test_partitions_that_are_taken_over_together_share_the_gets(rig: Rig) -> None:
    owner, other = rig.broker(1), rig.broker(2, "j")
    all_three = (ONE, TWO, THREE)
    for each in all_three:
        owner.lead(each, 1)
    for number in range(30):
        for each in all_three:
            owner.append(each, b"%d,%02d;" % (each.partition, number))
        await asyncio.gather(*(owner.wait_stored(each, number + 1) for each in all_three))
    fenced = await other.take_over(owner.chain, 2, *all_three)
    before, windows = rig.bucket.requests, len({each.slot for p in all_three for each in fenced.extents_of(p)})
    found = await asyncio.gather(*(other.read(fenced.extents_of(each)) for each in all_three))
    assert rig.bucket.requests - before == windows < 60
    for each, data in zip(all_three, found, strict=True):
        assert data == b"".join(b"%d,%02d;" % (each.partition, number) for number in range(30))
    assert other.takeover._gets.kept_bytes == 0, "nobody reads any more"


@in_rig(Rig)
async def test_small_windows_are_read_once_with_their_headers(rig: Rig) -> None:
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 1)
    for number in range(30):
        owner.append(ONE, b"%02d" % number)
        await owner.wait_stored(ONE, number + 1)
    with other.takeover.reading():
        fenced = await other.take_over(owner.chain, 2, ONE)
        before = rig.bucket.requests
        assert await other.read(fenced.extents_of(ONE)) == b"".join(b"%02d" % number for number in range(30))
        assert rig.bucket.requests == before and other.takeover._gets.kept_bytes > 0
    assert other.takeover._gets.kept_bytes == 0
    assert await other.read(fenced.extents_of(ONE)) == b"".join(b"%02d" % number for number in range(30))
    third = rig.broker(3, "k")
    with patch("tiered.wal.shared_gets.KEPT_BYTES", 20_000), third.takeover.reading():
        await third.take_over(owner.chain, 3, ONE)
        assert 5_000 < third.takeover._gets.kept_bytes <= 11_024, "half of the room is for gets"


@in_rig(Rig)
async def test_memory_for_shared_gets_has_a_bound(rig: Rig) -> None:
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 1)
    for number in range(30):
        owner.append(ONE, b"%02d" % number)
        await owner.wait_stored(ONE, number + 1)
    fenced = await other.take_over(owner.chain, 2, ONE)
    with patch("tiered.wal.shared_gets.KEPT_BYTES", 5_000):
        async for _ in other.takeover.read(fenced.extents_of(ONE)):
            assert 0 < other.takeover._gets.kept_bytes <= 5_000


@in_rig(Rig)
async def test_reader_that_is_cancelled_takes_no_get_from_another(rig: Rig) -> None:
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 1)
    owner.append(ONE, b"a")
    await owner.wait_stored(ONE, 1)
    fenced = await other.take_over(owner.chain, 2, ONE)
    other.fail(FaultRule(FaultKind.DELAY, ("get",), seconds=5.0))
    first, second = (asyncio.ensure_future(other.read(fenced.extents_of(ONE))) for _ in range(2))
    await rig.clock.sleep(1.0)
    first.cancel()
    assert await second == b"a"


@in_rig(Rig)
async def test_headers_that_are_kept_have_a_bound(rig: Rig) -> None:
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 1)
    for number in range(30):
        owner.append(ONE, b"a")
        await owner.wait_stored(ONE, number + 1)
    with patch("tiered.wal.takeover.KEPT_ROWS", 20):
        for epoch in (2, 3):
            fenced = await other.take_over(owner.chain, epoch, ONE)
            assert len(fenced.extents_of(ONE)) == 30
            assert len(other.takeover._kept) <= 10 and other.takeover._kept_rows <= 20


@in_rig(Rig)
async def test_damaged_batches_are_not_returned(rig: Rig) -> None:
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 1)
    owner.append(ONE, b"a" * 100)
    await owner.wait_stored(ONE, 1)
    fenced = await other.take_over(owner.chain, 2, ONE)
    for kind in (FaultKind.FLIPPED, FaultKind.TRUNCATED):
        other.fail(FaultRule(kind, ("get",), times=1))
        with pytest.raises(Corrupt, match="damaged"):
            await other.read(fenced.extents_of(ONE))
    assert await other.read(fenced.extents_of(ONE)) == b"a" * 100


@in_rig(Rig)
async def test_bucket_that_is_away_fences_nothing(rig: Rig) -> None:
    owner, other = rig.broker(1), rig.broker(2, "j")
    owner.lead(ONE, 1)
    other.faults.outage = True
    with pytest.raises(Unavailable):
        await other.take_over(owner.chain, 2, ONE)
    owner.append(ONE, b"a")
    await owner.wait_stored(ONE, 1)


T = TypeVar("T")

FAULTS = (
    FaultRule(FaultKind.ERROR, ("put", "get", "list"), probability=0.1),
    FaultRule(FaultKind.LOST_REPLY, ("put",), probability=0.1),
    FaultRule(FaultKind.LATE_APPLY, ("put",), probability=0.1, seconds=3.0),
    FaultRule(FaultKind.DELAY, ("put", "get"), probability=0.2, seconds=0.7),
    FaultRule(FaultKind.CONFLICT, ("put",), probability=0.05),
    FaultRule(FaultKind.STALE_LIST, ("list",), probability=0.5, seconds=30.0),
)


class Leaderships:
    """Partitions that go from broker to broker while all of them write: none learns of it but by fences."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig, self.random = rig, random.Random(seed)
        self.brokers = [rig.broker(node, f"i{node}") for node in range(1, 4)]
        for each in self.brokers:
            each.faults.random = random.Random(seed + each.chain.node_id)
            each.faults.first_byte_seconds = 0.05
            each.faults.rules += [FaultRule(**vars(rule)) for rule in FAULTS]
        self.epochs = {ONE: 0, TWO: 0}
        self.owners: dict[PartitionId, Broker] = {}
        self.chains: dict[PartitionId, list[Broker]] = {ONE: [], TWO: []}
        self.acknowledged: dict[PartitionId, list[bytes]] = {ONE: [], TWO: []}
        self.written = 0

    async def take_over(self, pid: PartitionId) -> None:
        """Gives a partition to some broker, which reads all chains that may hold records of it."""
        self.epochs[pid] += 1
        epoch, new = self.epochs[pid], self.random.choice(self.brokers)
        places = []
        for each in dict.fromkeys(self.chains[pid]):
            fenced = await self._until_done(partial(new.take_over, each.chain, epoch, pid))
            places += fenced.extents_of(pid)
        joined = join_extents(places, 0, NO_EPOCH)
        batches: list[bytes] = []
        for place in joined:
            data = await self._until_done(partial(new.read, [place]))
            whole = [data[at : at + 8] for at in range(0, len(data), 8)]
            batches += whole[: place.until - place.extent.base_offset]
        acknowledged = self.acknowledged[pid]
        assert batches[: len(acknowledged)] == acknowledged, "an acknowledged record is missing, or is another one"
        assert len(set(batches)) == len(batches), "a record is there twice"
        new.logs[pid] = MemoryLog()
        new.logs[pid].batches += batches
        new.lead(pid, epoch, len(batches))
        new.fenced = [each for each in new.fenced if each != pid]
        self.chains[pid].append(new)
        self.owners[pid] = new

    async def _until_done(self, ask: Callable[[], Awaitable[T]]) -> T:
        for _ in range(200):
            try:
                return await ask()
            except Unavailable:
                await self.rig.clock.sleep(0.1)
        raise AssertionError("the bucket has replied to nothing")

    async def write(self) -> None:
        """Every broker writes to what it takes for its own, and counts what it is told."""
        for each in self.brokers:
            for pid in list(each.logs):
                if pid in each.fenced:
                    continue
                self.written += 1
                each.append(pid, b"%08d" % self.written)
        await self.rig.clock.sleep(self.random.random())
        for pid, owner in self.owners.items():
            stored = owner.stored[pid]
            known = self.acknowledged[pid]
            if stored > len(known):
                known += owner.logs[pid].batches[len(known) : stored]


@pytest.mark.parametrize("seed", first_seeds(3, of=12))
def test_random_takeovers_lose_and_double_nothing(seed: int) -> None:
    rig = Rig(seed)

    async def scenario() -> None:
        leaderships = Leaderships(rig, seed)
        for _ in range(6):
            for pid in (ONE, TWO):
                await leaderships.take_over(pid)
            for _ in range(leaderships.random.randrange(1, 8)):
                await leaderships.write()
        assert sum(map(len, leaderships.acknowledged.values())) > 0

    rig.run(scenario)
