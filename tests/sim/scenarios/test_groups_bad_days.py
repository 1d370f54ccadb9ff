"""Tests of groups under faults: an unreachable or lying bucket, a full disk, deleted topics. And a test of their cost
at rest."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

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


def test_coordinator_waits_for_an_image_and_reports_it() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await site.create("t")
        await commit(site, G, 7)
        await site.wait_until(lambda: snapshots(site, P) != [])
        await site.crash(site.machine.kill)
        broken = FaultRule(FaultKind.ERROR, ("get",), key="groups/")
        site.machine.faults.rules.append(broken)
        node = await site.start(GROUP_SETTINGS)
        await site.wait_until(lambda: any("its groups cannot be loaded" in each for each in node.health().problems))
        with pytest.raises(Refused) as refused:
            await commit(site, G, 8)
        assert refused.value.code is Code.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(Refused) as refused:
            await node.group_coordinators.list_groups()
        assert refused.value.code is Code.COORDINATOR_LOAD_IN_PROGRESS
        site.machine.faults.rules.remove(broken)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == 7 and node.health().problems == []
        await site.stop()

    run(scenario)


def test_topic_deleted_during_the_load_of_groups_leaves_no_offset() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await site.create("t")
        await commit(site, G, 7)
        await site.wait_until(lambda: snapshots(site, P) != [])
        await site.crash(site.machine.kill)
        broken = FaultRule(FaultKind.ERROR, ("get",), key="groups/")
        site.machine.faults.rules.append(broken)
        await site.start(GROUP_SETTINGS)
        await site.node.submit(DeleteTopic("t"))
        await site.create("t")
        site.machine.faults.rules.remove(broken)
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == -1
        await site.stop()

    run(scenario)


def test_groups_wait_while_the_bucket_lists_no_images() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await fill(await site.create("t"), 20)
        await commit(site, G, 7)
        await site.wait_until(lambda: snapshots(site, P) != [])
        await site.crash(site.machine.lose_disk)
        broken = FaultRule(FaultKind.ERROR, ("list",), key="groups/")
        site.machine.faults.rules.append(broken)
        await site.start(GROUP_SETTINGS)
        with pytest.raises(Refused) as refused:
            await fetch_committed(site, G)
        assert refused.value.code is Code.COORDINATOR_NOT_AVAILABLE
        site.machine.faults.rules.remove(broken)
        await site.wait_until(lambda: site.node.hosted_replicas.unopened_leaders == {})
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == 7
        await site.stop()

    run(scenario)


def test_groups_work_while_the_bucket_is_unreachable() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await site.create("t")
        await commit(site, G, 0)
        site.machine.faults.outage = True
        for offset in range(1, 300):
            assert await commit(site, G, offset) is Code.NONE
            await asyncio.sleep(1)
        assert site.node.metrics.gauge("tiered_group_image_lag_seconds", "").value() > 200
        assert snapshots(site, P) == []
        site.machine.faults.outage = False
        await site.wait_until(lambda: snapshots(site, P) != [], 200)
        assert snapshots(site, P)[-1].offset == offsets_replica(site, P).log.end_offset
        await site.stop()

    run(scenario)


def test_full_disk_refuses_commits_and_keeps_earlier_ones() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await site.create("t")
        joined = await join(site, G)
        await sync(site, G, joined)
        await commit(site, G, 1, generation=1, member=joined.member_id)
        site.machine.disk.capacity = 1
        with pytest.raises(Refused) as refused:
            await commit(site, G, 2, generation=1, member=joined.member_id)
        assert refused.value.code.retriable
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == 1
        site.machine.disk.capacity = 1 << 40
        assert await heartbeat(site, G, joined) is Code.NONE
        assert await commit(site, G, 3, generation=1, member=joined.member_id) is Code.NONE
        assert await fetch_committed(site, G) == 3
        await site.stop()

    run(scenario)


def test_members_in_a_rebalance_get_a_reply_when_the_broker_stops() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        joined = await join(site, G)
        await sync(site, G, joined)
        waiting = asyncio.ensure_future(join(site, G))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await site.stop()
        with pytest.raises(Refused) as refused:
            await waiting
        assert refused.value.code is Code.NOT_COORDINATOR

    run(scenario)


def test_waiting_members_get_a_reply_when_the_coordinator_resigns() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        joined = await join(site, G)
        await sync(site, G, joined)
        waiting = asyncio.ensure_future(join(site, G))
        await asyncio.sleep(0.1)
        tp = TopicPartition(OFFSETS_TOPIC, P)
        site.node.hosted_replicas.resign(tp, Refused(Code.NOT_LEADER_OR_FOLLOWER, "led elsewhere"))
        for asked in (waiting, heartbeat(site, G, joined)):
            with pytest.raises(Refused) as refused:
                await asked
            assert refused.value.code is Code.NOT_COORDINATOR
        await site.stop()

    run(scenario)


def test_topic_deleted_without_a_coordinator_leaves_no_offset() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await site.create("t")
        await site.create("u")
        await commit(site, G, 7)
        await commit(site, G, 8, topic="u")
        coordinators = site.node.group_coordinators  # their process ends before they act on the deletion
        coordinators.on_topics_deleted = lambda names: None  # type: ignore[method-assign]
        coordinators.on_image = lambda old, new: None  # type: ignore[method-assign]
        await site.node.submit(DeleteTopic("t"))
        await site.crash(site.machine.kill)
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        assert (await fetch_committed(site, G), await fetch_committed(site, G, "u")) == (-1, 8)
        await site.stop()

    run(scenario)


def test_unused_offsets_expire() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(replace(GROUP_SETTINGS, offsets_retention_minutes=30))
        await site.create("t")
        await commit(site, G, 7)
        await asyncio.sleep(29 * 60)
        assert await fetch_committed(site, G) == 7
        await asyncio.sleep(12 * 60)
        assert await fetch_committed(site, G) == -1
        assert (await describe(site, G)).code is Code.GROUP_ID_NOT_FOUND
        await site.stop()

    run(scenario)


@pytest.mark.parametrize("with_groups", [False, True])
def test_idle_groups_send_no_request_to_the_bucket(with_groups: bool) -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await site.create("t")
        if with_groups:
            await commit(site, G, 7)
        await asyncio.sleep(300)
        before = site.node.store.request_count()
        await asyncio.sleep(3600)
        assert site.node.store.request_count() - before <= 60
        await site.stop()

    run(scenario)
