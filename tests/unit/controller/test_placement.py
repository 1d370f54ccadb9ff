"""Tests of replica placement for new partitions."""

from __future__ import annotations

import pytest

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
    with pytest.raises(Refused) as refused:
        place_replicas({1: ""}, 1, copies)
    assert refused.value.code is Code.INVALID_REPLICATION_FACTOR


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
    with pytest.raises(Refused) as refused:
        check_assignments(assignments, [1, 2])
    assert refused.value.code is Code.INVALID_REPLICA_ASSIGNMENT
