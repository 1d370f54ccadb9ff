"""Tests of subtasks: a caller that is cancelled ends, even in the turn in which its subtask fails."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import run_alone, run_by
from tiered.errors import Fenced
from tiered.subtask import run_subtask


async def failing_group(go: asyncio.Event) -> None:
    async def fail() -> None:
        await go.wait()
        raise Fenced("another one is there")

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        group.create_task(asyncio.Event().wait())


@run_by(run_alone)
async def test_caller_gets_result_and_error_of_the_subtask() -> None:
    go = asyncio.Event()
    go.set()
    with pytest.raises(BaseExceptionGroup) as caught:
        await run_subtask(failing_group(go), "work")
    assert isinstance(caught.value.exceptions[0], Fenced)
    assert await run_subtask(asyncio.sleep(0, 42), "work") == 42
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


@pytest.mark.parametrize("turns", range(4))
@run_by(run_alone)
async def test_cancellation_wins_over_an_error_of_the_same_turn(*, turns: int) -> None:
    go = asyncio.Event()
    caller = asyncio.create_task(run_subtask(failing_group(go), "work"))
    await asyncio.sleep(0.001)
    go.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert asyncio.all_tasks() == {asyncio.current_task()}
