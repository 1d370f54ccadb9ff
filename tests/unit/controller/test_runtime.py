"""The runtime: order of replies, group commit, and the end of a shard that lost its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tiered.controller.decision import ControllerResult
from tiered.controller.runtime import ENTRY_CHANGES_MAX, PENDING_MAX, Runtime
from tiered.errors import Code, Fenced, Refused
from tiered.ids import TopicId
from tiered.metadata.changes import Change, TopicForgotten


class Numbers:
    """A shard that allocates numbers: a request for n makes n changes and gets the first number as reply."""

    def __init__(self) -> None:
        self.given = 0

    def decide(self, request: int, now_ms: int) -> ControllerResult[int]:
        if request < 0:
            raise Refused(Code.INVALID_REQUEST, "negative")
        changes = tuple(TopicForgotten(TopicId(str(self.given + i))) for i in range(request))
        return ControllerResult(changes, self.given)

    def apply(self, changes: Sequence[Change], slot: int | None = None) -> None:
        self.given += len(changes)


class SlowLog:
    """Takes one second per entry; `fenced` makes the next append fail."""

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.fenced = False

    async def append(self, changes: Sequence[Change]) -> int:
        await asyncio.sleep(1)
        if self.fenced:
            raise Fenced("another controller")
        self.entries.append(len(changes))
        return len(self.entries) - 1


Scenario = Callable[[Runtime[int], SlowLog, list[int]], Coroutine[Any, Any, None]]


def run(scenario: Scenario) -> None:
    """Runs a scenario beside a runtime; `committed` in it are the slots that were committed."""
    loop = SimLoop(1)

    async def main() -> None:
        log, committed = SlowLog(), list[int]()

        async def note(changes: Sequence[Change], slot: int) -> None:
            committed.append(slot)

        runtime: Runtime[int] = Runtime(Numbers(), log, SimClock(loop), note)
        task = asyncio.ensure_future(runtime.run())
        await scenario(runtime, log, committed)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    loop.run(main())


@run_by(run)
async def test_reply_follows_the_commit(runtime: Runtime[int], log: SlowLog, committed: list[int]) -> None:
    asked = asyncio.ensure_future(runtime.submit(2, 10))
    await asyncio.sleep(0.5)
    assert (asked.done(), committed) == (False, [])
    assert await asked == 0
    assert (committed, log.entries) == ([0], [2])


@run_by(run)
async def test_decisions_during_a_write_go_into_the_next_entry(
    runtime: Runtime[int], log: SlowLog, committed: list[int]
) -> None:
    first = asyncio.ensure_future(runtime.submit(1, 10))
    await asyncio.sleep(0.5)
    rest = await asyncio.gather(*(runtime.submit(1, 10) for _ in range(5)))
    assert (await first, rest) == (0, [1, 2, 3, 4, 5])
    assert log.entries == [1, 5]


@run_by(run)
async def test_entry_is_bounded_and_a_decision_is_never_split(
    runtime: Runtime[int], log: SlowLog, committed: list[int]
) -> None:
    await asyncio.gather(*(runtime.submit(ENTRY_CHANGES_MAX - 1, 10) for _ in range(3)))
    await runtime.submit(2 * ENTRY_CHANGES_MAX, 10)
    assert log.entries == [ENTRY_CHANGES_MAX - 1] * 3 + [2 * ENTRY_CHANGES_MAX]


@run_by(run)
async def test_reply_without_changes_follows_the_earlier_ones(
    runtime: Runtime[int], log: SlowLog, committed: list[int]
) -> None:
    assert await runtime.submit(0, 0.1) == 0
    first = asyncio.ensure_future(runtime.submit(1, 10))
    await asyncio.sleep(0)
    assert await runtime.submit(0, 10) == 1
    assert first.done()


@run_by(run)
async def test_refusal_is_immediate_and_changes_nothing(
    runtime: Runtime[int], log: SlowLog, committed: list[int]
) -> None:
    with pytest.raises(Refused, match="negative"):
        await runtime.submit(-1, 10)
    assert log.entries == []


@run_by(run)
async def test_timeout_means_an_unknown_outcome(runtime: Runtime[int], log: SlowLog, committed: list[int]) -> None:
    with refuses(Code.REQUEST_TIMED_OUT):
        await runtime.submit(1, 0.5)
    await asyncio.sleep(1)
    assert log.entries == [1]


@run_by(run)
async def test_lost_log_ends_the_shard_and_fails_all_requests(
    runtime: Runtime[int], log: SlowLog, committed: list[int]
) -> None:
    log.fenced = True
    answers = [asyncio.ensure_future(runtime.submit(1, 10))]
    await asyncio.sleep(0.5)
    answers.append(asyncio.ensure_future(runtime.submit(1, 10)))
    for answer in await asyncio.gather(*answers, runtime.submit(1, 10), return_exceptions=True):
        assert isinstance(answer, Refused)
        assert answer.code is Code.NOT_CONTROLLER
    with refuses(Code.NOT_CONTROLLER):
        await runtime.submit(1, 10)
    assert committed == []


@run_by(run)
async def test_too_many_waiting_requests_are_refused(runtime: Runtime[int], log: SlowLog, committed: list[int]) -> None:
    waiting = [asyncio.ensure_future(runtime.submit(1, 10)) for _ in range(PENDING_MAX)]
    await asyncio.sleep(0.1)
    with refuses(Code.THROTTLING_QUOTA_EXCEEDED):
        await runtime.submit(1, 10)
    assert await asyncio.gather(*waiting) == list(range(PENDING_MAX))
