"""The connections of HTTPS before the end of their TLS handshake: their number is bounded, by address too.

asyncio tells a server of a connection only after the handshake. So the server takes plain connections here, and begins
each handshake itself. One connection too many ends the oldest of the address that has most of them, as on the listeners
of Kafka.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter as Tally
from collections.abc import Callable

from tiered.networks import network_of
from tiered.system.tls import HANDSHAKE_SECONDS, HANDSHAKES_MAX


class Handshakes:
    """The handshakes of one server. An object is called for each connection, as a factory of protocols is. The
    protocol of `make_connection` gets the encrypted connection. `on_refused` gets the address of one that had to end.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        make_connection: Callable[[], asyncio.Protocol],
        on_refused: Callable[[str], None],
    ) -> None:
        self.context = context
        self.make_connection = make_connection
        self._on_refused = on_refused
        self._waiting: dict[Handshake, None] = {}
        """The oldest one comes first."""
        self._by_host: Tally[str] = Tally()

    def __call__(self) -> Handshake:
        return Handshake(self)

    def begin(self, handshake: Handshake) -> None:
        """Counts a handshake, and ends another one if they are too many."""
        if len(self._waiting) >= HANDSHAKES_MAX:
            most = max(self._by_host, key=self._by_host.__getitem__)
            oldest = next(each for each in self._waiting if each.host == most)
            self.forget(oldest)
            oldest.abort()
            self._on_refused(most)
        self._waiting[handshake] = None
        self._by_host[handshake.host] += 1

    def forget(self, handshake: Handshake) -> None:
        """Counts a handshake no more."""
        if handshake not in self._waiting:
            return
        del self._waiting[handshake]
        self._by_host[handshake.host] -= 1
        if not self._by_host[handshake.host]:
            del self._by_host[handshake.host]

    async def close(self) -> None:
        """Ends all handshakes."""
        waiting = list(self._waiting)
        for handshake in waiting:
            handshake.abort()
        await asyncio.gather(*(each.task for each in waiting if each.task is not None), return_exceptions=True)


class Handshake(asyncio.Protocol):
    """One plain connection, until it is encrypted or ends."""

    def __init__(self, handshakes: Handshakes) -> None:
        self.host = ""
        self.task: asyncio.Task[None] | None = None
        self._handshakes = handshakes
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        peer = transport.get_extra_info("peername")
        self.host, self._transport = network_of(str(peer[0])) if peer else "", transport
        self._handshakes.begin(self)
        self.task = asyncio.get_running_loop().create_task(self._encrypt(transport), name="https handshake")

    def data_received(self, data: bytes) -> None:
        self.abort()  # nothing is read before the handshake: such bytes would count as encrypted

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort()

    def abort(self) -> None:
        """Ends the connection."""
        if self.task is not None:
            self.task.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def _encrypt(self, transport: asyncio.Transport) -> None:
        """Carries out the handshake, and hands the connection over."""
        early = _EarlyBytes()
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                transport, early, self._handshakes.context,
                server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )  # fmt: skip
        except OSError:  # those of OpenSSL, of a lost connection, and of a handshake that takes too long
            transport.abort()
            return
        finally:
            self._handshakes.forget(self)
        if encrypted is None or early.is_lost:
            transport.abort()
            return
        early.hand_over(encrypted, self._handshakes.make_connection())


class _EarlyBytes(asyncio.Protocol):
    """The bytes that come over an encrypted connection before its protocol is there."""

    def __init__(self) -> None:
        self.is_lost = False
        self._data = b""
        self._has_ended = False
        self._successor: asyncio.Protocol | None = None

    def data_received(self, data: bytes) -> None:
        self._data += data

    def eof_received(self) -> None:
        self._has_ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._successor is not None:  # it was lost before it was handed over
            self._successor.connection_lost(exc)

    def hand_over(self, transport: asyncio.Transport, successor: asyncio.Protocol) -> None:
        """Gives the connection and its bytes to its protocol."""
        self._successor = successor
        transport.set_protocol(successor)
        successor.connection_made(transport)
        if self._data:
            successor.data_received(self._data)
        if self._has_ended:
            successor.eof_received()
            transport.close()
