"""Checkers of transactions: I14, I15 and the producers' part of I16. Pure: observations in, broken rules out.

`WholeLog` is the content of a partition at the very end. Its markers say what became of each transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.sim.cluster.committed_reader import CommittedPoll, LoggedBatch
from tests.sim.cluster.observer import Finding
from tests.sim.cluster.transactional_client import Outcome, SimTransaction
from tiered.ids import TopicPartition


class EndedTransaction(NamedTuple):
    """A transaction in one log. The marker is at `end`, -1 for none."""

    producer_id: int
    first: int
    end: int
    is_commit: bool


@dataclass
class WholeLog:
    """The records of one partition at the end of a run, by what became of them."""

    end: int = 0
    committed: dict[int, bytes] = field(default_factory=dict)
    aborted: dict[int, bytes] = field(default_factory=dict)
    open: dict[int, bytes] = field(default_factory=dict)
    transactions: list[EndedTransaction] = field(default_factory=list)

    @classmethod
    def of(cls, batches: Iterable[LoggedBatch]) -> WholeLog:
        """Returns what the markers of a log say."""
        log = cls()
        waiting: dict[int, tuple[int, dict[int, bytes]]] = {}
        for batch in batches:
            log.end = batch.last + 1
            if batch.is_commit is not None:
                first, rows = waiting.pop(batch.producer_id, (-1, {}))
                (log.committed if batch.is_commit else log.aborted).update(rows)
                if first >= 0:
                    log.transactions.append(EndedTransaction(batch.producer_id, first, batch.base, batch.is_commit))
                continue
            rows = {batch.base + number: value for number, value in enumerate(batch.values)}
            if batch.is_transactional:
                waiting.setdefault(batch.producer_id, (batch.base, {}))[1].update(rows)
            else:
                log.committed.update(rows)
        for producer_id, (first, rows) in waiting.items():
            log.open.update(rows)
            log.transactions.append(EndedTransaction(producer_id, first, -1, False))
        return log


Logs = Mapping[TopicPartition, WholeLog]


def check_all_or_none(transactions: Iterable[SimTransaction], logs: Logs) -> Iterator[Finding]:
    """I14: a transaction is committed in all of its partitions or in none. It is committed if its client was told so,
    and it is not if nobody asked for it. I16: a producer that was fenced writes nothing."""
    committed = {tp: set(log.committed.values()) for tp, log in logs.items()}
    for each in transactions:
        name = f"transaction {each.number} of {each.producer} (id {each.producer_id}, epoch {each.epoch})"
        seen = [value for tp, values in each.values.items() for value in values if value in committed.get(tp, ())]
        count = sum(map(len, each.values.values()))
        if each.is_fenced:
            places = _places(each, logs)
            if places:
                yield Finding("I16", f"{name} was fenced before it began, and has records: {places}")
        elif each.outcome is Outcome.COMMITTED and len(seen) != count:
            yield Finding("I14", f"{name} is committed, {len(seen)} of {count} records are: {_places(each, logs)}")
        elif each.outcome is Outcome.ABORTED and seen:
            yield Finding("I14", f"{name} is aborted, and {seen[0][:20]!r} is committed: {_places(each, logs)}")
        elif each.outcome is Outcome.UNKNOWN and len(seen) not in (0, count):
            yield Finding("I14", f"{name}: {len(seen)} of {count} records are committed: {_places(each, logs)}")


def _places(transaction: SimTransaction, logs: Logs) -> str:
    found = []
    for tp, values in transaction.values.items():
        log = logs[tp]
        for kind, rows in (("committed", log.committed), ("aborted", log.aborted), ("open", log.open)):
            offsets = [offset for offset, value in rows.items() if value in values]
            found += [f"{tp} {kind} at {offsets}"] if offsets else []
    return ", ".join(found)


def check_each_once(logs: Logs) -> Iterator[Finding]:
    """I14: no record is committed twice."""
    for tp, log in logs.items():
        places: dict[bytes, int] = {}
        for offset, value in log.committed.items():
            if value in places:
                yield Finding("I14", f"{tp}: {value[:20]!r} is committed at {places[value]} and {offset}")
            places[value] = offset


def check_replies(polls: Iterable[CommittedPoll]) -> Iterator[Finding]:
    """I14: no reply goes beyond the last stable offset in it. Its list of aborted transactions is sorted."""
    for poll in polls:
        what = f"{poll.reader} reads {poll.tp} from {poll.position}"
        if poll.last_batch_end > poll.last_stable_offset and poll.last_batch_end > poll.position:
            yield Finding(
                "I14", f"{what} to {poll.last_batch_end}, the last stable offset is {poll.last_stable_offset}"
            )
        if poll.last_stable_offset > poll.high_watermark:
            yield Finding("I14", f"{what}: stable to {poll.last_stable_offset} of {poll.high_watermark}")
        firsts = [first for _, first in poll.aborted]
        if firsts != sorted(firsts):
            yield Finding("I14", f"{what}: the list of aborted transactions is not sorted: {poll.aborted}")


def check_committed_reads(polls: Iterable[CommittedPoll], logs: Logs) -> Iterator[Finding]:
    """I14: a reader of committed records gets all of them and no other."""
    for poll in polls:
        log, what = logs[poll.tp], f"{poll.reader} reads {poll.tp} from {poll.position}"
        rows = dict(poll.rows)
        for offset, value in rows.items():
            if log.committed.get(offset) != value:
                kind = "aborted" if offset in log.aborted else "open" if offset in log.open else "not there"
                yield Finding("I14", f"{what} and gets {value[:20]!r} at {offset}, which is {kind}: {poll.aborted}")
                break
        missed = [
            offset
            for offset in range(max(poll.position, poll.log_start), min(poll.next_offset, log.end))
            if offset in log.committed and offset not in rows
        ]
        if missed:
            yield Finding("I14", f"{what} to {poll.next_offset} and does not get {missed[:5]}: {poll.aborted}")


def check_nothing_early(transactions: Sequence[SimTransaction], polls: Iterable[CommittedPoll]) -> Iterator[Finding]:
    """I14: no reader gets a record before its producer asked for the commit."""
    asked = {
        (tp, value): each.commit_ns for each in transactions for tp, values in each.values.items() for value in values
    }
    for poll in polls:
        for _, value in poll.rows:
            commit_ns = asked.get((poll.tp, value), 0)
            if commit_ns < 0 or commit_ns > poll.at_ns:
                yield Finding("I14", f"{poll.reader} gets {value[:20]!r} of {poll.tp}, whose commit nobody asked for")
                break


class ShownOffset(NamedTuple):
    """The offset of the chain as its coordinator returned it."""

    tp: TopicPartition
    offset: int
    at_ns: int


def check_offsets_shown(transactions: Iterable[SimTransaction], shown: Iterable[ShownOffset]) -> Iterator[Finding]:
    """I15: no offset is shown before the commit of its transaction was asked for, and never one that was aborted."""
    writers: dict[tuple[TopicPartition, int], list[SimTransaction]] = {}
    for each in transactions:
        for place in each.offsets.items():
            writers.setdefault(place, []).append(each)
    for told in shown:
        may = [each for each in writers.get((told.tp, told.offset), ()) if each.outcome is not Outcome.ABORTED]
        if told.offset >= 0 and not any(0 <= each.commit_ns <= told.at_ns for each in may):
            yield Finding("I15", f"offset {told.offset} of {told.tp} is shown, no transaction has committed it")


class StableOffset(NamedTuple):
    """The stable offset of a group, as the only possible coordinator returned it to a request of `asked_ns`."""

    tp: TopicPartition
    offset: int
    asked_ns: int


def check_last_offset_stays(
    transactions: Sequence[SimTransaction], stable: Iterable[StableOffset]
) -> Iterator[Finding]:
    """I15: of the offsets that are committed for a partition, the one that was written last stays. A transaction whose
    commit was acknowledged before the request has ended for a stable offset."""
    writers = {place: each for each in transactions for place in each.offsets.items()}
    for told in stable:
        writer = writers.get((told.tp, told.offset))
        written_ns = writer.offsets_written_ns if writer is not None else -1
        for each in transactions:
            is_committed = each.outcome is Outcome.COMMITTED and each.done_ns <= told.asked_ns
            if is_committed and told.tp in each.offsets and each.offsets_sent_ns > written_ns:
                what = f"{each.offsets[told.tp]} of {each.producer} was written later, and is committed"
                yield Finding("I15", f"offset {told.offset} of {told.tp} is shown, {what}")
                break


def check_copies(source: TopicPartition, target: TopicPartition, offset: int, logs: Logs) -> Iterator[Finding]:
    """I15: the copies of the committed records below the committed offset are there, each once, and no others."""
    wanted = [value for at, value in logs[source].committed.items() if at < offset]
    found = [value.partition(b":")[2] for value in logs[target].committed.values()]
    missing = [value for value in wanted if value not in set(found)]
    if missing:
        yield Finding("I15", f"{source} is copied to {offset}, and the copy {missing[0][:20]!r} is not committed")
    strange = [value for value in found if value not in set(wanted)]
    if strange:
        yield Finding("I15", f"{source} is copied to {offset}, and {strange[0][:20]!r} is in {target}")
    if len(found) != len(set(found)):
        yield Finding("I15", f"{target} has copies twice")
