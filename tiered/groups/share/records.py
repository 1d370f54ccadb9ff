"""Records of share groups in `__consumer_offsets`, byte for byte as Kafka 4.2 writes them.

The kinds of keys go on after those of consumer groups. All values have version 0, which has flexible fields.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from tiered.groups.consumer.assignment import NO_PARTITIONS, Assignment
from tiered.groups.consumer.reconciliation import CurrentAssignment, MemberState
from tiered.groups.consumer.records import (
    GroupEpoch,
    encode_names,
    encode_partitions,
    open_value,
    read_names,
    read_partitions,
)
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

MEMBER, GROUP, TARGET_EPOCH, TARGET, CURRENT, STATE = 10, 11, 12, 13, 14, 15
"""Kinds of keys. The keys MEMBER, TARGET and CURRENT name a member."""

_KINDS = frozenset({MEMBER, GROUP, TARGET_EPOCH, TARGET, CURRENT, STATE})
_WITH_MEMBER = frozenset({MEMBER, TARGET, CURRENT})
_VERSION = I16.pack(0)
_NO_TAGS = b"\0"
_CURRENT_HEAD = struct.Struct(">iib")


class ShareGroupKey(NamedTuple):
    """Key of a record. `member_id` is "" for the kinds that name no member."""

    kind: int
    group: str
    member_id: str = ""


class ShareMemberMetadata(NamedTuple):
    """Value of MEMBER. `topics` are the names that the member subscribes to."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()


class StateTopic(NamedTuple):
    """Partitions of a topic whose share state is there, or was requested at `time_ms`."""

    name: str
    partitions: frozenset[int]
    time_ms: int


class StatePartitions(NamedTuple):
    """Value of STATE: topics by id. `deleting` has the names of those whose state is being removed."""

    initializing: Mapping[str, StateTopic] = {}
    initialized: Mapping[str, StateTopic] = {}
    deleting: Mapping[str, str] = {}


# -- writing ----------------------------------------------------------------------------------------------------------


def encode_key(key: ShareGroupKey) -> bytes:
    """Encodes a key."""
    head = I16.pack(key.kind) + encode_string(key.group)
    return head + encode_string(key.member_id) if key.kind in _WITH_MEMBER else head


def encode_group_epoch(group: GroupEpoch) -> bytes:
    """Encodes the value of GROUP."""
    return _VERSION + I32.pack(group.epoch) + I64.pack(group.topics_hash) + _NO_TAGS


def encode_target_epoch(epoch: int) -> bytes:
    """Encodes the value of TARGET_EPOCH."""
    return _VERSION + I32.pack(epoch) + _NO_TAGS


def encode_target(target: Assignment) -> bytes:
    """Encodes the value of TARGET."""
    return _VERSION + encode_partitions(target) + _NO_TAGS


def encode_current(current: CurrentAssignment) -> bytes:
    """Encodes the value of CURRENT. Members of share groups revoke nothing."""
    head = _CURRENT_HEAD.pack(current.epoch, current.previous_epoch, current.state.value)
    return _VERSION + head + encode_partitions(current.assigned) + _NO_TAGS


def encode_member(member: ShareMemberMetadata) -> bytes:
    """Encodes the value of MEMBER."""
    texts = encode_compact_string(member.client_id) + encode_compact_string(member.client_host)
    return _VERSION + encode_compact_nullable_string(member.rack_id) + texts + encode_names(member.topics) + _NO_TAGS


def encode_state(state: StatePartitions) -> bytes:
    """Encodes the value of STATE."""
    parts = [_VERSION, _encode_topics(state.initializing), _encode_topics(state.initialized)]
    parts.append(encode_uvarint(len(state.deleting) + 1))
    parts += (
        decode_uuid(topic_id) + encode_compact_string(state.deleting[topic_id]) + _NO_TAGS
        for topic_id in sorted(state.deleting)
    )
    return b"".join((*parts, _NO_TAGS))


def _encode_topics(topics: Mapping[str, StateTopic]) -> bytes:
    parts = [encode_uvarint(len(topics) + 1)]
    for topic_id in sorted(topics):
        name, partitions, time_ms = topics[topic_id]
        numbers = struct.pack(f">{len(partitions)}i", *sorted(partitions))
        parts += (
            decode_uuid(topic_id), encode_compact_string(name), encode_uvarint(len(partitions) + 1), numbers,
            I64.pack(time_ms), _NO_TAGS,
        )  # fmt: skip
    return b"".join(parts)


# -- reading ----------------------------------------------------------------------------------------------------------


def read_key(raw: bytes) -> ShareGroupKey | None:
    """Decodes a key. Returns None for a kind that is not of share groups; raises `Corrupt` for a malformed key."""
    fields = FieldReader(raw)
    kind = fields.i16()
    if kind not in _KINDS:
        return None
    return ShareGroupKey(kind, fields.string(), fields.string() if kind in _WITH_MEMBER else "")


def read_group_epoch(raw: bytes) -> GroupEpoch:
    """Decodes the value of GROUP."""
    fields = open_value(raw)
    found = GroupEpoch(fields.i32(), fields.i64())
    fields.tags()
    return found


def read_current(raw: bytes) -> CurrentAssignment:
    """Decodes the value of CURRENT."""
    fields = open_value(raw)
    epoch, previous_epoch, state = fields.i32(), fields.i32(), fields.take(1)[0]
    known = {each.value: each for each in MemberState}
    assigned = read_partitions(fields)
    fields.tags()
    return CurrentAssignment(epoch, previous_epoch, known.get(state, MemberState.UNKNOWN), assigned, NO_PARTITIONS)


def read_member(raw: bytes) -> ShareMemberMetadata:
    """Decodes the value of MEMBER."""
    fields = open_value(raw)
    found = ShareMemberMetadata(fields.nullable_string(), fields.string(), fields.string(), read_names(fields))
    fields.tags()
    return found


def read_state(raw: bytes) -> StatePartitions:
    """Decodes the value of STATE."""
    fields = open_value(raw)
    initializing, initialized, deleting = _read_topics(fields), _read_topics(fields), dict[str, str]()
    for _ in range(fields.count()):
        topic_id = encode_uuid(uuid.UUID(bytes=fields.take(16)))
        deleting[topic_id] = fields.string()
        fields.tags()
    fields.tags()
    return StatePartitions(initializing, initialized, deleting)


def _read_topics(fields: FieldReader) -> dict[str, StateTopic]:
    found: dict[str, StateTopic] = {}
    for _ in range(fields.count()):
        topic_id, name = encode_uuid(uuid.UUID(bytes=fields.take(16))), fields.string()
        count = fields.count()
        numbers = struct.unpack(f">{count}i", fields.take(4 * count))
        found[topic_id] = StateTopic(name, frozenset(numbers), fields.i64())
        fields.tags()
    return found
