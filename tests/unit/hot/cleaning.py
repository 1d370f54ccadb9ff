"""Cleans of logs in tests: the resources of a cleaner without threads, and the facts of a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.unit.hot.fixtures import NOW, append
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_cleaning import CleanerResources, CleanResult
from tiered.records.batch import decode_header, decode_records, encode_batch

T = TypeVar("T")


async def run_inline(call: Callable[[], T]) -> T:
    return call()


async def admit_all(_: int) -> None:
    return None


def resources(*, map_bytes: int = 1 << 16, read_bytes: int = 75) -> CleanerResources:
    """Returns resources that read a batch or two at a time."""
    return CleanerResources(run_inline, admit_all, map_bytes, read_bytes, 0.9, b"seed")


async def clean(log: DiskLog, *, now_ms: int = NOW, map_bytes: int = 1 << 16) -> CleanResult:
    """Cleans all closed segments that are flushed, up to the log end."""
    return await log.compaction.clean(
        log.compaction.find_cleanable(log.start_offset, log.end_offset, now_ms), resources(map_bytes=map_bytes)
    )


def put(log: DiskLog, key: str, value: str | None, *, producer: int = -1) -> int:
    """Appends one record, and returns its offset."""
    known = log.producers.get(producer) if producer >= 0 else None
    sequence = known.batches[-1].last_sequence + 1 if known is not None else 0
    data = encode_batch(
        [(NOW, key.encode(), None if value is None else value.encode(), ())],
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=sequence if producer >= 0 else -1,
    )
    return append(log, bytearray(data)).base_offset


def facts(data: bytes) -> list[tuple[int, str, str | None]]:
    """Returns (offset, key, value) of the records in whole batches."""
    found: list[tuple[int, str, str | None]] = []
    at = 0
    while at < len(data):
        head = decode_header(data, at)
        if not head.is_control:
            for each in decode_records(data, at):
                found.append((each.offset, (each.key or b"").decode(), each.value.decode() if each.value else None))
        at += head.size
    return found


def read_all(log: DiskLog, start: int | None = None, max_bytes: int = 400) -> bytes:
    """Returns all bytes from `start` on, read batch by batch as a consumer does."""
    offset = log.local_start_offset if start is None else start
    out = b""
    while (found := log.read(offset, max_bytes, end_offset=log.end_offset)) is not None:
        data = found.file.pread(found.start, found.length)
        at = 0
        while at < len(data):
            head = decode_header(data, at)
            assert head.last_offset >= offset
            offset, at = head.next_offset, at + head.size
        out += data
    return out


def served(log: DiskLog) -> list[tuple[int, str, str | None]]:
    """Returns the facts of all records that a reader from the log start gets."""
    return facts(read_all(log))
