"""Plans that drain a broker or balance all brokers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.controller.reassignment_planner import Assignments, PartitionName, plan_balance, plan_drain
from tiered.errors import Code, Refused

FLAT = {1: "", 2: "", 3: "", 4: ""}


def placed(*replicas: tuple[int, ...]) -> dict[PartitionName, tuple[int, ...]]:
    return {PartitionName("t", p): each for p, each in enumerate(replicas)}


def loads(of: Assignments) -> Counter[int]:
    return Counter(node for each in of.values() for node in each)


def test_drain_moves_only_its_replicas_to_the_least_loaded_brokers() -> None:
    before = placed((1, 2), (2, 3), (4, 1), (2, 4))
    assert plan_drain(before, FLAT, 1) == {PartitionName("t", 0): (3, 2), PartitionName("t", 2): (4, 3)}
    assert plan_drain(before, FLAT, 9) == {}


def test_drain_chooses_an_unused_rack_if_there_is_one() -> None:
    racks = {1: "a", 2: "b", 3: "b", 4: "c"}
    assert plan_drain(placed((1, 2), (4,), (4,), (4,)), racks, 1) == {PartitionName("t", 0): (4, 2)}


def test_drain_spreads_replicas_over_all_other_brokers() -> None:
    assert sorted(plan_drain(placed((1,), (1,), (1,)), FLAT, 1).values()) == [(2,), (3,), (4,)]
    assert sorted(plan_drain(placed((4, 1), (4, 1)), FLAT, 1).values()) == [(4, 2), (4, 3)]


def test_drain_works_for_a_broker_that_is_gone() -> None:
    assert plan_drain(placed((9, 1)), FLAT, 9) == {PartitionName("t", 0): (2, 1)}


def refusal(before: Assignments, racks: dict[int, str], leaderless: tuple[PartitionName, ...] = ()) -> Refused:
    with pytest.raises(Refused) as caught:
        plan_drain(before, racks, 1, leaderless)
    return caught.value


def test_drain_is_refused_with_too_few_brokers_or_without_leader() -> None:
    short = refusal(placed((1, 2), (1, 2)), {1: "", 2: ""})
    assert short.code is Code.INVALID_REPLICATION_FACTOR and "t/0 (and 1 more)" in short.why
    last = refusal(placed((1,), (2,)), FLAT, (PartitionName("t", 0), PartitionName("t", 1)))
    assert last.code is Code.ELIGIBLE_LEADERS_NOT_AVAILABLE and last.why.startswith("t/0 has no leader")
    assert plan_drain(placed((1,), (2,)), FLAT, 1, (PartitionName("t", 1),)) == {PartitionName("t", 0): (3,)}


def test_drain_chooses_a_full_disk_only_if_no_other_is_left() -> None:
    racks = {1: "a", 2: "b", 3: "a"}
    assignments = {PartitionName("t", 0): (1,), PartitionName("t", 1): (1, 3)}
    assert plan_drain(assignments, racks, 1, full={2}) == {
        PartitionName("t", 0): (3,),
        PartitionName("t", 1): (2, 3),
    }


def test_balance_gives_a_full_disk_nothing_and_takes_from_it() -> None:
    racks = {1: "", 2: "", 3: ""}
    assignments = {PartitionName("t", p): (1,) for p in range(6)}
    moves = plan_balance(assignments, racks, {2})
    assert len(moves) == 3 and set(moves.values()) == {(3,)}
    assert {node for (node,) in plan_balance(assignments, racks, {1}).values()} == {2, 3}
    led = {PartitionName("t", p): (1, 2, 3) for p in range(4)}
    assert {replicas[0] for replicas in plan_balance(led, racks, {2}).values()} == {3}


def test_new_broker_gets_its_share_and_nothing_else_moves() -> None:
    before = placed(*[(1, 2), (2, 3), (3, 1)] * 4)
    moves = plan_balance(before, FLAT)
    after = before | moves
    assert loads(after) == {1: 6, 2: 6, 3: 6, 4: 6}
    moved = sum(len(set(after[tp]) - set(before[tp])) for tp in before)
    assert moved == 6
    assert set(Counter(each[0] for each in after.values()).values()) == {3}


def test_balanced_cluster_has_an_empty_plan() -> None:
    assert plan_balance(placed((1, 2), (2, 3), (3, 4), (4, 1)), FLAT) == {}


def test_leaders_are_spread_without_moving_anything() -> None:
    moves = plan_balance(placed(*[(1, 2)] * 4), {1: "", 2: ""})
    assert moves == {PartitionName("t", 0): (2, 1), PartitionName("t", 1): (2, 1)}


def test_partition_with_a_replica_on_an_unknown_broker_stays() -> None:
    assert plan_balance(placed((1, 9), (1, 9), (1, 9)), {1: "", 2: ""}) == {}


NODES = st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True).map(tuple)


@given(st.lists(NODES, max_size=20), st.lists(st.sampled_from(["", "a", "b"]), min_size=6, max_size=6))
def test_plans_keep_the_number_of_replicas_and_of_racks(replicas: list[tuple[int, ...]], names: list[str]) -> None:
    racks = dict(enumerate(names, 1))
    before = placed(*replicas)
    for moves in (plan_balance(before, racks), plan_drain(before, racks, 1)):
        for tp, after in moves.items():
            assert len(set(after)) == len(after) == len(before[tp])
            assert set(after) <= racks.keys()
    even = before | plan_balance(before, racks)
    for tp in before:
        assert len({racks[node] for node in even[tp]}) >= len({racks[node] for node in before[tp]})
    gone = before | plan_drain(before, racks, 1)
    assert not loads(gone)[1]
    assert all(set(before[tp]) - {1} == set(gone[tp]) & set(before[tp]) for tp in before)
    if len(set(names)) == 1:
        held = [loads(even)[node] for node in racks]
        assert max(held) - min(held) < 2


PROCESSES = {1001: 1, 1002: 2, 1003: 3}


def test_drain_moves_no_replica_to_another_process_of_a_machine() -> None:
    racks = dict.fromkeys((1, 1001, 2, 1002, 3), "")
    assert plan_drain(placed((1, 2)), racks, 1, machines=PROCESSES) == {PartitionName("t", 0): (3, 2)}
    with pytest.raises(Refused, match="too few brokers"):
        plan_drain(placed((1, 2), (2, 3)), dict.fromkeys((1, 1001, 2, 1002), ""), 1, machines=PROCESSES)


@given(st.lists(st.permutations((1, 1001, 2, 1002, 3, 1003)), max_size=12))
def test_balance_moves_no_replica_within_a_machine(orders: list[list[int]]) -> None:
    racks = dict.fromkeys((1, 1001, 2, 1002, 3, 1003), "")
    before = placed(*[place_on_two_machines(order) for order in orders])
    for tp, after in plan_balance(before, racks, machines=PROCESSES).items():
        machines = [PROCESSES.get(node, node) for node in {*before[tp], *after}]
        assert len(set(machines)) == len(machines), (before[tp], after)


def place_on_two_machines(order: list[int]) -> tuple[int, ...]:
    """Returns the first brokers of two machines."""
    first_of: dict[int, int] = {}
    for node in order:
        first_of.setdefault(PROCESSES.get(node, node), node)
    return tuple(first_of.values())[:2]
