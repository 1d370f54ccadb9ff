"""Ends the transactions of led partitions whose coordinator does not know them any more, after a loss of its log.

Without this such a transaction would hold back committed readers and uploads until an operator aborts it. The same
holds for pending offsets whose marker is lost, and consumers that wait for stable offsets. The rule is in
`tiered.transactions.orphans`. This file queries the coordinators, writes the markers, and logs what hangs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from tiered.controller.member_view import MemberView
from tiered.coordination.late_transactions import LateTransactions
from tiered.coordination.marker_writer import MarkerDue, MarkerReason, MarkerWriter
from tiered.coordination.transaction_coordinators import TransactionCoordinators
from tiered.errors import Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import TRANSACTIONS_TOPIC
from tiered.peers import FoundTransaction, Peers
from tiered.ports import Clock
from tiered.records.marker import EPOCH_MOVES_FROM, TransactionMarker
from tiered.transactions.orphans import ASKED_STATES, OPEN_STATES, Coordinators, OpenTransaction, OrphanRule

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
REQUEST_SECONDS = 10.0
ASKED_AT_ONCE = 500
"""Most transactions of one check. The others have their turn after these."""


class OrphanedTransactions:
    """The late transactions of one broker, and their end. Without `peers` there are no other brokers."""

    def __init__(
        self,
        late_transactions: LateTransactions,
        coordinators: TransactionCoordinators,
        marker_writer: MarkerWriter,
        view: MemberView,
        peers: Peers | None,
        clock: Clock,
    ) -> None:
        self._late_transactions = late_transactions
        self._coordinators = coordinators
        self._marker_writer = marker_writer
        self._view = view
        self._peers = peers
        self._clock = clock
        self._rule = OrphanRule()
        self._reported: frozenset[tuple[TopicPartition, int, int]] = frozenset()

    async def run(self) -> None:
        """Checks the late transactions until it is cancelled."""
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            try:
                await self.check()
            except (Refused, Unavailable) as error:
                self._rule.forget()
                log.warning("coordinators of late transactions cannot be asked why=%s", error)

    async def check(self) -> None:
        """Checks once. Raises `Refused` or `Unavailable` if not all coordinators reply."""
        late = self._late_transactions.find_open()[:ASKED_AT_ONCE]
        self._report(late)
        coordinators = self._find_coordinators()
        if not late or not coordinators:
            self._rule.forget()
            return
        found = await self._find_transactions({each.producer_id for each in late}, coordinators)
        if self._find_coordinators() != coordinators:
            self._rule.forget()
            return
        open_ids = {each.producer_id for each in found if each.state in OPEN_STATES}
        committed = {(each.producer_id, each.committed_epoch) for each in found}
        for orphan in self._rule.find_orphans(late, open_ids, coordinators):
            if self._late_transactions.is_unchanged(orphan):
                await self._end(orphan, commit=(orphan.producer_id, orphan.producer_epoch) in committed)

    def _find_coordinators(self) -> Coordinators:
        """Returns all coordinators; none while a partition of `__transaction_state` has no leader."""
        topic = self._view.image.topics.get(TRANSACTIONS_TOPIC)
        found = {n: (each.leader, each.leader_epoch) for n, each in enumerate(topic.partitions)} if topic else {}
        return found if all(leader >= 0 for leader, _ in found.values()) else {}

    async def _find_transactions(
        self, producer_ids: Collection[int], coordinators: Coordinators
    ) -> list[FoundTransaction]:
        """Returns the transactions of these producers that are open or committed at their coordinators."""
        found: list[FoundTransaction] = []
        for node_id in sorted({leader for leader, _ in coordinators.values()}):
            if node_id == self._view.node_id:
                listed = await self._coordinators.list_transactions(ASKED_STATES, producer_ids)
                found += [FoundTransaction(each.producer_id, each.state, each.committed_epoch) for each in listed]
                continue
            address = self._view.address_of(node_id)
            if self._peers is None or not address:
                raise Unavailable(f"broker {node_id} has announced no address")
            found += await self._peers.find_transactions(address, sorted(ASKED_STATES), producer_ids, REQUEST_SECONDS)
        return found

    async def _end(self, orphan: OpenTransaction, *, commit: bool) -> None:
        marker = TransactionMarker(orphan.producer_id, orphan.producer_epoch, False, orphan.coordinator_epoch)
        reason = MarkerReason.ORPHAN if orphan.has_records else MarkerReason.LOST_OFFSETS
        if commit:
            marker = marker._replace(producer_epoch=marker.producer_epoch + 1, commit=True, version=EPOCH_MOVES_FROM)
            reason = MarkerReason.LOST_MARKER
        try:
            await self._marker_writer.write(MarkerDue(orphan.tp, marker, reason))
        except (Refused, Unavailable) as error:
            log.warning(
                "orphaned transaction stays open partition=%s producer_id=%d why=%s",
                orphan.tp, orphan.producer_id, error,
            )  # fmt: skip

    def _report(self, late: Collection[OpenTransaction]) -> None:
        """Logs each late transaction once."""
        known = frozenset((each.tp, each.producer_id, each.first_offset) for each in late)
        for tp, producer_id, first_offset in sorted(known - self._reported):
            log.warning(
                "transaction is open for longer than any timeout allows partition=%s producer_id=%d first_offset=%d",
                tp, producer_id, first_offset,
            )  # fmt: skip
        self._reported = known
