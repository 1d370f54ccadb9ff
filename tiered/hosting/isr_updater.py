"""ISR change requests of all partitions that this broker leads (R3).

One request is in progress at a time, with all changes that are due by then. A follower that has caught up is added at
once; a timer finds followers that lag. Only the committed image changes an ISR: a change without a reply counts until
a newer image arrives. The decisions are in `replication.leader_state`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from tiered.controller.channel import RequestChannel
from tiered.controller.isr_changes import IsrChangeSummary
from tiered.controller.member_view import MemberView
from tiered.controller.requests import AlterPartitions, InSync, IsrChange
from tiered.durability.possible_losses import PossibleLosses
from tiered.errors import Code, Refused, Unavailable
from tiered.ids import incarnation_number
from tiered.log_limiter import LogLimiter
from tiered.metadata.image import Image
from tiered.metrics import Metrics
from tiered.ports import Clock
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.leader_state import ProposedIsr
from tiered.replication.led_partitions import LedPartitions

log = logging.getLogger(__name__)

CHANGES_MAX = 1_000
"""Most changes in one request."""
SUBMIT_SECONDS = 10.0
RETRY_SECONDS = 1.0
"""Pause before a change is requested again that was refused or got no reply."""
UNDECIDED_CODES = frozenset({Code.INVALID_UPDATE_VERSION, Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH})
"""Codes that mean that a newer image is about to arrive, perhaps because of this very change."""


class IsrUpdater:
    """The ISR changes of one broker.

    A leader with an unreported loss requests none: a follower that joined could lead next, and would not know the loss.
    """

    def __init__(
        self,
        view: MemberView,
        channel: RequestChannel,
        led_partitions: LedPartitions,
        losses: PossibleLosses,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._channel = channel
        self._led_partitions = led_partitions
        self._losses = losses
        self._clock = clock
        self._log_limiter = LogLimiter(clock)
        self._accepted_changes = IsrChangeSummary()
        self._due: dict[LeaderReplica, None] = {}
        self._retry_after_ns: dict[LeaderReplica, int] = {}
        self._wake = asyncio.Event()
        self._live_cache: tuple[Image | None, Mapping[int, int]] = (None, {})
        self._change_counter = metrics.counter(
            "tiered_isr_wishes_total", "Changes of in-sync sets that this broker requested, by outcome.", ("outcome",)
        )

    def wake(self, replica: LeaderReplica) -> None:
        """Has the ISR of a partition checked now: a follower of it may have caught up."""
        self._due[replica] = None
        self._wake.set()

    async def run(self) -> None:
        """Sends requests until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tick())
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    changes = self._take_due_changes()
                    if changes:
                        await self._submit(changes)
        finally:
            self._log_accepted_changes()

    async def _tick(self) -> None:
        while True:
            lag = self._view.settings.replica_lag_time_max_ms / 1000
            await self._clock.sleep(min(lag / 2, RETRY_SECONDS))
            self._log_accepted_changes()
            self._retry_after_ns = {
                replica: until_ns for replica, until_ns in self._retry_after_ns.items() if not replica.is_stopped
            }
            for replica in self._led_partitions.list_leaders():
                if len(replica.state.replicas) > 1:
                    self.wake(replica)

    def _log_accepted_changes(self) -> None:
        """Logs the accepted changes together: followers catch up one after the other."""
        for line in self._accepted_changes.take_lines():
            log.info("%s", line)

    def _take_due_changes(self) -> dict[LeaderReplica, ProposedIsr]:
        """Returns the changes that are due, which count from now on (R3)."""
        found: dict[LeaderReplica, ProposedIsr] = {}
        now_ns = self._clock.mono_ns()
        lag_ns, live = self._view.settings.replica_lag_time_max_ms * 1_000_000, self._live_brokers()
        barred = self._view.image.stopping_ids() | self._view.image.bad_disk_ids()
        while self._due and len(found) < CHANGES_MAX:
            replica = next(iter(self._due))
            del self._due[replica]
            if (
                replica.is_stopped
                or replica in self._losses.unreported
                or self._retry_after_ns.get(replica, now_ns) > now_ns
            ):
                continue
            change = replica.state.next_isr_change(now_ns, lag_ns, live, barred)
            if change is not None:
                replica.state.begin_isr_change(change)
                found[replica] = change
        if self._due:
            self._wake.set()
        return found

    def _live_brokers(self) -> Mapping[int, int]:
        """Returns the incarnation numbers of live brokers."""
        image = self._view.image
        if self._live_cache[0] is not image:
            brokers = image.brokers.values()
            self._live_cache = (
                image,
                {each.node_id: incarnation_number(each.incarnation) for each in brokers if each.live},
            )
        return self._live_cache[1]

    async def _submit(self, changes: Mapping[LeaderReplica, ProposedIsr]) -> None:
        request = AlterPartitions(
            self._view.node_id,
            self._view.incarnation,
            tuple(
                IsrChange(
                    replica.topic_id, replica.partition, replica.leader_epoch, change.partition_epoch,
                    tuple(InSync(*member) for member in change.members),
                )
                for replica, change in changes.items()
            ),
        )  # fmt: skip
        before = [replica.state.isr for replica in changes]
        try:
            codes = await self._channel.submit(request, SUBMIT_SECONDS)
        except (Refused, Unavailable) as error:
            self._change_counter.inc(len(changes), "unanswered")
            suppressed = self._log_limiter.admit()
            if suppressed is not None:
                log.warning("ISRs are changed later changes=%d suppressed=%d why=%s", len(changes), suppressed, error)
            for replica, change in changes.items():
                self._on_result(replica, change, None)
        else:
            for (replica, change), isr, code in zip(changes.items(), before, codes, strict=True):
                if code is Code.NONE:
                    self._accepted_changes.record(replica.tp, isr, change.isr)
                self._on_result(replica, change, code)

    def _on_result(self, replica: LeaderReplica, change: ProposedIsr, code: Code | None) -> None:
        if code is Code.NONE:
            self._change_counter.inc(1, "granted")
            return
        self._retry_after_ns[replica] = self._clock.mono_ns() + int(RETRY_SECONDS * 1e9)
        if code is None or code in UNDECIDED_CODES:
            replica.state.isr_change_unknown(change)
        else:
            self._change_counter.inc(1, "refused")
            log.warning("ISR change was refused partition=%s isr=%s code=%s", replica.tp, sorted(change.isr), code)
            replica.reject_isr_change(change)
