"""REST v3 produce: `records` (one record, or a stream of them) and `records:batch`."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson
from aiohttp import web

from tiered.records.native import json_spans
from tiered_api.http.exchange.errors import INVALID_BATCH, HttpError
from tiered_api.http.exchange.fields import V3_FREE, check_fields, check_text, load_json
from tiered_api.http.exchange.json_entries import JsonEntries, malformed_json
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import HttpResponse, json_response
from tiered_api.http.exchange.schemas import BATCH_V3, ENTRY_V3, names
from tiered_api.http.partitions.idempotency import find_key, has_key
from tiered_api.http.partitions.produce import RecordMetadata, append_once, append_one, find_topic
from tiered_api.http.partitions.record_formats import (
    ProducerRecord,
    check_header_count,
    compact_record,
    parse_record_v3,
)
from tiered_api.http.registry.record_encoding import encode_record, encode_records
from tiered_api.http.v3.produce_reports import ProduceReports
from tiered_api.http.v3.shapes import check_cluster
from tiered_api.http.v3.streaming import produce_once, serve_stream

ID_CHARACTERS = 80
ENTRY_FIELDS = names(ENTRY_V3)
BATCH_FIELDS = names(BATCH_V3)


async def produce_records(request: HttpRequest) -> web.StreamResponse:
    """Appends one record: its report is the response. Chunked, or several records: a stream of reports, status 200."""
    cluster_id = check_cluster(request)
    topic = find_topic(request.context, request.args["topic"])
    reports = ProduceReports(cluster_id, topic.name)
    if has_key(request):
        return await produce_once(request, topic, reports)
    if "Transfer-Encoding" in request.headers:
        return await serve_stream(request, topic, reports)
    body = await request.read_body()
    record = await request.run_job(len(body), _parse_single, body, request.context.clock.wall_ms())
    if record is None:
        return await serve_stream(request, topic, reports, body)
    del body
    record = await encode_record(request, topic.name, record)
    placed = await append_one(request, topic, record)
    return HttpResponse(reports.format_success(record, placed))


def _parse_single(body: bytes | bytearray, now_ms: int) -> ProducerRecord | None:
    """Returns the record that a body is; None if the body is a stream of several. Raises `HttpError` 4xx for any other
    body."""
    try:
        value = load_json(body, V3_FREE)
    except orjson.JSONDecodeError as error:
        if _is_stream(body):
            return None
        raise malformed_json(error) from None
    except HttpError as error:
        if error.status == 413 and _is_stream(body):
            return None
        raise
    return parse_record_v3(value, now_ms)


def _is_stream(body: bytes | bytearray) -> bool:
    """True if the body is not one JSON value, but begins with a whole one and continues."""
    with memoryview(body) as view:
        try:
            spans, rest = json_spans(view, 1)
            if not spans or rest == len(body):
                return False
            with view[: spans[0][1]] as first:
                check_text(first)
                orjson.loads(first)
        except (ValueError, HttpError):
            return False
    return True


async def produce_batch(request: HttpRequest) -> web.StreamResponse:
    """Appends up to a limit of records with ids of the client; 207 with the lists of successes and failures."""
    cluster_id = check_cluster(request)
    topic = find_topic(request.context, request.args["topic"])
    body = await request.read_body()
    given = await request.parse_json_object(body, V3_FREE, listed="entries")
    parsed = await request.run_job(
        len(body), parse_entries, given, request.context.limits.batch_entries, request.context.clock.wall_ms()
    )
    failures: list[dict[str, Any]] = []
    taken: list[tuple[str, ProducerRecord]] = []
    encoded = await encode_records(request, topic.name, [record for _, record in parsed])
    for (name, _), record in zip(parsed, encoded, strict=True):
        if isinstance(record, HttpError):
            failures.append({"id": name, "error_code": record.error_code, "message": record.message})
        else:
            taken.append((name, record))
    reports = ProduceReports(cluster_id, topic.name)
    successes: list[dict[str, Any]] = []
    key = await find_key(request, topic.topic_id, body)
    del body, given  # the memory is needed for the batches
    outcomes = await append_once(request, topic, [record for _, record in taken], key)
    for (name, record), outcome in zip(taken, outcomes, strict=True):
        if isinstance(outcome, RecordMetadata):
            successes.append({"id": name, **orjson.loads(reports.format_success(record, outcome))})
        else:
            failures.append({"id": name, "error_code": outcome.error_code, "message": outcome.message})
    return json_response({"successes": successes, "failures": failures}, status=207)


def parse_entries(body: dict[str, Any], limit: int, now_ms: int) -> list[tuple[str, ProducerRecord | HttpError]]:
    """Returns the id of each entry with its record, or with the error that refuses the record. Raises `HttpError` 422
    (code 42208) if the whole batch is malformed, 413 if it has too many headers."""
    check_fields(body, BATCH_FIELDS, "the body")
    entries = body.get("entries")
    if not isinstance(entries, list | JsonEntries) or not entries:
        raise HttpError(INVALID_BATCH, "entries has to be an array that is not empty")
    if len(entries) > limit:
        raise HttpError(INVALID_BATCH, f"more than {limit} entries")
    parsed: dict[str, ProducerRecord | HttpError] = {}
    headers = 0
    for name, record in map(partial(_parse_entry, now_ms=now_ms), entries):  # keeps no entry meanwhile
        if name in parsed:
            raise HttpError(INVALID_BATCH, f"the id {name!r} appears twice")
        parsed[name] = record
        if isinstance(record, ProducerRecord):
            headers += len(record.headers)
            check_header_count(headers)
    return list(parsed.items())


def _parse_entry(entry: Any, now_ms: int) -> tuple[str, ProducerRecord | HttpError]:
    name = entry.get("id") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not 0 < len(name) <= ID_CHARACTERS:
        raise HttpError(INVALID_BATCH, f"each entry needs an id of 1 to {ID_CHARACTERS} characters")
    try:
        return name, compact_record(parse_record_v3(entry, now_ms, ENTRY_FIELDS))
    except HttpError as error:
        return name, error.without_traceback()
