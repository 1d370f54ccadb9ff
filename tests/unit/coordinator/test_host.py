"""The host with a shard of counters: load on lead, requests that wait for the load, resignation, snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.scenario import run_by
from tests.unit.coordinator.counters import FOLLOWER, LEADER, SNAPSHOTS, Add, CounterRig, Raised, Read
from tests.unit.replication.rig import TOPIC_ID, TP
from tiered.coordinator.host import SNAPSHOT_SECONDS
from tiered.errors import Code, Refused
from tiered.metadata.changes import PartitionChanged, TopicCreated
from tiered.metadata.image import Image
from tiered.object_store.faulty import FaultKind, FaultRule

ALONE = (1,)


@pytest.fixture
def rig() -> CounterRig:
    return CounterRig()


async def code_of(reply: asyncio.Future[Any]) -> Code:
    with pytest.raises(Refused) as refused:
        await reply
    return refused.value.code


def stored(rig: CounterRig) -> list[tuple[int, int]]:
    """(epoch, offset) of all snapshots in the bucket, in order."""
    found = [name for key in rig.rig.bucket.objects if (name := SNAPSHOTS.parse_key(key)) is not None]
    return sorted((name.epoch, name.offset) for name in found)


async def lead_next(rig: CounterRig) -> None:
    """Leads the partition under a later epoch, from what the log and the bucket have."""
    rig.resign()
    await rig.store.reconcile(rig.replica.log, rig.replica.partition_id, None, rig.rig.brokers[LEADER].save_offsets)
    rig.store.invalidate_listing()
    await rig.lead(ALONE)


# -- load -------------------------------------------------------------------------------------------------------------


@run_by(CounterRig.run, "rig")
async def test_new_partition_serves_at_once(*, rig: CounterRig) -> None:
    await rig.lead(ALONE)
    assert rig.coordinator.shard.is_loaded


@run_by(CounterRig.run, "rig")
async def test_next_leader_loads_the_log(*, rig: CounterRig) -> None:
    await rig.lead(ALONE)
    for amount in (1, 2, 4):
        await rig.submit(Add("a", amount))
    await lead_next(rig)
    assert await code_of(rig.submit(Read("a"))) is Code.COORDINATOR_LOAD_IN_PROGRESS
    assert rig.host.count_loading() == 1
    await rig.settle()
    assert await rig.submit(Read("a")) == 7 and rig.coordinator.shard.is_loaded and rig.host.count_loading() == 0


@run_by(CounterRig.run, "rig")
async def test_next_leader_loads_the_snapshot_and_the_log_after_it(*, rig: CounterRig) -> None:
    replica = await rig.lead(ALONE)
    await rig.submit(Add("a", 1))
    await rig.submit(Add("b", 2))
    await asyncio.sleep(SNAPSHOT_SECONDS + 1)
    assert stored(rig) == [(0, 2)] and replica.log_start_offset == 2
    assert rig.host.snapshot_lag_seconds() == 0
    await rig.submit(Add("b", 4))
    await lead_next(rig)
    await rig.settle()
    assert rig.coordinator.shard.values == {"a": 1, "b": 6}


@run_by(CounterRig.run, "rig")
async def test_log_that_is_lost_is_loaded_from_the_snapshot(*, rig: CounterRig) -> None:
    replica = await rig.lead(ALONE)
    await rig.submit(Add("a", 3))
    await asyncio.sleep(SNAPSHOT_SECONDS + 1)
    rig.resign()
    replica.log.truncate_fully_and_start_at(0, (), None)
    start = await rig.store.reconcile(replica.log, replica.partition_id, None, rig.rig.brokers[LEADER].save_offsets)
    assert start.restart is not None and start.restart.offset == 1
    await rig.lead(ALONE)
    await asyncio.sleep(1)
    assert await rig.submit(Read("a")) == 3


@run_by(CounterRig.run, "rig")
async def test_corrections_are_decided_before_the_first_request(*, rig: CounterRig) -> None:
    await rig.lead(ALONE)
    await rig.submit(Add("a", 1))
    rig.kind.corrections = [Add("a", 10)]
    await lead_next(rig)
    await rig.settle()
    assert await rig.submit(Read("a")) == 11


@run_by(CounterRig.run, "rig")
async def test_requests_without_caller_wait_for_the_load_and_are_decided_once(*, rig: CounterRig) -> None:
    await rig.lead(ALONE)
    await rig.submit(Add("a", 1))
    rig.kind.may_correct.clear()
    await lead_next(rig)
    await rig.settle()
    for _ in range(2):
        rig.host.submit_unawaited(Add("a", 10))
        rig.host.defer(Add("a", 100))
    rig.kind.may_correct.set()
    await rig.settle()
    assert await rig.submit(Read("a")) == 111
    rig.host.defer(Add("a", 1000))
    rig.host.submit_unawaited(Add("a", 20))
    assert await rig.submit(Read("a")) == 131, "a loaded shard needs no deferred request"


@run_by(CounterRig.run, "rig")
async def test_load_is_repeated_until_the_bucket_is_back(*, rig: CounterRig) -> None:
    await rig.lead(ALONE)
    await rig.submit(Add("a", 3))
    await asyncio.sleep(SNAPSHOT_SECONDS + 1)
    faults = rig.rig.brokers[1].faults
    rig.replicas.has_clean_stop = False
    faults.rules.append(FaultRule(FaultKind.ERROR, ("put",), key=SNAPSHOTS.prefix, times=3))
    await lead_next(rig)
    await asyncio.sleep(0.3)
    assert "its counters cannot be loaded" in rig.host.list_unserved()[str(TP)]
    await asyncio.sleep(10)
    assert await rig.submit(Read("a")) == 3 and rig.host.list_unserved() == {}
    assert stored(rig)[-1] == (1, 1), "an earlier leader may delete the snapshot at which the log starts"


@pytest.mark.parametrize(("isr", "put_seconds"), [(ALONE, 0.3), ((1, 2), 2.0)])
def test_load_begins_with_the_snapshot_that_was_written_meanwhile(
    rig: CounterRig, isr: tuple[int, ...], put_seconds: float
) -> None:
    """The log starts at the newest snapshot: with an older one, changes between the two would be lost."""

    async def add(name: str, number: int) -> None:
        added = rig.submit(Add(name, number))
        await rig.settle()
        replicate()
        await added

    def replicate() -> None:
        if isr != ALONE:
            rig.replicate()

    async def scenario() -> None:
        replica, broker = await rig.lead(isr), rig.rig.brokers[1]
        await add("a", 1)
        await asyncio.sleep(SNAPSHOT_SECONDS + 1)
        await add("b", 2)
        replicate()
        slow = FaultRule(FaultKind.DELAY, ("put",), key=SNAPSHOTS.prefix, times=1, seconds=put_seconds)
        broker.faults.rules.append(slow)
        await asyncio.sleep(SNAPSHOT_SECONDS - 1)
        assert slow.times == 0 and stored(rig) == [(0, 1)], "the second snapshot is being written"
        waiting = rig.submit(Add("c", 4))
        await rig.settle()
        broker.disk.capacity = 1
        assert await code_of(rig.submit(Add("d", 8))) is Code.NOT_COORDINATOR
        broker.disk.capacity = 1 << 40
        waiting.cancel()
        await asyncio.sleep(put_seconds + 0.1)
        assert replica.log_start_offset == 2
        replicate()
        await asyncio.sleep(1)
        assert rig.coordinator.shard.values == {"a": 1, "b": 2, "c": 4}

    rig.run(scenario)


# -- requests ---------------------------------------------------------------------------------------------------------


@run_by(CounterRig.run, "rig")
async def test_partition_that_is_not_led_is_refused(*, rig: CounterRig) -> None:
    assert await code_of(rig.submit(Read("a"))) is Code.NOT_COORDINATOR
    rig.replicas.unopened_leaders.add(TP)
    assert await code_of(rig.submit(Read("a"))) is Code.COORDINATOR_NOT_AVAILABLE
    rig.replicas.openings.add(TP)
    assert await code_of(rig.submit(Read("a"))) is Code.COORDINATOR_LOAD_IN_PROGRESS


@run_by(CounterRig.run, "rig")
async def test_broker_without_controller_refuses_if_others_may_lead(*, rig: CounterRig) -> None:
    await rig.lead()
    rig.has_contact = False
    assert await code_of(rig.submit(Read("a"))) is Code.COORDINATOR_NOT_AVAILABLE
    await lead_next(rig)
    await rig.settle()
    assert await rig.submit(Read("a")) == 0


@run_by(CounterRig.run, "rig")
async def test_each_coordinator_replies_to_a_request_for_all(*, rig: CounterRig) -> None:
    await rig.lead()
    rig.submit(Add("a", 2))
    reading = asyncio.ensure_future(rig.host.submit_to_each(Read("a")))
    await rig.settle()
    assert not reading.done()
    rig.replicate()
    assert await reading == [2]


@run_by(CounterRig.run, "rig")
async def test_request_for_all_is_refused_if_a_led_partition_is_not_served(*, rig: CounterRig) -> None:
    """Without that the reply would mean that the partition has nothing."""

    def read(pause: Callable[[], Awaitable[None]] | None = None) -> asyncio.Future[list[int]]:
        return asyncio.ensure_future(rig.host.submit_to_each(Read("a"), pause))

    rig.image = led_by(LEADER, 0)
    assert await code_of(read()) is Code.COORDINATOR_LOAD_IN_PROGRESS, "its log is being opened"
    await rig.lead(ALONE)
    assert await read() == [0]

    async def lead_anew() -> None:
        await lead_next(rig)
        rig.image = led_by(LEADER, 1)
        await rig.settle()

    assert await code_of(read(lead_anew)) is Code.COORDINATOR_LOAD_IN_PROGRESS, "the new coordinator is not asked"
    assert await read() == [0]
    rig.image = led_by(LEADER, 2)
    assert await code_of(read()) is Code.COORDINATOR_LOAD_IN_PROGRESS, "the newest image is not applied"
    rig.resign()
    rig.image = led_by(FOLLOWER, 2)
    assert await read() == []


def led_by(leader: int, leader_epoch: int) -> Image:
    """Returns an image with the partition."""
    created = TopicCreated(TP.topic, TOPIC_ID, ((LEADER, FOLLOWER),), {}, 0)
    led = PartitionChanged(TOPIC_ID, TP.partition, leader, leader_epoch, (LEADER, FOLLOWER), ())
    return Image().apply([created, led])


@run_by(CounterRig.run, "rig")
async def test_leadership_that_ended_is_not_ended_twice(*, rig: CounterRig) -> None:
    """A resignation of an earlier leadership leaves the coordinator of the next one alone."""
    earlier = await rig.lead(ALONE)
    await lead_next(rig)
    await rig.settle()
    rig.host.on_resign(earlier)
    assert await rig.submit(Add("a", 1)) == 1


@run_by(CounterRig.run, "rig")
async def test_load_ends_with_its_leadership(*, rig: CounterRig) -> None:
    await rig.lead(ALONE)
    await rig.submit(Add("a", 1))
    rig.kind.corrections = [Add("a", 10)]
    rig.kind.may_correct.clear()
    await lead_next(rig)
    await rig.settle()
    end = rig.replica.log.end_offset
    rig.resign()
    rig.kind.may_correct.set()
    await rig.settle()
    assert rig.host.led_partitions == {} and rig.replica.log.end_offset == end
    assert rig.kind.observer.events == [Raised("a", 1)]


@run_by(CounterRig.run, "rig")
async def test_late_load_of_an_earlier_leadership_saves_no_snapshot(*, rig: CounterRig) -> None:
    await rig.lead(ALONE)
    await rig.submit(Add("a", 1))
    await asyncio.sleep(SNAPSHOT_SECONDS + 1)
    rig.replicas.has_clean_stop = False
    rig.replicas.applied.clear()
    await lead_next(rig)
    await rig.settle()
    await lead_next(rig)
    await rig.settle()
    rig.replicas.applied.set()
    await asyncio.sleep(1)
    assert await rig.submit(Read("a")) == 1
    assert stored(rig) == [(0, 1), (2, 1)]


# -- the end ----------------------------------------------------------------------------------------------------------


@run_by(CounterRig.run, "rig")
async def test_clean_stop_saves_what_no_snapshot_has(*, rig: CounterRig) -> None:
    await rig.lead(ALONE)
    await rig.submit(Add("a", 3))
    rig.host.refuse("the broker is stopping")
    assert await code_of(rig.submit(Read("a"))) is Code.NOT_COORDINATOR
    await rig.host.save_final_snapshots()
    assert stored(rig) == [(0, 1)]
