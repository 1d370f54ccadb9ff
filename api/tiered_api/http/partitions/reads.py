"""What all reads of a partition share: where to begin, how much, how long to wait; and batches opened into records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tiered.errors import Code, Corrupt, Refused
from tiered.ports import FileSlice
from tiered.records.batch import MAX_DECOMPRESSED, decode_header, decompressed_max, open_section
from tiered.records.model import CODEC_MASK, CRC_FROM, BatchHeader, Record
from tiered.records.native import crc32c, some_rows, walk
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.read_result import ReadResult
from tiered_api.http.partitions.produce import source_in, topic_image
from tiered_api.http.partitions.remote_partition import Away, Source, bounds
from tiered_api.http.server.errors import OFFSET_OUT_OF_RANGE, HttpError
from tiered_api.http.server.request import Request

MIN_TIMESTAMP, MAX_TIMESTAMP = -(1 << 63), (1 << 63) - 1
MAX_OFFSET = (1 << 63) - 1
DEFAULT_BYTES = 1 << 20
DECODED_PER_BYTE = 4
"""What a JSON read holds in memory, in bytes per byte of batches."""
OBJECTS_MAX = 100_000
"""Records and headers in one JSON answer."""
RATIOS = (1, 1_030, 22, 256, 32_768, 1, 1, 1)
"""What a compressed byte becomes at most, by codec: none, gzip, snappy, lz4, zstd; the rest are not opened."""


@dataclass(frozen=True)
class Ask:
    """A read as asked for: offset, bytes of batches, milliseconds to wait for the first."""

    source: Source
    offset: int
    max_bytes: int
    wait_ms: int
    held: int = DECODED_PER_BYTE
    """Bytes of memory per byte of batches."""


async def asked(request: Request, max_bytes: int) -> Ask:
    """The read that path and query describe; HttpError 404 for the partition, 400 for the query."""
    source = partition_of_path(request)
    limits = request.site.limits
    return Ask(
        source,
        await _start(request, source),
        request.integer("max_bytes", min(DEFAULT_BYTES, max_bytes), 1, max_bytes),
        request.integer("timeout", 0, 0, limits.poll_ms),
    )


def partition_of_path(request: Request) -> Source:
    """The partition that `{topic}` and `{partition}` name."""
    return source_in(request.site, topic_image(request.site, request.args["topic"]), request.number("partition"))


def led_here(request: Request) -> LeaderReplica:
    """The same for who needs the replica itself: HttpError 307 to the broker that leads it."""
    source = partition_of_path(request)
    if isinstance(source, LeaderReplica):
        return source
    raise request.site.elsewhere.away(request.target, source.leader().node_id, f"leads {source.at}")


async def _start(request: Request, source: Source) -> int:
    """`offset` (a number, "earliest" or "latest") or the first at or after `timestamp`; the log's start without."""
    parameters = request.parameters()
    if "offset" in parameters and "timestamp" in parameters:
        raise HttpError(400, "offset and timestamp exclude each other")
    if "timestamp" in parameters:
        moment = request.integer("timestamp", 0, MIN_TIMESTAMP, MAX_TIMESTAMP, "a number of milliseconds since 1970")
        found = await source.offset_for_timestamp(moment)
        return (await bounds(source))[1] if found is None else found[0]
    match parameters.get("offset", "earliest"):
        case "earliest":
            return (await bounds(source))[0]
        case "latest":
            return (await bounds(source))[1]
    return request.integer("offset", 0, 0, MAX_OFFSET, "earliest, latest or an integer of at least 0")


async def fetch(request: Request, ask: Ask) -> ReadResult:
    """Whole batches from the one that holds the offset, after waiting for them as long as asked; HttpError 416 for an
    offset outside of the log."""
    source = ask.source
    try:
        if isinstance(source, Away):
            return await _fetch_away(request, ask, source)
        fetched = await source.read(ask.offset, ask.max_bytes)
        if ask.wait_ms == 0 or fetched.size:
            return fetched
        try:
            async with request.site.patience(ask.wait_ms / 1000 + 1):
                return await source.read(ask.offset, ask.max_bytes, max_wait_ms=ask.wait_ms)
        except TimeoutError:
            return fetched
    except Refused as refused:
        if isinstance(source, LeaderReplica) and refused.code is Code.NOT_LEADER_OR_FOLLOWER:
            # It was led here until now.
            return await fetch(request, replace(ask, source=Away(request.site, source.at, source.topic_id)))
        if refused.code is not Code.OFFSET_OUT_OF_RANGE:
            raise
        start, end = await bounds(source)
        raise HttpError(OFFSET_OUT_OF_RANGE, f"offset {ask.offset} is not in {start} to {end}") from None


async def _fetch_away(request: Request, ask: Ask, source: Away) -> ReadResult:
    """The same of another broker. Memory is taken before the bytes are there, and not while nothing is."""
    fetched = await read_away(request, source, ask.offset, ask.max_bytes, ask.held)
    if ask.wait_ms == 0 or fetched.size:
        return fetched
    try:
        async with request.site.patience(ask.wait_ms / 1000 + 1):
            await source.until_more(ask.offset, ask.wait_ms)
    except TimeoutError:
        return fetched
    return await read_away(request, source, ask.offset, ask.max_bytes, ask.held)


async def read_away(request: Request, source: Away, offset: int, max_bytes: int, held: int) -> ReadResult:
    """A read of another broker, for which the request holds `held` bytes of memory per byte."""
    wanted = max_bytes * held
    await request.hold(wanted)
    try:
        fetched = await source.read(offset, max_bytes)
    except BaseException:
        request.settle(max(request.held - wanted, 0))
        raise
    request.settle(max(request.held - wanted, 0) + fetched.size * held)
    return fetched


async def hold(request: Request, source: Source, size: int) -> None:
    """Takes memory for what was read: for what came from another broker some is taken already, and must not wait."""
    if isinstance(source, Away):
        request.settle(size)
    else:
        await request.hold(size)


def bytes_of(fetched: ReadResult) -> bytes:
    """The batches of a read in memory."""
    data = fetched.data
    if not isinstance(data, FileSlice):
        return bytes(data)
    read = data.file.pread(data.start, data.length)
    if len(read) != data.length:
        raise Corrupt("segment file is shorter than its index says", where=data.file.name, position=data.start)
    return read


class Opened(NamedTuple):
    """Data records of one batch from the asked offset on, and what the batch says for all of them."""

    leader_epoch: int
    next_offset: int
    records: list[Record]


def opened(data: bytes, offset: int, room: int, objects: int = OBJECTS_MAX) -> Iterator[Opened]:
    """The batches of `data`, records below `offset` left out, control batches empty. Ends, perhaps within a batch,
    before the record that would exceed `room` decompressed bytes or `objects` records and headers, but gives at least
    one. Who reads JSON cannot check a CRC, so it is checked here. `Corrupt` when it does not match, or for a record
    that alone has more than `objects` headers: only a raw read gives that one."""
    at, whole = 0, memoryview(data)
    while at < len(data):
        head = decode_header(data, at)
        if crc32c(whole[at + CRC_FROM : at + head.size]) != head.crc:
            raise Corrupt("CRC of a stored batch does not match", position=at)
        rows, ended = _rows(data, at, head, offset, room, objects)
        size = head.size if not head.codec else sum(len(row.key or b"") + len(row.value or b"") + 32 for row in rows)
        if at and size > room:
            return
        yield Opened(head.leader_epoch, head.next_offset if ended else rows[-1].offset + 1, rows)
        room -= size
        objects -= len(rows) + sum(len(row.headers) for row in rows)
        if not ended or objects <= 0:
            return
        at += head.size


def _rows(data: bytes, at: int, head: BatchHeader, offset: int, room: int, objects: int) -> tuple[list[Record], bool]:
    if head.is_control:
        return [], True
    try:
        return some_rows(*open_section(data, at), offset, room, objects)
    except Corrupt as error:
        raise Corrupt(f"{error.why}; a raw read gives the batch as it is", position=at) from None


def effort(data: bytes | bytearray) -> int:
    """How many bytes `data` becomes at most when its batches are opened."""
    whole = walk(data, check_crc=False)
    became = (
        min(batch.size * RATIOS[batch.attributes & CODEC_MASK], decompressed_max(batch.size)) for batch in whole.batches
    )
    return max(len(data), sum(became))


def memory(data: bytes | bytearray) -> int:
    """What a reader of `data` holds while it is rendered: records in Python's objects, and one opened batch at a time.
    How long the answer is is known only then. The objects of one rendering, some 40 MB at most, are not counted: only
    the workers render."""
    return max(len(data) * DECODED_PER_BYTE, min(effort(data), MAX_DECOMPRESSED))
