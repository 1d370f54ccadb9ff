"""The conditions under which a leader replica takes records and confirms them (R3, R6).

It still leads, the metadata log has each loss that the leader has to report, the broker has contact with the
controller, and enough replicas are in sync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from tiered.errors import Code, Refused
from tiered.hot.disk_log import DiskLog
from tiered.ids import TopicPartition
from tiered.ports import Clock
from tiered.replication.leader_reads import LeaderReads
from tiered.replication.leader_state import LeaderState


class AppendAdmission:
    """The checks of one leader replica before an append, and the wait for the report of a loss.

    `has_controller_contact` returns True if the broker has contact with the controller (R6).
    """

    __slots__ = ("_clock", "_has_controller_contact", "_log", "_reads", "_report_awaited", "_state", "tp")

    def __init__(
        self,
        tp: TopicPartition,
        log: DiskLog,
        state: LeaderState,
        reads: LeaderReads,
        clock: Clock,
        has_controller_contact: Callable[[], bool],
    ) -> None:
        self.tp = tp
        self._log = log
        self._state = state
        self._reads = reads
        self._clock = clock
        self._has_controller_contact = has_controller_contact
        self._report_awaited: asyncio.Event | None = None
        """An event while appends wait for the report of a loss; None if none is awaited."""

    def check(self, acks_all: bool) -> None:
        """Raises `Refused` if no append may be made now. With acks=all it takes contact with the controller and enough
        in-sync replicas too."""
        if self._reads.stop_error is not None:
            raise self._reads.stop_error
        if self._report_awaited is not None:
            why = f"records of {self.tp} may be lost, and the loss is not in the metadata log yet: retry"
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, why)
        if acks_all:
            self.require_controller_contact()
            minimum = self._log.config.min_insync_replicas
            if not self._state.has_min_isr(minimum):
                why = f"{self.tp} has fewer than {minimum} in-sync replicas: {len(self._state.isr)}"
                raise Refused(Code.NOT_ENOUGH_REPLICAS, why)

    def require_controller_contact(self) -> None:
        """Raises `Refused` if another broker may lead the partition by now (R6)."""
        if len(self._state.replicas) > 1 and not self._has_controller_contact():
            why = f"no contact with the controller: another broker may lead {self.tp} by now"
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, why)

    @property
    def is_stopped(self) -> bool:
        """True if this broker has stopped leading the partition."""
        return self._reads.stop_error is not None

    # -- a loss that is not reported yet ------------------------------------------------------------------------------

    @property
    def has_unreported_loss(self) -> bool:
        """True if records may be gone and the metadata log does not have the loss yet. No records are appended before
        that: after a restart, the loss would be reported from an offset above the new records."""
        return self._report_awaited is not None

    def block_appends(self) -> None:
        """Blocks appends until `on_loss_reported`."""
        self._report_awaited = asyncio.Event()

    def on_loss_reported(self) -> None:
        """Ends the wait: the metadata log has the loss, or this broker stopped leading the partition."""
        report_awaited, self._report_awaited = self._report_awaited, None
        if report_awaited is not None:
            report_awaited.set()

    async def wait_loss_reported(self) -> None:
        """Returns once no loss waits to be reported, or this broker stopped leading the partition."""
        if self._report_awaited is not None:
            await self._report_awaited.wait()

    async def wait_loss_reported_within(self, timeout_ms: int) -> int:
        """Waits up to `timeout_ms` for the report of a loss; returns how many milliseconds of it are left."""
        until_ns = self._clock.mono_ns() + timeout_ms * 1_000_000
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await self.wait_loss_reported()
        return max(0, (until_ns - self._clock.mono_ns()) // 1_000_000)
