"""Logs of compacted topics, as the model of copies sees them: with every batch that was ever appended.

Each replica cleans for itself, so that copies of the same records differ. This file keeps each batch as it was appended
first, and knows which of its records some clean has removed by the rules (I26). A cleaned copy counts as the batches
that it stands for. So all other rules hold for it as for any log. A record that is missing without such a clean is
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tests.sim.cluster.expiry import LogBatch
from tests.sim.harness.compaction_rules import (
    CleanBounds,
    StoredBatch,
    check_final_state,
    check_indexes,
    judge_clean,
    read_stored,
)
from tests.sim.harness.disk import SimDisk
from tests.sim.harness.durable_bytes import Folder, Inode
from tiered.records.native import walk

_CRC = slice(17, 21)
SWAP = ".swap"
NEWEST_EPOCH = 2**31


class HeldBatch(NamedTuple):
    """A batch in a log, with its bytes."""

    batch: LogBatch
    data: bytes


def held_batches_of(data: bytes, *, check_crc: bool = False) -> list[HeldBatch]:
    """Returns the whole batches at the start of some log bytes, up to the first with a wrong CRC."""
    found = []
    for each in walk(data, check_crc=check_crc).batches:
        part = data[each.position : each.position + each.size]
        crc = int.from_bytes(part[_CRC], "big")
        batch = LogBatch(each.base_offset, each.last_offset, each.leader_epoch, crc, each.size, each.max_timestamp)
        found.append(HeldBatch(batch, part))
    return found


class CompactedLog:
    """All batches that were ever in one partition. `report` gets what breaks I26."""

    def __init__(self, name: str, report: Callable[[str, str], None]) -> None:
        self.name = name
        self.is_late = False
        """True if some copy came so late that a marker of a transaction that it has was gone. Then nothing tells it, as
        in Kafka, what became of the transaction: `delete.retention.ms` is the time that a copy has."""
        self.cleans = 0
        self.records_removed = 0
        self._report = report
        self._originals: dict[tuple[int, int], HeldBatch] = {}
        """By base offset and leader epoch."""
        self._decoded: dict[tuple[int, int], StoredBatch] = {}
        self._removed: set[tuple[int, int]] = set()
        """Offset and leader epoch of the records that a clean removed by the rules."""
        self._gone: dict[int, list[LogBatch]] = {}
        """By each of its offsets: batches that a clean removed by the rules."""
        self._decided: dict[tuple[int, int], bool] = {}
        """By base offset and leader epoch of a transactional batch in the bucket: True for a commit. Its marker may be
        lost with all disks, and the bucket still knows."""

    def report(self, what: str) -> None:
        """Reports that the log breaks I26."""
        self._report("I26", f"{self.name}: {what}")

    # -- what logs hold -----------------------------------------------------------------------------------------------

    def take(self, end: int, held: HeldBatch) -> list[LogBatch]:
        """Returns the batches that one batch at the end of a log stands for: it comes from a producer, or from the
        cleaned log of a leader."""
        known = self._originals.setdefault((held.batch.base, held.batch.epoch), held)
        if known.batch != held.batch:
            self._check_cleaned_form(known, held)
        before = self._fill(end, held.batch.base, held.batch.epoch) if end < held.batch.base else []
        for each in before or ():
            marker = self.stored(each)
            self.is_late = self.is_late or (marker.is_control and self._has_transaction(marker, end))
        return [*(before or ()), known.batch]

    def restore(self, start: int, held: Sequence[HeldBatch], end: int = -1) -> tuple[list[LogBatch], str]:
        """Returns the batches that a log or an object stands for, and the first hole in it that no clean explains, or
        "". An object goes to `end`."""
        found, at = list[LogBatch](), start
        for each in held:
            if each.batch.base > at:
                filled = self._fill(at, each.batch.base, each.batch.epoch)
                if filled is None:
                    return found, f"{self.name}: no clean has removed what is between {at} and {each.batch.base}"
                found += filled
            elif each.batch.base < at and found:
                return found, f"{self.name}: {each.batch} comes after {found[-1]}"
            known = self._originals.get((each.batch.base, each.batch.epoch))
            if known is None:
                return found, f"{self.name}: nobody has appended {each.batch}"
            if known.batch != each.batch:
                self._check_cleaned_form(known, each)
            found.append(known.batch)
            at = each.batch.last + 1
        if end > at and (filled := self._fill(at, end, NEWEST_EPOCH)) is not None:
            return [*found, *filled], ""
        return found, f"{self.name}: no clean has removed what is between {at} and {end}" if end > at else ""

    def stored(self, batch: LogBatch) -> StoredBatch:
        """Returns a batch as it was appended."""
        key = batch.base, batch.epoch
        found = self._decoded.get(key)
        if found is None:
            (found,) = read_stored(self._originals[key].data)
            self._decoded[key] = found
        return found

    def removed_offsets(self) -> frozenset[int]:
        """Returns the offsets of the records that some clean has removed by the rules. Another copy may have them."""
        return frozenset(offset for offset, _ in self._removed)

    def is_removed(self, batch: LogBatch) -> bool:
        """True if some clean has removed the batch as a whole."""
        return batch in self._gone.get(batch.base, ())

    def remains_of(self, batch: LogBatch) -> LogBatch | None:
        """Returns a batch with the time of its newest record that no clean has removed; None without any."""
        times = [
            each.timestamp for each in self.stored(batch).records if (each.offset, batch.epoch) not in self._removed
        ]
        return batch._replace(max_timestamp=max(times)) if times else None

    def _has_transaction(self, marker: StoredBatch, end: int) -> bool:
        """True if a transaction that ends with the marker began below an offset."""
        earlier = [
            each
            for each in map(self.stored, (held.batch for held in self._originals.values()))
            if each.producer_id == marker.producer_id and each.base < marker.base and each.is_transactional
        ]
        ends = [each.base for each in earlier if each.is_control]
        return any(max(ends, default=-1) < each.base < end for each in earlier if not each.is_control)

    def _fill(self, start: int, end: int, epoch_max: int) -> list[LogBatch] | None:
        """Returns the batches between two offsets, all removed by cleans, or None."""
        found, at, epoch = list[LogBatch](), start, -1
        while at < end:
            fitting = [each for each in self._gone.get(at, ()) if epoch <= each.epoch <= epoch_max and each.last < end]
            if not fitting:
                return None
            found.append(fitting[-1])
            at, epoch = found[-1].last + 1, found[-1].epoch
        return found

    def _check_cleaned_form(self, known: HeldBatch, held: HeldBatch) -> None:
        (was,), (now,) = read_stored(known.data), read_stored(held.data)
        if was.identity != now.identity:
            self.report(f"the batch {now.identity} was {was.identity}")
        records = iter(was.records)
        if not all(record in records for record in now.records):
            self.report(f"the batch at {now.base} has other records than it was appended with")
        there = {record.offset for record in now.records}
        lacks = [each.offset for each in was.records if each.offset not in there]
        missing = [offset for offset in lacks if (offset, was.epoch) not in self._removed]
        if missing:
            self.report(f"no clean has removed {missing[:5]}, which a copy lacks")

    def _decided_of(self, log: Sequence[LogBatch]) -> dict[int, bool]:
        keys = ((each.base, each.epoch) for each in log) if self._decided else ()
        return {key[0]: self._decided[key] for key in keys if key in self._decided}

    def _epochs_below(self, offset: int) -> dict[int, int]:
        """Returns the epoch of each producer that wrote records below an offset."""
        below = (self.stored(held.batch) for (base, _), held in self._originals.items() if base < offset)
        return {each.producer_id: each.producer_epoch for each in below if not each.is_control}

    # -- cleans -------------------------------------------------------------------------------------------------------

    def on_upload(self, log: Sequence[LogBatch], start: int, end: int) -> None:
        """Notes what became of the transactions of these offsets, which the bucket has from now on."""
        waiting: dict[int, list[LogBatch]] = {}
        for batch in log:
            stored = self.stored(batch)
            if stored.is_control and stored.commit is not None:
                for each in waiting.pop(stored.producer_id, ()):
                    self._decided.setdefault((each.base, each.epoch), stored.commit)
            elif stored.is_transactional and start <= batch.base < end:
                waiting.setdefault(stored.producer_id, []).append(batch)

    def on_clean(
        self,
        log: Sequence[LogBatch],
        before: bytes,
        after: bytes,
        next_offset: int,
        bounds: CleanBounds,
        ahead: bytes = b"",
    ) -> None:
        """Judges the clean of a run of segments of a copy that stands for the batches of `log`."""
        old, new = read_stored(before), read_stored(after)
        whole = [self.stored(each) for each in log]
        earlier = self._epochs_below(log[0].base) if log else {}
        for what in judge_clean(
            whole, old, new, next_offset, bounds, read_stored(ahead), self._decided_of(log), earlier
        ):
            if not self.is_late:
                self.report(what)
        self.cleans += 1
        kept = {(record.offset, batch.epoch) for batch in new for record in batch.records}
        removed = {(record.offset, batch.epoch) for batch in old for record in batch.records} - kept
        self.records_removed += len(removed)
        self._removed |= removed
        there = {batch.base for batch in new}
        for batch in old:
            if batch.base not in there:
                known = self._originals[batch.base, batch.epoch].batch
                for offset in range(batch.base, batch.last + 1):
                    gone = self._gone.setdefault(offset, [])
                    if known not in gone:
                        gone.append(known)

    def check_clean_part(self, log: Sequence[LogBatch], held: bytes, start: int, clean_to: int) -> None:
        """Judges a log that is clean up to an offset: from the log start to there, each key has one record."""
        batches = [each for each in read_stored(held) if not each.is_control]
        there = {record.offset for batch in batches for record in batch.records if start <= record.offset < clean_to}
        if self.is_late:
            return
        latest = {key: offset for offset, key, _ in self.committed_records(log) if offset in there}
        for batch in batches:
            for record in batch.records:
                if record.offset in there and record.key is not None and latest.get(record.key, -1) > record.offset:
                    after = latest[record.key]
                    self.report(f"clean up to {clean_to}, and {record.key!r} is at {record.offset} and {after}")
                    return

    def check_indexes(self, base: int, after: bytes, offsets: bytes, times: bytes) -> None:
        """Judges the indexes of a cleaned segment."""
        for what in check_indexes(base, read_stored(after), offsets, times):
            self.report(f"{what} in the segment {base}")

    # -- readers ------------------------------------------------------------------------------------------------------

    def committed_records(self, log: Sequence[LogBatch]) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Returns all records with a key of these batches, but aborted ones."""
        batches = [self.stored(each) for each in log]
        decided = self._decided_of(log)
        outcome: dict[int, bool] = {}
        waiting: dict[int, list[int]] = {}
        for batch in batches:
            if batch.is_control:
                for base in waiting.pop(batch.producer_id, ()) if batch.commit is not None else ():
                    outcome[base] = bool(batch.commit)
            elif batch.is_transactional:
                waiting.setdefault(batch.producer_id, []).append(batch.base)
        outcome.update(decided)
        for batch in batches:
            if not batch.is_control and outcome.get(batch.base, not batch.is_transactional):
                for record in batch.records:
                    if record.key is not None:
                        yield record.offset, record.key, record.value

    def check_read(
        self, log: Sequence[LogBatch], start: int, end: int, seen: Sequence[tuple[int, bytes, bytes | None]], who: str
    ) -> None:
        """Judges what a reader of committed records got that began at the log start when the stable end was `end`. The
        log starts at `start` now, which may lie inside its first batch."""
        committed = [each for each in self.committed_records(log) if each[0] >= start]
        for what in check_final_state(committed, end, seen) if not self.is_late else ():
            self.report(f"{who}: {what}")


def read_compacted_log(disk: SimDisk, directory: str) -> tuple[int, list[HeldBatch]]:
    """Returns the start of a log on a disk, and its valid batches. A swap that is not finished counts as finished, as
    the next start finishes it."""
    folder = disk._find(directory)
    names = folder.names if isinstance(folder, Folder) else {}
    files = {
        int(name[:20]): bytes(node.data)
        for name, node in sorted(names.items())
        if name.endswith(".log") and isinstance(node, Inode)
    }
    for name, node in sorted(names.items()):
        if name.endswith(".log" + SWAP) and isinstance(node, Inode):
            base, data = int(name[:20]), bytes(node.data)
            held = held_batches_of(data)
            end = held[-1].batch.last + 1 if held else base
            files = {other: each for other, each in files.items() if not base <= other < end} | {base: data}
    whole = list[HeldBatch]()
    for _, data in sorted(files.items()):
        batches = held_batches_of(data, check_crc=True)
        whole += batches
        if sum(len(each.data) for each in batches) < len(data):
            break
    return min(files, default=0), whole
