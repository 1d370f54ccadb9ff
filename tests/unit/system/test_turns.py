"""Tests of long work in pieces: how much a turn of the event loop takes of it, and in which order the pieces run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.scenario import run_by
from tiered.system.clock import SystemClock
from tiered.system.turns import (
    CLIENT,
    GATHER_SECONDS,
    PIECE_SECONDS,
    TASKS_PER_TURN,
    TURN_SECONDS,
    Turns,
    TurnShare,
    each_of,
)


class WorkLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while work is `busy`, however slow the machine is."""

    now = 1000.0

    def time(self) -> float:
        return self.now


class WorkClock(SystemClock):
    """The CPU time is the time of the event loop."""

    def cpu_ns(self) -> int:
        return int(asyncio.get_running_loop().time() * 1e9)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=WorkLoop) as runner:
        runner.run(scenario())


def busy(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, WorkLoop)
    loop.now += seconds


async def turns_of(loop_turns: list[int], ended: asyncio.Event) -> None:
    """Counts the turns of the event loop."""
    while not ended.is_set():
        loop_turns[0] += 1
        await asyncio.sleep(0)


@run_by(run)
async def test_other_tasks_run_between_long_pieces() -> None:
    turns, ended, seen, loop_turns = Turns(WorkClock()), asyncio.Event(), list[int](), [0]

    async def work() -> None:
        for _ in range(3):
            await turns.wait_turn()
            busy(TURN_SECONDS)
            seen.append(loop_turns[0])

    counting = asyncio.create_task(turns_of(loop_turns, ended))
    await asyncio.gather(*(work() for _ in range(4)))
    ended.set()
    await counting
    assert len(seen) == 12 and len(set(seen)) == 12, "no two pieces in one turn"


@run_by(run)
async def test_short_pieces_share_a_turn() -> None:
    turns, loop_turns, ended = Turns(WorkClock()), [0], asyncio.Event()
    counting = asyncio.create_task(turns_of(loop_turns, ended))
    await asyncio.sleep(0)
    before = loop_turns[0]
    for _ in range(100):
        await turns.wait_turn()
    assert loop_turns[0] == before
    ended.set()
    await counting


@run_by(run)
async def test_small_tasks_that_wait_share_a_turn() -> None:
    """Work that waits does not make a turn of each small task."""
    turns, ended, loop_turns = Turns(WorkClock()), asyncio.Event(), [0]
    requests = asyncio.gather(*(turns.wait_next_turn() for _ in range(TASKS_PER_TURN * 4)))
    counting = asyncio.create_task(turns_of(loop_turns, ended))
    await requests
    ended.set()
    await counting
    assert loop_turns[0] <= 12, "a turn for a batch, not for a task"


@run_by(run)
async def test_task_that_wakes_too_late_in_its_turn_keeps_its_place() -> None:
    """The first task takes the time of the turn. Later calls of the same client do not overtake the second."""
    turns, order, loop_turns, ended = Turns(WorkClock()), list[tuple[str, int]](), [0], asyncio.Event()
    CLIENT.set(turns.make_share("host"))

    async def request(name: str) -> None:
        await turns.wait_next_turn()
        order.append((name, loop_turns[0]))
        busy(GATHER_SECONDS)

    first = asyncio.gather(*map(request, "abc"))
    counting = asyncio.create_task(turns_of(loop_turns, ended))
    while not order:
        await asyncio.sleep(0)
    await asyncio.gather(first, request("d"))
    ended.set()
    await counting
    assert [name for name, _ in order] == ["a", "b", "c", "d"]
    assert len({turn for _, turn in order}) == 4, "one long piece a turn"


@run_by(run)
async def test_work_after_a_long_decoding_waits_for_others() -> None:
    """A later request of the same connection does not overtake it."""
    turns, order = Turns(WorkClock()), list[str]()

    async def request(name: str, *, is_large: bool) -> None:
        await (turns.wait_next_turn() if is_large else turns.wait_turn())
        order.append(name)

    work = asyncio.gather(request("large", is_large=True), request("small", is_large=False))
    await asyncio.sleep(0)
    assert order == [], "the event loop has read from its sockets once meanwhile"
    await work
    assert order == ["large", "small"]


@run_by(run)
async def test_waiting_work_runs_in_the_order_of_arrival() -> None:
    turns, order, share = Turns(WorkClock()), list[str](), TurnShare()
    assert turns.has_time()
    for name in "abc":
        turns.run_later(lambda name=name: order.append(name), share)  # type: ignore[misc]
    assert not turns.has_time(), "who comes later does not overtake"
    while len(order) < 3:
        await asyncio.sleep(0)
    assert order == ["a", "b", "c"]


@run_by(run)
async def test_cancelled_work_delays_no_other() -> None:
    turns = Turns(WorkClock())
    assert turns.has_time()
    busy(TURN_SECONDS)
    waits = [asyncio.create_task(turns.wait_turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waits[0].cancel()
    await asyncio.gather(*waits[1:])
    assert turns.has_time()


@run_by(run)
async def test_small_work_does_not_wait_for_the_backlog_of_other_clients() -> None:
    """All are connections of one host, and each of the others has more work than the newcomer."""
    turns, done = Turns(WorkClock()), list[str]()

    async def request(name: str, share: TurnShare, seconds: float) -> None:
        CLIENT.set(share)
        for _ in range(3):
            await turns.wait_turn()
            busy(seconds)
        done.append(name)

    crowd = [turns.make_share("host") for _ in range(20)]
    backlog = [asyncio.create_task(request("large", share, 0.002)) for share in crowd for _ in range(5)]
    while done.count("large") < 20:
        await asyncio.sleep(0)
    await request("small", turns.make_share("host"), 0.0)
    before = done.index("small")
    await asyncio.gather(*backlog)
    assert before <= 20 + 12, "three turns of its own, and a few pieces of others in between"


@run_by(run)
async def test_work_that_waits_is_not_overtaken_for_good() -> None:
    """Newcomers are before a client that used the turns, but not before one whose work waits for long."""
    now = asyncio.get_running_loop().time()
    host = TurnShare()
    heavy, newcomer = TurnShare(host), TurnShare(host)
    heavy.add(1.0, now)
    assert newcomer.delay(now) < heavy.delay(now) < newcomer.delay(now + 20) + 20
    for seconds in range(1, 100):
        heavy.add(1.0, now + seconds)
    assert heavy.delay(now + 100) < 25
    assert heavy.used_seconds(now + 150) < 1e-9, "forgotten"


@run_by(run)
async def test_connections_that_come_and_go_share_what_their_host_used() -> None:
    turns, order = Turns(WorkClock()), list[str]()
    now = asyncio.get_running_loop().time()
    first = turns.make_share("busy")
    first.add(1.0, now)
    assert turns.has_time()
    turns.run_later(lambda: order.append("busy"), turns.make_share("busy"))
    turns.run_later(lambda: order.append("other"), turns.make_share("other"))
    del first
    while len(order) < 2:
        await asyncio.sleep(0)
    assert order == ["other", "busy"]


@pytest.mark.parametrize("is_of_broker", [False, True])
@run_by(run)
async def test_piece_of_a_loop_ends_by_time(*, is_of_broker: bool) -> None:
    turns, ended, loop_turns = Turns(WorkClock()), asyncio.Event(), [0]
    counting = asyncio.create_task(turns_of(loop_turns, ended))
    await asyncio.sleep(0)
    seen = list[int]()
    assert turns.has_time(), "the turn begins"
    async for number in each_of(range(9)) if is_of_broker else turns.each_of(range(9)):
        seen.append(loop_turns[0])
        busy(PIECE_SECONDS if number == 6 else PIECE_SECONDS / 3 * 1.01)
        if not is_of_broker:
            busy(TURN_SECONDS * (number in (2, 5)))
    ended.set()
    await counting
    pieces = [len([turn for turn in seen if turn == each]) for each in dict.fromkeys(seen)]
    assert pieces == [3, 3, 1, 2] if is_of_broker else pieces == [3, 3, 3], "a piece ends, or its turn has time left"
