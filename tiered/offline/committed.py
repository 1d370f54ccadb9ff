"""Committed batches of one partition in the bucket: those of aborted transactions are left out.

The transaction index of a segment has the aborted transactions that have their marker or records in that segment. An
index may lack those whose marker is in a later segment. The producer snapshot of a segment names the transactions that
are open at its end. Therefore a reader looks at later segments until every transaction that it has met is decided.

The reader compares each outcome with the marker in the log. An index that says otherwise is damage.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

from tiered.cold.layout import SectionKind, SegmentSections
from tiered.cold.manifest import Manifest, SegmentEntry
from tiered.cold.manifest_store import ObjectMissing
from tiered.cold.stream import ColdBatches
from tiered.errors import Code, Corrupt, Refused
from tiered.ids import PartitionId
from tiered.offline.bucket import Bucket
from tiered.producers.aborted_txns import MAX_OFFSET, decode_aborted_txns
from tiered.producers.states import ProducerStates
from tiered.records.aborted import AbortedTransactions
from tiered.records.marker import decode_marker
from tiered.records.model import CONTROL, TRANSACTIONAL, WalkedBatch

_KIND = TRANSACTIONAL | CONTROL


class FalseTransactionIndex(Corrupt):
    """A transaction index and the marker in the log disagree on the outcome of a transaction."""


class DecidedBatches(NamedTuple):
    """Whole batches, and those of them that no aborted transaction wrote."""

    piece: ColdBatches
    committed: list[WalkedBatch]


async def find_undecided_offset(bucket: Bucket, manifest: Manifest) -> int | None:
    """Returns the first offset of the oldest transaction that is open at the cold end, or None.

    Its marker is not in the bucket yet. Raises `Unavailable` and `Corrupt`.
    """
    async for entry in bucket.manifests.list_newest_first(manifest, manifest.cold_end_offset):
        if not any(ref.kind == SectionKind.PRODUCERS for ref in entry.sections):
            return None
        return _first_open_offset(await bucket.reader.read_sections(entry), entry)
    return None


async def read_committed_batches(
    bucket: Bucket, partition_id: PartitionId, start: int, end: int, *, manifest: Manifest
) -> AsyncGenerator[ColdBatches]:
    """Yields whole batches as `ColdReader.iterate` does, without those of aborted transactions.

    Raises what `read_decided_batches` raises.
    """
    pieces = read_decided_batches(bucket, partition_id, start, end, manifest=manifest)
    async with aclosing(pieces):
        async for piece, committed in pieces:
            if committed:
                skipped = committed[0].position - piece.batches[0].position
                yield ColdBatches(piece.data[skipped:], committed, piece.entry)


async def read_decided_batches(
    bucket: Bucket, partition_id: PartitionId, start: int, end: int, *, manifest: Manifest
) -> AsyncGenerator[DecidedBatches]:
    """Yields whole batches as `ColdReader.iterate` does, with the outcome of their transactions.

    `manifest` may name only the segments of `[start, end)`. If a clean has replaced an object and it is gone, the rest
    is read by the newest manifest: batches and transaction indexes are always of one manifest. Raises `Refused` with
    OFFSET_OUT_OF_RANGE if a transaction below `end` is not decided in the bucket, `FalseTransactionIndex`, and what
    `iterate` raises.
    """
    at, is_retried = start, False
    while True:
        try:
            pieces = _read_by_manifest(bucket, partition_id, at, end, manifest)
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
                    at, is_retried = piece.piece.next_offset, False
            return
        except ObjectMissing as error:
            if is_retried:
                raise
            try:
                manifest, is_retried = await bucket.reader.find_newer_manifest(partition_id, at, error), True
            except Refused as refused:  # expired meanwhile, so the object is gone for good
                raise error from refused


async def _read_by_manifest(
    bucket: Bucket, partition_id: PartitionId, start: int, end: int, manifest: Manifest
) -> AsyncGenerator[DecidedBatches]:
    outcomes = _TransactionOutcomes(bucket, manifest, start)
    pieces = bucket.reader.iterate(partition_id, start, end, manifest=manifest, keeps_manifest=True)
    async with aclosing(pieces), aclosing(outcomes.entries):
        async for piece in pieces:
            if any(batch.attributes & _KIND == TRANSACTIONAL for batch in piece.batches):
                await outcomes.read_on(piece.base_offset, piece.next_offset)
            yield DecidedBatches(piece, outcomes.committed_batches(piece))


class _TransactionOutcomes:
    """The aborted transactions of a partition, read segment by segment. It holds those that end above the reader."""

    def __init__(self, bucket: Bucket, manifest: Manifest, start: int) -> None:
        self.entries = _list_entries(bucket, manifest, start)
        self._aborted = AbortedTransactions()
        self._bucket = bucket
        self._manifest = manifest
        self._decided_end = start
        self._open: dict[int, bool] = {}
        """Producer id of each transaction that the reader is in -> true if the index says that it is aborted."""

    async def read_on(self, base_offset: int, next_offset: int) -> None:
        """Reads indexes until the outcome of every transaction that begins below `next_offset` is known.

        Indexes of segments below `base_offset` are not needed.
        """
        while self._decided_end < next_offset:
            entry = await anext(self.entries, None)
            if entry is None:
                raise Refused(
                    Code.OFFSET_OUT_OF_RANGE,
                    f"a transaction is open from offset {self._decided_end} of {self._manifest.tp} on, and its end is "
                    "not in the bucket",
                )
            if entry.next_offset <= base_offset:
                continue
            sections = await self._bucket.reader.read_sections(entry)
            self._aborted.add(
                (found.producer_id, found.first_offset)
                for found in decode_aborted_txns(sections.txn_index, begin=0, end=MAX_OFFSET, where=entry.key)
                if found.last_offset >= base_offset
            )
            undecided = _first_open_offset(sections, entry)
            self._decided_end = entry.next_offset if undecided is None else min(entry.next_offset, undecided)

    def committed_batches(self, piece: ColdBatches) -> list[WalkedBatch]:
        """Returns the batches of a piece without those of aborted transactions.

        Raises `FalseTransactionIndex` at the marker of a transaction that ended otherwise.
        """
        committed: list[WalkedBatch] = []
        for batch in piece.batches:
            is_aborted = self._aborted.has_batch(batch)
            if not is_aborted:
                committed.append(batch)
            kind = batch.attributes & _KIND
            if not batch.count:  # a clean took its records
                continue
            if kind == TRANSACTIONAL:
                self._open[batch.producer_id] = is_aborted
            elif kind and (said := self._open.pop(batch.producer_id, None)) is not None:
                _check_marker(piece, batch, said)
        return committed


def _check_marker(piece: ColdBatches, marker: WalkedBatch, is_aborted: bool) -> None:
    at = marker.position - piece.batches[0].position
    if decode_marker(piece.data[at : at + marker.size]).commit == is_aborted:
        said, found = ("aborted", "committed") if is_aborted else ("committed", "aborted")
        raise FalseTransactionIndex(
            f"transaction of producer id {marker.producer_id} is {said} by the transaction index, and {found} by its "
            f"marker at offset {marker.base_offset}",
            where=piece.entry.key,
        )


async def _list_entries(bucket: Bucket, manifest: Manifest, start: int) -> AsyncGenerator[SegmentEntry]:
    """Yields the segments of the manifest from `start` on, then those after it that are in the bucket now."""
    async for entry in bucket.manifests.list_segments(manifest, start):
        yield entry
    newer = await bucket.manifests.load(manifest.partition_id)
    if newer is not None and newer.cold_end_offset > manifest.cold_end_offset:
        async for entry in bucket.manifests.list_segments(newer, manifest.cold_end_offset):
            yield entry


def _first_open_offset(sections: SegmentSections, entry: SegmentEntry) -> int | None:
    """Returns the first offset of the oldest transaction that is open at the end of a segment, or None.

    Raises `Corrupt` without a snapshot: then the outcome of the segment's transactions cannot be known.
    """
    if not sections.producers:
        raise Corrupt("segment has transactions and no producer snapshot", where=entry.key)
    states = ProducerStates.from_snapshot(sections.producers, entry.next_offset, where=entry.key)
    return states.txns.first_unstable_offset
