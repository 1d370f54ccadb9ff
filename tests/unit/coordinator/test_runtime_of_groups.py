"""Tests of the coordinator runtime: it shows only committed state.

Decisions, and changes that it loads from its log, wait for the in-sync replicas: a failover may undo anything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.unit.replication.rig import INCARNATIONS, TOPIC_ID, TP, ReplicationRig
from tiered.config.settings import TopicConfig
from tiered.coordination.group_coordinators import GroupObserver
from tiered.coordination.snapshot_stores import make_group_snapshot_store
from tiered.coordinator.loader import load_shard
from tiered.coordinator.log_records import BATCH_RECORDS
from tiered.coordinator.runtime import COMMIT_MS, CoordinatorRuntime
from tiered.coordinator.snapshot_store import PreviousSnapshot
from tiered.errors import Code, Refused
from tiered.groups.limits import GroupSettings
from tiered.groups.requests import (
    CommitOffsets,
    FetchOffsets,
    FetchOffsetsReply,
    JoinGroup,
    PartitionOffset,
    Reply,
    Request,
)
from tiered.groups.shard import GroupShard
from tiered.peers import PartitionFetch
from tiered.replication.leader_replica import LeaderReplica
from tiered.system import turns

FOLLOWER = 2
FETCH = FetchOffsets("g", (("t", 0),))
JOIN = JoinGroup(
    "h", "", None, "c", "/127.0.0.1", 30_000, 30_000, "consumer", (("range", b""),), member_id_required=False
)
NOTHING = PreviousSnapshot(None, None, ())


def commits(offset: int) -> CommitOffsets:
    return CommitOffsets("g", (PartitionOffset("t", 0, offset),))


def shard() -> GroupShard:
    return GroupShard(GroupSettings(initial_rebalance_delay_ms=0), lambda: "id")


@dataclass
class Desk:
    """A coordinator of groups over a log that broker 1 leads and broker 2 follows, both in sync."""

    rig: ReplicationRig
    replica: LeaderReplica
    coordinator: CoordinatorRuntime[GroupShard, Request, Reply]
    failed: list[Refused]

    def copied(self) -> None:
        """Fetches as the follower at the leader's log end: the follower has all records."""
        asked = PartitionFetch(TOPIC_ID, TP.partition, self.replica.leader_epoch, self.replica.log.end_offset, 0, 0, 0)
        self.replica.handle_follower_fetch(FOLLOWER, INCARNATIONS[FOLLOWER], asked, 0)

    def ask(self, request: Any) -> asyncio.Future[Reply]:
        """Returns the reply, or a future for it."""
        _, reply = self.coordinator.submit(request)
        if isinstance(reply, asyncio.Future):
            reply.add_done_callback(lambda each: each.exception())  # not every caller waits for it
            return reply
        done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        done.set_result(reply)
        return done


def run_at_desk(scenario: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20))

    async def run() -> None:
        replica = await rig.brokers[1].lead(0, [1, FOLLOWER])
        failed: list[Refused] = []
        tasks: list[asyncio.Task[None]] = []
        coordinator = CoordinatorRuntime[GroupShard, Request, Reply](
            replica, shard(), rig.clock, GroupObserver(), lambda mono_ms, wall_ms: wall_ms,
            spawn=lambda work: tasks.append(asyncio.get_running_loop().create_task(work)),
            on_deadline_advanced=lambda _: None, on_failed=failed.append,
        )  # fmt: skip
        await scenario(Desk(rig, replica, coordinator, failed))
        for task in tasks:
            task.cancel()

    rig.run(run)


def offset_in(reply: Reply) -> int:
    assert isinstance(reply, FetchOffsetsReply)
    return reply.offsets[0].offset


@run_by(run_at_desk)
async def test_commit_is_acknowledged_once_the_isr_has_it(desk: Desk) -> None:
    answer = desk.ask(commits(5))
    await asyncio.sleep(1)
    assert desk.replica.log.end_offset == 1 and not answer.done()
    desk.copied()
    await asyncio.sleep(0.1)
    assert answer.done()


@run_by(run_at_desk)
async def test_fetch_in_the_turn_of_a_commit_waits_for_it(desk: Desk) -> None:
    committing, fetching = desk.ask(commits(5)), desk.ask(FETCH)
    assert not fetching.done()
    await asyncio.sleep(1)
    assert not committing.done() and not fetching.done()
    desk.copied()
    assert offset_in(await fetching) == 5 and committing.done()


@run_by(run_at_desk)
async def test_fetch_returns_no_commit_that_a_failover_may_undo(desk: Desk) -> None:
    desk.ask(commits(5))
    await asyncio.sleep(0.1)
    desk.copied()
    await asyncio.sleep(0.1)
    assert offset_in(await desk.ask(FETCH)) == 5
    desk.ask(commits(6))
    await asyncio.sleep(0.1)
    fetching = desk.ask(FETCH)
    await asyncio.sleep(1)
    assert not fetching.done(), "6 is in the log of this broker only"
    desk.replica.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "another broker leads"))
    with pytest.raises(Refused) as refused:
        await fetching
    assert refused.value.code is Code.NOT_COORDINATOR and len(desk.failed) == 1


@run_by(run_at_desk)
async def test_replies_leave_in_the_order_of_the_log(desk: Desk) -> None:
    order: list[int] = []

    def note(number: int, _: asyncio.Future[Reply]) -> None:
        order.append(number)

    for number in range(4):
        desk.ask(commits(number)).add_done_callback(partial(note, number))
        await asyncio.sleep(0.01)
    assert order == []
    desk.copied()
    await asyncio.sleep(0.1)
    assert order == [0, 1, 2, 3]


def test_generation_is_logged_with_its_group_if_a_caller_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(desk: Desk) -> None:
        desk.ask(commits(5))
        joining, _ = desk.coordinator.submit(JOIN)
        await asyncio.sleep(0.1)
        desk.coordinator.run_due()
        desk.coordinator.cancel_request(joining)
        desk.copied()
        await asyncio.sleep(0.1)

    with caplog.at_level(logging.INFO):
        run_at_desk(scenario)
    (line,) = [each.message for each in caplog.records if "starts a generation" in each.message]
    assert line == "group starts a generation group=h generation=1 members=1 assignor=range"


@run_by(run_at_desk)
async def test_coordinator_ends_when_its_changes_are_not_committed(desk: Desk) -> None:
    waiting = [desk.ask(commits(5)), desk.ask(FETCH)]
    await asyncio.sleep(COMMIT_MS / 1000 + 0.1)
    assert [type(each.exception()) for each in waiting] == [Refused, Refused] and len(desk.failed) == 1
    with pytest.raises(Refused):
        desk.ask(FETCH)


@run_by(run_at_desk)
async def test_snapshot_has_committed_state_only(desk: Desk) -> None:
    desk.ask(commits(5))
    taking = asyncio.ensure_future(desk.coordinator.snapshot())
    await asyncio.sleep(1)
    assert not taking.done()
    desk.copied()
    offset, records = await taking
    assert offset == 1 and len(records) == 1


def test_decision_during_a_snapshot_stays_in_the_log_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot may have passed that group already: the log from its offset on holds the decision again."""
    monkeypatch.setattr(turns, "PIECE_SECONDS", 0.0)

    async def scenario(desk: Desk) -> None:
        many = tuple(PartitionOffset("t", number, 1) for number in range(5))
        for group in ("a", "b"):
            desk.ask(CommitOffsets(group, many))
        await asyncio.sleep(0.1)
        desk.copied()
        end = desk.replica.log.end_offset
        taking = asyncio.ensure_future(desk.coordinator.snapshot())
        await asyncio.sleep(0)
        desk.ask(CommitOffsets("a", (PartitionOffset("t", 0, 2),)))
        await asyncio.sleep(0.1)
        desk.copied()
        offset, records = await taking
        assert offset == end < desk.replica.log.end_offset and len(records) == 2 * len(many)

    run_at_desk(scenario)


@run_by(run_at_desk)
async def test_decisions_of_one_turn_may_take_several_batches(desk: Desk) -> None:
    answer = desk.ask(
        CommitOffsets("g", tuple(PartitionOffset("t", number, 1) for number in range(2 * BATCH_RECORDS + 1)))
    )
    await asyncio.sleep(0.1)
    assert desk.replica.log.end_offset == 2 * BATCH_RECORDS + 1
    asked = PartitionFetch(TOPIC_ID, TP.partition, 0, BATCH_RECORDS, 0, 0, 0)
    desk.replica.handle_follower_fetch(FOLLOWER, INCARNATIONS[FOLLOWER], asked, 0)
    await asyncio.sleep(0.1)
    assert not answer.done(), "the first batch alone is committed"
    desk.copied()
    await answer


@run_by(run_at_desk)
async def test_change_of_this_turn_is_below_the_offset_of_a_snapshot(desk: Desk) -> None:
    desk.ask(commits(5))
    assert desk.coordinator.flush() == 1, "what was decided is in the log by then"


@run_by(run_at_desk)
async def test_new_coordinator_waits_until_its_log_is_committed(desk: Desk) -> None:
    desk.ask(commits(5))
    await asyncio.sleep(0.1)
    store = make_group_snapshot_store(desk.rig.brokers[1].store, desk.rig.clock, desk.rig.brokers[1].metrics)
    fresh = shard()
    loading = asyncio.ensure_future(load_shard(desk.replica, fresh, store, lambda: NOTHING, desk.rig.clock))
    await asyncio.sleep(1)
    assert not loading.done() and not fresh.log_state.offsets
    desk.copied()
    await loading
    kept = fresh.log_state.committed_offset("g", "t", 0)
    assert kept is not None and kept.offset == 5


@run_by(run_at_desk)
async def test_log_whose_end_too_few_replicas_have_is_not_served(desk: Desk) -> None:
    desk.ask(commits(5))
    await asyncio.sleep(0.1)
    store = make_group_snapshot_store(desk.rig.brokers[1].store, desk.rig.clock, desk.rig.brokers[1].metrics)
    with refuses(Code.REQUEST_TIMED_OUT):
        await load_shard(desk.replica, shard(), store, lambda: NOTHING, desk.rig.clock)
