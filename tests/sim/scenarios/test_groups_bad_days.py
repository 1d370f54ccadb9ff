"""Tests of groups under faults: an unreachable or lying bucket, a full disk, deleted topics. And a test of their cost
at rest."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.rig.broker_rig import SimBrokerRig, fill, run
from tests.sim.rig.group_requests import (
    GROUP_SETTINGS,
    commit,
    describe,
    fetch_committed,
    heartbeat,
    join,
    offsets_replica,
    snapshots,
    sync,
    wait_groups_loaded,
)
from tiered.controller.requests import DeleteTopic
from tiered.coordinator.routing import partition_of
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.object_store.faulty import FaultKind, FaultRule

G = "g"
P = partition_of(G, 2)


@run_by(run)
async def test_coordinator_waits_for_an_image_and_reports_it(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    await commit(rig, G, 7)
    await rig.wait_until(lambda: snapshots(rig, P) != [])
    await rig.crash(rig.machine.kill)
    broken = FaultRule(FaultKind.ERROR, ("get",), key="groups/")
    rig.machine.faults.rules.append(broken)
    node = await rig.start(GROUP_SETTINGS)
    await rig.wait_until(lambda: any("its groups cannot be loaded" in each for each in node.health().problems))
    with refuses(Code.COORDINATOR_LOAD_IN_PROGRESS):
        await commit(rig, G, 8)
    with refuses(Code.COORDINATOR_LOAD_IN_PROGRESS):
        await node.group_coordinators.list_groups()
    rig.machine.faults.rules.remove(broken)
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == 7 and node.health().problems == []


@run_by(run)
async def test_topic_deleted_during_the_load_of_groups_leaves_no_offset(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    await commit(rig, G, 7)
    await rig.wait_until(lambda: snapshots(rig, P) != [])
    await rig.crash(rig.machine.kill)
    broken = FaultRule(FaultKind.ERROR, ("get",), key="groups/")
    rig.machine.faults.rules.append(broken)
    await rig.start(GROUP_SETTINGS)
    await rig.broker.submit(DeleteTopic("t"))
    await rig.create("t")
    rig.machine.faults.rules.remove(broken)
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == -1


@run_by(run)
async def test_groups_wait_while_the_bucket_lists_no_images(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await fill(await rig.create("t"), 20)
    await commit(rig, G, 7)
    await rig.wait_until(lambda: snapshots(rig, P) != [])
    await rig.crash(rig.machine.lose_disk)
    broken = FaultRule(FaultKind.ERROR, ("list",), key="groups/")
    rig.machine.faults.rules.append(broken)
    await rig.start(GROUP_SETTINGS)
    with refuses(Code.COORDINATOR_NOT_AVAILABLE):
        await fetch_committed(rig, G)
    rig.machine.faults.rules.remove(broken)
    await rig.wait_until(lambda: rig.broker.hosted_replicas.unopened_leaders == {})
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == 7


@run_by(run)
async def test_groups_work_while_the_bucket_is_unreachable(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    await commit(rig, G, 0)
    rig.machine.faults.outage = True
    for offset in range(1, 300):
        assert await commit(rig, G, offset) is Code.NONE
        await asyncio.sleep(1)
    assert rig.broker.metrics.gauge("tiered_group_image_lag_seconds", "").value() > 200
    assert snapshots(rig, P) == []
    rig.machine.faults.outage = False
    await rig.wait_until(lambda: snapshots(rig, P) != [], 200)
    assert snapshots(rig, P)[-1].offset == offsets_replica(rig, P).log.end_offset


@run_by(run)
async def test_full_disk_refuses_commits_and_keeps_earlier_ones(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    joined = await join(rig, G)
    await sync(rig, G, joined)
    await commit(rig, G, 1, generation=1, member=joined.member_id)
    rig.machine.disk.capacity = 1
    with pytest.raises(Refused) as refused:
        await commit(rig, G, 2, generation=1, member=joined.member_id)
    assert refused.value.code.retriable
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == 1
    rig.machine.disk.capacity = 1 << 40
    assert await heartbeat(rig, G, joined) is Code.NONE
    assert await commit(rig, G, 3, generation=1, member=joined.member_id) is Code.NONE
    assert await fetch_committed(rig, G) == 3


@run_by(run)
async def test_members_in_a_rebalance_get_a_reply_when_the_broker_stops(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    joined = await join(rig, G)
    await sync(rig, G, joined)
    waiting = asyncio.ensure_future(join(rig, G))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await rig.stop()
    with refuses(Code.NOT_COORDINATOR):
        await waiting


@run_by(run)
async def test_waiting_members_get_a_reply_when_the_coordinator_resigns(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    joined = await join(rig, G)
    await sync(rig, G, joined)
    waiting = asyncio.ensure_future(join(rig, G))
    await asyncio.sleep(0.1)
    tp = TopicPartition(OFFSETS_TOPIC, P)
    rig.broker.hosted_replicas.resign(tp, Refused(Code.NOT_LEADER_OR_FOLLOWER, "led elsewhere"))
    for asked in (waiting, heartbeat(rig, G, joined)):
        with refuses(Code.NOT_COORDINATOR):
            await asked


@run_by(run)
async def test_topic_deleted_without_a_coordinator_leaves_no_offset(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    await rig.create("u")
    await commit(rig, G, 7)
    await commit(rig, G, 8, topic="u")
    coordinators = rig.broker.group_coordinators  # their process ends before they act on the deletion
    coordinators.on_topics_deleted = lambda names: None  # type: ignore[method-assign]
    coordinators.on_image = lambda old, new: None  # type: ignore[method-assign]
    await rig.broker.submit(DeleteTopic("t"))
    await rig.crash(rig.machine.kill)
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    assert (await fetch_committed(rig, G), await fetch_committed(rig, G, "u")) == (-1, 8)


@run_by(run)
async def test_unused_offsets_expire(rig: SimBrokerRig) -> None:
    await rig.start(replace(GROUP_SETTINGS, offsets_retention_minutes=30))
    await rig.create("t")
    await commit(rig, G, 7)
    await asyncio.sleep(29 * 60)
    assert await fetch_committed(rig, G) == 7
    await asyncio.sleep(12 * 60)
    assert await fetch_committed(rig, G) == -1
    assert (await describe(rig, G)).code is Code.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("with_groups", [False, True])
@run_by(run)
async def test_idle_groups_send_no_request_to_the_bucket(rig: SimBrokerRig, *, with_groups: bool) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    if with_groups:
        await commit(rig, G, 7)
    await asyncio.sleep(300)
    before = rig.broker.store.request_count()
    await asyncio.sleep(3600)
    assert rig.broker.store.request_count() - before <= 60
