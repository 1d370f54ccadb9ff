"""Expiry of offsets and groups: one retention time after their last use, and not a check earlier."""

from __future__ import annotations

import pytest

from tests.unit.groups.rig import G, Rig
from tiered.errors import Code
from tiered.groups.limits import GroupSettings
from tiered.groups.records import GroupValue, OffsetValue, group_record, offset_record
from tiered.groups.requests import NO_OFFSET, CommitOffsets, PartitionOffset

CHECK, RETENTION = 1_000, 100_000
SETTINGS = GroupSettings(retention_ms=RETENTION, retention_check_ms=CHECK)


@pytest.fixture
def rig() -> Rig:
    return Rig(SETTINGS)


def live_on(rig: Rig, ms: int, member: str, generation: int) -> None:
    """Time passes and the member beats."""
    for _ in range(ms // 5_000):
        rig.pass_ms(5_000)
        assert rig.beat(member, generation) is Code.NONE


def test_offset_of_a_simple_group_expires_after_its_last_commit(rig: Rig) -> None:
    rig.commit(topic="t")
    rig.commit(topic="u")
    rig.pass_ms(50_000)
    rig.commit(topic="u")
    rig.pass_ms(49_000)
    assert rig.committed("t") == 1
    rig.pass_ms(1_000)
    assert (rig.committed("t"), rig.committed("u")) == (NO_OFFSET, 1)
    rig.pass_ms(50_000)
    assert rig.describe().state == "Dead"
    assert not rig.snapshot()


def test_offsets_of_an_empty_group_expire_from_its_becoming_empty(rig: Rig) -> None:
    ids, generation = rig.stable()
    rig.commit(ids[0], generation)
    live_on(rig, 2 * RETENTION, ids[0], generation)
    assert rig.committed() == 1
    rig.leave(*ids)
    rig.pass_ms(RETENTION - CHECK)
    assert rig.committed() == 1
    rig.pass_ms(2 * CHECK)
    assert (rig.committed(), rig.describe().state) == (NO_OFFSET, "Dead")


def test_time_of_becoming_empty_survives_a_move(rig: Rig) -> None:
    ids, generation = rig.stable()
    rig.commit(ids[0], generation)
    rig.leave(*ids)
    rig.pass_ms(RETENTION // 2)
    rig.reload()
    rig.pass_ms(RETENTION // 2 + 2 * CHECK)
    assert rig.describe().state == "Dead"


def test_stable_group_loses_offsets_of_unsubscribed_topics(rig: Rig) -> None:
    ids, generation = rig.stable()
    rig.commit(ids[0], generation, topic="t")
    rig.commit(ids[0], generation, topic="u")
    live_on(rig, RETENTION + 5_000, ids[0], generation)
    assert (rig.committed("t"), rig.committed("u")) == (1, NO_OFFSET)


def test_nothing_expires_during_a_rebalance(rig: Rig) -> None:
    ids, generation = rig.stable(2)
    rig.commit(ids[0], generation, topic="u")
    rig.join(ids[0], rebalance_ms=2 * RETENTION)
    for _ in range(RETENTION // 5_000 + 2):
        rig.pass_ms(5_000)
        assert rig.beat(ids[1], generation) is Code.REBALANCE_IN_PROGRESS
    assert rig.committed("u") == 1


def test_nothing_expires_if_the_subscription_is_unknown(rig: Rig) -> None:
    token = rig.join(rig.new_id(), protocols=(("range", b"\xff"),))
    rig.pass_ms(500)
    assert token in rig.replies
    rig.assign("c-id1", 1, {})
    rig.commit("c-id1", 1, topic="u")
    live_on(rig, RETENTION + 5_000, "c-id1", 1)
    assert rig.committed("u") == 1


def test_offset_with_its_own_expiry_time_expires_then(rig: Rig) -> None:
    rig.ask(CommitOffsets(G, (PartitionOffset("t", 0, 1),), retention_ms=3 * RETENTION))
    rig.ask(CommitOffsets(G, (PartitionOffset("u", 0, 1),), retention_ms=5_000))
    rig.pass_ms(6_000)
    assert (rig.committed("t"), rig.committed("u")) == (1, NO_OFFSET)
    rig.pass_ms(2 * RETENTION)
    assert rig.committed("t") == 1
    rig.pass_ms(RETENTION)
    assert rig.describe().state == "Dead"


def test_empty_group_without_offsets_expires_at_the_next_check(rig: Rig) -> None:
    ids, _ = rig.stable()
    rig.leave(*ids)
    assert rig.describe().state == "Empty"
    rig.pass_ms(CHECK)
    assert rig.describe().state == "Dead"
    assert not rig.snapshot()


def test_group_with_an_issued_member_id_stays(rig: Rig) -> None:
    rig.commit()
    rig.pass_ms(RETENTION - CHECK)
    member = rig.new_id()
    rig.pass_ms(2 * CHECK)
    assert rig.committed() == NO_OFFSET
    assert rig.join(member) not in rig.replies


def test_old_record_without_a_time_counts_from_the_last_commit(rig: Rig) -> None:
    rig.log = [
        group_record(G, GroupValue("consumer", 3, None, None, -1)),
        offset_record(G, "t", 0, OffsetValue(1, -1, "", rig.now.wall_ms)),
    ]
    rig.reload()
    rig.pass_ms(RETENTION - CHECK)
    assert rig.committed() == 1
    rig.pass_ms(CHECK)
    assert rig.committed() == NO_OFFSET


def test_many_offsets_are_checked_in_several_turns(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.groups.shard.EXPIRY_SLICE_OFFSETS", 10)
    for n in range(35):
        rig.commit(group=f"g{n}")
    rig.pass_ms(RETENTION)
    turns, before = 0, len(rig.log)
    while rig.shard.state.groups:
        turns += 1
        rig.pass_ms(1)
        assert len(rig.log) - before <= 25
        before = len(rig.log)
    assert turns >= 3


def test_clock_that_is_known_to_be_fast_expires_nothing_early(rig: Rig) -> None:
    rig.commit()
    rig.fast_ms = 5 * RETENTION
    rig.pass_ms(2 * RETENTION)
    rig.fast_ms += 2 * RETENTION
    rig.pass_ms(RETENTION)
    assert rig.committed() == 1
    rig.fast_ms = 0
    rig.pass_ms(CHECK)
    assert rig.committed() == NO_OFFSET
