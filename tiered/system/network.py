"""The Net port on raw non-blocking TCP sockets."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import socket
from collections.abc import Callable, Sequence

from tiered.errors import Unavailable
from tiered.log_limiter import LogLimiter
from tiered.ports import Buffer, FileSlice, Stream, Subject
from tiered.system.clock import SystemClock
from tiered.system.descriptors import OUT_OF_DESCRIPTORS, log_accept_failure
from tiered.system.readiness import Readiness, make_readiness

log = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTS_PER_EVENT = 64
ACCEPT_TURN_SECONDS = 0.0002
"""Time of new connections in one turn of the event loop. After it, the others wait for the next turn."""
ACCEPT_PAUSE_SECONDS = 1.0
SEND_FILE_BYTES = 40 * 1024
"""Bytes of one sendfile call: per byte it costs a third less than larger calls, and half of smaller ones.

The last call takes up to twice as much, because a small call after it would cost more.
"""
SEND_FILE_TURN_BYTES = 1 << 20
POLL_ENDED: int = getattr(select, "POLLRDHUP", 0)
"""Event of a socket whose other side has ended the stream. Linux has it."""
MSG_MORE = getattr(socket, "MSG_MORE", 0)
PARTS_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)


def bind_listener(family: int, address: tuple[str, int]) -> socket.socket:
    """Returns a socket that listens at an address. Raises `Unavailable`."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(BACKLOG)
        return sock
    except OSError as error:
        sock.close()
        in_use = error.errno == errno.EADDRINUSE  # the process that has the port may end
        why = f"cannot listen on {address[0]}:{address[1]}: {error.strerror}"
        raise Unavailable(why, final=not in_use) from None


class SocketNet:
    """TCP on raw non-blocking sockets. `listening` is a socket that listens already, which `listen` takes instead of a
    new one: the processes of a machine share it."""

    def __init__(self, listening: socket.socket | None = None) -> None:
        self._listening = listening
        self._readiness: Readiness | None = None
        self._log_limiter = LogLimiter(SystemClock())

    def _get_readiness(self) -> Readiness:
        loop = asyncio.get_running_loop()
        if self._readiness is None or self._readiness.loop is not loop:
            self._readiness = make_readiness(loop)
        return self._readiness

    async def listen(self, host: str, port: int, on_accept: Callable[[Stream], None]) -> SocketListener:
        sock = self._listening
        if sock is None:
            family, address = await _resolve(host, port, socket.AI_PASSIVE)
            sock = bind_listener(family, address)
        return SocketListener(sock, on_accept, self._get_readiness(), self._log_limiter)

    async def connect(self, host: str, port: int, timeout: float) -> SocketStream:
        try:
            async with asyncio.timeout(timeout):
                family, address = await _resolve(host, port, 0)
                sock = socket.socket(family, socket.SOCK_STREAM)
                try:
                    sock.setblocking(False)
                    await asyncio.get_running_loop().sock_connect(sock, address)
                    return SocketStream(sock, self._get_readiness())
                except BaseException:
                    sock.close()
                    raise
        except OSError as error:  # TimeoutError is one; asyncio's own text would repeat the address
            why = os.strerror(error.errno) if error.errno else "timeout"
            refused = isinstance(error, ConnectionRefusedError)
            raise Unavailable(f"cannot connect to {host}:{port}: {why}", refused=refused) from None

    def call_after_streams(self, call: Callable[[], None]) -> None:
        self._get_readiness().call_after_events(call)


async def _resolve(host: str, port: int, flags: int) -> tuple[int, tuple[str, int]]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except OSError as error:
        raise Unavailable(f"cannot resolve {host}: {error.strerror}") from None
    except UnicodeError:  # a label that is empty or too long
        raise Unavailable(f"cannot resolve {host}: it is no name of a host") from None
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, address  # type: ignore[return-value]


class SocketListener:
    """A listening socket that passes each connection to `accepted`."""

    def __init__(
        self, sock: socket.socket, accepted: Callable[[Stream], None], ready: Readiness, limiter: LogLimiter
    ) -> None:
        self._sock = sock
        self._on_accept = accepted
        self._readiness = ready
        self._log_limiter = limiter
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self.host, self.port = sock.getsockname()[:2]
        ready.on_open()  # creates the epoll before the first connection: it takes a descriptor, and may fail
        self._resume()

    def close(self) -> None:
        if self._pause:
            self._pause.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._readiness.on_close(self._sock.fileno())
        self._sock.close()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        ends = self._loop.time() + ACCEPT_TURN_SECONDS
        for _ in range(ACCEPTS_PER_EVENT):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS:
                    raise
                log_accept_failure(self._log_limiter, error)
                self._loop.remove_reader(self._sock.fileno())
                self._pause = self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._resume)
                return
            sock.setblocking(False)
            self._on_accept(SocketStream(sock, self._readiness))
            if self._loop.time() >= ends:
                return


class SocketStream:
    """One connection. A reset by the peer raises `Unavailable`. At an orderly end `recv_into` returns 0."""

    subject: Subject = ()

    def __init__(self, sock: socket.socket, ready: Readiness) -> None:
        self._sock = sock
        self._readiness = ready
        ready.on_open()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            host, port = sock.getpeername()[:2]
            # A listener for both families of addresses shows those of IPv4 so.
            self.peer = f"{host.removeprefix('::ffff:') if '.' in host else host}:{port}"
        except OSError:  # the peer has reset the connection already: the first read reports it
            self.peer = "gone"

    def recv_into(self, buffer: memoryview) -> int | None:
        try:
            return self._sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._connection_lost(error) from None

    def sendmsg(self, parts: Sequence[Buffer], *, more: bool = False) -> int | None:
        if len(parts) > PARTS_MAX:
            parts = parts[:PARTS_MAX]
        try:
            if len(parts) == 1 and not more:
                return self._sock.send(parts[0])
            return self._sock.sendmsg(parts, (), MSG_MORE) if more else self._sock.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._connection_lost(error) from None

    def send_file(self, slice: FileSlice) -> int | None:
        """Sends up to 1 MiB of the slice from its start, in calls of 40 KiB or a little more, until the socket is
        full."""
        position, descriptor, sock = slice.start, slice.file.fileno(), self._sock.fileno()
        if descriptor < 0:
            return self.sendmsg([slice.file.pread(position, min(slice.length, SEND_FILE_BYTES))])
        end = position + min(slice.length, SEND_FILE_TURN_BYTES)
        try:
            while position < end:
                requested = SEND_FILE_BYTES if end - position > 2 * SEND_FILE_BYTES else end - position
                sent = os.sendfile(sock, descriptor, position, requested)
                if not sent:
                    raise Unavailable(f"file is shorter than its slice file={slice.file.name}")
                position += sent
                if sent < requested:
                    break
        except (BlockingIOError, InterruptedError):
            return position - slice.start or None
        except OSError as error:
            raise self._connection_lost(error) from None
        return position - slice.start

    def has_ended(self) -> bool:
        if not POLL_ENDED or self._sock.fileno() < 0:
            return False
        poller = select.poll()
        poller.register(self._sock, POLL_ENDED)
        return bool(poller.poll(0))

    def on_readable(self, call: Callable[[], None] | None) -> None:
        if call or self._sock.fileno() >= 0:
            self._readiness.on_readable(self._sock.fileno(), call)

    def on_writable(self, call: Callable[[], None] | None) -> None:
        if call or self._sock.fileno() >= 0:
            self._readiness.on_writable(self._sock.fileno(), call)

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._readiness.on_close(self._sock.fileno())
            self._sock.close()

    def _connection_lost(self, error: OSError) -> Unavailable:
        return Unavailable(f"connection lost peer={self.peer} error={error.strerror}", final=True)
