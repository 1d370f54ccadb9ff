"""Contract of readiness, by the event loop and by an epoll of our own."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from tests.scenario import run_by
from tiered.system.readiness import EpollReadiness, LoopReadiness, Readiness

KINDS = [LoopReadiness, *([EpollReadiness] if hasattr(select, "epoll") else [])]
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> type[LoopReadiness | EpollReadiness]:
    chosen: type[LoopReadiness | EpollReadiness] = request.param
    return chosen


def run(
    kind: type[LoopReadiness | EpollReadiness], scenario: Callable[[Readiness, Pair, Pair], Awaitable[None]]
) -> None:
    """Runs `scenario` with two connected pairs, of which the first of each is watched."""

    async def whole() -> None:
        ready = kind(asyncio.get_running_loop())
        one, two = socket.socketpair(), socket.socketpair()
        try:
            ready.on_open()
            ready.on_open()
            async with asyncio.timeout(120):
                await scenario(ready, one, two)
        finally:
            for each in (one[0], two[0]):
                if each.fileno() >= 0:
                    ready.on_close(each.fileno())
            for each in (*one, *two):
                each.close()

    asyncio.run(whole())


@run_by(run, "kind")
async def test_callback_runs_in_every_turn_until_it_is_removed(ready: Readiness, one: Pair, two: Pair) -> None:
    calls: list[str] = []
    third = asyncio.Event()

    def readable() -> None:
        calls.append("readable")
        if len(calls) == 3:
            ready.on_readable(one[0].fileno(), None)
            third.set()

    ready.on_readable(one[0].fileno(), readable)
    one[1].send(b"x")
    await third.wait()
    await turn(ready, two)
    assert calls == ["readable"] * 3


@run_by(run, "kind")
async def test_call_after_events_comes_once_behind_those_of_its_turn(ready: Readiness, one: Pair, two: Pair) -> None:
    calls: list[str] = []
    done = asyncio.Event()

    def readable(name: str, pair: Pair) -> None:
        calls.append(name)
        pair[0].recv(1)
        ready.call_after_events(lambda: calls.append("after"))

    def end() -> None:
        calls.append("no event")
        done.set()

    for name, pair in (("one", one), ("two", two)):
        ready.on_readable(pair[0].fileno(), partial(readable, name, pair))
        pair[1].send(b"x")
    await turn(ready, two)
    assert sorted(calls[:2]) == ["one", "two"]
    assert calls[2:] == ["after"] * 2
    ready.call_after_events(end)
    assert calls[4:] == [], "no event is handled now"
    await done.wait()
    assert calls[4:] == ["no event"]


def test_calls_after_events_come_before_the_next_turn_and_past_errors() -> None:
    async def scenario(ready: Readiness, one: Pair, two: Pair) -> None:
        calls: list[str] = []
        errors: list[object] = []
        done = asyncio.Event()
        ready.loop.set_exception_handler(lambda _, context: errors.append(context.get("exception")))

        def fail() -> None:
            raise ValueError("of a call")

        def readable() -> None:
            one[0].recv(1)
            ready.loop.call_soon(calls.append, "next turn")
            ready.loop.call_soon(done.set)
            for call in (fail, lambda: calls.append("after")):
                ready.call_after_events(call)

        ready.on_readable(one[0].fileno(), readable)
        one[1].send(b"x")
        await done.wait()
        assert calls == ["after", "next turn"]
        assert [str(each) for each in errors] == ["of a call"]

    if hasattr(select, "epoll"):
        run(EpollReadiness, scenario)


@run_by(run, "kind")
async def test_dead_peer_wakes_reader_and_writer(ready: Readiness, one: Pair, two: Pair) -> None:
    read, written = asyncio.Event(), asyncio.Event()
    one[1].close()
    ready.on_readable(one[0].fileno(), read.set)
    ready.on_writable(one[0].fileno(), written.set)
    await read.wait()
    await written.wait()


@run_by(run, "kind")
async def test_failed_callback_is_reported_and_stops_no_other(ready: Readiness, one: Pair, two: Pair) -> None:
    reported: list[Any] = []
    ready.loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    other = asyncio.Event()

    def fails() -> None:
        ready.on_readable(one[0].fileno(), None)
        raise KeyError("one")

    ready.on_readable(one[0].fileno(), fails)
    ready.on_readable(two[0].fileno(), other.set)
    for each in (one, two):
        each[1].send(b"x")
    await other.wait()
    assert [str(each) for each in reported] == ["'one'"]


@run_by(run, "kind")
async def test_events_of_a_closed_descriptor_do_not_reach_its_successor(ready: Readiness, one: Pair, two: Pair) -> None:
    """Both pairs are readable in one turn. The first callback opens a silent connection under the number of the other
    one."""
    done = asyncio.Event()
    wrong: list[str] = []
    near, far = socket.socketpair()

    def first(other: socket.socket) -> None:
        number = other.fileno()
        ready.on_close(number)
        os.dup2(near.fileno(), number)
        ready.on_open()
        ready.on_readable(number, lambda: wrong.append("called"))
        for each in (one[0], two[0]):
            if each is not other:
                ready.on_readable(each.fileno(), None)
        done.set()

    ready.on_readable(one[0].fileno(), lambda: first(two[0]))
    ready.on_readable(two[0].fileno(), lambda: first(one[0]))
    for each in (one, two):
        each[1].send(b"x")
    await done.wait()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    near.close()
    far.close()
    assert not wrong


async def turn(ready: Readiness, pair: Pair) -> None:
    """Waits for one whole turn in which a writable pair was called."""
    called = asyncio.Event()
    ready.on_writable(pair[0].fileno(), called.set)
    await called.wait()
    ready.on_writable(pair[0].fileno(), None)
