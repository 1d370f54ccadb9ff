"""Producer snapshots in Kafka's `.snapshot` format, version 1.

Pure. The format has the last batch of each producer only. The older ones of a window are read from the log again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from operator import itemgetter

from tiered.errors import Corrupt
from tiered.ports import Buffer
from tiered.producers.entry import SEQUENCE_MAX, BatchMetadata, ProducerStateEntry
from tiered.records.native import crc32c

_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_VERSION = 1
_LAST_OFFSET = itemgetter(3)
"""Sort key of the fields of an entry."""
_NO_BATCH = BatchMetadata(-1, -1, -1, -1, -1)


def encode_snapshot(producers: list[ProducerStateEntry]) -> bytes:
    """Encodes producers in the order given."""
    body = _COUNT.pack(len(producers)) + b"".join(_ENTRY.pack(*_list_fields(each)) for each in producers)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: Buffer, where: str) -> list[ProducerStateEntry]:
    """Decodes the output of `encode_snapshot`, in the order of last writes. Raises `Corrupt` if the bytes are invalid.
    `where` names the file or object in that error."""
    return [_read_entry(*fields) for fields in sorted(_iterate_fields(data, where), key=_LAST_OFFSET)]


def _list_fields(producer: ProducerStateEntry) -> tuple[int, ...]:
    last = producer.batches[-1] if producer.batches else _NO_BATCH
    return (
        producer.producer_id,
        producer.epoch,
        last.last_sequence,
        last.last_offset,
        last.last_offset - last.base_offset,
        producer.timestamp,
        producer.coordinator_epoch,
        producer.txn_first_offset,
    )


def _read_entry(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    delta: int,
    timestamp: int,
    coordinator_epoch: int,
    txn_first_offset: int,
) -> ProducerStateEntry:
    producer = ProducerStateEntry(producer_id, epoch, [], timestamp, coordinator_epoch, txn_first_offset)
    if last_offset >= 0 and last_sequence >= 0:
        first_sequence = (last_sequence - delta) & SEQUENCE_MAX
        producer.batches.append(
            BatchMetadata(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp)
        )
    return producer


def _iterate_fields(data: Buffer, where: str) -> Iterable[tuple[int, ...]]:
    if len(data) < _HEAD.size + _COUNT.size:
        raise Corrupt("producer snapshot is short", where=where)
    version, crc = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise Corrupt(f"producer snapshot has version {version}", where=where)
    body = memoryview(data)[_HEAD.size :]
    if crc32c(body) != crc:
        raise Corrupt("CRC of the producer snapshot is wrong", where=where)
    (count,) = _COUNT.unpack_from(body)
    if len(body) != _COUNT.size + count * _ENTRY.size:
        raise Corrupt(f"producer snapshot of {count} producers has {len(data)} bytes", where=where)
    return _ENTRY.iter_unpack(body[_COUNT.size :])
