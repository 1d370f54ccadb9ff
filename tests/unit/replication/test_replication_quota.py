"""Tests of the rates of throttled replicas (KIP-73): the budget, the lists, and throttled fetches on either side."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.unit.replication.rig import DirectPeers, ReplicationRig, RunningFetchers, append_batch
from tests.unit.replication.test_replica_fetcher import is_equal, wait_until
from tiered.config.settings import TopicConfig
from tiered.ids import TopicPartition
from tiered.replication.replication_quota import (
    BURST_NS,
    PAUSE_MAX_NS,
    UNLIMITED,
    ReplicationQuota,
    ThrottledReplicas,
    list_throttled_replicas,
)

SECOND = 1_000_000_000


@pytest.mark.parametrize("seed", range(20))
def test_copied_bytes_match_the_rate_and_exceed_it_by_one_second(seed: int) -> None:
    rng = random.Random(seed)
    rate = rng.choice([1_000, 77_777, 10**9])
    lump = rate * rng.choice([1, 10, 5_000]) // 100
    throttle, now_ns, copied = ReplicationQuota().set_rate(rate, 0), rng.randrange(10**15), 0
    began_ns, largest = now_ns, 0
    while now_ns - began_ns < 60 * SECOND:
        pause_ns = throttle.pause_ns(now_ns)
        assert 0 <= pause_ns <= PAUSE_MAX_NS
        if pause_ns:
            now_ns += pause_ns
        else:
            count = rng.randint(1, lump)
            largest = max(largest, count)
            throttle.record(count, now_ns)
            copied += count
            now_ns += rng.randrange(1_000)
    seconds = (now_ns - began_ns) / SECOND
    assert copied <= rate * (seconds + BURST_NS / SECOND) + largest
    if lump < rate:
        assert copied >= rate * (seconds - 1.1)


def test_unlimited_rate_never_pauses_and_rate_zero_always_does() -> None:
    throttle = ReplicationQuota()
    throttle.record(1 << 40, 0)
    assert throttle.pause_ns(0) == 0
    assert throttle.set_rate(0, 5).pause_ns(5) == PAUSE_MAX_NS
    assert throttle.set_rate(UNLIMITED, 6).pause_ns(6) == 0


def test_debt_keeps_its_bytes_when_the_rate_changes() -> None:
    throttle = ReplicationQuota().set_rate(1_000, 0)
    throttle.record(1_500, 0)
    assert throttle.pause_ns(0) == SECOND // 2
    assert throttle.set_rate(10_000, 0).pause_ns(0) == SECOND // 20
    assert throttle.set_rate(UNLIMITED, 0).set_rate(1_000, 0).pause_ns(0) == 0


def test_throttled_list_names_replicas_or_all() -> None:
    named = ThrottledReplicas()
    words = ("0:1", "1:2")
    assert named(words, 0, 1) and named(words, 0, 1)
    assert not ThrottledReplicas()(words, 1, 1) and not ThrottledReplicas()((), 0, 1)
    assert ThrottledReplicas()(("*",), 7, 7)
    assert named(("0:1",), 0, 1) and not named(("1:1",), 0, 1), "another list"


def test_throttled_lists_of_a_reassignment_name_old_and_new_replicas() -> None:
    assert list_throttled_replicas({1: ((1, 2), (2, 3)), 0: ((1,), (1,))}) == (("0:1", "1:1", "1:2"), ("1:3",))


def test_follower_that_lags_copies_at_the_rate_and_others_at_once() -> None:
    listed = TopicConfig(segment_bytes=1 << 20, follower_replication_throttled_replicas=("0:2",))
    rig = ReplicationRig(config=listed)

    async def scenario() -> None:
        peers = DirectPeers(rig)
        held = await rig.brokers[1].lead(0, [1], [1, 2])
        free = await rig.brokers[1].lead(0, [1], [1, 2], tp=TopicPartition("t", 1))
        for number in range(200):
            for replica in (held, free):
                append_batch(replica, number)
        peers.add_leader(held)
        peers.add_leader(free)
        size = held.log.segments.size_bytes
        following = RunningFetchers(
            rig, rig.brokers[2], peers, throttled_rate=size // 10, partition_max_bytes=size // 40
        )
        slow = await following.follow(1, 0)
        quick = await following.follow(1, 0, TopicPartition("t", 1))
        await wait_until(lambda: is_equal(quick, free))
        assert rig.clock.mono_ns() < SECOND
        await asyncio.sleep(4)
        assert size // 4 < slow.log.segments.size_bytes < size * 7 // 10 and slow.lag > 0
        await wait_until(lambda: is_equal(slow, held))
        assert 7 * SECOND < rig.clock.mono_ns() < 12 * SECOND
        began_ns = rig.clock.mono_ns()
        append_batch(held, 200)
        await wait_until(lambda: is_equal(slow, held))
        assert rig.clock.mono_ns() - began_ns < SECOND // 2, "who has all is not held"

    rig.run(scenario)
