"""Groups that change their protocol while members are in them, in both directions (KIP-848).

Upgrade: the first member of the consumer protocol joins a classic group of consumers. Its members stay members, with
the generation as their epoch and what they were assigned last as their target. They go on by the classic protocol.

Downgrade: the last member of the consumer protocol leaves, and the others are classic. They form a classic group, whose
generation is the group epoch, and which rebalances at once: the partitions of the member that left have no owner.

A load finds the group that the log has. The record of a downgraded group has no leader until its first generation, so
that a load starts the rebalance again (I17).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tiered.errors import Code, Corrupt, Refused
from tiered.groups.classic import ClassicGroup, ClassicGroupState
from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.classic_view import find_names, name_topics
from tiered.groups.consumer.epochs import hash_topics
from tiered.groups.consumer.group import ConsumerGroup
from tiered.groups.consumer.reconciliation import CurrentAssignment, MemberState
from tiered.groups.consumer.records import (
    CURRENT,
    GROUP,
    MEMBER,
    TARGET,
    TARGET_EPOCH,
    ClassicMetadata,
    ConsumerKey,
    GroupEpoch,
    MemberMetadata,
    encode_current,
    encode_group_epoch,
    encode_key,
    encode_member,
    encode_target,
    encode_target_epoch,
    read_key,
)
from tiered.groups.consumer.sessions import cancel_deadlines, remove_members
from tiered.groups.decision import JOIN, SYNC, Decision
from tiered.groups.holders import GroupBytes
from tiered.groups.member import ClassicGroupMember
from tiered.groups.rebalance import drop_group, prepare_rebalance
from tiered.groups.records import group_key, group_record, read_group
from tiered.groups.requests import JoinGroupReply, SyncGroupReply
from tiered.groups.subscription import (
    CONSUMER,
    Subscription,
    TopicPartitions,
    encode_assignment,
    parse_assignment,
    parse_subscription,
)
from tiered.shard import CoordinatorRecord

DOWNGRADED = "the last member of the consumer protocol left the group"


class Upgrade(NamedTuple):
    """A classic group as a consumer group, and the records that make it. `growth` is the memory that it takes more."""

    group: ConsumerGroup
    records: list[CoordinatorRecord]
    growth: int


# -- from classic to consumer -----------------------------------------------------------------------------------------


def make_upgrade(decision: Decision, classic: ClassicGroup) -> Upgrade | None:
    """Returns a classic group as a consumer group; None if it is not to become one. Writes nothing.

    Raises `Refused` with GROUP_ID_NOT_FOUND if its members are not consumers that can be understood.
    """
    state = decision.state
    if not state.find_migration_policy().upgrades or classic.protocol_type != CONSUMER:
        return None
    if len(classic.members) > state.settings.consumer_size_max:
        return None
    try:
        records = list(_upgrade_records(decision, classic))
    except Corrupt as corrupt:
        why = f"Cannot upgrade the classic group {classic.name}: its consumer protocol is malformed: {corrupt}."
        raise Refused(Code.GROUP_ID_NOT_FOUND, why) from None
    group = ConsumerGroup(classic.name)
    for key, value, _ in records:
        known = read_key(key)
        assert known is not None
        group.apply(known, value)
    before = classic.protocol_bytes + len(state.log_state.groups.get(classic.name, b""))
    return Upgrade(group, records, group.memory_bytes - before)


def _upgrade_records(decision: Decision, classic: ClassicGroup) -> Iterator[CoordinatorRecord]:
    """Yields the records. A member whose client does not know its id yet cannot come back, and is left out."""
    members = [member for member in classic.members.values() if member.knows_id]
    subscriptions = {each.member_id: _read_subscription(classic, each) for each in members}
    topics = {
        name: found
        for name in frozenset[str]().union(*(each.topics for each in subscriptions.values()))
        if (found := decision.state.find_topic(name)) is not None
    }
    assigned = _find_assigned(decision, classic, subscriptions)
    epoch, name = classic.generation, classic.name
    for member in members:
        metadata = _make_metadata(member, subscriptions[member.member_id])
        yield _record(MEMBER, name, encode_member(metadata), member.member_id)
    yield _record(GROUP, name, encode_group_epoch(GroupEpoch(epoch, hash_topics(topics))))
    for member_id, assignment in assigned.items():
        yield _record(TARGET, name, encode_target(assignment), member_id)
    yield _record(TARGET_EPOCH, name, encode_target_epoch(epoch))
    for member_id, assignment in assigned.items():
        current = CurrentAssignment(epoch, epoch, MemberState.STABLE, assignment)
        yield _record(CURRENT, name, encode_current(current), member_id)


def _record(kind: int, group: str, value: bytes, part: str = "") -> CoordinatorRecord:
    return CoordinatorRecord(encode_key(ConsumerKey(kind, group, part)), value)


def _read_subscription(classic: ClassicGroup, member: ClassicGroupMember) -> Subscription:
    chosen = member.metadata(classic.protocol) if classic.protocol is not None else b""
    return parse_subscription(chosen or member.protocols[0][1])


def _make_metadata(member: ClassicGroupMember, subscription: Subscription) -> MemberMetadata:
    return MemberMetadata(
        member.instance_id,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        subscription.topics,
        "",
        member.rebalance_timeout_ms,
        None,
        ClassicMetadata(member.session_timeout_ms, member.protocols),
    )


def _find_assigned(
    decision: Decision, classic: ClassicGroup, subscriptions: Mapping[str, Subscription]
) -> dict[str, Assignment]:
    """Returns the partitions that each member may own, each partition for one member.

    They are those of the last generation that got assignments, which is in the log also while a later one forms. A
    partition that it gave to nobody may still be owned by a member that said so in its JoinGroup: the leader left it
    out so that the member gives it up first. A partition that does not exist is nobody's.
    """
    stored = decision.state.log_state.groups.get(classic.name)
    given = {} if stored is None else {each.member_id: each.assignment for each in read_group(stored).members}
    seen: set[tuple[str, int]] = set()
    found: dict[str, dict[str, frozenset[int]]] = {member_id: {} for member_id in subscriptions}

    def take(member_id: str, partitions: TopicPartitions) -> None:
        for name, numbers in partitions.items():
            topic = decision.state.find_topic(name)
            if topic is None:
                continue
            free = {each for each in numbers if 0 <= each < topic.partition_count} - {
                partition for topic_id, partition in seen if topic_id == topic.topic_id
            }
            if free:
                own = found[member_id]
                own[topic.topic_id] = own.get(topic.topic_id, frozenset()) | free
                seen.update((topic.topic_id, each) for each in free)

    for member_id in subscriptions:
        take(member_id, parse_assignment(given.get(member_id, b"")))
    for member_id, subscription in subscriptions.items():
        take(member_id, subscription.owned)
    return dict(found)


def drop_classic_group(decision: Decision, name: str, *, is_upgraded: bool) -> None:
    """Removes the classic group in whose place a consumer group comes. Callers that wait are told to join again.

    `is_upgraded` is False for a group without members.
    """
    state, classic = decision.state, decision.state.groups.get(name)
    if classic is None:
        return
    if is_upgraded:
        for member in list(classic.members.values()):
            if member.join_token is not None:
                reply = JoinGroupReply(Code.REBALANCE_IN_PROGRESS, member.member_id)
                decision.reply_to_parked(member.join_token, reply)
            if member.sync_token is not None:
                decision.reply_to_parked(member.sync_token, SyncGroupReply(Code.REBALANCE_IN_PROGRESS))
            decision.cancel_heartbeat(classic, member.member_id)
            classic.remove(member.member_id)
        for kind in (JOIN, SYNC):
            state.deadlines.cancel((kind, name, ""))
    if name in state.log_state.groups:
        decision.write(CoordinatorRecord(group_key(name), None))
    drop_group(decision, classic)


# -- from consumer to classic -----------------------------------------------------------------------------------------


def remove_or_downgrade(decision: Decision, group: ConsumerGroup, member_id: str) -> None:
    """Removes a member. If only classic members stay, the group becomes a classic one."""
    if not downgrade(decision, group, member_id):
        remove_members(decision, group, [member_id])


def downgrade(decision: Decision, group: ConsumerGroup, leaving_id: str) -> bool:
    """Makes a group without its last member of the consumer protocol a classic group, and starts its rebalance.

    Returns False, and changes nothing, if another such member stays, if no member stays, or if it is not to be done.
    """
    state, classic_ids = decision.state, group.classic_members()
    if not classic_ids or {*classic_ids, leaving_id} != group.members.keys() or leaving_id in classic_ids:
        return False
    if not state.find_migration_policy().downgrades or len(classic_ids) > state.settings.size_max:
        return False
    drawn = _make_classic(decision, group, classic_ids, GroupBytes())
    record = group_record(group.name, drawn.to_value()._replace(leader=None))
    if len(record.value or b"") > state.settings.record_bytes_max:
        return False
    classic = _make_classic(decision, group, classic_ids, state.protocol_bytes)
    for member_id in list(group.members):
        cancel_deadlines(decision, group.name, member_id)
    decision.write(*list(group.tombstones()), record)
    state.groups[group.name] = classic
    for member in classic.members.values():
        decision.schedule_heartbeat(classic, member)
    prepare_rebalance(decision, classic, DOWNGRADED)
    return True


def _make_classic(
    decision: Decision, group: ConsumerGroup, member_ids: list[str], protocol_bytes: GroupBytes
) -> ClassicGroup:
    """Returns a classic group of these members, each with what it may own now."""
    names = find_names(group, decision.state.find_topic)
    classic = ClassicGroup(group.name, decision.now.wall_ms, protocol_bytes)
    classic.generation, classic.protocol_type = group.epoch, CONSUMER
    for member_id in member_ids:
        metadata, current = group.members[member_id]
        assert metadata.classic is not None
        classic.add(
            ClassicGroupMember(
                member_id,
                metadata.instance_id,
                metadata.client_id,
                metadata.client_host,
                metadata.classic.session_timeout_ms,
                metadata.rebalance_timeout_ms,
                metadata.classic.protocols,
                encode_assignment(name_topics(current.assigned, names)),
            )
        )
    classic.protocol = classic.select_protocol()
    classic.subscribed_topics = classic.compute_subscribed_topics()
    classic.state = ClassicGroupState.STABLE
    return classic
