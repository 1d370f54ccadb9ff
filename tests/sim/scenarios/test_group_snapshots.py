"""Snapshots of groups in the bucket: what is committed while one is made, refused, or missing survives the next start.

The broker is killed, and its log stays: a group has its last acknowledged offset, whatever became of the snapshots.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.scenario import run_by
from tests.sim.harness.machine import SimMachine
from tests.sim.rig.broker_rig import SimBrokerRig, fill, run
from tests.sim.rig.group_requests import (
    GROUP_SETTINGS,
    commit,
    fetch_committed,
    offsets_replica,
    snapshots,
    wait_groups_loaded,
)
from tests.sim.scenarios.test_group_generations import restart
from tiered.controller.requests import DeleteTopic
from tiered.coordinator.log_records import BATCH_BYTES
from tiered.coordinator.routing import partition_of
from tiered.errors import Code
from tiered.groups.requests import (
    CommitOffsets,
    CommitOffsetsReply,
    FetchOffsets,
    FetchOffsetsReply,
    PartitionOffset,
)
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.records.batch import encode_batch
from tiered.system import turns

G = "g"
P = partition_of(G, 2)
OTHER = next(name for name in ("h", "i", "j", "k") if partition_of(name, 2) == P)
PARTITIONS = 600
NOTED_SECONDS = 70.0
"""Seconds after which the disk knows the new start of the log."""
METADATA = "m" * (2 * BATCH_BYTES // PARTITIONS)
"""Text of an offset: those of all partitions are two batches of the log."""


async def commit_all(rig: SimBrokerRig, offset: int) -> None:
    rows = tuple(PartitionOffset("t", number, offset, metadata=METADATA) for number in range(PARTITIONS))
    reply = await rig.broker.group_coordinators.submit(G, CommitOffsets(G, rows))
    assert isinstance(reply, CommitOffsetsReply) and {*reply.codes} == {Code.NONE}


async def fetch_all(rig: SimBrokerRig) -> list[int]:
    asked = tuple(("t", number) for number in range(PARTITIONS))
    reply = await rig.broker.group_coordinators.submit(G, FetchOffsets(G, asked))
    assert isinstance(reply, FetchOffsetsReply)
    return [each.offset for each in reply.offsets]


def test_commits_of_one_turn_and_those_during_a_snapshot_survive_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commits of the turn are two batches. The snapshot is made in parts, and its offset was read before."""
    monkeypatch.setattr(turns, "PIECE_SECONDS", 0.0)

    async def scenario(rig: SimBrokerRig) -> None:
        await rig.start(replace(GROUP_SETTINGS, offset_metadata_max_bytes=len(METADATA)))
        await rig.create("t")
        await commit_all(rig, 7)
        await restart(rig)
        assert await fetch_all(rig) == [7] * PARTITIONS
        await commit(rig, G, 8)
        host = rig.broker.group_coordinators.host
        saving = asyncio.ensure_future(host.snapshotter.save_changed(list(host.led_partitions.values())))
        await asyncio.sleep(0)
        assert await commit(rig, G, 9) is Code.NONE
        assert offsets_replica(rig, P).log_start_offset == 0, "the snapshot is not stored yet"
        await saving
        assert offsets_replica(rig, P).log_start_offset > 0
        await restart(rig)
        assert await fetch_all(rig) == [9] + [7] * (PARTITIONS - 1)
        await rig.stop()

    run(scenario)


@run_by(run)
async def test_log_of_groups_stays_while_the_bucket_takes_no_snapshot(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    await commit(rig, G, 5)
    await rig.wait_until(lambda: len(snapshots(rig, P)) == 1, 61)
    await commit(rig, G, 6)
    refused = FaultRule(FaultKind.ERROR, ("put",), key="groups/")
    rig.machine.faults.rules.append(refused)
    await asyncio.sleep(130)
    await rig.crash(rig.machine.kill)
    rig.machine.faults.rules.remove(refused)
    assert len(snapshots(rig, P)) == 1
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == 6


@run_by(run)
async def test_topic_deleted_while_a_load_writes_its_snapshot_leaves_no_offset(rig: SimBrokerRig) -> None:
    """The offsets were compared with the topics by then."""
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    await rig.create("u")
    await commit(rig, G, 7)
    await commit(rig, G, 8, topic="u")
    await rig.wait_until(lambda: len(snapshots(rig, P)) == 1, 61)
    await asyncio.sleep(NOTED_SECONDS)
    await rig.crash(rig.machine.kill)
    rig.machine.faults.rules.append(FaultRule(FaultKind.DELAY, ("put",), key="groups/", times=1, seconds=20.0))
    await rig.start(GROUP_SETTINGS)
    await asyncio.sleep(10)
    assert rig.broker.group_coordinators.host.count_loading()
    await rig.broker.submit(DeleteTopic("t"))
    await wait_groups_loaded(rig)
    await asyncio.sleep(1)
    kept = [(group, topic) for group, topic, _ in rig.broker.group_coordinators.iter_committed_offsets()]
    assert kept == [(G, "u")]


@run_by(run)
async def test_log_says_that_groups_may_be_gone_if_their_snapshots_are(
    rig: SimBrokerRig, *, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    await commit(rig, G, 7)
    await rig.wait_until(lambda: offsets_replica(rig, P).log_start_offset > 0, 61)
    end = offsets_replica(rig, P).log_start_offset
    await asyncio.sleep(NOTED_SECONDS)
    await rig.crash(rig.machine.kill)
    await rig.bucket.memory.delete([each.key for each in snapshots(rig, P)])
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    lost = f"changes of groups may be gone partition=__consumer_offsets-{P} below_offset={end}"
    assert [each.getMessage() for each in caplog.records if "may be gone" in each.getMessage()] == [lost]
    assert await fetch_committed(rig, G) == -1


@run_by(run)
async def test_log_says_that_records_of_groups_cannot_be_read(
    rig: SimBrokerRig, *, caplog: pytest.LogCaptureFixture
) -> None:
    """The next snapshot takes the place of the log, and has no such records."""
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    await commit(rig, G, 7)
    unknown = bytearray(encode_batch([(1_000, b"\x00\x7fof a later version", b"v", ())]))
    await offsets_replica(rig, P).append(unknown)
    await rig.crash(rig.machine.kill)
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    said = f"records of groups cannot be read, the next snapshot lacks them partition=__consumer_offsets-{P} count=1"
    assert [each.getMessage() for each in caplog.records if "cannot be read" in each.getMessage()] == [said]
    assert await fetch_committed(rig, G) == 7


@run_by(run)
async def test_late_snapshot_of_a_replaced_coordinator_wins_over_no_log(rig: SimBrokerRig) -> None:
    """The replaced broker has no snapshot when its successor begins, on another disk. It writes one later, at an offset
    that the successor's log has not reached."""
    await rig.start(GROUP_SETTINGS)
    await fill(await rig.create("t"), 20)
    await commit(rig, G, 7)
    frozen, first = rig.broker, rig.machine
    rig.machine = other = SimMachine(rig.loop, "two", rig.bucket, rig.network)
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    fresh = rig.broker
    assert await commit(rig, G, 11) is Code.NONE
    rig.broker = frozen
    for offset in (12, 13, 14):
        await commit(rig, G, offset)
    host = frozen.group_coordinators.host
    await host.snapshotter.save_changed(list(host.led_partitions.values()))
    end = fresh.leader_replica(OFFSETS_TOPIC, P).log.end_offset
    assert [each.offset > end for each in snapshots(rig, P)] == [True]
    await rig.crash(first.kill)
    rig.broker, rig.machine = fresh, other
    await restart(rig)
    assert await fetch_committed(rig, G) == 11
    await commit(rig, OTHER, 15)
    for offset in (16, 17, 18, 19):
        await commit(rig, G, offset)
    await restart(rig)  # the log goes beyond the snapshot, with other records below its offset
    assert (await fetch_committed(rig, G), await fetch_committed(rig, OTHER)) == (19, 15)
