"""One fsync for many callers: makes a log durable up to an offset.

Nothing counts as flushed before the names of its files are durable too, nor when a cut took it back while the sync ran.
A failed sync is final: what the page cache holds is unknown from then on; a second try that succeeds proves nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from tiered.errors import Unavailable
from tiered.hot import checkpoints
from tiered.hot.log_writer import SUFFIXES, Tail
from tiered.hot.segments import Proof, Segment
from tiered.metrics import Metrics
from tiered.ports import Clock

_BUCKETS = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class Flushing:
    """The fsyncs of one log. `broken` says why there are no more, `final` that the disk failed."""

    def __init__(self, tail: Tail, clock: Clock, metrics: Metrics) -> None:
        self.broken = ""
        self.final = False
        self._tail = tail
        self._clock = clock
        self._running: asyncio.Future[None] | None = None
        self._seconds = metrics.histogram("tiered_log_flush_seconds", "Time of one group fsync.", _BUCKETS)

    def breaks(self, why: str, *, final: bool) -> None:
        """The log takes nothing any more. That the disk failed stays, whatever comes later."""
        self.broken, self.final = why, final or self.final

    async def run(self, up_to: int | None) -> int:
        """Durable below `up_to`; None also proves the indexes, so that a start after a power cut begins there. Callers
        that come while a sync runs share the next one. Returns the flushed offset."""
        unsynced = self._tail.unsynced
        target = self._tail.end_offset if up_to is None else up_to
        while True:
            if self.broken:
                raise Unavailable(self.broken, final=self.final)
            reached = unsynced.flushed_offset
            if up_to is None:
                reached = -1 if unsynced.replaced else unsynced.noted_to
            if reached >= min(target, self._tail.end_offset):
                return unsynced.flushed_offset
            if self._running is not None:
                await asyncio.shield(self._running)
                continue
            done = self._running = asyncio.get_running_loop().create_future()
            try:
                await self._sync(up_to is None)
            except Unavailable as error:
                if error.final:
                    self.breaks(str(error), final=True)
                raise
            finally:
                self._running = None
                done.set_result(None)

    async def _sync(self, whole: bool) -> None:
        began = self._clock.mono_ns()
        tail, unsynced = self._tail, self._tail.unsynced
        end = unsynced.ceiling = tail.end_offset
        if whole:
            tail.write_indexes()
        active, noted = tail.active, self._as_noted()
        since = min(unsynced.noted_to, unsynced.flushed_offset) if whole else unsynced.flushed_offset
        for segment in list(tail.segments):
            if segment.next_offset > since or segment is active:
                for path in self._paths(segment, with_indexes=whole or segment is not active):
                    # A cut or a drop may have come while the last file was synced.
                    if any(one is segment for one in tail.segments):
                        await tail.files.open(path).sync()
        await self._sync_names()
        if whole and unsynced.ceiling == end and active is tail.active:
            tail.prove(noted)
            await tail.files.open(f"{tail.files.directory}/{checkpoints.SEGMENTS_FILE}").sync()
            unsynced.noted_to = min(end, unsynced.ceiling)
        unsynced.flushed_offset = max(unsynced.flushed_offset, min(end, unsynced.ceiling))
        self._seconds.observe((self._clock.mono_ns() - began) / 1e9)

    def _as_noted(self) -> Segment:
        """The active segment as it stands now, for the line that proves it once this is durable."""
        active, builder = self._tail.active, self._tail.builder
        return Segment(
            active.base_offset,
            active.next_offset,
            active.size,
            active.created_ms,
            builder.max_timestamp,
            builder.max_timestamp_offset,
            Proof.of(builder.offsets, builder.times),
        )

    def _paths(self, segment: Segment, *, with_indexes: bool) -> Iterator[str]:
        files = self._tail.files
        yield files.path(segment.base_offset, ".log")
        if with_indexes:
            beside = [files.path(segment.base_offset, suffix) for suffix in SUFFIXES[1:4]]
            beside.append(files.path(segment.next_offset, ".snapshot"))
            for path in beside:
                if files.disk.exists(path):
                    yield path

    async def _sync_names(self) -> None:
        """Replaced files and names; once also the names of the folders above, which may be new themselves."""
        unsynced = self._tail.unsynced
        replaced, names, above = unsynced.replaced, unsynced.names, unsynced.names_above
        unsynced.replaced, unsynced.names, unsynced.names_above = set(), False, False
        try:
            await self._sync_these(sorted(replaced), names, above)
        except BaseException:
            # Failed or cancelled half way: the next sync begins where this one did.
            unsynced.replaced |= replaced
            unsynced.names |= names
            unsynced.names_above |= above
            raise

    async def _sync_these(self, replaced: Iterable[str], names: bool, above: bool) -> None:
        files = self._tail.files
        for name in replaced:
            path = f"{files.directory}/{name}"
            if files.disk.exists(path):
                file = files.disk.open(path)
                try:
                    await file.sync()
                finally:
                    file.close()
        if names:
            await files.disk.sync_dir(files.directory)
        if above:
            folders = files.directory.split("/")[:-1]
            for depth in range(len(folders), -1, -1):
                await files.disk.sync_dir("/".join(folders[:depth]) or ".")
