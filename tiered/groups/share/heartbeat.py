"""ShareGroupHeartbeat: a member of a share group joins, follows its assignment, or leaves (KIP-932).

A heartbeat of a member that has nothing new writes nothing. A member is at its target with its next heartbeat: it has
nothing to revoke first, because several members may read a partition.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiered.errors import Code, Refused
from tiered.groups.consumer.assignment import NO_PARTITIONS, Assignment, AssignorMember
from tiered.groups.consumer.epochs import JOINING, LEAVING, SubscribedTopic, hash_topics, next_group_epoch
from tiered.groups.consumer.reconciliation import CurrentAssignment, MemberState
from tiered.groups.consumer.records import GroupEpoch, encode_target, encode_target_epoch
from tiered.groups.decision import SHARE_SESSION, Decision
from tiered.groups.requests import (
    ShareHeartbeat,
    ShareHeartbeatReply,
    SharePartitionsInitialized,
    ShareStateWanted,
    TargetComputed,
)
from tiered.groups.share.group import ShareGroup, ShareMember
from tiered.groups.share.records import (
    CURRENT,
    GROUP,
    MEMBER,
    STATE,
    TARGET,
    TARGET_EPOCH,
    ShareMemberMetadata,
    encode_current,
    encode_group_epoch,
    encode_member,
    encode_state,
)
from tiered.groups.share.simple_assignor import assign_simple
from tiered.groups.share.state_partitions import confirm_state, is_overdue, request_state
from tiered.groups.string_lengths import fits_in_record
from tiered.shard import CoordinatorRecord

SIMPLE = "simple"
"""Name of the assignor of share groups."""


def handle_share_heartbeat(decision: Decision, request: ShareHeartbeat) -> ShareHeartbeatReply:
    """Handles ShareGroupHeartbeat."""
    state, name = decision.state, request.group
    group = state.log_state.share_groups.get(name)
    try:
        _check_request(request)
        if group is None and (name in state.groups or name in state.log_state.consumer_groups):
            raise Refused(Code.GROUP_ID_NOT_FOUND, f"Group {name} is not a share group.")
        if group is None and request.member_epoch != JOINING:
            raise Refused(Code.GROUP_ID_NOT_FOUND, f"Share group {name} not found.")
        group = group or ShareGroup(name)
        member = _find_member(decision, group, request)
        if request.member_epoch == LEAVING:
            remove_share_member(decision, group, request.member_id)
            return ShareHeartbeatReply(Code.NONE, None, request.member_id, LEAVING)
        step = _ShareStep(decision, group, member, request)
        current = step.decide()
    except Refused as refused:
        return ShareHeartbeatReply(refused.code, refused.why)
    step.commit()
    is_told = request.topics is not None or current.assigned != member.current.assigned
    return ShareHeartbeatReply(
        Code.NONE, None, request.member_id, current.epoch, state.settings.share_heartbeat_interval_ms,
        current.assigned if is_told else None,
    )  # fmt: skip


def _check_request(request: ShareHeartbeat) -> None:
    """Raises `Refused` if the request is malformed."""
    why = None
    if not request.group or not fits_in_record(request.group):
        why = "GroupId can't be empty or longer than a record takes."
    elif not request.member_id or not fits_in_record(request.member_id):
        why = "MemberId can't be empty or longer than a record takes."
    elif request.rack_id == "" or not fits_in_record(request.rack_id or ""):
        why = "RackId can't be empty or longer than a record takes."
    elif request.member_epoch < LEAVING:
        why = "MemberEpoch is invalid."
    elif request.member_epoch == JOINING and not request.topics:
        why = "SubscribedTopicNames must be set in first request."
    if why is not None:
        raise Refused(Code.INVALID_REQUEST, why)


def _find_member(decision: Decision, group: ShareGroup, request: ShareHeartbeat) -> ShareMember:
    """Returns the member of the request, or a new one. Raises `Refused`."""
    member, epoch = group.members.get(request.member_id), request.member_epoch
    if member is None:
        if epoch != JOINING:
            why = f"Member {request.member_id} is not a member of group {group.name}."
            raise Refused(Code.UNKNOWN_MEMBER_ID, why)
        size_max = decision.state.settings.share_size_max
        if len(group.members) >= size_max:
            why = f"The share group has reached its maximum capacity of {size_max} members."
            raise Refused(Code.GROUP_MAX_SIZE_REACHED, why)
        return ShareMember()
    if epoch not in (JOINING, LEAVING, member.current.epoch, member.current.previous_epoch):
        than = "greater" if epoch > member.current.epoch else "smaller"
        raise Refused(
            Code.FENCED_MEMBER_EPOCH,
            f"The share group member has a {than} member epoch ({epoch}) than the one known by the group coordinator"
            f" ({member.current.epoch}). The member must abandon all its partitions and rejoin.",
        )
    return member


class _ShareStep:
    """One step of a member that joins or stays. `decide` collects records, `commit` writes them."""

    def __init__(self, decision: Decision, group: ShareGroup, member: ShareMember, request: ShareHeartbeat) -> None:
        self._decision = decision
        self._group = group
        self._member = member
        self._request = request
        self._records: list[CoordinatorRecord] = []
        self._events: list[TargetComputed | ShareStateWanted] = []
        self._state = group.state_partitions

    def decide(self) -> CurrentAssignment:
        """Returns the assignment of the member. Raises `Refused`, and then nothing has changed."""
        group, member_id, state = self._group, self._request.member_id, self._decision.state
        metadata = _update_metadata(self._member.metadata, self._request)
        is_new = member_id not in group.members
        if is_new or metadata != self._member.metadata:
            self._records.append(group.record(MEMBER, encode_member(metadata), member_id))
        members = {each: known.metadata for each, known in group.members.items()} | {member_id: metadata}
        epoch = group.epoch
        is_subscription_new = is_new or metadata.topics != self._member.metadata.topics
        is_changed = is_subscription_new or group.checked_version != state.metadata_version()
        if is_changed or is_overdue(self._state, self._decision.now.wall_ms):
            topics = _find_topics(self._decision, members)
            epoch = self._advance_group(topics, is_subscription_new)
            self._request_state(topics, epoch)
        target_epoch, target = self._find_target(epoch, members)
        current = self._member.current
        if (current.epoch, current.assigned) != (target_epoch, target):
            current = CurrentAssignment(target_epoch, current.epoch, MemberState.STABLE, target)
            self._records.append(group.record(CURRENT, encode_current(current), member_id))
        if any(len(each.value or b"") > state.settings.record_bytes_max for each in self._records):
            raise Refused(Code.UNKNOWN_SERVER_ERROR, "The member takes more bytes than a record of the log can have.")
        if not state.has_room(group.name, group.find_growth(self._records)):
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, "The groups of this broker take all memory that they may.")
        return current

    def _advance_group(self, topics: Mapping[str, SubscribedTopic], is_subscription_new: bool) -> int:
        group, topics_hash = self._group, hash_topics(topics)
        epoch = next_group_epoch(group.epoch, is_subscription_new, group.topics_hash, topics_hash)
        if epoch != group.epoch:
            self._records.append(group.record(GROUP, encode_group_epoch(GroupEpoch(epoch, topics_hash))))
        return epoch

    def _request_state(self, topics: Mapping[str, SubscribedTopic], epoch: int) -> None:
        """Requests the share state of partitions that have none yet."""
        self._state, missing = request_state(self._state, topics, self._decision.now.wall_ms)
        if self._state != self._group.state_partitions:
            self._records.append(self._group.record(STATE, encode_state(self._state)))
        if missing:
            self._events.append(ShareStateWanted(self._group.name, epoch, missing))

    def _find_target(self, epoch: int, members: Mapping[str, ShareMemberMetadata]) -> tuple[int, Assignment]:
        """Returns the target of the member with its epoch. Computes the targets of all members if they are old."""
        group, member_id = self._group, self._request.member_id
        if epoch <= group.target_epoch:
            return group.target_epoch, group.targets.get(member_id, NO_PARTITIONS)
        ids = {topic.name: topic_id for topic_id, topic in self._state.initialized.items()}
        given = {
            each: AssignorMember(
                frozenset(ids[name] for name in metadata.topics if name in ids), group.targets.get(each, NO_PARTITIONS)
            )
            for each, metadata in members.items()
        }
        readable = {topic_id: topic.partitions for topic_id, topic in self._state.initialized.items()}
        targets = assign_simple(given, readable)
        for each, target in targets.items():
            if group.targets.get(each) != target:
                self._records.append(group.record(TARGET, encode_target(target), each))
        self._records.append(group.record(TARGET_EPOCH, encode_target_epoch(epoch)))
        self._events.append(TargetComputed(group.name, epoch, len(members), SIMPLE))
        return epoch, targets[member_id]

    def commit(self) -> None:
        """Writes the records, and restarts the session of the member."""
        decision, state, name = self._decision, self._decision.state, self._group.name
        state.holders.claim(name, self._request.holder)
        decision.write(*self._records)
        state.log_state.share_groups[name].checked_version = state.metadata_version()
        for event in self._events:
            decision.report(event)
        schedule_share_session(decision, name, self._request.member_id)


def _update_metadata(known: ShareMemberMetadata, request: ShareHeartbeat) -> ShareMemberMetadata:
    """Returns what a member joined with, and what its request changes of it."""
    return ShareMemberMetadata(
        known.rack_id if request.rack_id is None else request.rack_id,
        request.client_id,
        request.client_host,
        known.topics if request.topics is None else frozenset(request.topics),
    )


def _find_topics(decision: Decision, members: Mapping[str, ShareMemberMetadata]) -> dict[str, SubscribedTopic]:
    """Returns the subscribed topics that exist, by name."""
    names = {name for each in members.values() for name in each.topics}
    return {name: found for name in names if (found := decision.state.find_topic(name)) is not None}


def confirm_share_state(decision: Decision, request: SharePartitionsInitialized) -> None:
    """Lets members read the partitions whose share state was begun. The group epoch grows, so that they get them."""
    group = decision.state.log_state.share_groups.get(request.group)
    if group is None:
        return
    state = confirm_state(group.state_partitions, request.partitions, decision.now.wall_ms)
    if state != group.state_partitions:
        decision.write(
            group.record(STATE, encode_state(state)),
            group.record(GROUP, encode_group_epoch(GroupEpoch(group.epoch + 1, group.topics_hash))),
        )


def schedule_share_session(decision: Decision, group: str, member_id: str) -> None:
    """Restarts the session of a member."""
    due_ms = decision.now.mono_ms + decision.state.settings.share_session_timeout_ms
    decision.state.deadlines.set((SHARE_SESSION, group, member_id), due_ms)


def remove_share_member(decision: Decision, group: ShareGroup, member_id: str) -> None:
    """Removes a member with all its records. The group epoch grows, so that others get its partitions."""
    decision.state.deadlines.cancel((SHARE_SESSION, group.name, member_id))
    decision.write(*(group.record(kind, None, member_id) for kind in (CURRENT, TARGET, MEMBER)))
    topics_hash = hash_topics(_find_topics(decision, {each: member.metadata for each, member in group.members.items()}))
    decision.write(group.record(GROUP, encode_group_epoch(GroupEpoch(group.epoch + 1, topics_hash))))
