"""Rules of compaction, as a reference over the whole history of a log says them. Pure: batches in, broken rules out.

`judge_clean` compares the batches of a run of segments before and after a clean. The history says which record of each
key is the last one, which transactions were aborted, and how far a clean may go. It has every batch as it was appended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from types import MappingProxyType
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.records.batch import decode_header, decode_records
from tiered.records.marker import decode_marker
from tiered.records.model import DELETE_HORIZON, HEADER_BYTES, Record

NOTHING_DECIDED: Mapping[int, bool] = MappingProxyType({})
NO_PRODUCERS: Mapping[int, int] = MappingProxyType({})

_POSITION, _TIME = Struct(">ii"), Struct(">qi")


class StoredBatch(NamedTuple):
    """One batch in a log or an object. `commit` is None unless the batch has a marker. `horizon_ms` is the delete
    horizon, None without one."""

    position: int
    base: int
    last: int
    epoch: int
    producer_id: int
    producer_epoch: int
    sequence: int
    is_transactional: bool
    is_control: bool
    commit: bool | None
    horizon_ms: int | None
    max_timestamp: int
    records: tuple[Record, ...]

    @property
    def identity(self) -> tuple[int | bool, ...]:
        """All that no clean changes."""
        return (
            self.base, self.last, self.epoch, self.producer_id, self.producer_epoch, self.sequence,
            self.is_transactional, self.is_control,
        )  # fmt: skip


def read_stored(data: bytes) -> list[StoredBatch]:
    """Returns the whole batches at the start of some log bytes."""
    found, at = list[StoredBatch](), 0
    while at + HEADER_BYTES <= len(data):
        head = decode_header(data, at)
        if at + head.size > len(data):
            break
        commit = None
        if head.is_control and head.count:
            try:
                commit = decode_marker(data[at : at + head.size]).commit
            except Corrupt:
                commit = None
        found.append(
            StoredBatch(
                at, head.base_offset, head.last_offset, head.leader_epoch, head.producer_id, head.producer_epoch,
                head.base_sequence, head.is_transactional, head.is_control, commit,
                head.base_timestamp if head.attributes & DELETE_HORIZON else None, head.max_timestamp,
                tuple(decode_records(data, at)) if head.count else (),
            )
        )  # fmt: skip
        at += head.size
    return found


class CleanBounds(NamedTuple):
    """All that bounds one clean, beside the history. A record that is younger than `newest_ms` supersedes nothing
    (min.compaction.lag.ms)."""

    high_watermark: int
    active_base: int
    now_ms: int
    delete_retention_ms: int
    newest_ms: int = 2**62
    keeps_tombstones: bool = False
    log_start: int = 0
    """Nobody asks for what lies below."""
    first_dirty: int = 2**62
    """Delete horizons of batches that end at or above it come from another clean. They count anew."""

    def find_horizon(self, batch: StoredBatch) -> int | None:
        """Returns the delete horizon of a batch before the clean, None if the clean is the first that may set it."""
        return batch.horizon_ms if batch.last < self.first_dirty else None


@dataclass
class History:
    """The content of a whole log. `limit` is the offset from which on a clean changes nothing, `why` the reason."""

    limit: int
    why: str
    latest: dict[bytes, int] = field(default_factory=dict)
    """By key: the offset of its last committed record below the limit."""
    markers: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """By base offset of a transactional batch: the offset of its marker, and True for a commit."""
    last_of_producers: dict[int, int] = field(default_factory=dict)
    """By producer id: the base offset of the batch that has its last sequence, or its last epoch."""

    @classmethod
    def of(
        cls,
        batches: Sequence[StoredBatch],
        bounds: CleanBounds,
        decided: Mapping[int, bool] = NOTHING_DECIDED,
        earlier_epochs: Mapping[int, int] = NO_PRODUCERS,
    ) -> History:
        """Reads a whole history, in the order of its offsets. `decided` has the base offset of each transactional batch
        that is in the bucket, and True for a commit: the log may have lost its marker since. `earlier_epochs` has the
        epoch of each producer that wrote records below the first batch: a marker of that epoch says nothing new."""
        found = cls(bounds.high_watermark, "the high watermark")
        waiting: dict[int, list[int]] = {}
        epochs = dict(earlier_epochs)
        for batch in batches:
            producer_id = batch.producer_id
            if producer_id >= 0:
                if not batch.is_control or batch.producer_epoch > epochs.get(producer_id, -1):
                    found.last_of_producers[producer_id] = batch.base
                epochs[producer_id] = batch.producer_epoch
            if batch.is_control:
                for base in waiting.pop(producer_id, ()) if batch.commit is not None else ():
                    if decided.get(base, batch.commit) == batch.commit:
                        found.markers[base] = batch.base, bool(batch.commit)
                    else:
                        found.markers[base] = base, decided[base]
            elif batch.is_transactional:
                waiting.setdefault(producer_id, []).append(batch.base)
        for base in [base for bases in waiting.values() for base in bases if base in decided]:
            found.markers[base] = base, decided[base]
        # A log may have lost a transaction that began below its start.
        undecided = [
            base
            for bases in waiting.values()
            for base in bases
            if base >= bounds.log_start and base not in found.markers
        ]
        undecided += [base for base, (marker, _) in found.markers.items() if marker >= bounds.high_watermark]
        for offset, why in ((min(undecided, default=found.limit), "the last stable offset"), (bounds.active_base,
            "the active segment")):  # fmt: skip
            if offset < found.limit:
                found.limit, found.why = offset, why
        for batch in batches:
            if batch.base >= found.limit:
                break
            if not batch.is_control and not found.is_aborted(batch):
                found.latest.update(
                    (record.key, record.offset)
                    for record in batch.records
                    if record.key is not None and record.offset < found.limit and record.timestamp <= bounds.newest_ms
                )
        return found

    def is_aborted(self, batch: StoredBatch) -> bool:
        """True if a marker says so."""
        return batch.is_transactional and not self.markers.get(batch.base, (0, True))[1]


def judge_clean(
    whole: Sequence[StoredBatch],
    before: Sequence[StoredBatch],
    after: Sequence[StoredBatch],
    next_offset: int,
    bounds: CleanBounds,
    ahead: Sequence[StoredBatch] = (),
    decided: Mapping[int, bool] = NOTHING_DECIDED,
    earlier_epochs: Mapping[int, int] = NO_PRODUCERS,
) -> Iterator[str]:
    """Reports what a clean of the segments up to `next_offset` did wrong. `ahead` are the batches below them that are
    in the log now. For `decided` and `earlier_epochs` see `History.of`."""
    history = History.of(whole, bounds, decided, earlier_epochs)
    if next_offset > history.limit:
        yield f"a clean goes up to {next_offset}, {history.why} is {history.limit}"
    old = {batch.base: batch for batch in before}
    new = {batch.base: batch for batch in after}
    yield from _check_kept_batches(old, after, bounds)
    yield from _check_new_horizons(old, [*ahead, *after], history, bounds)
    for batch in before:
        if batch.last < bounds.log_start:
            continue
        kept = new.get(batch.base)
        if batch.is_control:
            if batch.records and (kept is None or not kept.records):
                yield from _check_marker(batch, [*ahead, *after], history, bounds)
            continue
        there = {record.offset for record in kept.records} if kept is not None else set[int]()
        for record in batch.records:
            if record.offset not in there:
                yield from _check_removed(batch, record, history, bounds)
                if record.value is None and record.key is not None:
                    yield from _check_deleted(record, [*ahead, *after], history, bounds)
    for producer_id, base in history.last_of_producers.items():
        if base in old and old[base].last < bounds.log_start:
            continue
        # A marker without its record tells a follower nothing, so that a follower need not keep it.
        if base in old and base not in new and not (old[base].is_control and not old[base].records):
            yield f"the batch at {base} is gone, it has the last sequence of producer {producer_id}"
    ends = [each[-1].last + 1 if each else -1 for each in (before, after)]
    if ends[0] == next_offset != ends[1]:
        yield f"the last batch of the segment is gone: it ends at {ends[1]}, not at {ends[0]}"


def _check_kept_batches(
    old: dict[int, StoredBatch], after: Sequence[StoredBatch], bounds: CleanBounds
) -> Iterator[str]:
    last = -1
    for batch in after:
        was = old.get(batch.base)
        if batch.base <= last:
            yield f"the batch at {batch.base} comes after {last}"
        last = batch.last
        if was is None or was.identity != batch.identity:
            yield f"the batch at {batch.base} is {batch.identity}, was {was.identity if was else 'not there'}"
            continue
        records = iter(was.records)
        if not all(record in records for record in batch.records):
            yield f"the batch at {batch.base} has other records than before, or in another order"
        horizon_ms, earliest_ms = batch.horizon_ms, bounds.now_ms + bounds.delete_retention_ms
        old_ms = bounds.find_horizon(was)
        if old_ms is not None and horizon_ms != old_ms and batch.records:
            yield f"the delete horizon of the batch at {batch.base} moves from {old_ms} to {horizon_ms}"
        elif old_ms is None and horizon_ms is not None and horizon_ms < earliest_ms:
            yield f"the delete horizon of the batch at {batch.base} is {earliest_ms - horizon_ms} ms too early"


def _check_new_horizons(
    old: Mapping[int, StoredBatch], there: Sequence[StoredBatch], history: History, bounds: CleanBounds
) -> Iterator[str]:
    """The time of a tombstone begins with the clean that leaves no older record of its key."""
    oldest = dict[bytes, int]()
    for batch in there:
        was = old.get(batch.base)
        begins = was is not None and bounds.find_horizon(was) is None and batch.horizon_ms is not None
        for record in batch.records if not batch.is_control and not history.is_aborted(batch) else ():
            if record.key is None or record.offset < bounds.log_start:
                continue
            at = oldest.setdefault(record.key, record.offset)
            if begins and record.value is None and at < record.offset:
                yield f"the tombstone at {record.offset} of {record.key!r} gets its horizon, its key is at {at}"


def _check_removed(batch: StoredBatch, record: Record, history: History, bounds: CleanBounds) -> Iterator[str]:
    """A record goes if it is aborted, has no key, has a successor, or is a tombstone whose horizon is over."""
    is_aborted = history.is_aborted(batch) and batch.base < history.limit
    if record.offset < bounds.log_start or record.key is None or is_aborted:
        return
    latest = history.latest.get(record.key, -1)
    if latest > record.offset:
        return
    if record.value is not None:
        yield f"the record at {record.offset} is gone, it is the last one of {record.key!r}"
        return
    horizon_ms = bounds.find_horizon(batch)
    if bounds.keeps_tombstones or horizon_ms is None or horizon_ms > bounds.now_ms:
        horizon = "none" if horizon_ms is None else f"{horizon_ms - bounds.now_ms} ms ahead"
        yield f"the tombstone at {record.offset} of {record.key!r} is gone, its delete horizon is {horizon}"


def _check_deleted(
    tombstone: Record, there: Iterable[StoredBatch], history: History, bounds: CleanBounds
) -> Iterator[str]:
    """A tombstone that is the last record of its key goes once no older one is there: that would come back."""
    if history.latest.get(tombstone.key or b"", -1) != tombstone.offset:
        return
    for batch in there:
        if batch.is_control or history.is_aborted(batch):
            continue
        for record in batch.records:
            if record.key == tombstone.key and bounds.log_start <= record.offset < tombstone.offset:
                yield f"the tombstone at {tombstone.offset} of {record.key!r} is gone, its key is at {record.offset}"
                return


def _check_marker(
    marker: StoredBatch, there: Iterable[StoredBatch], history: History, bounds: CleanBounds
) -> Iterator[str]:
    """A marker goes once no record of its transaction is there and its horizon is over."""
    for batch in there:
        if batch.records and not batch.is_control and history.markers.get(batch.base, (-1, True))[0] == marker.base:
            yield f"the marker at {marker.base} is gone, records of its transaction are at {batch.base}"
            return
    horizon_ms = bounds.find_horizon(marker)
    if horizon_ms is None or horizon_ms > bounds.now_ms:
        yield f"the marker at {marker.base} is gone, its delete horizon is {horizon_ms}"


def check_indexes(base: int, after: Sequence[StoredBatch], offsets: bytes, times: bytes) -> Iterator[str]:
    """Reports entries of the indexes of a cleaned segment that are not about its batches."""
    at = {batch.position: batch for batch in after}
    for relative, position in _POSITION.iter_unpack(offsets):
        batch = at.get(position)
        if batch is None or not batch.base <= base + relative <= batch.last:
            yield f"the offset index names {base + relative} at {position}"
            return
    known = {(batch.max_timestamp, batch.last) for batch in after if batch.records}
    spans = [(batch.max_timestamp, batch.base, batch.last) for batch in after if batch.records]
    for timestamp, relative in _TIME.iter_unpack(times):
        offset = base + relative
        if (timestamp, offset) not in known and not any(
            timestamp == newest and first <= offset <= last for newest, first, last in spans
        ):
            yield f"the time index names {timestamp} at {offset}"
            return


def check_final_state(
    committed: Sequence[tuple[int, bytes, bytes | None]], end: int, seen: Sequence[tuple[int, bytes, bytes | None]]
) -> Iterator[str]:
    """Reports keys of which a reader that began at the log start, when `end` was the end, got an older state.
    `committed` has all committed records of today from the log start on, in order."""
    before, today = dict[bytes, tuple[int, bytes | None]](), dict[bytes, int]()
    for offset, key, value in committed:
        today[key] = offset
        if offset < end:
            before[key] = offset, value
    last: dict[bytes, int] = {}
    for offset, key, _ in seen:
        if offset < last.get(key, -1):
            yield f"{key!r} at {offset} comes after {last[key]}"
        last[key] = offset
    for key, (offset, value) in before.items():
        if value is not None and last.get(key, -1) < offset and today[key] == offset:
            yield f"{key!r} was written at {offset}, a reader from the start got {last.get(key, 'nothing')}"
