"""Partitions of this broker whose logs may lack records, until the controller knows (R1, R4).

A loss has three steps. The start finds logs that it cannot prove whole: these partitions are suspect. The leader of
such a log is unreported until the metadata log has the loss, and its ISR does not grow before that. A loss is
overstated while it covers records that its leader found in the bucket. This file sends no report: `loss_reporter` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from tiered.controller.member_view import MemberView
from tiered.ids import TopicPartition
from tiered.metadata.image import Loss, PartitionImage
from tiered.replication.leader_replica import LeaderReplica


class PossibleLosses:
    """The possible losses of one broker. `report_due` is set when there is a new one to report."""

    def __init__(self, view: MemberView) -> None:
        self._view = view
        self.suspect_partitions: frozenset[TopicPartition] = frozenset()
        """Partitions whose logs the start could not prove whole."""
        self.unreported: list[LeaderReplica] = []
        """Leaders of logs that may lack records, until the metadata log says so."""
        self.overstated: list[LeaderReplica] = []
        """Leaders of logs that lack less than the metadata log says."""
        self.report_due = asyncio.Event()
        self._newest_ms: dict[LeaderReplica, int] = {}
        """By leader with a loss to report: the timestamp of the newest record that it had at its start."""

    @property
    def has_any_to_report(self) -> bool:
        """True if the metadata log lacks a loss, or has one that is overstated."""
        return bool(self.unreported or self.overstated)

    def set_suspect_partitions(self, tps: Iterable[TopicPartition]) -> None:
        """Takes the partitions whose logs this start could not prove whole."""
        self.suspect_partitions = frozenset(tps)

    def clear_suspect_partitions(self, tps: Collection[TopicPartition]) -> None:
        """Ends the suspicion of these partitions: the log follows a leader, or its loss is reported."""
        self.suspect_partitions -= frozenset(tps)

    def add_unreported(self, replica: LeaderReplica) -> None:
        """Takes a leader whose log may lack records; it has to be reported at once."""
        self.unreported.append(replica)
        self._newest_ms[replica] = replica.unified_log.newest_record_ms
        self.report_due.set()

    def add_overstated(self, replica: LeaderReplica) -> None:
        """Takes a leader whose log lacks less than the metadata log says."""
        self.overstated.append(replica)
        self._newest_ms[replica] = replica.unified_log.newest_record_ms

    def get_newest_ms(self, replica: LeaderReplica) -> int:
        """Returns the timestamp (ms) of the newest record that a leader with a loss had at its start; 0 if none is
        known."""
        return self._newest_ms.get(replica, 0)

    def drop_recorded(self, reported: Collection[LeaderReplica]) -> None:
        """Drops the losses that the metadata log has as they are, and lets their leaders append.

        `reported` are those that were to be reported. Each of them whose report was refused or lost stays.
        """
        self.unreported = [each for each in self.unreported if each not in reported or self._is_unreported(each)]
        self.overstated = [each for each in self.overstated if self._is_overstated(each)]
        kept = {*self.unreported, *self.overstated}
        self._newest_ms = {replica: ms for replica, ms in self._newest_ms.items() if replica in kept}
        for replica in set(reported).difference(self.unreported):
            replica.on_loss_reported()

    def get_partition_image(self, tp: TopicPartition) -> PartitionImage | None:
        """Returns the partition that now has this name; None if there is none."""
        topic = self._view.image.topics.get(tp.topic)
        known = topic.partitions if topic is not None else ()
        return known[tp.partition] if tp.partition < len(known) else None

    def _is_unreported(self, replica: LeaderReplica) -> bool:
        topic, known = self._view.image.topics.get(replica.topic), self.get_partition_image(replica.tp)
        if topic is None or topic.topic_id != replica.topic_id or known is None:
            return False
        return is_loss_unreported(known.loss, replica)

    def _is_overstated(self, replica: LeaderReplica) -> bool:
        known = self.get_partition_image(replica.tp)
        return not replica.is_stopped and known is not None and is_loss_overstated(known.loss, replica)


def is_loss_unreported(reported: Loss | None, replica: LeaderReplica) -> bool:
    """True if the metadata log does not have the loss of all records from this leader's epoch start on."""
    return (
        reported is None or reported.leader_epoch < replica.leader_epoch or reported.from_offset > replica.epoch_start
    )


def is_loss_overstated(reported: Loss | None, replica: LeaderReplica) -> bool:
    """True if the loss covers records that were in the bucket when this leader epoch started.

    The controller that recorded the loss did not know what the bucket had.
    """
    return (
        reported is not None
        and reported.leader_epoch == replica.leader_epoch
        and reported.from_offset < replica.initial_cold_end_offset
    )
