"""Records of `__transaction_state`, byte for byte as Kafka 4.2 writes them. Reads every version that Kafka 4.2 reads.
The ids of idempotency keys have two tagged fields more.

The first two bytes of a key are its version, 0. The first two bytes of a value are its version: 0, or 1 with tagged
fields (KIP-890). A record without a value removes its transactional id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from struct import Struct

from tiered.errors import Corrupt
from tiered.ids import TopicPartition
from tiered.record_fields import I16, I32, I64, FieldReader, encode_string, encode_uvarint
from tiered.shard import CoordinatorRecord
from tiered.transactions.metadata import NO_PRODUCER_ID, TransactionMetadata, TransactionState

KEY_VERSION = 0
PLAIN, FLEXIBLE = 0, 1
PREVIOUS_PRODUCER_ID_TAG, NEXT_PRODUCER_ID_TAG, CLIENT_VERSION_TAG = 0, 1, 2
REQUEST_HASH_TAG, REPLY_TAG = 10_000, 10_001
"""Our own tagged fields, which Kafka skips."""

_DECIDED = Struct(">hqhiBBqqB")
"""All fields of version 1 up to the number of tagged fields, with null or no partitions."""
_PREVIOUS, _NEXT = bytes((PREVIOUS_PRODUCER_ID_TAG, 8)), bytes((NEXT_PRODUCER_ID_TAG, 8))
_CLIENT = bytes((CLIENT_VERSION_TAG, 2))
"""Tags with the lengths of their fields."""
_STATES = tuple(TransactionState)
_NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


def transaction_key(transactional_id: str) -> bytes:
    """Encodes the key of a transactional id."""
    return I16.pack(KEY_VERSION) + encode_string(transactional_id)


def transaction_record(transactional_id: str, value: TransactionMetadata | None) -> CoordinatorRecord:
    """Returns the record of a transactional id; without a value, the one that removes it."""
    return CoordinatorRecord(transaction_key(transactional_id), None if value is None else encode_value(value))


def encode_value(value: TransactionMetadata) -> bytes:
    """Encodes version 1 of a value. A state without partitions has null in their place, as Kafka writes it."""
    parts = [
        I16.pack(FLEXIBLE),
        I64.pack(value.producer_id),
        I16.pack(value.producer_epoch),
        I32.pack(value.timeout_ms),
        bytes((value.state,)),
        b"\0" if value.state is TransactionState.EMPTY else _encode_partitions(value.partitions),
        I64.pack(value.updated_ms),
        I64.pack(value.started_ms),
    ]
    tags = [
        (tag, raw)
        for tag, raw, is_set in (
            (PREVIOUS_PRODUCER_ID_TAG, I64.pack(value.previous_producer_id), value.previous_producer_id != -1),
            (NEXT_PRODUCER_ID_TAG, I64.pack(value.next_producer_id), value.next_producer_id != -1),
            (CLIENT_VERSION_TAG, I16.pack(value.client_version), value.client_version != 0),
            (REQUEST_HASH_TAG, value.request_hash, value.request_hash != b""),
            (REPLY_TAG, value.reply, value.reply != b""),
        )
        if is_set
    ]
    parts.append(encode_uvarint(len(tags)))
    for tag, raw in tags:
        parts += (encode_uvarint(tag), encode_uvarint(len(raw)), raw)
    return b"".join(parts)


def _encode_partitions(partitions: Collection[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        topics[topic].append(partition)
    parts = [encode_uvarint(len(topics) + 1)]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts += (encode_uvarint(len(name) + 1), name, encode_uvarint(len(numbers) + 1))
        parts += map(I32.pack, numbers)
        parts.append(b"\0")
    return b"".join(parts)


def read_key(raw: bytes) -> str | None:
    """Reads a key; None for a version that this program does not know. Raises `Corrupt` if it is malformed."""
    if len(raw) >= 4 and raw[:2] == b"\0\0" and raw.isascii() and len(raw) - 4 == raw[2] << 8 | raw[3]:
        return raw[4:].decode()
    fields = FieldReader(raw)
    return fields.string() if fields.i16() == KEY_VERSION else None


def read_value(raw: bytes) -> TransactionMetadata:
    """Reads a value of any version. Raises `Corrupt` if it is malformed or its version or state is not known."""
    return _read_decided_value(raw) or _read_value(raw)


def _read_decided_value(raw: bytes) -> TransactionMetadata | None:
    """Reads a value as `encode_value` writes it for an id without partitions, which most ids of a log are. Returns None
    for any other value."""
    if len(raw) < _DECIDED.size:
        return None
    version, producer_id, epoch, timeout_ms, number, partitions, updated_ms, started_ms, tags = _DECIDED.unpack_from(
        raw
    )
    if version != FLEXIBLE or partitions > 1 or number >= len(_STATES):
        return None
    previous, following, client_version, at = NO_PRODUCER_ID, NO_PRODUCER_ID, 0, _DECIDED.size
    for _ in range(tags):
        tag = raw[at : at + 2]
        if tag == _PREVIOUS and at + 10 <= len(raw):
            (previous,) = I64.unpack_from(raw, at + 2)
        elif tag == _NEXT and at + 10 <= len(raw):
            (following,) = I64.unpack_from(raw, at + 2)
        elif tag == _CLIENT and at + 4 <= len(raw):
            (client_version,) = I16.unpack_from(raw, at + 2)
        else:
            return None
        at += 2 + tag[1]
    return TransactionMetadata(
        producer_id, epoch, timeout_ms, _STATES[number], _NO_PARTITIONS, updated_ms, started_ms, previous, following,
        client_version,
    )  # fmt: skip


def _read_value(raw: bytes) -> TransactionMetadata:
    """Reads a value of any version, field by field."""
    version = FieldReader(raw).i16()
    if version not in (PLAIN, FLEXIBLE):
        raise Corrupt(f"value has version {version}", position=0)
    fields = FieldReader(raw, 2, flexible=version == FLEXIBLE)
    producer_id, epoch, timeout_ms, number = fields.i64(), fields.i16(), fields.i32(), fields.take(1)[0]
    try:
        state = TransactionState(number)
    except ValueError:
        raise Corrupt(f"state {number} is not known", position=16) from None
    partitions = []
    for _ in range(fields.nullable_count() or 0):
        topic = fields.string()
        partitions += [TopicPartition(topic, fields.i32()) for _ in range(fields.count())]
        fields.tags()
    updated_ms, started_ms, tags = fields.i64(), fields.i64(), fields.tags()
    return TransactionMetadata(
        producer_id, epoch, timeout_ms, state, frozenset(partitions), updated_ms, started_ms,
        previous_producer_id=_read_tag(tags, PREVIOUS_PRODUCER_ID_TAG, 8, NO_PRODUCER_ID),
        next_producer_id=_read_tag(tags, NEXT_PRODUCER_ID_TAG, 8, NO_PRODUCER_ID),
        client_version=_read_tag(tags, CLIENT_VERSION_TAG, 2, 0),
        request_hash=tags.get(REQUEST_HASH_TAG, b""), reply=tags.get(REPLY_TAG, b""),
    )  # fmt: skip


def _read_tag(tags: dict[int, bytes], tag: int, size: int, default: int) -> int:
    raw = tags.get(tag)
    if raw is None:
        return default
    if len(raw) != size:
        raise Corrupt(f"tagged field {tag} has {len(raw)} bytes")
    return int.from_bytes(raw, "big", signed=True)
