"""Uploads closed segments to the bucket: objects first, manifest second.

Keeps I20 and I23. The puts of a partition run side by side, and the manifest names those before the first one that
failed. Memory does not grow with the segment: `segment_check` reads pieces, and the upload streams from the file.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tiered.cold.layout import SectionKind, build_trailer, segment_key
from tiered.cold.manifest import Manifest, SegmentEntry, Submanifests
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.planner import next_upload
from tiered.cold.segment_check import ClosedSegment, check_segment
from tiered.cold.verified_put import put_verified
from tiered.errors import Corrupt, Fenced, Unavailable
from tiered.hot.checkpoints import encode_lineage
from tiered.hot.leader_epochs import LeaderEpochs, Lineage
from tiered.ids import PartitionId
from tiered.metrics import Metrics
from tiered.ports import Clock, FileSlice, ObjectStore, Rng

log = logging.getLogger(__name__)

TOGETHER_BYTES = 512 << 20
"""Limit on the bytes that one manifest change names.

It saves requests where segments close faster than the bucket takes manifests. No more than this is ever in the bucket
without a manifest that names it.
"""

TOGETHER_SEGMENTS = 512
"""Limit on the segments that one manifest change names: other partitions wait for a pass meanwhile."""


PUTS_AT_ONCE = 4
"""Limit on the puts of all partitions of a broker at once, unless a setting says otherwise."""


class LogSections(Protocol):
    """The indexes and the producer snapshot of a local segment, as bytes. Offsets and positions are relative to the
    upload's start."""

    @property
    def offset_index(self) -> bytes: ...
    @property
    def time_index(self) -> bytes: ...
    @property
    def txn_index(self) -> bytes: ...
    @property
    def producer_snapshot(self) -> bytes | None: ...


class TieredSegments(Protocol):
    """The segments of a local log, as far as the uploader needs them."""

    def closed(self, above: int = 0, limit: int | None = None) -> Sequence[ClosedSegment]:
        """Returns the closed segments that end above an offset, oldest first; only the first `limit`, if it is set."""

    def data(self, base_offset: int, *, from_offset: int | None = None) -> LogSections:
        """Returns the index data of the segment `base_offset`.

        With `from_offset` it is as if the segment began there: offsets are relative to `from_offset`, and positions to
        the batch that holds it.
        """


class TieredLog(Protocol):
    """The parts of a local log that the uploader needs."""

    @property
    def epochs(self) -> LeaderEpochs:
        """Returns the lineage, from the log start on."""

    @property
    def segments(self) -> TieredSegments: ...


class _CheckedSegment(NamedTuple):
    """A segment that may be put: its entry, its log and its trailer."""

    entry: SegmentEntry
    log_part: FileSlice
    trailer: bytes


class Uploader:
    """Uploads for all partitions of one broker, with so many puts at once. One call at a time per partition."""

    def __init__(
        self,
        store: ObjectStore,
        manifests: ManifestStore,
        clock: Clock,
        rng: Rng,
        metrics: Metrics,
        *,
        puts_at_once: int = PUTS_AT_ONCE,
    ) -> None:
        self._puts_at_once = puts_at_once
        self._put_slots = asyncio.Semaphore(puts_at_once)
        self._store = store
        self._manifests = manifests
        self._clock = clock
        self._random = rng.stream("uploader")
        self._keys_in_flight: dict[PartitionId, set[str]] = {}
        self._bytes = metrics.counter("tiered_upload_bytes_total", "Bytes of cold segments put into the bucket")
        self._segments = metrics.counter("tiered_upload_segments_total", "Segments uploaded, by outcome", ("outcome",))

    def keys_in_flight(self, partition_id: PartitionId) -> frozenset[str]:
        """Returns the keys of objects in upload or in an undecided manifest change: they are no garbage."""
        return frozenset(self._keys_in_flight.get(partition_id, ()))

    def forget(self, partition_id: PartitionId) -> None:
        """Drops the state of a partition that is led elsewhere: its next leader decides what was undecided."""
        self._keys_in_flight.pop(partition_id, None)

    async def upload_next(
        self,
        source: TieredLog,
        manifest: Manifest,
        epoch: int,
        stable_offset: int,
        *,
        together_bytes: int | None = None,
        on_upload: Callable[[int], object] = lambda size: None,
    ) -> Manifest | None:
        """Uploads the oldest closed segments above the cold end and below `stable_offset`, up to the limit of one
        manifest change. `together_bytes` is a lower limit; one segment goes in any case. Calls `on_upload` with the
        size of each object before its put.

        Returns the new manifest, or None if there was nothing to upload. `manifest` must have been taken over under
        `epoch`. Raises:

        - `Fenced`: step down.
        - `Unavailable`: the object may be in the bucket, and even in the manifest. Call it again.
        - `Corrupt`: the local copy is invalid.

        If a later segment fails, the segments before it become cold, and the next call raises the error.
        """
        if manifest.leader_epoch != epoch:
            raise Fenced(f"{manifest.partition_id}: the manifest is under epoch {manifest.leader_epoch}, not {epoch}")
        original = manifest
        most = TOGETHER_BYTES if together_bytes is None else min(together_bytes, TOGETHER_BYTES)
        if self.keys_in_flight(manifest.partition_id):
            manifest = await self._resolve_undecided(manifest, epoch)
        entries = await self._put_objects(source, manifest, epoch, stable_offset, most, on_upload)
        if entries:
            return await self._add_to_manifest(manifest, epoch, entries)
        return manifest if manifest != original else None

    async def _put_objects(
        self,
        source: TieredLog,
        manifest: Manifest,
        epoch: int,
        stable_offset: int,
        most: int,
        on_upload: Callable[[int], object],
    ) -> list[SegmentEntry]:
        """Puts the objects of the segments after this manifest, until they have `most` bytes. Returns the entries of
        those before the first failure; raises it if it is that of the first one."""
        entries: list[SegmentEntry] = []
        running: deque[tuple[SegmentEntry, asyncio.Task[None]]] = deque()
        failure: Unavailable | Corrupt | None = None
        planned, count, size = manifest, 0, 0
        try:
            while count < TOGETHER_SEGMENTS and size < most and failure is None:
                if len(running) == self._puts_at_once:
                    failure = await _take_oldest(running, entries)
                    continue
                try:
                    checked = await self._check_next(source, planned, epoch, stable_offset)
                except (Unavailable, Corrupt) as error:
                    failure = await _take_all(running, entries) or error
                    break
                if checked is None:
                    break
                on_upload(checked.entry.object_bytes)
                put = asyncio.create_task(self._upload_object(manifest, checked), name=f"upload {checked.entry.key}")
                running.append((checked.entry, put))
                planned, count, size = planned.add(checked.entry), count + 1, size + checked.entry.object_bytes
            failure = failure or await _take_all(running, entries)
        finally:
            for _, put in running:  # after a failure no manifest names them
                put.cancel()
            await asyncio.gather(*(put for _, put in running), return_exceptions=True)
        if failure is not None and not entries:
            raise failure
        return entries

    async def _check_next(
        self, source: TieredLog, manifest: Manifest, epoch: int, stable_offset: int
    ) -> _CheckedSegment | None:
        """Checks the segment after this manifest. Returns None if there is none."""
        closed = source.segments.closed(manifest.cold_end_offset, 1)
        plan = next_upload(closed, manifest, stable_offset)
        if plan is None:
            return None
        [segment] = closed
        # In one turn with the choice: a clean on the disk may replace the segment while it is checked.
        within = plan.from_offset > segment.base_offset
        sections = source.segments.data(segment.base_offset, from_offset=plan.from_offset if within else None)
        log_part, facts, segment_lineage = await check_segment(
            segment, plan.from_offset, may_begin_before=not manifest.nodes
        )
        lineage = tuple(row for row in source.epochs.lineage if row[1] < facts.next_offset)
        parts = _section_bytes(sections, lineage)
        trailer, refs = build_trailer(manifest.partition_id, epoch, facts, parts)
        key = segment_key(manifest.partition_id, facts.base_offset, epoch, f"{self._random.getrandbits(128):032x}")
        entry = SegmentEntry(
            key=key,
            base_offset=facts.base_offset,
            next_offset=facts.next_offset,
            leader_epoch=epoch,
            lineage=segment_lineage,
            base_timestamp=facts.base_timestamp,
            max_timestamp=facts.max_timestamp,
            record_count=facts.record_count,
            log_bytes=facts.log_bytes,
            log_crc=facts.crc,
            object_bytes=facts.log_bytes + len(trailer),
            sections=refs,
            uploaded_ms=self._clock.wall_ms(),
        )
        return _CheckedSegment(entry, log_part, trailer)

    async def _resolve_undecided(self, manifest: Manifest, epoch: int) -> Manifest:
        """Returns the manifest once an earlier change with unknown outcome is decided.

        Nothing is uploaded before: while manifests cannot be written, the bucket would fill with copies of one segment.
        """
        written = await self._manifests.take_over(manifest.partition_id, manifest.topic, epoch)
        self._keys_in_flight.pop(manifest.partition_id, None)
        return written

    async def _upload_object(self, manifest: Manifest, checked: _CheckedSegment) -> None:
        partition_id, key = manifest.partition_id, checked.entry.key
        self._keys_in_flight.setdefault(partition_id, set()).add(key)
        try:
            async with self._put_slots:
                self._bytes.inc(await put_verified(self._store, key, checked.log_part, checked.trailer))
        except BaseException:
            # No manifest change names the object: it is an orphan if the put was applied.
            self._keys_in_flight.get(partition_id, set()).discard(key)
            self._manifests.mark_orphans(partition_id)
            self._segments.inc(1, "failed")
            raise

    async def _add_to_manifest(self, manifest: Manifest, epoch: int, entries: Sequence[SegmentEntry]) -> Manifest:
        """Adds the objects to the manifest. While the change is undecided, their keys count as in flight."""
        partition_id, is_added = manifest.partition_id, False

        def add(current: Manifest, _: Submanifests) -> Manifest:
            # The log start passed the cold end meanwhile. Or an earlier, then undecided change of this leader moved the
            # cold end: the manifest names its objects, or these.
            nonlocal is_added
            is_added = current.cold_end_offset == manifest.cold_end_offset
            if not is_added:
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
        if not is_added:
            self._manifests.mark_orphans(partition_id)
        named_keys = {node.key for node in written.nodes}
        for entry in entries:
            self._segments.inc(1, "copied" if entry.key in named_keys else "failed")
            if entry.key in named_keys:
                log.info(
                    "segment is cold partition=%s base=%d next=%d bytes=%d key=%s",
                    written.tp, entry.base_offset, entry.next_offset, entry.object_bytes, entry.key,
                )  # fmt: skip
        return written


async def _take_oldest(
    running: deque[tuple[SegmentEntry, asyncio.Task[None]]], entries: list[SegmentEntry]
) -> Unavailable | Corrupt | None:
    """Waits for the oldest put. Adds its entry, or returns its failure."""
    entry, put = running.popleft()
    try:
        await put
    except (Unavailable, Corrupt) as error:
        return error
    except BaseException:
        running.appendleft((entry, put))  # this wait is cancelled, or the put has a fault: the caller ends all
        raise
    entries.append(entry)
    return None


async def _take_all(
    running: deque[tuple[SegmentEntry, asyncio.Task[None]]], entries: list[SegmentEntry]
) -> Unavailable | Corrupt | None:
    """Waits for all puts, up to the first failure, which it returns."""
    failure = None
    while running and failure is None:
        failure = await _take_oldest(running, entries)
    return failure


def _section_bytes(sections: LogSections, lineage: Lineage) -> dict[SectionKind, bytes]:
    return {
        SectionKind.OFFSET_INDEX: sections.offset_index,
        SectionKind.TIME_INDEX: sections.time_index,
        SectionKind.TXN_INDEX: sections.txn_index,
        SectionKind.PRODUCERS: sections.producer_snapshot or b"",
        SectionKind.LINEAGE: encode_lineage(lineage),
    }
