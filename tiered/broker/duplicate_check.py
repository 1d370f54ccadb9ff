"""The check of a start for another live process of this broker (R6): one small HTTP GET, and one call between brokers.

The check refuses only if the incarnation that the metadata log names replies. The check does not find a process that is
cut off. The ids of a machine are checked in the metadata log alone: each process of a second machine with one of them
refuses to start, also those whose own ids are free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson

from tiered.config.settings import Settings
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import PROCESS_STEP, incarnation_digest, machine_of
from tiered.metadata.image import Image
from tiered.metadata.parts.brokers import BrokerImage
from tiered.peers import Peers
from tiered.ports import Net, Stream

PATH = "/tiered/v1/node"
TIMEOUT_SECONDS = 2.0
RESPONSE_BYTES_MAX = 64 * 1024
LOOPBACK_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


async def refuse_duplicate_broker(image: Image, settings: Settings, net: Net, peers: Peers | None) -> None:
    """Raises `Refused` (DUPLICATE_BROKER_REGISTRATION) if another process replies under this node id, or if a broker of
    another machine has one of the ids of this machine."""
    known = image.brokers.get(settings.node_id)
    address = await _find_live_address(known, settings, net, peers) if known is not None and known.alive else ""
    if known is not None and address:
        raise Refused(
            Code.DUPLICATE_BROKER_REGISTRATION,
            f"broker {known.node_id} of this store replies at {address}; stop it first,"
            " or give this one another node.id",
        )

    first = machine_of(settings.node_id, settings.process)
    for process in range(settings.processes):
        taken = image.brokers.get(first + PROCESS_STEP * process)
        if taken is not None and taken.alive and taken.process != process:
            raise Refused(
                Code.DUPLICATE_BROKER_REGISTRATION,
                f"broker {taken.node_id} of this store is process {taken.process} of machine {taken.machine}, and would"
                f" be process {process} of machine {first}: give this machine another node.id",
            )


async def _find_live_address(known: BrokerImage, settings: Settings, net: Net, peers: Peers | None) -> str:
    """Returns the address at which that incarnation replies; "" if it does not.

    HTTP may be open for the broker's own machine only. The listener for brokers is open for all of them.
    """
    if await is_answering(net, known.http, known.incarnation):
        return known.http
    address = known.address(settings.inter_broker_listener_name)
    if peers is None or not address:
        return ""
    try:
        view = await peers.get_controller_view(address, TIMEOUT_SECONDS)
    except (Unavailable, Refused, Corrupt):
        return ""
    return address if (view.node_id, view.incarnation) == (known.node_id, known.incarnation) else ""


async def is_answering(net: Net, http: str, incarnation: str) -> bool:
    """True if `incarnation` replies at `http` (HOST:PORT).

    Both sides only learn a digest: another process may have the address now, and anybody may send the request.
    """
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
            response = await _receive(stream)
    except (Unavailable, TimeoutError):
        return False
    finally:
        stream.close()
    return _parse_digest(response) == incarnation_digest(incarnation)


async def _send(stream: Stream, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        sent = stream.sendmsg([rest])
        if sent is None:
            await _wait_ready(stream.on_writable)
        else:
            rest = rest[sent:]


async def _receive(stream: Stream) -> bytes:
    """Returns all bytes up to the end of the stream; fewer if there are more than a broker sends."""
    response = bytearray()
    window = memoryview(bytearray(4096))
    while len(response) < RESPONSE_BYTES_MAX:
        count = stream.recv_into(window)
        if count is None:
            await _wait_ready(stream.on_readable)
        elif count == 0:
            break
        else:
            response += window[:count]
    return bytes(response)


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


def _parse_digest(response: bytes) -> str:
    """Returns the incarnation's digest in an HTTP response; "" if no broker sent it."""
    head, _, body = response.partition(b"\r\n\r\n")
    if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
        return ""
    start, end = body.find(b"{"), body.rfind(b"}")
    try:
        found = orjson.loads(body[start : end + 1])
    except orjson.JSONDecodeError:
        return ""
    named = found.get("incarnation_sha256") if isinstance(found, dict) else None
    return named if isinstance(named, str) else ""
