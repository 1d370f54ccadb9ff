"""Tests of the choice of the replica that a consumer reads from (KIP-392)."""

from __future__ import annotations

from tiered.replication.replica_selector import ReplicaView, select_replica

LEADER = ReplicaView(1, "a", 0, 10)


def test_replica_in_the_rack_with_the_highest_end_is_selected() -> None:
    others = [
        ReplicaView(2, "b", 0, 9),
        ReplicaView(3, "b", 0, 10),
        ReplicaView(4, "b", 0, 10),
        ReplicaView(5, "c", 0, 10),
    ]
    assert select_replica("b", 5, LEADER, others) == 3
    assert select_replica("c", 10, LEADER, others) == 5
    assert select_replica("b", 10, LEADER, others[:1]) is None, "not there yet"
    assert select_replica("b", 4, LEADER, [ReplicaView(2, "b", 5, 10)]) is None, "dropped there"
    assert (
        select_replica("d", 5, LEADER, others) is None
        and select_replica("", 5, LEADER, [ReplicaView(2, "", 0, 10)]) is None
    )
    assert select_replica("a", 5, LEADER, [ReplicaView(2, "a", 0, 99)]) is None, "the leader is as near"
