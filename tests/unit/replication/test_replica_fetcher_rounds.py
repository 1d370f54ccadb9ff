"""Tests of several partitions of one leader: which of them share a fetch, and which wait for others."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.scenario import in_rig
from tests.unit.hot.fixtures import batch
from tests.unit.replication.rig import DirectPeers, ReplicationRig, RunningFetchers, append_batch
from tests.unit.replication.test_replica_fetcher import is_equal, wait_until
from tiered.ids import TopicPartition
from tiered.replication.leader_replica import ACKS_ALL
from tiered.replication.replica_fetcher import IN_FLIGHT_MAX, LAST_FETCH_WAIT_MS, FetcherSettings


@in_rig(ReplicationRig)
async def test_partitions_of_a_leader_that_is_not_ready_share_the_next_fetch(rig: ReplicationRig) -> None:
    places = [TopicPartition("t", number) for number in range(8)]
    peers = DirectPeers(rig)
    first = await rig.brokers[1].lead(0, [1, 2], tp=places[0])
    peers.add_leader(first)
    two = RunningFetchers(rig, rig.brokers[2], peers)
    copies = [await two.follow(1, 0, tp) for tp in places]  # the other seven it does not lead yet
    await asyncio.sleep(0.02)
    led = [first, *[await rig.brokers[1].lead(0, [1, 2], tp=tp) for tp in places[1:]]]
    for each in led:
        peers.add_leader(each)
        append_batch(each, 0)
    started = rig.clock.mono_ns()
    await wait_until(lambda: all(is_equal(copy, each) for copy, each in zip(copies, led, strict=True)))
    assert rig.clock.mono_ns() - started < 100_000_000
    for turn in range(20):  # each alone, one after the other
        each = led[turn % 8]
        started = rig.clock.mono_ns()
        await each.append(batch(turn), acks=ACKS_ALL)
        assert rig.clock.mono_ns() - started < 1.5 * LAST_FETCH_WAIT_MS * 1_000_000, turn


async def open_logs(rig: ReplicationRig, places: list[TopicPartition]) -> None:
    """Opens the logs of broker 2 beforehand, so that the start of its replicas takes no time."""
    for tp in places:
        await rig.brokers[2].open_log(tp)


@in_rig(ReplicationRig)
async def test_due_partition_is_fetched_after_the_last_parked_fetch(rig: ReplicationRig) -> None:
    places = [TopicPartition("t", number) for number in range(IN_FLIGHT_MAX + 1)]
    peers = DirectPeers(rig)
    led = [await rig.brokers[1].lead(0, [1, 2], tp=tp) for tp in places]
    for each in led:
        peers.add_leader(each)
    append_batch(led[-1], 0)
    await open_logs(rig, places)
    two = RunningFetchers(rig, rig.brokers[2], peers)
    for tp in places[:-1]:
        await two.follow(1, 0, tp)
        await asyncio.sleep(0.005)
    assert [len(each.partitions) for each in peers.requests] == [1] * IN_FLIGHT_MAX, "each waits alone"
    copy = await two.follow(1, 0, places[-1])
    started = rig.clock.mono_ns()
    await wait_until(lambda: is_equal(copy, led[-1]))
    assert rig.clock.mono_ns() - started < 1.5 * LAST_FETCH_WAIT_MS * 1_000_000


@in_rig(ReplicationRig)
async def test_fetches_of_idle_partitions_wait_as_long_as_they_may(rig: ReplicationRig) -> None:
    places = [TopicPartition("t", number) for number in range(IN_FLIGHT_MAX)]
    peers = DirectPeers(rig)
    for tp in places:
        peers.add_leader(await rig.brokers[1].lead(0, [1, 2], tp=tp))
    await open_logs(rig, places)
    two = RunningFetchers(rig, rig.brokers[2], peers)
    for tp in places:
        await two.follow(1, 0, tp)
        await asyncio.sleep(0.005)
    await asyncio.sleep(5)
    before = len(peers.requests)
    await asyncio.sleep(30)
    assert len(peers.requests) - before <= IN_FLIGHT_MAX * 30 / (FetcherSettings(0, 0).max_wait_ms / 1000)
    await two.stop()


@in_rig(ReplicationRig)
async def test_new_partition_is_fetched_at_once_among_idle_ones(rig: ReplicationRig) -> None:
    places = [TopicPartition("t", number) for number in range(IN_FLIGHT_MAX + 2)]
    peers = DirectPeers(rig)
    led = [await rig.brokers[1].lead(0, [1, 2], tp=tp) for tp in places]
    for each in led:
        peers.add_leader(each)
    await open_logs(rig, places)
    two = RunningFetchers(rig, rig.brokers[2], peers)
    for tp in places[:IN_FLIGHT_MAX]:
        await two.follow(1, 0, tp)
        await asyncio.sleep(0.005)
    for each in led[IN_FLIGHT_MAX:]:
        await asyncio.sleep(30.1)
        append_batch(each, 0)
        copy = await two.follow(1, 0, each.tp)
        started = rig.clock.mono_ns()
        await wait_until(partial(is_equal, copy, each))
        assert rig.clock.mono_ns() - started <= 10_000_000
        await each.append(batch(1), acks=ACKS_ALL)
        assert rig.clock.mono_ns() - started < 1.5 * LAST_FETCH_WAIT_MS * 1_000_000
    await two.stop()


@pytest.mark.parametrize("new", [2, 3, 40])
@in_rig(ReplicationRig)
async def test_many_new_partitions_cancel_the_last_fetch_once(rig: ReplicationRig, *, new: int) -> None:
    """The partitions come one after the other, and some of them during the cancellation."""
    places = [TopicPartition("t", number) for number in range(IN_FLIGHT_MAX + new)]
    peers = DirectPeers(rig)
    led = [await rig.brokers[1].lead(0, [1, 2], tp=tp) for tp in places]
    for each in led:
        peers.add_leader(each)
        append_batch(each, 0)
    await open_logs(rig, places)
    two = RunningFetchers(rig, rig.brokers[2], peers)
    copies = []
    for tp in places[:IN_FLIGHT_MAX]:
        copies.append(await two.follow(1, 0, tp))
        await asyncio.sleep(0.005)
    await asyncio.sleep(30.1)
    for tp in places[IN_FLIGHT_MAX:]:
        copies.append(await two.follow(1, 0, tp))
        await asyncio.sleep(0)
    await asyncio.sleep(1)
    assert all(is_equal(copy, each) for copy, each in zip(copies, led, strict=True))
    await two.stop()


@in_rig(ReplicationRig)
async def test_partitions_that_fail_together_share_the_next_fetch(rig: ReplicationRig) -> None:
    places = [TopicPartition("t", number) for number in range(8)]
    peers = DirectPeers(rig)  # nobody leads
    await open_logs(rig, places)
    two = RunningFetchers(rig, rig.brokers[2], peers)
    for tp in places:
        await two.follow(1, 0, tp)
    await asyncio.sleep(5)
    assert len(peers.requests) > 3 and {len(each.partitions) for each in peers.requests} == {len(places)}


@in_rig(ReplicationRig)
async def test_lost_contact_to_a_leader_is_reported_once(rig: ReplicationRig) -> None:
    peers = DirectPeers(rig)
    peers.add_leader(await rig.brokers[1].lead(0, [1], [1, 2]))
    two = RunningFetchers(rig, rig.brokers[2], peers)
    await two.follow(1, 0)
    await asyncio.sleep(5)
    peers.unreachable.add("1:0")
    await asyncio.sleep(60)
    peers.unreachable.clear()
    await asyncio.sleep(20)
    assert two.contact_events == [("heard", 1), ("lost", 1), ("heard", 1)]
