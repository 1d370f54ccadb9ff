"""Partitions of this broker whose logs may lack records, until the controller knows (R1, R4).

A loss has three steps. The start finds logs that it cannot prove whole: these partitions are suspect. The leader of
such a log is unreported until the metadata log has the loss, and its ISR does not grow before that. A loss is
overstated while it covers records that its leader found in the bucket. The rules are in `loss_rules`. `loss_reporter`
sends the reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from tiered.controller.member_view import MemberView
from tiered.durability.loss_rules import is_overstated, is_unreported
from tiered.ids import TopicPartition
from tiered.metadata.parts.topics import PartitionImage
from tiered.replication.leader_replica import LeaderReplica


class PossibleLosses:
    """The possible losses of one broker. `report_due` is set when there is a new one to report."""

    def __init__(self, view: MemberView) -> None:
        self._view = view
        self.suspect_partitions: frozenset[TopicPartition] = frozenset()
        """Partitions whose logs the start could not prove whole."""
        self.unreported: dict[LeaderReplica, int] = {}
        """Leaders of logs that may lack records, until the metadata log says so: the timestamp (ms) of the newest
        record that each had at its start; 0 if none is known."""
        self.overstated: dict[LeaderReplica, int] = {}
        """The same for leaders of logs that lack less than the metadata log says."""
        self.report_due = asyncio.Event()

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
        self.unreported[replica] = replica.unified_log.newest_record_ms
        self.report_due.set()

    def add_overstated(self, replica: LeaderReplica) -> None:
        """Takes a leader whose log lacks less than the metadata log says."""
        self.overstated[replica] = replica.unified_log.newest_record_ms

    def drop_recorded(self, reported: Collection[LeaderReplica]) -> None:
        """Drops the losses that the metadata log has as they are, and lets their leaders append.

        `reported` are those that were to be reported. Each of them whose report was refused or lost stays.
        """
        unreported, overstated = self.unreported.items(), self.overstated.items()
        self.unreported = {each: ms for each, ms in unreported if each not in reported or self._is_unreported(each)}
        self.overstated = {each: ms for each, ms in overstated if self._is_overstated(each)}
        for replica in reported:
            if replica not in self.unreported:
                replica.admission.on_loss_reported()

    def get_partition_image(self, tp: TopicPartition) -> PartitionImage | None:
        """Returns the partition that now has this name; None if there is none."""
        topic = self._view.image.topics.get(tp.topic)
        known = topic.partitions if topic is not None else ()
        return known[tp.partition] if tp.partition < len(known) else None

    def _is_unreported(self, replica: LeaderReplica) -> bool:
        topic, known = self._view.image.topics.get(replica.topic), self.get_partition_image(replica.tp)
        if topic is None or topic.topic_id != replica.topic_id or known is None:
            return False
        return is_unreported(known.loss, replica.leader_epoch, replica.epoch_start)

    def _is_overstated(self, replica: LeaderReplica) -> bool:
        known = self.get_partition_image(replica.tp)
        if replica.is_stopped or known is None:
            return False
        return is_overstated(known.loss, replica.leader_epoch, replica.initial_cold_end_offset)
