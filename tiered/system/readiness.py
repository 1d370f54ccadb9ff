"""Socket readiness: one epoll for all streams of a process, which the event loop sees as a single descriptor.

The event loop's own way, a handle and a context for each event, costs as much as a small request. Without epoll the
event loop does it.
"""

from __future__ import annotations

import select
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Protocol

EVENTS_PER_TURN = 256
"""Limit on the events of one turn: the rest is handled in the next turn, after other work of the event loop."""

Call = Callable[[], None]


class Readiness(Protocol):
    """Callbacks of descriptors. Level-triggered: they are called in every turn in which the descriptor is ready."""

    loop: AbstractEventLoop

    def on_readable(self, descriptor: int, call: Call | None) -> None: ...
    def on_writable(self, descriptor: int, call: Call | None) -> None: ...

    def on_open(self) -> None:
        """Registers one more open descriptor."""

    def on_close(self, descriptor: int) -> None:
        """Removes all callbacks of the descriptor: its number may be used again."""

    def call_after_events(self, call: Call) -> None:
        """Calls `call` once, soon: after the events of this turn if they are handled now, else in the next turn."""


def make_readiness(loop: AbstractEventLoop) -> Readiness:
    """Returns the cheapest implementation for this system."""
    return EpollReadiness(loop) if hasattr(select, "epoll") else LoopReadiness(loop)


class LoopReadiness:
    """Readiness from the event loop."""

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

    def call_after_events(self, call: Call) -> None:
        self.loop.call_soon(call)


class EpollReadiness:
    """Readiness from an epoll of this process, which exists while any descriptor is open."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self._epoll: select.epoll | None = None
        self._open = 0
        self._readers: dict[int, Call] = {}
        self._writers: dict[int, Call] = {}
        self._new_descriptors: set[int] = set()
        """Descriptors that were registered in this turn: events found earlier belong to closed descriptors of the same
        number."""
        self._after_events: list[Call] = []
        self._is_dispatching = False

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

    def call_after_events(self, call: Call) -> None:
        if self._is_dispatching:
            self._after_events.append(call)
        else:
            self.loop.call_soon(call)

    def _watch(self, descriptor: int, calls: dict[int, Call], call: Call | None) -> None:
        """Sets or removes a callback. Without one the descriptor is unregistered: epoll always reports a dead
        connection."""
        readers, writers, epoll = self._readers, self._writers, self._epoll
        assert epoll is not None
        before = _events_of(descriptor, readers, writers)
        if call:
            calls[descriptor] = call
        elif calls.pop(descriptor, None) is None:
            return
        events = _events_of(descriptor, readers, writers)
        if not events:
            epoll.unregister(descriptor)
        elif not before:
            epoll.register(descriptor, events)
            self._new_descriptors.add(descriptor)
        elif events != before:
            epoll.modify(descriptor, events)

    def _dispatch_ready(self) -> None:
        """Calls the callbacks of ready descriptors. Catches each one's errors, as the event loop's handles do."""
        epoll, readers, writers, new_descriptors = self._epoll, self._readers, self._writers, self._new_descriptors
        assert epoll is not None
        new_descriptors.clear()
        events = epoll.poll(0, EVENTS_PER_TURN)
        self._is_dispatching = True
        try:
            for descriptor, event in events:
                if descriptor in new_descriptors:
                    continue
                try:
                    if event & ~select.EPOLLOUT and (call := readers.get(descriptor)):
                        call()
                    is_new = descriptor in new_descriptors
                    if event & ~select.EPOLLIN and not is_new and (call := writers.get(descriptor)):
                        call()
                except Exception as error:  # noqa: BLE001
                    self._report(error)
        finally:
            self._is_dispatching = False
        calls, self._after_events = self._after_events, []
        for call in calls:
            try:
                call()
            except Exception as error:  # noqa: BLE001
                self._report(error)

    def _report(self, error: Exception) -> None:
        self.loop.call_exception_handler({"message": "a callback of a socket failed", "exception": error})


def _events_of(descriptor: int, readers: dict[int, Call], writers: dict[int, Call]) -> int:
    return (select.EPOLLIN if descriptor in readers else 0) | (select.EPOLLOUT if descriptor in writers else 0)
