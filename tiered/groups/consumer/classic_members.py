"""Members of the classic protocol in a consumer group: their JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

The generation of such a member is its member epoch, and the coordinator takes the place of the leader: nobody waits for
all to join. A JoinGroup is one step of the member to its target (I17). SyncGroup gets it the assignment. Heartbeat
tells it to join again for the next step.
"""

from __future__ import annotations

from tiered.errors import Code, Corrupt, Refused
from tiered.groups.consumer.admin import drop_consumer_group
from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.classic_view import find_names, name_topics
from tiered.groups.consumer.group import ConsumerGroup, ConsumerMember
from tiered.groups.consumer.member_step import Claim, FoundMember, MemberStep
from tiered.groups.consumer.migration import downgrade
from tiered.groups.consumer.reconciliation import MemberState
from tiered.groups.consumer.records import ClassicMetadata, MemberMetadata
from tiered.groups.consumer.sessions import await_classic, notice_topics, remove_members, schedule_session
from tiered.groups.decision import CONSUMER_REBALANCE, Decision
from tiered.groups.requests import (
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeaveGroupReply,
    LeavingMember,
    SyncGroup,
    SyncGroupReply,
)
from tiered.groups.subscription import (
    CONSUMER,
    Subscription,
    TopicPartitions,
    encode_assignment,
    parse_subscription,
)

ID_PREFIX_MAX = 1_000
"""Characters of the client id, or of a static member's instance id, that begin a member id."""


# -- joining ----------------------------------------------------------------------------------------------------------


def join_consumer_group(decision: Decision, group: ConsumerGroup, request: JoinGroup) -> JoinGroupReply | None:
    """Handles JoinGroup in a consumer group with members. Returns None if the group has become a classic one, in which
    the request has to join: it takes the place of the last member of the consumer protocol."""
    policy = decision.state.find_migration_policy()
    owner_id = None if request.instance_id is None else group.static_members.get(request.instance_id)
    refusal = _check_join(decision, group, request, owner_id)
    if refusal is not None:
        return JoinGroupReply(refusal, request.member_id)
    if not request.member_id and request.instance_id is None and request.member_id_required:
        return JoinGroupReply(Code.MEMBER_ID_REQUIRED, _make_id(decision, request))
    if _is_only_member(group, own_id := owner_id or request.member_id) and policy.downgrades:
        drop_consumer_group(decision, group)
        return None
    if downgrade(decision, group, own_id):
        return None
    found = _find_member(decision, group, request, owner_id)
    try:
        subscription = parse_subscription(request.protocols[0][1])
        metadata = _make_metadata(request, subscription)
        claim = Claim(metadata, _find_owned(decision, subscription.owned), request.holder)
        step = MemberStep(decision, group, found, claim)
        current = step.decide()
    except Corrupt:
        return JoinGroupReply(Code.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
    except Refused as refused:
        return JoinGroupReply(refused.code, request.member_id)
    step.commit()
    decision.state.deadlines.cancel((CONSUMER_REBALANCE, group.name, found.member_id))
    await_classic(decision, group.name, found.member_id, request.rebalance_timeout_ms)
    return JoinGroupReply(Code.NONE, found.member_id, current.epoch, CONSUMER, request.protocols[0][0])


def _is_only_member(group: ConsumerGroup, member_id: str) -> bool:
    """True for the only member of a group, if it is one of the consumer protocol."""
    return group.members.keys() == {member_id} and not group.classic_members()


def _check_join(decision: Decision, group: ConsumerGroup, request: JoinGroup, owner_id: str | None) -> Code | None:
    own_id = owner_id or request.member_id
    if owner_id is not None and request.member_id and request.member_id != owner_id:
        return Code.FENCED_INSTANCE_ID
    if own_id not in group.members and len(group.members) >= decision.state.settings.consumer_size_max:
        return Code.GROUP_MAX_SIZE_REACHED
    if request.protocol_type != CONSUMER or not request.protocols:
        return Code.INCONSISTENT_GROUP_PROTOCOL
    supported = {name for name, _ in request.protocols}
    for member_id in group.classic_members():
        classic = group.members[member_id].metadata.classic
        if member_id != own_id and classic is not None:
            supported &= {name for name, _ in classic.protocols}
    return None if supported else Code.INCONSISTENT_GROUP_PROTOCOL


def _make_id(decision: Decision, request: JoinGroup) -> str:
    return f"{(request.instance_id or request.client_id)[:ID_PREFIX_MAX]}-{decision.state.new_uuid()}"


def _find_member(decision: Decision, group: ConsumerGroup, request: JoinGroup, owner_id: str | None) -> FoundMember:
    """Returns the member that joins: a static one without its id takes over its place under a new id (KIP-345)."""
    if owner_id is not None and not request.member_id:
        owner = group.members[owner_id]
        current = owner.current._replace(epoch=0, previous_epoch=0)
        return FoundMember(_make_id(decision, request), owner._replace(current=current), replaces=owner_id)
    member_id = request.member_id or _make_id(decision, request)
    member = group.members.get(member_id)
    return FoundMember(member_id, ConsumerMember(), is_new=True) if member is None else FoundMember(member_id, member)


def _make_metadata(request: JoinGroup, subscription: Subscription) -> MemberMetadata:
    return MemberMetadata(
        request.instance_id,
        subscription.rack_id,
        request.client_id,
        request.client_host,
        subscription.topics,
        "",
        request.rebalance_timeout_ms,
        None,
        ClassicMetadata(request.session_timeout_ms, request.protocols),
    )


def _find_owned(decision: Decision, owned: TopicPartitions) -> Assignment:
    """Returns what a member owns by ids of topics, without topics that are gone."""
    found = {name: decision.state.find_topic(name) for name in owned}
    return {topic.topic_id: owned[name] for name, topic in found.items() if topic is not None}


# -- assignments and heartbeats ---------------------------------------------------------------------------------------


def sync_in_consumer_group(decision: Decision, group: ConsumerGroup, request: SyncGroup) -> SyncGroupReply:
    """Handles SyncGroup: returns the assignment of the member at once. It has made no other one."""
    notice_topics(decision, group)
    code = _check_member(group, request.member_id, request.instance_id, request.generation)
    if code is not None:
        return SyncGroupReply(code)
    member = group.members[request.member_id]
    classic = member.metadata.classic
    assert classic is not None
    chosen, metadata = classic.protocols[0]
    if request.protocol_type not in (None, CONSUMER) or request.protocol not in (None, chosen):
        return SyncGroupReply(Code.INCONSISTENT_GROUP_PROTOCOL)
    if group.epoch > member.current.epoch and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
        await_classic(decision, group.name, request.member_id, member.metadata.rebalance_timeout_ms)
        return SyncGroupReply(Code.REBALANCE_IN_PROGRESS)
    decision.state.deadlines.cancel((CONSUMER_REBALANCE, group.name, request.member_id))
    schedule_session(decision, group.name, request.member_id, member.metadata)
    partitions = name_topics(member.current.assigned, find_names(group, decision.state.find_topic))
    version = parse_subscription(metadata).version
    return SyncGroupReply(Code.NONE, CONSUMER, chosen, encode_assignment(partitions, version))


def beat_in_consumer_group(decision: Decision, group: ConsumerGroup, request: Heartbeat) -> HeartbeatReply:
    """Handles Heartbeat. REBALANCE_IN_PROGRESS makes the member join again: for a new target, to say that it has given
    partitions up, or because all that it waits for are free."""
    notice_topics(decision, group)
    code = _check_member(group, request.member_id, request.instance_id, request.generation)
    if code is not None:
        return HeartbeatReply(code)
    metadata, current = group.members[request.member_id]
    schedule_session(decision, group.name, request.member_id, metadata)
    is_behind = current.epoch < group.epoch or current.state is MemberState.UNREVOKED_PARTITIONS
    if is_behind or (
        current.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(request.member_id)
    ):
        await_classic(decision, group.name, request.member_id, metadata.rebalance_timeout_ms)
        return HeartbeatReply(Code.REBALANCE_IN_PROGRESS)
    return HeartbeatReply(Code.NONE)


def _check_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int | None = None
) -> Code | None:
    """Returns the refusal of ids that name no member of the classic protocol, or of another generation."""
    if instance_id is not None:
        owner_id = group.static_members.get(instance_id)
        if owner_id is None:
            return Code.UNKNOWN_MEMBER_ID
        if owner_id != member_id:
            return Code.FENCED_INSTANCE_ID
    member = group.members.get(member_id)
    if member is None or member.metadata.classic is None:
        return Code.UNKNOWN_MEMBER_ID
    return None if generation in (None, member.current.epoch) else Code.ILLEGAL_GENERATION


# -- leaving ----------------------------------------------------------------------------------------------------------


def leave_consumer_group(decision: Decision, group: ConsumerGroup, request: LeaveGroup) -> LeaveGroupReply:
    """Handles LeaveGroup. Each member gets its own code, and the group epoch grows once for all of them."""
    found: dict[str, None] = {}
    codes = []
    for leaving in request.members:
        member_id = _find_leaving_id(group, leaving)
        code = _check_member(group, member_id, leaving.instance_id)
        if code is None and member_id in found:
            code = Code.UNKNOWN_MEMBER_ID
        if code is None:
            found[member_id] = None
        codes.append(code or Code.NONE)
    if found:
        remove_members(decision, group, found)
    return LeaveGroupReply(Code.NONE, tuple(codes))


def _find_leaving_id(group: ConsumerGroup, leaving: LeavingMember) -> str:
    """Returns the id of a member that leaves. An administrator names a static one by its instance id alone."""
    if leaving.member_id or leaving.instance_id is None:
        return leaving.member_id
    return group.static_members.get(leaving.instance_id, "")
