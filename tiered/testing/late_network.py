"""A Net port that delivers what clients send some time later, as a slow network does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tiered.ports import Buffer, FileSlice, Listener, Net, Stream, Subject


class Delay:
    """The delay in force, for all brokers of a cluster."""

    def __init__(self) -> None:
        self.seconds = 0.0


class LateStream:
    """The stream of a client. It reports each time that bytes can be read after the delay in force."""

    def __init__(self, inner: Stream, delay: Delay) -> None:
        self.peer = inner.peer
        self.subject: Subject = inner.subject
        self._inner = inner
        self._delay = delay
        self._call: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def recv_into(self, buffer: memoryview) -> int | None:
        return self._inner.recv_into(buffer)

    def sendmsg(self, parts: Sequence[Buffer], *, more: bool = False) -> int | None:
        return self._inner.sendmsg(parts, more=more)

    def send_file(self, slice: FileSlice) -> int | None:
        return self._inner.send_file(slice)

    def has_ended(self) -> bool:
        return self._inner.has_ended()

    def on_readable(self, call: Callable[[], None] | None) -> None:
        self._call = call
        if self._timer is None:
            self._inner.on_readable(self._report if call is not None else None)

    def _report(self) -> None:
        if self._delay.seconds > 0:
            self._inner.on_readable(None)
            self._timer = asyncio.get_running_loop().call_later(self._delay.seconds, self._deliver)
        elif self._call is not None:
            self._call()

    def _deliver(self) -> None:
        self._timer = None
        if self._call is not None:
            self._inner.on_readable(self._report)
            self._call()

    def on_writable(self, call: Callable[[], None] | None) -> None:
        self._inner.on_writable(call)

    def close(self) -> None:
        self._call = None
        if self._timer is not None:
            self._timer.cancel()
        self._inner.close()


class LateNet:
    """A network for brokers. Connections that arrive at a listener of clients have the delay of `delay`."""

    def __init__(self, inner: Net, delay: Delay) -> None:
        self.opens_for_clients = False
        """True if the listeners that are opened now are those of clients."""
        self._inner = inner
        self._delay = delay
        self.connect = inner.connect
        self.call_after_streams = inner.call_after_streams

    async def listen(self, host: str, port: int, on_accept: Callable[[Stream], None]) -> Listener:
        if not self.opens_for_clients:
            return await self._inner.listen(host, port, on_accept)
        return await self._inner.listen(host, port, lambda stream: on_accept(LateStream(stream, self._delay)))
