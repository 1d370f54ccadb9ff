"""REST v3 produce: `records` (one record, or a stream of them) and `records:batch`."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from tiered.records.native import json_spans
from tiered_api.http.partitions.produce import Placed, append_many, append_one, topic_image
from tiered_api.http.partitions.record_formats import Incoming, iso, record_v3
from tiered_api.http.server.errors import BATCH, HttpError
from tiered_api.http.server.request import Request, malformed
from tiered_api.http.server.responses import Answer, as_json
from tiered_api.http.v3.shapes import cluster
from tiered_api.http.v3.streaming import stream

ID_CHARACTERS = 80


class Reports:
    """Prints what became of the records of one topic. Built once per request, formatted once per record."""

    def __init__(self, cluster_id: str, topic: str) -> None:
        names = orjson.dumps({"cluster_id": cluster_id, "topic_name": topic})[1:-1]
        self._start = b'{"error_code":200,' + names + b',"partition_id":%d,"offset":%d,"timestamp":"%b"'

    def placed(self, record: Incoming, placed: Placed) -> bytes:
        """The report of a record that was appended."""
        report = self._start % (placed.partition, placed.offset, iso(placed.timestamp).encode())
        for name, kind, data in (("key", record.kinds[0], record.key), ("value", record.kinds[1], record.value)):
            if data is not None:
                report += b',"%b":{"type":"%b","size":%d}' % (name.encode(), kind.encode(), len(data))
        return report + b"}"

    def failed(self, error: HttpError) -> bytes:
        """The report of one that was not."""
        return orjson.dumps({"error_code": error.error_code, "message": error.message})


async def produce_records(request: Request) -> web.StreamResponse:
    """One record: its report and its status. Chunked, or several records: a stream of reports, status 200."""
    cluster_id = cluster(request)
    topic = topic_image(request.site, request.args["topic"])
    reports = Reports(cluster_id, topic.name)
    if "Transfer-Encoding" in request.headers:
        return await stream(request, topic, reports)
    body = await request.whole()
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if not _several(body):
            raise malformed(error) from None
        return await stream(request, topic, reports, body)
    record = record_v3(value, request.site.clock.wall_ms())
    placed = await append_one(request.site, topic, record)
    return Answer(reports.placed(record, placed))


def _several(body: bytes) -> bool:
    """Whether a body that is not one JSON value begins with a whole one and goes on."""
    try:
        spans, _ = json_spans(body)
        if not spans or not body[spans[0][1] :].strip():
            return False
        orjson.loads(body[: spans[0][1]])
    except ValueError:
        return False
    return True


async def produce_batch(request: Request) -> web.StreamResponse:
    """Up to a limit of records with ids of the caller's; 207 with the lists of successes and failures."""
    cluster_id = cluster(request)
    topic = topic_image(request.site, request.args["topic"])
    entries = _entries(await request.json_object(), request.site.limits.entries)
    now = request.site.clock.wall_ms()
    failures: list[dict[str, Any]] = []
    taken: list[tuple[str, Incoming]] = []
    for name, entry in entries:
        try:
            taken.append((name, record_v3(entry, now)))
        except HttpError as error:
            failures.append({"id": name, "error_code": error.error_code, "message": error.message})
    reports = Reports(cluster_id, topic.name)
    successes: list[dict[str, Any]] = []
    outcomes = await append_many(request.site, topic, [record for _, record in taken])
    for (name, record), outcome in zip(taken, outcomes, strict=True):
        if isinstance(outcome, Placed):
            successes.append({"id": name, **orjson.loads(reports.placed(record, outcome))})
        else:
            failures.append({"id": name, "error_code": outcome.error_code, "message": outcome.message})
    return as_json({"successes": successes, "failures": failures}, status=207)


def _entries(body: dict[str, Any], limit: int) -> list[tuple[str, Any]]:
    """(id, entry) pairs; HttpError 422 (code 42208) when the batch as a whole cannot be taken."""
    entries = body.get("entries")
    if not isinstance(entries, list) or not entries:
        raise HttpError(BATCH, "entries has to be an array that is not empty")
    if len(entries) > limit:
        raise HttpError(BATCH, f"more than {limit} entries")
    named: dict[str, Any] = {}
    for entry in entries:
        name = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not 0 < len(name) <= ID_CHARACTERS:
            raise HttpError(BATCH, f"each entry needs an id of 1 to {ID_CHARACTERS} characters")
        if name in named:
            raise HttpError(BATCH, f"the id {name!r} is there twice")
        named[name] = entry
    return list(named.items())
