"""One connection to a broker, on the client's side: requests are pipelined, replies are matched by correlation id.

The client requests the versions of a broker first (ApiVersions, with the fallback of KIP-511). It then sends each
request in the highest version that both sides know. Any error ends the connection, and fails all requests that wait on
it. The number of requests in flight is bounded (I30).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import tiered
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ports import Net, Stream
from tiered.security.principal import Caller
from tiered_api.kafka.client.error_sentences import explain_error
from tiered_api.kafka.client.response_buffers import ResponseBuffers
from tiered_api.kafka.protocol.apis import ALL_APIS, API_VERSIONS, OPERATOR_APIS
from tiered_api.kafka.protocol.codec import Malformed, decode, encode
from tiered_api.kafka.protocol.headers import decode_response_header, encode_request_header
from tiered_api.kafka.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tiered_api.kafka.protocol.schema import Message, Versions

FRAME_MAX = 256 << 20
"""Largest accepted reply in bytes: no process at that address can make the client use all memory."""
UNADVERTISED = Versions(0, 0)
"""Versions of requests for our brokers alone, which ApiVersions does not list: the caller knows its broker."""
IN_FLIGHT_MAX = 16
FIRST_BUFFER_BYTES = 64 << 10
"""Larger frames get their memory as they arrive, in pieces that double from this size, so that a length field alone
costs no memory."""
LAST_VERSION_WITH_NAMES = {0: 12, 1: 12, 8: 9, 9: 9}
"""Highest version of Produce, Fetch, OffsetCommit and OffsetFetch that names topics; later ones use ids only."""

_LENGTH = struct.Struct(">i")

A = TypeVar("A", bound=Message)


class _InFlightRequest(NamedTuple):
    """A request without its reply."""

    name: str
    future: asyncio.Future[memoryview]


class BrokerConnection:
    """An open connection. `closed` is the reason why it cannot be used any more; None while it can. Large replies are
    received in `buffers`."""

    def __init__(self, stream: Stream, address: str, client_id: str, buffers: ResponseBuffers | None = None) -> None:
        self.address = address
        self.closed: Unavailable | None = None
        self.versions: dict[int, Versions] = {}
        self.caller: Caller | None = None
        """The client for which a broker sends requests here; None: its own requests."""
        self.session_lifetime_ms = 0
        """The time after which the broker wants another login, as of the last one; 0 if it wants none (KIP-368)."""
        self.opened_ns = 0
        """The time of the login, by the clock of the client."""
        self._stream = stream
        self._client_id = client_id
        self._correlation_id = 0
        self._in_flight: dict[int, _InFlightRequest] = {}
        self._permits = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._send_queue: list[memoryview] = []
        self._all_sent = asyncio.Event()
        self._buffers = buffers or ResponseBuffers(0)
        self._receive_buffer = memoryview(bytearray(4))
        self._received_bytes = 0
        self._frame_size = 0
        stream.on_readable(self._on_readable)

    @property
    def is_idle(self) -> bool:
        """True if no request waits for its reply, or for room to be sent."""
        return not self._in_flight and not self._permits.locked() and not self._send_queue

    # -- requests -----------------------------------------------------------------------------------------------------

    async def send(self, request: Message, response_type: type[A], timeout: float, version: int | None = None) -> A:
        """Sends a request and returns the reply. Raises `Unavailable` if the connection is lost or the time is over,
        which closes the connection; `Refused` (UNSUPPORTED_VERSION) if the broker does not support the request."""
        version = self.choose_version(request) if version is None else version
        name = type(request).__name__.removesuffix("Request")
        frame = await self._exchange(request, version, name, timeout)
        try:
            return decode(
                response_type, version, frame, decode_response_header(ALL_APIS[request.spec.key], version, frame)[1]
            )
        except Malformed as error:
            self._fail_connection(
                Unavailable(f"{self.address} replied to {name} with bytes that do not parse", final=True)
            )
            raise Corrupt(f"{name} does not parse: {error}", where=self.address) from None

    async def send_without_reply(self, request: Message, timeout: float) -> None:
        """Sends a request that has no reply (a produce request with acks=0); returns when all of it is sent."""
        try:
            async with asyncio.timeout(timeout):
                async with self._permits:
                    self._send(request, self.choose_version(request))
                    await self._all_sent.wait()
        except TimeoutError:
            raise self._fail_connection(Unavailable(f"{self.address} took nothing for {timeout:g} s")) from None
        if self.closed:
            raise self.closed

    def choose_version(self, request: Message) -> int:
        """Returns the highest version that both sides know."""
        key, ours, _ = request.spec
        theirs = self.versions.get(key, UNADVERTISED if key in OPERATOR_APIS else Versions(1, 0))
        high = min(ours.high, theirs.high, LAST_VERSION_WITH_NAMES.get(key, ours.high))
        if high < max(ours.low, theirs.low):
            name = type(request).__name__.removesuffix("Request")
            raise Refused(Code.UNSUPPORTED_VERSION, f"{self.address} does not offer {name} in a version that we know")
        return high

    async def negotiate(self, timeout: float) -> None:
        """Fetches the versions that the broker knows."""
        version = ApiVersionsRequest.spec.versions.high
        request = ApiVersionsRequest(
            client_software_name="tiered", client_software_version=tiered.__version__.replace("+", "-")
        )
        frame = await self._exchange(request, version, "ApiVersions", timeout)
        try:
            if int.from_bytes(frame[4:6], "big") == Code.UNSUPPORTED_VERSION.number:
                known = {api.api_key: api for api in decode(ApiVersionsResponse, 0, frame, 4).api_keys}
                version = min(version, known[API_VERSIONS].max_version) if API_VERSIONS in known else 0
                frame = await self._exchange(request, version, "ApiVersions", timeout)
            response = decode(ApiVersionsResponse, version, frame, 4)
        except Malformed as error:
            raise Unavailable(f"{self.address} does not speak the Kafka protocol: {error}", final=True) from None
        if response.error_code:
            raise Unavailable(f"{self.address} refuses ApiVersions: {explain_error(response.error_code)}", final=True)
        self.versions = {api.api_key: Versions(api.min_version, api.max_version) for api in response.api_keys}

    def close(self) -> None:
        """Ends the connection."""
        self._fail_connection(Unavailable(f"connection to {self.address} closed"))

    async def _exchange(self, request: Message, version: int, name: str, timeout: float) -> memoryview:
        try:
            async with asyncio.timeout(timeout), self._permits:
                response: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
                self._send(request, version, _InFlightRequest(name, response))
                return await response
        except TimeoutError:
            # A missing reply blocks all replies behind it.
            raise self._fail_connection(
                Unavailable(f"{self.address} sent no reply to {name} within {timeout:g} s")
            ) from None

    def _send(self, request: Message, version: int, in_flight: _InFlightRequest | None = None) -> None:
        """Writes a request to the socket. If the connection is lost, the request of the caller fails."""
        if self.closed:
            raise self.closed
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        head = encode_request_header(ALL_APIS[request.spec.key], version, self._correlation_id, self._client_id)
        body = encode(request, version)
        if in_flight is not None:
            self._in_flight[self._correlation_id] = in_flight
        self._send_queue += (memoryview(_LENGTH.pack(len(head) + len(body)) + head), memoryview(body))
        self._all_sent.clear()
        self._on_writable()

    # -- the stream ---------------------------------------------------------------------------------------------------

    def _on_writable(self) -> None:
        try:
            while self._send_queue:
                sent = self._stream.sendmsg(self._send_queue)
                if sent is None:
                    self._stream.on_writable(self._on_writable)
                    return
                self._send_queue = _skip_sent(self._send_queue, sent)
        except Unavailable as error:
            self._fail_connection(Unavailable(str(error)))  # final for this connection, not for the broker
            return
        self._stream.on_writable(None)
        self._all_sent.set()

    def _on_readable(self) -> None:
        try:
            while not self.closed:
                got = self._stream.recv_into(self._receive_buffer[self._received_bytes :])
                if got is None:
                    return
                if got == 0:
                    self._fail_connection(Unavailable(self._describe_close()))
                    return
                self._received_bytes += got
                if self._received_bytes == len(self._receive_buffer):
                    self._on_buffer_full()
        except Unavailable as error:
            self._fail_connection(Unavailable(str(error)))  # final for this connection, not for the broker

    def _describe_close(self) -> str:
        first = next(iter(self._in_flight.values()), None)
        if first and first.name == "ApiVersions":
            return (
                f"{self.address} closed the connection at once: does the listener ask for TLS (security.protocol=SSL)?"
            )
        return f"{self.address} closed the connection" + (f" instead of replying to {first.name}" if first else "")

    def _on_buffer_full(self) -> None:
        """Handles a full buffer: a length, a part of a frame, or its end."""
        if not self._frame_size:
            (self._frame_size,) = _LENGTH.unpack(self._receive_buffer)
            if not 4 <= self._frame_size <= FRAME_MAX:
                # "HTTP" read as a length is 1.2 GB.
                self._fail_connection(Unavailable(f"{self.address} does not speak the Kafka protocol", final=True))
                return
            begun = self._buffers.reuse(self._frame_size)
            self._receive_buffer, self._received_bytes = (
                begun or memoryview(bytearray(min(self._frame_size, FIRST_BUFFER_BYTES))),
                0,
            )
        elif self._received_bytes < self._frame_size:
            larger = self._buffers.acquire(min(self._frame_size, 2 * self._received_bytes))
            larger[: self._received_bytes] = self._receive_buffer
            self._receive_buffer = larger
        else:
            frame = self._receive_buffer
            self._receive_buffer, self._received_bytes, self._frame_size = memoryview(bytearray(4)), 0, 0
            self._on_response(frame)

    def _on_response(self, frame: memoryview) -> None:
        (number,) = _LENGTH.unpack_from(frame)
        awaited = self._in_flight.pop(number, None)
        if awaited is None:
            self._fail_connection(Unavailable(f"{self.address} sent a reply to no request", final=True))
        elif not awaited.future.done():
            awaited.future.set_result(frame)

    def _fail_connection(self, why: Unavailable) -> Unavailable:
        """Ends the connection, once, and fails all requests in flight. Returns `why` for the caller to raise."""
        if self.closed is None:
            self.closed = why
            self._stream.close()
            self._send_queue = []
            self._all_sent.set()
            for awaited in self._in_flight.values():
                if not awaited.future.done():
                    awaited.future.set_exception(why)
            self._in_flight.clear()
        return why


async def open_connection(net: Net, host: str, port: int, client_id: str, timeout: float) -> BrokerConnection:
    """Opens a connection and fetches its versions. Raises `Unavailable` if no broker that speaks Kafka replies."""
    stream = await net.connect(host, port, timeout)
    connection = BrokerConnection(stream, f"{host}:{port}", client_id)
    try:
        await connection.negotiate(timeout)
    except BaseException:
        connection.close()
        raise
    return connection


def _skip_sent(parts: Sequence[memoryview], sent: int) -> list[memoryview]:
    """Returns the rest of `parts` after `sent` bytes."""
    for at, part in enumerate(parts):
        if sent < len(part):
            return [part[sent:], *parts[at + 1 :]]
        sent -= len(part)
    return []
