"""Fetch (API key 1) on the wire, by hand: from where a client wants records, and the answer around them.

Versions 4 to 11 have fixed lengths, 12 to 18 are flexible (KIP-482); from 13 on topics go by id. Records are put
into the answer as they are, slices of files included unless they are small, with the bytes around them in as few
pieces as may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct, error
from typing import NamedTuple

from tiered.ports import File, FileSlice
from tiered_api.kafka.protocol.primitives import Malformed, read_varint, skip_tags, tag_count, varint
from tiered_api.kafka.server.produce.frames import read_compact_text, read_text

RACK_FROM = 11
FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
REPLICA_STATE_TAG = 1
PARTITIONS_MAX = 10_000

COPIED_BYTES = 8 << 10
"""Records of one answer that are read and sent together with what is around them: measured at 1 KiB, it takes a sixth
less of the broker's time than a slice, which needs a call before and one behind it."""
SHARED_BYTES = 128 << 10
"""Larger slices are sent as cheaply from their files."""
SHARED_BYTES_MAX = 1 << 20
"""Bytes of one turn."""

Part = bytes | FileSlice

_new = tuple.__new__
"""Makes a named tuple at a third of the cost."""
_INT = Struct(">i")
_WAIT = Struct(">iiib")
_SESSION = Struct(">ii")


class RequestedPartition(NamedTuple):
    """One partition, and from where on; `epoch` is what the client takes for the leader's, -1 when it does not say."""

    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int


class RequestedTopic(NamedTuple):
    """`echo` is the topic as the answer has to name it."""

    echo: bytes
    name: str
    """Empty where the topic goes by its id, which then is `echo`."""
    partitions: list[RequestedPartition]


class ParsedFetch(NamedTuple):
    """A whole request, without what belongs to sessions; `replica` is the broker that says to ask, -1 for consumers."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    session_id: int
    session_epoch: int
    topics: list[RequestedTopic]
    replica_id: int = -1
    rows_at: int = 0
    """Where the partitions of the last topic begin, if they have nothing tagged; else 0."""
    rack: str = ""
    """Where the consumer is (KIP-392)."""


class PartitionResult(NamedTuple):
    """The answer for one partition; `tags` are its tagged fields in flexible versions, `preferred` is the broker that
    the consumer should read from instead (version 11 and above)."""

    partition: int
    code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    data: Part = b""
    tags: bytes = b"\0"
    preferred_read_replica: int = -1


# -- the request ------------------------------------------------------------------------------------------------------

_V4 = Struct(">iqi")
_V5 = Struct(">iqqi")
_V9 = Struct(">iiqqi")
_V12 = Struct(">iiqiqi")
V12_ROW = Struct(">iiqiqib")
"""With the count of the tagged fields behind, which is 0 wherever a consumer asks."""


def parse_request(frame: memoryview, version: int, at: int) -> ParsedFetch:
    """The request whose body begins at `at`; `Malformed` when it is none."""
    try:
        ask, at = _parse(frame, version, at, version >= FLEXIBLE_FROM)
    except (error, IndexError, UnicodeDecodeError) as problem:
        raise Malformed(str(problem)) from None
    if at > len(frame):
        raise Malformed(f"{at - len(frame)} bytes are missing")
    return ask


def _parse(frame: memoryview, version: int, at: int, flexible: bool) -> tuple[ParsedFetch, int]:
    end = len(frame)
    if flexible:
        at = skip_tags(frame, at, end)
    replica = -1
    if version < 15:
        (replica,) = _INT.unpack_from(frame, at)
        at += 4
    max_wait_ms, min_bytes, max_bytes, isolation = _WAIT.unpack_from(frame, at)
    at += _WAIT.size
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(frame, at)
        at += _SESSION.size
    topics: list[RequestedTopic] = []
    count, at = _read_count(frame, at, flexible)
    left, found = PARTITIONS_MAX, 0
    for _ in range(count):
        begin, name = at, ""
        if version >= TOPIC_IDS_FROM:
            at += 16
        else:
            text, at = read_compact_text(frame, at) if flexible else read_text(frame, at)
            name = text or ""
        topic = RequestedTopic(bytes(frame[begin:at]), name, [])
        topics.append(topic)
        partitions, at = _read_count(frame, at, flexible)
        left -= max(partitions, 1)  # topics without any count too
        if left < 0:
            raise Malformed(f"more than {PARTITIONS_MAX} partitions")
        rows_end, found = at + partitions * V12_ROW.size, 0
        if flexible and at < rows_end <= end:
            rows = list(V12_ROW.iter_unpack(frame[at:rows_end]))
            if not any(row[6] for row in rows):
                topic.partitions.extend([_new(RequestedPartition, (row[0], row[2], row[5], row[1])) for row in rows])
                found, at, partitions = at, rows_end, 0
        for _ in range(partitions):
            wanted, at = _read_partition(frame, version, at)
            if flexible:
                at = skip_tags(frame, at, end)
            topic.partitions.append(wanted)
        if flexible:
            at = skip_tags(frame, at, end)
    if version >= 7:
        at = _skip_forgotten(frame, version, at, flexible)
    rack: str | None = None
    if version >= RACK_FROM:
        rack, at = read_compact_text(frame, at) if flexible else read_text(frame, at)
    if flexible:
        if frame[at] and version >= 15:
            replica = _read_replica_id(frame, at)
        at = skip_tags(frame, at, end)
    limits = (max_wait_ms, min_bytes, max_bytes)
    ask = ParsedFetch(*limits, isolation == 1, session_id, session_epoch, topics, replica, found, rack or "")
    return ask, at


def _read_replica_id(frame: memoryview, at: int) -> int:
    """The replica's id in the tagged fields of a request (KIP-903)."""
    found = -1
    count, at = tag_count(frame, at)
    for _ in range(count):
        tag, at = read_varint(frame, at)
        size, at = read_varint(frame, at)
        if tag == REPLICA_STATE_TAG:
            (found,) = _INT.unpack_from(frame, at)
        at += size
    return found


def _read_partition(frame: memoryview, version: int, at: int) -> tuple[RequestedPartition, int]:
    if version >= FLEXIBLE_FROM:
        index, epoch, offset, _, _, most = _V12.unpack_from(frame, at)
        return RequestedPartition(index, offset, most, epoch), at + _V12.size
    if version >= 9:
        index, epoch, offset, _, most = _V9.unpack_from(frame, at)
        return RequestedPartition(index, offset, most, epoch), at + _V9.size
    if version >= 5:
        index, offset, _, most = _V5.unpack_from(frame, at)
        return RequestedPartition(index, offset, most, -1), at + _V5.size
    index, offset, most = _V4.unpack_from(frame, at)
    return RequestedPartition(index, offset, most, -1), at + _V4.size


def _skip_forgotten(frame: memoryview, version: int, at: int, flexible: bool) -> int:
    """Partitions that leave a session; there are no sessions."""
    count, at = _read_count(frame, at, flexible)
    if count > PARTITIONS_MAX:
        raise Malformed(f"more than {PARTITIONS_MAX} topics")
    for _ in range(count):
        if version >= TOPIC_IDS_FROM:
            at += 16
        else:
            at = (read_compact_text(frame, at) if flexible else read_text(frame, at))[1]
        partitions, at = _read_count(frame, at, flexible)
        at += 4 * max(partitions, 0)
        if flexible:
            at = skip_tags(frame, at, len(frame))
    return at


def _read_count(frame: memoryview, at: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        size, at = read_varint(frame, at)
        return size - 1, at
    return _INT.unpack_from(frame, at)[0], at + 4


# -- the answer -------------------------------------------------------------------------------------------------------

_P4 = Struct(">ihqqii")
_P5 = Struct(">ihqqqii")
_P11 = Struct(">ihqqqiii")
_P12 = Struct(">ihqqqBi")
_EMPTY = b"\1\0"
"""Records of no bytes, and no tagged fields."""
_HEADS = {4: Struct(">iii"), 7: Struct(">iiihi"), 12: Struct(">iiBihi")}
NO_PREFERRED_REPLICA = -1


def encode_response(
    version: int,
    correlation_id: int,
    topics: Iterable[tuple[bytes, Sequence[PartitionResult | bytes]]],
    count: int,
    *,
    read_committed: bool = False,
    code: int = 0,
    tags: bytes = b"\0",
    slice_cache: SliceCache | None = None,
) -> list[Part]:
    """The whole answer for `count` topics, from its length on, with tagged fields of its own; what `nothing` gave may
    stand for a partition. There are no aborted transactions: a reader of committed records is told so by an empty list,
    others by none."""
    flexible = version >= FLEXIBLE_FROM
    pieces: list[Part] = []
    copied = COPIED_BYTES
    run: list[bytes] = [b"", varint(count + 1) if flexible else _INT.pack(count)]
    for echo, founds in topics:
        run.append(echo)
        run.append(varint(len(founds) + 1) if flexible else _INT.pack(len(founds)))
        for found in founds:
            if isinstance(found, bytes):
                run.append(found)
                continue
            data = found.data
            if isinstance(data, FileSlice):
                if slice_cache is not None:
                    data = slice_cache.read(data)
                elif data.length <= copied:
                    data = _read_slice(data)
                    copied -= len(data) if isinstance(data, bytes) else 0
            size = data.length if isinstance(data, FileSlice) else len(data)
            run.append(_encode_partition(version, found, size, read_committed))
            if isinstance(data, FileSlice):
                pieces += (b"".join(run), data)
                run = []
            elif size:
                run.append(data)
            if flexible:
                run.append(found.tags)
        if flexible:
            run.append(b"\0")
    if flexible:
        run.append(tags)
    if run:
        pieces.append(b"".join(run))
    size = sum([piece.length if isinstance(piece, FileSlice) else len(piece) for piece in pieces])
    first = pieces[0]
    assert isinstance(first, bytes)
    pieces[0] = _encode_header(version, correlation_id, size, code) + first
    return pieces


def encode_single_response(
    version: int, correlation_id: int, echo: bytes, found: PartitionResult, read_committed: bool
) -> list[Part]:
    """The same for a request that asks for one partition, in a flexible version."""
    index, code, high_watermark, stable, log_start, data, _, preferred = found
    if isinstance(data, FileSlice) and data.length <= COPIED_BYTES:
        data = _read_slice(data)
    size = data.length if isinstance(data, FileSlice) else len(data)
    length, head = varint(size + 1), _HEADS[12]
    row = _P12.pack(index, code, high_watermark, stable, log_start, read_committed, preferred)
    whole = head.size - 4 + len(echo) + len(row) + len(length) + size + 5
    start = head.pack(whole, correlation_id, 0, 0, 0, 0)
    if isinstance(data, FileSlice):
        return [b"".join((start, b"\2", echo, b"\2", row, length)), data, b"\0\0\0"]
    return [b"".join((start, b"\2", echo, b"\2", row, length, data, b"\0\0\0"))]


class SliceCache:
    """Slices that go into several answers of one turn, read once: sent with what is around them they cost half of what
    the calls around and for a slice do. Not more of them than is good for memory."""

    def __init__(self) -> None:
        self._known: dict[tuple[File, int, int], Part] = {}
        self._left = SHARED_BYTES_MAX

    def read(self, data: FileSlice) -> Part:
        """The slice as bytes, if it is one of those."""
        where = data.file, data.start, data.length
        known = self._known.get(where)
        if known is None:
            if data.length > min(SHARED_BYTES, self._left):
                return data
            self._left -= data.length
            known = self._known[where] = _read_slice(data)
        return known


def encode_empty(
    version: int, index: int, high_watermark: int, stable: int, log_start: int, read_committed: bool
) -> bytes:
    """A partition without records, whole."""
    if version >= FLEXIBLE_FROM:
        return _P12.pack(index, 0, high_watermark, stable, log_start, read_committed, NO_PREFERRED_REPLICA) + _EMPTY
    return _encode_partition(version, PartitionResult(index, 0, high_watermark, stable, log_start), 0, read_committed)


def _read_slice(data: FileSlice) -> Part:
    """A small slice as bytes; as it is when the file has become shorter: whoever sends it will notice."""
    copy = data.file.pread(data.start, data.length)
    return copy if len(copy) == data.length else data


def _encode_header(version: int, correlation_id: int, size: int, code: int) -> bytes:
    """Length, correlation id, throttle time, and from version 7 on error and session (none)."""
    if version >= FLEXIBLE_FROM:
        head = _HEADS[12]
        return head.pack(size + head.size - 4, correlation_id, 0, 0, code, 0)
    head = _HEADS[7 if version >= 7 else 4]
    rest = (code, 0) if version >= 7 else ()
    return head.pack(size + head.size - 4, correlation_id, 0, *rest)


def _encode_partition(version: int, found: PartitionResult, size: int, read_committed: bool) -> bytes:
    index, code, high_watermark, stable, log_start, _, _, preferred = found
    if version >= FLEXIBLE_FROM:
        return _P12.pack(index, code, high_watermark, stable, log_start, read_committed, preferred) + varint(size + 1)
    aborted = 0 if read_committed else -1
    if version >= RACK_FROM:
        return _P11.pack(index, code, high_watermark, stable, log_start, aborted, preferred, size)
    if version >= 5:
        return _P5.pack(index, code, high_watermark, stable, log_start, aborted, size)
    return _P4.pack(index, code, high_watermark, stable, aborted, size)
