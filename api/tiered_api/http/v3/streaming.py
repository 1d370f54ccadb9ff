"""The produce stream: concatenated JSON in, one report per record out, in order.

The records of one chunk go into one batch per partition, so they share the cost of a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator

import orjson
from aiohttp import web

from tiered.metadata.parts.topics import TopicImage
from tiered.ports import Buffer
from tiered.records.native import json_spans
from tiered.security.acls import Operation, ResourceType
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.decompress import Inflater, new_inflater
from tiered_api.http.exchange.errors import HttpError, to_http_error
from tiered_api.http.exchange.fields import V3_FREE, load_json
from tiered_api.http.exchange.json_entries import malformed_json
from tiered_api.http.exchange.limits import Exhausted
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import HttpResponse, abort_connection, open_stream
from tiered_api.http.partitions.idempotency import find_key
from tiered_api.http.partitions.produce import RECORDS_PER_TURN, RecordMetadata, append_many, append_once
from tiered_api.http.partitions.record_formats import (
    ProducerRecord,
    check_header_count,
    compact_record,
    parse_record_v3,
)
from tiered_api.http.registry.record_encoding import encode_records
from tiered_api.http.v3.produce_reports import ProduceReports

PIECE_BYTES = 1 << 16
SMALL_PIECE_BYTES = 1 << 14
RECORDS_AT_ONCE = 1_000
"""Most records of a chunk that are parsed and written before other requests get their turn: some milliseconds."""
RESCAN_BYTES_PER_SECOND = 100_000_000
"""Speed limit for a long record that arrives in small pieces, which is scanned again from its start after each."""


async def serve_stream(
    request: HttpRequest, topic: TopicImage, reports: ProduceReports, body: bytes | bytearray | None = None
) -> web.StreamResponse:
    """Serves the stream until the client ends it, the body is malformed, or the time limit is reached. The response
    begins with the first report: a client that sees a response earlier may stop sending."""
    response = open_stream(media_types.JSON)
    pieces = _request_chunks(request) if body is None else _split_body(body)
    splitter = JsonSplitter(request.context.limits.record_bytes)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.context.limits.stream_seconds
    try:
        async for piece in pieces:
            has_texts = False
            for texts in splitter.feed(piece):
                await _send(request, response, await _append(request, topic, reports, texts))
                has_texts = True
                if len(texts) == RECORDS_AT_ONCE:
                    await asyncio.sleep(0)  # a piece may hold many more records, and none of them waits
            if not has_texts and splitter.pending_bytes > PIECE_BYTES and len(piece) < SMALL_PIECE_BYTES:
                await asyncio.sleep(splitter.pending_bytes / RESCAN_BYTES_PER_SECOND)
            splitter.raise_fault()
            if body is None:
                await _hold(request, splitter.pending_bytes)
            if request.meter is not None and body is None:
                left = await request.meter.pace(request.operation, len(piece), request)
                while left and loop.time() < deadline and not request.context.closing:
                    left = await request.meter.rest(request.operation, request)
        texts = splitter.finish()
        if texts:
            await _send(request, response, await _append(request, topic, reports, texts))
        splitter.raise_fault()
    except (HttpError, Exhausted) as error:
        if not request.content.is_eof():
            response.force_close()
        await _send(request, response, reports.format_failure(to_http_error(error)) + b"\n")
    await response.prepare(request)
    await response.write_eof()
    return response


async def _hold(request: HttpRequest, size: int) -> None:
    """Counts what a stream keeps of an unfinished record. Waits for room in the memory budget if it grows. Raises
    `Exhausted`."""
    more = (size if size > PIECE_BYTES else 0) - request.held_bytes
    if more > 0:
        await request.reserve_memory(more)
    elif more < 0:
        request.set_held_memory(request.held_bytes + more)


class JsonSplitter:
    """Cuts concatenated JSON into its values. Bytes after a malformed value are ignored. `raise_fault` raises the
    error, once the values before it are handled."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = b""
        self._fault: HttpError | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes of a value whose end has not arrived."""
        return len(self._rest)

    def feed(self, piece: bytes | bytearray) -> Iterator[list[bytes]]:
        """Yields the values that are complete now, at most `RECORDS_AT_ONCE` at a time. They have to be taken to the
        end."""
        data = self._rest + piece if self._rest else piece
        try:
            spans, rest = json_spans(data, RECORDS_AT_ONCE)
            while spans:
                yield [bytes(data[start:end]) for start, end in spans]
                data = data[rest:]
                spans, rest = json_spans(data, RECORDS_AT_ONCE)
        except ValueError as error:
            self._fault = HttpError(400, f"malformed JSON: {error}")
        if len(data) > self._limit:
            self._fault = HttpError(413, f"a record on a stream has at most {self._limit} bytes of JSON")
        self._rest = bytes(data)

    def finish(self) -> list[bytes]:
        """Returns the values that only the end of the stream completes: a bare number."""
        texts = [text for some in self.feed(b"\n") for text in some] if self._rest else []
        if self._rest.strip() and self._fault is None:
            self._fault = HttpError(400, "malformed JSON: the stream ends inside a record")
        return texts

    def raise_fault(self) -> None:
        """Raises `HttpError` 400 for bytes that cannot become JSON, 413 for a value that is too long."""
        if self._fault is not None:
            raise self._fault


async def produce_once(request: HttpRequest, topic: TopicImage, reports: ProduceReports) -> web.StreamResponse:
    """Serves a body with an idempotency key. It is read whole, because the key is of the whole body."""
    body = await request.read_body()
    parsed = await request.run_job(len(body), parse_whole, body, request.context.clock.wall_ms())
    parsed = await encode_records(request, topic.name, parsed)
    if len(parsed) == 1 and isinstance(parsed[0], HttpError):
        raise parsed[0]
    key = await find_key(request, topic.topic_id, body)
    del body  # its memory is needed for the batches
    outcomes = await append_once(request, topic, [each for each in parsed if isinstance(each, ProducerRecord)], key)
    if len(parsed) == 1 and isinstance(outcomes[0], HttpError):
        raise outcomes[0]
    lines = _format_reports(reports, parsed, outcomes)
    return HttpResponse(lines if len(parsed) > 1 else lines.rstrip(b"\n"))


def parse_whole(body: bytes | bytearray, now_ms: int) -> list[ProducerRecord | HttpError]:
    """Returns the records of a stream that is held whole, or the error of each. Raises `HttpError` 400 or 413 if the
    body is malformed, or has too many records or headers for one request with a key."""
    parsed: list[ProducerRecord | HttpError] = []
    headers = 0
    with memoryview(body) as view:
        for start, end in _find_spans(view):
            if len(parsed) == RECORDS_PER_TURN:
                raise HttpError(413, f"a request with an Idempotency-Key has at most {RECORDS_PER_TURN} records")
            with view[start:end] as text:
                record = _parse(text, now_ms)
            parsed.append(compact_record(record) if isinstance(record, ProducerRecord) else record)
            if isinstance(record, ProducerRecord):
                headers += len(record.headers)
                check_header_count(headers)
    if not parsed:
        raise HttpError(400, "malformed JSON: the body is empty")
    return parsed


def _find_spans(view: memoryview) -> Iterator[tuple[int, int]]:
    """Yields the spans of all values of a stream that is held whole. Raises `HttpError` 400 if it is malformed."""
    at, rest = 0, 1
    while rest:
        with view[at:] as left:
            spans, rest = _spans_or_error(left)
            if not spans and bytes(left[:1]) not in b'{["':  # perhaps a bare number, which only the end completes
                spans, rest = _spans_or_error(b"".join((left, b"\n")))
        for start, end in spans:
            yield at + start, at + end
        at += rest
        if not spans and at < len(view):
            raise HttpError(400, "malformed JSON: the stream ends inside a record")


def _spans_or_error(text: Buffer) -> tuple[list[tuple[int, int]], int]:
    try:
        return json_spans(text, RECORDS_AT_ONCE)
    except ValueError as error:
        raise HttpError(400, f"malformed JSON: {error}") from None


async def _append(request: HttpRequest, topic: TopicImage, reports: ProduceReports, texts: list[bytes]) -> bytes:
    request.require(Operation.WRITE, ResourceType.TOPIC, topic.name)
    parsed = await encode_records(request, topic.name, _parse_all(texts, request.context.clock.wall_ms()))
    records = [each for each in parsed if isinstance(each, ProducerRecord)]
    outcomes = await append_many(request.context, topic, records, request=request)
    return _format_reports(reports, parsed, outcomes)


def _parse_all(texts: Iterable[bytes], now_ms: int) -> list[ProducerRecord | HttpError]:
    return [_parse(text, now_ms) for text in texts]


def _format_reports(
    reports: ProduceReports,
    parsed: Iterable[ProducerRecord | HttpError],
    placed: Iterable[RecordMetadata | HttpError],
) -> bytes:
    """Returns a report for each record, one on each line, in order."""
    outcomes = iter(placed)
    out: list[bytes] = []
    for record in parsed:
        if isinstance(record, HttpError):
            out.append(reports.format_failure(record))
            continue
        outcome = next(outcomes)
        out.append(
            reports.format_success(record, outcome)
            if isinstance(outcome, RecordMetadata)
            else reports.format_failure(outcome)
        )
    out.append(b"")
    return b"\n".join(out)


def _parse(text: Buffer, now_ms: int) -> ProducerRecord | HttpError:
    try:
        return parse_record_v3(load_json(text, V3_FREE), now_ms)
    except orjson.JSONDecodeError as error:
        return malformed_json(error)
    except HttpError as error:
        return error.without_traceback()


async def _send(request: HttpRequest, response: web.StreamResponse, data: bytes) -> None:
    try:
        async with asyncio.timeout(request.context.limits.write_seconds):
            if not response.prepared:
                await response.prepare(request)
            await response.write(data)
    except TimeoutError:
        abort_connection(request)


async def _split_body(body: bytes | bytearray) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield bytes(body[start : start + PIECE_BYTES])
        await asyncio.sleep(0)  # the whole body is in memory, so no read of it waits


def _request_chunks(request: HttpRequest) -> AsyncIterator[bytes]:
    """Returns the client's chunks. A client that waits for permission (`Expect`) gets it now, before any response."""
    opened = new_inflater(request.headers.get("Content-Encoding", ""))
    request.send_continue()
    return _read_chunks(request, opened)


async def _read_chunks(request: HttpRequest, opened: Inflater | None) -> AsyncIterator[bytes]:
    """Yields what the client sends, decompressed, until the stream ends, is silent or too old, or the server closes."""
    limits = request.context.limits
    until = asyncio.get_running_loop().time() + limits.stream_seconds
    while asyncio.get_running_loop().time() < until:
        try:
            async with request.context.timeout(limits.stream_idle_seconds):
                piece = await request.content.readany()
        except TimeoutError:
            raise HttpError(408, "the stream has ended: it was silent for too long, or the broker stops") from None
        if not piece:
            if opened is not None:
                opened.finish()
            return
        if opened is None:
            yield piece
            continue
        at = 0
        while at < len(piece) or opened.has_more:
            inflated, at = await request.run_job(limits.body_bytes, opened.step, piece, at, PIECE_BYTES)
            async for part in _split_body(inflated):
                yield part
    raise HttpError(408, f"the stream has ended: it is {limits.stream_seconds:g} s old")
