"""Sessions and rebalance timeouts of members of consumer groups, and the removal of members."""

from __future__ import annotations

from collections.abc import Iterable

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
    MemberMetadata,
    encode_group_epoch,
    encode_key,
)
from tiered.groups.decision import CONSUMER_REBALANCE, CONSUMER_SESSION, Decision
from tiered.shard import CoordinatorRecord


def remove_members(decision: Decision, group: ConsumerGroup, member_ids: Iterable[str]) -> None:
    """Removes members with all their records. The group epoch grows, so that others get their partitions."""
    for member_id in member_ids:
        gone = group.members[member_id].metadata
        records = make_member_tombstones(group, member_id)
        if gone.regex and group.is_last_with_regex(gone.regex):
            records.append(CoordinatorRecord(encode_key(ConsumerKey(REGEX, group.name, gone.regex)), None))
        decision.write(*records)
        cancel_deadlines(decision, group.name, member_id)
    write_group_epoch(decision, group, group.epoch + 1, hash_subscribed(decision, group))


def notice_topics(decision: Decision, group: ConsumerGroup) -> None:
    """Lets the group epoch grow if the topics of the group have changed since they were compared last."""
    version = decision.state.metadata_version()
    if group.checked_version == version:
        return
    topics_hash = hash_subscribed(decision, group)
    if topics_hash != group.topics_hash:
        write_group_epoch(decision, group, group.epoch + 1, topics_hash)
    group.checked_version = version


def hash_subscribed(decision: Decision, group: ConsumerGroup) -> int:
    """Returns the hash of the topics that members subscribe to, as they are now."""
    find_topic = decision.state.find_topic
    return hash_topics({name: found for name in group.subscribed_topics() if (found := find_topic(name)) is not None})


def write_group_epoch(decision: Decision, group: ConsumerGroup, epoch: int, topics_hash: int) -> None:
    """Writes a new group epoch."""
    value = encode_group_epoch(GroupEpoch(epoch, topics_hash))
    decision.write(CoordinatorRecord(encode_key(ConsumerKey(GROUP, group.name)), value))


def make_member_tombstones(group: ConsumerGroup, member_id: str) -> list[CoordinatorRecord]:
    """Returns the records that remove what the log has of a member."""
    kinds = (CURRENT, TARGET, MEMBER)
    return [CoordinatorRecord(encode_key(ConsumerKey(kind, group.name, member_id)), None) for kind in kinds]


# -- deadlines --------------------------------------------------------------------------------------------------------


def schedule_session(decision: Decision, group: str, member_id: str, metadata: MemberMetadata) -> None:
    """Restarts the session of a member. One of the classic protocol has chosen its timeout itself."""
    classic = metadata.classic
    timeout_ms = decision.state.find_timeouts(group).session_ms if classic is None else classic.session_timeout_ms
    decision.state.deadlines.set((CONSUMER_SESSION, group, member_id), decision.now.mono_ms + timeout_ms)


def schedule_rebalance(decision: Decision, group: str, member_id: str, member: ConsumerMember) -> None:
    """Gives a member that has to revoke partitions its rebalance timeout for that; others have no such deadline.

    A member of the classic protocol has it while it has to send JoinGroup or SyncGroup (`await_classic`).
    """
    key = (CONSUMER_REBALANCE, group, member_id)
    is_away = member.current.epoch == LEAVING_FOR_A_WHILE
    is_revoking = member.current.state is MemberState.UNREVOKED_PARTITIONS
    if member.metadata.classic is None and is_revoking and not is_away:
        decision.state.deadlines.set(key, decision.now.mono_ms + member.metadata.rebalance_timeout_ms)
    else:
        decision.state.deadlines.cancel(key)


def await_classic(decision: Decision, group: str, member_id: str, timeout_ms: int) -> None:
    """Gives a member of the classic protocol its rebalance timeout for its next JoinGroup or SyncGroup, unless it has
    a deadline already."""
    key = (CONSUMER_REBALANCE, group, member_id)
    if key not in decision.state.deadlines:
        decision.state.deadlines.set(key, decision.now.mono_ms + timeout_ms)


def cancel_deadlines(decision: Decision, group: str, member_id: str) -> None:
    """Removes the deadlines of a member."""
    for kind in (CONSUMER_SESSION, CONSUMER_REBALANCE):
        decision.state.deadlines.cancel((kind, group, member_id))
