"""The invariants report broken rules: each rule is broken once, on purpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.groups.rig import G, Rig
from tiered.groups.classic import ClassicGroup, ClassicGroupState, InitialRebalanceDelay
from tiered.groups.decision import JOIN, MEMBER, SYNC, ParkedRequest

Break = Callable[[Rig, ClassicGroup], object]


def stable() -> Rig:
    rig = Rig()
    rig.stable(2)
    return rig


def completing() -> Rig:
    rig = Rig()
    rig.join(rig.new_id())
    rig.pass_ms(500)
    return rig


def preparing() -> Rig:
    rig = stable()
    rig.join("c-id1")
    return rig


def _forget_group(rig: Rig, _: ClassicGroup) -> None:
    del rig.shard.state.groups[G]


def _answer_twice(rig: Rig, group: ClassicGroup) -> None:
    group.members["c-id1"].join_token = group.members["c-id2"].join_token = 7
    group.awaiting_join_count = 2


def _wait_for_nothing(rig: Rig, group: ClassicGroup) -> None:
    rig.shard.state.parked_requests[99] = ParkedRequest(G, group.members["c-id1"])


def _cancel(*name: str) -> Break:
    def do(rig: Rig, _: ClassicGroup) -> None:
        kind, group, member = name
        rig.shard.state.deadlines.cancel((kind, group, member))

    return do


def _set(*name: str) -> Break:
    def do(rig: Rig, _: ClassicGroup) -> None:
        kind, group, member = name
        rig.shard.state.deadlines.set((kind, group, member), 1)

    return do


BREAKS: list[tuple[Callable[[], Rig], Break, str]] = [
    (stable, _forget_group, "the shard lacks"),
    (stable, _forget_group, "no group"),
    (stable, _set(MEMBER, G, "x"), "session deadline names x"),
    (preparing, _answer_twice, "or to two"),
    (stable, _wait_for_nothing, "belong to no member"),
    (stable, lambda _, group: setattr(group.members["c-id1"], "member_id", "x"), "another id"),
    (stable, lambda _, group: group.static_members.update(i="c-id1"), "static members"),
    (stable, lambda _, group: group.pending_members.add("c-id1"), "is a member already"),
    (stable, lambda _, group: group.pending_sync_members.add("x"), "pending SyncGroup is of no member"),
    (stable, lambda _, group: setattr(group, "awaiting_join_count", 1), "1 members are counted"),
    (stable, lambda _, group: setattr(group, "leader", None), "leader None"),
    (stable, lambda _, group: setattr(group, "leader", "x"), "leader 'x'"),
    (stable, lambda _, group: setattr(group, "state", ClassicGroupState.EMPTY), "2 members do not fit"),
    (stable, lambda _, group: setattr(group, "state", ClassicGroupState.DEAD), "2 members do not fit"),
    (stable, lambda _, group: setattr(group, "initial_delay", InitialRebalanceDelay(1, 1)), "not in progress"),
    (stable, lambda _, group: setattr(group.members["c-id1"], "sync_token", 5), "outside of CompletingRebalance"),
    (completing, lambda _, group: group.pending_sync_members.clear(), "did not become stable"),
    (stable, lambda _, group: setattr(group, "protocol", "x"), "not all support"),
    (stable, lambda _, group: setattr(group.members["c-id1"], "assignment", b"x"), "the replies to members"),
    (stable, lambda rig, _: rig.shard.log_state.groups.clear(), "the replies to members"),
    (preparing, _cancel(JOIN, G, ""), "without a deadline"),
    (stable, _set(JOIN, G, ""), "without a rebalance"),
    (completing, _cancel(SYNC, G, ""), "pending SyncGroups without a deadline"),
    (stable, _set(SYNC, G, ""), "without pending SyncGroups"),
    (stable, _cancel(MEMBER, G, "c-id1"), "member c-id1 has no session deadline"),
    (stable, lambda _, group: group.pending_members.add("x"), "unused id x has no deadline"),
]


@pytest.mark.parametrize(("world", "damage", "words"), BREAKS)
def test_each_broken_rule_is_named(world: Callable[[], Rig], damage: Break, words: str) -> None:
    rig = world()
    assert rig.shard.find_violations() == ()
    damage(rig, rig.shard.state.groups[G])
    assert any(words in line for line in rig.shard.find_violations()), rig.shard.find_violations()
