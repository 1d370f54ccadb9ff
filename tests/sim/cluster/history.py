"""History of requests and replies of the clients, and the meaning of error codes: the observations that the checkers
judge.

A send is `OK` (acknowledged), `FAILED` (surely not applied) or `UNKNOWN`; `verdict_of` derives that from the error
code. One code is ambiguous: an acks=all request that is pending when leadership ends gets NOT_LEADER, and the record
may survive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tiered.errors import Code
from tiered.ids import TopicPartition


class SendVerdict(Enum):
    """Outcome of a request, as far as its sender can tell."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


NOT_APPLIED_CODES = {
    Code.NOT_ENOUGH_REPLICAS,
    Code.CORRUPT_MESSAGE,
    Code.MESSAGE_TOO_LARGE,
    Code.RECORD_LIST_TOO_LARGE,
    Code.INVALID_RECORD,
    Code.INVALID_REQUEST,
    Code.INVALID_REQUIRED_ACKS,
    Code.INVALID_TIMESTAMP,
    Code.INVALID_PRODUCER_EPOCH,
    Code.UNSUPPORTED_VERSION,
    Code.INVALID_TOPIC_EXCEPTION,
}
NOT_APPLIED_IF_SENT_ONCE = {
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.LEADER_NOT_AVAILABLE,
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Code.UNKNOWN_PRODUCER_ID,
}
"""Codes that prove that a request had no effect, if it was sent once and did not wait for other replicas."""


def verdict_of(code: Code, *, acks: int, attempts: int) -> SendVerdict:
    """Returns the verdict that an error code implies for the `attempts`-th attempt of a send."""
    if code in (Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER):
        return SendVerdict.OK
    if attempts > 1:
        return SendVerdict.UNKNOWN
    if code in NOT_APPLIED_CODES or (acks != -1 and code in NOT_APPLIED_IF_SENT_ONCE):
        return SendVerdict.FAILED
    if code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return SendVerdict.FAILED
    return SendVerdict.UNKNOWN


@dataclass(slots=True)
class Send:
    """One batch of a sender with unique values. `done_ns` and `base_offset` are -1 until they are known."""

    sender: str
    number: int
    tp: TopicPartition
    values: tuple[bytes, ...]
    acks: int
    invoked_ns: int
    producer_id: int = -1
    sequence: int = -1
    done_ns: int = -1
    verdict: SendVerdict = SendVerdict.UNKNOWN
    base_offset: int = -1
    attempts: int = 0


class ReadRecord(NamedTuple):
    """A record as a reader got it."""

    offset: int
    value: bytes


class PollResult(NamedTuple):
    """Result of one fetch: `rows` from `position` on, and the offsets that the partition reported. `is_repositioned` is
    true if the reader chose the position, so that it does not follow from the previous poll. `log_start` is the highest
    start that the reader was told since then."""

    reader: str
    tp: TopicPartition
    at_ns: int
    position: int
    is_repositioned: bool
    rows: tuple[ReadRecord, ...]
    log_start: int
    high_watermark: int


class EndOffsetReply(NamedTuple):
    """Log end that ListOffsets reported to a reader. `is_sole_leader` is true if one broker led the partition all the
    time and no other could have replied."""

    reader: str
    tp: TopicPartition
    requested_ns: int
    at_ns: int
    offset: int
    is_sole_leader: bool


class Ownership(NamedTuple):
    """A time span in which a member of a group owned these partitions: from its assignment until it gave them up, or
    until its session ended."""

    group: str
    member: str
    generation: int
    partitions: tuple[TopicPartition, ...]
    since_ns: int
    until_ns: int
    requested_ns: int = -1
    """Time of the request to join that generation; -1 if unknown."""


class CommitAttempt(NamedTuple):
    """An offset that a member of a generation committed; `code` is that of the reply, None for no reply."""

    group: str
    tp: TopicPartition
    offset: int
    invoked_ns: int
    done_ns: int
    code: Code | None
    generation: int = -1


class GroupOffsets(NamedTuple):
    """Committed offsets of a group as its coordinator returned them."""

    group: str
    offsets: dict[TopicPartition, int]
    requested_ns: int
    answered_ns: int


@dataclass
class ClientHistory:
    """The history of one run, in the order of events."""

    sends: list[Send] = field(default_factory=list)
    polls: list[PollResult] = field(default_factory=list)
    end_offsets: list[EndOffsetReply] = field(default_factory=list)
    ownerships: list[Ownership] = field(default_factory=list)
    consumer_ownerships: list[Ownership] = field(default_factory=list)
    """Those of consumer groups (KIP-848). The generation is the member epoch: each member has its own."""
    commits: list[CommitAttempt] = field(default_factory=list)
    late_commits: list[CommitAttempt] = field(default_factory=list)
    """Commits of members of consumer groups with an epoch that they have left."""
    group_offsets: list[GroupOffsets] = field(default_factory=list)
    offsets_shown: list[tuple[GroupOffsets, bool]] = field(default_factory=list)
    """Replies of coordinators to the periodic offset reader; the flag is true if no other broker could have replied for
    the group."""
    codes: dict[str, int] = field(default_factory=dict)
    """Number of replies with each error code."""

    def count_code(self, code: Code) -> None:
        """Counts the error code of a reply."""
        self.codes[code.name] = self.codes.get(code.name, 0) + 1

    def acked_sends(self) -> Iterator[Send]:
        """Returns sends that were acknowledged with an offset."""
        return (send for send in self.sends if send.verdict is SendVerdict.OK and send.base_offset >= 0)
