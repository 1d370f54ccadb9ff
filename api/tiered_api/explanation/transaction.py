"""The open transaction that holds a partition: one sentence for partitions, fetches, segments, topics and groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tiered.ids import TopicPartition
from tiered.time_text import format_seconds, format_time
from tiered_api.explanation.cause import Cause, plural
from tiered_api.kafka.protocol.messages.describe_log_dirs import ReportedLeader

TRANSACTION_MEND = "`tiered transaction list` finds the transaction, and `tiered transaction abort` ends it"


class HoldingTransaction(NamedTuple):
    """The transaction that holds the last stable offset, by its coordinator. `is_hanging`: no coordinator knows it. The
    name is "" if it is not known, or the caller may not see it."""

    transactional_id: str = ""
    state: str = ""
    timeout_ms: int = -1
    is_hanging: bool = False


class HeldPartition(NamedTuple):
    """A partition as its leader reports it, and the open transaction there, None if it is not known."""

    tp: TopicPartition
    leader: ReportedLeader
    transaction: HoldingTransaction | None = None


def explain_held_partitions(held: Sequence[HeldPartition], count: int) -> Iterator[Cause]:
    """Yields the transactions of the first of `count` partitions that transactions hold."""
    for each in held:
        yield from explain_last_stable(each)
    more = count - len(held)
    if more > 0:
        said = f"and {plural(more, 'more partition')} with a transaction that is open"
        yield Cause("open-transaction", said, {"more": more}, TRANSACTION_MEND)


def explain_last_stable(held: HeldPartition) -> Iterator[Cause]:
    """Yields the open transaction that holds the last stable offset: since when, and its timeout. Topics, groups and
    fetches have the same sentence."""
    leader, topic, number = held.leader, held.tp.topic, held.tp.partition
    if leader.last_stable >= leader.high_watermark:
        return
    values: dict[str, object] = {"topic": topic, "partition": number}
    values |= {"last_stable_offset": leader.last_stable, "high_watermark": leader.high_watermark}
    stop = f"read_committed consumers and uploads stop at offset {leader.last_stable} of partition {topic}/{number}"
    if leader.producer_id < 0:
        yield Cause("marker-uncommitted", f"{stop}: the marker of the last transaction is not committed yet", values)
        return
    found = held.transaction or HoldingTransaction()
    name = found.transactional_id
    values |= {
        "producer_id": leader.producer_id,
        "transactional_id": name or None,
        "start_offset": leader.transaction_start,
        "since_ms": leader.transaction_since_ms,
        "timeout_ms": found.timeout_ms if found.timeout_ms >= 0 else None,
        "state": found.state or None,
    }
    whose = f"producer id {leader.producer_id}" + (f" (transactional id {name})" if name else "")
    since = f"open since {format_time(leader.transaction_since_ms)}"
    if found.is_hanging:
        abort = f"`tiered transaction abort -t {topic} -p {number} --start-offset {leader.transaction_start}` ends it"
        said = f"{stop}: the transaction of {whose} is {since}, and no coordinator will end it"
        yield Cause("hanging-transaction", said, values, abort)
        return
    timeout = f", with a timeout of {format_seconds(found.timeout_ms / 1000)}" if found.timeout_ms >= 0 else ""
    mend = f"it ends at its timeout; `tiered transaction abort {name}` ends it now" if name else TRANSACTION_MEND
    yield Cause("open-transaction", f"{stop}: the transaction of {whose} is {since}{timeout}", values, mend)
