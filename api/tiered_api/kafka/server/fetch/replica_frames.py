"""Fetch (API key 1) of followers on the wire: requests and replies of version 17, by hand.

A request ends with two tagged fields that consumers do not send: `ReplicaState` (KIP-903), and the credential of
brokers, which is our own. Each requested partition has one tagged field of our own, the follower's local start offset.
Each partition of the reply has two, the leader's local start offset and the cold end offset.
"""

from __future__ import annotations

from struct import Struct, error
from typing import NamedTuple

from tiered.errors import Refused
from tiered.ids import TopicId
from tiered.metadata.layout import CREDENTIAL_BYTES
from tiered.peers import DivergingEpoch, PartitionFetch
from tiered_api.kafka.protocol.primitives import Malformed, id_text, read_varint, skip_tags, varint
from tiered_api.kafka.protocol.schema import FIRST_PRIVATE_TAG
from tiered_api.kafka.server.fetch.frames import PARTITIONS_MAX, Part, encode_response

VERSION = 17

_LIMITS = Struct(">iiibii")
_ROW = Struct(">iiqiqi4sq")
"""Partition, leader epoch, fetch offset, epoch of the last record, log start offset, most bytes; a tagged field, the
local start offset."""
_CREDENTIAL_TAG = varint(FIRST_PRIVATE_TAG) + bytes((CREDENTIAL_BYTES + 1, CREDENTIAL_BYTES + 1))
_STATE = Struct(f">BBBiqB{len(_CREDENTIAL_TAG)}s{CREDENTIAL_BYTES}s")
_STATE_TAG = (2, 1, 13)
"""Two tagged fields; the first has tag 1 and 13 bytes, the replica's id and epoch."""
_ENDS = _STATE.size

_IDLE = Struct(">ihqqqBiBB3sq3sq")
_OURS = Struct(">3sq3sq")
_LOCAL_START = varint(FIRST_PRIVATE_TAG) + b"\x08"
_ONE_LOCAL_START = b"\x01" + _LOCAL_START
_COLD_END = varint(FIRST_PRIVATE_TAG + 1) + b"\x08"
_MAY_HAVE_GAPS = varint(FIRST_PRIVATE_TAG + 2) + b"\x01\x01"
_DIVERGING = Struct(">BBBiqB")
NO_OFFSET_OR_REPLICA = -1

_new = tuple.__new__


class ParsedReplicaFetch(NamedTuple):
    """A whole request. Each topic has its 16 id bytes and the number of its partitions in `partitions`. Each partition
    has its limit in `partition_max_bytes`."""

    node_id: int
    incarnation: int
    credential: bytes
    max_wait_ms: int
    max_bytes: int
    topics: list[tuple[bytes, int]]
    partitions: list[PartitionFetch]
    partition_max_bytes: list[int]


def is_replica_fetch(frame: memoryview) -> bool:
    """True if a request of `VERSION` may be a follower's, by its last bytes. `parse_request` decides."""
    return len(frame) > _ENDS and frame[-_ENDS] == 2 and frame[1 - _ENDS] == 1 and frame[2 - _ENDS] == 13


def parse_request(frame: memoryview, at: int) -> ParsedReplicaFetch | None:
    """Returns the request whose body begins at `at`, None if no follower of ours sent it. `Malformed` if it is not
    valid."""
    try:
        return _parse(frame, at)
    except (error, IndexError) as problem:
        raise Malformed(str(problem)) from None


def _parse(frame: memoryview, at: int) -> ParsedReplicaFetch | None:
    at = skip_tags(frame, at, len(frame))
    max_wait_ms, _, max_bytes, _, _, session_epoch = _LIMITS.unpack_from(frame, at)
    count, at = read_varint(frame, at + _LIMITS.size)
    left = PARTITIONS_MAX
    topics: list[tuple[bytes, int]] = []
    places: list[PartitionFetch] = []
    most: list[int] = []
    for _ in range(count - 1):
        raw = bytes(frame[at : at + 16])
        partitions, at = read_varint(frame, at + 16)
        partitions -= 1
        left -= max(partitions, 1)
        if left < 0:
            raise Malformed(f"more than {PARTITIONS_MAX} partitions")
        end = at + partitions * _ROW.size
        if end >= len(frame):
            return None  # rows of another length, or fewer rows than announced
        topic_id = TopicId(id_text(raw))
        rows = list(_ROW.iter_unpack(frame[at:end]))
        if frame[end] or any(row[6] != _ONE_LOCAL_START for row in rows):
            return None
        places += [_new(PartitionFetch, (topic_id, *row[:5], row[7])) for row in rows]
        most += [row[5] for row in rows]
        topics.append((raw, partitions))
        at = end + 1
    if session_epoch > 0 or len(frame) - at != 2 + _STATE.size or frame[at] != 1 or frame[at + 1] != 1:
        return None  # the request has partitions to forget, or a rack
    *tag, node_id, incarnation, _, ours, credential = _STATE.unpack_from(frame, at + 2)
    if tuple(tag) != _STATE_TAG or ours != _CREDENTIAL_TAG or node_id < 0:
        return None
    return ParsedReplicaFetch(node_id, incarnation, credential, max_wait_ms, max_bytes, topics, places, most)


def encode_idle(index: int, high_watermark: int, log_start: int, local_start: int, cold_end: int) -> bytes:
    """Returns a whole partition without records."""
    return _IDLE.pack(
        index,
        0,
        high_watermark,
        NO_OFFSET_OR_REPLICA,
        log_start,
        0,
        NO_OFFSET_OR_REPLICA,
        1,
        2,
        _LOCAL_START,
        local_start,
        _COLD_END,
        cold_end,
    )


def encode_tags(
    local_start: int, cold_end: int, diverging: DivergingEpoch | None, may_have_gaps: bool = False
) -> bytes:
    """Returns the tagged fields of a partition."""
    ours = _OURS.pack(_LOCAL_START, local_start, _COLD_END, cold_end)
    count = 2
    if may_have_gaps:
        ours, count = ours + _MAY_HAVE_GAPS, 3
    if diverging is None:
        return count.to_bytes(1, "big") + ours
    return _DIVERGING.pack(count + 1, 0, 13, *diverging, 0) + ours


def encode_refusal(correlation_id: int, refused: Refused) -> list[Part]:
    """Returns the reply that refuses a whole request."""
    return encode_response(VERSION, correlation_id, (), 0, code=refused.code.number)
