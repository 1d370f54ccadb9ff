"""Rule R6 at start: does the incarnation that the metadata log names still answer? Asked by one small HTTP GET."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson

from tiered.errors import Unavailable
from tiered.ids import incarnation_digest
from tiered.ports import Net, Stream

PATH = "/tiered/v1/node"
TIMEOUT_SECONDS = 2.0
ANSWER_BYTES_MAX = 64 * 1024
LOOPBACK_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


async def is_answering(net: Net, http: str, incarnation: str) -> bool:
    """Whether `incarnation` answers at `http` (HOST:PORT). Silence, or anybody else there, is a no. Neither side says
    it: whoever is there now, and whoever asks there, learns a digest."""
    host, _, port = http.rpartition(":")
    host = host.strip("[]")
    if not port.isdecimal():
        return False
    try:
        stream = await net.connect(LOOPBACK_ADDRESSES.get(host, host), int(port), TIMEOUT_SECONDS)
    except Unavailable:
        return False
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await _send(stream, f"GET {PATH} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n".encode())
            answer = await _receive(stream)
    except (Unavailable, TimeoutError):
        return False
    finally:
        stream.close()
    return _parse_digest(answer) == incarnation_digest(incarnation)


async def _send(stream: Stream, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        sent = stream.sendmsg([rest])
        if sent is None:
            await _wait_ready(stream.on_writable)
        else:
            rest = rest[sent:]


async def _receive(stream: Stream) -> bytes:
    """Everything up to the end of the stream, or as much as an honest answer can be."""
    answer = bytearray()
    window = memoryview(bytearray(4096))
    while len(answer) < ANSWER_BYTES_MAX:
        count = stream.recv_into(window)
        if count is None:
            await _wait_ready(stream.on_readable)
        elif count == 0:
            break
        else:
            answer += window[:count]
    return bytes(answer)


async def _wait_ready(register: Callable[[Callable[[], None] | None], None]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    register(wake)
    try:
        await future
    finally:
        register(None)


def _parse_digest(answer: bytes) -> str:
    """The incarnation's digest in an HTTP answer; "" when it is not the answer of a broker."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
        return ""
    start, end = body.find(b"{"), body.rfind(b"}")
    try:
        found = orjson.loads(body[start : end + 1])
    except orjson.JSONDecodeError:
        return ""
    named = found.get("incarnation_sha256") if isinstance(found, dict) else None
    return named if isinstance(named, str) else ""
