"""Reports of this broker's disk to the controller: full, stalled, recovering, usable.

The controller moves leaderships away from a full or stalled disk. It gives them back once the disk is usable again. A
report that fails is repeated, also to the next controller: the image tells which report was the last. The processes of
a machine have one disk: it is full for all of them as soon as one has reported it.
"""

from __future__ import annotations

import asyncio
import logging

from tiered.access.audit_log import DONE, UNKNOWN, AuditLog
from tiered.controller.change_descriptions import describe_changes
from tiered.controller.channel import RequestChannel
from tiered.controller.member_view import MemberView
from tiered.controller.requests import ReportDisk
from tiered.errors import Code, Refused, Unavailable
from tiered.log_limiter import LogLimiter
from tiered.metadata.changes import DISK_FULL, DISK_RECOVERING, DISK_STALLED, DISK_USABLE
from tiered.metadata.features import DISK_REPORTS
from tiered.metadata.image import Image
from tiered.ports import Clock
from tiered.replication.disk_state import DiskState
from tiered.security.principal import BROKER, Caller, Principal

log = logging.getLogger(__name__)

SUBMIT_SECONDS = 10.0
CHECK_SECONDS = 1.0
"""Pause between two comparisons of the disk with its last report."""


class DiskReports:
    """The reports of one broker. The audit log gets the leaderships that moved."""

    def __init__(
        self, view: MemberView, channel: RequestChannel, disk_state: DiskState, audit: AuditLog, clock: Clock
    ) -> None:
        self._view = view
        self._channel = channel
        self._disk_state = disk_state
        self._audit = audit
        self._clock = clock
        self._log_limiter = LogLimiter(clock)
        self._reporting = asyncio.Lock()

    async def run(self) -> None:
        """Sends reports until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._report_changes())
            await self._compare_often()

    async def _compare_often(self) -> None:
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            if self.find_due() is not None:
                await self._report_due()

    async def _report_changes(self) -> None:
        """Reports at once that the disk became full or stalled."""
        while True:
            await self._disk_state.changed.wait()
            self._disk_state.changed.clear()
            await self._report_due()

    async def _report_due(self) -> None:
        async with self._reporting:
            due = self.find_due()
            if due is not None:
                await self._report(due)

    def on_image(self, old: Image, new: Image) -> None:
        """Marks the disk as full when another process of this machine has reported it. This happens once for each
        report, because each process finds out for itself when the disk has room again."""
        own = new.brokers.get(self._view.node_id)
        if new.brokers is old.brokers or own is None or self._disk_state.full is not None:
            return
        for node_id in sorted(new.bad_disk_ids() - old.bad_disk_ids() - {own.node_id}):
            if new.brokers[node_id].is_disk_full and new.brokers[node_id].machine == own.machine:
                self._disk_state.mark_full(f"broker {node_id} of this machine found no room")

    def find_due(self) -> ReportDisk | None:
        """Returns the report that the image lacks; None if there is none, or another incarnation has registered."""
        if self._view.image.metadata_version < DISK_REPORTS:
            return None
        own, disk = self._view.image.brokers.get(self._view.node_id), self._assess_disk()
        if own is None or own.incarnation != self._view.incarnation or own.disk == disk:
            return None
        return ReportDisk(self._view.node_id, self._view.incarnation, disk)

    def _assess_disk(self) -> str:
        if self._disk_state.full is not None:
            return DISK_FULL
        if self._disk_state.stalled is not None:
            return DISK_STALLED
        return DISK_RECOVERING if self._disk_state.is_recovering else DISK_USABLE

    async def _report(self, report: ReportDisk) -> None:
        try:
            moved = await self._channel.submit(report, SUBMIT_SECONDS)
            self._record(report, moved, DONE)
        except (Refused, Unavailable) as error:
            if isinstance(error, Refused) and error.code is Code.REQUEST_TIMED_OUT:
                self._record(report, None, UNKNOWN)
            suppressed = self._log_limiter.admit()
            if suppressed is not None:
                log.warning(
                    "state of the disk is reported later disk=%s suppressed=%d why=%s", report.disk, suppressed, error
                )

    def _record(self, report: ReportDisk, moved: int | None, outcome: str) -> None:
        own = Caller(Principal(BROKER, str(report.node_id)), "")
        self._audit.record_changes(own, describe_changes(report, moved, self._view.image), outcome)
