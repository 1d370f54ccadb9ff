"""Records of consumer groups in `__consumer_offsets`, byte for byte as Kafka 4.2 writes them.

The kinds of keys go on after those of `groups.records`. All values have version 0, which has flexible fields. Kafka
before 4.1 also wrote the kind PARTITION_METADATA: it is read as what it is, and its value is not used.
"""

from __future__ import annotations

import struct
import uuid
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.epochs import NO_HASH
from tiered.groups.consumer.reconciliation import CurrentAssignment, MemberState
from tiered.ids import decode_uuid, encode_uuid
from tiered.record_fields import (
    I16,
    I32,
    I64,
    FieldReader,
    encode_compact_nullable_string,
    encode_compact_string,
    encode_string,
    encode_uvarint,
)
from tiered.value import value

GROUP, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGEX = 3, 4, 5, 6, 7, 8, 16
"""Kinds of keys. The keys MEMBER, TARGET and CURRENT name a member, REGEX names a regular expression."""

KINDS = frozenset({GROUP, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGEX})
_WITH_PART = frozenset({MEMBER, TARGET, CURRENT, REGEX})
_VERSION = I16.pack(0)
_NO_TAGS = b"\0"
_HASH_TAG, _CLASSIC_TAG = 0, 0
_CURRENT_HEAD = struct.Struct(">iib")


class ConsumerKey(NamedTuple):
    """Key of a record. `part` is a member id or a regular expression, "" for other kinds."""

    kind: int
    group: str
    part: str = ""


class GroupEpoch(NamedTuple):
    """Value of a group: its epoch, and the hash of the topics that its members subscribe to."""

    epoch: int
    topics_hash: int = NO_HASH


class ClassicMetadata(NamedTuple):
    """Timeout and protocols with which a member of the classic protocol joined."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@value
class MemberMetadata:
    """Value of a member. `topics` are names, `regex` is "" if there is none. `classic` is None for members of the
    consumer protocol."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMetadata | None = None


class ResolvedRegex(NamedTuple):
    """Value of a regular expression: the names that it matched in the metadata of `version`, at `time_ms`."""

    topics: frozenset[str]
    version: int
    time_ms: int


# -- writing ----------------------------------------------------------------------------------------------------------


def encode_key(key: ConsumerKey) -> bytes:
    """Encodes a key."""
    head = I16.pack(key.kind) + encode_string(key.group)
    return head + encode_string(key.part) if key.kind in _WITH_PART else head


def encode_group_epoch(group: GroupEpoch) -> bytes:
    """Encodes the value of GROUP. A hash of 0 is the default and takes no bytes."""
    tags = _NO_TAGS if group.topics_hash == NO_HASH else _one_tag(_HASH_TAG, I64.pack(group.topics_hash))
    return _VERSION + I32.pack(group.epoch) + tags


def encode_target_epoch(epoch: int) -> bytes:
    """Encodes the value of TARGET_EPOCH."""
    return _VERSION + I32.pack(epoch) + _NO_TAGS


def encode_target(target: Assignment) -> bytes:
    """Encodes the value of TARGET."""
    return _VERSION + encode_partitions(target) + _NO_TAGS


def encode_current(current: CurrentAssignment) -> bytes:
    """Encodes the value of CURRENT."""
    head = _CURRENT_HEAD.pack(current.epoch, current.previous_epoch, current.state.value)
    return _VERSION + head + encode_partitions(current.assigned) + encode_partitions(current.revoking) + _NO_TAGS


def encode_member(member: MemberMetadata) -> bytes:
    """Encodes the value of MEMBER."""
    return b"".join(
        (
            _VERSION,
            encode_compact_nullable_string(member.instance_id),
            encode_compact_nullable_string(member.rack_id),
            encode_compact_string(member.client_id),
            encode_compact_string(member.client_host),
            encode_names(member.topics),
            encode_compact_string(member.regex),
            I32.pack(member.rebalance_timeout_ms),
            encode_compact_nullable_string(member.assignor),
            _one_tag(_CLASSIC_TAG, _encode_classic(member.classic)),
        )
    )


def encode_regex(regex: ResolvedRegex) -> bytes:
    """Encodes the value of REGEX."""
    return _VERSION + encode_names(regex.topics) + I64.pack(regex.version) + I64.pack(regex.time_ms) + _NO_TAGS


def _one_tag(tag: int, raw: bytes) -> bytes:
    return b"\1" + encode_uvarint(tag) + encode_uvarint(len(raw)) + raw


def encode_names(names: frozenset[str]) -> bytes:
    """Encodes a list of names."""
    return encode_uvarint(len(names) + 1) + b"".join(map(encode_compact_string, sorted(names)))


def _encode_classic(classic: ClassicMetadata | None) -> bytes:
    """Encodes a field that is a nullable struct: a 1 stands before it. Kafka writes the tag for null too."""
    if classic is None:
        return b"\0"
    parts = [b"\1", I32.pack(classic.session_timeout_ms), encode_uvarint(len(classic.protocols) + 1)]
    for name, metadata in classic.protocols:
        parts += (encode_compact_string(name), encode_uvarint(len(metadata) + 1), metadata, _NO_TAGS)
    parts.append(_NO_TAGS)
    return b"".join(parts)


def encode_partitions(assignment: Assignment) -> bytes:
    """Encodes the partitions of each topic."""
    parts = [encode_uvarint(len(assignment) + 1)]
    for topic_id in sorted(assignment):
        partitions = sorted(assignment[topic_id])
        numbers = struct.pack(f">{len(partitions)}i", *partitions)
        parts += (decode_uuid(topic_id), encode_uvarint(len(partitions) + 1), numbers, _NO_TAGS)
    return b"".join(parts)


# -- reading ----------------------------------------------------------------------------------------------------------


def read_key(raw: bytes) -> ConsumerKey | None:
    """Decodes a key. Returns None for a kind that is not of consumer groups; raises `Corrupt` for a malformed key."""
    fields = FieldReader(raw)
    kind = fields.i16()
    if kind not in KINDS:
        return None
    return ConsumerKey(kind, fields.string(), fields.string() if kind in _WITH_PART else "")


def read_group_epoch(raw: bytes) -> GroupEpoch:
    """Decodes the value of GROUP."""
    fields = open_value(raw)
    epoch = fields.i32()
    topics_hash = fields.tags().get(_HASH_TAG)
    return GroupEpoch(epoch, NO_HASH if topics_hash is None else FieldReader(topics_hash).i64())


def read_target_epoch(raw: bytes) -> int:
    """Decodes the value of TARGET_EPOCH."""
    fields = open_value(raw)
    epoch = fields.i32()
    fields.tags()
    return epoch


def read_target(raw: bytes) -> Assignment:
    """Decodes the value of TARGET."""
    fields = open_value(raw)
    target = read_partitions(fields)
    fields.tags()
    return target


def read_current(raw: bytes) -> CurrentAssignment:
    """Decodes the value of CURRENT."""
    fields = open_value(raw)
    epoch, previous_epoch, state = fields.i32(), fields.i32(), fields.take(1)[0]
    known = {each.value: each for each in MemberState}
    current = CurrentAssignment(
        epoch,
        previous_epoch,
        known.get(state, MemberState.UNKNOWN),
        read_partitions(fields),
        read_partitions(fields),
    )
    fields.tags()
    return current


def read_member(raw: bytes) -> MemberMetadata:
    """Decodes the value of MEMBER."""
    fields = open_value(raw)
    instance_id, rack_id = fields.nullable_string(), fields.nullable_string()
    client_id, client_host = fields.string(), fields.string()
    topics, regex = read_names(fields), fields.nullable_string() or ""
    rebalance_timeout_ms, assignor = fields.i32(), fields.nullable_string()
    classic = fields.tags().get(_CLASSIC_TAG)
    return MemberMetadata(
        instance_id,
        rack_id,
        client_id,
        client_host,
        topics,
        regex,
        rebalance_timeout_ms,
        assignor,
        None if classic is None else _read_classic(classic),
    )


def read_regex(raw: bytes) -> ResolvedRegex:
    """Decodes the value of REGEX."""
    fields = open_value(raw)
    found = ResolvedRegex(read_names(fields), fields.i64(), fields.i64())
    fields.tags()
    return found


def open_value(raw: bytes) -> FieldReader:
    """Returns the fields of a value of version 0. Raises `Corrupt` for another version."""
    version = FieldReader(raw).i16()
    if version:
        raise Corrupt(f"unknown version {version} of a group's record")
    return FieldReader(raw, 2, flexible=True)


def read_names(fields: FieldReader) -> frozenset[str]:
    """Decodes a list of names."""
    return frozenset([fields.string() for _ in range(fields.count())])


def _read_classic(raw: bytes) -> ClassicMetadata | None:
    fields = FieldReader(raw, flexible=True)
    if fields.take(1) != b"\1":
        return None
    timeout_ms, protocols = fields.i32(), []
    for _ in range(fields.count()):
        protocols.append((fields.string(), fields.data()))
        fields.tags()
    fields.tags()
    return ClassicMetadata(timeout_ms, tuple(protocols))


def read_partitions(fields: FieldReader) -> Assignment:
    """Decodes the partitions of each topic. A topic without partitions is left out."""
    found: dict[str, frozenset[int]] = {}
    for _ in range(fields.count()):
        topic_id = encode_uuid(uuid.UUID(bytes=fields.take(16)))
        count = fields.count()
        partitions = struct.unpack(f">{count}i", fields.take(4 * count))
        fields.tags()
        if partitions:
            found[topic_id] = frozenset(partitions)
    return found
