"""One request as handlers see it: path arguments, checked query values, a bounded body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

from tiered.metadata.parts.topics import TopicImage
from tiered.security.acls import Operation, ResourceType
from tiered.security.principal import ANONYMOUS, Caller
from tiered.system.turns import each_of
from tiered_api.http.exchange.context import INLINE_BYTES, HttpContext
from tiered_api.http.exchange.decompress import WholeBody
from tiered_api.http.exchange.errors import BAD_REQUEST, NOT_AUTHENTICATED, NOT_AUTHORIZED, HttpError
from tiered_api.http.exchange.fields import load_json
from tiered_api.http.exchange.json_entries import load_with_entries, malformed_json
from tiered_api.http.exchange.metering import HttpMeter, HttpSubmitter

P = ParamSpec("P")
T = TypeVar("T")

QUERY_PARAMETERS = 32


def _has_login() -> bool:
    return True


def _check_rights() -> None:
    """Stands for the check of a request that has no route yet."""


class HttpRequest(web.BaseRequest):
    """aiohttp's request with the context, the route's arguments and the memory that it holds."""

    def __init__(
        self,
        context: HttpContext,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(message, payload, protocol, writer, task, loop)
        self.context = context
        self.target = message.path
        self.operation = "none"
        self.args: dict[str, str] = {}
        self.caller = Caller(ANONYMOUS, self.remote or "")
        """The principal that sends the request, and its host."""
        self.has_login: Callable[[], bool] = _has_login
        """True while the login of the request is still good."""
        self.has_known_login: Callable[[], bool] = _has_login
        """True while it is good and needs no proof. Keeps no secret, so that it may outlive the request."""
        self.has_user: Callable[[], bool] = _has_login
        """True while the user has a password of the time of its login; always for other logins than by password. Keeps
        no secret."""
        self.lacks_login = False
        """True if the listener has a login, and the request comes without one: it has no rights at all."""
        self.check_rights: Callable[[], None] = _check_rights
        """Raises `HttpError` 403 if the caller lacks a right that the route needs."""
        self.meter: HttpMeter | None = None
        """Charges the client of the request; None if the client has no quota."""
        self.inflated_bytes = 0
        """Bytes of the body after decompression; 0 until then."""
        self.held_bytes = 0
        """Bytes of the memory budget, released once the response is sent."""
        self._query: dict[str, str] | None = None

    ATTRS = web.BaseRequest.ATTRS | frozenset(
        (
            "context", "target", "operation", "args", "caller", "has_login", "has_known_login", "has_user",
            "lacks_login", "check_rights", "meter", "inflated_bytes", "held_bytes",
        )
    )  # fmt: skip

    @property
    def peer(self) -> str:
        """The address of the client; empty if unknown."""
        return self.remote or ""

    @property
    def submitter(self) -> HttpSubmitter:
        """The caller, who pays for changes of metadata."""
        return HttpSubmitter(self.caller, self.meter)

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """True if the caller may carry out an operation on a resource."""
        return not self.lacks_login and self.context.broker.authorization.is_allowed(self.caller, operation, kind, name)

    async def list_topics(self, operation: Operation) -> list[TopicImage]:
        """Returns the topics on which the caller may carry out an operation, by name. Other requests run meanwhile,
        unless the caller has the right on all topics: then nothing is decided for each."""
        topics = self.context.broker.image.topics
        names = sorted(topics)
        if not self.lacks_login and self.context.broker.authorization.is_allowed_everywhere(
            self.caller, operation, ResourceType.TOPIC
        ):
            return [topics[name] for name in names]
        return [topics[name] async for name in each_of(names) if self.may(operation, ResourceType.TOPIC, name)]

    def require(self, operation: Operation, kind: ResourceType, name: str) -> None:
        """Raises `HttpError` 403 if the caller may not carry out an operation on a resource, 401 if its login has ended
        since the request began."""
        self.require_login()
        authorization = self.context.broker.authorization
        if self.lacks_login or not authorization.authorize(self.caller, operation, kind, name):
            what = f"{operation.name} on {kind.name} {name[:249]!r}"
            raise HttpError(NOT_AUTHORIZED, f"{self.caller.principal} has no right to {what}")

    def require_login(self) -> None:
        """Raises `HttpError` 401 if the login of the request has ended since it began."""
        if not self.has_login():
            raise HttpError(NOT_AUTHENTICATED, "the login has ended: its user, password or token is not good any more")

    def recheck(self) -> None:
        """Checks login and route again, after a wait for the client, records, memory or a thread. Raises `HttpError`
        401 or 403."""
        self.require_login()
        self.check_rights()

    @property
    def connection_name(self) -> str:
        """A name that the connection of the request has alone while it lasts."""
        return str(id(self.protocol))

    # -- path and query -------------------------------------------------------------------------------------------

    def path_number(self, name: str) -> int:
        """Returns a path argument that is a non-negative integer. Raises `HttpError` 404 if it is not, because no
        resource has such a name."""
        text = self.args[name]
        if not (text.isascii() and text.isdigit() and len(text) <= 10):
            raise HttpError(404, f"{name} {text[:40]!r} is not a number")
        return int(text)

    def query_parameters(self) -> dict[str, str]:
        """Returns the query parameters. Raises `HttpError` 400 if one is repeated or malformed."""
        if self._query is None:
            self._query = parse_query(self.target.partition("?")[2])
        return self._query

    def take_repeated(self, *names: str) -> list[list[str]]:
        """Returns the values of query parameters that may be repeated. `query_parameters` has the others from then on.
        Raises `HttpError` 400 if one is malformed, or if another one is repeated."""
        pairs = _parse_pairs(self.target.partition("?")[2])
        others = [(name, value) for name, value in pairs if name not in names]
        self._query = dict(others)
        if len(self._query) < len(others):
            raise HttpError(400, "a query parameter is repeated")
        return [[value for name, value in pairs if name == wanted] for wanted in names]

    def query_integer(self, name: str, default: int, low: int, high: int, wanted: str = "") -> int:
        """Returns a query value, reduced to `high` if it is larger. Raises `HttpError` 400 if it is below `low` or no
        integer. `wanted` describes the allowed values, if they are more than numbers."""
        text = self.query_parameters().get(name)
        if text is None:
            return default
        digits = text[1:] if text.startswith("-") else text
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20) or int(text) < low:
            raise HttpError(400, f"{name}={text[:40]!r} is not {wanted or f'an integer of at least {low}'}")
        return min(int(text), high)

    def origin(self) -> str:
        """Returns `http(s)://host:port` as the client named this server, for links; without a Host header, the
        address of the connection."""
        host = self.headers.get("Host")
        if not host and self.transport is not None:
            address, port = self.transport.get_extra_info("sockname")[:2]
            host = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        return f"{'https' if self.has_tls() else 'http'}://{host}"

    def is_at_shared_address(self) -> bool:
        """True if the request came to an address that processes of this machine share."""
        port = self.transport.get_extra_info("sockname")[1] if self.transport is not None else None
        return port is not None and port == self.context.shared_port

    def has_tls(self) -> bool:
        """True if the connection is encrypted."""
        return self.transport is not None and self.transport.get_extra_info("sslcontext") is not None

    def advertised_origin(self) -> str:
        """Returns the origin of exactly this broker: `advertised.http`, else `origin`."""
        broker = self.context.broker
        known = broker.image.brokers.get(broker.settings.node_id)
        return (known.advertised_http if known is not None else "") or self.origin()

    # -- body -----------------------------------------------------------------------------------------------------

    async def reserve_memory(self, size: int) -> None:
        """Reserves part of the memory budget until the response is sent. Raises `HttpError` 401 or 403 if the caller
        lost its rights during a wait for room."""
        budget, holder = self.context.budget, self.caller.holder
        waits = not budget.has_room(size, holder)
        self.held_bytes += await budget.acquire(size, self.context.limits.body_seconds, holder)
        if waits:
            self.recheck()

    async def run_job(self, size: int, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns `function(...)` as `HttpContext.run_job` does, and charges the time of the thread to the client.
        Raises `HttpError` 401 or 403 if the caller lost its rights during a wait for a thread."""
        if size <= INLINE_BYTES:
            return function(*args, **kwargs)
        holder = self.caller.holder
        made = await self.context.run_job_of(holder, size, lambda: function(*args, **kwargs))
        self.recheck()
        return made

    async def run_unlocked_job(self, function: Callable[[], T]) -> T:
        """Returns `function()` as `HttpContext.run_unlocked_job` does, and charges the time of the thread to the
        client."""
        return await self.context.run_unlocked_job(self.caller.holder, function)

    def set_held_memory(self, size: int) -> None:
        """Sets the held memory to `size` bytes: releases the rest, or takes more without waiting, because the bytes are
        in memory already."""
        self.context.budget.release(self.held_bytes - size, self.caller.holder)
        self.held_bytes = size

    def send_continue(self) -> None:
        """Asks a waiting client for the body (`Expect: 100-continue`)."""
        wanted = self.headers.get("Expect")
        if wanted is None:
            return
        if wanted.lower() != "100-continue":
            raise HttpError(417, "the only supported expectation is 100-continue")
        if self.transport is not None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def read_body(self, most: int | None = None) -> bytes | bytearray:
        """Returns the body, decompressed: at most `most` bytes. The caller may change a bytearray.

        Raises `HttpError` 413 if the body is too large, 408 if it comes too slowly, 429 if that is for a quota, 401 or
        403 if the caller lost its rights meanwhile.
        """
        limit = self.context.limits.body_bytes
        if most is not None:
            limit = min(limit, most)
        content = self.content
        if content.is_eof():
            data: bytes | bytearray = content.read_nowait(-1)
        else:
            data = await self._read_chunks(limit)
            self.recheck()
        if len(data) > limit:
            raise self._too_large(limit)
        encoding = self.headers.get("Content-Encoding")
        if encoding is None:
            return data
        body = WholeBody(encoding, data, limit)
        if body.is_plain:
            whole = data
        else:
            await self.reserve_memory(limit)  # a few compressed bytes may become so many
            await self.run_job(len(data), body.check)
            size = await self.run_unlocked_job(body.fill)
            whole = await self.run_job(size, body.take)
            self.recheck()
        self.set_held_memory(len(whole))
        self.inflated_bytes = len(whole)
        return whole

    async def _read_chunks(self, limit: int) -> bytearray:
        """Returns the body as it arrived. It grows with each part: a copy of 60 MB would block all others for 40 ms."""
        length = self.content_length
        if length is not None and length > limit:
            raise self._too_large(limit)
        self.send_continue()
        await self.reserve_memory(limit if length is None else length)
        whole = bytearray()
        try:
            async with asyncio.timeout(self.context.limits.body_seconds):
                while part := await self.content.readany():
                    if len(whole) + len(part) > limit:
                        raise self._too_large(limit)
                    whole += part
                    if self.meter is not None and not self.content.is_eof():
                        await self.meter.pace_body(self)
        except TimeoutError:
            if self.meter is not None:
                self.meter.check(self.operation)
            raise HttpError(408, f"the body did not come within {self.context.limits.body_seconds:g} s") from None
        self.set_held_memory(len(whole))
        return whole

    @staticmethod
    def _too_large(limit: int) -> HttpError:
        return HttpError(413, f"the body is larger than {limit} bytes")

    async def read_json_object(self) -> dict[str, Any]:
        """Returns the body, which has no records, as one JSON object."""
        return await self.parse_json_object(await self.read_body(self.context.limits.object_bytes))

    async def parse_json_object(
        self, data: bytes | bytearray, free: tuple[bytes, ...] = (), code: int = BAD_REQUEST, listed: str = ""
    ) -> dict[str, Any]:
        """Parses one JSON object. `JsonEntries` stand in the place of the list that is its field `listed`. Raises
        `HttpError` 400 if it is not JSON, 413 if it has too many values and names, 422 if it is another JSON value, and
        with `code` for a field that an object has twice, except inside the values of `free` fields."""
        try:
            if listed:
                value = await self.run_job(len(data), load_with_entries, data, listed, free, code)
            else:
                value = await self.run_job(len(data), load_json, data, free, code)
        except orjson.JSONDecodeError as error:
            raise malformed_json(error) from None
        if not isinstance(value, dict):
            raise HttpError(422, "the body has to be a JSON object")
        return value


def parse_query(query: str) -> dict[str, str]:
    """Parses a query string. Raises `HttpError` 400 for too many parameters, repeated names and bad escapes."""
    found: dict[str, str] = {}
    for name, value in _parse_pairs(query) if query else ():
        if name in found:
            raise HttpError(400, f"query parameter {name[:40]!r} is repeated")
        found[name] = value
    return found


def _parse_pairs(query: str) -> list[tuple[str, str]]:
    found = []
    pairs = query.split("&", QUERY_PARAMETERS + 1)
    if len(pairs) > QUERY_PARAMETERS:
        raise HttpError(400, f"more than {QUERY_PARAMETERS} query parameters")
    for pair in pairs:
        if not pair:
            continue
        name, _, value = (percent_decode(part.replace("+", " ")) for part in pair.partition("="))
        found.append((name, value))
    return found


def percent_decode(text: str) -> str:
    """Decodes one path segment or query part. Raises `HttpError` 400 if it is not UTF-8 or has a NUL. Without its C
    extension, aiohttp passes bytes that are not UTF-8 as lone surrogates."""
    if "%" in text or not text.isascii():
        try:
            text = unquote_to_bytes(text.encode(errors="surrogateescape")).decode()
        except UnicodeDecodeError:
            raise HttpError(400, "the decoded address is not UTF-8") from None
    if "\0" in text:
        raise HttpError(400, "the address contains a NUL")
    return text
