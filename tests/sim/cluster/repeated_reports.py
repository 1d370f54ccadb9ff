"""Reports of written markers that come a second time, once the next transaction of their id asks for its own markers.

The sender of markers reports each of them once. The coordinator does not rely on that: a report counts for the
transaction that it names, and for no later one (I14).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tests.sim.cluster.observer import acting_node, patched
from tiered.coordination.transaction_coordinators import TransactionCoordinators
from tiered.transactions.requests import Event, MarkersDue, MarkersWritten

Report = tuple[int, int, MarkersWritten]
"""Partition of `__transaction_state`, its leader epoch, and the markers."""


class RepeatedReports:
    """The reports of all brokers of one run. `count` is how many were repeated."""

    def __init__(self) -> None:
        self.count = 0
        self._last: dict[tuple[int, str], Report] = {}
        """By broker and transactional id: all markers of its last transaction."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Repeats reports within the context."""
        with (
            patched(TransactionCoordinators, "_on_markers_written", self._note),
            patched(TransactionCoordinators, "on_event", self._repeat),
        ):
            yield

    def _note(self, original: Callable[..., None]) -> Any:
        def on_markers_written(coordinators: TransactionCoordinators, *report: Any) -> None:
            partition, epoch, written = report
            original(coordinators, *report)
            known = self._last.get((acting_node(), written.transactional_id))
            if known is not None and _producer_of(known[2]) == _producer_of(written):
                written = replace(written, partitions=written.partitions | known[2].partitions)
            self._last[acting_node(), written.transactional_id] = partition, epoch, written

        return on_markers_written

    def _repeat(self, original: Callable[..., None]) -> Any:
        def on_event(coordinators: TransactionCoordinators, event: Event) -> None:
            original(coordinators, event)
            known = self._last.get((acting_node(), event.transactional_id)) if isinstance(event, MarkersDue) else None
            # Where the epoch stays, nothing tells the report of the one transaction from that of the other.
            if known is not None and _producer_of(known[2]) != _producer_of(event):
                self.count += 1
                asyncio.get_running_loop().call_soon(coordinators._on_markers_written, *known)

        return on_event


def _producer_of(named: Any) -> tuple[int, int]:
    return named.producer_id, named.producer_epoch
