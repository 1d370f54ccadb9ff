"""Which sockets are ready: one epoll for all streams of a process, which the loop sees as a single descriptor.

The loop's own way, a handle and a context for each event, costs as much as a small request. Where there is no epoll the
loop does it.
"""

from __future__ import annotations

import select
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Protocol

EVENTS_PER_TURN = 256
"""After so many the loop does other work; what is left over is ready in the next turn."""

Call = Callable[[], None]


class Readiness(Protocol):
    """Call-backs of descriptors, level-triggered: called in every turn in which the descriptor is ready."""

    loop: AbstractEventLoop

    def on_readable(self, descriptor: int, call: Call | None) -> None: ...
    def on_writable(self, descriptor: int, call: Call | None) -> None: ...

    def on_open(self) -> None:
        """A descriptor comes under watch, for as long as it is open."""

    def on_close(self, descriptor: int) -> None:
        """Nobody is called for the descriptor any more, whose number another may have next."""


def make_readiness(loop: AbstractEventLoop) -> Readiness:
    """The cheapest there is on this system."""
    return EpollReadiness(loop) if hasattr(select, "epoll") else LoopReadiness(loop)


class LoopReadiness:
    """By the loop."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop

    def on_readable(self, descriptor: int, call: Call | None) -> None:
        if call:
            self.loop.add_reader(descriptor, call)
        else:
            self.loop.remove_reader(descriptor)

    def on_writable(self, descriptor: int, call: Call | None) -> None:
        if call:
            self.loop.add_writer(descriptor, call)
        else:
            self.loop.remove_writer(descriptor)

    def on_open(self) -> None:
        pass

    def on_close(self, descriptor: int) -> None:
        self.loop.remove_reader(descriptor)
        self.loop.remove_writer(descriptor)


class EpollReadiness:
    """By an epoll of our own. It is there while anything is open."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self._epoll: select.epoll | None = None
        self._open = 0
        self._readers: dict[int, Call] = {}
        self._writers: dict[int, Call] = {}
        self._new_descriptors: set[int] = set()
        """Numbers that began to be watched in this turn: events found before are of their predecessors."""

    def on_readable(self, descriptor: int, call: Call | None) -> None:
        self._watch(descriptor, self._readers, call)

    def on_writable(self, descriptor: int, call: Call | None) -> None:
        self._watch(descriptor, self._writers, call)

    def on_open(self) -> None:
        if self._epoll is None:
            self._epoll = select.epoll()
            self.loop.add_reader(self._epoll.fileno(), self._dispatch_ready)
        self._open += 1

    def on_close(self, descriptor: int) -> None:
        self._watch(descriptor, self._readers, None)
        self._watch(descriptor, self._writers, None)
        self._open -= 1
        if not self._open and self._epoll is not None:
            self.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _watch(self, descriptor: int, calls: dict[int, Call], call: Call | None) -> None:
        """With nobody to call the descriptor is taken out: that a connection is dead cannot be masked."""
        readers, writers, epoll = self._readers, self._writers, self._epoll
        assert epoll is not None
        before = descriptor in readers or descriptor in writers
        if call:
            calls[descriptor] = call
        elif calls.pop(descriptor, None) is None:
            return
        events = (select.EPOLLIN if descriptor in readers else 0) | (select.EPOLLOUT if descriptor in writers else 0)
        if not events:
            epoll.unregister(descriptor)
        elif before:
            epoll.modify(descriptor, events)
        else:
            epoll.register(descriptor, events)
            self._new_descriptors.add(descriptor)

    def _dispatch_ready(self) -> None:
        """Calls for what is ready now. The boundary of each call, as the loop's handles are otherwise."""
        epoll, readers, writers, fresh = self._epoll, self._readers, self._writers, self._new_descriptors
        assert epoll is not None
        fresh.clear()
        for descriptor, event in epoll.poll(0, EVENTS_PER_TURN):
            if descriptor in fresh:
                continue
            try:
                if event & ~select.EPOLLOUT and (call := readers.get(descriptor)):
                    call()
                if event & ~select.EPOLLIN and descriptor not in fresh and (call := writers.get(descriptor)):
                    call()
            except Exception as error:  # noqa: BLE001
                self.loop.call_exception_handler({"message": "a call-back of a socket failed", "exception": error})
