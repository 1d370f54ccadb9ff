"""The chain of this broker: one put for each window, and offsets confirmed in the order of slots (M1).

A window holds the new batches of all partitions with `flush=bucket` that this broker leads. Several puts run at a time;
records count only when all slots before theirs are decided. A slot that another broker has fenced is lost: the
partitions of the fence are given up, and the others get a later slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from tiered.errors import Corrupt, Fenced, Refused, Unavailable
from tiered.ids import PartitionId
from tiered.metrics import Metrics
from tiered.object_store.conditional_put import PutOutcome, Stored, put_until_known
from tiered.ports import Clock, NotFound, ObjectStore, Rng
from tiered.wal.layout import ChainId, Fence, NewExtent, Window, decode, encode_window, header_end, slot_key
from tiered.wal.trimming import ChainTrimming
from tiered.wal.window import DecidedSlots, StoredRange, WindowSettings, WindowTimer

log = logging.getLogger(__name__)

EXTENT_BYTES_MAX = 4 << 20
"""Most bytes of one partition in a window, if its first batch is no larger."""
_BACKOFF_SECONDS = (0.02, 2.0)
_PUT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class UnstoredLog(Protocol):
    """The log of a partition that this broker leads, as a chain sees it."""

    @property
    def end_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def cold_end_offset(self) -> int:
        """All records below are in segments of the bucket, or in a snapshot of a coordinator."""

    def read_batches(self, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Returns whole batches from `offset` on, and the offset after them; at least one batch. Raises `Unavailable`,
        and `Refused` if they are deleted."""


class ChainedLog:
    """One leadership of a partition with `flush=bucket`. All records below `stored` are in the bucket.

    `on_stored` is called with the new end. `on_fenced` is called once if a later leader has taken over.
    """

    __slots__ = (
        "_note_append", "base", "is_over", "leader_epoch", "log", "on_fenced", "on_stored", "partition", "put_to",
        "stored",
    )  # fmt: skip

    def __init__(
        self,
        partition: PartitionId,
        leader_epoch: int,
        log: UnstoredLog,
        stored_end: int,
        note_append: Callable[[PartitionId, int], None],
        *,
        on_stored: Callable[[int], object],
        on_fenced: Callable[[], None],
    ) -> None:
        self._note_append = note_append
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.log = log
        self.base = stored_end
        """The first offset that this leadership puts: records below are in segments, or in chains of earlier ones."""
        self.put_to = stored_end
        """All records below are stored, or their put runs."""
        self.stored = StoredRange(stored_end)
        self.is_over = False
        """True once a fence or the broker has ended this leadership."""
        self.on_stored = on_stored
        self.on_fenced = on_fenced

    def on_append(self, appended: int) -> None:
        """Notes that the log is longer by so many bytes."""
        self._note_append(self.partition, appended)

    def skip_segments(self) -> None:
        """Skips records that a segment has: the disk may not have them any more."""
        cold_end = self.log.cold_end_offset
        if cold_end > self.put_to:
            self.stored.confirm(self.put_to, cold_end)
            self.put_to = cold_end


class _Part(NamedTuple):
    """One extent of a window, and the leadership that it belongs to."""

    owner: ChainedLog
    extent: NewExtent


def _without_copies(parts: list[_Part], body: bytes) -> list[_Part]:
    """Returns the parts with their batches where they are in the body: memory has them once while the put runs."""
    view, at, found = memoryview(body), len(body) - sum(len(each.extent.data) for each in parts), []
    for owner, extent in parts:
        found.append(_Part(owner, extent._replace(data=view[at : at + len(extent.data)])))
        at += len(extent.data)
    return found


class ChainWriter:
    """The chain of one incarnation of a broker. It begins empty, at slot 0. `cluster_id` is known once the broker has
    read the bucket."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        rng: Rng,
        metrics: Metrics,
        *,
        chain: ChainId,
        cluster_id: Callable[[], str],
        settings: WindowSettings,
    ) -> None:
        self.chain = chain
        self._store = store
        self._clock = clock
        self._random = rng.stream("wal")
        self._cluster_id = cluster_id
        self._timer = WindowTimer(settings)
        self._logs: dict[PartitionId, ChainedLog] = {}
        self._next_slot = 0
        self._decided: DecidedSlots[_Part] = DecidedSlots()
        self.trimming = ChainTrimming()
        self._trimmed_to = 0
        self._undecided_bytes = 0
        """Bytes of the windows whose put runs."""
        self._wakeup = asyncio.Event()
        self._moved = asyncio.Event()
        """Set when a slot is decided, or a leadership ends."""
        self.last_error = ""
        """Error of the last put that failed; empty once a later one succeeded."""
        self._seconds = metrics.histogram(
            "tiered_wal_put_seconds", "Time until a window is in the bucket.", _PUT_BUCKETS
        )
        self._bytes = metrics.counter("tiered_wal_bytes_total", "Bytes of batches put into the write-ahead chain.")
        self._windows = metrics.counter("tiered_wal_windows_total", "Windows put into the write-ahead chain.")

    @property
    def has_begun(self) -> bool:
        """False before the first window."""
        return self._next_slot > 0

    # -- leaderships --------------------------------------------------------------------------------------------------

    def add(
        self,
        partition: PartitionId,
        leader_epoch: int,
        log: UnstoredLog,
        stored_end: int,
        *,
        on_stored: Callable[[int], object],
        on_fenced: Callable[[], None],
    ) -> ChainedLog:
        """Begins to store the records of a leadership, in place of an earlier one of the same partition. All below
        `stored_end` are stored."""
        owner = ChainedLog(
            partition, leader_epoch, log, min(stored_end, log.end_offset), self._note_append,
            on_stored=on_stored, on_fenced=on_fenced,
        )  # fmt: skip
        self._logs[partition] = owner
        if log.end_offset > owner.put_to:
            self._note_append(partition, 1)
        return owner

    def remove(self, owner: ChainedLog) -> None:
        """Ends a leadership. Its windows stay, and it is told of nothing more."""
        owner.is_over = True
        if self._logs.get(owner.partition) is owner:
            del self._logs[owner.partition]
        self._moved.set()

    def _note_append(self, partition: PartitionId, appended: int) -> None:
        self._timer.note(partition, appended, self._clock.mono_ns())
        self._wakeup.set()

    # -- windows ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Puts windows until it is cancelled. Raises `Fenced` if another process writes this chain."""
        async with asyncio.TaskGroup() as group:
            await self._run(group)

    async def _run(self, group: asyncio.TaskGroup) -> None:
        while True:
            now_ns = self._clock.mono_ns()
            undecided = self._next_slot - self._decided.next_slot
            ends_ns = self._timer.ends_ns(undecided, self._undecided_bytes, now_ns)
            if ends_ns is not None and ends_ns <= now_ns:
                self._begin_window(group)
                continue
            self._wakeup.clear()
            if ends_ns is None:
                await self._wakeup.wait()
                continue
            try:
                async with asyncio.timeout((ends_ns - now_ns) / 1e9):
                    await self._wakeup.wait()
            except TimeoutError:
                continue

    async def put_rest(self, seconds: float) -> bool:
        """Puts all records that are there, without a wait for others. Returns False if they are not in the bucket after
        so many seconds."""
        wanted = [(each, each.log.end_offset) for each in self._logs.values()]
        for owner, end in wanted:
            if owner.put_to < end:
                self._note_append(owner.partition, self._timer.settings.window_bytes)
        try:
            async with asyncio.timeout(seconds):
                while any(not owner.is_over and owner.stored.end < end for owner, end in wanted):
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True

    async def settled_slots(self, seconds: float) -> range:
        """Returns the slots that are not trimmed, once each that is taken now is decided. Raises `Unavailable` after so
        many seconds."""
        end = self._next_slot
        try:
            async with asyncio.timeout(seconds):
                while self._decided.next_slot < end:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            raise Unavailable(f"windows of the own chain are not in the bucket yet: {self.last_error}") from None
        return range(self._trimmed_to, end)

    def _begin_window(self, group: asyncio.TaskGroup) -> None:
        """Takes what the partitions have, up to the batch that fills the window. The rest waits for the next.
        Batches that the disk does not give wait for the next append: the broker stops if its disk has failed. If they
        were deleted, they are skipped once the manifest says so."""
        room = self._timer.settings.window_bytes
        parts: list[_Part] = []
        waiting = [self._logs[each] for each in self._timer.end() if each in self._logs]
        for owner in waiting:
            owner.skip_segments()
            while owner.put_to < owner.log.end_offset and room > 0:
                base, committed = owner.put_to, min(owner.stored.end, owner.log.high_watermark)
                try:
                    data, owner.put_to = owner.log.read_batches(base, min(room, EXTENT_BYTES_MAX))
                except (Unavailable, Refused) as error:
                    log.error("batches are not read partition=%s offset=%d why=%s", owner.partition, base, error)
                    break
                extent = NewExtent(owner.partition, owner.leader_epoch, base, owner.put_to, committed, data)
                parts.append(_Part(owner, extent))
                room -= len(data)
            if room <= 0 and owner.put_to < owner.log.end_offset:
                self._note_append(owner.partition, self._timer.settings.window_bytes)
        if parts:
            slot, self._next_slot = self._next_slot, self._next_slot + 1
            self._undecided_bytes += sum(len(each.extent.data) for each in parts)
            group.create_task(self._put_window(slot, parts), name=f"wal slot {slot}")

    async def _put_window(self, slot: int, parts: list[_Part]) -> None:
        began_ns, decided = self._clock.mono_ns(), self._decided.next_slot
        held = sum(len(each.extent.data) for each in parts)
        try:
            while True:
                nonce = f"{self._random.getrandbits(64):016x}"
                body = encode_window(
                    self.chain, slot, nonce, self._cluster_id(), decided, [each.extent for each in parts]
                )
                parts = _without_copies(parts, body)
                if (lost_to := await self._put(slot, nonce, body)) is None:
                    break
                self._give_up(lost_to)  # first: this slot lets those after it count
                self._decide(slot, [])
                parts = [each for each in parts if not each.owner.is_over]
                if not parts:
                    return
                slot, self._next_slot = self._next_slot, self._next_slot + 1
                decided = self._decided.next_slot
        finally:
            self._undecided_bytes -= held
            self._wakeup.set()
        self.last_error = ""
        self._seconds.observe((self._clock.mono_ns() - began_ns) / 1e9)
        self._windows.inc()
        self._bytes.inc(sum(len(each.extent.data) for each in parts))
        ends = {each.extent.partition: each.extent.end_offset for each in parts}
        self.trimming.note_put(slot, decided, ends, self._clock.mono_ns())
        self._decide(slot, parts)

    async def _put(self, slot: int, nonce: str, body: bytes) -> Fence | None:
        """Puts one window. Returns None if it is in the bucket, else the fence that has its slot."""
        key, failed = slot_key(self.chain, slot), 0
        while True:
            try:
                settled = await put_until_known(
                    self._store, key, body, nonce, before=None,
                    read=partial(self._read_back, key, slot), pause=partial(self._back_off, key),
                )  # fmt: skip
            except Unavailable as error:
                await self._back_off(key, failed, str(error))
                failed += 1
                continue
            if settled.outcome is PutOutcome.LANDED:
                return None
            if settled.found is None or not isinstance(settled.found.value, Fence):
                raise Fenced(f"{key} has a window of another process: two processes are one incarnation of a broker")
            return settled.found.value

    async def _read_back(self, key: str, slot: int) -> Stored[Window | Fence] | None:
        got = await self._store.get(key)
        if isinstance(got, NotFound):
            return None
        try:
            found = decode(got.data[: header_end(got.data, key)], self.chain, slot, self._cluster_id(), got.size)
        except Corrupt as error:
            raise Unavailable(str(error)) from None
        return Stored(found, found.nonce, got.version)

    async def _back_off(self, key: str, attempt: int, why: str) -> None:
        if why != self.last_error:
            log.warning("window is not in the bucket yet key=%s why=%s", key, why)
        self.last_error = why
        least, most = _BACKOFF_SECONDS
        await self._clock.sleep(min(most, least * 2 ** min(attempt, 10)) * (0.5 + self._random.random()))

    # -- outcomes -----------------------------------------------------------------------------------------------------

    def _decide(self, slot: int, parts: list[_Part]) -> None:
        """Confirms what counts now, once for each leadership."""
        moved: dict[int, ChainedLog] = {}
        for owner, extent in self._decided.decide(slot, parts):
            if not owner.is_over and owner.stored.confirm(extent.base_offset, extent.end_offset):
                moved[id(owner)] = owner
        for owner in moved.values():
            owner.on_stored(owner.stored.end)
        self._moved.set()

    def _give_up(self, fence: Fence) -> None:
        """Ends the leaderships that a fence names: a later leader has taken over."""
        for partition, leader_epoch in fence.epochs.items():
            owner = self._logs.get(partition)
            if owner is not None and owner.leader_epoch < leader_epoch and not owner.is_over:
                owner.is_over = True
                del self._logs[partition]
                owner.on_fenced()

    async def trim(self, cold_ends: Mapping[PartitionId, int]) -> None:
        """Deletes the slots that no partition needs, given the ends of the segments in the bucket. Raises
        `Unavailable`."""
        for partition, cold_end in cold_ends.items():
            self.trimming.note_segments(partition, cold_end)
        first = self.trimming.first_needed(self._clock.mono_ns())
        if first > self._trimmed_to:
            await self._store.delete([slot_key(self.chain, slot) for slot in range(self._trimmed_to, first)])
            self._trimmed_to = first
