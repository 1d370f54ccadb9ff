"""The short path for the most frequent request of producers: one record, with a head that was seen before.

A head (request line and headers) that aiohttp parsed and the full path served is remembered byte for byte. If the same
bytes come again, followed by exactly the body that they announce, they mean the same request. So nothing has to be
parsed, no task is created, and the response is written in the call that brought the bytes. This costs half as much as
the full path. Everything else takes the full path: other heads, errors, partitions whose append has to wait. Only
aiohttp ever parses a head.
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
from tiered_api.http.partitions.idempotency import address_of, has_key, make_key, parse_key
from tiered_api.http.partitions.produce import append_locally
from tiered_api.http.partitions.record_formats import parse_record_v3
from tiered_api.http.v3.produce_reports import ProduceReports

HEADS_MAX = 4096
"""Most heads that are remembered; at this limit, all are dropped."""
HEAD_BYTES = 1024
UNSUPPORTED_HEADERS = ("Transfer-Encoding", "Content-Encoding", "Expect", "Upgrade")
"""Headers with which the body is not simply the bytes that follow."""
KEY_LINE = b"\r\nIdempotency-Key: "
"""The start of a line that differs from request to request. It is no part of a remembered head."""
OPERATION = "v3_produce_records"

_INTERNALS = ("_waiter", "_messages", "_next_keepalive_close_time", "_keepalive_timeout", "_reading_paused")
IS_SUPPORTED = all(hasattr(web.RequestHandler, name) for name in _INTERNALS)
"""True if this aiohttp has the attributes that show a connection between two requests."""

_HEAD = b"HTTP/1.1 200 OK\r\n%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class KnownHead(NamedTuple):
    """The meaning of a head: a record for `topic` in a body of `length` bytes. `address` is that of an idempotent
    request."""

    length: int
    topic: str
    reports: ProduceReports
    address: str


class HeadCache:
    """The heads that are known."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._known: dict[bytes, KnownHead] = {}

    def remember(self, head: bytes, request: HttpRequest) -> None:
        """Remembers the head of a request that was served, if the short path can serve it."""
        if len(head) > HEAD_BYTES or request.version != (1, 1) or not request.keep_alive or head in self._known:
            return
        if any(name in request.headers for name in UNSUPPORTED_HEADERS):
            return
        head, key = _cut_key(head)
        if (key is None) == has_key(request) or head in self._known:  # a key line in another form
            return
        if len(self._known) >= HEADS_MAX:
            self._known.clear()
        reports = ProduceReports(self._context.broker.cluster_id, request.args["topic"])
        self._known[head] = KnownHead(request.content_length or 0, request.args["topic"], reports, address_of(request))

    def try_produce(self, data: bytes) -> bytes | None:
        """Returns the whole response if `data` is a known head with its body and the record is appended. Returns None
        and does nothing if the request needs the full path."""
        end = data.find(b"\r\n\r\n") + 4
        head, key_text = _cut_key(data[:end])
        known = self._known.get(head)
        if known is None or len(data) - end != known.length:
            return None
        context = self._context
        topic = context.broker.image.topics.get(known.topic)
        if topic is None:
            return None
        try:
            record = parse_record_v3(orjson.loads(data[end:]), context.clock.wall_ms())
            key = None
            if key_text is not None:
                key = make_key(topic.topic_id, parse_key(key_text), known.address, data[end:])
            placed = append_locally(context, topic, record, key)
        except (orjson.JSONDecodeError, HttpError, Refused):
            return None
        if placed is None:
            return None
        context.requests.inc(1, OPERATION, "200")
        body = known.reports.format_success(record, placed)
        return _HEAD % (date_line(), len(body)) + body


def _cut_key(head: bytes) -> tuple[bytes, str | None]:
    """Returns a head without the line of its idempotency key, and the key; None if it has no such line."""
    at = head.find(KEY_LINE)
    if at < 0:
        return head, None
    end = head.find(b"\r\n", at + len(KEY_LINE))
    return head[:at] + head[end:], head[at + len(KEY_LINE) : end].decode("latin-1")


def is_cacheable(request: HttpRequest, response: web.StreamResponse) -> bool:
    """True if the short path could serve a request like this one."""
    return request.operation == OPERATION and response.status == 200
