"""REST v3 produce: `records` (one record, or a stream of them) and `records:batch`."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from tiered.records.native import json_spans
from tiered_api.http.exchange.errors import INVALID_BATCH, HttpError
from tiered_api.http.exchange.fields import V3_FREE, check_fields, load_json
from tiered_api.http.exchange.request import HttpRequest, malformed_json
from tiered_api.http.exchange.responses import HttpResponse, json_response
from tiered_api.http.exchange.schemas import BATCH_V3, ENTRY_V3, names
from tiered_api.http.partitions.idempotency import has_key
from tiered_api.http.partitions.produce import RecordMetadata, append_once, append_one, find_topic
from tiered_api.http.partitions.record_formats import ProducerRecord, parse_record_v3
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
    try:
        value = load_json(body, V3_FREE)
    except orjson.JSONDecodeError as error:
        if not _is_stream(body):
            raise malformed_json(error) from None
        return await serve_stream(request, topic, reports, body)
    record = parse_record_v3(value, request.context.clock.wall_ms())
    placed = await append_one(request, topic, record)
    return HttpResponse(reports.format_success(record, placed))


def _is_stream(body: bytes | bytearray) -> bool:
    """True if the body is not one JSON value, but begins with a whole one and continues."""
    try:
        spans, _ = json_spans(body)
        if not spans or not body[spans[0][1] :].strip():
            return False
        orjson.loads(body[: spans[0][1]])
    except ValueError:
        return False
    return True


async def produce_batch(request: HttpRequest) -> web.StreamResponse:
    """Appends up to a limit of records with ids of the client; 207 with the lists of successes and failures."""
    cluster_id = check_cluster(request)
    topic = find_topic(request.context, request.args["topic"])
    body = await request.read_body()
    entries = _parse_entries(await request.parse_json_object(body, V3_FREE), request.context.limits.batch_entries)
    now = request.context.clock.wall_ms()
    failures: list[dict[str, Any]] = []
    taken: list[tuple[str, ProducerRecord]] = []
    for name, entry in entries:
        try:
            taken.append((name, parse_record_v3(entry, now, ENTRY_FIELDS)))
        except HttpError as error:
            failures.append({"id": name, "error_code": error.error_code, "message": error.message})
    reports = ProduceReports(cluster_id, topic.name)
    successes: list[dict[str, Any]] = []
    outcomes = await append_once(request, topic, [record for _, record in taken], body)
    for (name, record), outcome in zip(taken, outcomes, strict=True):
        if isinstance(outcome, RecordMetadata):
            successes.append({"id": name, **orjson.loads(reports.format_success(record, outcome))})
        else:
            failures.append({"id": name, "error_code": outcome.error_code, "message": outcome.message})
    return json_response({"successes": successes, "failures": failures}, status=207)


def _parse_entries(body: dict[str, Any], limit: int) -> list[tuple[str, Any]]:
    """Returns (id, entry) pairs. Raises `HttpError` 422 (code 42208) if the whole batch is malformed."""
    check_fields(body, BATCH_FIELDS, "the body")
    entries = body.get("entries")
    if not isinstance(entries, list) or not entries:
        raise HttpError(INVALID_BATCH, "entries has to be an array that is not empty")
    if len(entries) > limit:
        raise HttpError(INVALID_BATCH, f"more than {limit} entries")
    named: dict[str, Any] = {}
    for entry in entries:
        name = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not 0 < len(name) <= ID_CHARACTERS:
            raise HttpError(INVALID_BATCH, f"each entry needs an id of 1 to {ID_CHARACTERS} characters")
        if name in named:
            raise HttpError(INVALID_BATCH, f"the id {name!r} appears twice")
        named[name] = entry
    return list(named.items())
