"""Records of `__share_group_state`, byte for byte as Kafka 4.2 writes them.

A snapshot has the whole state of a share partition, an update what was changed since. The first two bytes of a key are
its type: 0 of snapshots, 1 of updates. The first two bytes of a value are its version, 0. A snapshot without a value
removes its share partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from tiered.errors import Corrupt
from tiered.ids import decode_uuid, encode_uuid
from tiered.record_fields import I16, I32, FieldReader, encode_string, encode_uvarint
from tiered.shard import CoordinatorRecord
from tiered.share.requests import NO_COUNT, SharePartitionKey
from tiered.share.state import PERSISTED_STATES, RecordState, StateBatch
from tiered.value import value

SNAPSHOT_KEY, UPDATE_KEY = 0, 1
VALUE_VERSION = 0
COMPLETE_COUNT_TAG = 0

_SNAPSHOT = Struct(">hiiiqqq")
_UPDATE = Struct(">hiiq")
_BATCH = Struct(">qqbhB")


@value
class ShareSnapshot:
    """The whole state of a share partition. `snapshot_epoch` counts its snapshots."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    created_ms: int
    written_ms: int
    batches: tuple[StateBatch, ...] = ()
    delivery_complete_count: int = NO_COUNT


@value
class ShareUpdate:
    """A change since the snapshot of `snapshot_epoch`. The start offset is -1 where it is not changed."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...] = ()
    delivery_complete_count: int = NO_COUNT


class ShareKey(NamedTuple):
    """The key of a record: its type, and its share partition."""

    kind: int
    key: SharePartitionKey


def _encode_key(kind: int, key: SharePartitionKey) -> bytes:
    return b"".join((I16.pack(kind), encode_string(key.group), decode_uuid(key.topic_id), I32.pack(key.partition)))


def snapshot_record(key: SharePartitionKey, snapshot: ShareSnapshot | None) -> CoordinatorRecord:
    """Returns the record of a snapshot; without one, the record that removes the share partition."""
    return CoordinatorRecord(_encode_key(SNAPSHOT_KEY, key), None if snapshot is None else encode_snapshot(snapshot))


def update_record(key: SharePartitionKey, update: ShareUpdate) -> CoordinatorRecord:
    """Returns the record of an update."""
    return CoordinatorRecord(_encode_key(UPDATE_KEY, key), encode_update(update))


def encode_snapshot(snapshot: ShareSnapshot) -> bytes:
    """Encodes the value of a snapshot."""
    head = _SNAPSHOT.pack(
        VALUE_VERSION, snapshot.snapshot_epoch, snapshot.state_epoch, snapshot.leader_epoch, snapshot.start_offset,
        snapshot.created_ms, snapshot.written_ms,
    )  # fmt: skip
    return b"".join((head, _encode_batches(snapshot.batches), _encode_count(snapshot.delivery_complete_count)))


def encode_update(update: ShareUpdate) -> bytes:
    """Encodes the value of an update."""
    head = _UPDATE.pack(VALUE_VERSION, update.snapshot_epoch, update.leader_epoch, update.start_offset)
    return b"".join((head, _encode_batches(update.batches), _encode_count(update.delivery_complete_count)))


def _encode_batches(batches: Sequence[StateBatch]) -> bytes:
    return encode_uvarint(len(batches) + 1) + b"".join([_BATCH.pack(*each, 0) for each in batches])


def _encode_count(count: int) -> bytes:
    """Encodes the tagged fields of a value: the delivery complete count (KIP-1226), if it is known."""
    return b"\0" if count == NO_COUNT else bytes((1, COMPLETE_COUNT_TAG, 4)) + I32.pack(count)


def read_key(raw: bytes) -> ShareKey | None:
    """Reads a key; None for a type that this program does not know. Raises `Corrupt` if it is malformed."""
    fields = FieldReader(raw)
    kind = fields.i16()
    if kind not in (SNAPSHOT_KEY, UPDATE_KEY):
        return None
    return ShareKey(kind, SharePartitionKey(fields.string(), encode_uuid(UUID(bytes=fields.take(16))), fields.i32()))


def read_snapshot(raw: bytes) -> ShareSnapshot:
    """Reads the value of a snapshot. Raises `Corrupt` if it is malformed or its version is not known."""
    fields = _open_value(raw)
    epochs = fields.i32(), fields.i32(), fields.i32()
    start, created, written = fields.i64(), fields.i64(), fields.i64()
    batches = _read_batches(fields)
    return ShareSnapshot(*epochs, start, created, written, batches, _read_count(fields))


def read_update(raw: bytes) -> ShareUpdate:
    """Reads the value of an update. Raises `Corrupt` if it is malformed or its version is not known."""
    fields = _open_value(raw)
    snapshot_epoch, leader_epoch, start = fields.i32(), fields.i32(), fields.i64()
    batches = _read_batches(fields)
    return ShareUpdate(snapshot_epoch, leader_epoch, start, batches, _read_count(fields))


def _open_value(raw: bytes) -> FieldReader:
    version = FieldReader(raw).i16()
    if version != VALUE_VERSION:
        raise Corrupt(f"value has version {version}", position=0)
    return FieldReader(raw, 2, flexible=True)


def _read_batches(fields: FieldReader) -> tuple[StateBatch, ...]:
    found = []
    for _ in range(fields.count()):
        first, last, number, count = fields.i64(), fields.i64(), fields.take(1)[0], fields.i16()
        fields.tags()
        if number not in PERSISTED_STATES or not 0 <= first <= last or count < 0:
            raise Corrupt(f"batch of {first} to {last} has state {number} and delivery count {count}")
        found.append(StateBatch(first, last, RecordState(number), count))
    return tuple(found)


def _read_count(fields: FieldReader) -> int:
    raw = fields.tags().get(COMPLETE_COUNT_TAG)
    if raw is None:
        return NO_COUNT
    if len(raw) != 4:
        raise Corrupt(f"delivery complete count has {len(raw)} bytes")
    return int.from_bytes(raw, "big", signed=True)
