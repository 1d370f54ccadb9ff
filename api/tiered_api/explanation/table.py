"""The reasons why records are not in a Delta table: not loaded, behind, dead letters, or a loader that stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tiered.time_text import format_time
from tiered.value import value
from tiered_api.explanation.cause import Cause, describe_rest, first_of, plural

LOADER_MS = 15 * 60_000
"""A table that is behind and had no load for so long has no loader that runs: `--follow` looks every ten seconds."""
REASONS_NAMED = 5


class LoadedPartition(NamedTuple):
    """How far a partition is loaded, the end of its log, and the end of what the bucket has; None if not known."""

    partition: int
    next_offset: int
    log_end: int | None = None
    cold_end: int | None = None


@value
class TableFacts:
    """The facts of a table. `table` is the report on it, None if there is none; `warehouse` is the name that the
    reader gave it."""

    name: str
    warehouse: str
    table: Mapping[str, Any] | None
    partitions: Sequence[LoadedPartition]
    is_topic_there: bool
    now_ms: int


def explain_table(facts: TableFacts) -> Iterator[Cause]:
    """Yields why a record may not be in a table."""
    table, name = facts.table, facts.name
    if table is None:
        said = f"the warehouse {facts.warehouse} has no table {name}: its topic was never loaded"
        load = f"`tiered load --topic {name} --store URL --warehouse {facts.warehouse} --follow` loads it"
        yield Cause("never-loaded", said, {"table": name}, load)
        return
    if table.get("problem"):
        said = f"table {name} cannot be read: {table['problem']}"
        mend = "mend the folder of the table; `tiered table describe` reads it again"
        yield Cause("unreadable", said, {"problem": table["problem"]}, mend)
        return
    if not facts.is_topic_there:
        said = f"table {name} is of topic {table.get('topic')} with the id {table.get('topic_id')}, which is gone"
        mend = "a topic that was made anew needs another table: load it into another warehouse"
        yield Cause("topic-gone", said, {"topic": table.get("topic"), "topic_id": table.get("topic_id")}, mend)
    yield from _explain_lag(facts, table)
    yield from _explain_letters(facts, table)
    yield from _explain_verify(table)


def _explain_lag(facts: TableFacts, table: Mapping[str, Any]) -> Iterator[Cause]:
    loaded_ms = table.get("loaded_ms") or table.get("committed_ms")
    since = "" if not loaded_ms else f", and was loaded last at {format_time(loaded_ms)}"
    values: dict[str, object] = {"version": table.get("version"), "rows": table.get("rows"), "loaded_ms": loaded_ms}
    behind = [each for each in facts.partitions if each.log_end is not None and each.log_end > each.next_offset]
    unknown = [each.partition for each in facts.partitions if each.log_end is None]
    if unknown and facts.is_topic_there:
        said = f"the ends of partitions {unknown[:REASONS_NAMED]} are not known: their leaders do not reply"
        mend = f"see `tiered explain topic {table.get('topic')}`"
        yield Cause("end-unknown", said, {"partitions": unknown}, mend)
    if not behind:
        yield Cause("loaded", f"table {facts.name} has {table.get('rows')} rows{since}", values)
        return
    lag = sum((each.log_end or 0) - each.next_offset for each in behind)
    cold = sum(max(0, min(each.cold_end or 0, each.log_end or 0) - each.next_offset) for each in behind)
    age_ms = facts.now_ms - loaded_ms if loaded_ms else None
    said = f"table {facts.name} is behind by {plural(lag, 'offset')} in {plural(len(behind), 'partition')}{since}"
    load = f"`tiered load --topic {table.get('topic')} --follow` loads them"
    if cold and (age_ms is None or age_ms > LOADER_MS):
        said = f"{said}: no loader runs, and the bucket has {cold} of them"
        yield Cause("loader-stopped", said, values | {"lag": lag, "in_bucket": cold, "age_ms": age_ms}, load)
    elif cold:
        yield Cause("behind", f"{said}; the bucket has {cold} of them", values | {"lag": lag, "in_bucket": cold}, load)
    else:
        said = f"{said}: a load takes what the bucket has, and the bucket has none of them yet"
        yield Cause(
            "not-in-bucket", said, values | {"lag": lag}, "see `tiered explain topic`, and tiered.upload.max.lag.ms"
        )
    for each in first_of(behind):
        more = (each.log_end or 0) - each.next_offset
        place = {
            "partition": each.partition,
            "next_offset": each.next_offset,
            "log_end_offset": each.log_end,
            "lag": more,
        }
        yield Cause(
            "partition-behind",
            f"partition {each.partition} is loaded below offset {each.next_offset}: {more} follow",
            place,
        )
    yield from describe_rest("partition-behind", behind, "partitions are behind")


def _explain_letters(facts: TableFacts, table: Mapping[str, Any]) -> Iterator[Cause]:
    count = table.get("dead_letters")
    if not count:
        return
    reasons = [each for each in table.get("reasons") or () if isinstance(each, Mapping)]
    shown = "; ".join(f"{each.get('count')} because {each.get('why')}" for each in reasons[:REASONS_NAMED])
    said = f"{count} records did not fit the columns of the typed table and are dead letters"
    mend = f"change the columns (`tiered table change`), then `tiered table replay-dead {table.get('topic')}`"
    yield Cause("dead-letters", f"{said}{f': {shown}' if shown else ''}", {"rows": count, "reasons": reasons}, mend)


def _explain_verify(table: Mapping[str, Any]) -> Iterator[Cause]:
    verified = table.get("verified")
    if verified is None:
        yield Cause("never-verified", "no verify has proved that each loaded record is in the table once", {})
    elif not verified.get("ok"):
        mend = f"`tiered load --topic {table.get('topic')} --repair` makes the table equal to the log"
        yield Cause(
            "verify-failed", "the last verify found differences between the table and the log", dict(verified), mend
        )
