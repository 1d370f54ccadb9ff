"""Pending offsets of transactions whose marker was lost with the disks.

A snapshot of groups may have offsets of a transaction that ended after the snapshot was taken. The log begins after the
snapshot then, and does not know the transaction. Its coordinator writes no second marker, so consumers would wait for
stable offsets for ever. Once no timeout permits the transaction any longer, its offsets are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from tiered.broker.late_transactions import LATE_GRACE_MS
from tiered.controller.member_view import MemberView
from tiered.coordinator.host import CoordinatorHost
from tiered.coordinator.runtime import CoordinatorRuntime
from tiered.errors import Refused
from tiered.groups.shard import GroupShard
from tiered.ports import Clock
from tiered.records.marker import TransactionMarker
from tiered.shard import ProducerIdAndEpoch

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0

Coordinator = CoordinatorRuntime[GroupShard, Any, Any]


class LostMarkers:
    """Ends the transactions that only the group coordinators of this broker know, and not their logs."""

    def __init__(self, host: CoordinatorHost[GroupShard, Any, Any], view: MemberView, clock: Clock) -> None:
        self._host = host
        self._view = view
        self._clock = clock
        self._found_ms: dict[tuple[Coordinator, ProducerIdAndEpoch], int] = {}
        """Monotonic time at which each transaction was found first."""

    async def run(self) -> None:
        """Looks for such transactions until it is cancelled."""
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            now_ms = self._clock.mono_ns() // 1_000_000
            self._found_ms = {each: self._found_ms.get(each, now_ms) for each in self._find()}
            late_before_ms = now_ms - self._view.settings.transaction_max_timeout_ms - LATE_GRACE_MS
            for (coordinator, producer), found_ms in list(self._found_ms.items()):
                if found_ms < late_before_ms and _is_unknown(coordinator, producer):
                    await _abort(coordinator, producer)

    def _find(self) -> Iterator[tuple[Coordinator, ProducerIdAndEpoch]]:
        for partition in self._host.led_partitions.values():
            coordinator = partition.coordinator
            if coordinator is not None:
                for producer in coordinator.shard.log_state.pending.producers():
                    if _is_unknown(coordinator, producer):
                        yield coordinator, producer


def _is_unknown(coordinator: Coordinator, producer: ProducerIdAndEpoch) -> bool:
    """True if the coordinator has pending offsets of the producer, and the log has no open transaction of it."""
    producer_id, epoch = producer
    is_pending = coordinator.shard.log_state.pending.epoch_of(producer_id) == epoch
    return is_pending and not coordinator.replica.log.producers.has_ongoing_txn(producer_id, epoch)


async def _abort(coordinator: Coordinator, producer: ProducerIdAndEpoch) -> None:
    tp, known = coordinator.replica.tp, coordinator.replica.log.producers.get(producer.producer_id)
    coordinator_epoch = max(known.coordinator_epoch, 0) if known is not None else 0
    try:
        await coordinator.write_marker(TransactionMarker(*producer, False, coordinator_epoch))
    except Refused as refused:
        log.warning("offsets of a lost transaction stay partition=%s producer_id=%d why=%s", tp, producer[0], refused)
        return
    log.error("offsets of a transaction are dropped, its marker is lost partition=%s producer_id=%d", tp, producer[0])
