"""Tests of ids for idempotent producers: none is given twice, and no producer waits without a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.scenario import run_by
from tests.sim.harness.loop import SimLoop
from tiered.controller.requests import AllocateProducerIds
from tiered.coordination.producer_ids import BLOCK_SECONDS, ProducerIds
from tiered.errors import Code, Refused
from tiered.metadata.changes import ProducerIdsAllocated

COUNT = 3


class Blocks:
    """A controller that allocates small blocks, each after some time."""

    def __init__(self) -> None:
        self.requests: list[AllocateProducerIds] = []
        self.seconds = 1.0
        self.refusal: Refused | None = None

    async def submit(self, request: Any, timeout: float = 0) -> Any:
        self.requests.append(request)
        await asyncio.sleep(self.seconds)
        if self.refusal is not None:
            raise self.refusal
        return ProducerIdsAllocated(7, COUNT * (len(self.requests) - 1), COUNT)


def run(scenario: Callable[[Blocks, ProducerIds], Awaitable[None]]) -> None:
    async def main() -> None:
        blocks = Blocks()
        await scenario(blocks, ProducerIds(blocks, 7))

    SimLoop(1).run(main())


@run_by(run)
async def test_producers_at_once_get_all_ids_of_a_block_before_the_next(blocks: Blocks, ids: ProducerIds) -> None:
    found = await asyncio.gather(*(ids.next_id() for _ in range(2 * COUNT + 1)))
    assert sorted(found) == list(range(2 * COUNT + 1))
    assert blocks.requests == [AllocateProducerIds(7)] * 3


@run_by(run)
async def test_refusal_reaches_the_producer_and_the_next_one_tries_again(blocks: Blocks, ids: ProducerIds) -> None:
    blocks.refusal = Refused(Code.COORDINATOR_NOT_AVAILABLE, "no controller")
    with pytest.raises(Refused, match="no controller"):
        await ids.next_id()
    blocks.refusal = None
    assert await ids.next_id() == COUNT


@run_by(run)
async def test_producer_behind_others_waits_no_longer_than_the_limit(blocks: Blocks, ids: ProducerIds) -> None:
    blocks.seconds = 10 * BLOCK_SECONDS
    began = asyncio.get_running_loop().time()
    found = await asyncio.gather(*(ids.next_id() for _ in range(3)), return_exceptions=True)
    assert [each.code for each in found if isinstance(each, Refused)] == [Code.REQUEST_TIMED_OUT] * 3
    assert asyncio.get_running_loop().time() - began == pytest.approx(BLOCK_SECONDS)
