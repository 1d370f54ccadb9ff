"""Records of `__consumer_offsets`, byte for byte as Kafka 4.2 writes them. Reads every version that Kafka 4.2 reads.

The first two bytes of a key are its kind: 0 and 1 an offset, 2 a group. Other kinds belong to other protocols and are
skipped. The first two bytes of a value are its version.
"""

from __future__ import annotations

import struct
import uuid
from functools import lru_cache
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.ids import decode_uuid, encode_uuid
from tiered.record_fields import (
    I16,
    I32,
    I64,
    FieldReader,
    encode_bytes,
    encode_nullable_string,
    encode_string,
    encode_uvarint,
)
from tiered.shard import CoordinatorRecord, ProducerIdAndEpoch

OFFSET_KEY_OLD, OFFSET_KEY, GROUP_KEY = 0, 1, 2
OFFSET_PLAIN, OFFSET_EXPIRING, OFFSET_FLEXIBLE = 3, 1, 4
"""Versions of an offset's value. An offset with its own expiry time has to be version 1: no later one has the field."""
GROUP_PLAIN, GROUP_FLEXIBLE = 3, 4
NO_TIME = -1
_KEY_HEAD, _PLAIN_HEAD = struct.Struct(">hh"), struct.Struct(">hqih")
_FLEXIBLE_HEAD, _SHORT_FLEXIBLE_HEAD = struct.Struct(">hqi"), struct.Struct(">hqiB")
_TOPIC_ID_TAG = 0
_ONE_TOPIC_ID = bytes((1, _TOPIC_ID_TAG, 16))
_TOPIC_ID_FIELDS = struct.Struct(">q3s16s")


class OffsetKey(NamedTuple):
    """Key of a committed offset."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """Key of a group."""

    group: str


class OffsetValue(NamedTuple):
    """A committed offset. `expire_ms` is NO_TIME unless the client set a retention time (OffsetCommit v2-4)."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = NO_TIME
    topic_id: str = ""


class MemberValue(NamedTuple):
    """A member as the last rebalance left it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    """A group as the last rebalance left it. `state_since_ms` is wall time."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_since_ms: int
    members: tuple[MemberValue, ...] = ()


# -- writing ----------------------------------------------------------------------------------------------------------


def offset_key(group: str, topic: str, partition: int) -> bytes:
    """Encodes the key of one partition's offset."""
    return _offset_key_head(group, topic) + I32.pack(partition)


@lru_cache(maxsize=256)
def _offset_key_head(group: str, topic: str) -> bytes:
    """Encodes what all partitions of a topic have in common: a commit may name ten thousand."""
    return I16.pack(OFFSET_KEY) + encode_string(group) + encode_string(topic)


def offset_record(
    group: str, topic: str, partition: int, value: OffsetValue, producer: ProducerIdAndEpoch | None = None
) -> CoordinatorRecord:
    """Returns the record of one committed offset, or of one that the transaction of `producer` commits."""
    return CoordinatorRecord(offset_key(group, topic, partition), offset_value(value), producer)


def offset_value(value: OffsetValue) -> bytes:
    """Encodes version 1 for an offset with its own expiry time, version 4 for one with a topic id, else version 3."""
    if value.expire_ms == NO_TIME and not value.topic_id:
        raw = value.metadata.encode()
        head = _PLAIN_HEAD.pack(OFFSET_PLAIN, value.offset, value.leader_epoch, len(raw))
        return head + raw + I64.pack(value.commit_ms)
    if value.expire_ms != NO_TIME:
        head = I16.pack(OFFSET_EXPIRING) + I64.pack(value.offset) + encode_string(value.metadata)
        return head + I64.pack(value.commit_ms) + I64.pack(value.expire_ms)
    raw = value.metadata.encode()
    size, tail = len(raw) + 1, _topic_id_fields(value.commit_ms, value.topic_id)
    if size < 0x80:
        return _SHORT_FLEXIBLE_HEAD.pack(OFFSET_FLEXIBLE, value.offset, value.leader_epoch, size) + raw + tail
    head = _FLEXIBLE_HEAD.pack(OFFSET_FLEXIBLE, value.offset, value.leader_epoch) + encode_uvarint(size)
    return head + raw + tail


@lru_cache(256)
def _topic_id_fields(commit_ms: int, topic_id: str) -> bytes:
    """Encodes what all partitions of a topic have in common in a commit."""
    return _TOPIC_ID_FIELDS.pack(commit_ms, _ONE_TOPIC_ID, decode_uuid(topic_id))


def group_key(group: str) -> bytes:
    """Encodes the key of a group."""
    return I16.pack(GROUP_KEY) + encode_string(group)


def group_record(group: str, value: GroupValue) -> CoordinatorRecord:
    """Returns the record of a group after a rebalance."""
    return CoordinatorRecord(group_key(group), group_value(value))


def group_value(value: GroupValue) -> bytes:
    """Encodes a group in version 3."""
    parts = [
        I16.pack(GROUP_PLAIN),
        encode_string(value.protocol_type),
        I32.pack(value.generation),
        encode_nullable_string(value.protocol),
        encode_nullable_string(value.leader),
        I64.pack(value.state_since_ms),
        I32.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            encode_string(member.member_id),
            encode_nullable_string(member.instance_id),
            encode_string(member.client_id),
            encode_string(member.client_host),
            I32.pack(member.rebalance_timeout_ms),
            I32.pack(member.session_timeout_ms),
            encode_bytes(member.subscription),
            encode_bytes(member.assignment),
        )
    return b"".join(parts)


# -- reading ----------------------------------------------------------------------------------------------------------


def read_key(raw: bytes) -> OffsetKey | GroupKey | None:
    """Decodes a key. Returns None for an unknown kind; raises `Corrupt` for a malformed key of a known kind."""
    return _read_offset_key_fast(raw) or _read_key(raw)


def _read_offset_key_fast(raw: bytes) -> OffsetKey | None:
    """Decodes the key of an offset in one step, as nearly all keys are; None if `_read_key` has to decide."""
    try:
        kind, size = _KEY_HEAD.unpack_from(raw)
        if kind not in (OFFSET_KEY, OFFSET_KEY_OLD) or size < 0:
            return None
        (topic_size,) = I16.unpack_from(raw, 4 + size)
        if topic_size < 0:
            return None
        topic, end = 6 + size, 6 + size + topic_size
        (partition,) = I32.unpack_from(raw, end)
        return OffsetKey(str(raw[4 : 4 + size], "utf-8"), str(raw[topic:end], "utf-8"), partition)
    except (struct.error, UnicodeDecodeError):
        return None


def _read_key(raw: bytes) -> OffsetKey | GroupKey | None:
    fields = FieldReader(raw)
    kind = fields.i16()
    if kind in (OFFSET_KEY_OLD, OFFSET_KEY):
        return OffsetKey(fields.string(), fields.string(), fields.i32())
    return GroupKey(fields.string()) if kind == GROUP_KEY else None


def read_offset(raw: bytes) -> OffsetValue:
    """Decodes the value of an offset, versions 0 to 4."""
    return _read_offset_fast(raw) or _read_offset(raw)


def _read_offset_fast(raw: bytes) -> OffsetValue | None:
    """Decodes an offset of version 3 or 4, as nearly all are, in one step; None if `_read_offset` has to decide."""
    try:
        version, offset, epoch, size = _PLAIN_HEAD.unpack_from(raw)
        if version == OFFSET_FLEXIBLE:
            return _read_flexible_offset_fast(raw)
        if version != OFFSET_PLAIN or size < 0:
            return None
        end = _PLAIN_HEAD.size + size
        (when,) = I64.unpack_from(raw, end)
        return OffsetValue(offset, epoch, str(raw[_PLAIN_HEAD.size : end], "utf-8"), when)
    except (struct.error, UnicodeDecodeError):
        return None


def _read_flexible_offset_fast(raw: bytes) -> OffsetValue | None:
    """Decodes what `offset_value` writes with a topic id, if the length of the metadata takes one byte."""
    _, offset, epoch, size = _SHORT_FLEXIBLE_HEAD.unpack_from(raw)
    end = _SHORT_FLEXIBLE_HEAD.size + size - 1
    if not 0 < size < 0x80 or len(raw) != end + _TOPIC_ID_FIELDS.size:
        return None
    when, tags, topic_id = _TOPIC_ID_FIELDS.unpack_from(raw, end)
    if tags != _ONE_TOPIC_ID:
        return None
    return OffsetValue(
        offset, epoch, str(raw[_SHORT_FLEXIBLE_HEAD.size : end], "utf-8"), when, NO_TIME, _topic_id_text(topic_id)
    )


@lru_cache(4096)
def _topic_id_text(topic_id: bytes) -> str:
    """Returns Kafka's text form of a topic id. Offsets of one topic share it."""
    return encode_uuid(uuid.UUID(bytes=topic_id))


def _read_offset(raw: bytes) -> OffsetValue:
    version = FieldReader(raw).i16()
    if not 0 <= version <= OFFSET_FLEXIBLE:
        raise Corrupt(f"unknown version {version} of an offset")
    fields = FieldReader(raw, 2, flexible=version == OFFSET_FLEXIBLE)
    offset = fields.i64()
    epoch = fields.i32() if version >= 3 else -1
    metadata, committed = fields.string(), fields.i64()
    expires = fields.i64() if version == OFFSET_EXPIRING else NO_TIME
    topic_id = fields.tags().get(_TOPIC_ID_TAG)
    if topic_id is not None and len(topic_id) != 16:
        raise Corrupt("topic id does not have 16 bytes")
    return OffsetValue(offset, epoch, metadata, committed, expires, _topic_id_text(topic_id) if topic_id else "")


def read_group(raw: bytes) -> GroupValue:
    """Decodes the value of a group, versions 0 to 4."""
    version = FieldReader(raw).i16()
    if not 0 <= version <= GROUP_FLEXIBLE:
        raise Corrupt(f"unknown version {version} of a group")
    fields = FieldReader(raw, 2, flexible=version == GROUP_FLEXIBLE)
    kind, generation, protocol, leader = (
        fields.string(),
        fields.i32(),
        fields.nullable_string(),
        fields.nullable_string(),
    )
    since = fields.i64() if version >= 2 else NO_TIME
    members = tuple(_read_member(fields, version) for _ in range(fields.count()))
    fields.tags()
    return GroupValue(kind, generation, protocol, leader, since, members)


def _read_member(fields: FieldReader, version: int) -> MemberValue:
    member_id = fields.string()
    instance_id = fields.nullable_string() if version >= 3 else None
    client_id, client_host = fields.string(), fields.string()
    rebalance_ms = fields.i32() if version >= 1 else -1
    session_ms = fields.i32()
    member = MemberValue(
        member_id,
        instance_id,
        client_id,
        client_host,
        session_ms if rebalance_ms < 0 else rebalance_ms,
        session_ms,
        fields.data(),
        fields.data(),
    )
    fields.tags()
    return member
