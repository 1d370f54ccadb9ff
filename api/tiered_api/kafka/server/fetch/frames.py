"""Fetch (API key 1) of consumers on the wire: requests parsed and replies encoded by hand.

Versions 4 to 11 have fixed lengths, 12 to 18 are flexible (KIP-482). From 13 on topics go by id. A reply contains
records as they are, and larger file slices as slices. The bytes around them are joined into as few pieces as possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct, error
from typing import NamedTuple

from tiered.ports import ByteSource, FileSlice
from tiered.replication.read_result import AbortedTxns
from tiered_api.kafka.protocol.primitives import Malformed, read_varint, skip_tags, tag_count, varint
from tiered_api.kafka.server.produce.frames import read_compact_text, read_text

RACK_FROM = 11
FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
REPLICA_STATE_TAG = 1
PARTITIONS_MAX = 10_000

COPIED_BYTES = 8 << 10
"""Most bytes of file slices in one reply that are read and sent with the bytes around them. At 1 KiB this takes a sixth
less broker time than a slice, which needs a call before and one after it."""
SHARED_BYTES = 128 << 10
"""Larger slices cost no more when they are sent from their files."""
JOINED_BYTES = 128 << 10
"""Most bytes in memory that are copied beside the bytes around them. More are a part of their own."""
SHARED_BYTES_MAX = 1 << 20
"""Most shared bytes in one turn."""

Part = bytes | FileSlice

_new = tuple.__new__
"""Makes a named tuple at a third of the cost."""
_INT = Struct(">i")
_WAIT = Struct(">iiib")
_SESSION = Struct(">ii")


RequestedPartition = tuple[int, int, int, int]
"""One requested partition: its index, the fetch offset, most bytes, and the leader epoch that the client knows, -1 for
none. A plain tuple, because the garbage collector does not look at tuples of numbers again: ten clients that request
10,000 partitions each would else keep it busy for 30 ms at a time."""


class RequestedTopic(NamedTuple):
    """One requested topic. `echo` has the bytes with which the reply names the topic."""

    echo: bytes
    name: str
    """Empty if the topic goes by its id, which is then `echo`."""
    partitions: list[RequestedPartition]


class ParsedFetch(NamedTuple):
    """A whole request without the fields of fetch sessions. `replica_id` is the broker that the sender claims to be, -1
    for consumers."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    session_id: int
    session_epoch: int
    topics: list[RequestedTopic]
    replica_id: int = -1
    rows_at: int = 0
    """Position of the partitions of the last topic if they have no tagged fields, else 0."""
    rack: str = ""
    """Rack of the consumer (KIP-392)."""


class PartitionResult(NamedTuple):
    """The result of one partition. `tags` are its tagged fields in flexible versions. `preferred_read_replica` is the
    broker that the consumer should read from instead (version 11 and above). Only read_committed readers get
    `aborted_txns`."""

    partition: int
    code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    data: Part = b""
    tags: bytes = b"\0"
    preferred_read_replica: int = -1
    aborted_txns: AbortedTxns = ()


# -- the request ------------------------------------------------------------------------------------------------------

_V4 = Struct(">iqi")
_V5 = Struct(">iqqi")
_V9 = Struct(">iiqqi")
_V12 = Struct(">iiqiqi")
V12_ROW = Struct(">iiqiqib")
"""A partition with the count of its tagged fields, which is 0 in consumer requests."""


def parse_request(frame: memoryview, version: int, at: int) -> ParsedFetch:
    """Returns the request whose body begins at `at`. `Malformed` if it is not valid."""
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
        left -= max(partitions, 1)  # a topic without partitions counts too
        if left < 0:
            raise Malformed(f"more than {PARTITIONS_MAX} partitions")
        rows_end, found = at + partitions * V12_ROW.size, 0
        if flexible and at < rows_end <= end:
            rows = list(V12_ROW.iter_unpack(frame[at:rows_end]))
            if not any(row[6] for row in rows):
                topic.partitions.extend([(row[0], row[2], row[5], row[1]) for row in rows])
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
    """Returns the replica id from the tagged fields of a request (KIP-903)."""
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
        return (index, offset, most, epoch), at + _V12.size
    if version >= 9:
        index, epoch, offset, _, most = _V9.unpack_from(frame, at)
        return (index, offset, most, epoch), at + _V9.size
    if version >= 5:
        index, offset, _, most = _V5.unpack_from(frame, at)
        return (index, offset, most, -1), at + _V5.size
    index, offset, most = _V4.unpack_from(frame, at)
    return (index, offset, most, -1), at + _V4.size


def _skip_forgotten(frame: memoryview, version: int, at: int, flexible: bool) -> int:
    """Skips the partitions that leave a fetch session; there are no sessions."""
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


# -- the reply --------------------------------------------------------------------------------------------------------

_P4 = Struct(">ihqqii")
_P5 = Struct(">ihqqqii")
_P11 = Struct(">ihqqqiii")
_P12 = Struct(">ihqqqBi")
_OFFSETS = Struct(">ihqqq")
_OFFSETS_V4 = Struct(">ihqq")
_ABORTED = Struct(">qq")
_ABORTED_V12 = Struct(">qqB")
"""With the count of its tagged fields."""
_EMPTY = b"\1\0"
"""No record bytes, and no tagged fields."""
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
    """Returns the whole reply for `count` topics, from its length field on. `tags` are its own tagged fields.

    Bytes from `encode_empty` may stand for a partition. A read_committed reader gets a list of aborted transactions,
    which may be empty; others get null.
    """
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
            if isinstance(data, FileSlice) or size > JOINED_BYTES:
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
    """Returns the reply to a request for one partition, in a flexible version."""
    index, code, high_watermark, stable, log_start, data, _, preferred, aborted = found
    if isinstance(data, FileSlice) and data.length <= COPIED_BYTES:
        data = _read_slice(data)
    size = data.length if isinstance(data, FileSlice) else len(data)
    length, head = varint(size + 1), _HEADS[12]
    if aborted:
        row = _encode_with_aborted(12, found)
    else:
        row = _P12.pack(index, code, high_watermark, stable, log_start, read_committed, preferred)
    whole = head.size - 4 + len(echo) + len(row) + len(length) + size + 5
    start = head.pack(whole, correlation_id, 0, 0, 0, 0)
    if isinstance(data, FileSlice) or size > JOINED_BYTES:
        return [b"".join((start, b"\2", echo, b"\2", row, length)), data, b"\0\0\0"]
    return [b"".join((start, b"\2", echo, b"\2", row, length, data, b"\0\0\0"))]


class SliceCache:
    """File slices in several replies of one turn, read once and bounded in size. Sent with the bytes around them, they
    cost half of the calls around and for a slice."""

    def __init__(self) -> None:
        self._known: dict[tuple[ByteSource, int, int], Part] = {}
        self._left = SHARED_BYTES_MAX

    def read(self, data: FileSlice) -> Part:
        """Returns the slice as bytes, or unchanged if it is too large to share."""
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
    """Returns a whole partition without records."""
    if version >= FLEXIBLE_FROM:
        return _P12.pack(index, 0, high_watermark, stable, log_start, read_committed, NO_PREFERRED_REPLICA) + _EMPTY
    return _encode_partition(version, PartitionResult(index, 0, high_watermark, stable, log_start), 0, read_committed)


def _read_slice(data: FileSlice) -> Part:
    """Returns a small slice as bytes. A slice of a file that was cut stays a slice: its sender notices."""
    copy = data.file.pread(data.start, data.length)
    return copy if len(copy) == data.length else data


def _encode_header(version: int, correlation_id: int, size: int, code: int) -> bytes:
    """Returns length, correlation id and throttle time, from version 7 on also the error and no session."""
    if version >= FLEXIBLE_FROM:
        head = _HEADS[12]
        return head.pack(size + head.size - 4, correlation_id, 0, 0, code, 0)
    head = _HEADS[7 if version >= 7 else 4]
    rest = (code, 0) if version >= 7 else ()
    return head.pack(size + head.size - 4, correlation_id, 0, *rest)


def _encode_partition(version: int, found: PartitionResult, size: int, read_committed: bool) -> bytes:
    index, code, high_watermark, stable, log_start, _, _, preferred, aborted = found
    if aborted:
        return _encode_with_aborted(version, found) + (
            varint(size + 1) if version >= FLEXIBLE_FROM else _INT.pack(size)
        )
    if version >= FLEXIBLE_FROM:
        return _P12.pack(index, code, high_watermark, stable, log_start, read_committed, preferred) + varint(size + 1)
    count = 0 if read_committed else -1
    if version >= RACK_FROM:
        return _P11.pack(index, code, high_watermark, stable, log_start, count, preferred, size)
    if version >= 5:
        return _P5.pack(index, code, high_watermark, stable, log_start, count, size)
    return _P4.pack(index, code, high_watermark, stable, count, size)


def _encode_with_aborted(version: int, found: PartitionResult) -> bytes:
    """Returns a partition with aborted transactions, up to the length of its records."""
    index, code, high_watermark, stable, log_start, _, _, preferred, aborted = found
    preferred_bytes = _INT.pack(preferred) if version >= RACK_FROM else b""
    if version >= FLEXIBLE_FROM:
        head = _OFFSETS.pack(index, code, high_watermark, stable, log_start) + varint(len(aborted) + 1)
        return b"".join((head, *[_ABORTED_V12.pack(*each, 0) for each in aborted], preferred_bytes))
    if version >= 5:
        head = _OFFSETS.pack(index, code, high_watermark, stable, log_start)
    else:
        head = _OFFSETS_V4.pack(index, code, high_watermark, stable)
    rows = [_ABORTED.pack(*each) for each in aborted]
    return b"".join((head, _INT.pack(len(aborted)), *rows, preferred_bytes))
