"""The batches that a clean of the cold part reads: from the leader's disk if it has them as uploaded, else the bucket.

Reads of the disk cost no request. The disk has the newest cold batches too, until local retention takes them. It never
has what an earlier clean wrote, so the disk is read only from `raw_from` on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from tiered.cold.cleaned_object import split_batches
from tiered.cold.manifest import Manifest, SegmentEntry
from tiered.cold.reader import ColdReader
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.hot.log_cleaning import CleanerResources
from tiered.ports import FileSlice
from tiered.records.model import WalkedBatch
from tiered.records.native import walk

INLINE_BYTES = 64 << 10
"""Size of a step that runs on the event loop. A thread runs a larger one."""

T = TypeVar("T")


class LocalLog(Protocol):
    """The log on the leader's disk. It has the newest cold batches too, as they were uploaded: to read them there costs
    no request."""

    @property
    def local_start_offset(self) -> int: ...
    def read(self, offset: int, max_bytes: int, *, end_offset: int) -> FileSlice | None: ...


class CleanStep(NamedTuple):
    """Whole batches that were checked, from the object or file `where`."""

    data: memoryview
    batches: list[WalkedBatch]
    where: str

    @property
    def next_offset(self) -> int:
        return self.batches[-1].last_offset + 1


async def run_sized(resources: CleanerResources, size: int, work: Callable[[], T]) -> T:
    """Runs the work on `size` bytes: in a thread, unless they are few."""
    return work() if size <= INLINE_BYTES else await resources.run(work)


@dataclass
class CleanSource:
    """The batches of one partition for one clean, and the bytes that were read. The bucket has them all; `local` may
    have those from `raw_from` on, and is None once it failed."""

    reader: ColdReader
    resources: CleanerResources
    local: LocalLog | None
    raw_from: int
    epochs: LeaderEpochs
    bytes_read: int = 0
    bytes_local: int = 0

    async def read(self, manifest: Manifest, start: int, end: int) -> AsyncGenerator[CleanStep]:
        """Yields whole batches of a part of the log above its start, a step at a time."""
        at = max(start, manifest.log_start_offset)
        while at < end:
            local_from = max(self.raw_from, self.local.local_start_offset) if self.local is not None else end
            if at < local_from:
                pieces = self._read_bucket(manifest, at, min(end, local_from))
                async with aclosing(pieces):
                    async for step in pieces:
                        yield step
                        at = step.next_offset
                at = max(at, min(end, local_from))
            elif (local_step := await self._read_local(self.local, at, end)) is None:
                self.local = None
            else:
                await self.resources.admit(len(local_step.data))
                self.bytes_local += len(local_step.data)
                yield local_step
                at = local_step.next_offset

    async def _read_bucket(self, manifest: Manifest, start: int, end: int) -> AsyncGenerator[CleanStep]:
        pieces = self.reader.iterate(
            manifest.partition_id, start, end, manifest=manifest, keeps_manifest=True, with_few_gets=True
        )
        async with aclosing(pieces):
            async for piece in pieces:
                for data, batches in split_batches(piece.data, piece.batches, self.resources.read_bytes):
                    await self.resources.admit(len(data))
                    self.bytes_read += len(data)
                    yield CleanStep(data, batches, piece.entry.key)

    async def _read_local(self, local: LocalLog | None, offset: int, end: int) -> CleanStep | None:
        """Returns the next batches on the disk, or None if the disk does not have all of them as they were uploaded."""
        if local is None:
            return None
        try:
            found = local.read(offset, self.resources.read_bytes, end_offset=end)
            if found is None:
                return None
            return await run_sized(self.resources, found.length, partial(_read_slice, found, offset, self.epochs))
        except (Corrupt, Refused, Unavailable):  # local retention or the disk took them, and the bucket has them
            return None


def find_raw_part(entries: Sequence[SegmentEntry], clean_to: int) -> int:
    """Returns the offset from which on no segment was cleaned, and each offset has a record."""
    raw_from = entries[-1].next_offset
    for entry in reversed(entries):
        if entry.is_cleaned or not entry.is_dense or entry.base_offset < clean_to:
            break
        raw_from = entry.base_offset
    return raw_from


def _read_slice(found: FileSlice, offset: int, epochs: LeaderEpochs) -> CleanStep | None:
    """Returns the batches of a slice, or None unless each offset from `offset` on has a record, of the epoch that the
    bucket has there. No CRC covers base offset and epoch of a batch."""
    data = found.file.pread(found.start, found.length)
    batches = walk(data).batches
    if not batches or not batches[0].base_offset <= offset <= batches[0].last_offset:
        return None
    next_offset = batches[0].base_offset
    for batch in batches:
        is_dense = batch.base_offset == next_offset and batch.count == batch.last_offset - batch.base_offset + 1
        if not is_dense or batch.leader_epoch != epochs.epoch_at(batch.base_offset):
            return None
        next_offset = batch.last_offset + 1
    return CleanStep(memoryview(data), batches, found.file.name)
