"""Reports of possible losses to the controller, and trust in the data directory once all are reported (R1, R4).

Without the boot mark and with the marks of corruption in place, the next start finds the same logs suspect again.
Therefore both change only when every log was opened and every loss is in the metadata log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from itertools import islice

from tiered.controller import requests
from tiered.controller.channel import RequestChannel
from tiered.controller.member_view import MemberView
from tiered.durability.data_directory import DataDirectory
from tiered.durability.log_store import LogStore
from tiered.durability.possible_losses import PossibleLosses
from tiered.errors import Refused, Unavailable
from tiered.replication.leader_replica import LeaderReplica

log = logging.getLogger(__name__)

REPORTS_AT_ONCE = 500
"""Reports in progress at once: fewer requests than may wait for the metadata log."""
PARTITIONS_LOGGED_MAX = 100
"""Partitions of a topic in a line of the log. `possible_loss` of the health report has all of them."""


class LossReporter:
    """The reports of one broker. `directory_trusted` is True once the next start may believe the data directory."""

    def __init__(
        self,
        view: MemberView,
        channel: RequestChannel,
        losses: PossibleLosses,
        log_store: LogStore,
        data_directory: DataDirectory,
    ) -> None:
        self.directory_trusted = False
        self.is_registered = False
        """True once this incarnation is certainly the last that ran: until then a mark must name the one before too."""
        self._view = view
        self._channel = channel
        self._losses = losses
        self._log_store = log_store
        self._data_directory = data_directory
        self._unknown_directory_id = ""
        self._logged: set[LeaderReplica] = set()
        """Leaders whose unreported loss is in this broker's log already."""
        self._lock = asyncio.Lock()

    def set_unknown_directory(self, directory_id: str) -> None:
        """Takes the id of a data directory that the cluster does not know; it gets the id when all is reported."""
        self._unknown_directory_id = directory_id

    async def report_losses(self) -> None:
        """Reports from which offsets on records may be gone. A report that fails stays due.

        Raises `Refused` or `Unavailable` if a report failed.
        """
        async with self._lock:
            await self._report_losses()

    async def _report_losses(self) -> None:
        losses = self._losses
        lost = tuple(losses.unreported)
        _log_losses([each for each in lost if each not in self._logged and each.possible_loss is not None])
        self._logged = set(lost)
        try:
            # The lowest offset is last: of several losses it stays.
            newest_ms = losses.overstated | losses.unreported
            due = sorted(newest_ms, key=lambda each: each.epoch_start, reverse=True)
            reports = (_make_loss_report(each, newest_ms[each]) for each in due)
            while some := list(islice(reports, REPORTS_AT_ONCE)):
                await asyncio.gather(*map(self._channel.submit, some))
        finally:
            losses.drop_recorded(lost)
        for each in lost:
            try:
                await each.transactions.write_lost_markers()
            except (Unavailable, Refused) as error:
                log.error("lost markers are written later partition=%s why=%s", each.tp, error)
        losses.clear_suspect_partitions({each.tp for each in lost} - {each.tp for each in losses.unreported})
        pending = self._log_store.has_unchecked_logs or losses.suspect_partitions or losses.unreported
        if self.is_registered and not pending and not self.directory_trusted:
            await self._trust_directory()

    async def _trust_directory(self) -> None:
        if self._unknown_directory_id:
            await self._channel.submit(
                requests.NameDirectory(self._view.node_id, self._view.incarnation, self._unknown_directory_id)
            )
        await self._data_directory.write_boot_mark(self._view.incarnation)
        await self._log_store.clear_suspicion()
        self.directory_trusted = True


def _make_loss_report(replica: LeaderReplica, newest_ms: int) -> requests.ReportLoss:
    return requests.ReportLoss(
        replica.topic_id,
        replica.partition,
        replica.leader_epoch,
        replica.epoch_start,
        replica.initial_cold_end_offset,
        newest_ms,
    )


def _log_losses(lost: Iterable[LeaderReplica]) -> None:
    """Logs one line for each topic: a lost disk concerns all partitions at once, and each topic has to be seen."""
    topics: dict[str, list[LeaderReplica]] = {}
    for replica in lost:
        topics.setdefault(replica.tp.topic, []).append(replica)
    for topic, replicas in sorted(topics.items()):
        places = sorted((each.tp.partition, each.epoch_start) for each in replicas)
        listed = ",".join(f"{partition}@{offset}" for partition, offset in places[:PARTITIONS_LOGGED_MAX])
        log.warning(
            "records may be gone from an offset on topic=%s partitions=%d partition@offset=%s%s",
            topic, len(places), listed, ",..." if len(places) > PARTITIONS_LOGGED_MAX else "",
        )  # fmt: skip
