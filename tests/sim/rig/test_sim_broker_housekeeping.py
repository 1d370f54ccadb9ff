"""Tests of the periodic work of a broker, which delays no request: rolls, fsyncs, checkpoints, expiry of producers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.scenario import run_by
from tests.sim.harness.disk import Op
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, fill, numbers, read_values, run
from tests.unit.hot.test_disk_log_transactions import data, marker
from tiered.errors import Refused
from tiered.producers.known_producers import IDLE_MS
from tiered.records.batch import encode_batch
from tiered.replication.leader_replica import LeaderReplica
from tiered.system import turns
from tiered.upkeep import housekeeping

DAY_MS = 86_400_000


async def create_hot_topic(rig: SimBrokerRig, partitions: int = 1, **more: str) -> LeaderReplica:
    """Creates a topic that is not tiered: only the clock rolls, deletes or fsyncs its segments."""
    return await rig.create("t", partitions, remote_storage_enable="false", retention_ms="-1", **more)


@run_by(run)
async def test_controller_looks_for_uploads_of_killed_processes_each_hour(rig: SimBrokerRig) -> None:
    await rig.start()
    store = rig.bucket.memory
    await rig.wait_until(lambda: store.looks_for_old_uploads >= 1, 4000)
    before = store.looks_for_old_uploads
    await asyncio.sleep(3 * 3600 + 60)  # each look takes some time too
    assert store.looks_for_old_uploads == before + 3


@run_by(run)
async def test_periodic_fsync_on_a_full_disk_does_not_end_the_broker(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await create_hot_topic(rig, flush_ms="1")
    await fill(replica, 5)
    rig.machine.disk.capacity = 1
    await asyncio.sleep(25)
    assert not rig.broker.ended.is_set(), rig.broker.health().problems
    assert any(each.startswith("disk full since") for each in rig.broker.health().problems)
    assert await read_values(replica, 0) == numbers(0, 5)
    rig.machine.disk.capacity = None
    await rig.wait_until(lambda: replica.log.flushed_offset == 5, 25)
    await rig.wait_until(lambda: not rig.broker.health().problems, 5)


def test_bytes_to_check_after_a_power_cut_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "UNFLUSHED_BYTES_MAX", 10_000)

    async def scenario(rig: SimBrokerRig) -> None:
        await rig.start()
        replica = await create_hot_topic(rig)
        await fill(replica, 5)
        await asyncio.sleep(130)
        assert (replica.log.flushed_offset, replica.log.segments.count) == (0, 1), "few bytes are quickly checked"
        await fill(replica, 10, start=5)
        await rig.wait_until(lambda: replica.log.flushed_offset == 15, 130)
        assert (replica.log.unproved_bytes, replica.log.segments.count) == (0, 1)
        await fill(replica, 1, start=15)
        await rig.crash(rig.machine.power_cut)
        again = (await rig.start()).leader_replica("t", 0)
        assert (await read_values(again, 0))[:15] == numbers(0, 15)
        await rig.stop()

    run(scenario)


@run_by(run)
async def test_closed_segments_are_durable_after_a_checkpoint(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await create_hot_topic(rig, internal_segment_bytes="4096")
    await fill(replica, 40)
    closed = replica.log.segments.active.base_offset
    assert replica.log.segments.count > 2 and replica.log.flushed_offset < closed
    await rig.wait_until(lambda: replica.log.flushed_offset >= closed, 130)
    await rig.crash(rig.machine.power_cut)
    again = (await rig.start()).leader_replica("t", 0)
    assert (await read_values(again, 0))[:closed] == numbers(0, closed)


@run_by(run)
async def test_idle_producers_expire_by_the_clock_of_the_broker(rig: SimBrokerRig) -> None:
    """The timestamps of their records do not count: a producer that replays old records must not expire between two
    tries."""
    await rig.start(replace(QUICK, producer_id_expiration_ms=60_000))
    replica = await create_hot_topic(rig)
    for producer in range(3):
        await replica.append(make_producer_batch(producer, 0))
    await asyncio.sleep(50)
    again = await replica.append(make_producer_batch(0, 0))
    assert (again.base_offset, again.is_duplicate) == (0, True)
    await replica.append(make_producer_batch(1, 1))
    await asyncio.sleep(20)
    assert len(replica.log.producers) == 1
    assert replica.log.producers.get(1) is not None
    await rig.crash(rig.machine.kill)
    again_led = (await rig.start(replace(QUICK, producer_id_expiration_ms=60_000))).leader_replica("t", 0)
    assert (await again_led.append(make_producer_batch(1, 1))).is_duplicate
    await asyncio.sleep(70)
    assert len(again_led.log.producers) == 0


@run_by(run)
async def test_retry_is_known_though_the_wall_clock_jumped(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await create_hot_topic(rig)
    await replica.append(make_producer_batch(1, 0))
    rig.machine.clock.jump(2 * DAY_MS)
    await asyncio.sleep(5)
    again = await replica.append(make_producer_batch(1, 0))
    assert again.is_duplicate and replica.log.end_offset == 1


@run_by(run)
async def test_new_producer_gets_room_after_a_clock_that_was_ahead_was_set_right(rig: SimBrokerRig) -> None:
    await rig.start(replace(QUICK, tiered_producer_ids_max_per_partition=2))
    replica = await create_hot_topic(rig)
    rig.machine.clock.jump(365 * DAY_MS)
    for producer in (1, 2):
        await replica.append(make_producer_batch(producer, 0))
    rig.machine.clock.jump(-365 * DAY_MS)
    with pytest.raises(Refused, match="2 of 2 producer ids of the partition are taken"):
        await replica.append(make_producer_batch(3, 0))
    await asyncio.sleep(IDLE_MS / 1000)
    await replica.append(make_producer_batch(3, 0))
    assert replica.log.producers.get(1) is None


def make_producer_batch(producer: int, sequence: int) -> bytearray:
    """Returns a batch with one record of ten years ago."""
    record = (1_400_000_000_000, b"k", b"v", ())
    return bytearray(encode_batch([record], producer_id=producer, producer_epoch=0, base_sequence=sequence))


@run_by(run)
async def test_other_tasks_run_between_two_rolls(rig: SimBrokerRig, *, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PIECE_SECONDS", 0.0)  # each item ends a piece
    await rig.start(replace(QUICK, log_retention_check_interval_ms=10**9))
    await create_hot_topic(rig, 30, segment_ms="5000")
    for replica in rig.broker.leader_replicas():
        await replica.append(batch([b"v"]))
    await asyncio.sleep(6)
    turn, seen = 0, []

    def note(op: Op) -> None:
        if op.verb == "create" and op.path.endswith("1.log"):
            seen.append(turn)

    rig.machine.disk.on_op = note
    looking = asyncio.ensure_future(rig.broker.housekeeping.maintain_logs())
    while not looking.done():
        turn += 1
        await asyncio.sleep(0)
    assert len(set(seen)) == 30, "thousands of partitions that are due at once would stop the broker meanwhile"


@run_by(run)
async def test_finished_transactions_do_not_hold_readers_back(rig: SimBrokerRig) -> None:
    """Such logs come from Kafka: no client of ours can begin a transaction yet."""
    await rig.start()
    replica = await create_hot_topic(rig)
    for one in (data(0, 0, 1), marker(1, 1, commit=True)):
        replica.log.append_as_follower(one, now_ms=0)
    await replica.append(batch([b"v"]))
    assert replica.last_stable_offset == replica.high_watermark == 3
    await rig.crash(rig.machine.kill)
    again = (await rig.start()).leader_replica("t", 0)
    assert again.last_stable_offset == again.high_watermark == 3


@run_by(run)
async def test_broker_starts_on_a_full_disk_serves_reads_and_recovers(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await create_hot_topic(rig)
    await fill(replica, 5)
    for how in (rig.machine.kill, rig.machine.power_cut):
        await replica.flush()
        await rig.crash(how)
        rig.machine.disk.capacity = 1
        replica = (await rig.start()).leader_replica("t", 0)
        assert await read_values(replica, 0) == numbers(0, 5)
        rig.machine.disk.capacity = None
        await asyncio.sleep(5)
    await fill(replica, 1, start=5)
    assert await read_values(replica, 0) == numbers(0, 6)
    await rig.stop()
    await rig.start()
    (problem,) = rig.broker.health().problems
    assert "t-0 may be gone from offset 5 on" in problem, "the power was cut, so that nobody knows"
