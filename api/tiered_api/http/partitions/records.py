"""`/topics/{topic}/partitions/{partition}/records`: reads a partition from an offset on, as JSON, REST v2, raw batches
or events; and writes whole record batches."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from aiohttp import web

from tiered.errors import Corrupt, TooLarge
from tiered.ids import KEYED_FROM
from tiered.metadata.topic_names import check_writable
from tiered.ports import FileSlice
from tiered.records.batch import check_batch
from tiered.records.model import CONTROL, CRC_AT, CRC_FROM, TRANSACTIONAL
from tiered.records.native import crc32c, walk
from tiered.replication.read_result import ReadResult
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.errors import BAD_REQUEST, HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import HttpResponse, json_response
from tiered_api.http.exchange.sendfile import FileSliceResponse
from tiered_api.http.partitions.event_stream import stream_events
from tiered_api.http.partitions.idempotency import HEADER, IdempotencyKey, IdempotencyKeys, find_key
from tiered_api.http.partitions.reads import (
    MAX_OFFSET,
    OBJECTS_MAX,
    ReadSpec,
    decode_memory,
    drop_aborted,
    fetch,
    load,
    load_bytes,
    max_decoded_size,
    parse_read_spec,
    require_local_leader,
    reserve_memory,
    tell_unshown_record,
)
from tiered_api.http.partitions.record_filter import FILTERS, RecordFilter, parse_filter
from tiered_api.http.partitions.record_json import FORMS, encode_found, encode_json, encode_last, encode_v2
from tiered_api.http.partitions.record_search import RecordSearch
from tiered_api.http.partitions.remote_partition import fetch_bounds
from tiered_api.http.partitions.search_window import SearchWindow

NEXT_OFFSET = "Tiered-Next-Offset"
"""Header with the offset of the next read. The batches or records of a reply alone do not always tell it."""
PRODUCER, PRODUCER_AT = struct.Struct(">qhi"), 43
"""Producer id, epoch and base sequence in the header of a batch."""
CRC = struct.Struct(">I")
FOUND_MAX = 1_000
"""Most records that a search returns."""
SEARCH_MS = 100
"""Longest time that one request searches, but for the step that it is in."""
BATCHES_MAX = 2_000
"""Limit on the record batches of one body: the log takes them in one step of some 20 ms."""
BATCH_MEMORY = 1_000
"""Bytes that a batch takes as objects while it is checked and written."""
READ_TYPES = (
    media_types.JSON,
    media_types.V2_BINARY,
    media_types.V2_JSON,
    media_types.V2,
    media_types.BINARY,
    media_types.EVENTS,
)
FILTERED_TYPES = (media_types.JSON, media_types.EVENTS)
V2_FORMS = {media_types.V2_BINARY: "binary", media_types.V2: "binary", media_types.V2_JSON: "json"}


async def read_records(request: HttpRequest) -> web.StreamResponse:
    """Returns records from `offset` or `timestamp` on, or the last ones before `before`, in the form that Accept
    names."""
    kind = media_types.negotiate_type(request.headers.get("Accept"), READ_TYPES)
    wanted = _parse_wanted(request)
    before = _parse_before(request, kind)
    if wanted is not None and kind not in FILTERED_TYPES:
        raise HttpError(400, f"{', '.join(FILTERS)} are for reads of {' and '.join(FILTERED_TYPES)}")
    if "control_records" in request.query_parameters() and (wanted is not None or kind not in FILTERED_TYPES):
        why = f"control_records is for reads of {' and '.join(FILTERED_TYPES)} without {', '.join(FILTERS)}"
        raise HttpError(400, why)
    limits = request.context.limits
    if kind == media_types.BINARY:
        # With TLS the bytes pass through this process, as those of JSON do.
        most = limits.json_bytes if request.has_tls() else limits.read_bytes
        return await _read_raw(request, replace(await parse_read_spec(request, most), memory_per_byte=1))
    spec = await parse_read_spec(request, limits.json_bytes)
    if kind == media_types.EVENTS and request.method == "HEAD":
        return HttpResponse(media_type=kind)
    if kind == media_types.EVENTS:
        return await stream_events(request, spec, parse_format(request), wanted)
    if before is not None:
        return await _search_back(request, spec, wanted or RecordFilter(), before)
    if wanted is not None:
        return await _search_json(request, spec, wanted)
    return await _read_json(request, spec, kind)


def parse_format(request: HttpRequest) -> str:
    """Returns the form of keys and values that `format` names; text by default."""
    name = request.query_parameters().get("format", "string")
    if name not in FORMS:
        raise HttpError(400, f"format={name[:40]!r} is none of {', '.join(FORMS)}")
    return name


async def _read_raw(request: HttpRequest, spec: ReadSpec) -> HttpResponse:
    fetched = await fetch(request, spec)
    size = fetched.size
    request.context.raw_bytes_read.inc(size)
    headers = (
        ("Tiered-High-Watermark", str(fetched.high_watermark)),
        ("Tiered-Last-Stable-Offset", str(fetched.last_stable_offset)),
        ("Tiered-Log-Start-Offset", str(fetched.log_start_offset)),
    )
    data = fetched.data
    if fetched.aborted_txns and size:
        await reserve_memory(request, spec.source, 2 * size)
        kept, following = await request.run_job(size, drop_aborted, load_bytes(fetched), fetched.aborted_txns)
        return HttpResponse(kept, media_type=media_types.BINARY, headers=(*headers, (NEXT_OFFSET, str(following))))
    if isinstance(data, FileSlice) and data.file.fileno() >= 0 and not request.has_tls():
        return FileSliceResponse(data, media_type=media_types.BINARY, headers=headers)
    await reserve_memory(request, spec.source, size)
    return HttpResponse(load_bytes(fetched), media_type=media_types.BINARY, headers=headers)


async def _read_json(request: HttpRequest, spec: ReadSpec, kind: str) -> HttpResponse:
    v2 = V2_FORMS.get(kind)
    shown = v2 or parse_format(request)
    fetched, data = await _fetch_to_decode(request, spec)
    context, source, room = request.context, spec.source, request.context.limits.json_bytes
    with tell_unshown_record(source.topic, source.partition):
        if v2:
            rendered = await request.run_job(
                max_decoded_size(data),
                encode_v2,
                data,
                spec.offset,
                room,
                v2,
                source.topic,
                source.partition,
                fetched.aborted_txns,
            )
        else:
            outer = _describe_read(spec, fetched)
            rendered = await request.run_job(
                max_decoded_size(data),
                encode_json,
                data,
                spec.offset,
                room,
                shown,
                outer,
                fetched.aborted_txns,
                OBJECTS_MAX,
                spec.with_control,
            )
    request.set_held_memory(rendered.size)
    context.records_read.inc(rendered.shown)
    headers = ((NEXT_OFFSET, str(rendered.next_offset)),) if v2 else ()
    return HttpResponse(rendered.pieces, media_type=kind, headers=headers)


async def _fetch_to_decode(request: HttpRequest, spec: ReadSpec) -> tuple[ReadResult, bytes]:
    """Fetches batches, and reserves the memory that decoding them takes."""
    fetched = await fetch(request, spec)
    # Read twice: a request that waits for its turn holds no bytes of a hot segment.
    await reserve_memory(request, spec.source, decode_memory(await load(request, fetched)))
    return fetched, await load(request, fetched)


def _describe_read(spec: ReadSpec, fetched: ReadResult) -> dict[str, Any]:
    return {
        "topic": spec.source.topic,
        "partition": spec.source.partition,
        "log_start_offset": fetched.log_start_offset,
        "high_watermark": fetched.high_watermark,
        "last_stable_offset": fetched.last_stable_offset,
    }


def _parse_wanted(request: HttpRequest) -> RecordFilter | None:
    """Returns the filter of the query, None for a read of all records. Raises `HttpError` 400 for one that cannot be
    read."""
    try:
        return parse_filter(request.query_parameters())
    except ValueError as error:
        raise HttpError(400, str(error)) from None


def _parse_before(request: HttpRequest, kind: str) -> int | None:
    """Returns the offset before which a read from the end begins; beyond each end for "latest". None for a read that
    goes forward."""
    parameters = request.query_parameters()
    if "before" not in parameters:
        return None
    if kind != media_types.JSON:
        raise HttpError(400, f"before is for reads of {media_types.JSON}")
    if "offset" in parameters or "timestamp" in parameters:
        raise HttpError(400, "before, offset and timestamp exclude each other")
    if parameters["before"] == "latest":
        return MAX_OFFSET
    return request.query_integer("before", 0, 0, MAX_OFFSET, "latest or an integer of at least 0")


async def _search_back(request: HttpRequest, spec: ReadSpec, wanted: RecordFilter, before: int) -> HttpResponse:
    """Reads one stretch after the other towards the log start, `max_bytes` at a time, until records fit, none are left,
    or `SEARCH_MS` are over. One stretch is searched at least, so that the next request gets on."""
    shown, clock, room = parse_format(request), request.context.clock, request.context.limits.json_bytes
    most = request.query_integer("limit", FOUND_MAX, 1, FOUND_MAX)
    deadline, scanned = clock.mono_ns() + SEARCH_MS * 1_000_000, 0
    log_start, end = await fetch_bounds(spec.source, spec.read_committed)
    window = SearchWindow(log_start, min(end, before), most, spec.max_bytes)
    while True:
        spec = replace(spec, offset=window.start, max_bytes=window.read_bytes, wait_ms=0)
        fetched, data = await _fetch_to_decode(request, spec)
        search = RecordSearch(data, wanted, scanned, spec.with_control)
        with tell_unshown_record(spec.source.topic, spec.source.partition):
            found = await request.run_job(
                max_decoded_size(data),
                search.find_last,
                window.start,
                window.end,
                most,
                room // 2,
                fetched.aborted_txns,
            )
        is_covered = found.covered >= window.end
        is_over = is_covered and clock.mono_ns() > deadline
        if is_covered:
            scanned = search.scanned
            window.move(found.size)
        else:
            window.retry(found.covered, found.size)
        if found.batches or window.is_empty or is_over or request.transport is None:
            outer = _describe_read(spec, fetched) | {"scanned": scanned}
            rendered = await request.run_job(len(data), encode_last, found, room, shown, outer)
            request.set_held_memory(rendered.size)
            request.context.records_read.inc(rendered.shown)
            return HttpResponse(rendered.pieces, media_type=media_types.JSON)
        request.set_held_memory(0)


async def _search_json(request: HttpRequest, spec: ReadSpec, wanted: RecordFilter) -> HttpResponse:
    """Reads on, `max_bytes` at a time, until records fit, the log ends, or `SEARCH_MS` are over. The client
    asks again for what follows, so a search that nobody waits for ends soon."""
    shown, clock, room = parse_format(request), request.context.clock, request.context.limits.json_bytes
    most = request.query_integer("limit", FOUND_MAX, 1, FOUND_MAX)
    deadline, scanned, offset = clock.mono_ns() + SEARCH_MS * 1_000_000, 0, spec.offset
    while True:
        spec = replace(spec, offset=offset)
        fetched, data = await _fetch_to_decode(request, spec)
        search = RecordSearch(data, wanted, scanned)
        with tell_unshown_record(spec.source.topic, spec.source.partition):
            rendered = await request.run_job(
                max_decoded_size(data),
                encode_found,
                search,
                offset,
                most,
                room,
                shown,
                _describe_read(spec, fetched),
                fetched.aborted_txns,
            )
        request.set_held_memory(rendered.size)
        scanned, before, offset = search.scanned, offset, rendered.next_offset
        is_over = clock.mono_ns() > deadline or request.transport is None
        if rendered.shown or offset == before or offset >= fetched.end_offset(spec.read_committed) or is_over:
            request.context.records_read.inc(rendered.shown)
            return HttpResponse(rendered.pieces, media_type=media_types.JSON)


async def write_batches(request: HttpRequest) -> web.StreamResponse:
    """Writes whole record batches as a Kafka client sends them. Duplicates of an idempotent producer are dropped. 307
    to the broker that leads the partition."""
    check_writable(request.args["topic"])
    replica = require_local_leader(request)
    body = await request.read_body()
    await request.reserve_memory(count_batches(body) * BATCH_MEMORY)
    data = body if isinstance(body, bytearray) else bytearray(body)
    count = await request.run_job(max_decoded_size(data), validate_batches, data)
    key, holder = await find_key(request, replica.topic_id, body), request.caller.holder
    if key is None:
        appended = await replica.append(data, timeout_ms=request.context.limits.append_ms, holder=holder)
    else:
        set_key(data, key)
        with request.context.service(IdempotencyKeys).use(key):
            appended = await replica.append(data, timeout_ms=request.context.limits.append_ms, holder=holder)
            request.context.service(IdempotencyKeys).mark_used(key)
    request.context.records_written.inc(count)
    return json_response(
        {
            "topic": replica.topic,
            "partition": replica.partition,
            "base_offset": appended.base_offset,
            "last_offset": appended.last_offset,
            "timestamp": None if appended.append_time_ms < 0 else appended.append_time_ms,
            "duplicate": appended.is_duplicate,
        }
    )


def set_key(data: bytearray, key: IdempotencyKey) -> None:
    """Makes the key the producer of the batch. Raises `HttpError` 422 for several batches, and for a batch that has a
    producer: that producer tells a retry by itself."""
    batches = walk(data, check_crc=False).batches
    if len(batches) != 1 or batches[0].producer_id >= 0:
        raise HttpError(422, "a body with an Idempotency-Key is one record batch without a producer id")
    PRODUCER.pack_into(data, PRODUCER_AT, key.producer_id, key.producer_epoch, key.base_sequence)
    CRC.pack_into(data, CRC_AT, crc32c(memoryview(data)[CRC_FROM:]))


def count_batches(data: bytes | bytearray) -> int:
    """Returns how many batches there are, up to the first invalid one. HttpError 413 if there are too many: the log
    takes the batches of a body together, and nobody else is served meanwhile."""
    count = len(walk(data, check_crc=False, max_batches=BATCHES_MAX + 1).batches)
    if count > BATCHES_MAX:
        raise HttpError(413, f"the body holds more than {BATCHES_MAX} record batches: send them in several requests")
    return count


def validate_batches(data: bytearray) -> int:
    """Decodes every record of every batch; returns their number. Raises `HttpError` 400 with the first error."""
    if not data:
        raise HttpError(BAD_REQUEST, "the body has no record batch")
    try:
        seen = walk(data)
        if seen.why:
            raise Corrupt(seen.why, position=seen.end)
        for batch in seen.batches:
            if batch.attributes & (CONTROL | TRANSACTIONAL):
                raise HttpError(BAD_REQUEST, "control and transactional batches are not accepted over HTTP")
            if batch.producer_id >= KEYED_FROM:
                raise HttpError(BAD_REQUEST, f"producer ids from 2^62 on belong to requests with an {HEADER}")
            check_batch(data, batch.position)
    except TooLarge as error:
        raise HttpError(413, f"a record batch is too large to be checked: {error}") from None
    except Corrupt as error:
        raise HttpError(BAD_REQUEST, f"not a record batch: {error}") from None
    return sum(batch.count for batch in seen.batches)
