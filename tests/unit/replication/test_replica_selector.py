"""Which replica a consumer reads from."""

from __future__ import annotations

from tiered.replication.replica_selector import Place, nearest

LEADER = Place(1, "a", 0, 10)


def test_the_one_in_its_rack_that_has_it_and_is_furthest() -> None:
    others = [Place(2, "b", 0, 9), Place(3, "b", 0, 10), Place(4, "b", 0, 10), Place(5, "c", 0, 10)]
    assert nearest("b", 5, LEADER, others) == 3
    assert nearest("c", 10, LEADER, others) == 5
    assert nearest("b", 10, LEADER, others[:1]) is None, "not there yet"
    assert nearest("b", 4, LEADER, [Place(2, "b", 5, 10)]) is None, "dropped there"
    assert nearest("d", 5, LEADER, others) is None and nearest("", 5, LEADER, [Place(2, "", 0, 10)]) is None
    assert nearest("a", 5, LEADER, [Place(2, "a", 0, 99)]) is None, "the leader is as near"
