"""Server-sent events: a partition followed from an offset on. The id of an event is its offset, so a browser that
reconnects (`Last-Event-ID`) continues there."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
from aiohttp import web

from tiered.security.acls import Operation, ResourceType
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.errors import EXPECTED_ERRORS, HttpError, OverQuota, to_http_error
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import abort_connection, open_stream
from tiered_api.http.partitions.reads import (
    OBJECTS_MAX,
    ReadSpec,
    decode_memory,
    fetch,
    load,
    max_decoded_size,
    reserve_memory,
    tell_unshown_record,
)
from tiered_api.http.partitions.record_filter import RecordFilter
from tiered_api.http.partitions.record_json import encode_events
from tiered_api.http.partitions.remote_partition import resolve_leader

READ_BYTES_MAX = 1 << 18
KEEPALIVE_MS = 15_000
"""After this time without a record a comment is sent, so that proxies and clients keep the connection."""
REST_SECONDS = 5.0
"""Pause before the next read at a broker where the client is over its quota."""


async def stream_events(
    request: HttpRequest, spec: ReadSpec, form: str, wanted: RecordFilter | None
) -> web.StreamResponse:
    """Sends events until the client disconnects, the stream is too old or the server closes. With a filter they are
    those of the records that fit."""
    with request.context.admit_stream(request.caller, request.protocol):
        return await _stream(request, spec, form, wanted)


async def _stream(request: HttpRequest, spec: ReadSpec, form: str, wanted: RecordFilter | None) -> web.StreamResponse:
    spec = replace(
        spec, offset=_resume_offset(request, spec.offset), max_bytes=min(spec.max_bytes, READ_BYTES_MAX), wait_ms=0
    )
    pieces, spec = await _next_events(request, spec, form, wanted)
    response = open_stream(media_types.EVENTS)
    await response.prepare(request)
    size = sum(map(len, pieces))
    await _send(request, response, pieces or [b": open\n\n"])
    spec = replace(spec, wait_ms=KEEPALIVE_MS)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.context.limits.stream_seconds
    if request.meter is not None:
        await _slow_down(request, response, size, deadline)
    while loop.time() < deadline and not request.context.closing and request.transport is not None:
        try:
            pieces, spec = await _next_events(request, spec, form, wanted)
        except OverQuota as over:  # at the broker that leads the partition
            await _send(request, response, [b": silence\n\n"])
            await request.context.clock.sleep(min(over.seconds, REST_SECONDS))
            continue
        except EXPECTED_ERRORS as error:
            await _send(request, response, [_error_event(to_http_error(error))])
            break
        size = sum(map(len, pieces))
        await _send(request, response, pieces or [b": silence\n\n"])
        if request.meter is not None:
            await _slow_down(request, response, size, deadline)
    response.force_close()
    await response.write_eof()
    return response


async def _slow_down(request: HttpRequest, response: web.StreamResponse, count: int, deadline: float) -> None:
    """Charges events, and waits until the client may have more. Comments keep the connection meanwhile."""
    meter, loop = request.meter, asyncio.get_running_loop()
    assert meter is not None
    left = await meter.pace(request.operation, count, request)
    while left and loop.time() < deadline and not request.context.closing and request.transport is not None:
        await _send(request, response, [b": silence\n\n"])
        left = await meter.rest(request.operation, request)


def _resume_offset(request: HttpRequest, offset: int) -> int:
    last = request.headers.get("Last-Event-ID")
    if last is None:
        return offset
    if not (last.isascii() and last.isdigit() and len(last) <= 18):
        raise HttpError(400, "Last-Event-ID has to be the offset of an event")
    return int(last) + 1


async def _next_events(
    request: HttpRequest, spec: ReadSpec, form: str, wanted: RecordFilter | None
) -> tuple[list[bytes], ReadSpec]:
    """Returns the events of one read, and the next read. The events hold memory until they are sent."""
    context = request.context
    spec = replace(spec, source=resolve_leader(context, spec.source, request.caller))
    fetched = await fetch(request, spec)
    data = await load(request, fetched)
    if data:
        await reserve_memory(request, spec.source, decode_memory(data))
    room = context.limits.json_bytes
    with tell_unshown_record(spec.source.topic, spec.source.partition):
        rendered = await request.run_job(
            max_decoded_size(data),
            encode_events,
            data,
            spec.offset,
            room,
            form,
            fetched.aborted_txns,
            OBJECTS_MAX,
            wanted,
            spec.with_control,
        )
    request.require(Operation.READ, ResourceType.TOPIC, spec.source.topic)
    request.set_held_memory(rendered.size)
    context.records_read.inc(rendered.shown)
    return rendered.pieces, replace(spec, offset=rendered.next_offset)


def _error_event(error: HttpError) -> bytes:
    body = orjson.dumps({"error_code": error.error_code, "message": error.message})
    return b"event: error\ndata: %b\n\n" % body


async def _send(request: HttpRequest, response: web.StreamResponse, pieces: list[bytes]) -> None:
    """Writes the pieces, and empties the list: a stream that waits for its next event keeps nothing of the last one."""
    pieces.reverse()
    try:
        async with asyncio.timeout(request.context.limits.write_seconds):
            while pieces:
                await response.write(pieces.pop())
    except TimeoutError:
        abort_connection(request)
    finally:
        pieces.clear()  # the error of a client that went away refers to this frame
    request.set_held_memory(0)
