"""Tests of replica placement for new partitions."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.refusal import refuses
from tiered.controller.placement import check_assignments, place_replicas
from tiered.errors import Code, Refused


def test_replica_j_of_partition_k_is_on_broker_start_plus_j_plus_k() -> None:
    assert place_replicas({1: "", 2: "", 3: ""}, 4, 2, start=1) == [(2, 3), (3, 1), (1, 2), (2, 3)]


def test_placement_of_added_partitions_continues() -> None:
    racks = {1: "", 2: "", 3: ""}
    assert place_replicas(racks, 2, 2, start=1) + place_replicas(
        racks, 2, 2, start=1, first_partition=2
    ) == place_replicas(racks, 4, 2, start=1)


def test_each_partition_is_on_as_many_racks_as_there_are() -> None:
    racks = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "c"}
    for copies in (2, 3):
        for replicas in place_replicas(racks, 12, copies):
            assert len({racks[broker] for broker in replicas}) == copies
    for replicas in place_replicas(racks, 12, 5):
        assert len(set(replicas)) == 5


@pytest.mark.parametrize("copies", [0, 2, -1])
def test_partition_has_at_most_one_replica_per_broker(copies: int) -> None:
    with refuses(Code.INVALID_REPLICATION_FACTOR):
        place_replicas({1: ""}, 1, copies)


def test_full_disk_gets_a_replica_only_where_no_other_broker_is_left() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: ""}
    assert place_replicas(racks, 3, 2, full={3}) == place_replicas({1: "a", 2: "a", 4: ""}, 3, 2)
    for replicas in place_replicas(racks, 8, 3, full={1, 3}):
        assert set(replicas[:2]) == {2, 4} and replicas[2] in (1, 3)
    for replicas in place_replicas(racks, 8, 1, full={1, 2, 3}):
        assert replicas == (4,)
    assert place_replicas(racks, 8, 2, full=set(racks)) == place_replicas(racks, 8, 2)


def test_placement_with_only_cordoned_brokers_is_refused() -> None:
    with pytest.raises(Refused, match="all are cordoned"):
        place_replicas({}, 1, 1)


@pytest.mark.parametrize("assignments", [[[]], [[1, 1]], [[1, 2], [1]], [[9]]])
def test_manual_assignment_is_checked(assignments: list[list[int]]) -> None:
    with refuses(Code.INVALID_REPLICA_ASSIGNMENT):
        check_assignments(assignments, [1, 2])


TWO_EACH = {1001: 1, 1002: 2, 1003: 3}
"""Three machines with two processes each: 1 and 1001, 2 and 1002, 3 and 1003."""


def test_partition_has_at_most_one_replica_on_a_machine() -> None:
    racks = dict.fromkeys((1, 1001, 2, 1002, 3, 1003), "")
    placed = place_replicas(racks, 12, 3, machines=TWO_EACH)
    assert {len({TWO_EACH.get(node, node) for node in replicas}) for replicas in placed} == {3}
    assert Counter(node for replicas in placed for node in replicas) == dict.fromkeys(racks, 6)
    assert Counter(replicas[0] for replicas in placed) == dict.fromkeys(racks, 2)


def test_replicas_are_on_other_racks_before_other_machines_of_a_rack() -> None:
    racks = {1: "a", 1001: "a", 2: "a", 1002: "a", 3: "b", 1003: "b"}
    for replicas in place_replicas(racks, 6, 2, machines=TWO_EACH):
        assert {racks[node] for node in replicas} == {"a", "b"}


def test_more_replicas_than_machines_are_refused() -> None:
    racks = dict.fromkeys((1, 1001, 2, 1002), "")
    with pytest.raises(Refused, match=r"3 is not in 1\.\.2, the number of machines"):
        place_replicas(racks, 1, 3, machines=TWO_EACH)


def test_full_process_leaves_its_machine_to_the_other() -> None:
    racks = dict.fromkeys((1, 1001, 2, 1002), "")
    for replicas in place_replicas(racks, 4, 2, full={1}, machines=TWO_EACH):
        assert 1 not in replicas and len({TWO_EACH.get(node, node) for node in replicas}) == 2
    for replicas in place_replicas(racks, 4, 2, full={1, 1001}, machines=TWO_EACH):
        assert {TWO_EACH.get(node, node) for node in replicas} == {1, 2}, "room on one machine is too little"


def test_manual_assignment_to_two_processes_of_a_machine_is_refused() -> None:
    check_assignments([[1, 2], [1001, 2]], [1, 1001, 2], TWO_EACH)
    with pytest.raises(Refused, match="partition 1: brokers 2 and 1002 are processes of one machine"):
        check_assignments([[1, 2], [2, 1002]], [1, 2, 1002], TWO_EACH)
