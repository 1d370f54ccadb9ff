"""Tests of when closed segments are uploaded: at once if no other place has them, else several together."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import in_rig
from tests.unit.replication.rig import TOPIC_ID, TP, LeaderList, RecordedEvents, ReplicationRig, append_batch
from tiered.cold import uploader
from tiered.cold.layout import segment_key
from tiered.config.settings import Settings
from tiered.ids import PartitionId, TopicPartition
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.replication.become_leader import PreviousLeader
from tiered.replication.leader_replica import LeaderReplica
from tiered.upkeep import tiering
from tiered.upkeep.retention_clock import RetentionClock
from tiered.upkeep.tiering import UPLOAD_IN_FLIGHT_MS, Tiering

INTERVAL = 30.0


async def measure_cold_delay(rig: ReplicationRig, replica: LeaderReplica) -> float:
    """Fills three segments, one second apart; returns the seconds from the first one until a segment is cold."""
    broker = rig.brokers[1]
    settings = Settings(remote_log_manager_task_interval_ms=int(INTERVAL * 1000))
    runs = Tiering(
        settings,
        LeaderList(replica),
        RetentionClock(broker.clock),
        broker.clock,
        broker.rng,
        broker.metrics,
    )
    task = asyncio.create_task(runs.run())
    await asyncio.sleep(0.5)
    began = broker.clock.mono_ns()
    for number in range(3):
        while replica.unified_log.waiting_segments <= number and replica.cold_end_offset == 0:
            replica.state.high_watermark = append_batch(replica, replica.log.end_offset)
        runs.on_segment_closed(replica)
        await asyncio.sleep(1)
    while replica.cold_end_offset == 0:
        await asyncio.sleep(0.1)
    task.cancel()
    return (broker.clock.mono_ns() - began) / 1e9


@in_rig(ReplicationRig)
async def test_pending_takeovers_run_when_nothing_else_is_due(rig: ReplicationRig) -> None:
    """A dead broker led ten thousand partitions. Uploads do not wait for the takeover of their manifests."""
    broker = rig.brokers[1]
    leaders = []
    for number in range(6):
        leaders.append(
            await broker.lead(
                1, [1, 2], tp=TopicPartition("idle", number), previous_leader=PreviousLeader.WAS_IN_SYNC_WITH
            )
        )
    busy = await broker.lead(1, [1], tp=TopicPartition("busy", 6))
    while busy.unified_log.waiting_segments < 2:
        busy.state.high_watermark = append_batch(busy, busy.log.end_offset)
    settings = Settings(remote_log_manager_copier_thread_pool_size=1)
    runs = Tiering(
        settings, LeaderList(*leaders, busy), RetentionClock(broker.clock), broker.clock, broker.rng,
        broker.metrics,
    )  # fmt: skip
    assert all(each.takeover_pending for each in leaders)
    task = asyncio.create_task(runs.run())
    while busy.cold_end_offset == 0:
        await asyncio.sleep(0)
    assert sum(each.takeover_pending for each in leaders) >= 5
    while any(each.takeover_pending for each in leaders):
        await asyncio.sleep(0.01)
    task.cancel()


@in_rig(ReplicationRig)
async def test_objects_of_an_earlier_leader_are_deleted_without_a_manifest(rig: ReplicationRig) -> None:
    """The first upload of the earlier leader was never named in a manifest. Every leader epoch sweeps once."""
    broker = rig.brokers[1]
    await broker.cold.manifests.take_over(PartitionId(TOPIC_ID, TP.partition), TP.topic, 0)
    successor = await broker.lead(1, [1, 2], previous_leader=PreviousLeader.WAS_IN_SYNC_WITH)
    left = segment_key(successor.partition_id, 0, 0, "ab" * 16)
    await broker.store.put(left, b"never named", if_absent=True)
    runs = Tiering(
        Settings(),
        LeaderList(successor),
        RetentionClock(broker.clock),
        broker.clock,
        broker.rng,
        broker.metrics,
    )
    task = asyncio.create_task(runs.run())
    await asyncio.sleep(UPLOAD_IN_FLIGHT_MS / 1000 + 2 * INTERVAL + Settings().tiered_object_delete_delay_ms / 1000)
    task.cancel()
    assert left not in rig.bucket.objects


def test_pending_takeover_runs_although_uploads_are_always_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uploader, "TOGETHER_BYTES", 4000)
    rig = ReplicationRig()

    async def scenario() -> None:
        broker = rig.brokers[1]
        successor = await broker.lead(
            1, [1, 2], tp=TopicPartition("idle", 0), previous_leader=PreviousLeader.WAS_IN_SYNC_WITH
        )
        busy = [await broker.lead(1, [1], tp=TopicPartition("busy", number)) for number in range(3)]
        settings = Settings(remote_log_manager_copier_thread_pool_size=1)
        runs = Tiering(
            settings, LeaderList(successor, *busy), RetentionClock(broker.clock), broker.clock, broker.rng,
            broker.metrics,
        )  # fmt: skip
        broker.faults.rules.append(FaultRule(FaultKind.DELAY, ("put", "upload"), seconds=0.05))

        def fill() -> None:
            for each in busy:
                closed = each.log.segments.count
                while each.log.segments.count == closed:
                    each.state.high_watermark = append_batch(each, each.log.end_offset)
                runs.on_segment_closed(each)

        fill()
        task = asyncio.create_task(runs.run())
        async with asyncio.timeout(20):
            while successor.takeover_pending:
                await asyncio.sleep(0.2)
                fill()
        task.cancel()

    rig.run(scenario)


@in_rig(ReplicationRig)
async def test_topic_with_many_partitions_lets_others_upload_in_turn(rig: ReplicationRig) -> None:
    """Its partitions were there first, and each has more to upload."""
    broker = rig.brokers[1]
    greedy = [await broker.lead(1, [1], tp=TopicPartition("greedy", number)) for number in range(12)]
    small = await broker.lead(1, [1], tp=TopicPartition("small", 12))
    for each in (*greedy, small):
        while each.unified_log.waiting_segments < 2:
            each.state.high_watermark = append_batch(each, each.log.end_offset)
    settings = Settings(remote_log_manager_copier_thread_pool_size=1)
    runs = Tiering(
        settings, LeaderList(*greedy, small), RetentionClock(broker.clock), broker.clock, broker.rng,
        broker.metrics,
    )  # fmt: skip
    task = asyncio.create_task(runs.run())
    async with asyncio.timeout(20):
        while small.cold_end_offset == 0:
            await asyncio.sleep(0)
    assert sum(each.cold_end_offset > 0 for each in greedy) <= 2
    async with asyncio.timeout(20):
        while any(each.unified_log.waiting_segments for each in greedy):
            await asyncio.sleep(0.1)
    task.cancel()


def test_other_work_has_its_turn_between_two_rolls_of_lagging_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """All partitions of a broker may be due at once."""
    rig, turn, turns = ReplicationRig(), 0, list[int]()

    def count_turn() -> None:
        nonlocal turn
        turn += 1
        if len(turns) < 20:
            asyncio.get_running_loop().call_soon(count_turn)

    def note_turn(_: RecordedEvents, __: LeaderReplica) -> None:
        turns.append(turn)
        if len(turns) == 1:
            asyncio.get_running_loop().call_soon(count_turn)

    monkeypatch.setattr(RecordedEvents, "on_segment_closed", note_turn)

    async def scenario() -> None:
        broker = rig.brokers[1]
        leaders = [await broker.lead(1, [1], tp=TopicPartition("t", number)) for number in range(20)]
        for each in leaders:
            each.state.high_watermark = append_batch(each, 0)
        settings = Settings(tiered_upload_max_lag_ms=1_000)
        runs = Tiering(
            settings, LeaderList(*leaders), RetentionClock(broker.clock), broker.clock, broker.rng, broker.metrics
        )
        task = asyncio.create_task(runs.run())
        async with asyncio.timeout(20):
            while len(turns) < len(leaders):
                await asyncio.sleep(0.1)
        task.cancel()
        assert len(set(turns)) == len(leaders)

    rig.run(scenario)


@in_rig(ReplicationRig)
async def test_object_with_a_lost_reply_is_deleted_by_a_later_sweep(rig: ReplicationRig) -> None:
    """The manifest change names the objects before the lost one, and the pass counts as a success."""
    broker = rig.brokers[1]
    replica = await broker.lead(0, [1])
    settings = Settings()
    runs = Tiering(
        settings,
        LeaderList(replica),
        RetentionClock(broker.clock),
        broker.clock,
        broker.rng,
        broker.metrics,
    )
    swept = (2 * UPLOAD_IN_FLIGHT_MS + 2 * settings.tiered_object_delete_delay_ms) / 1000 + 2 * INTERVAL
    task = asyncio.create_task(runs.run())

    async def cold(segments: int) -> None:
        while replica.unified_log.waiting_segments < segments:
            replica.state.high_watermark = append_batch(replica, replica.log.end_offset)
        runs.on_segment_closed(replica)
        while replica.unified_log.waiting_segments:
            await asyncio.sleep(0.1)

    await cold(1)
    await asyncio.sleep(swept)  # the sweep of this epoch is over
    broker.faults.rules[:] = [FaultRule(FaultKind.LOST_REPLY, ("upload",), skip=1, times=1)]
    await cold(3)
    assert replica.manifest is not None

    async def find_unnamed_objects() -> set[str]:
        assert replica.manifest is not None
        named = {key async for key in replica.cold.manifests.list_keys(replica.manifest)}
        return {key for key in rig.bucket.objects if key.endswith(".seg")} - named

    assert len(await find_unnamed_objects()) == 2, "the lost one, and the one behind it"
    await asyncio.sleep(swept)
    await broker.cold.collector.delete_expired()
    assert not await find_unnamed_objects()
    task.cancel()


@pytest.mark.parametrize(
    ("in_sync", "together", "soonest", "latest"),
    [([1], 1 << 30, 0, 3.5), ([1, 2], 1 << 30, INTERVAL - 1, INTERVAL + 1), ([1, 2], 4000, 1, 3.5)],
    ids=["one in sync", "two in sync", "two in sync and enough to copy"],
)
def test_closed_segment_with_other_replicas_waits_to_be_uploaded(
    in_sync: list[int], together: int, soonest: float, latest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiering, "TOGETHER_BYTES", together)
    rig = ReplicationRig()

    async def scenario() -> None:
        replica = await rig.brokers[1].lead(0, in_sync, [1, 2])
        assert soonest <= await measure_cold_delay(rig, replica) <= latest

    rig.run(scenario)


async def lead_with_closed_segments(rig: ReplicationRig, count: int) -> LeaderReplica:
    """Returns a replica with so many closed segments, none of them in the bucket."""
    replica = await rig.brokers[1].lead(1, [1])
    while replica.unified_log.waiting_segments < count:
        replica.state.high_watermark = append_batch(replica, replica.log.end_offset)
    return replica


@in_rig(ReplicationRig)
async def test_paused_uploads_wait_on_the_disk_and_go_on_later(rig: ReplicationRig) -> None:
    broker, current = rig.brokers[1], Settings(tiered_upload_pause=True)
    replica = await lead_with_closed_segments(rig, 3)
    runs = Tiering(
        Settings(), LeaderList(replica), RetentionClock(broker.clock), broker.clock, broker.rng, broker.metrics,
        lambda: current,
    )  # fmt: skip
    task = asyncio.create_task(runs.run())
    await asyncio.sleep(20 * INTERVAL)
    assert (replica.cold_end_offset, replica.unified_log.waiting_segments) == (0, 3)
    assert replica.log.local_start_offset == 0, "nothing that waits is deleted"
    current = Settings()
    await asyncio.sleep(2 * INTERVAL)
    task.cancel()
    assert replica.unified_log.waiting_segments == 0 and replica.cold_end_offset > 0


@in_rig(ReplicationRig)
async def test_uploads_keep_to_their_rate(rig: ReplicationRig) -> None:
    broker = rig.brokers[1]
    replica = await lead_with_closed_segments(rig, 6)
    size = replica.unified_log.waiting_bytes
    current = Settings(remote_log_manager_copy_max_bytes_per_second=max(1, size // 600))
    runs = Tiering(
        Settings(), LeaderList(replica), RetentionClock(broker.clock), broker.clock, broker.rng, broker.metrics,
        lambda: current,
    )  # fmt: skip
    task = asyncio.create_task(runs.run())
    await asyncio.sleep(250)
    assert 3 <= replica.unified_log.waiting_segments <= 5, "some 100 seconds for each"
    await asyncio.sleep(500)
    assert replica.unified_log.waiting_segments == 0
    task.cancel()


@in_rig(ReplicationRig)
async def test_higher_rate_holds_for_uploads_that_wait_already(rig: ReplicationRig) -> None:
    broker, current = rig.brokers[1], Settings(remote_log_manager_copy_max_bytes_per_second=1)
    replica = await lead_with_closed_segments(rig, 3)
    runs = Tiering(
        Settings(), LeaderList(replica), RetentionClock(broker.clock), broker.clock, broker.rng, broker.metrics,
        lambda: current,
    )  # fmt: skip
    task = asyncio.create_task(runs.run())
    await asyncio.sleep(100)
    assert replica.unified_log.waiting_segments == 2
    current = Settings()
    await asyncio.sleep(10)
    task.cancel()
    assert replica.unified_log.waiting_segments == 0
