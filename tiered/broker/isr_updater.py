"""Keeps in-sync sets as they should be: gathers what the partitions led here wish, and asks the controller.

One question at a time, with all wishes that there are by then. A follower that has caught up is wished for at once, one
that lags is looked for on a timer. Only the committed image changes a set: an answer that does not come leaves the wish
counted (rule R3) until the image has gone on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any

from tiered.config.settings import Settings
from tiered.controller.isr_changes import IsrChangeSummary
from tiered.controller.requests import AlterPartitions, InSync, IsrWish
from tiered.errors import Code, Refused, Unavailable
from tiered.ids import incarnation_number
from tiered.log_limiter import LogLimiter
from tiered.metadata.image import Image
from tiered.metrics import Metrics
from tiered.ports import Clock
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.leader_state import ProposedIsr

log = logging.getLogger(__name__)

CHANGES_MAX = 1_000
"""In one question."""
ASK_SECONDS = 10.0
RETRY_SECONDS = 1.0
"""Before what was not granted, or not answered, is wished for again."""
UNDECIDED_CODES = frozenset({Code.INVALID_UPDATE_VERSION, Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH})
"""The image has gone on, perhaps by this very wish: it is about to say so."""


class IsrUpdater:
    """Of one broker. `ask` is `Broker.submit`. `untold`: those whose loss the cluster is still to hear of. Who joined
    one of them now could lead next, and would know of no loss."""

    def __init__(
        self,
        ask: Callable[[Any, float], Awaitable[Any]],
        replicas: Callable[[], Iterable[LeaderReplica]],
        unreported_losses: Callable[[], Collection[LeaderReplica]],
        image: Callable[[], Image],
        settings: Callable[[], Settings],
        incarnation: str,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._ask = ask
        self._replicas = replicas
        self._unreported_losses = unreported_losses
        self._image = image
        self._settings = settings
        self._incarnation = incarnation
        self._clock = clock
        self._log_limiter = LogLimiter(clock)
        self._accepted_changes = IsrChangeSummary()
        self._due: dict[LeaderReplica, None] = {}
        self._retry_after_ns: dict[LeaderReplica, int] = {}
        self._wake = asyncio.Event()
        self._live_cache: tuple[Image | None, Mapping[int, int]] = (None, {})
        self._change_counter = metrics.counter(
            "tiered_isr_wishes_total", "Changes of in-sync sets that this broker asked for, by outcome.", ("outcome",)
        )

    def wake(self, replica: LeaderReplica) -> None:
        """A follower of it may have caught up."""
        self._due[replica] = None
        self._wake.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tick())
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    wishes = self._take_due_changes()
                    if wishes:
                        await self._submit(wishes)
        finally:
            self._log_accepted_changes()

    async def _tick(self) -> None:
        while True:
            lag = self._settings().replica_lag_time_max_ms / 1000
            await self._clock.sleep(min(lag / 2, RETRY_SECONDS))
            self._log_accepted_changes()
            self._retry_after_ns = {
                replica: until_ns for replica, until_ns in self._retry_after_ns.items() if not replica.is_stopped
            }
            for replica in self._replicas():
                if len(replica.state.replicas) > 1:
                    self.wake(replica)

    def _log_accepted_changes(self) -> None:
        """Logs the changes that were granted since the last time: followers catch up one after the other."""
        for line in self._accepted_changes.take_lines():
            log.info("%s", line)

    def _take_due_changes(self) -> dict[LeaderReplica, ProposedIsr]:
        """What is wished, and counts from now on."""
        found: dict[LeaderReplica, ProposedIsr] = {}
        now_ns = self._clock.mono_ns()
        lag_ns, live = self._settings().replica_lag_time_max_ms * 1_000_000, self._live_brokers()
        stops = self._image().stopping_ids()
        while self._due and len(found) < CHANGES_MAX:
            replica = next(iter(self._due))
            del self._due[replica]
            if (
                replica.is_stopped
                or replica in self._unreported_losses()
                or self._retry_after_ns.get(replica, now_ns) > now_ns
            ):
                continue
            wish = replica.state.next_isr_change(now_ns, lag_ns, live, stops)
            if wish is not None:
                replica.state.begin_isr_change(wish)
                found[replica] = wish
        if self._due:
            self._wake.set()
        return found

    def _live_brokers(self) -> Mapping[int, int]:
        """The incarnation numbers of live brokers."""
        image = self._image()
        if self._live_cache[0] is not image:
            brokers = image.brokers.values()
            self._live_cache = (
                image,
                {each.node_id: incarnation_number(each.incarnation) for each in brokers if each.live},
            )
        return self._live_cache[1]

    async def _submit(self, changes: Mapping[LeaderReplica, ProposedIsr]) -> None:
        request = AlterPartitions(
            self._settings().node_id,
            self._incarnation,
            tuple(
                IsrWish(
                    replica.topic_id, replica.partition, replica.leader_epoch, wish.partition_epoch,
                    tuple(InSync(*member) for member in wish.members),
                )
                for replica, wish in changes.items()
            ),
        )  # fmt: skip
        before = [replica.state.isr for replica in changes]
        try:
            codes = await self._ask(request, ASK_SECONDS)
        except (Refused, Unavailable) as error:
            self._change_counter.inc(len(changes), "unanswered")
            unsaid = self._log_limiter.admit()
            if unsaid is not None:
                log.warning("in-sync sets stay for now wishes=%d unsaid=%d why=%s", len(changes), unsaid, error)
            for replica, wish in changes.items():
                self._on_result(replica, wish, None)
        else:
            for (replica, wish), isr, code in zip(changes.items(), before, codes, strict=True):
                if code is Code.NONE:
                    self._accepted_changes.record(replica.tp, isr, wish.isr)
                self._on_result(replica, wish, code)

    def _on_result(self, replica: LeaderReplica, change: ProposedIsr, code: Code | None) -> None:
        if code is Code.NONE:
            self._change_counter.inc(1, "granted")
            return
        self._retry_after_ns[replica] = self._clock.mono_ns() + int(RETRY_SECONDS * 1e9)
        if code is None or code in UNDECIDED_CODES:
            replica.state.isr_change_unknown(change)
        else:
            self._change_counter.inc(1, "refused")
            log.warning("in-sync set was not granted partition=%s isr=%s code=%s", replica.tp, sorted(change.isr), code)
            replica.reject_isr_change(change)
