"""The keys section of a segment object: a hash of each key in it, so that a clean need not read its records.

Pure. Keeps I26. An object without the section, or with one that this program does not know, is cleaned as before: its
records are read. A section with many keys for the size of its log is left out, because it would cost more than it
saves.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from tiered.compaction.batch_filter import put_batches
from tiered.compaction.transactions import CleanedTransactions
from tiered.errors import Corrupt
from tiered.hot.aborted_txns import AbortedTxn
from tiered.ports import Buffer
from tiered.records import native
from tiered.records.key_offset_map import SEED_BYTES, KeyOffsetMap
from tiered.records.pure_compact import KEY_ROW_BYTES, SLOT_BYTES

KEYS_VERSION = 1
LOG_SHARE = 8
"""The section has at most the eighth part of the log's bytes."""
KEYS_MIN, KEYS_MAX = 1024, 1 << 20
"""Keys that a section may have in any case, and at most: it is in memory as a whole."""

_HEAD = struct.Struct(">HHI16sq")


class ObjectKeys(NamedTuple):
    """The decoded section. `rows` are as `pack_keys` returns them, of hashes under `seed`.

    No record of the object is superseded by one below `applied_to`.
    """

    seed: bytes
    applied_to: int
    rows: Buffer

    @property
    def key_count(self) -> int:
        """Returns the number of keys."""
        return len(self.rows) // KEY_ROW_BYTES


def encode_keys(keys: ObjectKeys) -> bytes:
    """Encodes the section."""
    return _HEAD.pack(KEYS_VERSION, 0, keys.key_count, keys.seed, keys.applied_to) + bytes(keys.rows)


def decode_keys(data: Buffer, *, where: str) -> ObjectKeys | None:
    """Decodes the output of `encode_keys`. Returns None if a newer program wrote it. Raises `Corrupt`."""
    if len(data) < _HEAD.size:
        raise Corrupt("keys section is shorter than its head", where=where)
    version, _, count, seed, applied_to = _HEAD.unpack_from(data)
    if version > KEYS_VERSION:
        return None
    if not version or len(data) != _HEAD.size + count * KEY_ROW_BYTES or applied_to < 0:
        raise Corrupt("keys section has another length than its count says, or a wrong number", where=where)
    return ObjectKeys(seed, applied_to, memoryview(data)[_HEAD.size :])


class KeysBuilder:
    """Collects the keys of one object, batch by batch. `log_bytes_max` bounds its log, and so the memory here."""

    def __init__(self, seed: bytes, base_offset: int, log_bytes_max: int, aborted: Iterable[AbortedTxn] = ()) -> None:
        keys_max = _keys_max(log_bytes_max)
        self._base_offset = base_offset
        self._transactions = CleanedTransactions(aborted)
        self.is_complete = True
        """False once a batch could not be read or had too many keys: the object has no section."""
        self._map = KeyOffsetMap((keys_max + 2) * SLOT_BYTES * 10 // 9, seed[:SEED_BYTES])

    def add(self, data: Buffer) -> int:
        """Takes the keys of the whole batches at the start of `data`. Returns their bytes.

        Keys of aborted transactions do not count. Records that cannot be read leave the object without the section: a
        clean names them.
        """
        if not self.is_complete:
            return len(data)
        try:
            end, is_full = put_batches(self._map, data, self._transactions, from_offset=self._base_offset)
        except Corrupt:
            self.is_complete = False
            return len(data)
        self.is_complete = not (is_full or self._map.unopened)
        return end

    def has_section(self, log_bytes: int) -> bool:
        """True if an object with so many bytes of log gets the section."""
        return self.is_complete and self._map.keys <= _keys_max(log_bytes)

    def finish(self, log_bytes: int, applied_to: int) -> bytes:
        """Returns the section, empty if there is none. No more batches may come."""
        try:
            if not self.has_section(log_bytes):
                return b""
            rows = native.pack_keys(self._map.table, self._base_offset)
            return encode_keys(ObjectKeys(self._map.seed, applied_to, rows))
        finally:
            self._map.close()


def _keys_max(log_bytes: int) -> int:
    return min(max(KEYS_MIN, log_bytes // LOG_SHARE // KEY_ROW_BYTES), KEYS_MAX)
