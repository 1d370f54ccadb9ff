"""`/topics/{topic}/partitions/{partition}/records`: a partition read from an offset on, as JSON, REST v2, raw batches
or events; and whole record batches written to it."""

from __future__ import annotations

from dataclasses import replace

from aiohttp import web

from tiered.errors import Corrupt
from tiered.ports import FileSlice
from tiered.records.batch import check_batch
from tiered.records.model import CONTROL, TRANSACTIONAL
from tiered.records.native import walk
from tiered_api.http.partitions.event_stream import stream_events
from tiered_api.http.partitions.reads import Ask, asked, bytes_of, effort, fetch, hold, led_here, memory
from tiered_api.http.partitions.record_json import FORMS, answer_json, list_v2
from tiered_api.http.server import media_types
from tiered_api.http.server.errors import BAD_REQUEST, HttpError
from tiered_api.http.server.request import Request
from tiered_api.http.server.responses import Answer, as_json
from tiered_api.http.server.sendfile import SliceAnswer

READ_TYPES = (
    media_types.JSON,
    media_types.V2_BINARY,
    media_types.V2_JSON,
    media_types.V2,
    media_types.BINARY,
    media_types.EVENTS,
)
V2_FORMS = {media_types.V2_BINARY: "binary", media_types.V2: "binary", media_types.V2_JSON: "json"}


async def read_records(request: Request) -> web.StreamResponse:
    """Records from `offset` or `timestamp` on, in the form that Accept names."""
    kind = media_types.answer_type(request.headers.get("Accept"), READ_TYPES)
    limits = request.site.limits
    if kind == media_types.BINARY:
        return await _raw(request, replace(await asked(request, limits.read_bytes), held=1))
    ask = await asked(request, limits.json_bytes)
    if kind == media_types.EVENTS and request.method == "HEAD":
        return Answer(kind=kind)
    if kind == media_types.EVENTS:
        return await stream_events(request, ask, form(request))
    return await _json(request, ask, kind)


def form(request: Request) -> str:
    """How `format` wants keys and values shown: as text unless it says otherwise."""
    name = request.parameters().get("format", "string")
    if name not in FORMS:
        raise HttpError(400, f"format={name[:40]!r} is none of {', '.join(FORMS)}")
    return name


async def _raw(request: Request, ask: Ask) -> Answer:
    fetched = await fetch(request, ask)
    size = fetched.size
    request.site.read_bytes.inc(size)
    headers = (
        ("Tiered-High-Watermark", str(fetched.high_watermark)),
        ("Tiered-Log-Start-Offset", str(fetched.log_start_offset)),
    )
    data = fetched.data
    if isinstance(data, FileSlice) and data.file.fileno() >= 0:
        return SliceAnswer(data, kind=media_types.BINARY, headers=headers)
    await hold(request, ask.source, size)
    return Answer(bytes_of(fetched), kind=media_types.BINARY, headers=headers)


async def _json(request: Request, ask: Ask, kind: str) -> Answer:
    v2 = V2_FORMS.get(kind)
    shown = v2 or form(request)
    fetched = await fetch(request, ask)
    # Read twice: what waits for its turn keeps no bytes of a hot segment.
    await hold(request, ask.source, memory(bytes_of(fetched)))
    data = bytes_of(fetched)
    site, source, room = request.site, ask.source, request.site.limits.json_bytes
    if v2:
        body, count = await site.work(effort(data), list_v2, data, ask.offset, room, v2, source.topic, source.partition)
    else:
        outer = {
            "topic": source.topic,
            "partition": source.partition,
            "log_start_offset": fetched.log_start_offset,
            "high_watermark": fetched.high_watermark,
        }
        body, count = await site.work(effort(data), answer_json, data, ask.offset, room, shown, outer)
    request.settle(len(body))
    site.read.inc(count)
    return Answer(body, kind=kind)


async def write_batches(request: Request) -> web.StreamResponse:
    """Whole record batches as a Kafka client would send them; an idempotent producer's are taken once. 307 to the
    broker that leads the partition."""
    replica = led_here(request)
    data = bytearray(await request.whole())
    count = await request.site.work(effort(data), prove, data)
    appended = await replica.append(data, timeout_ms=request.site.limits.append_ms)
    request.site.written.inc(count)
    return as_json(
        {
            "topic": replica.topic,
            "partition": replica.partition,
            "base_offset": appended.base_offset,
            "last_offset": appended.last_offset,
            "timestamp": None if appended.append_time_ms < 0 else appended.append_time_ms,
            "duplicate": appended.is_duplicate,
        }
    )


def prove(data: bytearray) -> int:
    """Opens every record of every batch; returns how many there are. HttpError 400 names the first fault."""
    if not data:
        raise HttpError(BAD_REQUEST, "the body holds no record batch")
    try:
        seen = walk(data)
        if seen.why:
            raise Corrupt(seen.why, position=seen.end)
        for batch in seen.batches:
            if batch.attributes & (CONTROL | TRANSACTIONAL):
                raise HttpError(BAD_REQUEST, "control and transactional batches are not taken over HTTP")
            check_batch(data, batch.position)
    except Corrupt as error:
        raise HttpError(BAD_REQUEST, f"not a record batch: {error}") from None
    return sum(batch.count for batch in seen.batches)
