"""Server-sent events: a partition followed from an offset on. The id of an event is its offset, so a browser that
reconnects (`Last-Event-ID`) goes on where it was."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
from aiohttp import web

from tiered_api.http.partitions.reads import Ask, bytes_of, effort, fetch, hold, memory
from tiered_api.http.partitions.record_json import events
from tiered_api.http.partitions.remote_partition import followed
from tiered_api.http.server import media_types
from tiered_api.http.server.errors import NAMED, HttpError, from_named
from tiered_api.http.server.request import Request
from tiered_api.http.server.responses import cut_off, open_stream

ROUND_BYTES = 1 << 18
SILENCE_MS = 15_000
"""After this long without a record a comment is sent, so that proxies and clients see a living connection."""


async def stream_events(request: Request, ask: Ask, form: str) -> web.StreamResponse:
    """Events until the client goes, the stream is too old or the server closes."""
    with request.site.stream(request.peer, request.protocol):
        return await _stream(request, ask, form)


async def _stream(request: Request, ask: Ask, form: str) -> web.StreamResponse:
    ask = replace(ask, offset=_resume(request, ask.offset), max_bytes=min(ask.max_bytes, ROUND_BYTES), wait_ms=0)
    text, ask = await _round(request, ask, form)
    response = open_stream(media_types.EVENTS)
    await response.prepare(request)
    await _send(request, response, text or b": open\n\n")
    ask = replace(ask, wait_ms=SILENCE_MS)
    loop = asyncio.get_running_loop()
    until = loop.time() + request.site.limits.stream_seconds
    while loop.time() < until and not request.site.closing and request.transport is not None:
        try:
            text, ask = await _round(request, ask, form)
        except NAMED as error:
            await _send(request, response, _failed(from_named(error)))
            break
        await _send(request, response, text or b": silence\n\n")
    response.force_close()
    await response.write_eof()
    return response


def _resume(request: Request, offset: int) -> int:
    last = request.headers.get("Last-Event-ID")
    if last is None:
        return offset
    if not (last.isascii() and last.isdigit() and len(last) <= 18):
        raise HttpError(400, "Last-Event-ID has to be the offset of an event")
    return int(last) + 1


async def _round(request: Request, ask: Ask, form: str) -> tuple[bytes, Ask]:
    """The events of one read, and the read after it. They are held until they are sent."""
    site = request.site
    ask = replace(ask, source=followed(site, ask.source))
    data = bytes_of(await fetch(request, ask))
    if data:
        await hold(request, ask.source, memory(data))
    text, count, following = await site.work(effort(data), events, data, ask.offset, site.limits.json_bytes, form)
    request.settle(len(text))
    site.read.inc(count)
    return text, replace(ask, offset=following)


def _failed(error: HttpError) -> bytes:
    body = orjson.dumps({"error_code": error.error_code, "message": error.message})
    return b"event: error\ndata: %b\n\n" % body


async def _send(request: Request, response: web.StreamResponse, text: bytes) -> None:
    try:
        async with asyncio.timeout(request.site.limits.write_seconds):
            await response.write(text)
    except TimeoutError:
        cut_off(request)
    request.settle(0)
