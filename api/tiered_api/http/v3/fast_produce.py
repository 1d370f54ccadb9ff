"""The short path for the most frequent request of producers: one record, with a head that was seen before.

A head (request line and headers) that aiohttp parsed and the full path served is remembered byte for byte. If the same
bytes come again, followed by exactly the body that they announce, they mean the same request. So nothing has to be
parsed, no task is created, and the response is written in the call that brought the bytes. This costs half as much as
the full path. Everything else takes the full path: other heads, errors, partitions whose append has to wait, clients
over a quota. Only aiohttp ever parses a head.

Keeps I29. Where rights or logins count, a head counts for its own credential, and for the certificate and the address
of its connection. Each request asks whether the login is still good. A change of ACLs forgets all heads.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

import orjson
from aiohttp import web

from tiered.errors import Refused
from tiered.records.native import json_repeated_name
from tiered.security.acls import Operation, ResourceType
from tiered.security.principal import ANONYMOUS, Caller
from tiered_api.http.exchange.context import INLINE_BYTES, HttpContext
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.fields import V3_FREE
from tiered_api.http.exchange.metering import CLIENT_ID, CLIENT_ID_MAX, HttpMeter
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import date_line
from tiered_api.http.partitions.idempotency import address_of, has_key, key_owner, make_key, parse_key
from tiered_api.http.partitions.produce import append_locally
from tiered_api.http.partitions.record_formats import NO_SCHEMAS, parse_record_v3
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
    """The meaning of a head: a record for `topic` in a body of `length` bytes. `address` and `key_owner` are those of
    an idempotent request, whose keys count for `holder`. `has_login` is true while the login in the head is good.
    `meter` charges the client."""

    length: int
    topic: str
    reports: ProduceReports
    address: str
    key_owner: str
    holder: str
    has_login: Callable[[], bool]
    meter: HttpMeter


class HeadCache:
    """The heads that are known, by their bytes. A head that may have a credential is known by a hash."""

    def __init__(self, context: HttpContext, *, has_logins: bool) -> None:
        self._context = context
        self._has_logins = has_logins
        self._secret = context.broker.world.rng.stream("http heads").randbytes(32)
        self._quotas = context.broker.client_quotas
        self._known: dict[bytes, KnownHead] = {}
        context.broker.authorization.subscribe(self._known.clear)

    def describe_origin(self, caller: Caller) -> bytes:
        """Returns what a connection adds to its heads: nothing where all callers have the same rights. `caller` is the
        principal of its certificate."""
        has_rules = self._has_logins or self._context.broker.authorization.authorizer is not None
        if not has_rules and caller.principal == ANONYMOUS:
            return b""
        return self._secret + f"{caller.principal}\0{caller.host}\0".encode()

    def remember(self, head: bytes, request: HttpRequest, origin: bytes) -> None:
        """Remembers the head of a request that was served, if the short path can serve it."""
        if len(head) > HEAD_BYTES or request.version != (1, 1) or not request.keep_alive:
            return
        if any(name in request.headers for name in UNSUPPORTED_HEADERS):
            return
        length = request.content_length or 0
        if length > INLINE_BYTES:  # threads parse it
            return
        head, key = _cut_key(head)
        name, client_id = _name_head(head, origin), request.headers.get(CLIENT_ID, "")
        known = self._known.get(name)
        if known is not None and known.has_login():
            return
        if (key is None) == has_key(request) or len(client_id) > CLIENT_ID_MAX:  # a key line in another form
            return
        topic = request.args["topic"]
        # Rights and login may have changed since they were checked.
        if not request.may(Operation.WRITE, ResourceType.TOPIC, topic) or not request.has_known_login():
            return
        if len(self._known) >= HEADS_MAX:
            self._known.clear()
        self._known[name] = KnownHead(
            length,
            topic,
            ProduceReports(self._context.broker.cluster_id, topic),
            address_of(request),
            key_owner(request.caller.principal),
            request.caller.holder,
            request.has_known_login,
            HttpMeter(self._quotas, request.caller.principal.name, client_id),
        )

    def try_produce(self, data: bytes, origin: bytes) -> bytes | None:
        """Returns the whole response if `data` is a known head with its body and the record is appended. Returns None
        and does nothing if the request needs the full path."""
        end = data.find(b"\r\n\r\n") + 4
        head, key_text = data[:end], None
        if KEY_LINE in head:
            head, key_text = _cut_key(head)
        known = self._known.get(_name_head(head, origin) if origin else head)
        if known is None or len(data) - end != known.length or not known.has_login():
            return None
        if not self._quotas.table.has_client_quotas:
            return self._produce(known, key_text, data[end:])
        return self._produce_metered(known, key_text, data[end:])

    def _produce_metered(self, known: KnownHead, key_text: str | None, body: bytes) -> bytes | None:
        meter, mono_ns = known.meter, self._context.clock.mono_ns
        if meter.find_pause_ms(OPERATION) > 0:
            return None
        begun_ns = mono_ns()
        answer = self._produce(known, key_text, body)
        if answer is not None:
            meter.spend(mono_ns() - begun_ns)
            meter.charge(OPERATION, known.length, 0)
        return answer

    def _produce(self, known: KnownHead, key_text: str | None, body: bytes) -> bytes | None:
        context = self._context
        topic = context.broker.image.topics.get(known.topic)
        if topic is None:
            return None
        try:
            value = orjson.loads(body)
            if json_repeated_name(body, V3_FREE) is not None:  # as `load_json`, without its call
                return None
            record = parse_record_v3(value, context.clock.wall_ms())
            if record.schemas is not NO_SCHEMAS:
                return None
            key = None
            if key_text is not None:
                if not key_text.isprintable():  # bytes that aiohttp may refuse, and `parse_key` may strip
                    return None
                key = make_key(topic.topic_id, known.key_owner + parse_key(key_text), known.address, body)
            placed = append_locally(context, topic, record, key, known.holder)
        except (orjson.JSONDecodeError, HttpError, Refused):
            return None
        if placed is None:
            return None
        context.requests.inc(1, OPERATION, "200")
        report = known.reports.format_success(record, placed)
        return _HEAD % (date_line(), len(report)) + report


def _name_head(head: bytes, origin: bytes) -> bytes:
    """Returns what stands for a head of a connection in memory."""
    return sha256(origin + head).digest() if origin else head


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
