"""Makes a raw table anew from the bucket beside the old one, and exchanges both in one commit.

The ordinary loader fills a hidden table in the old one's folder. So a kill costs a round at most, two rebuilds at once
fill one table together, and no other state exists. The hidden table is compared with the bucket. Then it catches up
with the old one, and the exchange is committed if nobody else has committed since: readers see the old rows or the new
ones. A load that runs meanwhile goes on from the offsets that the exchange sets. Rows that come after the comparison
are not compared.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pyspark_tiered.delta import topic_table
from pyspark_tiered.delta.data_files import read_places
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.log_folder import UnclearOutcome
from pyspark_tiered.delta.rebuild_folder import folder_of, next_number
from pyspark_tiered.delta.snapshot import Snapshot
from pyspark_tiered.load.load import DEFAULT_OPTIONS, Report, TopicLoader, stop_error
from pyspark_tiered.load.native_engine import NativeEngine, OnTask
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.log.bucket import ColdTopicReader, check_table, check_topic, never_loaded
from pyspark_tiered.log.plan import ColdTopic
from pyspark_tiered.proof.comparison import read_cold_topic
from pyspark_tiered.proof.erasures import Erasure, read_erasures
from pyspark_tiered.proof.exchange import (
    check_rebuildable,
    exchange_actions,
    exchange_operation,
    plan_advances,
)
from pyspark_tiered.proof.verify import verify_raw
from tiered.errors import Code, Corrupt, Refused, Unavailable

log = logging.getLogger(__name__)

ATTEMPTS = 20
"""Exchanges in a row before which other writers may commit."""


@dataclass(frozen=True, slots=True)
class RebuildProgress:
    """Progress of a rebuild: loaded, verified, behind (another writer came first) or exchanged; counted: a dry run.

    `rows` are those of the new table; in a dry run, the offsets that are left to load. `lost` are rows of the old table
    that the bucket no longer holds.
    """

    step: str
    table: str
    rows: int = 0
    lost: int = 0


def rebuild(
    store: str,
    topic: str,
    warehouse: str,
    progress: Callable[[RebuildProgress], None] = lambda _: None,
    *,
    accept_lost: int = 0,
    dry_run: bool = False,
    on_load: Report = lambda _: None,
    on_task: OnTask = lambda *_: None,
) -> RebuildProgress:
    """Rebuilds the table `<warehouse>/<topic>`. Another call after a kill goes on where the first one was. A dry run
    makes the same checks, and writes nothing. `on_load` and `on_task` hear of the load and of the comparison.

    Raises `Refused` if there is no such table or topic, a rebuild cannot keep what the table holds, or more rows than
    `accept_lost` are no longer in the bucket. Raises `Corrupt` if a segment cannot be read.
    """
    check_topic(store, topic)
    url = f"{spark_url(warehouse)}/{topic}"
    check_table(topic, url)
    topic_id = read_cold_topic(store, topic).topic_id
    with closing(NativeTable(url, topic, topic_id)) as old, closing(NativeEngine(on_task)) as engine:
        _, number, lost = _check(store, old, accept_lost)
        hidden = f"{url}/{folder_of(number, topic)}"
        with closing(ColdTopicReader(store)) as reader, closing(engine.open_table(hidden, topic, topic_id)) as new:
            if dry_run:
                counted = RebuildProgress("counted", url, _count_left(store, new), lost)
                progress(counted)
                return counted
            loader = TopicLoader(engine, reader, store, topic, hidden, on_load, None, DEFAULT_OPTIONS)
            with closing(loader):
                _load(loader, topic)
                progress(RebuildProgress("loaded", url, _count_rows(new.pin())))
                _verify(engine, store, new)
                progress(RebuildProgress("verified", url, _count_rows(new.pin())))
                for _ in range(ATTEMPTS):
                    at, found, lost = _check(store, old, accept_lost)
                    if found != number:
                        log.info("another rebuild has exchanged the tables table=%s", url)
                        return RebuildProgress("exchanged", url, _count_rows(at))
                    made = new.pin()
                    if _exchange(old, at, made, number):
                        done = RebuildProgress("exchanged", url, _count_rows(made), lost)
                        progress(done)
                        return done
                    progress(RebuildProgress("behind", url, _count_rows(made)))
                    _load(loader, topic)
    raise Unavailable(f"{ATTEMPTS} times in a row other writers of {url} committed first: try again")


def _load(loader: TopicLoader, topic: str) -> None:
    loader.run()
    if loader.stops:
        raise stop_error(topic, loader.stops)


def _verify(engine: NativeEngine, store: str, new: NativeTable) -> None:
    """Raises `Corrupt` if the hidden table is not equal to the bucket."""

    def read_log() -> tuple[ColdTopic, Sequence[Erasure]]:
        return read_cold_topic(store, new.topic), ()

    found = verify_raw(engine, store, read_log, new)
    if not found.ok:
        first = found.faults[0]
        raise Corrupt(
            f"the rebuilt table has {len(found.faults)} faults, the first at {first.partition}@{first.offset}: "
            f"{first.kind}. The old table is as it was",
            where=new.url,
        )


def _check(store: str, old: NativeTable, accept_lost: int) -> tuple[Snapshot, int, int]:
    """Returns the old table as it is now, the number of its next rebuild, and how many of its rows would be lost.

    Erasures are read after the version: one that commits later changes the version, so the exchange fails. Raises
    `Refused` if the table must not be rebuilt.
    """
    at = old.pin()
    if at.version < 0:
        raise never_loaded(old.topic, old.url)
    cold = read_cold_topic(store, old.topic)
    erased = sum(each.rows for each in read_erasures(old.url, old.topic_id))
    check_rebuildable(at.state, old.url, cold, erased)
    topic_table.check_accounted(at)
    starts = {each.partition: each.log_start_offset for each in cold.partitions}
    number = next_number(at.state)
    lost = _count_below(old, at, starts)
    if lost:  # the rebuild may have loaded some of them while the bucket had them
        with closing(NativeTable(f"{old.url}/{folder_of(number, old.topic)}", old.topic, old.topic_id)) as new:
            lost -= _count_below(new, new.pin(), starts)
    if lost.total() > accept_lost:
        raise Refused(
            Code.OFFSET_OUT_OF_RANGE,
            f"the table at {old.url} holds {lost.total():,} rows that the bucket no longer has, and a rebuild would "
            f"lose them: `--accept-lost {lost.total()}` says that this is meant",
        )
    return at, number, lost.total()


def _count_below(table: NativeTable, at: Snapshot, starts: Mapping[int, int]) -> Counter[int]:
    """Returns how many rows of each partition lie below its start. Reads files only if their statistics leave it
    open."""
    import pyarrow.compute as pc

    found: Counter[int] = Counter()
    highest = max(starts.values(), default=0)
    for file in at.files() if at.version >= 0 and highest else ():
        least = (_stats(file.add).get("minValues") or {}).get("offset", 0)
        if least >= highest:
            continue
        for batch in read_places(table.folder, file.add, file.form):
            for number, start in starts.items():
                is_below = pc.and_(pc.equal(batch["partition"], number), pc.less(batch["offset"], start))
                found[number] += pc.sum(is_below).as_py() or 0
    return found


def _count_left(store: str, new: NativeTable) -> int:
    """Returns how many offsets the hidden table lacks."""
    loaded = new.pin().loaded_offsets()
    ends = [
        (each.readable_end_offset, max(each.log_start_offset, loaded.get(each.partition, 0)))
        for each in read_cold_topic(store, new.topic).partitions
    ]
    return sum(max(end - start, 0) for end, start in ends)


def _count_rows(at: Snapshot) -> int:
    return sum(int(_stats(add).get("numRecords", 0)) for add in at.state.files.values())


def _stats(add: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(add.get("stats") or "{}"))


def _exchange(old: NativeTable, at: Snapshot, made: Snapshot, number: int) -> bool:
    """Commits the exchange. Returns false if the new table is behind, or another writer came first."""
    advances = plan_advances(at.loaded_offsets(), made.loaded_offsets())
    if advances is None:
        return False
    removed, added = list(at.state.files.values()), list(made.state.files.values())

    def actions(now_ms: int) -> list[str]:
        return exchange_actions(removed, added, number, old.topic, old.topic_id, advances, now_ms)

    mark = old.encode_mark([], advances, checked=at.version, identifiers=len(made.loaded_offsets()), rebuilt=number)
    operation = exchange_operation(len(removed), len(added))
    try:
        return old.create(actions, lambda state: state.version == at.version, mark, operation)
    except UnclearOutcome as failure:
        log.warning("exchange has an unknown outcome, table read again table=%s why=%s", old.url, failure)
        return next_number(old.pin().state) > number
