"""Subscriptions to regular expressions: their topics are resolved, kept in the log, and refreshed."""

from __future__ import annotations

import pytest

from tests.unit.groups.consumer.rig import T, U, V, partitions
from tests.unit.groups.rig import G, Rig
from tiered.errors import Code
from tiered.groups.consumer.group import ConsumerGroup
from tiered.groups.limits import GroupSettings
from tiered.groups.requests import ConsumerHeartbeat, ConsumerHeartbeatReply, DeleteOffsets, DeleteReply

REFRESH_MS = 20_000


@pytest.fixture
def rig() -> Rig:
    made = Rig(GroupSettings(regex_refresh_ms=REFRESH_MS))
    made.set_topic("t1", 2, T)
    made.set_topic("u", 1, U)
    return made


def group_of(rig: Rig) -> ConsumerGroup:
    return rig.shard.log_state.consumer_groups[G]


def test_member_gets_the_topics_that_its_expression_matches(rig: Rig) -> None:
    reply = rig.consume("a", regex="t.*")
    assert (reply.code, reply.assignment) == (Code.NONE, partitions(t={0, 1}))
    assert rig.consume("b", regex="t.*", topics=("u",)).assignment == partitions(u={0})
    assert rig.resolved == ["t.*"], "once for both members"


def test_expression_matches_only_topics_that_the_caller_may_describe(rig: Rig) -> None:
    request = ConsumerHeartbeat(
        G, "a", 0, rebalance_timeout_ms=1, regex=".*", owned={}, may_describe=lambda topic: topic != "u"
    )
    assert rig.reply_to(request, ConsumerHeartbeatReply).assignment == partitions(t={0, 1})


def test_new_topics_are_found_after_the_refresh_interval(rig: Rig) -> None:
    rig.consume("a", regex="t.*")
    rig.set_topic("t2", 1, V)
    rig.pass_ms(REFRESH_MS - 1)
    assert rig.consume("a", 1).assignment is None
    rig.pass_ms(1)
    assert rig.consume("a", 1).assignment == partitions(t={0, 1}, v={0})
    rig.pass_ms(REFRESH_MS)
    rig.consume("a", 2)
    assert rig.resolved == ["t.*"] * 2, "the metadata is the same"


def test_coordinator_that_moved_knows_the_resolved_topics(rig: Rig) -> None:
    rig.consume("a", regex="t.*")
    for through_image in (False, True):
        rig.reload(through_image=through_image)
        assert rig.consume("a", 1).code is Code.NONE
    assert (rig.resolved, group_of(rig).subscribed_topics()) == (["t.*"], {"t1"})


def test_changed_expression_moves_the_member(rig: Rig) -> None:
    rig.consume("a", regex="t.*")
    told = rig.consume("a", 1, regex="u", owned=partitions(t={0, 1}))
    assert (told.member_epoch, told.assignment) == (1, {})
    assert rig.consume("a", 1, owned={}).assignment == partitions(u={0})
    assert group_of(rig).regexes.keys() == {"u"}
    rig.consume("a", 2, regex="", topics=("t1",), owned={})
    assert group_of(rig).regexes == {}


def test_expression_goes_with_its_last_member(rig: Rig) -> None:
    rig.consume("a", regex="t.*")
    rig.consume("b", regex="t.*")
    rig.consume("a", -1)
    assert group_of(rig).regexes.keys() == {"t.*"}
    rig.consume("b", -1)
    assert group_of(rig).regexes == {}


def test_offsets_of_matched_topics_stay(rig: Rig) -> None:
    rig.consume("a", regex="t.*")
    reply = rig.reply_to(DeleteOffsets(G, (("t1", 0), ("u", 0))), DeleteReply)
    assert reply.codes == (Code.GROUP_SUBSCRIBED_TO_TOPIC, Code.NONE)


def test_bad_expression_of_a_member_changes_nothing(rig: Rig) -> None:
    rig.consume("a", regex="t.*")
    written = len(rig.log)
    assert rig.consume("a", 1, regex="(").code is Code.INVALID_REGULAR_EXPRESSION
    assert (len(rig.log), group_of(rig).members["a"].metadata.regex) == (written, "t.*")


def test_broker_without_an_engine_says_so_in_words(rig: Rig) -> None:
    rig.shard.state.match_topics = None
    reply = rig.consume("a", regex="t.*")
    assert (reply.code, "no engine" in (reply.message or "")) == (Code.INVALID_REGULAR_EXPRESSION, True)
