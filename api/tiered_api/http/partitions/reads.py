"""The common parts of all reads of a partition: start offset, size and wait; and batches decoded into records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from tiered.errors import Code, Corrupt, Refused, TooLarge
from tiered.hot.time_lookup import TimeLookups
from tiered.ports import FileSlice
from tiered.records.aborted import AbortedTransaction, AbortedTransactions
from tiered.records.batch import decode_header
from tiered.records.marker import TransactionMarker, decode_marker
from tiered.records.model import CODEC_MASK, CRC_FROM, HEADER_BYTES, BatchHeader, Record, codec_of
from tiered.records.native import crc32c, walk
from tiered.records.opened_size import stated_size
from tiered.records.pieces import RECORD_BYTES, RECORD_BYTES_MAX, WHOLE_BYTES_MAX, read_records, whole_max
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.read_result import ReadResult
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.errors import CONVERSION_FAILED, OFFSET_OUT_OF_RANGE, HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.partitions.produce import find_partition, find_topic
from tiered_api.http.partitions.remote_partition import (
    AnyPartition,
    RemotePartition,
    fetch_bounds,
    offset_for_timestamp,
)

MIN_TIMESTAMP, MAX_TIMESTAMP = -(1 << 63), (1 << 63) - 1
MAX_OFFSET = (1 << 63) - 1
ISOLATION_LEVELS = ("read_committed", "read_uncommitted")
DEFAULT_BYTES = 1 << 20
DECODED_PER_BYTE = 4
"""Memory that a JSON read takes, in bytes for each byte of batches."""
LOADED_PER_WORK = 16
"""Bytes that are read from the page cache in the time of one byte of other work: a thread reads more than 1 MiB."""
WALK_BATCHES = 1_000
"""Batches that are objects at a time while bytes of batches are measured."""
SHOWN_BYTES_MAX = 4 << 20
"""Longest key or value that is shown as text or JSON: parsing and writing it takes at most 20 ms. Longer ones are shown
as base64, and are no copies of the bytes of their batch."""
OBJECTS_MAX = 100_000
"""Most records and headers in one JSON response."""
RATIOS = (1, 1_030, 22, 256, 32_768, 1, 1, 1)
"""Most bytes that a compressed byte becomes, by codec: none, gzip, snappy, lz4, zstd. No other codec is decoded."""


@dataclass(frozen=True)
class ReadSpec:
    """A read as the request specifies it: offset, bytes of batches, milliseconds to wait for the first."""

    source: AnyPartition
    offset: int
    max_bytes: int
    wait_ms: int
    memory_per_byte: int = DECODED_PER_BYTE
    """Bytes of memory for each byte of batches."""
    read_committed: bool = True
    """Without records of open and aborted transactions."""
    with_control: bool = False
    """With control records: the markers that end transactions."""


async def parse_read_spec(request: HttpRequest, max_bytes: int) -> ReadSpec:
    """Returns the read that path and query specify. Raises `HttpError` 404 for the partition, 400 for the query."""
    source = partition_of_path(request)
    parameters = request.query_parameters()
    meant = parameters.get("topic_id", source.topic_id)
    if meant != source.topic_id:
        why = (
            f"the topic {source.topic} with id {meant[:40]} is gone, or was created again: the id is {source.topic_id}"
        )
        raise HttpError(404, why)
    limits = request.context.limits
    isolation = parameters.get("isolation_level", ISOLATION_LEVELS[0])
    if isolation not in ISOLATION_LEVELS:
        raise HttpError(400, f"isolation_level={isolation[:40]!r} is none of {', '.join(ISOLATION_LEVELS)}")
    read_committed = isolation == ISOLATION_LEVELS[0]
    return ReadSpec(
        source,
        await _start_offset(request, source, read_committed),
        request.query_integer("max_bytes", min(DEFAULT_BYTES, max_bytes), 1, max_bytes),
        request.query_integer("timeout", 0, 0, limits.poll_ms),
        read_committed=read_committed,
        with_control="control_records" in parameters and _wants_control(parameters["control_records"]),
    )


def _wants_control(given: str) -> bool:
    """True for "true". Raises `HttpError` 400 if it is not "false" either."""
    if given not in ("true", "false"):
        raise HttpError(400, f"control_records={given[:40]!r} is neither true nor false")
    return given == "true"


def partition_of_path(request: HttpRequest) -> AnyPartition:
    """Returns the partition that `{topic}` and `{partition}` name."""
    return find_partition(
        request.context,
        find_topic(request.context, request.args["topic"]),
        request.path_number("partition"),
        request,
    )


def require_local_leader(request: HttpRequest) -> LeaderReplica:
    """Returns the local leader replica. Raises `HttpError` 307 to the broker that leads the partition."""
    source = partition_of_path(request)
    if isinstance(source, LeaderReplica):
        return source
    raise request.context.remote_brokers.redirect_error(request.target, source.leader().node_id, f"leads {source.tp}")


async def _start_offset(request: HttpRequest, source: AnyPartition, read_committed: bool) -> int:
    """Returns `offset` (a number, "earliest" or "latest"), or the first offset at or after `timestamp`; the log start
    without either. "latest" is the last stable offset for `read_committed`."""
    parameters = request.query_parameters()
    if "offset" in parameters and "timestamp" in parameters:
        raise HttpError(400, "offset and timestamp exclude each other")
    if "timestamp" in parameters:
        moment = request.query_integer(
            "timestamp", 0, MIN_TIMESTAMP, MAX_TIMESTAMP, "a number of milliseconds since 1970"
        )
        end = (await fetch_bounds(source, read_committed))[1]  # records that come during the look-up count
        found = await offset_for_timestamp(source, moment, TimeLookups(request.peer, request.connection_name))
        return end if found is None else found[0]
    match parameters.get("offset", "earliest"):
        case "earliest":
            return (await fetch_bounds(source))[0]
        case "latest":
            return (await fetch_bounds(source, read_committed))[1]
    return request.query_integer("offset", 0, 0, MAX_OFFSET, "earliest, latest or an integer of at least 0")


async def fetch(request: HttpRequest, spec: ReadSpec) -> ReadResult:
    """Returns whole batches from the one that has the offset; waits for them if the request says so. Raises `HttpError`
    416 for an offset outside of the log, 401 or 403 if the caller lost its rights meanwhile: the bucket takes time."""
    fetched = await _fetch(request, spec)
    request.recheck()
    return fetched


async def _fetch(request: HttpRequest, spec: ReadSpec) -> ReadResult:
    source = spec.source
    try:
        if isinstance(source, RemotePartition):
            return await _fetch_remote(request, spec, source)
        fetched = await source.reads.read(spec.offset, spec.max_bytes, read_committed=spec.read_committed)
        if spec.wait_ms == 0 or fetched.size:
            return fetched
        try:
            async with request.context.timeout(spec.wait_ms / 1000 + 1):
                fetched = await source.reads.read(
                    spec.offset, spec.max_bytes, max_wait_ms=spec.wait_ms, read_committed=spec.read_committed
                )
        except TimeoutError:
            pass
        return fetched
    except Refused as refused:
        if isinstance(source, LeaderReplica) and refused.code is Code.NOT_LEADER_OR_FOLLOWER:
            # It was led here until now.
            moved = RemotePartition(request.context, source.tp, source.topic_id, caller=request.caller)
            return await _fetch(request, replace(spec, source=moved))
        if refused.code is not Code.OFFSET_OUT_OF_RANGE:
            raise
        start, end = await fetch_bounds(source)
        raise HttpError(OFFSET_OUT_OF_RANGE, f"offset {spec.offset} is not in {start} to {end}") from None


async def _fetch_remote(request: HttpRequest, spec: ReadSpec, source: RemotePartition) -> ReadResult:
    """Fetches from another broker. Memory is reserved before the bytes arrive, but not during a wait for records."""
    fetched = await _read_remote_spec(request, spec, source)
    if spec.wait_ms == 0 or fetched.size:
        return fetched
    try:
        async with request.context.timeout(spec.wait_ms / 1000 + 1):
            await source.wait_for_more(spec.offset, spec.wait_ms, spec.read_committed)
    except TimeoutError:
        return fetched
    request.recheck()
    return await _read_remote_spec(request, spec, source)


async def _read_remote_spec(request: HttpRequest, spec: ReadSpec, source: RemotePartition) -> ReadResult:
    return await read_remote(
        request, source, spec.offset, spec.max_bytes, spec.memory_per_byte, read_committed=spec.read_committed
    )


async def read_remote(
    request: HttpRequest,
    source: RemotePartition,
    offset: int,
    max_bytes: int,
    memory_per_byte: int,
    *,
    read_committed: bool,
) -> ReadResult:
    """Reads from another broker. The request holds `memory_per_byte` bytes of memory for each byte."""
    wanted = max_bytes * memory_per_byte
    await request.reserve_memory(wanted)
    try:
        fetched = await source.read(offset, max_bytes, read_committed)
    except BaseException:
        request.set_held_memory(max(request.held_bytes - wanted, 0))
        raise
    request.set_held_memory(max(request.held_bytes - wanted, 0) + fetched.size * memory_per_byte)
    return fetched


async def reserve_memory(request: HttpRequest, source: AnyPartition, size: int) -> None:
    """Reserves memory for the batches. A read of another broker has reserved some of it already, and must not wait."""
    if isinstance(source, RemotePartition):
        request.set_held_memory(size)
    else:
        await request.reserve_memory(size)


def load_bytes(fetched: ReadResult) -> bytes:
    """Returns the batches of a read in memory."""
    data = fetched.data
    if not isinstance(data, FileSlice):
        return bytes(data)
    read = data.file.pread(data.start, data.length)
    if len(read) != data.length:
        raise Corrupt("segment file is shorter than its index says", where=data.file.name, position=data.start)
    return read


async def load(request: HttpRequest, fetched: ReadResult) -> bytes:
    """Returns what `load_bytes` does. A thread reads much."""
    return await request.run_job(fetched.size // LOADED_PER_WORK, load_bytes, fetched)


def drop_aborted(data: bytes, aborted: Sequence[AbortedTransaction]) -> tuple[bytes, int]:
    """Returns whole batches without those of the `aborted` transactions, and the offset after the last batch."""
    transactions, kept = AbortedTransactions(aborted), bytearray()
    at, following, whole = 0, 0, memoryview(data)
    while batches := walk(data, at, check_crc=False, max_batches=WALK_BATCHES).batches:
        for batch in batches:
            if not transactions.has_batch(batch):
                kept += whole[batch.position : batch.position + batch.size]
        at, following = batches[-1].position + batches[-1].size, batches[-1].last_offset + 1
    return bytes(kept), following


_HEADERS = attrgetter("headers")


class DecodedBatch(NamedTuple):
    """The records of one batch from the requested offset on, with the fields of the batch. Keys, values and headers of
    the records take `size` bytes at most; -1 if that is not known."""

    leader_epoch: int
    next_offset: int
    records: list[Record]
    size: int = -1
    marker: TransactionMarker | None = None
    """The content of the control record, if this is a control batch that the read wants."""


def decode_batches(
    data: bytes,
    offset: int,
    room: int,
    objects: int = OBJECTS_MAX,
    aborted: Sequence[AbortedTransaction] = (),
    with_control: bool = False,
) -> Iterator[DecodedBatch]:
    """Decodes the batches of `data`, without records below `offset`. Batches of the `aborted` transactions are empty,
    and control batches too without `with_control`. Ends before the record that would exceed `room` decompressed bytes
    or `objects` records and headers, perhaps within a batch, but returns at least one record. Readers of JSON cannot
    check a CRC, so it is checked here. Ends before a batch that cannot be read. Raises `Corrupt` if that is the first
    one and damaged, and `TooLarge` if a bound is the reason: its first record alone has more than `objects` headers,
    for example."""
    at, whole, transactions = 0, memoryview(data), AbortedTransactions(aborted)
    while at < len(data):
        head = decode_header(data, at)
        if crc32c(whole[at + CRC_FROM : at + head.size]) != head.crc:
            if at:
                return
            raise Corrupt("CRC of a stored batch does not match", position=at)
        is_control = head.is_control
        is_hidden = is_control and not with_control
        if (aborted and transactions.has_batch(head)) or is_hidden:
            yield DecodedBatch(head.leader_epoch, head.next_offset, [])
            at += head.size
            continue
        try:
            rows, ended = read_batch(data, at, head, offset, room, objects)
            marker = read_marker(data, at, head) if is_control else None
        except Corrupt:  # or too large for what is left of the bounds
            if at:  # the next read begins here and tells it
                return
            raise
        size = (
            head.size
            if not head.codec
            else sum(len(row.key or b"") + len(row.value or b"") + RECORD_BYTES for row in rows)
        )
        if at and size > room:
            return
        made = len(rows) + sum(map(len, map(_HEADERS, rows)))
        next_offset = head.next_offset if ended else rows[-1].offset + 1
        yield DecodedBatch(head.leader_epoch, next_offset, rows, size + RECORD_BYTES * made, marker)
        room -= size
        objects -= made
        if not ended or objects <= 0:
            return
        at += head.size


def read_batch(
    data: bytes, at: int, head: BatchHeader, offset: int, room: int, objects: int
) -> tuple[list[Record], bool]:
    """Returns the records of one batch from `offset` on, within the bounds, and True if these are all."""
    try:
        return read_records(data, at, head, offset, room, objects, SHOWN_BYTES_MAX)
    except TooLarge:
        raise
    except Corrupt as error:
        raise Corrupt(f"{error.why}; a raw read gives the batch as it is", position=at) from None


def read_marker(data: bytes, at: int, head: BatchHeader) -> TransactionMarker:
    """Returns the marker in a control batch. Raises `Corrupt` if it has none."""
    return decode_marker(data[at : at + head.size])


@contextmanager
def tell_unshown_record(topic: str, partition: int) -> Iterator[None]:
    """Raises `HttpError` 422 with the ways on if a read begins with a record beyond the bounds of JSON reads."""
    try:
        yield
    except TooLarge as error:
        why = (
            f"the record of {topic} partition {partition} at offset {error.offset} cannot be shown as JSON "
            f"({error.why}): read it with Accept: {media_types.BINARY} or a Kafka client, or go on at position "
            f"{error.next_offset}"
        )
        raise HttpError(CONVERSION_FAILED, why) from None


def max_decoded_size(data: bytes | bytearray) -> int:
    """Returns how many bytes of `data` are in memory at most when its batches are opened one after the other, and read
    to their end."""
    whole, became, at = memoryview(data), 0, 0
    while batches := walk(data, at, check_crc=False, max_batches=WALK_BATCHES).batches:
        for batch in batches:
            size = whole_max(batch.size)
            if RATIOS[batch.attributes & CODEC_MASK] > 1:
                records = whole[batch.position + HEADER_BYTES : batch.position + batch.size]
                if stated_size(codec_of(batch.attributes), records) > size:  # opened in pieces
                    size = RECORD_BYTES_MAX
            became += min(batch.size * RATIOS[batch.attributes & CODEC_MASK], size)
        at = batches[-1].position + batches[-1].size
    return max(len(data), became)


def decode_memory(data: bytes | bytearray) -> int:
    """Returns the memory that rendering `data` takes: records as Python objects, and one decompressed batch or piece at
    a time. The length of the response is known only later. The objects of one rendering, some 40 MB at most, are not
    counted, because only worker threads render."""
    return max(len(data) * DECODED_PER_BYTE, min(max_decoded_size(data), WHOLE_BYTES_MAX))
