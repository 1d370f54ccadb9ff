"""Segment objects of cleaned batches, with indexes and sections, in place of a run of segments.

Pure. Keeps I26. The objects cover the offsets of the run without a gap. The last one has the producer snapshot of the
run's end. An object before it has none of its own: a snapshot without producers says that no transaction is open, which
is true of the batches that stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tiered.cold.layout import SectionKind, SegmentFacts, SegmentSections, build_trailer
from tiered.cold.manifest import SegmentEntry
from tiered.hot.index import IndexBuilder
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.ids import PartitionId
from tiered.ports import Buffer
from tiered.producers.aborted_txns import AbortedTxn, encode_aborted_txns
from tiered.producers.states import ProducerStates
from tiered.records.model import NO_TIMESTAMP, WalkedBatch
from tiered.records.native import crc32c


class CleanedRun(NamedTuple):
    """The segments that are replaced, oldest first, and the sections of the newest one."""

    replaced: Sequence[SegmentEntry]
    sections: SegmentSections

    @property
    def base_offset(self) -> int:
        """Returns the first offset of the run."""
        return self.replaced[0].base_offset

    @property
    def next_offset(self) -> int:
        """Returns the offset after the run."""
        return self.replaced[-1].next_offset

    def is_unchanged(self, data: Buffer) -> bool:
        """True if these bytes are those of the only segment of the run."""
        only = self.replaced[0]
        return len(self.replaced) == 1 and len(data) == only.log_bytes and crc32c(data) == only.log_crc


class CleanedObject:
    """The log part of one object, as it grows batch by batch."""

    def __init__(self, base_offset: int, index_interval: int) -> None:
        self.base_offset = base_offset
        self.data = bytearray()
        self._index = IndexBuilder(base_offset, index_interval)
        self._record_count = 0
        self._base_timestamp = NO_TIMESTAMP
        self._is_time_unset = False

    def add(self, data: Buffer, batches: Sequence[WalkedBatch]) -> None:
        """Adds whole batches, which are all of `data`."""
        for batch in batches:
            position = len(self.data) + batch.position - batches[0].position
            self._index.add_batch(position, batch.size, batch.last_offset, batch.max_timestamp)
            self._record_count += batch.count
            self._is_time_unset |= batch.is_time_unset
            if self._base_timestamp < 0 and batch.count:
                self._base_timestamp = batch.first_timestamp
        self.data += data

    def finish(
        self,
        partition_id: PartitionId,
        leader_epoch: int,
        key: str,
        run: CleanedRun,
        next_offset: int,
        aborted: Iterable[AbortedTxn],
        lineage_section: bytes,
        now_ms: int,
    ) -> tuple[SegmentEntry, bytes]:
        """Returns the entry of the object, which ends before `next_offset`, and the bytes after its log part.

        `aborted` are the aborted transactions whose marker stays in it. `lineage_section` is the lineage of the log up
        to its end.
        """
        self._index.finish()
        lineage = LeaderEpochs(row for each in run.replaced for row in each.lineage)
        facts = SegmentFacts(
            base_offset=self.base_offset,
            next_offset=next_offset,
            base_timestamp=self._base_timestamp if self._record_count else run.replaced[0].base_timestamp,
            max_timestamp=NO_TIMESTAMP if self._is_time_unset else self._index.max_timestamp,
            record_count=self._record_count,
            log_bytes=len(self.data),
            crc=crc32c(self.data),
        )
        is_last = next_offset == run.next_offset
        trailer, refs = build_trailer(
            partition_id,
            leader_epoch,
            facts,
            {
                SectionKind.OFFSET_INDEX: bytes(self._index.offsets),
                SectionKind.TIME_INDEX: bytes(self._index.times),
                SectionKind.TXN_INDEX: encode_aborted_txns(aborted),
                SectionKind.PRODUCERS: run.sections.producers if is_last else ProducerStates().encode_snapshot(),
                SectionKind.LINEAGE: lineage_section,
            },
        )
        entry = SegmentEntry(
            key=key,
            base_offset=self.base_offset,
            next_offset=next_offset,
            leader_epoch=leader_epoch,
            lineage=lineage.lineage_within(self.base_offset, next_offset),
            base_timestamp=facts.base_timestamp,
            max_timestamp=facts.max_timestamp,
            record_count=facts.record_count,
            log_bytes=facts.log_bytes,
            log_crc=facts.crc,
            object_bytes=facts.log_bytes + len(trailer),
            sections=refs,
            uploaded_ms=max(each.uploaded_ms for each in run.replaced),
            cleaned_ms=now_ms,
        )
        return entry, trailer


def split_batches(
    data: Buffer, batches: list[WalkedBatch], room: int
) -> Iterable[tuple[memoryview, list[WalkedBatch]]]:
    """Yields all batches of `data`, which begins with the first one, in pieces of at most `room` bytes, unless a batch
    alone is larger."""
    view, first = memoryview(data), 0
    while first < len(batches):
        begin, last = batches[first].position, first
        while last + 1 < len(batches) and batches[last + 1].position + batches[last + 1].size - begin <= room:
            last += 1
        start = begin - batches[0].position
        yield view[start : start + batches[last].position + batches[last].size - begin], batches[first : last + 1]
        first = last + 1
