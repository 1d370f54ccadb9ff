"""Leaders that begin long after the image that named them, since their records are read from chains: what that image
said of the records holds, and what later images changed is in force."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.scenario import run_by
from tests.sim.rig.broker_rig import SimBrokerRig, batch, fill, run
from tests.sim.rig.group_requests import GROUP_SETTINGS
from tests.sim.scenarios.test_offsets_of_lost_records import SYNCED, WRITTEN, G, commit_at, committed, lose_tail
from tiered.controller.requests import AlterTopicConfigs, CreateTopic, DeleteTopic
from tiered.coordinator.routing import partition_of
from tiered.hot import proof_file
from tiered.ids import TopicPartition
from tiered.metadata.changes import LossReported
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.wal.layout import WAL

LATE = TopicPartition("late", 0)
CHAINED = {"flush": "bucket", "segment.bytes": "1048576", "retention.ms": "-1"}
SLOW = FaultRule(FaultKind.DELAY, ("get", "list"), key=WAL, seconds=5.0)
SLOW_MANIFEST = FaultRule(FaultKind.DELAY, ("get",), key="manifest", seconds=5.0)


async def start_with_late(rig: SimBrokerRig, slow: FaultRule = SLOW, *, disk_lost: bool = False) -> None:
    """Starts a broker whose only topic has a record in a chain, kills it, and starts it again on a directory that
    proves nothing, or on an empty one. The chain takes long to read."""
    await rig.start()
    await rig.broker.submit(CreateTopic("late", 1, configs=CHAINED))
    await rig.broker.leader_replica("late", 0).append(batch([b"v"]), timeout_ms=5_000)
    await rig.crash(rig.machine.lose_disk if disk_lost else rig.machine.kill)
    if not disk_lost:
        rig.machine.disk.remove(f"log/{proof_file.FILE}")
    rig.machine.faults.rules.append(slow)
    await rig.start()
    assert LATE in rig.broker.hosted_replicas.openings
    assert rig.broker.hosted_replicas.losses.suspect_partitions == {LATE}


def is_led(rig: SimBrokerRig) -> bool:
    return rig.broker.hosted_replicas.find_leader(LATE) is not None


@run_by(run)
async def test_offset_is_older_than_a_loss_that_came_before_its_coordinator(rig: SimBrokerRig) -> None:
    """The new records reach the committed offset while the chain of the groups is read."""
    settings = replace(GROUP_SETTINGS, tiered_internal_topics_flush="bucket")
    await rig.start(settings)
    replica = await rig.create("t", segment_bytes="1048576", retention_ms="-1")
    await fill(replica, SYNCED)
    size = replica.log.segments.size_bytes
    await fill(replica, WRITTEN - SYNCED)
    await commit_at(rig.broker, G, WRITTEN)
    await rig.crash(rig.machine.kill)
    lose_tail(rig.machine, size)
    rig.machine.faults.rules.append(SLOW)
    await rig.start(settings)
    await fill(rig.broker.leader_replica("t", 0), WRITTEN)
    assert rig.broker.image.losses and rig.broker.hosted_replicas.openings
    offset, _ = await committed(rig.broker, G)
    assert offset == SYNCED
    led = rig.broker.group_coordinators.host.led_partitions[partition_of(G, 2)]
    assert led.written_before_slot < led.replica.led_since_slot


@run_by(run)
async def test_loss_that_came_before_a_coordinator_cuts_back_its_offsets(rig: SimBrokerRig) -> None:
    """The offset has no leader epoch, and the loss came after the image that decided who coordinates the group."""
    await rig.start(GROUP_SETTINGS)
    await fill(await rig.create("t", segment_bytes="1048576", retention_ms="-1"), WRITTEN)
    await commit_at(rig.broker, G, WRITTEN)
    groups, decided = rig.broker.group_coordinators, rig.broker.image
    loss = LossReported(decided.topics["t"].topic_id, 0, 1, SYNCED, 1)
    led = groups.host.led_partitions[partition_of(G, 2)].replica
    groups.on_resign(led)
    groups.on_lead(led, decided, decided.apply([loss], None))
    offset, _ = await committed(rig.broker, G)
    assert offset == SYNCED


@pytest.mark.parametrize("opened", [False, True])
@run_by(run)
async def test_setting_that_changes_meanwhile_loses_nothing(rig: SimBrokerRig, *, opened: bool) -> None:
    """Each acknowledged record was in the bucket when the leadership was decided. The setting changes while the chain
    is read, or while the log is being opened."""
    await start_with_late(rig, SLOW_MANIFEST if opened else SLOW, disk_lost=opened)
    await rig.wait_until(lambda: not opened or LATE in rig.broker.hosted_replicas.openings._running)
    await rig.broker.submit(AlterTopicConfigs("late", {"flush": "ack"}))
    assert LATE in rig.broker.hosted_replicas.openings
    await rig.wait_until(lambda: is_led(rig))
    leader = rig.broker.leader_replica("late", 0)
    assert leader.log.end_offset == 1 and leader.possible_loss is None and not rig.broker.image.losses
    assert leader.chain_stored_end is None, "the chain is used no more"
    await leader.append(batch([b"w"]), timeout_ms=5_000)


@run_by(run)
async def test_log_of_a_topic_that_is_deleted_meanwhile_is_suspect_no_more(rig: SimBrokerRig) -> None:
    await start_with_late(rig)
    await rig.broker.submit(DeleteTopic("late", rig.broker.image.topics["late"].topic_id))
    await rig.wait_until(lambda: LATE not in rig.broker.hosted_replicas.openings)
    assert not rig.broker.hosted_replicas.losses.suspect_partitions


@run_by(run)
async def test_leader_that_is_made_for_a_deleted_topic_leaves_the_chain(rig: SimBrokerRig) -> None:
    """The topic is deleted while the log is being opened: its manifest takes long to read."""
    await start_with_late(rig, SLOW_MANIFEST, disk_lost=True)
    await rig.wait_until(lambda: LATE in rig.broker.hosted_replicas.openings._running)
    await rig.broker.submit(DeleteTopic("late", rig.broker.image.topics["late"].topic_id))
    await rig.wait_until(lambda: LATE not in rig.broker.hosted_replicas.openings)
    assert not rig.broker.hosted_replicas._chains.writer._logs


@run_by(run)
async def test_leader_that_begins_during_the_registration_stays_cleared(rig: SimBrokerRig) -> None:
    """The image of the registration is applied once the manifest of another topic is read."""
    await rig.start()
    await rig.broker.submit(CreateTopic("late", 1, configs=CHAINED))
    await rig.broker.leader_replica("late", 0).append(batch([b"v"]), timeout_ms=5_000)
    await fill(await rig.create("other"), 20)
    await rig.wait_until(lambda: rig.broker.leader_replica("other", 0).cold_end_offset > 0)
    await rig.crash(rig.machine.kill)
    for name in (proof_file.FILE, *(f"other-0/{each}" for each in rig.machine.disk.list("log/other-0"))):
        rig.machine.disk.remove(f"log/{name}")
    rig.machine.faults.rules.append(SLOW_MANIFEST)
    await rig.start()
    assert LATE not in rig.broker.hosted_replicas.losses.suspect_partitions
