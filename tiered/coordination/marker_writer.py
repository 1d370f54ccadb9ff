"""Writes markers of transactions to the partitions of this broker: to logs of records, and to those of offsets.

Every marker comes this way, but for those that all disks have lost: a new leader writes them again by itself, before
any other record (`replication/leader_replica.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.records.marker import TransactionMarker
from tiered.replication.leader_replica import LeaderReplica

log = logging.getLogger(__name__)

COMMIT_MS = 1_000
"""Time in which the in-sync replicas have to replicate a marker, before its coordinator is told to try again. A
partition whose replicas are slow then delays the markers of others only for so long."""


class MarkerReason(Enum):
    """The reason for which a transaction ends in a partition. The value says it in the log."""

    DECIDED = "decided by its coordinator"
    """For its client, or at its timeout."""
    ORPHAN = "aborted, no coordinator knows it"
    LOST_MARKER = "committed again, its marker was lost"
    LOST_OFFSETS = "aborted, no coordinator knows it, and its offsets alone are left"
    OPERATOR = "aborted by an operator"


class MarkerDue(NamedTuple):
    """A marker to write in one partition."""

    tp: TopicPartition
    marker: TransactionMarker
    reason: MarkerReason = MarkerReason.DECIDED


class OffsetMarkers(Protocol):
    """The group coordinators of the broker: a marker decides the offsets of a transaction together with its record."""

    async def write_marker(self, partition: int, marker: TransactionMarker, *, may_wait: bool = True) -> None: ...

    def pending_epoch_of(self, partition: int, producer_id: int) -> int: ...


class MarkerWriter:
    """The partitions of one broker, for all that end transactions."""

    def __init__(self, find_leader: Callable[[str, int], LeaderReplica], offsets: OffsetMarkers) -> None:
        self._find_leader = find_leader
        self._offsets = offsets

    def write_now(self, due: MarkerDue) -> bool:
        """Writes a decided marker if that needs no wait. True if it is committed then; `write` does the rest otherwise.

        Raises `Refused`.
        """
        if due.tp.topic == OFFSETS_TOPIC:
            return False
        replica = self._find_leader(*due.tp)
        return replica.is_committed(replica.transactions.append_marker_now(due.marker))

    async def write(self, due: MarkerDue) -> None:
        """Writes a marker if it is not there yet, and returns once it is committed. A decided marker may wait for other
        records first. The others end what their caller has just looked at, in this turn of the event loop. An
        operator's marker aborts only an open transaction. Raises `Refused` or `Unavailable`."""
        tp, marker, reason = due
        replica, may_wait = self._find_leader(*tp), reason is MarkerReason.DECIDED
        opened = replica.log.producers.get(marker.producer_id) if not may_wait else None
        first_offset = opened.txn_first_offset if opened is not None else -1
        if reason is MarkerReason.OPERATOR and not self._is_abort_due(replica, due):
            await replica.confirm_committed(replica.transactions.find_marker_end(marker.producer_id), COMMIT_MS)
            return
        if tp.topic == OFFSETS_TOPIC:
            await self._offsets.write_marker(tp.partition, marker, may_wait=may_wait)
        else:
            await replica.transactions.append_marker(marker, timeout_ms=COMMIT_MS, may_wait=may_wait)
        if not may_wait:
            log.log(
                logging.WARNING if reason is MarkerReason.OPERATOR else logging.ERROR,
                "transaction is %s partition=%s producer_id=%d epoch=%d first_offset=%d",
                reason.value, tp, marker.producer_id, marker.producer_epoch, first_offset,
            )  # fmt: skip

    def _is_abort_due(self, replica: LeaderReplica, due: MarkerDue) -> bool:
        is_offsets, producer_id = due.tp.topic == OFFSETS_TOPIC, due.marker.producer_id
        pending_epoch = self._offsets.pending_epoch_of(due.tp.partition, producer_id) if is_offsets else -1
        return replica.log.producers.is_abort_due(due.marker, pending_epoch)

    async def try_write(self, due: MarkerDue) -> Code:
        """Does the same, and returns what a coordinator or an operator is told."""
        try:
            await self.write(due)
        except Refused as refused:
            return refused.code
        except Unavailable:
            return Code.NOT_LEADER_OR_FOLLOWER
        return Code.NONE
