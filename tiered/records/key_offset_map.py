"""The last offset of each key in a part of a log, in a bounded amount of memory.

A slot has 16 bytes of a keyed hash and the offset. The hash is keyed by random bytes, so that no client can choose keys
that collide. The memory is mapped on its own: pages that are not touched cost nothing, and `close` returns all of it.
Pages are huge where the kernel has them. In small ones, each look at a slot also waits for the address of its page.
"""

from __future__ import annotations

import contextlib
import mmap

from tiered.ports import Buffer
from tiered.records import native
from tiered.records.model import PutResult
from tiered.records.pure_compact import SLOT_BYTES

LOAD_FACTOR = 0.9
"""Kafka's log.cleaner.io.buffer.load.factor."""
SEED_BYTES = 16


class KeyOffsetMap:
    """A table of `memory_bytes` at most. `latest_offset` is the last offset that it covers, -1 if it covers none.

    `records` counts the records that were put, and `keyless` those of them without a key.
    """

    def __init__(self, memory_bytes: int, seed: bytes, load_factor: float = LOAD_FACTOR) -> None:
        slots = max(2, memory_bytes // SLOT_BYTES)
        self._pages = mmap.mmap(-1, slots * SLOT_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(AttributeError, OSError):  # not every kernel has them
            self._pages.madvise(mmap.MADV_HUGEPAGE)
        self.table = memoryview(self._pages)
        self.seed = seed[:SEED_BYTES].ljust(SEED_BYTES, b"\0")
        self.keys_max = max(1, min(slots - 1, int(slots * load_factor)))
        self.keys = 0
        self.latest_offset = -1
        self.unopened = ""
        """The first batch that stays as it is because it cannot be opened within the bounds, and why; "" for none."""

    def note_unopened(self, base_offset: int, why: str) -> None:
        """Notes a batch whose keys are not in the table, although it is no higher than `latest_offset`."""
        self.unopened = self.unopened or f"batch at offset {base_offset}: {why}"

    def put_batches(self, data: Buffer, start: int, end: int, from_offset: int, *, one: bool = False) -> PutResult:
        """Puts the keys of plain batches, as `native.put_keys` does."""
        put = native.put_keys(
            self.table, self.seed, self.keys, self.keys_max, self.latest_offset, data, start, end, from_offset, one
        )
        self.keys, self.latest_offset = put.keys, put.latest_offset
        return put

    def cover(self, offset: int) -> None:
        """Notes that the table covers all records up to `offset`."""
        self.latest_offset = max(self.latest_offset, offset)

    def close(self) -> None:
        """Returns the memory, or lets the last user of the table do so."""
        with contextlib.suppress(BufferError):
            self.table.release()
            self._pages.close()
