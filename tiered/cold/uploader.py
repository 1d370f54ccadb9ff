"""Copies closed segments to the bucket: objects first, manifest second, one object at a time per partition.

Memory does not grow with the segment: `proving` reads pieces, the upload streams from the file.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from tiered.cold.layout import SectionKind, build_trailer, segment_key
from tiered.cold.manifest import Manifest, SegmentEntry, Submanifests
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.planner import next_upload
from tiered.cold.segment_check import ClosedSegment, check_segment
from tiered.errors import Corrupt, Fenced, Unavailable
from tiered.hot.checkpoints import encode_lineage
from tiered.hot.leader_epochs import LeaderEpochs, Lineage
from tiered.ids import PartitionId
from tiered.metrics import Metrics
from tiered.ports import Clock, FileSlice, NotFound, ObjectStore, Ok, Rng

log = logging.getLogger(__name__)

TOGETHER_BYTES = 512 << 20
"""What one change of the manifest may name: where segments close faster than the bucket takes manifests, requests are
saved, and no more than this is ever in the bucket without a name."""


class LogSections(Protocol):
    """The small files beside a local segment, as bytes; positions and offsets relative to the place asked for."""

    @property
    def offset_index(self) -> bytes: ...
    @property
    def time_index(self) -> bytes: ...
    @property
    def txn_index(self) -> bytes: ...
    @property
    def producer_snapshot(self) -> bytes | None: ...


class TieredLog(Protocol):
    """What the uploader needs of a local log."""

    @property
    def epochs(self) -> LeaderEpochs:
        """Who wrote what, from the log start on."""

    def closed_segments(self) -> Sequence[ClosedSegment]:
        """Oldest first."""

    def segment_data(self, base_offset: int, *, from_offset: int | None = None) -> LogSections:
        """Of the segment `base_offset`; with `from_offset`, as if the segment began there: offsets relative to it,
        positions relative to the first batch that reaches it."""


class Uploader:
    """Uploads for all partitions of one broker. One call at a time per partition."""

    def __init__(self, store: ObjectStore, manifests: ManifestStore, clock: Clock, rng: Rng, metrics: Metrics) -> None:
        self._store = store
        self._manifests = manifests
        self._clock = clock
        self._random = rng.stream("uploader")
        self._keys_in_flight: dict[PartitionId, set[str]] = {}
        self._bytes = metrics.counter("tiered_upload_bytes_total", "Bytes of cold segments put into the bucket")
        self._segments = metrics.counter("tiered_upload_segments_total", "Segments uploaded, by outcome", ("outcome",))

    def keys_in_flight(self, partition_id: PartitionId) -> frozenset[str]:
        """Objects being uploaded, or whose manifest change is undecided: no garbage, although nothing names them."""
        return frozenset(self._keys_in_flight.get(partition_id, ()))

    def forget(self, partition_id: PartitionId) -> None:
        """The partition is led elsewhere: what was undecided is for the next leader to judge."""
        self._keys_in_flight.pop(partition_id, None)

    async def upload_next(
        self, source: TieredLog, manifest: Manifest, epoch: int, stable_offset: int
    ) -> Manifest | None:
        """Makes the oldest closed segments above the cold end and below `stable_offset` cold, as many as are closed by
        then and one change of the manifest may name; None when there is none.

        `manifest` must have been taken over under `epoch`. Fenced: step down. Unavailable: the object may be there and
        even named; call again. Corrupt: the local copy does not prove itself. Segments before the one that failed
        are cold then all the same, and the next call tells of it.
        """
        if manifest.leader_epoch != epoch:
            raise Fenced(f"{manifest.partition_id}: the manifest is under epoch {manifest.leader_epoch}, not {epoch}")
        given = manifest
        if self.keys_in_flight(manifest.partition_id):
            manifest = await self._resolve_undecided(manifest, epoch)
        entries: list[SegmentEntry] = []
        planned = manifest
        while sum(entry.object_bytes for entry in entries) < TOGETHER_BYTES:
            try:
                entry = await self._next_object(source, planned, epoch, stable_offset)
            except (Unavailable, Corrupt):
                if not entries:
                    raise
                break
            if entry is None:
                break
            entries.append(entry)
            planned = planned.add(entry)
        if entries:
            return await self._add_to_manifest(manifest, epoch, entries)
        return manifest if manifest != given else None

    async def _next_object(
        self, source: TieredLog, manifest: Manifest, epoch: int, stable_offset: int
    ) -> SegmentEntry | None:
        """The object of the segment that follows this manifest, proved and put; None when there is none."""
        closed = source.closed_segments()
        plan = next_upload(closed, manifest, stable_offset)
        if plan is None:
            return None
        segment = next(s for s in closed if s.base_offset == plan.base_offset)
        cut, facts, wrote = await check_segment(segment, plan.from_offset, may_begin_before=not manifest.nodes)
        log_part = FileSlice(segment.log.file, segment.log.start + cut, facts.log_bytes)
        rebase = facts.base_offset != segment.base_offset
        sections = source.segment_data(segment.base_offset, from_offset=facts.base_offset if rebase else None)
        lineage = tuple(row for row in source.epochs.lineage if row[1] < facts.next_offset)
        tail, refs = build_trailer(manifest.partition_id, epoch, facts, _section_bytes(sections, lineage))
        key = segment_key(manifest.partition_id, facts.base_offset, epoch, f"{self._random.getrandbits(128):032x}")
        entry = SegmentEntry(
            key=key,
            base_offset=facts.base_offset,
            next_offset=facts.next_offset,
            leader_epoch=epoch,
            lineage=wrote,
            base_timestamp=facts.base_timestamp,
            max_timestamp=facts.max_timestamp,
            record_count=facts.record_count,
            log_bytes=facts.log_bytes,
            log_crc=facts.crc,
            object_bytes=facts.log_bytes + len(tail),
            sections=refs,
            uploaded_ms=self._clock.wall_ms(),
        )
        await self._upload_object(manifest, epoch, entry, log_part, tail)
        return entry

    async def _resolve_undecided(self, manifest: Manifest, epoch: int) -> Manifest:
        """The manifest once an earlier change, whose outcome nobody learnt, is decided. Nothing is sent before: while
        manifests cannot be written, the bucket would fill with copies of one segment."""
        written = await self._manifests.take_over(manifest.partition_id, manifest.topic, epoch)
        self._keys_in_flight.pop(manifest.partition_id, None)
        return written

    async def _upload_object(
        self, manifest: Manifest, epoch: int, entry: SegmentEntry, log_part: FileSlice, tail: bytes
    ) -> None:
        partition_id, key = manifest.partition_id, entry.key
        self._keys_in_flight.setdefault(partition_id, set()).add(key)
        try:
            await self._put_and_verify(key, log_part, tail, entry.object_bytes)
        except BaseException:
            # never offered to a manifest: an orphan, whenever it lands
            self._keys_in_flight.get(partition_id, set()).discard(key)
            self._manifests.mark_orphans(partition_id)
            self._segments.inc(1, "failed")
            raise

    async def _put_and_verify(self, key: str, log_part: FileSlice, tail: bytes, object_bytes: int) -> None:
        """The object is in the bucket, whole: its size and its last bytes are read back."""
        result = await self._store.upload(key, [log_part, tail])
        if not isinstance(result, Ok):
            raise Unavailable(f"upload of {key} did not succeed: {result!r}")
        got = await self._store.get(key, log_part.length, len(tail))
        if isinstance(got, NotFound) or got.size != object_bytes or got.data != tail:
            raise Unavailable(f"{key} does not read back as it was uploaded")
        self._bytes.inc(object_bytes)

    async def _add_to_manifest(self, manifest: Manifest, epoch: int, entries: Sequence[SegmentEntry]) -> Manifest:
        """The manifest names the objects. While that is undecided, their keys stay busy."""
        partition_id = manifest.partition_id

        def add(current: Manifest, _: Submanifests) -> Manifest:
            # Moved by an earlier, then undecided change of this very leader: that one's objects are named, or these.
            if current.cold_end_offset != manifest.cold_end_offset:
                return current
            for entry in entries:
                current = current.add(entry)
            return current

        try:
            written = await self._manifests.change(partition_id, manifest.topic, epoch, add)
        except Fenced:
            self.forget(partition_id)
            self._segments.inc(len(entries), "fenced")
            raise
        self._keys_in_flight.pop(partition_id, None)
        named = {node.key for node in written.nodes}
        for entry in entries:
            self._segments.inc(1, "copied" if entry.key in named else "failed")
            if entry.key in named:
                log.info(
                    "segment is cold partition=%s base=%d next=%d bytes=%d key=%s",
                    written.tp, entry.base_offset, entry.next_offset, entry.object_bytes, entry.key,
                )  # fmt: skip
        return written


def _section_bytes(sections: LogSections, lineage: Lineage) -> dict[SectionKind, bytes]:
    return {
        SectionKind.OFFSET_INDEX: sections.offset_index,
        SectionKind.TIME_INDEX: sections.time_index,
        SectionKind.TXN_INDEX: sections.txn_index,
        SectionKind.PRODUCERS: sections.producer_snapshot or b"",
        SectionKind.LINEAGE: encode_lineage(lineage),
    }
