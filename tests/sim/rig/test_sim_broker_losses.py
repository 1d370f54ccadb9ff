"""Tests of reported losses: a loss of acknowledged records is named with the offsets that may be missing, until an
operator acknowledges it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from tests.scenario import run_by
from tests.seeds import first_seeds
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, fill, run
from tiered.broker.partition_report import explain
from tiered.controller.requests import AcknowledgeLosses
from tiered.durability.stored_ends import REST_SECONDS
from tiered.groups.requests import CommitOffsets, PartitionOffset
from tiered.ids import UNKNOWN_END
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.object_store.faulty import FaultKind, FaultRule

LAGGING = replace(QUICK, tiered_upload_max_lag_ms=10_000)
ON_DISK = {"remote_storage_enable": "false", "retention_ms": "-1"}


def stored_end(rig: SimBrokerRig, name: str) -> int:
    return rig.broker.image.topics[name].partitions[0].stored_end


def loss_offsets(rig: SimBrokerRig) -> dict[str, int]:
    """Returns the offsets from which on records may be gone, by partition."""
    found = rig.broker.health().details["possible_loss"]
    return {at: loss["from_offset"] for at, loss in found.items()}


async def three_topics(rig: SimBrokerRig) -> None:
    """Creates three topics: none, all and some of their records are in the bucket."""
    await rig.start(LAGGING)
    await rig.create("empty")
    await fill(await rig.create("whole"), 10)
    hot = await rig.create("hot")
    await fill(hot, 5)
    await rig.wait_until(lambda: [stored_end(rig, name) for name in ("empty", "whole", "hot")] == [0, 10, 5], 300)
    await hot.append(batch([b"more"]))
    await rig.wait_until(lambda: stored_end(rig, "hot") == UNKNOWN_END, 1)


@run_by(run)
async def test_only_possibly_missing_records_are_reported_after_lost_disks(
    rig: SimBrokerRig, *, caplog: pytest.LogCaptureFixture
) -> None:
    await three_topics(rig)
    await rig.crash(rig.machine.lose_disk)
    caplog.clear()
    await rig.start(LAGGING)
    assert loss_offsets(rig) == {"hot-0": 5}
    (problem,) = [each for each in rig.broker.health().problems if "may be gone" in each]
    assert "partition hot-0 may be gone from offset 5 on" in problem and "tiered cluster losses" in problem
    (line,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "partition@offset=hot-0@5:" in line.message
    rendered = rig.broker.metrics.render().splitlines()
    assert "tiered_possible_loss_partitions 1" in rendered
    assert 'tiered_topic_possible_loss_partitions{topic="hot"} 1' in rendered
    assert rig.broker.leader_replica("whole", 0).high_watermark == 10
    assert explain(rig.broker.leader_replica("whole", 0))["possible_loss"] is None
    assert explain(rig.broker.leader_replica("hot", 0))["possible_loss"]["from_offset"] == 5


@run_by(run)
async def test_loss_says_of_how_many_seconds_records_may_be_missing(rig: SimBrokerRig) -> None:
    await three_topics(rig)
    newest_ms = 1_700_000_000_000
    await rig.crash(rig.machine.lose_disk)
    await rig.start(LAGGING)
    loss = rig.broker.health().details["possible_loss"]["hot-0"]
    assert loss["newest_ms"] == newest_ms < loss["at_ms"]
    seconds = -(-(loss["at_ms"] - newest_ms) // 1000)
    (problem,) = [each for each in rig.broker.health().problems if "may be gone" in each]
    assert f"at most those of the last {seconds} s: the newest record that is left is of 2023-11-14T22:13:20" in problem


@run_by(run)
async def test_partition_that_was_whole_seconds_ago_is_not_reported(rig: SimBrokerRig) -> None:
    await rig.start(LAGGING)
    replica = await rig.create()
    await fill(replica, 5)
    await rig.wait_until(lambda: replica.stored_end == 5, 300)
    await asyncio.sleep(45)
    await rig.crash(rig.machine.lose_disk)
    await rig.start(LAGGING)
    assert loss_offsets(rig) == {}


@run_by(run)
async def test_loss_stays_a_problem_over_restarts_until_it_is_acknowledged(rig: SimBrokerRig) -> None:
    await three_topics(rig)
    await rig.crash(rig.machine.lose_disk)
    await rig.start(LAGGING)
    await fill(rig.broker.leader_replica("hot", 0), 1)
    await rig.stop()
    await rig.start(LAGGING)
    assert loss_offsets(rig) == {"hot-0": 5}
    topic, loss = rig.broker.image.topics["hot"], rig.broker.health().details["possible_loss"]["hot-0"]
    await rig.broker.submit(AcknowledgeLosses(((topic.topic_id, 0, loss["leader_epoch"]),)))
    assert loss_offsets(rig) == {} and rig.broker.health().problems == []
    await rig.wait_until(lambda: explain(rig.broker.leader_replica("hot", 0))["possible_loss"] is None)
    await rig.stop()
    await rig.start(LAGGING)
    assert loss_offsets(rig) == {} and rig.broker.health().problems == []


@run_by(run)
async def test_append_to_an_idle_partition_does_not_wait_for_its_note(rig: SimBrokerRig) -> None:
    await rig.start(LAGGING)
    replica = await rig.create()
    await rig.wait_until(lambda: stored_end(rig, "t") == 0, 3 * REST_SECONDS)
    rig.machine.faults.outage = True
    replica.append_now(batch([b"v"]), -1)
    assert replica.high_watermark == 1, "acknowledged at once"
    await rig.wait_until(lambda: rig.broker.store.outage is not None)
    assert stored_end(rig, "t") == 0
    rig.machine.faults.outage = False
    await rig.wait_until(lambda: stored_end(rig, "t") == UNKNOWN_END)


@run_by(run)
async def test_late_note_of_a_stored_end_is_removed_by_the_next_check(rig: SimBrokerRig) -> None:
    """The reply to the note was lost, and a record arrived before the note took effect after all."""
    await rig.start(LAGGING)
    replica = await rig.create()
    await rig.wait_until(lambda: stored_end(rig, "t") == 0, 3 * REST_SECONDS)
    replica.on_next_append = None
    await replica.append(batch([b"v"]))
    await rig.wait_until(lambda: stored_end(rig, "t") == UNKNOWN_END, 2 * REST_SECONDS)


@run_by(run)
async def test_commits_in_an_image_are_not_reported_as_lost(rig: SimBrokerRig) -> None:
    await rig.start(LAGGING)
    await rig.create()
    await rig.broker.group_coordinators.submit("g", CommitOffsets("g", (PartitionOffset("t", 0, 0),)))
    (written,) = [each for each in rig.broker.leader_replicas() if each.topic == OFFSETS_TOPIC and each.high_watermark]

    def has_stored_end() -> set[int]:
        return {each.stored_end for each in rig.broker.image.topics[OFFSETS_TOPIC].partitions}

    await rig.wait_until(lambda: has_stored_end() == {0, written.log.end_offset}, 300)
    await rig.broker.group_coordinators.submit("g", CommitOffsets("g", (PartitionOffset("t", 0, 0),)))
    await rig.wait_until(lambda: UNKNOWN_END in has_stored_end(), 1)
    end = written.log.start_offset
    await rig.crash(rig.machine.lose_disk)
    await rig.start(LAGGING)
    await rig.wait_until(lambda: loss_offsets(rig) == {f"{OFFSETS_TOPIC}-{written.partition}": end}, 10)


@run_by(run)
async def test_idle_log_that_is_only_on_disk_is_reported(rig: SimBrokerRig) -> None:
    await rig.start(LAGGING)
    await fill(await rig.create("local", remote_storage_enable="false"), 5)
    await rig.create("empty")
    await rig.wait_until(lambda: stored_end(rig, "empty") == 0, 3 * REST_SECONDS)
    await asyncio.sleep(2 * REST_SECONDS)
    assert stored_end(rig, "local") == UNKNOWN_END
    await rig.crash(rig.machine.lose_disk)
    await rig.start(LAGGING)
    assert loss_offsets(rig) == {"local-0": 0}


@pytest.mark.parametrize("end", ["stopped", "running"])
@run_by(run)
async def test_older_copy_of_the_data_directory_is_reported(
    rig: SimBrokerRig, *, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy was made after a clean stop, or beside the running broker in the same boot. The broker ran on, and the
    copy was put back."""
    await rig.start()
    await fill(await rig.create("t", 1, **ON_DISK), 5)
    await (rig.stop() if end == "stopped" else asyncio.sleep(90))
    copied = rig.machine.disk.copy() if end == "running" else rig.machine.disk.clone()
    if end == "stopped":
        await rig.start()
    await fill(rig.broker.leader_replica("t", 0), 5, 5)
    await rig.crash(rig.machine.kill)
    rig.machine.disk = copied
    caplog.clear()
    await rig.start()
    assert rig.broker.leader_replica("t", 0).log.end_offset == 5
    assert loss_offsets(rig) == {"t-0": 5}
    assert ("may be an older copy" in caplog.text) is (end == "stopped")
    await rig.stop()
    await rig.start()
    assert not rig.broker.losses.has_any_to_report, "the copy is the data directory now"


@run_by(run)
async def test_copy_of_a_stopped_broker_that_ran_nowhere_else_is_whole(rig: SimBrokerRig) -> None:
    await rig.start()
    await fill(await rig.create("t", 1, **ON_DISK), 5)
    await rig.stop()
    rig.machine.disk = rig.machine.disk.copy()
    await rig.start()
    assert rig.broker.leader_replica("t", 0).log.end_offset == 5 and loss_offsets(rig) == {}


@pytest.mark.parametrize("seed", first_seeds(1, of=3))
@run_by(run)
async def test_starts_that_are_killed_at_any_moment_keep_the_trust(rig: SimBrokerRig, *, seed: int) -> None:
    """Some die before they register, some after it, and some between the request and its effect."""
    await rig.start()
    await fill(await rig.create("t", 1, **ON_DISK), 5)
    await rig.crash(rig.machine.kill)
    rig.machine.disk.sync_seconds = lambda: 0.01
    rig.machine.faults.rules.append(FaultRule(FaultKind.DELAY, ("put",), seconds=0.05))
    seen: set[tuple[bool, bool]] = set()
    for step in range(60):
        node = rig.broker = rig._new_broker(QUICK)
        start = asyncio.ensure_future(node.start())
        await asyncio.wait([start], timeout=0.01 * step + 0.003 * seed)
        known = node.image.brokers.get(node.settings.node_id)
        is_registered = known is not None and known.incarnation == node.incarnation
        seen.add((is_registered, node.loss_reporter.directory_trusted))
        rig.machine.kill()
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        await node.stop(clean=False)
    assert seen == {(False, False), (True, False), (True, True)}
    await rig.start()
    assert rig.broker.leader_replica("t", 0).log.end_offset == 5 and loss_offsets(rig) == {}


@pytest.mark.parametrize("puts", range(4))
@run_by(run)
async def test_start_that_cannot_register_keeps_the_mark_of_the_process_before(rig: SimBrokerRig, *, puts: int) -> None:
    """The bucket takes so many writes of the start. The start opens its logs, and cannot register for a while."""
    await rig.start()
    await fill(await rig.create("t", 1, **ON_DISK), 5)
    await rig.crash(rig.machine.kill)
    rig.machine.faults.rules.append(FaultRule(FaultKind.ERROR, ("put",), skip=puts))
    rig.broker = rig._new_broker(QUICK)
    start = asyncio.ensure_future(rig.broker.start())
    await asyncio.wait([start], timeout=10)
    assert not start.done()
    rig.machine.faults.rules.clear()
    await rig.crash(rig.machine.kill)
    start.cancel()
    await asyncio.gather(start, return_exceptions=True)
    await rig.start()
    assert rig.broker.leader_replica("t", 0).log.end_offset == 5 and loss_offsets(rig) == {}
