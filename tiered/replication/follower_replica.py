"""One partition that this broker follows: its log, and the changes that the leader's replies make to it.

Carries out the decisions of `follower_step`. After every truncation the log is fsynced before it grows again: a power
cut must not bring back parts of two histories. A replica follows the leader of one epoch. Another object replaces it
for a later epoch, and nothing does for an earlier one (I16). Keeps I32.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiered.compaction.cleanable_range import is_compacted
from tiered.errors import Refused, Unavailable
from tiered.hot import retention
from tiered.hot.disk_log import DiskLog
from tiered.hot.unsynced_truncations import NO_PLAN
from tiered.ids import NO_EPOCH, PartitionId, TopicId, TopicPartition
from tiered.peers import FetchedPartition, PartitionFetch
from tiered.ports import Clock
from tiered.replication import follower_step
from tiered.replication.cold_history import read_history, restart_at_cold_end
from tiered.replication.cold_tier import ColdTier
from tiered.replication.disk_state import DiskState
from tiered.replication.follower_step import (
    Append,
    CopyAgain,
    FollowerLog,
    NoAction,
    RestartAtLogStart,
    RestoreFromBucket,
    Retry,
    Truncate,
)
from tiered.replication.purgatory import ProgressListeners
from tiered.replication.replication_quota import ThrottledReplicas

if TYPE_CHECKING:
    from tiered.config.settings import TopicConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FollowerPorts:
    """The parts that all follower replicas of one broker share. `save_offsets` writes the start offsets of all logs
    durably."""

    clock: Clock
    disk: DiskState
    save_offsets: Callable[[], Awaitable[None]]


class FollowerReplica:
    """A replica that follows `leader` under `leader_epoch`. `high_watermark` is the end of the records here that are
    known to be committed. `is_stopped` is True once this broker leads the partition, follows another leader or no
    longer has the replica; the log must not be changed through this object then."""

    __slots__ = (
        "_clock",
        "_copied_again_from",
        "_cut_to",
        "_disk",
        "_has_heard_leader",
        "_leader_local_start",
        "_manifest_start_offset",
        "_save_offsets",
        "_throttled_replicas",
        "cold_end_offset",
        "fetch_error",
        "high_watermark",
        "is_stopped",
        "leader",
        "leader_epoch",
        "leader_high_watermark",
        "listeners",
        "log",
        "partition_id",
        "topic_id",
        "tp",
    )

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        hot: DiskLog,
        leader: int,
        leader_epoch: int,
        ports: FollowerPorts,
        *,
        high_watermark: int,
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.partition_id = PartitionId(topic_id, tp.partition)
        self.log = hot
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.high_watermark = min(high_watermark, hot.end_offset)
        self.cold_end_offset = 0
        self._leader_local_start = 0
        self.leader_high_watermark = 0
        """The high watermark in the leader's last reply."""
        self.listeners = ProgressListeners()
        """Listeners to the high watermark, and to the end of this replica's time as a follower."""
        self.is_stopped = False
        self.fetch_error = ""
        """The reason why this replica makes no progress; empty while it does."""
        self._copied_again_from: int | None = None
        """The log is a copy of this leader's from here on, without a pause. None if it was not copied again."""
        self._cut_to: int | None = None
        """The log is to end here, to be copied again. Only a part of it could be truncated by now."""
        self._has_heard_leader = False
        """True once a reply of this leader said where the cold part ends."""
        self._manifest_start_offset = 0
        """The log start offset that a manifest has, as far as this replica knows."""
        self._throttled_replicas = ThrottledReplicas()
        self._clock = ports.clock
        self._disk = ports.disk
        self._save_offsets = ports.save_offsets
        if high_watermark:
            hot.producers.txns.on_high_watermark(high_watermark)

    @property
    def config(self) -> TopicConfig:
        """The topic settings in force; they may change at any time."""
        return self.log.config

    @property
    def lag(self) -> int:
        """The number of committed records that are not here yet, by the leader's last reply."""
        return max(0, self.leader_high_watermark - self.log.end_offset)

    @property
    def may_have_cold_records(self) -> bool:
        """False if the leader has said that no record is in the bucket."""
        return not self._has_heard_leader or self.cold_end_offset > 0

    def is_throttled(self, node_id: int) -> bool:
        """True if the topic's settings throttle this replica on broker `node_id` (KIP-73)."""
        return self._throttled_replicas(self.config.follower_replication_throttled_replicas, self.tp.partition, node_id)

    def stop(self) -> None:
        """Stops following; readers are woken and look for another replica."""
        self.is_stopped = True
        self.log.truncations.planned_end = NO_PLAN
        self.listeners.notify()

    def build_fetch(self) -> PartitionFetch:
        """Builds the fetch request for everything from the log end on. The request tells the leader that this replica
        has all records below its end; with `flush=ack`, that they are fsynced. It also says that records below its log
        start offset never come back. `make_durable` must have made all of that true."""
        hot, end = self.log, self.log.end_offset
        last_epoch = hot.epochs.epoch_at(end - 1) if end else NO_EPOCH
        return PartitionFetch(
            self.topic_id, self.tp.partition, self.leader_epoch, end, last_epoch, hot.start_offset,
            hot.local_start_offset,
        )  # fmt: skip

    @property
    def is_durable(self) -> bool:
        """True if everything that `build_fetch` claims survives the end of the process and, if the topic demands it, a
        power cut."""
        return not self._must_flush and not self._must_save_offsets and not self.log.truncations.must_lower_point

    @property
    def _must_flush(self) -> bool:
        hot = self.log
        synced = hot.synced_entry
        return (
            hot.truncations.is_unsettled
            or synced.is_due
            or (synced.fsynced_only and hot.flushed_offset < hot.end_offset)
        )

    @property
    def _must_save_offsets(self) -> bool:
        """True if the log start offset must be saved to disk. If a manifest has it, every later leader knows it without
        that. The settings do not say so: the leader may have other settings than this replica, and no manifest."""
        start = self.log.start_offset
        return self.log.checkpointed_start_offset < start and self._manifest_start_offset < start

    async def make_durable(self) -> None:
        """Makes everything durable that `build_fetch` claims. Raises `Unavailable`; a failed fsync ends the use of the
        directory."""
        if self._must_flush:
            await self.flush()
        if self._must_save_offsets or self.log.truncations.must_lower_point:
            await self._save_offsets()

    async def flush(self, end: int | None = None) -> None:
        """Fsyncs the log up to `end` (None: all). Raises `Unavailable`; a failed fsync ends the use of the
        directory."""
        unsettled = end is None and self.log.truncations.is_unsettled
        await self._disk.flush(self.log, end)
        if unsettled:
            await self._save_offsets()

    def apply_reply(
        self, request: PartitionFetch, part: FetchedPartition
    ) -> RestoreFromBucket | Retry | NoAction | None:
        """Carries out what follows from the leader's reply to `request`, as far as that needs no waiting. Returns the
        step that is left to do, `NoAction` if the reply had nothing new, or None. Raises `Refused` and `Unavailable`
        (the disk)."""
        if self.is_stopped:
            return NoAction()
        if not part.code and part.diverging_epoch is None:
            self.leader_high_watermark = part.high_watermark
        hot, open_from = self.log, self._find_open_from()
        is_cut_begun = open_from is not None and open_from == self._cut_to
        known = FollowerLog(hot.local_start_offset, hot.end_offset, hot.epochs, open_from, is_cut_begun)
        found = follower_step.decide_step(request, part, known)
        if not isinstance(found, Truncate | CopyAgain):
            hot.truncations.planned_end = NO_PLAN
        match found:
            case Append(base):
                if base < hot.end_offset:  # all that a power cut can bring back lies below the log start
                    self._restart_log(base)
                self._append(part)
            case Truncate(offset):
                self._truncate(offset, part)
            case CopyAgain(offset):
                self._copy_again(offset)
            case RestartAtLogStart(offset):
                self._restart_log(offset)
                hot.lower_start(offset)
        self.fetch_error = found.why if isinstance(found, Retry) else ""
        self._update_offsets(part)
        return found if isinstance(found, RestoreFromBucket | Retry | NoAction) else None

    def _append(self, part: FetchedPartition) -> None:
        try:
            self.log.append_as_follower(part.records, now_ms=self._clock.wall_ms(), may_have_gaps=part.may_have_gaps)
        except Refused as refused:
            self._disk.on_append_refused(refused, self.log)
            raise
        if self._disk.full is not None:
            self._disk.note_append(len(part.records))

    def _truncate(self, offset: int, part: FetchedPartition) -> None:
        # Below the high watermark only after an unclean election or a reported loss; else it is a bug.
        end, high_watermark = self.log.end_offset, self.high_watermark
        if self._truncate_to(offset):
            log.log(
                logging.ERROR if offset < high_watermark else logging.WARNING,
                "log truncated partition=%s offset=%d end=%d high_watermark=%d leader=%d epoch=%d diverging=%s",
                self.tp, offset, end, high_watermark, self.leader, self.leader_epoch, part.diverging_epoch,
            )  # fmt: skip

    def _truncate_to(self, offset: int) -> bool:
        """Truncates the log, perhaps only by whole segments: the leader's next reply truncates the rest. Returns False,
        and does nothing, until the lower recovery point is durable."""
        if not self.log.plan_truncation(offset):
            return False
        self.log.truncate_to(offset)
        self.high_watermark = min(self.high_watermark, self.log.end_offset)
        self.log.producers.txns.on_high_watermark(self.high_watermark)
        return True

    def _find_open_from(self) -> int | None:
        """Returns where the oldest open transaction begins that this replica has not copied again, or None. A replica
        that has all committed records need not copy again: nothing is cleaned above the high watermark."""
        first, copied = self.log.producers.txns.first_offset, self._copied_again_from
        if not self.lag or first is None or (copied is not None and first >= copied):
            return None
        return first

    def _copy_again(self, offset: int) -> None:
        end, self._cut_to = self.log.end_offset, offset
        if self._truncate_to(offset):
            log.warning(
                "log is copied again from an open transaction partition=%s offset=%d end=%d leader=%d epoch=%d",
                self.tp, offset, end, self.leader, self.leader_epoch,
            )  # fmt: skip
            if self.log.end_offset <= offset:
                self._copied_again_from, self._cut_to = offset, None

    def _restart_log(self, offset: int) -> None:
        log.info("log restarted empty partition=%s offset=%d end=%d", self.tp, offset, self.log.end_offset)
        self.log.truncate_fully_and_start_at(offset, (), None)

    def _update_offsets(self, part: FetchedPartition) -> None:
        """Takes over the offsets that the reply carries beside records: cold end, high watermark and log start."""
        hot = self.log
        if part.code or part.diverging_epoch is not None:
            return
        self._has_heard_leader = True
        if not self.lag:
            self._copied_again_from = None
        self._leader_local_start = part.local_start_offset
        if part.cold_end_offset:  # the leader has a manifest: it puts each deletion there before it says so
            self.cold_end_offset = max(self.cold_end_offset, part.cold_end_offset)
            self._manifest_start_offset = max(self._manifest_start_offset, part.log_start_offset)
        high_watermark = follower_step.next_high_watermark(self.high_watermark, part.high_watermark, hot.end_offset)
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            hot.producers.txns.on_high_watermark(high_watermark)
            self.listeners.notify()
        if part.log_start_offset > hot.start_offset:
            hot.advance_start(part.log_start_offset)

    async def restore_from_bucket(self, cold: ColdTier) -> None:
        """Restarts the log at the cold end, with the leader epochs and producer state that the bucket has for the
        records below. Raises `Unavailable` and `Corrupt` (the bucket or the disk)."""
        hot, end = self.log, self.log.end_offset
        manifest = await cold.manifests.load(self.partition_id)
        known = FollowerLog(hot.local_start_offset, end, hot.epochs)
        if manifest is None or (
            manifest.cold_end_offset <= end
            and not known.lacks_history(manifest.log_start_offset, manifest.cold_end_offset)
        ):
            raise Unavailable(f"the log of {self.tp} ends at {end}, and the bucket does not have more of it")
        history = await read_history(cold, manifest)
        if self.is_stopped or self.log.end_offset != end:
            return
        log.info("log restarted at the cold end partition=%s offset=%d end=%d", self.tp, history.offset, end)
        restart_at_cold_end(self.log, history)
        self.cold_end_offset = self.high_watermark = history.offset

    # -- housekeeping -------------------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Closes the active segment."""
        self._disk.roll(self.log)

    async def apply_local_retention(self) -> None:
        """Deletes local segments below the log start, and those that local retention permits to delete and that the
        bucket has. The log of a compacted topic keeps no cold segment that the leader has dropped (I32)."""
        hot, config = self.log, self.config
        cold_end = self.cold_end_offset if config.remote_storage_enable else 0
        below = retention.find_local_start(
            hot.segments.closed(), hot.segments.active, config, self._clock.wall_ms(),
            cold_end=min(cold_end, self.high_watermark),
            clean_to=self._leader_local_start if is_compacted(config) else 0,
        )  # fmt: skip
        await hot.drop_local_below(max(below, hot.start_offset))
