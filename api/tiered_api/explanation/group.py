"""The reasons why a consumer group does not read, or is behind: its state, its members, its committed offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import NamedTuple

from tiered.groups.requests import GroupProgress
from tiered.ids import TopicPartition
from tiered.time_text import format_seconds, format_time
from tiered.value import value
from tiered_api.explanation.cause import Cause, describe_rest, first_of, plural
from tiered_api.explanation.transaction import HeldPartition, explain_held_partitions

EMPTY, PREPARING, COMPLETING = "Empty", "PreparingRebalance", "CompletingRebalance"
REBALANCING = {
    PREPARING: "send JoinGroup: its consumer has to poll, within max.poll.interval.ms",
    COMPLETING: "send SyncGroup, for which it waits for the assignment of the group's leader",
}
"""The request that members have to send, by the state of a rebalance."""
MEMBERS_NAMED = 5
LAG_MS = 60_000
"""Age from which on unread records of a group with members are a trouble."""


class GroupMember(NamedTuple):
    """A member, and how many partitions it has, None if its assignment is not of a consumer."""

    member_id: str
    client_id: str
    host: str
    partitions: int | None

    @property
    def name(self) -> str:
        """Its client id, and where it runs."""
        return f"{self.client_id} of {self.host}"


class GroupPosition(NamedTuple):
    """A partition that a group has committed, or that a member has. `committed` is None without an offset, the offsets
    of the log are None if they are not known. `oldest_ms` is the time of the oldest unread record, `last_stable` where
    read_committed consumers stop, `owner` the member that has the partition."""

    tp: TopicPartition
    committed: int | None
    log_start: int | None = None
    local_start: int | None = None
    end: int | None = None
    oldest_ms: int | None = None
    is_topic_there: bool = True
    last_stable: int | None = None
    owner: GroupMember | None = None

    @property
    def name(self) -> str:
        """Topic and partition."""
        return f"{self.tp.topic}/{self.tp.partition}"

    @property
    def lag(self) -> int:
        """Records that are not read; 0 if that is not known."""
        return 0 if self.end is None else max(0, self.end - self._first_unread)

    @property
    def is_held(self) -> bool:
        """True if an open transaction holds records that the group has not read."""
        if self.last_stable is None or self.end is None:
            return False
        return self._first_unread <= self.last_stable < self.end

    @property
    def stops_at_transaction(self) -> bool:
        """True if a read_committed consumer has read all that it may."""
        return self.is_held and self._first_unread == self.last_stable

    @property
    def reads_bucket(self) -> bool:
        """True if the leader's disk does not have the next record any more."""
        if not self.lag or self.committed is None or self.local_start is None:
            return False
        return (self.log_start or 0) <= self.committed < self.local_start

    @property
    def _first_unread(self) -> int:
        return max(self.committed or 0, self.log_start or 0)


@value
class GroupFacts:
    """A group as its coordinator knows it, and where its offsets are."""

    group: str
    coordinator: int
    state: str
    progress: GroupProgress | None
    members: Sequence[GroupMember]
    positions: Sequence[GroupPosition]
    now_ms: int
    hidden: int = 0
    """Committed offsets of topics that the caller may not describe."""
    held: Sequence[HeldPartition] = field(default_factory=tuple)
    """The first partitions that an open transaction holds."""


def explain_coordinator(group: str, why: str) -> Cause:
    """Returns that a group has no coordinator now, which moves or loads its offsets."""
    mend = "the coordinator leads a partition of __consumer_offsets: `tiered explain partition` tells what that lacks"
    return Cause("coordinator-moving", f"group {group} has no coordinator that replies: {why}", {"why": why}, mend)


def explain_group(facts: GroupFacts) -> Iterator[Cause]:
    """Yields what keeps a group from reading, and how far it is behind."""
    yield from _explain_state(facts)
    yield from _explain_members(facts)
    if all(each.committed is None for each in facts.positions):
        said = f"group {facts.group} has committed no offset that you may see"
        yield Cause("no-offsets", said, {"hidden": facts.hidden})
    yield from _explain_positions(facts)
    yield from explain_held_partitions(facts.held, sum(each.is_held for each in facts.positions))
    yield from _explain_lag(facts)


def _explain_state(facts: GroupFacts) -> Iterator[Cause]:
    progress, count = facts.progress, len(facts.members)
    values: dict[str, object] = {"state": facts.state, "coordinator": facts.coordinator, "members": count}
    since = ""
    if progress is not None:
        values |= {"since_ms": progress.since_ms, "reason": progress.reason or None}
        since = f" since {format_time(progress.since_ms)}"
    if facts.state == EMPTY:
        mend = "start its consumers"
        yield Cause("empty", f"group {facts.group} has no members{since}", values, mend)
    elif facts.state in REBALANCING:
        yield _describe_rebalance(facts, values, since)
    else:
        said = f"group {facts.group} is {facts.state}{since} with {plural(count, 'member')}"
        yield Cause("state", f"{said}, and broker {facts.coordinator} coordinates it", values)


def _describe_rebalance(facts: GroupFacts, values: dict[str, object], since: str) -> Cause:
    """Returns since when a group rebalances, and which members have not come."""
    progress = facts.progress
    awaited = progress.awaited if progress is not None else ()
    named = {each.member_id: each for each in facts.members}
    shown = [f"{name} of {named[name].host}" if name in named else name for name in awaited[:MEMBERS_NAMED]]
    more = f" and {len(awaited) - MEMBERS_NAMED} more" if len(awaited) > MEMBERS_NAMED else ""
    said = f"group {facts.group} rebalances{since}"
    if progress is not None and progress.reason:
        said = f"{said} ({progress.reason})"
    if not awaited:
        pending = progress.pending if progress is not None else 0
        said += f" and waits for {pending} new members to join" if pending else ""
        return Cause("rebalancing", said, values | {"awaited": [], "pending": pending})
    said = f"{said}: member {', '.join(shown)}{more} has not come"
    limit = format_seconds((progress.rebalance_timeout_ms if progress else 0) / 1000)
    end = f"the rebalance ends at the session timeout if it sends no heartbeats, else at its timeout of {limit}"
    mend = f"the awaited member has to {REBALANCING[facts.state]}; without it, {end}"
    return Cause("rebalancing", said, values | {"awaited": list(awaited)}, mend)


def _explain_members(facts: GroupFacts) -> Iterator[Cause]:
    """Yields the members that read nothing."""
    idle = [each for each in facts.members if each.partitions == 0]
    if not idle or facts.state in REBALANCING:
        return
    names = ", ".join(each.name for each in idle[:MEMBERS_NAMED])
    said = f"{len(idle)} of {len(facts.members)} members have no partitions: {names}"
    mend = "there are more members than partitions: stop some, or give the topics more (`tiered topic add-partitions`)"
    yield Cause("idle-members", said, {"members": [each.member_id for each in first_of(idle)]}, mend)


def _explain_positions(facts: GroupFacts) -> Iterator[Cause]:
    """Yields committed offsets that are outside of their logs, and those that only the bucket has."""
    seek = f"`tiered group seek {facts.group}`"
    gone = [each for each in facts.positions if not each.is_topic_there and each.committed is not None]
    for each in first_of(gone):
        said = f"the topic of committed offset {each.committed} of partition {each.name} does not exist"
        yield Cause("topic-gone", said, _place(each), f"`tiered group offset-delete {facts.group} -t {each.tp.topic}`")
    yield from describe_rest("topic-gone", gone, "committed offsets are of topics that do not exist")
    committed = [each for each in facts.positions if each.committed is not None]
    below = [each for each in committed if each.log_start is not None and (each.committed or 0) < each.log_start]
    for each in first_of(below):
        said = f"committed offset {each.committed} of partition {each.name} is below the log start {each.log_start}"
        lost = f"{said}: the records between are deleted"
        mend = f"the consumer goes on by its auto.offset.reset; {seek} --to start moves the group"
        yield Cause("offset-below-start", lost, _place(each), mend)
    yield from describe_rest("offset-below-start", below, "committed offsets are below a log start")
    beyond = [each for each in committed if each.end is not None and (each.committed or 0) > each.end]
    for each in first_of(beyond):
        said = f"committed offset {each.committed} of partition {each.name} is above the log end {each.end}"
        yield Cause(
            "offset-beyond-end", f"{said}: new records below it would be skipped", _place(each), f"{seek} --to end"
        )
    yield from describe_rest("offset-beyond-end", beyond, "committed offsets are above a log end")
    unknown = [each for each in facts.positions if each.is_topic_there and each.end is None]
    for each in first_of(unknown):
        topic, number = each.tp
        said = f"the end of partition {each.name} is not known: its leader does not reply"
        yield Cause("end-unknown", said, _place(each), f"see `tiered explain partition {topic} {number}`")
    yield from describe_rest("end-unknown", unknown, "partitions whose ends are not known")
    cold = [each for each in committed if each.reads_bucket]
    for each in first_of(cold):
        said = f"the group reads partition {each.name} from the bucket: the leader's disk begins at {each.local_start}"
        mend = "such reads cost requests of the bucket; local.retention.ms of the topic keeps more on disks"
        yield Cause("cold-read", f"{said}, and the committed offset is {each.committed}", _place(each), mend)
    yield from describe_rest("cold-read", cold, "partitions that the group reads from the bucket")


def _explain_lag(facts: GroupFacts) -> Iterator[Cause]:
    """Yields the lag, of each partition that has one, the oldest first."""
    behind = sorted(
        (each for each in facts.positions if each.lag), key=lambda each: (each.oldest_ms or facts.now_ms, -each.lag)
    )
    if facts.positions and not behind:
        yield Cause("no-lag", f"group {facts.group} has read all committed records", {"lag": 0})
    for each in first_of(behind):
        age = "" if each.oldest_ms is None else _format_age(facts.now_ms - each.oldest_ms)
        said = f"{plural(each.lag, 'record')} of partition {each.name} not read yet{age}"
        if each.committed is None:
            said += f": no committed offset, so the log start {each.log_start} counts"
        if each.owner is not None:
            said += f" (member {each.owner.name})"
        if each.stops_at_transaction:
            said += f": read_committed consumers stop at {each.last_stable}, for a transaction that is open"
        elif each.is_held:
            said += f": read_committed consumers get those below {each.last_stable}, where a transaction is open"
        yield Cause("lag", said, _place(each), _mend_lag(facts, each))
    yield from describe_rest("lag", behind, "partitions with records that are not read")


def _mend_lag(facts: GroupFacts, each: GroupPosition) -> str:
    """Returns the act that mends a lag; "" for a young one, which each consumer has, and while another act comes
    first: the end of a rebalance, or of a transaction."""
    if facts.state == EMPTY:
        return "start its consumers"
    if facts.state in REBALANCING or _is_young(facts, each):
        return ""
    if each.stops_at_transaction:  # the cause of the transaction names the act
        topic, number = each.tp
        return "" if each.tp in {held.tp for held in facts.held} else f"see `tiered explain partition {topic} {number}`"
    if each.owner is None:
        return "no member has the partition: see if the consumers still subscribe to the topic"
    if each.committed is None:
        commits = "its auto.offset.reset says where it begins, and enable.auto.commit or its program commits"
        return f"look at member {each.owner.name}, which commits nothing: {commits}"
    stuck = f"if the committed offset {each.committed} stays, look at member {each.owner.name}: it does not get on"
    return f"{stuck}; if the offset moves and the lag grows, add consumers up to the number of partitions"


def _is_young(facts: GroupFacts, each: GroupPosition) -> bool:
    """True if the records were not there for long, or the member had no time to commit."""
    if each.committed is None and facts.progress is not None and facts.now_ms - facts.progress.since_ms < LAG_MS:
        return True
    return each.oldest_ms is None or facts.now_ms - each.oldest_ms < LAG_MS


def _format_age(age_ms: int) -> str:
    return "" if age_ms < 1_000 else f", the oldest for {format_seconds(max(0, age_ms) / 1000)}"


def _place(each: GroupPosition) -> dict[str, object]:
    return {
        "topic": each.tp.topic,
        "partition": each.tp.partition,
        "committed_offset": each.committed,
        "log_start_offset": each.log_start,
        "local_start_offset": each.local_start,
        "last_stable_offset": each.last_stable,
        "log_end_offset": each.end,
        "lag": each.lag,
        "oldest_unread_ms": each.oldest_ms,
    }
