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
from tiered_api.http.partitions.produce import append_here, choose, turns
from tiered_api.http.partitions.record_formats import record_v3
from tiered_api.http.server.context import Site
from tiered_api.http.server.errors import HttpError
from tiered_api.http.server.request import Request
from tiered_api.http.server.responses import date_line
from tiered_api.http.v3.produce import Reports

HEADS = 4096
"""Heads that are remembered; when there are more, all are forgotten."""
HEAD_BYTES = 1024
OTHER_MEANING = ("Transfer-Encoding", "Content-Encoding", "Expect", "Upgrade")
"""Headers under which the body is not simply the bytes that follow."""
OPERATION = "v3_produce_records"

_INTERNALS = ("_waiter", "_messages", "_next_keepalive_close_time", "_keepalive_timeout", "_reading_paused")
POSSIBLE = all(hasattr(web.RequestHandler, name) for name in _INTERNALS)
"""Whether this aiohttp has what a connection has to look at to know that it is between two requests."""

_HEAD = b"HTTP/1.1 200 OK\r\n%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class Known(NamedTuple):
    """What a head means: a record for `topic` in a body of `length` bytes."""

    length: int
    topic: str
    reports: Reports


class Heads:
    """The heads that are known."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._known: dict[bytes, Known] = {}

    def learn(self, head: bytes, request: Request) -> None:
        """Remembers the head of a request that was answered well, when it can be taken the short way."""
        if len(head) > HEAD_BYTES or request.version != (1, 1) or not request.keep_alive or head in self._known:
            return
        if any(name in request.headers for name in OTHER_MEANING):
            return
        if len(self._known) >= HEADS:
            self._known.clear()
        reports = Reports(self._site.node.cluster_id, request.args["topic"])
        self._known[head] = Known(request.content_length or 0, request.args["topic"], reports)

    def answer(self, data: bytes) -> bytes | None:
        """The whole answer to `data` when that is one known head and its body and the record is in; None when the full
        way has to deal with it: then nothing has happened."""
        end = data.find(b"\r\n\r\n") + 4
        known = self._known.get(data[:end])
        if known is None or len(data) - end != known.length:
            return None
        site = self._site
        topic = site.node.image.topics.get(known.topic)
        if topic is None:
            return None
        try:
            record = record_v3(orjson.loads(data[end:]), site.clock.wall_ms())
            partition = choose(record, len(topic.partitions), next(turns))
            placed = append_here(site, topic, partition, record)
        except (orjson.JSONDecodeError, HttpError, Refused):
            return None
        if placed is None:
            return None
        site.requests.inc(1, OPERATION, "200")
        body = known.reports.placed(record, placed)
        return _HEAD % (date_line(), len(body)) + body


def is_learned(request: Request, response: web.StreamResponse) -> bool:
    """Whether what was just answered is of the kind that is worth remembering."""
    return request.operation == OPERATION and response.status == 200
