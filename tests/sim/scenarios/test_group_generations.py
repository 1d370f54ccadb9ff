"""The life of a group at one coordinator: generations, static members, sessions and offsets, over dead processes.

A member asks what a real one asks late: under an earlier generation, after another one took its place, or never again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from tests.scenario import run_by
from tests.sim.rig.broker_rig import SimBrokerRig, run
from tests.sim.rig.group_requests import (
    GROUP_SETTINGS,
    commit,
    describe,
    fetch_committed,
    heartbeat,
    join,
    sync,
    wait_groups_loaded,
)
from tiered.controller.requests import DeleteTopic
from tiered.coordinator.routing import partition_of
from tiered.errors import Code, Refused
from tiered.groups.requests import (
    DeleteOffsets,
    DeleteReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
    SyncGroupReply,
)

G = "g"
SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\0\0\0\0"
"""The subscription of a consumer of the topic `t`: version 0, one topic, no user data."""


async def restart(rig: SimBrokerRig) -> None:
    await rig.crash(rig.machine.kill)
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)


async def join_as_consumer(rig: SimBrokerRig, member: str = "", session_ms: int = 10_000) -> JoinGroupReply:
    request = JoinGroup(
        G, member, None, "client", "/host", session_ms, 10_000, "consumer", (("range", SUBSCRIPTION),),
        member_id_required=False,
    )  # fmt: skip
    reply = await rig.broker.group_coordinators.submit(G, request)
    assert isinstance(reply, JoinGroupReply)
    return reply


async def sync_as(rig: SimBrokerRig, member: str, generation: int, *assigned: str) -> SyncGroupReply:
    """Sends SyncGroup of a member; the leader names those that it assigns something."""
    request = SyncGroup(G, generation, member, assignments=tuple((each, each.encode()) for each in assigned))
    reply = await rig.broker.group_coordinators.submit(G, request)
    assert isinstance(reply, SyncGroupReply)
    return reply


async def beat_as(rig: SimBrokerRig, member: str, generation: int, instance: str | None = None) -> Code:
    reply = await rig.broker.group_coordinators.submit(G, Heartbeat(G, generation, member, instance))
    assert isinstance(reply, HeartbeatReply)
    return reply.code


async def join_pair(rig: SimBrokerRig, session_ms: int = 10_000) -> tuple[JoinGroupReply, JoinGroupReply]:
    """Two members join one after the other; returns the replies of the generation that has both, the leader first."""
    first = await join(rig, G, session_ms=session_ms)
    await sync(rig, G, first)
    other = asyncio.ensure_future(join(rig, G, session_ms=session_ms))
    await asyncio.sleep(0.1)
    again = await join(rig, G, first.member_id, session_ms=session_ms)
    return again, await other


@run_by(run)
async def test_requests_of_an_earlier_generation_are_refused(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    first = await join(rig, G)
    await sync(rig, G, first)
    assert await commit(rig, G, 5, generation=first.generation, member=first.member_id) is Code.NONE
    assert await commit(rig, G, 99) is Code.UNKNOWN_MEMBER_ID, "an unknown group"
    other = asyncio.ensure_future(join(rig, G))
    await asyncio.sleep(0.1)
    assert await beat_as(rig, first.member_id, first.generation) is Code.REBALANCE_IN_PROGRESS
    again = await join(rig, G, first.member_id)
    new = await other
    assert (again.generation, new.generation) == (first.generation + 1,) * 2
    waiting = asyncio.ensure_future(sync_as(rig, new.member_id, new.generation))
    ids = (again.member_id, new.member_id)
    assert (await sync_as(rig, again.member_id, again.generation, *ids)).assignment == again.member_id.encode()
    assert (await waiting).assignment == new.member_id.encode()
    late = first.generation
    assert await beat_as(rig, first.member_id, late) is Code.ILLEGAL_GENERATION
    assert (await sync_as(rig, first.member_id, late)).code is Code.ILLEGAL_GENERATION
    assert await commit(rig, G, 99, generation=late, member=first.member_id) is Code.ILLEGAL_GENERATION
    assert await fetch_committed(rig, G) == 5
    await restart(rig)
    for each in (again, new):
        assert await beat_as(rig, each.member_id, each.generation) is Code.NONE
        assert (await sync_as(rig, each.member_id, each.generation)).assignment == each.member_id.encode()
    assert await beat_as(rig, first.member_id, late) is Code.ILLEGAL_GENERATION


@run_by(run)
async def test_silent_members_leave_one_after_the_other(rig: SimBrokerRig) -> None:
    """No request comes meanwhile: the coordinator wakes at each deadline by itself, also after a move."""
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    leader, other = await join_pair(rig)
    waiting = asyncio.ensure_future(sync_as(rig, other.member_id, other.generation))
    await sync_as(rig, leader.member_id, leader.generation, leader.member_id, other.member_id)
    await waiting
    await asyncio.sleep(6)
    assert await heartbeat(rig, G, other) is Code.NONE
    await asyncio.sleep(6)  # the leader is silent for 12 s, its session was 10 s
    assert await heartbeat(rig, G, other) is Code.REBALANCE_IN_PROGRESS
    alone = await join(rig, G, other.member_id)
    assert [each.member_id for each in alone.members] == [other.member_id]
    await sync(rig, G, alone)
    await restart(rig)
    await asyncio.sleep(21)
    assert (await describe(rig, G)).members == ()


@run_by(run)
async def test_sessions_of_several_groups_end_without_any_request(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    names = [name for name in ("g", *(f"g{number}" for number in range(9))) if partition_of(name, 2) == 0][:3]
    for number, name in enumerate(names):
        joined = await join(rig, name, session_ms=10_000 + 4_000 * number)
        request = SyncGroup(name, joined.generation, joined.member_id)
        await rig.broker.group_coordinators.submit(name, request)
    await asyncio.sleep(25)
    (shard, *_) = [each for each in rig.broker.group_coordinators.host.shards() if names[0] in each.state.groups]
    assert [len(shard.state.groups[name].members) for name in names] == [0, 0, 0]


@run_by(run)
async def test_session_that_begins_behind_one_that_ended_ends_in_time(rig: SimBrokerRig) -> None:
    """The next deadline that the coordinator knew was that of a longer session."""
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    names = [name for name in (f"g{number}" for number in range(20)) if partition_of(name, 2) == 0][:3]
    for name, session_ms in zip(names, (10_000, 300_000, 10_000), strict=True):
        joined = await join(rig, name, session_ms=session_ms)
        await rig.broker.group_coordinators.submit(name, SyncGroup(name, joined.generation, joined.member_id))
        await asyncio.sleep(0 if name is names[0] else 15)
    (shard, *_) = [each for each in rig.broker.group_coordinators.host.shards() if names[0] in each.state.groups]
    assert [len(shard.state.groups[name].members) for name in names] == [0, 1, 0]


@run_by(run)
async def test_member_that_does_not_join_is_not_in_the_next_generation(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    leader, other = await join_pair(rig, session_ms=60_000)
    waiting = asyncio.ensure_future(sync_as(rig, other.member_id, other.generation))
    await sync_as(rig, leader.member_id, leader.generation, leader.member_id, other.member_id)
    await waiting
    again = await join(rig, G, leader.member_id, session_ms=60_000)  # until its rebalance timeout
    assert [each.member_id for each in again.members] == [leader.member_id]
    assert await beat_as(rig, other.member_id, again.generation) is Code.UNKNOWN_MEMBER_ID


@run_by(run)
async def test_static_member_keeps_its_place_over_a_move_of_the_coordinator(rig: SimBrokerRig) -> None:
    """It comes back under another id. Its earlier process is fenced, before and after the move."""
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    first = await join(rig, G, instance="i", session_ms=60_000)
    await sync(rig, G, first)
    again = await join(rig, G, instance="i", session_ms=60_000)
    assert (again.code, again.generation) == (Code.NONE, first.generation)
    assert again.member_id != first.member_id
    for _ in range(2):
        assert await beat_as(rig, first.member_id, first.generation, "i") is Code.FENCED_INSTANCE_ID
        assert await beat_as(rig, again.member_id, again.generation, "i") is Code.NONE
        await restart(rig)
    assert (await sync_as(rig, again.member_id, again.generation)).assignment == b"all"


@run_by(run)
async def test_offsets_stay_while_they_are_used(rig: SimBrokerRig) -> None:
    """Those of a stable group's topics stay however old, those of a group that became empty for a retention time."""
    settings = replace(GROUP_SETTINGS, offsets_retention_minutes=2, offsets_retention_check_interval_ms=10_000)
    await rig.start(settings)
    await rig.create("t")
    await rig.create("u")
    joined = await join_as_consumer(rig, session_ms=300_000)
    await sync(rig, G, joined)
    for topic in ("t", "u"):
        assert await commit(rig, G, 7, topic=topic, generation=joined.generation, member=joined.member_id) is Code.NONE
    reply = await rig.broker.group_coordinators.submit(G, DeleteOffsets(G, (("t", 0),)))
    assert isinstance(reply, DeleteReply) and reply.codes == (Code.GROUP_SUBSCRIBED_TO_TOPIC,)
    await asyncio.sleep(150)
    assert await heartbeat(rig, G, joined) is Code.NONE
    assert (await fetch_committed(rig, G), await fetch_committed(rig, G, "u")) == (7, -1)
    leaving = LeaveGroup(G, (LeavingMember(joined.member_id),))
    await rig.broker.group_coordinators.submit(G, leaving)
    await asyncio.sleep(100)
    assert await fetch_committed(rig, G) == 7, "the group is empty for less than the retention time"
    await asyncio.sleep(60)
    assert await fetch_committed(rig, G) == -1


@run_by(run)
async def test_offsets_of_a_deleted_topic_leave_the_log_of_groups(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    await rig.create("u")
    await commit(rig, G, 7)
    await commit(rig, G, 8, topic="u")
    await rig.broker.submit(DeleteTopic("t"))
    await asyncio.sleep(1)
    kept = [(group, topic) for group, topic, _ in rig.broker.group_coordinators.iter_committed_offsets()]
    assert kept == [(G, "u")]
    await restart(rig)
    kept = [(group, topic) for group, topic, _ in rig.broker.group_coordinators.iter_committed_offsets()]
    assert kept == [(G, "u")]


def test_offset_that_was_shown_survives_a_power_cut_if_commits_are_fsynced() -> None:
    """The process was killed during the fsync of a commit. The next one fsyncs what it finds before it shows it. The
    power fails in the moment in which it does."""

    async def scenario(rig: SimBrokerRig) -> None:
        settings = replace(GROUP_SETTINGS, log_flush="ack")
        await rig.start(settings)
        await rig.create("t")
        assert await commit(rig, G, 5) is Code.NONE
        rig.machine.disk.sync_seconds = lambda: 0.2
        committing = asyncio.ensure_future(commit(rig, G, 8))
        await asyncio.sleep(0.1)
        await rig.crash(rig.machine.kill)
        await asyncio.gather(committing, return_exceptions=True)
        before, starting = rig.broker, asyncio.ensure_future(rig.start(settings))
        shown = -1
        while shown < 0:
            await asyncio.sleep(0.001)
            if rig.broker is not before:
                with suppress(Refused):
                    shown = await fetch_committed(rig, G)
        await rig.crash(rig.machine.power_cut)
        await asyncio.gather(starting, return_exceptions=True)
        await rig.start(settings)
        await wait_groups_loaded(rig)
        assert await fetch_committed(rig, G) == shown == 8
        await rig.stop()

    for seed in range(2):
        run(scenario, seed)
