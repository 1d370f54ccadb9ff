"""Checkers of client histories: I1, I2, I4, I11 to I13, I17 and I18 of docs/internals/invariants.md, and the client's
part of I3 and I6. Pure: observations in, broken rules out.

`PartitionDump` is the content of a partition at the very end. The reference model decides if a record may be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.sim.cluster.history import (
    ClientHistory,
    CommitAttempt,
    GroupOffsets,
    Ownership,
    PollResult,
    Send,
    SendVerdict,
)
from tests.sim.cluster.observer import Finding
from tiered.errors import Code
from tiered.ids import TopicPartition

ALL = -1
LossPredicate = Callable[[TopicPartition, int, int], bool]
"""(partition, offset, since when): True if the record there may be lost."""
PromisePredicate = Callable[[Send], bool]
"""True if the acknowledgement of a send is a promise."""


@dataclass
class PartitionDump:
    """The content of one partition at the end of a run: values from `start` to `end`, and (producer id, sequence) of
    the first record of each batch."""

    start: int
    end: int
    values: dict[int, bytes] = field(default_factory=dict)
    batches: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(base offset, producer id, base sequence, count)."""


Dumps = Mapping[TopicPartition, PartitionDump]


def check_dense_offsets(dumps: Dumps) -> Iterator[Finding]:
    """I3: every offset from the log start to the end has a record."""
    for tp, dump in dumps.items():
        missing = [offset for offset in range(dump.start, dump.end) if offset not in dump.values]
        if missing:
            yield Finding("I3", f"{tp} [{dump.start}, {dump.end}) lacks {missing[:5]}")


def check_acked_records(
    history: ClientHistory, dumps: Dumps, is_promised: PromisePredicate, may_be_gone: LossPredicate
) -> Iterator[Finding]:
    """I1, I2: an acknowledged record with a promise is at its acknowledged offset, unless it may be gone or has
    expired."""
    for send in history.acked_sends():
        dump = dumps.get(send.tp)
        if dump is None or not is_promised(send):
            continue
        for number, value in enumerate(send.values):
            offset = send.base_offset + number
            if offset < dump.start or dump.values.get(offset) == value:
                continue
            if not may_be_gone(send.tp, offset, send.invoked_ns):
                found = dump.values.get(offset)
                elsewhere = next((at for at, other in dump.values.items() if other == value), None)
                rule = "I1" if elsewhere is None else "I2"
                yield Finding(
                    rule, f"{send.tp} {offset} {value[:20]!r} was acknowledged to {send.sender}, there is"
                    f" {found and found[:20]!r} in [{dump.start}, {dump.end}); it is at {elsewhere}",
                )  # fmt: skip


def check_losses_reported(
    history: ClientHistory, dumps: Dumps, is_promised: PromisePredicate, reported: Mapping[TopicPartition, list[int]]
) -> Iterator[Finding]:
    """If acknowledged records are gone, the cluster reports a loss from an offset at or below the first of them."""
    first: dict[TopicPartition, int] = {}
    for send in history.acked_sends():
        dump = dumps.get(send.tp)
        if dump is None or not is_promised(send):
            continue
        for number, value in enumerate(send.values):
            offset = send.base_offset + number
            if offset >= dump.start and dump.values.get(offset) != value:
                first[send.tp] = min(offset, first.get(send.tp, offset))
    for tp, offset in first.items():
        if min(reported.get(tp) or [offset + 1]) > offset:
            yield Finding("R4", f"{tp}: {offset} is gone, told was {reported.get(tp)}")


def check_one_value_per_offset(history: ClientHistory, dumps: Dumps, may_be_gone: LossPredicate) -> Iterator[Finding]:
    """I4: an offset has the same value for all readers, and at the end."""
    seen: dict[tuple[TopicPartition, int], tuple[bytes, PollResult]] = {}
    for poll in history.polls:
        for row in poll.rows:
            known = seen.setdefault((poll.tp, row.offset), (row.value, poll))
            if known[0] != row.value:
                if not may_be_gone(poll.tp, row.offset, known[1].at_ns - READ_DELAY_NS):
                    yield Finding("I4", f"{poll.tp} {row.offset} was {known[0][:20]!r}, then {row.value[:20]!r}")
                seen[poll.tp, row.offset] = (row.value, poll)
    for (tp, offset), (value, poll) in seen.items():
        dump = dumps.get(tp)
        if dump is None or offset < dump.start or dump.values.get(offset) == value:
            continue
        if not may_be_gone(tp, offset, poll.at_ns - READ_DELAY_NS):
            yield Finding("I4", f"{tp} {offset} was read as {value[:20]!r}, is {dump.values.get(offset)!r} now")


READ_DELAY_NS = 10_000_000_000
"""Maximum time between the loss of a committed record and the arrival of that record at a reader."""


def check_contiguous_reads(history: ClientHistory) -> Iterator[Finding]:
    """Each reader continues at its position: it skips nothing but records below the log start, and gets nothing
    twice."""
    for poll in history.polls:
        offsets = [row.offset for row in poll.rows]
        if offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            yield Finding("I3", f"{poll.reader} {poll.tp}: one poll gives {offsets}")
        if poll.is_repositioned:
            continue
        if offsets[0] < poll.position:
            yield Finding("I3", f"{poll.reader} {poll.tp}: goes back from {poll.position} to {offsets[0]}")
        if offsets[0] > max(poll.position, poll.log_start):
            yield Finding(
                "I3", f"{poll.reader} {poll.tp}: from {poll.position} to {offsets[0]}, start {poll.log_start}"
            )


def check_reads_committed(history: ClientHistory) -> Iterator[Finding]:
    """I6, as seen by clients: no record at or above the high watermark of a reply is in that reply."""
    for poll in history.polls:
        if poll.rows[-1].offset >= poll.high_watermark:
            yield Finding("I6", f"{poll.reader} {poll.tp}: {poll.rows[-1].offset} of {poll.high_watermark}")


def check_end_offsets(history: ClientHistory, may_be_gone: LossPredicate) -> Iterator[Finding]:
    """I6, as seen by clients: ListOffsets returns no end below the high watermark that its reader had seen before the
    request (KIP-207), unless records were lost since. (A fetch may: a new leader serves before it knows the high
    watermark.)"""
    known: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
    waiting: list[tuple[int, str, TopicPartition, int]] = [
        *((poll.at_ns, poll.reader, poll.tp, poll.high_watermark) for poll in history.polls),
        *((end.at_ns, end.reader, end.tp, end.offset) for end in history.end_offsets),
    ]
    waiting.sort(reverse=True)
    for end in sorted(history.end_offsets, key=lambda each: each.requested_ns):
        while waiting and waiting[-1][0] <= end.requested_ns:
            at_ns, reader, tp, offset = waiting.pop()
            if offset >= known.get((reader, tp), (0, 0))[0]:
                known[reader, tp] = offset, at_ns
        seen, at_ns = known.get((end.reader, end.tp), (0, 0))
        if end.is_sole_leader and end.offset < seen and not may_be_gone(end.tp, end.offset, at_ns - READ_DELAY_NS):
            yield Finding("I6", f"{end.tp} ends at {end.offset} for {end.reader}, who has seen {seen}: {end}")


def check_no_phantoms(history: ClientHistory, dumps: Dumps) -> Iterator[Finding]:
    """I13: each record that is read was sent to that partition, and was not refused."""
    sent = {value: send for send in history.sends for value in send.values}
    for tp, value in _values_read(history, dumps):
        send = sent.get(value)
        if send is None or send.tp != tp:
            yield Finding("I13", f"{tp} holds {value[:20]!r}, which nobody sent there")
        elif send.verdict is SendVerdict.FAILED:
            yield Finding("I13", f"{tp} holds {value[:20]!r}, which was refused")


def _values_read(history: ClientHistory, dumps: Dumps) -> Iterator[tuple[TopicPartition, bytes]]:
    for poll in history.polls:
        for row in poll.rows:
            yield poll.tp, row.value
    for tp, dump in dumps.items():
        for value in dump.values.values():
            yield tp, value


def check_no_duplicates(dumps: Dumps, may_be_gone: LossPredicate) -> Iterator[Finding]:
    """I11: every value is there once. The sequences of each producer follow each other, unless records were lost. (A
    producer without an id sends nothing twice here, so none of its values is there twice either.)"""
    for tp, dump in dumps.items():
        places: dict[bytes, int] = {}
        for offset, value in dump.values.items():
            if value in places:
                yield Finding("I11", f"{tp}: {value[:20]!r} is at {places[value]} and {offset}")
            places[value] = offset
        following: dict[int, int] = {}
        for base, producer, sequence, count in dump.batches:
            if producer < 0:
                continue
            if sequence != following.get(producer, sequence) and not may_be_gone(tp, base, 0):
                yield Finding(
                    "I11", f"{tp} {base}: producer {producer} goes on with {sequence}, not {following[producer]}"
                )
            following[producer] = sequence + count


def check_order(history: ClientHistory, dumps: Dumps, loss_times: Sequence[int] = ()) -> Iterator[Finding]:
    """I12: a record that a sender knew to be written stands before the records that it sent later. All records of one
    producer id are in order. At the times of `loss_times` a leader may have lost its state of a producer, and then
    takes any sequence, as Kafka does: of batches in flight together after that, the later one may come first."""
    for tp, dump in dumps.items():
        places = {value: offset for offset, value in dump.values.items()}
        last: dict[tuple[str, int], tuple[int, Send]] = {}
        for send in (send for send in history.sends if send.tp == tp):
            found = [places[value] for value in send.values if value in places]
            if not found:
                continue
            for key in dict.fromkeys(((send.sender, -1), (send.sender, send.producer_id))):
                before = last.get(key)
                if before is None or before[0] <= found[0]:
                    continue
                together = before[1].done_ns < 0 or before[1].done_ns > send.invoked_ns
                if not (together and any(send.done_ns < 0 or at < send.done_ns for at in loss_times)):
                    yield Finding("I12", f"{tp}: {send.values[0][:20]!r} at {found[0]} comes after {before[0]}")
            if found != sorted(found):
                yield Finding("I12", f"{tp}: {send.values[0][:20]!r} is torn: {found}")
            if send.producer_id >= 0:
                last[send.sender, send.producer_id] = (found[-1], send)
            if send.verdict is SendVerdict.OK:
                last[send.sender, -1] = (found[-1], send)


def check_single_owner(owned: Iterable[Ownership], loss_times: Sequence[int] = ()) -> Iterator[Finding]:
    """I17: a partition has one owner in each generation, and one at each moment. At the times of `loss_times` a
    coordinator or its successor may have lost its members, and then counts generations from the beginning. Therefore a
    generation counts from its begin, and not from a repeated reply."""
    by_partition: dict[tuple[str, TopicPartition], list[Ownership]] = {}
    begun: dict[tuple[str, str, int], int] = {}
    for each in owned:
        known = begun.setdefault((each.group, each.member, each.generation), each.since_ns)
        begun[each.group, each.member, each.generation] = min(known, each.since_ns)
        for tp in each.partitions:
            by_partition.setdefault((each.group, tp), []).append(each)
    for (group, tp), owners in by_partition.items():
        owners.sort(key=lambda each: each.since_ns)
        for number, each in enumerate(owners):
            since_ns = begun[group, each.member, each.generation]
            for other in owners[number + 1 :]:
                if each.member == other.member or any(since_ns <= at <= other.since_ns for at in loss_times):
                    continue
                if each.generation == other.generation:
                    yield Finding("I17", f"{group}: {tp} has two owners in generation {each.generation}")
                elif each.until_ns > other.since_ns and other.until_ns > other.since_ns:  # else its session was over
                    yield Finding("I17", f"{group}: {tp} of {each} is given to {other}")


def check_committed_offsets(
    commits: Sequence[CommitAttempt],
    fetched: Iterable[GroupOffsets],
    may_be_gone: LossPredicate = lambda where, offset, since_ns: False,
) -> Iterator[Finding]:
    """I18: the committed offset of a group is that of the last commit that was acknowledged before the request, or of a
    later commit. A commit that got no reply may arrive long after its client gave it up. It counts while its generation
    lasts, as in Kafka. A coordinator that loads its groups cuts an offset back to the end of a partition that lost
    records."""
    for said in fetched:
        for tp in sorted({each.tp for each in commits if each.group == said.group}):
            mine = [each for each in commits if (each.group, each.tp) == (said.group, tp)]
            known = [each for each in mine if each.code is Code.NONE and each.done_ns <= said.requested_ns]
            sure = max(known, key=lambda each: each.invoked_ns, default=None)
            may = [each for each in mine if each.invoked_ns <= said.answered_ns]
            allowed = {each.offset for each in may if sure is None or _may_follow(each, sure)}
            found = said.offsets.get(tp, -1)
            cut_back = any(_may_be_cut_back(tp, offset, found, may_be_gone) for offset in allowed)
            if found not in allowed and (sure is not None or found != -1) and not cut_back:
                possible = f"acknowledged was {sure}, possible {sorted(allowed)[:9]}"
                yield Finding("I18", f"{said.group} {tp} is at {found} at {said.answered_ns}, {possible}")


def _may_follow(commit: CommitAttempt, sure: CommitAttempt) -> bool:
    is_late = commit.code is None and commit.generation >= sure.generation
    return is_late or commit.done_ns >= sure.invoked_ns


def check_commit_generations(
    commits: Iterable[CommitAttempt], owned: Iterable[Ownership], loss_times: Sequence[int] = ()
) -> Iterator[Finding]:
    """I18: no commit of a generation is accepted after a later generation has begun. (At the times of `loss_times` a
    coordinator may count from the beginning.)"""
    begun = sorted((each.since_ns, each.generation, each.group) for each in owned)
    for commit in commits:
        if commit.code is not Code.NONE or commit.generation < 0:
            continue
        for since_ns, generation, group in begun:
            if since_ns >= commit.invoked_ns or group != commit.group:
                continue
            if generation > commit.generation and not any(since_ns <= at <= commit.done_ns for at in loss_times):
                yield Finding("I18", f"{commit} is accepted, though generation {generation} began at {since_ns}")
                break


DEPOSED_NS = 10_000_000_000
"""Maximum time in which a leader that others cannot reach goes on after an unclean election."""


def check_offsets_stable(
    commits: Sequence[CommitAttempt],
    fetched: Iterable[tuple[GroupOffsets, bool]],
    loss_times: Sequence[int] = (),
    may_be_gone: LossPredicate = lambda where, offset, since_ns: False,
) -> Iterator[Finding]:
    """I18: an offset that any coordinator returned stays, while no commit is requested that may follow it: the next
    reply of a sole coordinator is the same. At the times of `loss_times` it may be lost. So may a commit that the
    leader before an unclean election took until it heard of that. A coordinator that loads its groups cuts an offset
    back to the end of a partition that lost records, however long ago."""
    asked: dict[tuple[str, TopicPartition, int], list[CommitAttempt]] = {}
    for commit in commits:
        if commit.code in MAYBE_COMMITTED_CODES:
            asked.setdefault((commit.group, commit.tp, commit.offset), []).append(commit)
    last: dict[tuple[str, TopicPartition], tuple[int, GroupOffsets]] = {}
    by_end = sorted((said for said, _ in fetched), key=lambda said: said.answered_ns, reverse=True)
    for said in sorted((said for said, sure in fetched if sure), key=lambda said: said.requested_ns):
        while by_end and by_end[-1].answered_ns <= said.requested_ns:
            before = by_end.pop()
            for tp, offset in before.offsets.items():
                last[before.group, tp] = offset, before
        for (group, tp), (offset, before) in last.items():
            found = said.offsets.get(tp, -1)
            if group != said.group or found == offset:
                continue
            earlier = [each.invoked_ns for each in asked.get((group, tp, offset), ())]
            since_ns = min((at for at in earlier if at <= before.answered_ns), default=0)
            later = (
                each
                for each in asked.get((group, tp, found), ())
                if each.invoked_ns <= said.answered_ns and (each.code is not Code.NONE or each.done_ns >= since_ns)
            )
            lost = any(since_ns - DEPOSED_NS <= at <= said.answered_ns for at in loss_times)
            if next(later, None) is None and not lost and not _may_be_cut_back(tp, offset, found, may_be_gone):
                yield Finding(
                    "I18", f"{group} {tp} was shown at {offset} at {before.answered_ns}, and at {found} at"
                    f" {said.answered_ns}; no commit put it there since",
                )  # fmt: skip


MAYBE_COMMITTED_CODES = (
    None,
    Code.NONE,
    Code.NOT_COORDINATOR,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
)
"""Codes of a commit that may be in the log. A commit that waits for replicas fails when its coordinator moves, when the
coordinator loads its groups again, and when replicas leave the ISR. It stays in the log, as in Kafka."""


def _may_be_cut_back(tp: TopicPartition, offset: int, found: int, may_be_gone: LossPredicate) -> bool:
    """True if a coordinator may have cut a committed offset back to the end of the remaining log of its partition."""
    return 0 <= found < offset and may_be_gone(tp, found, 0)


def check_late_commits(commits: Iterable[CommitAttempt], loss_times: Sequence[int] = ()) -> Iterator[Finding]:
    """I18: no commit of a member epoch that a member of a consumer group has left is accepted. (After the times of
    `loss_times` a coordinator may count from the beginning.)"""
    for commit in commits:
        if commit.code is Code.NONE and not any(at <= commit.done_ns for at in loss_times):
            yield Finding("I18", f"{commit.group}: {commit} was accepted, and its member has another epoch")


def check_generations_grow(owned: Sequence[Ownership], loss_times: Sequence[int] = ()) -> Iterator[Finding]:
    """I17: a member that joins a group gets no generation below one that another member had learned of by then."""
    for one in owned:
        for other in owned:
            if one.group != other.group or not 0 <= one.since_ns <= other.requested_ns:
                continue
            lost = any(one.requested_ns <= at <= other.since_ns for at in loss_times)
            if other.generation < one.generation and not lost:
                yield Finding("I17", f"{one.group}: generation {other.generation} after {one.generation}: {other}")
