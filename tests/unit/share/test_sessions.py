"""Share sessions: the order of a member's requests, and the bounds of a broker."""

from __future__ import annotations

import pytest

from tiered.errors import Code, Refused
from tiered.ids import PartitionId, TopicId
from tiered.share.sessions import (
    EPOCH_MAX,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    ShareSessionKey,
    ShareSessions,
)

TOPIC = TopicId("topic")
P0, P1, P2, P3 = (PartitionId(TOPIC, index) for index in range(4))
A, B, C = (ShareSessionKey("group", member) for member in "abc")


def refusal(sessions: ShareSessions, key: ShareSessionKey, epoch: int, *added: PartitionId) -> Code:
    """Returns the code of an update that is refused, and checks that it changes no count."""
    before = sessions.partition_count
    with pytest.raises(Refused) as refused:
        sessions.update(key, epoch, added)
    assert sessions.partition_count == before
    return refused.value.code


def test_request_that_comes_twice_changes_nothing() -> None:
    sessions = ShareSessions(2, 4)
    session, _ = sessions.begin(A, 1, [P0])
    assert sessions.update(A, 1, [P1]) is session
    assert refusal(sessions, A, 1, P2) is Code.INVALID_SHARE_SESSION_EPOCH
    assert (session.epoch, list(session.partitions)) == (2, [P0, P1])


@pytest.mark.parametrize("epoch", [INITIAL_EPOCH, FINAL_EPOCH, 2])
def test_session_goes_on_only_with_its_next_epoch(epoch: int) -> None:
    sessions = ShareSessions(2, 4)
    sessions.begin(A, 1, [P0])
    assert refusal(sessions, A, epoch) is Code.INVALID_SHARE_SESSION_EPOCH


def test_epoch_after_the_highest_one_begins_no_session() -> None:
    sessions = ShareSessions(2, 4)
    session, _ = sessions.begin(A, 1, [P0])
    session.epoch = EPOCH_MAX
    assert sessions.update(A, EPOCH_MAX).epoch == 1


def test_partition_that_is_added_and_forgotten_is_forgotten() -> None:
    sessions = ShareSessions(2, 4)
    sessions.begin(A, 1, [P0])
    assert list(sessions.update(A, 1, [P1, P2], [P0, P1]).partitions) == [P2]
    assert sessions.partition_count == 1


def test_each_request_begins_with_another_partition() -> None:
    sessions = ShareSessions(2, 4)
    session, _ = sessions.begin(A, 1, [P0, P1, P2])
    firsts = {
        session.list_in_turn()[0],
        sessions.update(A, 1).list_in_turn()[0],
        sessions.update(A, 2).list_in_turn()[0],
    }
    assert firsts == {P0, P1, P2}
    assert sorted(session.list_in_turn()) == [P0, P1, P2]
    assert sessions.update(A, 3, forgotten=[P0, P1, P2]).list_in_turn() == []


def test_sessions_are_bounded_and_a_member_may_begin_again() -> None:
    sessions = ShareSessions(2, 4)
    first, _ = sessions.begin(A, 1, [P0])
    sessions.begin(B, 2, [P0])
    with pytest.raises(Refused) as refused:
        sessions.begin(C, 3, [])
    assert refused.value.code is Code.SHARE_SESSION_LIMIT_REACHED
    assert sessions.begin(A, 1, [P1])[1] is first
    assert (len(sessions), sessions.partition_count) == (2, 2)


def test_partitions_of_all_sessions_are_bounded() -> None:
    sessions = ShareSessions(2, 4)
    sessions.begin(A, 1, [P0, P1, P2])
    with pytest.raises(Refused) as refused:
        sessions.begin(B, 2, [P0, P1])
    assert refused.value.code is Code.SHARE_SESSION_LIMIT_REACHED
    sessions.begin(B, 2, [P0])
    assert refusal(sessions, B, 1, P1) is Code.SHARE_SESSION_LIMIT_REACHED
    assert list(sessions.update(B, 1, [P1], [P0]).partitions) == [P1]


def test_session_that_ended_is_not_found() -> None:
    sessions = ShareSessions(2, 4)
    session, _ = sessions.begin(A, 1, [P0])
    assert sessions.end(A) is session
    assert refusal(sessions, A, 1) is Code.SHARE_SESSION_NOT_FOUND
    assert (len(sessions), sessions.partition_count) == (0, 0)


def test_connection_takes_only_its_sessions_along() -> None:
    sessions = ShareSessions(3, 4)
    sessions.begin(A, 1, [P0])
    sessions.begin(B, 1, [P1])
    sessions.begin(A, 2, [P2])
    assert [each.key for each in sessions.on_disconnect(1)] == [B]
    assert [each.key for each in sessions.on_disconnect(2)] == [A]
    assert sessions.on_disconnect(2) == []
    assert sessions.partition_count == 0
