"""One step of one member of a consumer group that joins or stays, by either protocol.

A step compares what the member says with the log: its metadata, the group epoch, the target of all members if the group
epoch has grown, and the next assignment of this member on its way to its target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered.groups.consumer.assignment import NO_PARTITIONS, Assignment, AssignorMember
from tiered.groups.consumer.assignors import ASSIGNORS, choose_assignor
from tiered.groups.consumer.epochs import SubscribedTopic, hash_topics, next_group_epoch
from tiered.groups.consumer.group import ConsumerGroup, ConsumerMember
from tiered.groups.consumer.migration import Upgrade, drop_classic_group
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
    schedule_rebalance,
    schedule_session,
)
from tiered.groups.decision import Decision
from tiered.groups.requests import TargetComputed
from tiered.shard import CoordinatorRecord


class FoundMember(NamedTuple):
    """The member of a request. `replaces` is the member id of the static member whose place it takes, else None."""

    member_id: str
    member: ConsumerMember
    is_new: bool = False
    replaces: str | None = None


class Claim(NamedTuple):
    """The words of a member in its request: what it joins with, and what it owns (None: it did not say).

    `holder` is that of a new group. `may_describe` is True for a topic that a regular expression may match.
    """

    metadata: MemberMetadata
    owned: Assignment | None
    holder: str = ""
    may_describe: Callable[[str], bool] = lambda topic: True


class MemberStep:
    """One step. `decide` collects records, `commit` writes them. `upgrade` makes a classic group this group first."""

    def __init__(
        self,
        decision: Decision,
        group: ConsumerGroup,
        found: FoundMember,
        claim: Claim,
        upgrade: Upgrade | None = None,
    ) -> None:
        self._decision = decision
        self._group = group
        self._claim = claim
        self._member_id, self._member, self._is_new, self._replaces = found
        self._metadata = claim.metadata
        self._upgrade = upgrade
        self._records: list[CoordinatorRecord] = []
        self._topics: dict[str, SubscribedTopic | None] = {}
        self._resolved: frozenset[str] = frozenset()
        """The names that the regular expression of the member matches."""
        self._computed: TargetComputed | None = None
        self._current, self._is_moved = found.member.current, False

    def decide(self) -> CurrentAssignment:
        """Returns the next assignment of the member. Raises `Refused`, and then nothing has changed."""
        group = self._group
        if self._replaces is not None:
            self._records += make_member_tombstones(group, self._replaces)
        if self._is_new or self._replaces is not None or self._metadata != self._member.metadata:
            self._write(MEMBER, self._member_id, encode_member(self._metadata))
        self._resolve_regex()
        before = self._member.metadata
        is_subscription_new = (
            self._is_new or self._metadata.topics != before.topics or self._metadata.regex != before.regex
        )
        epoch = self._advance_group(is_subscription_new)
        target_epoch, target = self._find_target(epoch)
        topics = self._topic_ids(self._metadata.topics | self._resolved)
        wanted = Target(target_epoch, target, topics, group.is_free)
        current = reconcile(self._member.current, wanted, self._claim.owned, is_subscription_new)
        if current is None:
            raise Refused(Code.FENCED_MEMBER_EPOCH, "The member is in an unknown state: it has to rejoin.")
        is_moved = current != self._member.current or self._is_new or self._replaces is not None
        if is_moved:
            self._write(CURRENT, self._member_id, encode_current(current))
        self._check_room()
        self._current, self._is_moved = current, is_moved
        return current

    def _check_room(self) -> None:
        """Raises `Refused` if the log or the memory of the broker has no room for the records."""
        group, state, upgrade = self._group, self._decision.state, self._upgrade
        records = self._records if upgrade is None else [*upgrade.records, *self._records]
        if any(len(each.value or b"") > state.settings.record_bytes_max for each in records):
            raise Refused(Code.UNKNOWN_SERVER_ERROR, "The member takes more bytes than a record of the log can have.")
        growth = group.find_growth(self._records) + (0 if upgrade is None else upgrade.growth)
        if not state.has_room(group.name, growth):
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, "The groups of this broker take all memory that they may.")

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
        self._resolved = frozenset(filter(self._claim.may_describe, state.match_topics(regex)))
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

    def commit(self) -> None:
        """Writes the records, and sets the deadlines of the member."""
        decision, state, name = self._decision, self._decision.state, self._group.name
        holder = state.holders.find(name) or self._claim.holder
        drop_classic_group(decision, name, is_upgraded=self._upgrade is not None)
        state.holders.claim(name, holder)
        if self._upgrade is not None:
            decision.write(*self._upgrade.records)
            for member_id, member in self._group.members.items():
                schedule_session(decision, name, member_id, member.metadata)
        decision.write(*self._records)
        state.log_state.consumer_groups[name].checked_version = state.metadata_version()
        if self._computed is not None:
            decision.report(self._computed)
        if self._replaces is not None:
            cancel_deadlines(decision, name, self._replaces)
        schedule_session(decision, name, self._member_id, self._metadata)
        if self._is_moved or self._metadata.classic != self._member.metadata.classic:
            schedule_rebalance(decision, name, self._member_id, ConsumerMember(self._metadata, self._current))
