"""Intervals of write-ahead chains that are short enough for a run: chains are trimmed, and those of dead brokers are
deleted, while records are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType

from tests.sim.cluster.observer import patched
from tiered.upkeep import chain_deletion
from tiered.wal import trimming

SECOND_NS = 1_000_000_000
INTERVALS: tuple[tuple[ModuleType, str, float], ...] = (
    (chain_deletion, "TRIM_SECONDS", 2.0),
    (chain_deletion, "COLLECT_SECONDS", 5.0),
    (trimming, "LISTED_NS", 5 * SECOND_NS),
    (trimming, "STEP_NS", SECOND_NS),
)
"""The list of a simulated bucket lacks nothing, so that objects need not be old."""


def _replace(value: float, _: float) -> float:
    return value


@contextmanager
def short_chain_intervals() -> Iterator[None]:
    """Makes the upkeep of chains act often, within the context."""
    with ExitStack() as hooks:
        for owner, name, value in INTERVALS:
            hooks.enter_context(patched(owner, name, partial(_replace, value)))
        yield
