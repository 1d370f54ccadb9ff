"""Sessions and rebalance timeouts of members of consumer groups, and the removal of members."""

from __future__ import annotations

from tiered.groups.consumer.epochs import LEAVING_FOR_A_WHILE, hash_topics
from tiered.groups.consumer.group import ConsumerGroup, ConsumerMember
from tiered.groups.consumer.reconciliation import MemberState
from tiered.groups.consumer.records import (
    CURRENT,
    GROUP,
    MEMBER,
    REGEX,
    TARGET,
    ConsumerKey,
    GroupEpoch,
    encode_group_epoch,
    encode_key,
)
from tiered.groups.decision import CONSUMER_REBALANCE, CONSUMER_SESSION, Decision
from tiered.shard import CoordinatorRecord


def remove_member(decision: Decision, group: ConsumerGroup, member_id: str) -> None:
    """Removes a member with all its records. The group epoch grows, so that others get its partitions."""
    gone = group.members[member_id].metadata
    names = group.subscribed_topics(gone)
    topics = {name: found for name in names if (found := decision.state.find_topic(name)) is not None}
    value = encode_group_epoch(GroupEpoch(group.epoch + 1, hash_topics(topics)))
    key = encode_key(ConsumerKey(GROUP, group.name))
    records = make_member_tombstones(group, member_id)
    if gone.regex and group.is_last_with_regex(gone.regex):
        records.append(CoordinatorRecord(encode_key(ConsumerKey(REGEX, group.name, gone.regex)), None))
    decision.write(*records, CoordinatorRecord(key, value))
    cancel_deadlines(decision, group.name, member_id)


def make_member_tombstones(group: ConsumerGroup, member_id: str) -> list[CoordinatorRecord]:
    """Returns the records that remove what the log has of a member."""
    kinds = (CURRENT, TARGET, MEMBER)
    return [CoordinatorRecord(encode_key(ConsumerKey(kind, group.name, member_id)), None) for kind in kinds]


# -- deadlines --------------------------------------------------------------------------------------------------------


def schedule_session(decision: Decision, group: str, member_id: str) -> None:
    """Restarts the session of a member."""
    due_ms = decision.now.mono_ms + decision.state.find_timeouts(group).session_ms
    decision.state.deadlines.set((CONSUMER_SESSION, group, member_id), due_ms)


def schedule_rebalance(decision: Decision, group: str, member_id: str, member: ConsumerMember) -> None:
    """Gives a member that has to revoke partitions its rebalance timeout for that; others have no such deadline."""
    key = (CONSUMER_REBALANCE, group, member_id)
    is_away = member.current.epoch == LEAVING_FOR_A_WHILE
    if member.current.state is MemberState.UNREVOKED_PARTITIONS and not is_away:
        decision.state.deadlines.set(key, decision.now.mono_ms + member.metadata.rebalance_timeout_ms)
    else:
        decision.state.deadlines.cancel(key)


def cancel_deadlines(decision: Decision, group: str, member_id: str) -> None:
    """Removes the deadlines of a member."""
    for kind in (CONSUMER_SESSION, CONSUMER_REBALANCE):
        decision.state.deadlines.cancel((kind, group, member_id))


def on_consumer_timeout(decision: Decision, group: str, member_id: str) -> None:
    """Removes a member that sent no heartbeat in its session timeout, or did not revoke partitions in time."""
    remove_member(decision, decision.state.log_state.consumer_groups[group], member_id)
