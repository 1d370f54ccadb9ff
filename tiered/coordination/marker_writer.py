"""Writes markers of transactions to the partitions of this broker: to logs of records, and to those of offsets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from tiered.ids import TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.records.marker import TransactionMarker
from tiered.replication.leader_replica import LeaderReplica

log = logging.getLogger(__name__)

COMMIT_MS = 1_000
"""Time in which the in-sync replicas have to replicate a marker, before its coordinator is told to try again. A
partition whose replicas are slow then delays the markers of others only for so long."""


class OffsetMarkers(Protocol):
    """The group coordinators of the broker: a marker decides the offsets of a transaction together with its record."""

    async def write_marker(self, partition: int, marker: TransactionMarker, *, in_this_turn: bool = False) -> None: ...

    def pending_epoch_of(self, partition: int, producer_id: int) -> int: ...


class MarkerWriter:
    """The partitions of one broker, as the coordinators of transactions see them."""

    def __init__(self, find_leader: Callable[[str, int], LeaderReplica], offsets: OffsetMarkers) -> None:
        self._find_leader = find_leader
        self._offsets = offsets

    def write_marker_now(self, tp: TopicPartition, marker: TransactionMarker) -> bool:
        """Writes a marker if that needs no wait. True if it is committed then; `write_marker` does the rest otherwise.

        Raises `Refused`.
        """
        if tp.topic == OFFSETS_TOPIC:
            return False
        replica = self._find_leader(*tp)
        return replica.is_committed(replica.append_marker_now(marker))

    async def write_marker(self, tp: TopicPartition, marker: TransactionMarker) -> None:
        """Writes a marker if it is not there yet, and returns once it is committed. Raises `Refused`."""
        if tp.topic == OFFSETS_TOPIC:
            self._find_leader(*tp)
            await self._offsets.write_marker(tp.partition, marker)
        else:
            await self._find_leader(*tp).append_marker(marker, timeout_ms=COMMIT_MS)

    async def write_marker_in_this_turn(self, tp: TopicPartition, marker: TransactionMarker) -> None:
        """Does the same, but waits for nothing before the marker is in the log."""
        replica = self._find_leader(*tp)
        if tp.topic == OFFSETS_TOPIC:
            await self._offsets.write_marker(tp.partition, marker, in_this_turn=True)
        else:
            await replica.confirm_committed(replica.append_marker_now(marker), COMMIT_MS)

    async def abort_transaction(self, tp: TopicPartition, marker: TransactionMarker) -> None:
        """Writes an abort marker that an operator sends, if the producer has an open transaction in the partition.
        Raises `Refused`."""
        replica, is_offsets = self._find_leader(*tp), tp.topic == OFFSETS_TOPIC
        opened = replica.log.producers.get(marker.producer_id)
        first_offset = opened.txn_first_offset if opened is not None else -1
        pending_epoch = self._offsets.pending_epoch_of(tp.partition, marker.producer_id) if is_offsets else -1
        if not replica.log.producers.is_abort_due(marker, pending_epoch):
            await replica.confirm_committed(replica.find_marker_end(marker.producer_id), COMMIT_MS)
            return
        await self.write_marker_in_this_turn(tp, marker)
        log.warning(
            "an operator has aborted a transaction partition=%s producer_id=%d epoch=%d first_offset=%d",
            tp, marker.producer_id, marker.producer_epoch, first_offset,
        )  # fmt: skip
