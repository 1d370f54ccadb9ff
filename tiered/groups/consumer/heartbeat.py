"""ConsumerGroupHeartbeat: a member joins, follows its assignment, or leaves.

A heartbeat of a member that has nothing new writes nothing. A change of the group concerns the members whose partitions
move: each takes its own steps with its own heartbeats, and nobody waits for all.
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered.groups.classic import ClassicGroupState
from tiered.groups.consumer.assignment import NO_PARTITIONS, Assignment, AssignorMember
from tiered.groups.consumer.assignors import ASSIGNORS, choose_assignor
from tiered.groups.consumer.epochs import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    SubscribedTopic,
    check_member_epoch,
    hash_topics,
    next_group_epoch,
)
from tiered.groups.consumer.group import ConsumerGroup, ConsumerMember
from tiered.groups.consumer.reconciliation import CurrentAssignment, Target, reconcile
from tiered.groups.consumer.records import (
    CURRENT,
    GROUP,
    MEMBER,
    REGEX,
    TARGET,
    TARGET_EPOCH,
    ConsumerKey,
    GroupEpoch,
    MemberMetadata,
    ResolvedRegex,
    encode_current,
    encode_group_epoch,
    encode_key,
    encode_member,
    encode_regex,
    encode_target,
    encode_target_epoch,
)
from tiered.groups.consumer.sessions import (
    cancel_deadlines,
    make_member_tombstones,
    remove_member,
    schedule_rebalance,
    schedule_session,
)
from tiered.groups.decision import CONSUMER_REBALANCE, Decision
from tiered.groups.rebalance import drop_group
from tiered.groups.records import group_key
from tiered.groups.requests import ConsumerHeartbeat, ConsumerHeartbeatReply, TargetComputed
from tiered.groups.string_lengths import fits_in_record
from tiered.shard import CoordinatorRecord

NO_CHANGE = -1
"""Rebalance timeout of a request that does not change it."""


class _Joined(NamedTuple):
    """The member of a request. `replaces` is the member id of the static member whose place it takes, else None."""

    member_id: str
    member: ConsumerMember
    is_new: bool = False
    replaces: str | None = None


def handle_consumer_heartbeat(decision: Decision, request: ConsumerHeartbeat) -> ConsumerHeartbeatReply:
    """Handles ConsumerGroupHeartbeat."""
    refusal = _check_request(request)
    if refusal is not None:
        return refusal
    group = decision.state.log_state.consumer_groups.get(request.group)
    classic = decision.state.groups.get(request.group)
    is_join = request.member_epoch == JOINING
    if group is None and classic is not None and classic.state is not ClassicGroupState.EMPTY:
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
    joined = _find_member(decision, group, request)
    return joined if isinstance(joined, ConsumerHeartbeatReply) else _Step(decision, group, request, joined).take()


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
) -> _Joined | ConsumerHeartbeatReply:
    """Returns the member that the request names, a new one if it joins, or the refusal."""
    member_id, is_join = request.member_id, request.member_epoch == JOINING
    if request.instance_id is not None:
        owner_id = group.static_members.get(request.instance_id)
        if is_join and owner_id is not None:
            owner = group.members[owner_id]
            if owner.current.epoch != LEAVING_FOR_A_WHILE:
                return _refuse(
                    Code.UNRELEASED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {request.instance_id} cannot join the group because"
                    f" the instance id is owned by {owner_id} member.",
                )
            current = owner.current._replace(epoch=0, previous_epoch=0)
            return _Joined(member_id or decision.state.new_uuid(), owner._replace(current=current), replaces=owner_id)
        if not is_join and owner_id is None:
            return _refuse(Code.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
        if not is_join and owner_id != member_id:
            return _refuse(Code.FENCED_INSTANCE_ID, f"Static member {member_id} was fenced by member {owner_id}.")
    member = group.members.get(member_id)
    if member is None:
        if is_join:
            return _Joined(member_id or decision.state.new_uuid(), ConsumerMember(), is_new=True)
        return _refuse(Code.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.name}.")
    code = check_member_epoch(request.member_epoch, member.current, request.owned)
    return _Joined(member_id, member) if code is None else _refuse(code, _fenced(request, member.current))


def _fenced(request: ConsumerHeartbeat, current: CurrentAssignment) -> str:
    than = "greater" if request.member_epoch > current.epoch else "smaller"
    return (
        f"The consumer group member has a {than} member epoch ({request.member_epoch}) than the one known by the group"
        f" coordinator ({current.epoch}). The member must abandon all its partitions and rejoin."
    )


class _Step:
    """One heartbeat of a member that stays. Collects records, and writes them once it is sure that there is room."""

    def __init__(self, decision: Decision, group: ConsumerGroup, request: ConsumerHeartbeat, joined: _Joined) -> None:
        self._decision = decision
        self._group = group
        self._request = request
        self._member_id, self._member, self._is_new, self._replaces = joined
        self._metadata = _update_metadata(self._member.metadata, request)
        self._records: list[CoordinatorRecord] = []
        self._topics: dict[str, SubscribedTopic | None] = {}
        self._resolved: frozenset[str] = frozenset()
        """The names that the regular expression of the member matches."""
        self._computed: TargetComputed | None = None

    def take(self) -> ConsumerHeartbeatReply:
        """Decides the heartbeat."""
        group, state = self._group, self._decision.state
        if self._replaces is not None:
            self._records += make_member_tombstones(group, self._replaces)
        if self._is_new or self._replaces is not None or self._metadata != self._member.metadata:
            self._write(MEMBER, self._member_id, encode_member(self._metadata))
        try:
            self._resolve_regex()
        except Refused as refused:
            return _refuse(refused.code, refused.why)
        before = self._member.metadata
        is_subscription_new = (
            self._is_new or self._metadata.topics != before.topics or self._metadata.regex != before.regex
        )
        epoch = self._advance_group(is_subscription_new)
        target_epoch, target = self._find_target(epoch)
        topics = self._topic_ids(self._metadata.topics | self._resolved)
        wanted = Target(target_epoch, target, topics, group.is_free)
        current = reconcile(self._member.current, wanted, self._request.owned, is_subscription_new)
        if current is None:
            return _refuse(Code.FENCED_MEMBER_EPOCH, "The member is in an unknown state: it has to rejoin.")
        is_moved = current != self._member.current or self._is_new or self._replaces is not None
        if is_moved:
            self._write(CURRENT, self._member_id, encode_current(current))
        if any(len(each.value or b"") > state.settings.record_bytes_max for each in self._records):
            return _refuse(Code.UNKNOWN_SERVER_ERROR, "The member takes more bytes than a record of the log can have.")
        if not state.has_room(group.name, group.find_growth(self._records)):
            return _refuse(Code.COORDINATOR_NOT_AVAILABLE, "The groups of this broker take all memory that they may.")
        self._commit(current, is_moved)
        return self._reply(current)

    def _write(self, kind: int, part: str, value: bytes) -> None:
        self._records.append(CoordinatorRecord(encode_key(ConsumerKey(kind, self._group.name, part)), value))

    def _find_topic(self, name: str) -> SubscribedTopic | None:
        if name not in self._topics:
            self._topics[name] = self._decision.state.find_topic(name)
        return self._topics[name]

    def _topic_ids(self, names: frozenset[str]) -> frozenset[str]:
        """Returns the ids of the topics that exist."""
        return frozenset([found.topic_id for name in names if (found := self._find_topic(name)) is not None])

    def _resolve_regex(self) -> None:
        """Matches the regular expression of the member with the topics, if it is new or was matched long ago. Raises
        `Refused` if it is none."""
        regex, had, now = self._metadata.regex, self._member.metadata.regex, self._decision.now
        if had and had != regex and self._group.is_last_with_regex(had):
            key = encode_key(ConsumerKey(REGEX, self._group.name, had))
            self._records.append(CoordinatorRecord(key, None))
        if not regex:
            return
        state, known = self._decision.state, self._group.regexes.get(regex)
        version = state.metadata_version()
        is_old = known is not None and known.version != version
        if known is not None and not (is_old and now.wall_ms - known.time_ms >= state.settings.regex_refresh_ms):
            self._resolved = known.topics
            return
        if state.match_topics is None:
            why = "This broker has no engine for regular expressions; subscribe to topics by name."
            raise Refused(Code.INVALID_REGULAR_EXPRESSION, why)
        self._resolved = frozenset(filter(self._request.may_describe, state.match_topics(regex)))
        self._write(REGEX, regex, encode_regex(ResolvedRegex(self._resolved, version, now.wall_ms)))

    def _advance_group(self, is_subscription_new: bool) -> int:
        """Returns the group epoch. Compares the topics with those before if they may have changed."""
        group = self._group
        known = group.regexes.get(self._metadata.regex)
        is_resolved_anew = bool(self._metadata.regex) and (known is None or known.topics != self._resolved)
        is_checked = group.checked_version == self._decision.state.metadata_version()
        if not is_subscription_new and not is_resolved_anew and is_checked:
            return group.epoch
        names = self._metadata.topics | self._resolved | group.subscribed_topics(self._member.metadata)
        topics = {name: found for name in names if (found := self._find_topic(name)) is not None}
        topics_hash = hash_topics(topics)
        epoch = next_group_epoch(group.epoch, is_subscription_new, group.topics_hash, topics_hash)
        if epoch != group.epoch:
            self._write(GROUP, "", encode_group_epoch(GroupEpoch(epoch, topics_hash)))
        return epoch

    def _find_target(self, epoch: int) -> tuple[int, Assignment]:
        """Returns the target of the member with its epoch. Computes the targets of all members if they are old."""
        group = self._group
        before = group.targets.get(self._replaces or self._member_id, NO_PARTITIONS)
        if epoch <= group.target_epoch:
            if self._replaces is not None:
                self._write(TARGET, self._member_id, encode_target(before))
            return group.target_epoch, before
        metadata = {each: member.metadata for each, member in group.members.items() if each != self._replaces}
        metadata[self._member_id] = self._metadata
        had = {each: group.targets.get(each) for each in metadata}
        had[self._member_id] = before if self._replaces is not None else group.targets.get(self._member_id)
        assignor = choose_assignor(each.assignor for each in metadata.values())
        targets = ASSIGNORS[assignor](*self._make_assignor_input(metadata, had))
        if self._replaces is not None:
            had[self._member_id] = None
        for member_id, target in targets.items():
            if target != had[member_id]:
                self._write(TARGET, member_id, encode_target(target))
        self._write(TARGET_EPOCH, "", encode_target_epoch(epoch))
        self._computed = TargetComputed(group.name, epoch, len(metadata), assignor)
        return epoch, targets[self._member_id]

    def _make_assignor_input(
        self, metadata: dict[str, MemberMetadata], had: dict[str, Assignment | None]
    ) -> tuple[dict[str, AssignorMember], dict[str, int]]:
        group = self._group
        ids: dict[tuple[frozenset[str], str], frozenset[str]] = {}
        for each in metadata.values():
            if (each.topics, each.regex) not in ids:
                names = each.topics | self._resolved if each.regex == self._metadata.regex else group.topics_of(each)
                ids[each.topics, each.regex] = self._topic_ids(names if each.regex else each.topics)
        members = {
            member_id: AssignorMember(ids[each.topics, each.regex], had[member_id] or NO_PARTITIONS, each.instance_id)
            for member_id, each in metadata.items()
        }
        return members, {each.topic_id: each.partition_count for each in self._topics.values() if each is not None}

    def _commit(self, current: CurrentAssignment, is_moved: bool) -> None:
        """Writes the records, and sets the deadlines of the member."""
        decision, state, name = self._decision, self._decision.state, self._group.name
        classic = state.groups.get(name)
        if classic is not None:
            if name in state.log_state.groups:
                decision.write(CoordinatorRecord(group_key(name), None))
            drop_group(decision, classic)
        state.holders.claim(name, self._request.holder)
        decision.write(*self._records)
        state.log_state.consumer_groups[name].checked_version = state.metadata_version()
        if self._computed is not None:
            decision.report(self._computed)
        if self._replaces is not None:
            cancel_deadlines(decision, name, self._replaces)
        schedule_session(decision, name, self._member_id)
        if is_moved:
            schedule_rebalance(decision, name, self._member_id, ConsumerMember(self._metadata, current))

    def _reply(self, current: CurrentAssignment) -> ConsumerHeartbeatReply:
        request = self._request
        is_full = request.member_epoch == JOINING or (
            request.rebalance_timeout_ms != NO_CHANGE
            and (request.topics is not None or request.regex is not None)
            and request.owned is not None
        )
        is_told = is_full or current.assigned != self._member.current.assigned
        return ConsumerHeartbeatReply(
            Code.NONE,
            None,
            self._member_id,
            current.epoch,
            self._decision.state.find_timeouts(self._group.name).heartbeat_ms,
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
        remove_member(decision, group, member_id)
    return ConsumerHeartbeatReply(Code.NONE, None, member_id, request.member_epoch)
