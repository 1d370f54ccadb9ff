"""Links between processes of one machine that can be cut: a TCP proxy in user space, in a thread of its own.

There is one listener for each target. The first request of a connection names its broker, so that a link is (origin,
target) although all brokers connect to the same port. The processes of a machine have its links. On a cut link nothing
arrives and nothing is refused; bytes in flight arrive when it heals, as TCP sends them again.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from tests.ports import held_port
from tiered.ids import PROCESS_STEP

CLIENT = 0
"""The origin of a connection that is not of a broker."""
BUCKET = -1
CHUNK = 256 * 1024
RESET = struct.pack("ii", 1, 0)
Link = tuple[int, int]


class LinkProxy:
    """All links. `link_proxy` makes it; its methods may be called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._cut_links: dict[Link, asyncio.Event] = {}
        self._open: dict[asyncio.StreamWriter, Link] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._listeners: dict[int, list[socket.socket]] = {}
        self._listening: dict[socket.socket, None] = {}

    def add(self, node: int, port: int, *, origin: int | None, door: socket.socket | None = None) -> int:
        """Returns the port at which `node`, which listens on `port` of loopback, is reached from now on. While no
        process listens there, connections are refused here too: brokers distinguish a dead broker from a silent one.
        `origin` is the connecting party; None: brokers, which name themselves. A connection without a known origin is
        reset, so that it cannot bypass a cut link. `door` is a socket that is bound to the port, where it has to be a
        certain one."""
        door = door or held_port()  # drawn by its number: Linux takes a port that it chose back when the socket is shut
        door.setblocking(False)
        found: int = door.getsockname()[1]
        self._listeners.setdefault(node, []).append(door)

        async def begin() -> None:
            self._track(asyncio.create_task(self._serve(node, port, door, origin)))

        asyncio.run_coroutine_threadsafe(begin(), self._loop).result(10)
        return found

    def refuse(self, nodes: Iterable[int]) -> None:
        """Makes these refuse connections until a process listens there again."""
        chosen = list(nodes)

        async def now() -> None:
            for node in chosen:
                for door in self._listeners[node]:
                    self._stop_listening(door)

        asyncio.run_coroutine_threadsafe(now(), self._loop).result(10)

    def cut(self, links: Iterable[Link]) -> None:
        """Stops all bytes from the first to the second of each pair."""

        async def now() -> None:
            for link in links:
                self._cut_links.setdefault(link, asyncio.Event())

        asyncio.run_coroutine_threadsafe(now(), self._loop).result(10)

    def mend(self) -> None:
        """Opens all links, and delivers the bytes that were held back."""

        async def now() -> None:
            while self._cut_links:
                self._cut_links.popitem()[1].set()

        asyncio.run_coroutine_threadsafe(now(), self._loop).result(10)

    def reset(self, nodes: Iterable[int]) -> int:
        """Resets every connection from or to these at once; returns how many there were."""
        chosen = set(nodes)

        async def now() -> int:
            broken = [writer for writer, link in self._open.items() if chosen & set(link)]
            for writer in broken:
                _reset_connection(writer)
            return len(broken)

        return asyncio.run_coroutine_threadsafe(now(), self._loop).result(10)

    async def close(self) -> None:
        """Ends everything: first the listeners, then the connections that they accepted meanwhile. Otherwise a socket
        would stay open."""
        for door in list(self._listening):
            self._stop_listening(door)
        await asyncio.sleep(0.05)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for doors in self._listeners.values():
            for door in doors:
                door.close()

    def _track(self, task: asyncio.Task[None]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _serve(self, node: int, port: int, door: socket.socket, origin: int | None) -> None:
        """Listens while the target does. A socket that is shut down stays bound: no other process gets the port."""
        while True:
            await _wait_listening(port)
            door.listen(128)
            self._listening[door] = None
            with suppress(OSError):
                while True:
                    came, _ = await self._loop.sock_accept(door)
                    self._track(asyncio.create_task(self._on_accept(origin, node, port, came, door)))

    def _stop_listening(self, door: socket.socket) -> None:
        """Shuts a listening socket down: on Linux it then refuses, and may listen again. A socket that does not listen
        must not be shut down: its later connections would be too."""
        if door in self._listening:
            del self._listening[door]
            door.shutdown(socket.SHUT_RDWR)

    async def _on_accept(
        self, origin: int | None, node: int, port: int, came: socket.socket, door: socket.socket
    ) -> None:
        reader, writer = await asyncio.open_connection(sock=came)
        head = b""
        with suppress(OSError, EOFError, asyncio.CancelledError):
            if origin is None:
                head, origin = await _read_origin(reader)
            if origin is None:
                _reset_connection(writer)
            elif not await self._forward((origin, node), port, head, reader, writer):
                self._stop_listening(door)
        writer.transport.abort()

    async def _forward(
        self, link: Link, port: int, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Forwards one connection, of which `head` was read, from its origin to the target and back; True if it was
        opened."""
        answers = (link[1], link[0])
        await self._wait_mended(link)
        await self._wait_mended(answers)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            _reset_connection(writer)
            return False
        self._open[writer] = self._open[back] = link
        back.write(head)
        forth = asyncio.create_task(self._pump(link, reader, back))
        home = asyncio.create_task(self._pump(answers, there, writer))
        try:
            await asyncio.wait((forth, home), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (forth, home):
                task.cancel()
            await asyncio.gather(forth, home, return_exceptions=True)
            del self._open[writer], self._open[back]
            back.transport.abort()
        return True

    async def _pump(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._wait_mended(link)
                writer.write(data)
                await writer.drain()

    async def _wait_mended(self, link: Link) -> None:
        while (cut := self._cut_links.get(link)) is not None:
            await cut.wait()


async def _wait_listening(port: int) -> None:
    """Returns once a process listens."""
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.transport.abort()
            return
        await asyncio.sleep(0.01)


def _reset_connection(writer: asyncio.StreamWriter) -> None:
    """Closes with RST instead of FIN."""
    found: socket.socket = writer.get_extra_info("socket")
    with suppress(OSError):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


@contextmanager
def link_proxy() -> Iterator[LinkProxy]:
    """Yields links in a thread of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="wires", daemon=True)
    thread.start()
    made = LinkProxy(loop)
    try:
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(made.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _read_origin(reader: asyncio.StreamReader) -> tuple[bytes, int | None]:
    """Returns the head of the first request, and the machine of the broker that sent it. Requests of a broker name it
    as their client id."""
    head = await reader.readexactly(14)
    (length,) = struct.unpack(">h", head[12:])
    name = await reader.readexactly(max(0, length))
    who, _, node = name.partition(b"-")
    return head + name, int(node) % PROCESS_STEP if who == b"broker" and node.isdigit() else None
