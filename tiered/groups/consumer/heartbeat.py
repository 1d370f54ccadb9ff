"""ConsumerGroupHeartbeat: a member joins, follows its assignment, or leaves.

A heartbeat of a member that has nothing new writes nothing. A change of the group concerns the members whose partitions
move: each takes its own steps with its own heartbeats, and nobody waits for all. The first member that joins a classic
group with members makes a consumer group of it (`migration`).
"""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered.groups.classic import ClassicGroupState
from tiered.groups.consumer.assignment import NO_PARTITIONS
from tiered.groups.consumer.assignors import ASSIGNORS
from tiered.groups.consumer.epochs import JOINING, LEAVING_FOR_A_WHILE, check_member_epoch
from tiered.groups.consumer.group import ConsumerGroup, ConsumerMember
from tiered.groups.consumer.member_step import Claim, FoundMember, MemberStep
from tiered.groups.consumer.migration import make_upgrade, remove_or_downgrade
from tiered.groups.consumer.reconciliation import CurrentAssignment
from tiered.groups.consumer.records import CURRENT, ConsumerKey, MemberMetadata, encode_current, encode_key
from tiered.groups.decision import CONSUMER_REBALANCE, Decision
from tiered.groups.requests import ConsumerHeartbeat, ConsumerHeartbeatReply
from tiered.groups.string_lengths import fits_in_record
from tiered.shard import CoordinatorRecord

NO_CHANGE = -1
"""Rebalance timeout of a request that does not change it."""


def handle_consumer_heartbeat(decision: Decision, request: ConsumerHeartbeat) -> ConsumerHeartbeatReply:
    """Handles ConsumerGroupHeartbeat."""
    refusal = _check_request(request)
    if refusal is not None:
        return refusal
    group = decision.state.log_state.consumer_groups.get(request.group)
    classic = decision.state.groups.get(request.group)
    is_join, upgrade = request.member_epoch == JOINING, None
    if group is None and classic is not None and classic.state is not ClassicGroupState.EMPTY:
        try:
            upgrade = make_upgrade(decision, classic) if is_join else None
        except Refused as refused:
            return _refuse(refused.code, refused.why)
        if upgrade is None:
            return _refuse(Code.GROUP_ID_NOT_FOUND, f"Group {request.group} is not a consumer group.")
        group = upgrade.group
    if request.group in decision.state.log_state.share_groups:
        return _refuse(Code.GROUP_ID_NOT_FOUND, f"Group {request.group} is not a consumer group.")
    if group is None and not is_join:
        return _refuse(Code.GROUP_ID_NOT_FOUND, f"Consumer group {request.group} not found.")
    group = group or ConsumerGroup(request.group)
    if request.member_epoch < JOINING:
        return _leave(decision, group, request)
    size_max = decision.state.settings.consumer_size_max
    if request.member_id not in group.members and len(group.members) >= size_max:
        why = f"The consumer group has reached its maximum capacity of {size_max} members."
        return _refuse(Code.GROUP_MAX_SIZE_REACHED, why)
    found = _find_member(decision, group, request)
    if isinstance(found, ConsumerHeartbeatReply):
        return found
    metadata = _update_metadata(found.member.metadata, request)
    claim = Claim(metadata, request.owned, request.holder, request.may_describe)
    step = MemberStep(decision, group, found, claim, upgrade)
    try:
        current = step.decide()
    except Refused as refused:
        return _refuse(refused.code, refused.why)
    step.commit()
    return _make_reply(decision, request, found, current)


def _refuse(code: Code, message: str) -> ConsumerHeartbeatReply:
    return ConsumerHeartbeatReply(code, message)


def _check_request(request: ConsumerHeartbeat) -> ConsumerHeartbeatReply | None:
    why = None
    is_join = request.member_epoch == JOINING
    if not request.group or not fits_in_record(request.group):
        why = "GroupId can't be empty or longer than a record takes."
    elif (not request.member_id and not is_join) or not fits_in_record(request.member_id):
        why = "MemberId can't be empty or longer than a record takes."
    elif request.instance_id == "":
        why = "InstanceId can't be empty."
    elif request.rack_id == "":
        why = "RackId can't be empty."
    elif request.member_epoch < LEAVING_FOR_A_WHILE:
        why = "MemberEpoch is invalid."
    elif request.member_epoch == LEAVING_FOR_A_WHILE and request.instance_id is None:
        why = "InstanceId can't be null."
    elif is_join and request.rebalance_timeout_ms == NO_CHANGE:
        why = "RebalanceTimeoutMs must be provided in first request."
    elif is_join and (request.owned is None or request.owned):
        why = "TopicPartitions must be empty when (re-)joining."
    elif is_join and request.topics is None and request.regex is None:
        why = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    if why is not None:
        return _refuse(Code.INVALID_REQUEST, why)
    if request.regex and not fits_in_record(request.regex):
        return _refuse(Code.INVALID_REGULAR_EXPRESSION, "SubscribedTopicRegex is longer than a record takes.")
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        why = f"ServerAssignor {request.assignor} is not supported. Supported assignors: {', '.join(ASSIGNORS)}."
        return _refuse(Code.UNSUPPORTED_ASSIGNOR, why)
    return None


def _find_member(
    decision: Decision, group: ConsumerGroup, request: ConsumerHeartbeat
) -> FoundMember | ConsumerHeartbeatReply:
    """Returns the member that the request names, a new one if it joins, or the refusal."""
    member_id, is_join = request.member_id, request.member_epoch == JOINING
    if request.instance_id is not None:
        owner_id = group.static_members.get(request.instance_id)
        if is_join and owner_id is not None:
            owner = group.members[owner_id]
            if owner.metadata.classic is None and owner.current.epoch != LEAVING_FOR_A_WHILE:
                return _refuse(
                    Code.UNRELEASED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {request.instance_id} cannot join the group because"
                    f" the instance id is owned by {owner_id} member.",
                )
            current = owner.current._replace(epoch=0, previous_epoch=0)
            return FoundMember(
                member_id or decision.state.new_uuid(), owner._replace(current=current), replaces=owner_id
            )
        if not is_join and owner_id is None:
            return _refuse(Code.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
        if not is_join and owner_id != member_id:
            return _refuse(Code.FENCED_INSTANCE_ID, f"Static member {member_id} was fenced by member {owner_id}.")
    member = group.members.get(member_id)
    if member is None:
        if is_join:
            return FoundMember(member_id or decision.state.new_uuid(), ConsumerMember(), is_new=True)
        return _refuse(Code.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.name}.")
    code = check_member_epoch(request.member_epoch, member.current, request.owned)
    return FoundMember(member_id, member) if code is None else _refuse(code, _fenced(request, member.current))


def _fenced(request: ConsumerHeartbeat, current: CurrentAssignment) -> str:
    than = "greater" if request.member_epoch > current.epoch else "smaller"
    return (
        f"The consumer group member has a {than} member epoch ({request.member_epoch}) than the one known by the group"
        f" coordinator ({current.epoch}). The member must abandon all its partitions and rejoin."
    )


def _make_reply(
    decision: Decision, request: ConsumerHeartbeat, found: FoundMember, current: CurrentAssignment
) -> ConsumerHeartbeatReply:
    is_full = request.member_epoch == JOINING or (
        request.rebalance_timeout_ms != NO_CHANGE
        and (request.topics is not None or request.regex is not None)
        and request.owned is not None
    )
    is_told = is_full or current.assigned != found.member.current.assigned
    return ConsumerHeartbeatReply(
        Code.NONE,
        None,
        found.member_id,
        current.epoch,
        decision.state.find_timeouts(request.group).heartbeat_ms,
        current.assigned if is_told else None,
    )


def _update_metadata(known: MemberMetadata, request: ConsumerHeartbeat) -> MemberMetadata:
    """Returns what a member joined with, and what its request changes of it."""
    timeout_ms = request.rebalance_timeout_ms
    return MemberMetadata(
        known.instance_id if request.instance_id is None else request.instance_id,
        known.rack_id if request.rack_id is None else request.rack_id,
        request.client_id,
        request.client_host,
        known.topics if request.topics is None else frozenset(request.topics),
        known.regex if request.regex is None else request.regex,
        known.rebalance_timeout_ms if timeout_ms == NO_CHANGE else timeout_ms,
        known.assignor if request.assignor is None else request.assignor,
    )


# -- leaving ----------------------------------------------------------------------------------------------------------


def _leave(decision: Decision, group: ConsumerGroup, request: ConsumerHeartbeat) -> ConsumerHeartbeatReply:
    member_id = request.member_id
    if request.instance_id is not None:
        owner_id = group.static_members.get(request.instance_id)
        if owner_id is None:
            return _refuse(Code.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
        if owner_id != member_id:
            return _refuse(Code.FENCED_INSTANCE_ID, f"Static member {member_id} was fenced by member {owner_id}.")
    elif member_id not in group.members:
        return _refuse(Code.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.name}.")
    if request.member_epoch == LEAVING_FOR_A_WHILE:
        current = group.members[member_id].current._replace(epoch=LEAVING_FOR_A_WHILE, revoking=NO_PARTITIONS)
        key = encode_key(ConsumerKey(CURRENT, group.name, member_id))
        decision.write(CoordinatorRecord(key, encode_current(current)))
        decision.state.deadlines.cancel((CONSUMER_REBALANCE, group.name, member_id))
    else:
        remove_or_downgrade(decision, group, member_id)
    return ConsumerHeartbeatReply(Code.NONE, None, member_id, request.member_epoch)
