"""Offsets of consumer groups: the member epoch fences commits and fetches (I18), and offsets expire."""

from __future__ import annotations

import pytest

from tests.unit.groups.consumer.rig import T
from tests.unit.groups.rig import G, Rig
from tiered.errors import Code
from tiered.groups.limits import GroupSettings
from tiered.groups.requests import (
    NO_OFFSET,
    CommitOffsets,
    CommitOffsetsReply,
    DeleteOffsets,
    DeleteReply,
    FetchOffsets,
    FetchOffsetsReply,
    PartitionOffset,
)


@pytest.fixture
def rig() -> Rig:
    made = Rig(GroupSettings(retention_ms=100_000, retention_check_ms=50_000))
    made.set_topic("t", 1, T)
    made.consume("a")
    return made


def fetch(rig: Rig, member_id: str | None, epoch: int) -> Code:
    return rig.reply_to(FetchOffsets(G, (("t", 0),), member_id, epoch), FetchOffsetsReply).code


def test_only_members_with_their_epoch_commit(rig: Rig) -> None:
    assert rig.commit("a", 1, 5) is Code.NONE
    assert rig.commit("a", 0, 6) is Code.STALE_MEMBER_EPOCH
    assert rig.commit("a", 2, 6) is Code.STALE_MEMBER_EPOCH
    assert rig.commit("b", 1, 6) is Code.UNKNOWN_MEMBER_ID
    assert rig.commit("", -1, 6) is Code.UNKNOWN_MEMBER_ID
    assert rig.committed() == 5


@pytest.mark.parametrize(
    ("member_id", "epoch", "code"), [("a", 1, Code.UNSUPPORTED_VERSION), ("b", 1, Code.UNKNOWN_MEMBER_ID)]
)
def test_member_commits_only_with_requests_that_know_epochs(rig: Rig, member_id: str, epoch: int, code: Code) -> None:
    request = CommitOffsets(G, (PartitionOffset("t", 0, 5),), epoch, member_id, knows_epochs=False)
    assert rig.reply_to(request, CommitOffsetsReply).codes == (code,)
    assert rig.committed() == NO_OFFSET


def test_client_without_a_member_commits_in_an_empty_group(rig: Rig) -> None:
    rig.consume("a", -1)
    assert rig.commit("", -1, 6) is Code.NONE
    assert rig.commit("a", 1, 7) is Code.UNKNOWN_MEMBER_ID
    assert rig.committed() == 6


def test_commit_in_a_transaction_is_fenced_by_the_epoch(rig: Rig) -> None:
    assert rig.commit_in_transaction(1, 5, member_id="a", generation=0) is Code.ILLEGAL_GENERATION
    assert rig.commit_in_transaction(1, 5, member_id="b", generation=1) is Code.UNKNOWN_MEMBER_ID
    assert rig.commit_in_transaction(1, 5, member_id="a", generation=1) is Code.NONE
    rig.end_transaction(1)
    assert rig.commit_in_transaction(2, 6) is Code.NONE, "its producer names no member"
    rig.end_transaction(2)
    assert rig.committed() == 6


def test_only_members_with_their_epoch_fetch_as_members(rig: Rig) -> None:
    assert fetch(rig, None, -1) is Code.NONE
    assert fetch(rig, "a", 1) is Code.NONE
    assert fetch(rig, "a", 0) is Code.STALE_MEMBER_EPOCH
    assert fetch(rig, "b", 1) is Code.UNKNOWN_MEMBER_ID


def test_offsets_of_subscribed_topics_stay(rig: Rig) -> None:
    rig.commit("a", 1, 5)
    rig.commit("a", 1, 5, topic="u")
    reply = rig.reply_to(DeleteOffsets(G, (("t", 0), ("u", 0))), DeleteReply)
    assert reply.codes == (Code.GROUP_SUBSCRIBED_TO_TOPIC, Code.NONE)
    assert (rig.committed(), rig.committed("u")) == (5, NO_OFFSET)


def test_offsets_without_a_subscriber_expire(rig: Rig) -> None:
    rig.commit("a", 1, 5)
    rig.commit("a", 1, 5, topic="u")
    for _ in range(4):
        rig.pass_ms(30_000)
        rig.consume("a", 1)
    assert (rig.committed(), rig.committed("u")) == (5, NO_OFFSET)


def test_empty_group_goes_with_its_last_offset(rig: Rig) -> None:
    rig.commit("a", 1, 5)
    rig.consume("a", -1)
    rig.pass_ms(60_000)
    assert G in rig.shard.log_state.consumer_groups
    rig.pass_ms(100_000)
    assert rig.shard.log_state.consumer_groups == {}
    assert rig.committed() == NO_OFFSET
