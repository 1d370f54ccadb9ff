"""One partition that this broker follows: its log, and what becomes of it by the leader's answers.

Binds the rules of `following.py` to a log. After every cut the log is made durable before it grows again: a power cut
must not bring back parts of two histories.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tiered.errors import Refused, Unavailable
from tiered.hot import retention
from tiered.hot.disk_log import DiskLog
from tiered.ids import NO_EPOCH, PartitionId, TopicId, TopicPartition
from tiered.peers import FetchedPartition, PartitionFetch
from tiered.ports import Clock
from tiered.replication import follower_step
from tiered.replication.cold_history import read_history, restart_at_cold_end
from tiered.replication.follower_step import (
    Append,
    FollowerLog,
    NoAction,
    RestartAtLogStart,
    RestoreFromBucket,
    Retry,
    Truncate,
)
from tiered.replication.purgatory import ProgressListener, add_listener
from tiered.replication.replication_quota import ThrottledReplicas
from tiered.replication.storage import ColdTier, DiskState

if TYPE_CHECKING:
    from tiered.config.settings import TopicConfig

log = logging.getLogger(__name__)


class FollowerReplica:
    """Follows `leader` under `leader_epoch`. `high_watermark` is what is known to be committed, of what is here. `gone`
    once this broker leads the partition, follows another leader, or holds it no more: then nothing here may change the
    log."""

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        hot: DiskLog,
        leader: int,
        leader_epoch: int,
        *,
        high_watermark: int,
        clock: Clock,
        disk: DiskState,
        save_offsets: Callable[[], Awaitable[None]],
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.partition_id = PartitionId(topic_id, tp.partition)
        self.log = hot
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.high_watermark = min(high_watermark, hot.end_offset)
        self.cold_end_offset = 0
        self.leader_high_watermark = 0
        """The leader's high watermark, as it told last."""
        self._listeners: dict[tuple[ProgressListener, int], None] = {}
        self.is_stopped = False
        self.fetch_error = ""
        """Why it does not go on; empty while it does."""
        self._throttled_replicas = ThrottledReplicas()
        self._clock = clock
        self._disk = disk
        self._save_offsets = save_offsets

    @property
    def config(self) -> TopicConfig:
        """The settings in force; may change at any time."""
        return self.log.config

    @property
    def lag(self) -> int:
        """Records that are committed and not here, as far as the leader has told."""
        return max(0, self.leader_high_watermark - self.log.end_offset)

    def is_throttled(self, node_id: int) -> bool:
        """Whether the topic holds this replica, on broker `node_id`, to a rate."""
        return self._throttled_replicas(self.config.follower_replication_throttled_replicas, self.tp.partition, node_id)

    def stop(self) -> None:
        """It is followed no more; who reads here looks elsewhere."""
        self.is_stopped = True
        self._notify_listeners()

    def add_listener(self, listener: ProgressListener, index: int) -> None:
        """Tells `watcher.woken(place)` whenever more is known to be committed, until `unwatch`. It must not change who
        watches. `Refused` when too many do."""
        add_listener(self._listeners, listener, index)

    def remove_listener(self, listener: ProgressListener, index: int) -> None:
        """No more of that; harmless when there was none."""
        self._listeners.pop((listener, index), None)

    def _notify_listeners(self) -> None:
        for listener, index in self._listeners:
            listener.on_progress(index)

    def build_fetch(self) -> PartitionFetch:
        """What it asks its leader for: all from its end on. That says that it has all below, so nothing may be missing
        below, nor, with `flush=ack`, be unsynced; and that what lies below its log start never comes back."""
        hot, end = self.log, self.log.end_offset
        last_epoch = hot.epochs.epoch_at(end - 1) if end else NO_EPOCH
        return PartitionFetch(
            self.topic_id, self.tp.partition, self.leader_epoch, end, last_epoch, hot.start_offset,
            hot.local_start_offset,
        )  # fmt: skip

    @property
    def is_durable(self) -> bool:
        """True if all that `asks` says outlives the process and, where the topic wants that, the power."""
        return not self._must_flush and not self._must_save_offsets

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
        """The manifest says where a tiered log starts, so its leaders know without a note."""
        return self.log.checkpointed_start_offset < self.log.start_offset and not self.config.remote_storage_enable

    async def make_durable(self) -> None:
        """Makes all durable that `asks` says. `Unavailable`; a failed fsync ends the use of the directory."""
        if self._must_flush:
            await self.flush()
        if self._must_save_offsets:
            await self._save_offsets()

    async def flush(self, end: int | None = None) -> None:
        """fsyncs up to `end` (None: all). `Unavailable`; a failed fsync ends the use of the directory."""
        unsettled = end is None and self.log.truncations.is_unsettled
        await self._disk.flush(self.log, end)
        if unsettled:
            await self._save_offsets()

    def apply_reply(
        self, request: PartitionFetch, part: FetchedPartition
    ) -> RestoreFromBucket | Retry | NoAction | None:
        """Does what follows from the answer to `asked`, as far as it can be done at once; what is left to do, `Nothing`
        where there was no news. `Refused`, `Unavailable` (the disk)."""
        if self.is_stopped:
            return NoAction()
        if not part.code and part.diverging_epoch is None:
            self.leader_high_watermark = part.high_watermark
        hot = self.log
        found = follower_step.decide_step(
            request, part, FollowerLog(hot.local_start_offset, hot.end_offset, hot.epochs)
        )
        match found:
            case Append(base):
                if base < hot.end_offset:  # nothing is held: nothing of it can come back between these records
                    self._restart_log(base)
                self._append(part)
            case Truncate(offset):
                self._truncate(offset, part)
            case RestartAtLogStart(offset):
                self._restart_log(offset)
                hot.lower_start(offset)
        self.fetch_error = found.why if isinstance(found, Retry) else ""
        self._update_offsets(part)
        return found if isinstance(found, RestoreFromBucket | Retry | NoAction) else None

    def _append(self, part: FetchedPartition) -> None:
        try:
            self.log.append_as_follower(part.records, now_ms=self._clock.wall_ms())
        except Refused as refused:
            self._disk.on_append_refused(refused, self.log)
            raise
        if self._disk.full is not None:
            self._disk.mark_writable()

    def _truncate(self, offset: int, part: FetchedPartition) -> None:
        below_high_watermark = (
            offset < self.high_watermark
        )  # after an unclean election or a loss that is told: else a bug
        log.log(
            logging.ERROR if below_high_watermark else logging.WARNING,
            "log is cut partition=%s offset=%d end=%d high_watermark=%d leader=%d epoch=%d diverging=%s",
            self.tp, offset, self.log.end_offset, self.high_watermark, self.leader, self.leader_epoch,
            part.diverging_epoch,
        )  # fmt: skip
        self.log.truncate_to(offset)
        self.high_watermark = min(self.high_watermark, self.log.end_offset)

    def _restart_log(self, offset: int) -> None:
        log.info("log begins anew partition=%s offset=%d end=%d", self.tp, offset, self.log.end_offset)
        self.log.truncate_fully_and_start_at(offset, (), None)

    def _update_offsets(self, part: FetchedPartition) -> None:
        """What the leader said of the partition, beside its records."""
        hot = self.log
        if part.code or part.diverging_epoch is not None:
            return
        self.cold_end_offset = max(self.cold_end_offset, part.cold_end_offset)
        high_watermark = follower_step.next_high_watermark(self.high_watermark, part.high_watermark, hot.end_offset)
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            hot.producers.on_high_watermark(high_watermark)
            self._notify_listeners()
        if part.log_start_offset > hot.start_offset:
            hot.advance_start(part.log_start_offset)

    async def restore_from_bucket(self, cold: ColdTier) -> None:
        """Begins anew at the cold end, with what the bucket knows of all below. `Unavailable`, `Corrupt` (the bucket or
        the disk)."""
        end = self.log.end_offset
        manifest = await cold.manifests.load(self.partition_id)
        if manifest is None or manifest.cold_end_offset <= end:
            raise Unavailable(f"{self.tp} ends at {end}, and the bucket does not have more of it")
        history = await read_history(cold, manifest)
        if self.is_stopped or self.log.end_offset != end:
            return
        log.info("log begins behind what is cold partition=%s offset=%d end=%d", self.tp, history.offset, end)
        restart_at_cold_end(self.log, history)
        self.cold_end_offset = self.high_watermark = history.offset

    # -- housekeeping -------------------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Closes the active segment."""
        self.log.roll()

    async def apply_local_retention(self) -> None:
        """Drops local segments that local retention lets go and the bucket has, and what lies below the log start."""
        hot, config = self.log, self.config
        cold_end = self.cold_end_offset if config.remote_storage_enable else 0
        below = retention.find_local_start(
            hot.closed_segments(), hot.active_view, config, self._clock.wall_ms(),
            cold_end=min(cold_end, self.high_watermark),
        )  # fmt: skip
        await hot.drop_local_below(max(below, hot.start_offset))
