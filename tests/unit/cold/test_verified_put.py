"""Tests of the checked put of a segment object (I20): no manifest names an object whose bytes nobody has seen."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.scenario import run_by
from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tiered.cold.verified_put import put_verified
from tiered.errors import Unavailable
from tiered.object_store.faulty import FaultKind, FaultRule, Faults, FaultyStore
from tiered.object_store.memory import MemoryStore
from tiered.ports import ConditionFailed, Conflict, NotFound, PutResult, Unknown, describe_failed_put

LOG, TAIL = b"log" * 50, b"indexes and a footer"


def run(scenario: Callable[[FaultyStore], Coroutine[Any, Any, None]], *rules: FaultRule) -> None:
    loop = SimLoop(1)
    clock, faults = SimClock(loop), Faults()
    faults.rules[:] = rules
    loop.run(scenario(FaultyStore(MemoryStore(clock), faults, clock)))


@run_by(run)
async def test_object_has_the_log_part_before_the_tail(store: FaultyStore) -> None:
    assert await put_verified(store, "k", LOG, TAIL) == len(LOG) + len(TAIL)
    found = await store.get("k", 0, 1_000)
    assert found.data == LOG + TAIL  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "verbs"),
    [
        (FaultKind.ERROR, ("upload",)),
        (FaultKind.LOST_REPLY, ("upload",)),
        (FaultKind.FLIPPED, ("get",)),
        (FaultKind.TRUNCATED, ("get",)),
    ],
)
def test_object_that_was_not_read_back_whole_is_unavailable(kind: FaultKind, verbs: tuple[str, ...]) -> None:
    async def scenario(store: FaultyStore) -> None:
        with pytest.raises(Unavailable, match="k"):
            await put_verified(store, "k", LOG, TAIL)

    run(scenario, FaultRule(kind, verbs))


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (Unknown("Not a directory"), "Not a directory"),
        (ConditionFailed(), "the object exists, or has another version"),
        (Conflict(), "another put was in its way"),
        (NotFound(), "the store has no such bucket or object"),
    ],
)
def test_failed_put_is_told_in_words(result: PutResult, words: str) -> None:
    assert describe_failed_put(result) == words
