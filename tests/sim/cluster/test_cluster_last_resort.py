"""Tests of rule R4 in the reference model: the last awaited replica returns and another one is elected in the same
step."""

from __future__ import annotations

import pytest

from tests.sim.cluster.test_model_of_copies import LIVE, LIVES, batch, make_three_copies
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.parts.topics import Loss, PartitionImage

AGAIN = {1: 2, 2: 2, 3: 2}
BUT_ONE = AGAIN | {1: 1}
"""Broker 1 has not returned yet, and no broker knows that it lost records."""


@pytest.mark.parametrize(("winner", "red"), [(1, []), (2, ["R4"]), (3, ["R4"])])
def test_last_replica_to_return_may_be_eligible_until_the_election(winner: int, red: list[str]) -> None:
    rig = make_three_copies(3)
    rig.damage(1, batch(0), batch(10))
    rig.damage(2, batch(0))
    rig.damage(3)
    rig.change_partition(NO_LEADER, 0, (), (1,), (2, 3), lives=BUT_ONE)
    elected = PartitionImage((1, 2, 3), winner, 1, (winner,), (), loss=Loss(1, 20, 0))
    rig.copies.on_partition_change(elected, LIVE, AGAIN, ())
    assert rig.broken_rules == red


@pytest.mark.parametrize(("torn", "red"), [(True, []), (False, ["R4"])])
def test_log_that_a_start_deletes_binds_no_election(torn: bool, red: list[str]) -> None:
    rig = make_three_copies(3)
    rig.copies.on_damage(1, 0, [batch(0), batch(10)], LIVES[1], is_provable=False, is_torn=torn)
    rig.damage(2, batch(0))
    rig.damage(3)
    rig.change_partition(NO_LEADER, 0, (), (), (1, 2, 3), lives=AGAIN)
    elected = PartitionImage((1, 2, 3), 2, 1, (2,), (), loss=Loss(1, 10, 0))
    rig.copies.on_partition_change(elected, LIVE, AGAIN, ())
    assert rig.broken_rules == red


@pytest.mark.parametrize(("isr", "red"), [((1,), []), ((1, 2), ["I5"])])
def test_log_that_was_never_durable_may_be_deleted_if_it_does_not_count(isr: tuple[int, ...], red: list[str]) -> None:
    """A power cut tore the file with the topic id, and left records by chance: no fsync had made both durable."""
    rig = make_three_copies(1)
    rig.change_partition(1, 0, isr)
    rig.copies.on_damage(2, 0, [batch(0)], LIVES[2], is_provable=True, is_torn=True)
    rig.copies.on_opened(2, 0, [])
    assert rig.broken_rules == red


def test_sole_leader_with_a_loss_report_was_not_elected_by_it() -> None:
    rig = make_three_copies(2)
    rig.damage(1, batch(0))
    rig.copies.on_partition_change(PartitionImage((1, 2, 3), 1, 0, (1, 2, 3), (), loss=Loss(0, 10, 0)), LIVE, LIVES, ())
    assert "R4" not in rig.broken_rules


@pytest.mark.parametrize(("unclean", "is_reported"), [(True, False), (False, True)])
def test_unclean_leader_may_be_hurt_again_before_its_election_is_seen(unclean: bool, is_reported: bool) -> None:
    rig = make_three_copies(2)
    rig.damage(2)
    rig.copies.on_damage(2, 0, (), 2, is_provable=False)
    rig.change_partition(2, 1, (2,), live=(2,), lives=LIVES | {2: 2}, loss=Loss(1, 0, 0), unclean=unclean)
    assert ("R4" in rig.broken_rules) == is_reported


@pytest.mark.parametrize(("has_opened", "red"), [(True, []), (False, ["R4"])])
def test_replica_that_showed_its_log_may_be_hurt_before_its_election(has_opened: bool, red: list[str]) -> None:
    rig = make_three_copies(3)
    rig.damage(1, batch(0))
    rig.damage(3)
    rig.damage(2, batch(0), batch(10))
    rig.change_partition(NO_LEADER, 0, (), (), (1, 2, 3), lives=AGAIN)
    if has_opened:
        rig.copies.on_opened(2, 0, [batch(0), batch(10)])
    rig.copies.on_damage(2, 0, (), AGAIN[2], is_provable=False)
    elected = PartitionImage((1, 2, 3), 2, 1, (2,), (), loss=Loss(1, 20, 0))
    rig.copies.on_partition_change(elected, LIVE, AGAIN, ())
    assert rig.broken_rules == red
