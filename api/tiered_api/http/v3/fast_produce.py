"""The short way for what producers send all day: one record, under a head that was seen before.

A head (request line and headers) that aiohttp parsed and the full way answered is remembered byte for byte. When the
same bytes come again, followed by exactly the body that they announce, they mean the same: nothing has to be parsed, no
task is made, and the answer is written in the call that brought the bytes. It costs half of the full way. Everything
else goes the full way: other heads, faults, partitions whose append has to wait. Only aiohttp ever parses a head.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson
from aiohttp import web

from tiered.errors import Refused
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import date_line
from tiered_api.http.partitions.produce import append_locally, choose_partition, keyless_counter
from tiered_api.http.partitions.record_formats import parse_record_v3
from tiered_api.http.v3.produce_reports import ProduceReports

HEADS_MAX = 4096
"""Heads that are remembered; when there are more, all are forgotten."""
HEAD_BYTES = 1024
UNSUPPORTED_HEADERS = ("Transfer-Encoding", "Content-Encoding", "Expect", "Upgrade")
"""Headers under which the body is not simply the bytes that follow."""
OPERATION = "v3_produce_records"

_INTERNALS = ("_waiter", "_messages", "_next_keepalive_close_time", "_keepalive_timeout", "_reading_paused")
IS_SUPPORTED = all(hasattr(web.RequestHandler, name) for name in _INTERNALS)
"""Whether this aiohttp has what a connection has to look at to know that it is between two requests."""

_HEAD = b"HTTP/1.1 200 OK\r\n%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class KnownHead(NamedTuple):
    """What a head means: a record for `topic` in a body of `length` bytes."""

    length: int
    topic: str
    reports: ProduceReports


class HeadCache:
    """The heads that are known."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._known: dict[bytes, KnownHead] = {}

    def remember(self, head: bytes, request: HttpRequest) -> None:
        """Remembers the head of a request that was answered well, when it can be taken the short way."""
        if len(head) > HEAD_BYTES or request.version != (1, 1) or not request.keep_alive or head in self._known:
            return
        if any(name in request.headers for name in UNSUPPORTED_HEADERS):
            return
        if len(self._known) >= HEADS_MAX:
            self._known.clear()
        reports = ProduceReports(self._context.broker.cluster_id, request.args["topic"])
        self._known[head] = KnownHead(request.content_length or 0, request.args["topic"], reports)

    def try_produce(self, data: bytes) -> bytes | None:
        """The whole answer to `data` when that is one known head and its body and the record is in; None when the full
        way has to deal with it: then nothing has happened."""
        end = data.find(b"\r\n\r\n") + 4
        known = self._known.get(data[:end])
        if known is None or len(data) - end != known.length:
            return None
        context = self._context
        topic = context.broker.image.topics.get(known.topic)
        if topic is None:
            return None
        try:
            record = parse_record_v3(orjson.loads(data[end:]), context.clock.wall_ms())
            partition = choose_partition(record, len(topic.partitions), next(keyless_counter))
            placed = append_locally(context, topic, partition, record)
        except (orjson.JSONDecodeError, HttpError, Refused):
            return None
        if placed is None:
            return None
        context.requests.inc(1, OPERATION, "200")
        body = known.reports.format_success(record, placed)
        return _HEAD % (date_line(), len(body)) + body


def is_cacheable(request: HttpRequest, response: web.StreamResponse) -> bool:
    """Whether what was just answered is of the kind that is worth remembering."""
    return request.operation == OPERATION and response.status == 200
