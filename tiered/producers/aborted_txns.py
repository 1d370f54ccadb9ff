"""Entries of a transaction index, as in Kafka's `.txnindex`: one for each aborted transaction, in the order of markers.

Pure. A reader of the offsets `[offset, end)` has to know each transaction that has records there and was aborted, even
if its marker comes later. Keeps I14.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.ports import Buffer

ENTRY_BYTES = 34
MAX_OFFSET = 2**63 - 1
_ENTRY = struct.Struct(">hqqqq")
_LAST_OFFSET = struct.Struct(">q")
_LAST_OFFSET_AT = 18
_VERSION = 0
_FIRST, _LAST = itemgetter(1), itemgetter(2)


class AbortedTxn(NamedTuple):
    """One aborted transaction: its first record, its marker, and the last stable offset once the marker was written.
    All later markers have a last stable offset at or above that one."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        return _ENTRY.pack(_VERSION, *self)


class FoundTxns(NamedTuple):
    """Aborted transactions that one index has for a range. `is_complete`: later indexes have no more of them."""

    aborted: list[AbortedTxn]
    is_complete: bool


def encode_aborted_txns(entries: Iterable[AbortedTxn]) -> bytes:
    """Encodes a whole index."""
    return b"".join([entry.encode() for entry in entries])


def decode_aborted_txns(data: Buffer, *, begin: int, end: int, where: str) -> list[AbortedTxn]:
    """Decodes an index whose markers all lie in `[begin, end)`.

    Raises `Corrupt` for half an entry, another version, impossible offsets, or entries out of order.
    """
    if len(data) % ENTRY_BYTES:
        raise Corrupt(f"transaction index has {len(data)} bytes, which is half an entry", where=where)
    found: list[AbortedTxn] = []
    last_marker, last_stable = begin - 1, -1
    for version, producer_id, first, last, stable in _ENTRY.iter_unpack(data):
        if version != _VERSION:
            raise Corrupt(f"entry of the transaction index has version {version}", where=where, position=len(found))
        if not 0 <= first < last < end or last <= last_marker or not last_stable <= stable <= last + 1:
            why = f"transaction index has an impossible entry: {first} to {last}, stable {stable}"
            raise Corrupt(why, where=where, position=len(found) * ENTRY_BYTES)
        last_marker, last_stable = last, stable
        found.append(AbortedTxn(producer_id, first, last, stable))
    return found


def find_in_index(data: Buffer, offset: int, end: int) -> FoundTxns:
    """Returns the aborted transactions of a checked index that have records in `[offset, end)`, in its order."""
    low, high = 0, len(data) // ENTRY_BYTES
    whole = high * ENTRY_BYTES
    while low < high:  # the first entry whose marker is at or above `offset`
        middle = (low + high) // 2
        if _LAST_OFFSET.unpack_from(data, middle * ENTRY_BYTES + _LAST_OFFSET_AT)[0] < offset:
            low = middle + 1
        else:
            high = middle
    found: list[AbortedTxn] = []
    for _, producer_id, first, last, stable in _ENTRY.iter_unpack(memoryview(data)[low * ENTRY_BYTES : whole]):
        if first < end:
            found.append(AbortedTxn(producer_id, first, last, stable))
        if stable >= end:
            return FoundTxns(found, True)
    return FoundTxns(found, False)


def find_in_entries(entries: Sequence[AbortedTxn], offset: int, end: int) -> FoundTxns:
    """Returns the same from decoded entries."""
    found: list[AbortedTxn] = []
    for entry in islice(entries, bisect_left(entries, offset, key=_LAST), None):
        if entry.first_offset < end:
            found.append(entry)
        if entry.last_stable_offset >= end:
            return FoundTxns(found, True)
    return FoundTxns(found, False)


def list_for_readers(entries: Iterable[AbortedTxn]) -> tuple[tuple[int, int], ...]:
    """Returns (producer id, first offset) of each entry, as replies name them: sorted by offset."""
    return tuple([(entry[0], entry[1]) for entry in sorted(entries, key=_FIRST)])
