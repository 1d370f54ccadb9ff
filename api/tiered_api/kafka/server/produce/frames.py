"""Produce (API key 0) on the wire: requests parsed and replies encoded by hand.

Records are views of the frame. Versions 3 to 8 have fixed lengths, 9 to 13 are flexible (KIP-482). From 13 on topics go
by id. The bytes of a topic's name or id are kept, because the reply repeats them.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error
from typing import NamedTuple

from tiered.records.model import HEADER_BYTES
from tiered_api.kafka.protocol.primitives import Malformed, read_varint, skip_tags, varint

FLEXIBLE_FROM = 9
CORRELATION_ID_END = 8
"""End of the correlation id of a request. The bytes after it are mostly the same in all requests of a client."""
TOPIC_IDS_FROM = 13
PARTITIONS_MAX = 10_000
"""Most partitions in one request. More would hold up other clients for too long."""

_SHORT = Struct(">h")
_INT = Struct(">i")
_FIXED = Struct(">hi")
_INDEXED = Struct(">ii")


class ProduceTopic(NamedTuple):
    """One topic of a request. `echo` has the bytes with which the reply names the topic. Each of `partitions` has its
    records, or None."""

    echo: bytes
    name: str
    """Empty if the topic goes by its id, which is then `echo`."""
    partitions: list[tuple[int, memoryview | None]]


class ParsedProduce(NamedTuple):
    """A whole request. `records_length_at` is the position of the length of the first records, 0 if there are none."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]
    records_length_at: int


class ProduceResult(NamedTuple):
    """The result of one partition. `tags` are its tagged fields in flexible versions."""

    partition: int
    code: int = 0
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    why: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()
    tags: bytes = b"\0"


def parse_request(frame: memoryview, version: int, at: int) -> ParsedProduce:
    """Returns the request whose body begins at `at`. `Malformed` if it is not valid."""
    try:
        request, at = _parse_flexible(frame, version, at) if version >= FLEXIBLE_FROM else _parse_classic(frame, at)
    except (error, IndexError, UnicodeDecodeError) as problem:
        raise Malformed(str(problem)) from None
    if at > len(frame):
        raise Malformed(f"{at - len(frame)} bytes are missing")
    return request


def _parse_classic(frame: memoryview, at: int) -> tuple[ParsedProduce, int]:
    transactional_id, at = read_text(frame, at)
    acks, timeout_ms = _FIXED.unpack_from(frame, at)
    topics: list[ProduceTopic] = []
    head = 0
    count, at, left = _INT.unpack_from(frame, at + 6)[0], at + 10, PARTITIONS_MAX
    for _ in range(count):
        begin = at
        name, at = read_text(frame, at)
        (partitions,) = _INT.unpack_from(frame, at)
        left = _count_partitions(left, partitions)
        topic = ProduceTopic(bytes(frame[begin:at]), name or "", [])
        topics.append(topic)
        at += 4
        for _ in range(partitions):
            index, size = _INDEXED.unpack_from(frame, at)
            head = head or at + _INT.size
            at += _INDEXED.size
            at, records = _read_records(frame, at, size)
            topic.partitions.append((index, records))
    return ParsedProduce(transactional_id, acks, timeout_ms, topics, head), at


def _parse_flexible(frame: memoryview, version: int, at: int) -> tuple[ParsedProduce, int]:
    end = len(frame)
    at = skip_tags(frame, at, end)
    transactional_id, at = read_compact_text(frame, at)
    acks, timeout_ms = _FIXED.unpack_from(frame, at)
    topics: list[ProduceTopic] = []
    count, at = read_varint(frame, at + _FIXED.size)
    left, head = PARTITIONS_MAX, 0
    for _ in range(count - 1):
        begin, name = at, ""
        if version >= TOPIC_IDS_FROM:
            at += 16
        else:
            text, at = read_compact_text(frame, at)
            name = text or ""
        topic = ProduceTopic(bytes(frame[begin:at]), name, [])
        topics.append(topic)
        partitions, at = read_varint(frame, at)
        left = _count_partitions(left, partitions - 1)
        for _ in range(partitions - 1):
            (index,) = _INT.unpack_from(frame, at)
            head = head or at + _INT.size
            size, at = read_varint(frame, at + _INT.size)
            at, records = _read_records(frame, at, size - 1)
            topic.partitions.append((index, records))
            at = skip_tags(frame, at, end)
        at = skip_tags(frame, at, end)
    return ParsedProduce(transactional_id, acks, timeout_ms, topics, head), skip_tags(frame, at, end)


def parse_records_only(frame: memoryview, version: int, records_length_at: int) -> memoryview | None:
    """Returns the records of a request whose bytes before their length are known to be for one partition. None if other
    bytes follow the records: the request then needs a full parse."""
    end = len(frame)
    if end - records_length_at < HEADER_BYTES:
        return None
    if version >= FLEXIBLE_FROM:
        size, more = frame[records_length_at], frame[records_length_at + 1]
        if size >= 128 > more:
            size, at = size & 127 | more << 7, records_length_at + 2
        else:
            size, at = read_varint(frame, records_length_at)
        end -= 3
        if at + size - 1 != end or frame[end] or frame[end + 1] or frame[end + 2]:  # tagged fields
            return None
    else:
        at = records_length_at + _INT.size
        if at + _INT.unpack_from(frame, records_length_at)[0] != end:
            return None
    return frame[at:end]


def _count_partitions(left: int, more: int) -> int:
    """Returns how many more partitions the request may have. A topic without partitions counts as one."""
    left -= max(more, 1)
    if left < 0:
        raise Malformed(f"more than {PARTITIONS_MAX} partitions")
    return left


def _read_records(frame: memoryview, at: int, size: int) -> tuple[int, memoryview | None]:
    if size < 0:
        return at, None
    end = at + size
    if end > len(frame):
        raise Malformed(f"records of {size} bytes, {len(frame) - at} are there")
    return end, frame[at:end]


def read_text(frame: memoryview, at: int) -> tuple[str | None, int]:
    """Returns a text with two bytes of length, and its end."""
    (size,) = _SHORT.unpack_from(frame, at)
    return _read_text_of_size(frame, at + 2, size)


def read_compact_text(frame: memoryview, at: int) -> tuple[str | None, int]:
    """Returns a text with a varint length, and its end."""
    size, at = read_varint(frame, at)
    return _read_text_of_size(frame, at, size - 1)


def _read_text_of_size(frame: memoryview, at: int, size: int) -> tuple[str | None, int]:
    if size < 0:
        return None, at
    if at + size > len(frame):
        raise Malformed("a text that is longer than its frame")
    return str(frame[at : at + size], "utf-8"), at + size


# -- the reply --------------------------------------------------------------------------------------------------------

_V3 = Struct(">ihqq")
_V5 = Struct(">ihqqq")
_V9_FINE = Struct(">ihqqqBBB")
_HEAD = Struct(">ii")
_OFFSETS = Struct(">qqq")
_OFFSETS_V3 = Struct(">qq")
_HEAD_FLEXIBLE = Struct(">iiB")


def encode_response(
    version: int, correlation_id: int, topics: Sequence[tuple[bytes, Sequence[ProduceResult]]], tags: bytes = b"\0"
) -> bytes:
    """Returns the whole reply, from its length field on. `tags` are its own tagged fields."""
    flexible = version >= FLEXIBLE_FROM
    parts = [varint(len(topics) + 1) if flexible else _INT.pack(len(topics))]
    for echo, outcomes in topics:
        parts.append(echo)
        parts.append(varint(len(outcomes) + 1) if flexible else _INT.pack(len(outcomes)))
        for outcome in outcomes:
            parts.append(_encode_partition(version, outcome))
        if flexible:
            parts.append(b"\0")
    parts.append(b"\0\0\0\0" + tags if flexible else b"\0\0\0\0")  # after the throttle time
    body = b"".join(parts)
    if flexible:
        return _HEAD_FLEXIBLE.pack(len(body) + 5, correlation_id, 0) + body
    return _HEAD.pack(len(body) + 4, correlation_id) + body


class ResponseTemplate:
    """The reply to a successful request for one partition, with gaps for its numbers."""

    def __init__(self, version: int, echo: bytes, partition: int) -> None:
        whole = encode_response(version, 0, [(echo, [ProduceResult(partition)])])
        head = _HEAD_FLEXIBLE.size + 2 if version >= FLEXIBLE_FROM else _HEAD.size + 2 * _INT.size
        at = head + len(echo) + _FIXED.size
        numbers = _OFFSETS if version >= 5 else _OFFSETS_V3
        end = at + numbers.size
        self._size, self._before, self._after = whole[: _INT.size], whole[_HEAD.size : at], whole[end:]
        self._has_start = version >= 5
        self._pack = Struct(f">4si{at - _HEAD.size}s{numbers.format[1:]}{len(whole) - end}s").pack

    def fill(self, correlation_id: int, base_offset: int, append_time_ms: int, log_start_offset: int) -> bytes:
        """Returns the whole reply, from its length field on."""
        size, before, after = self._size, self._before, self._after
        if self._has_start:
            return self._pack(size, correlation_id, before, base_offset, append_time_ms, log_start_offset, after)
        return self._pack(size, correlation_id, before, base_offset, append_time_ms, after)


def _encode_partition(version: int, outcome: ProduceResult) -> bytes:
    index, code, base_offset, append_time, log_start, why, record_errors, tags = outcome
    if version >= FLEXIBLE_FROM and not code:
        return _V9_FINE.pack(index, 0, base_offset, append_time, log_start, 1, 0, 0)
    if version < 5:
        return _V3.pack(index, code, base_offset, append_time)
    fixed = _V5.pack(index, code, base_offset, append_time, log_start)
    if version < 8:
        return fixed
    if version == 8:
        errors = [_INT.pack(record) + _encode_text(text) for record, text in record_errors]
        return fixed + _INT.pack(len(errors)) + b"".join(errors) + _encode_text(why)
    errors = [_INT.pack(record) + _encode_compact_text(text) + b"\0" for record, text in record_errors]
    return fixed + varint(len(errors) + 1) + b"".join(errors) + _encode_compact_text(why) + tags


def _encode_text(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    raw = text.encode()
    return _SHORT.pack(len(raw)) + raw


def _encode_compact_text(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    raw = text.encode()
    return varint(len(raw) + 1) + raw
