"""Tests of the upload lag: a record stays outside the bucket for at most `tiered.upload.max.lag.ms` and one upload, and
a metric has its age."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.scenario import GIVEN, run_by
from tests.seeds import first_seeds
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, run
from tests.sim.scenarios.three import ThreeBrokers, run_scenario
from tiered.controller.requests import CreateTopic
from tiered.replication.leader_replica import LeaderReplica

LAG = 20.0
UPLOAD = 2.0
SELDOM: dict[str, Any] = {"log_retention_check_interval_ms": 300_000, "remote_log_manager_task_interval_ms": 300_000}
"""An interval so long that no other timer acts in time."""
LATE = replace(QUICK, tiered_upload_max_lag_ms=int(LAG * 1000), **SELDOM)


async def wait_cold(replica: LeaderReplica, end: int, seconds: float) -> float:
    """Returns the seconds until all records below `end` are in the bucket."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while replica.cold_end_offset < end:
        assert loop.time() - began < seconds, f"offset {end} is not in the bucket after {seconds} s"
        await asyncio.sleep(0.1)
    return loop.time() - began


def read_copy_lag(rig: SimBrokerRig, topic: str) -> float:
    """Returns the metric of the copy lag."""
    found = re.search(rf'^tiered_remote_copy_lag_seconds{{topic="{topic}"}} (\S+)$', rig.broker.metrics.render(), re.M)
    assert found is not None, rig.broker.metrics.render()
    return float(found[1])


@run_by(run)
async def test_quiet_topic_is_uploaded_at_the_maximum_lag(rig: SimBrokerRig) -> None:
    await rig.start(LATE)
    replica = await rig.create("t", segment_bytes="1048576")
    await asyncio.sleep(7)
    for _ in range(3):
        await replica.append(batch([b"v"]))
        end = replica.log.end_offset
        took = await wait_cold(replica, end, LAG + UPLOAD)
        assert took > LAG - 1, "a segment is not closed before its time"
        await asyncio.sleep(11)


@run_by(run)
async def test_lag_metric_has_the_age_of_the_oldest_record_per_topic(rig: SimBrokerRig) -> None:
    await rig.start(LATE)
    replica = await rig.create("t", segment_bytes="1048576")
    await rig.create("empty", segment_bytes="1048576")
    assert read_copy_lag(rig, "t") == 0
    await replica.append(batch([b"v"]))
    await asyncio.sleep(10)
    await replica.append(batch([b"w"]))
    assert 9.9 <= read_copy_lag(rig, "t") <= 10.1
    assert read_copy_lag(rig, "empty") == 0
    await wait_cold(replica, 2, LAG)
    assert read_copy_lag(rig, "t") == 0
    rig.machine.faults.outage = True
    await replica.append(batch([b"x"]))
    await asyncio.sleep(3 * LAG)
    assert 3 * LAG - 1 <= read_copy_lag(rig, "t") <= 3 * LAG + 1, "it goes on while the bucket takes nothing"


@run_by(run_scenario, tiered_upload_max_lag_ms=int(LAG * 1000), **SELDOM)
async def test_closed_segments_wait_for_others_at_most_the_maximum_lag(three: ThreeBrokers) -> None:
    """If other replicas have the segments too, several of them share one manifest change."""
    leader = three.controller
    nodes = [leader.node_id, *(each.node_id for each in three.others())]
    await leader.node.submit(CreateTopic("t", assignments=[nodes], configs={"internal.segment.bytes": "4096"}))
    await three.wait_until(lambda: len(leader.node.image.topics["t"].partitions[0].isr) == 3, 20)
    replica = leader.node.leader_replica("t", 0)
    while replica.unified_log.waiting_segments < 2:
        await replica.append(batch([b"x" * 1000]))
    assert replica.cold_end_offset == 0
    await wait_cold(replica, replica.log.end_offset, LAG + UPLOAD)


@pytest.mark.parametrize("seed", first_seeds(1, of=3))
@run_by(run_scenario, seed=GIVEN, tiered_upload_max_lag_ms=int(LAG * 1000), **SELDOM)
async def test_next_leader_continues_the_age(three: ThreeBrokers) -> None:
    leader, successor, third = three.others()[0], three.controller, three.others()[1]
    nodes = [leader.node_id, successor.node_id, third.node_id]
    await successor.node.submit(CreateTopic("t", assignments=[nodes], configs={"min.insync.replicas": "2"}))
    await three.wait_until(lambda: len(leader.node.image.topics["t"].partitions[0].isr) == 3, 20)
    await leader.node.leader_replica("t", 0).append(batch([b"v"]))
    await asyncio.sleep(LAG - 8)
    await leader.kill()
    await three.wait_until(lambda: successor.node.hosted_replicas.list_leaders() != [], 10)
    await wait_cold(successor.node.leader_replica("t", 0), 1, 8 + UPLOAD)


@run_by(run)
async def test_no_request_is_sent_to_the_bucket_while_nothing_is_late(rig: SimBrokerRig) -> None:
    await rig.start(LATE)
    replica = await rig.create("t", segment_bytes="1048576")
    await replica.append(batch([b"v"]))
    await wait_cold(replica, 1, LAG + UPLOAD)
    await asyncio.sleep(600)  # what a start and an upload leave to be swept is done
    before = rig.broker.store.request_count()
    await asyncio.sleep(600)
    assert rig.broker.store.request_count() - before <= 10, "a request a minute"
