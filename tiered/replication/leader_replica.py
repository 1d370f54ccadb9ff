"""One partition that this broker leads: what producers write, followers copy and the metadata log says of it.

Binds the rules of `partition.py` and `diverging.py` to a log. Nothing here decides what is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from tiered.errors import Code, Corrupt, Fenced, Refused, Unavailable
from tiered.hot.disk_log import DiskLog, LogAppendInfo
from tiered.ids import TopicId, TopicPartition
from tiered.peers import DivergingEpoch, PartitionFetch
from tiered.ports import Clock
from tiered.replication.become_leader import LeaderStart
from tiered.replication.divergence import LeaderLog, validate_offset_and_epoch
from tiered.replication.leader_reads import LeaderReads
from tiered.replication.leader_state import LeaderState, ProposedIsr
from tiered.replication.purgatory import ProgressListener, add_listener
from tiered.replication.read_result import FollowerReadResult, RecordBytes
from tiered.replication.replica_events import ReplicaEvents
from tiered.replication.replication_quota import ThrottledReplicas
from tiered.replication.storage import ColdTier, DiskState

ACKS_ALL = -1
"""acks: every in-sync replica."""


@dataclass(frozen=True)
class LeaderPorts:
    """The parts that all leader replicas of one broker share.

    `has_controller_contact` returns True if the broker has contact with the controller (R6). `save_offsets` writes the
    start offsets of all logs durably.
    """

    cold: ColdTier
    clock: Clock
    disk: DiskState
    events: ReplicaEvents
    has_controller_contact: Callable[[], bool]
    save_offsets: Callable[[], Awaitable[None]]


class LeaderReplica(LeaderReads):
    """A partition that this broker leads. No other broker changes its manifest after the takeover
    (`takeover_pending`)."""

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        log: DiskLog,
        state: LeaderState,
        start: LeaderStart,
        ports: LeaderPorts,
    ) -> None:
        super().__init__(tp, topic_id, log, state, ports.cold, start.manifest)
        self.restarted_at_cold_end = start.restart is not None and not start.restart.empty
        self.initial_cold_end_offset = _initial_cold_end_offset(start)
        """All records below were in the bucket when this leader began."""
        self.on_next_append: Callable[[], None] | None = None
        """Called with the next append, once: the cluster counts on it that all of the log is in the bucket."""
        self._takeover_pending = start.takeover_pending
        self._clock = ports.clock
        self._disk = ports.disk
        self._events = ports.events
        self._has_controller_contact = ports.has_controller_contact
        self._save_offsets = ports.save_offsets
        self._throttled_replicas = ThrottledReplicas()
        self.follower_reads_enabled = False
        """Whether consumers were sent to followers, who then have to hear of the high watermark at once."""
        self.pending_deletions = 0
        """Callers of `delete_records` that wait for followers, who then have to hear of the log start at once."""
        self._deletion_event = asyncio.Event()
        """Set, and another one put in its place, when what these callers wait for may have come."""
        self._loss_reported: asyncio.Event | None = None
        """Set once the cluster has heard of a loss; None where it has, or where there is none."""
        self._end_listeners: dict[tuple[ProgressListener, int], None] = {}
        self._segments_seen = log.segment_count
        if state.high_watermark:
            log.producers.on_high_watermark(state.high_watermark)
        state.record_deletion(self.log_start_offset)
        self._advance(log.flushed_offset if log.synced_entry.fsynced_only else log.end_offset)

    @property
    def commits_on_append(self) -> bool:
        """True if what `append_now` wrote is committed by then: it waits for no other replica, for no fsync, and for
        nothing to be told."""
        return self.state.is_sole_member and not self.log.synced_entry.fsynced_only and self._loss_reported is None

    # -- a loss that is still to be told ------------------------------------------------------------------------------

    @property
    def has_unreported_loss(self) -> bool:
        """True if records may be gone and the cluster has not heard of the loss: nothing is written before that.
        The next start would tell of a loss behind what was written."""
        return self._loss_reported is not None

    def block_appends(self) -> None:
        """Takes no records until `told`."""
        self._loss_reported = asyncio.Event()

    def on_loss_reported(self) -> None:
        """The cluster has heard of the loss, or this broker leads the partition no more."""
        loss_reported, self._loss_reported = self._loss_reported, None
        if loss_reported is not None:
            loss_reported.set()

    async def wait_loss_reported(self) -> None:
        """Returns once nothing is to be told of it, or it is led here no more."""
        if self._loss_reported is not None:
            await self._loss_reported.wait()

    async def _wait_loss_reported_within(self, timeout_ms: int) -> int:
        """How much of that time is left then."""
        until_ns = self._clock.mono_ns() + timeout_ms * 1_000_000
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await self.wait_loss_reported()
        return max(0, (until_ns - self._clock.mono_ns()) // 1_000_000)

    # -- produce ------------------------------------------------------------------------------------------------------

    async def append(
        self, data: bytearray | memoryview, *, acks: int = ACKS_ALL, timeout_ms: int = 30_000, deep: bool = False
    ) -> LogAppendInfo:
        """One or more produced batches, stamped in place. With acks=all it answers once they are committed, and fsynced
        where the topic says `flush=ack`; alone in the ISR and without that, in the same turn of the loop. It waits
        until a loss is told.

        `Refused`: what admission says, NOT_ENOUGH_REPLICAS, KAFKA_STORAGE_ERROR (full or dead disk), REQUEST_TIMED_OUT
        (the records are in the log and may yet be committed).
        """
        if self._loss_reported is not None:
            timeout_ms = await self._wait_loss_reported_within(timeout_ms)
        appended = self.append_now(data, acks, deep)
        end = appended.last_offset + 1
        if acks == ACKS_ALL and not self.is_committed(end):
            await self.wait_committed(end, timeout_ms)
        return appended

    def append_now(self, data: bytearray | memoryview, acks: int, deep: bool = False) -> LogAppendInfo:
        """Judges, stamps in place and writes. Where acks=all asks for more than that, `committed` says whether it is
        done already and `until_committed` waits for it. `Refused` as with `append`, but never REQUEST_TIMED_OUT, and
        NOT_LEADER_OR_FOLLOWER while a loss is to be told."""
        if self._stop_error is not None:
            raise self._stop_error
        if self._loss_reported is not None:
            why = f"records of {self.tp} may be gone, and the cluster has not heard of it yet"
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, why)
        config = self.log.config
        if acks == ACKS_ALL:
            self._require_controller_contact()
            if not self.state.has_min_isr(config.min_insync_replicas):
                raise Refused(Code.NOT_ENOUGH_REPLICAS, f"{len(self.state.isr)} replicas of {self.tp} are in sync")
        elif acks not in (0, 1):
            raise Refused(Code.INVALID_REQUIRED_ACKS, f"acks={acks} is not -1, 0 or 1")
        appended = self._write(data, deep)
        if not self.log.synced_entry.fsynced_only:
            self._advance(self.log.end_offset)
        if self._end_listeners:
            self._notify_end_listeners()
        return appended

    def _require_controller_contact(self) -> None:
        """`Refused` where another broker may lead by now (rule R6)."""
        if len(self.state.replicas) > 1 and not self._has_controller_contact():
            why = f"no controller is heard: another broker may lead {self.tp} by now"
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, why)

    def is_committed(self, end: int) -> bool:
        """Whether everything below `end` is."""
        return self.state.high_watermark >= end

    async def wait_committed(self, end: int, timeout_ms: int) -> None:
        """Returns once everything below `end` is committed, which with `flush=ack` takes an fsync that is made here.
        `Refused`: REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND (replicas left the ISR meanwhile),
        KAFKA_STORAGE_ERROR, or why this broker leads the partition no more."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if self.log.synced_entry.fsynced_only:
                    await self.flush(end)
                while not self.is_committed(end):
                    await self._wait_wakeup(end)
                    if not self.is_committed(end) and not self.state.has_min_isr(self.log.config.min_insync_replicas):
                        why = f"records below {end} of {self.tp} are on too few replicas: some left the in-sync set"
                        raise Refused(Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, why)
        except TimeoutError:
            raise Refused(
                Code.REQUEST_TIMED_OUT, f"records below {end} of {self.tp} are not committed after {timeout_ms} ms"
            ) from None
        except Unavailable as error:
            raise Refused(Code.KAFKA_STORAGE_ERROR, f"fsync of {self.tp} failed: {error}") from None

    def _write(self, data: bytearray | memoryview, deep: bool) -> LogAppendInfo:
        disk, hot = self._disk, self.log
        if disk.dead is not None:
            raise Refused(Code.KAFKA_STORAGE_ERROR, f"the data directory failed: {disk.dead.why}")
        try:
            appended = hot.append(
                data, leader_epoch=self.state.leader_epoch, now_ms=self._clock.wall_ms(), check_each_record=deep
            )
        except Refused as refused:
            disk.on_append_refused(refused, hot)
            raise
        traffic = self.traffic
        traffic.bytes_in += len(data)
        traffic.records_in += 0 if appended.is_duplicate else appended.last_offset + 1 - appended.base_offset
        if disk.full is not None:
            disk.mark_writable()
        if hot.segment_count != self._segments_seen:
            self._segments_seen = hot.segment_count
            self._events.on_segment_closed(self)
        if self.on_next_append is not None:
            on_next_append, self.on_next_append = self.on_next_append, None
            on_next_append()
        return appended

    async def flush(self, end: int | None = None) -> None:
        """fsyncs up to `end` (None: all). A failed fsync ends the use of the directory, a full disk does not."""
        flushed = await self._disk.flush(self.log, end)
        if self._stop_error is None:
            self._advance(flushed if self.log.synced_entry.fsynced_only else self.log.end_offset)

    def _advance(self, position: int) -> None:
        if not self.state.advance(position, self.log.config.min_insync_replicas):
            return
        high_watermark = self.state.high_watermark
        self.log.producers.on_high_watermark(high_watermark)
        if self._listeners or self._parked:
            self._wake_up_to(high_watermark)

    def _on_high_watermark(self) -> None:
        """The high watermark, by what others have."""
        self.log.producers.on_high_watermark(self.state.high_watermark)
        self._wake_up_to(self.state.high_watermark)

    # -- followers ----------------------------------------------------------------------------------------------------

    def handle_follower_fetch(
        self, broker: int, incarnation: int, request: PartitionFetch, max_bytes: int
    ) -> FollowerReadResult:
        """Records for a follower, up to the log end; that it asks for them says that it has all below (R2, R6). With no
        room left (`max_bytes` 0) only that is noted. The caller has made sure that this incarnation is registered.

        `Refused`: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, STALE_BROKER_EPOCH (another incarnation, or no replica),
        KAFKA_STORAGE_ERROR (the records are damaged), or why this broker leads it no more."""
        if self._stop_error is not None:
            raise self._stop_error
        log = self.log
        data: RecordBytes = b""
        leader_log = LeaderLog(
            self.leader_epoch, self.log_start_offset, log.local_start_offset, log.end_offset, log.epochs
        )
        verdict, local_start = validate_offset_and_epoch(request, leader_log), leader_log.local_start
        if verdict is Code.NONE:
            self._record_fetch(broker, incarnation, request)
            try:
                data = self._read_for_follower(request.offset, max_bytes)
            except Corrupt as error:
                if request.offset >= self.cold_end_offset:
                    raise Refused(Code.KAFKA_STORAGE_ERROR, str(error)) from None
                # What a damaged file lacks is cold: the follower begins behind it.
                verdict, local_start = Code.OFFSET_MOVED_TO_TIERED_STORAGE, self.cold_end_offset
        return FollowerReadResult(
            Code.NONE if isinstance(verdict, DivergingEpoch) else verdict,
            verdict if isinstance(verdict, DivergingEpoch) else None,
            data,
            self.state.high_watermark,
            leader_log.log_start,
            local_start,
            self.cold_end_offset,
        )

    def handle_repeated_fetch(self, broker: int, incarnation: int, offset: int, now_ns: int) -> bool:
        """The short way for a follower in sync whose last question is repeated word for word, at the log end: it is
        noted, and there is nothing for it. False, and nothing done, when `follower_fetched` has to look."""
        return (
            self._stop_error is None
            and offset == self.log.end_offset
            and self.state.record_repeated_fetch(broker, incarnation, offset, now_ns)
        )

    def is_follower_throttled(self, broker: int) -> bool:
        """Whether what `broker` copies from here is held to a rate: not while it is in sync."""
        entries, state = self.config.leader_replication_throttled_replicas, self.state
        return (
            bool(entries)
            and broker not in state.isr
            and self._throttled_replicas(entries, self.partition, state.node_id)
        )

    def enable_follower_reads(self) -> None:
        """Consumers are sent to followers from now on: these hear of the high watermark as soon as it moves."""
        if not self.follower_reads_enabled:
            self.follower_reads_enabled = True
            self._notify_end_listeners()

    def _read_for_follower(self, offset: int, max_bytes: int) -> RecordBytes:
        if max_bytes <= 0:
            return b""
        return self.log.read(offset, max_bytes, end_offset=self.log.end_offset) or b""

    def _record_fetch(self, broker: int, incarnation: int, request: PartitionFetch) -> None:
        state, end, now_ns = self.state, self.log.end_offset, self._clock.mono_ns()
        try:
            moved = state.record_fetch(
                broker, incarnation, request.offset,
                log_end=end, now_ns=now_ns, min_isr=self.log.config.min_insync_replicas,
                log_start=request.log_start_offset, local_start=request.local_start_offset,
            )  # fmt: skip
        except Fenced as error:
            raise Refused(Code.STALE_BROKER_EPOCH, f"{self.tp}: {error}") from None
        if moved:
            self._on_high_watermark()
        self._wake_deletions()
        if broker not in state.isr and state.can_join_isr(broker):
            self._events.on_follower_caught_up(self)

    def add_end_listener(self, listener: ProgressListener, index: int) -> None:
        """Tells `watcher.woken(place)` whenever something was appended or this broker leads the partition no more,
        until `unwatch_end`. It must not change who watches. `Refused` when too many do."""
        if self._stop_error is not None:
            raise self._stop_error
        add_listener(self._end_listeners, listener, index)

    def remove_end_listener(self, listener: ProgressListener, index: int) -> None:
        """No more of that; harmless when there was none."""
        self._end_listeners.pop((listener, index), None)

    def _notify_end_listeners(self) -> None:
        for listener, index in self._end_listeners:
            listener.on_progress(index)

    # -- the in-sync set ----------------------------------------------------------------------------------------------

    def apply_isr(self, isr: Collection[int], replicas: Collection[int], partition_epoch: int) -> None:
        """The metadata log has another in-sync set under the same leader epoch."""
        if self.state.apply_isr(isr, replicas, partition_epoch, self.log.config.min_insync_replicas):
            self._on_high_watermark()
        self._wake_deletions()
        self._wake_if_below_min_isr()

    def reject_isr_change(self, proposed: ProposedIsr) -> None:
        """The controller refused it."""
        if self.state.reject_isr_change(proposed, self.log.config.min_insync_replicas):
            self._on_high_watermark()
        self._wake_deletions()

    def on_config_changed(self) -> None:
        """Other settings are in force: fewer in-sync replicas may be enough, or no more, and what is not fsynced may
        count from now on."""
        self._advance(self.state.end if self.log.synced_entry.fsynced_only else self.log.end_offset)
        self._wake_deletions()
        self._wake_if_below_min_isr()

    def _wake_if_below_min_isr(self) -> None:
        if not self.state.has_min_isr(self.log.config.min_insync_replicas):
            self._wake_all()

    # -- the end of things --------------------------------------------------------------------------------------------

    async def delete_records(self, before: int) -> int:
        """The log starts at `before` (-1: the high watermark) from now on. Returns the log start once no later leader
        can serve what lies below `before`; a caller that gives up before leaves the deletion under way.

        `Refused`: OFFSET_OUT_OF_RANGE beyond the high watermark, or why this broker leads the partition no more.
        `Fenced`, `Unavailable` (the bucket or the disk)."""
        before = self.high_watermark if before == -1 else before
        if not 0 <= before <= self.high_watermark:
            raise Refused(Code.OFFSET_OUT_OF_RANGE, f"offset {before} of {self.tp} is beyond the high watermark")
        self._require_controller_contact()
        manifest = self.manifest
        tiered = self.config.remote_storage_enable or manifest is not None
        if tiered and before > (manifest.log_start_offset if manifest is not None else 0):
            manifest = manifest or await self.cold.manifests.take_over(self.partition_id, self.topic, self.leader_epoch)
            self.manifest = await self.cold.collector.advance_start(manifest, self.leader_epoch, before)
        self.advance_start(before)
        self.state.record_deletion(before)  # not earlier: what the bucket does not take keeps no follower out
        if self.manifest is None and self.log.checkpointed_start_offset < before:
            await self._save_offsets()
        await self._wait_deleted(before)
        return self.log_start_offset

    def advance_start(self, before: int) -> None:
        """Serves no records below `before` from now on. No later leader need know of it. `Refused` when another broker
        leads the partition, or may."""
        if self._stop_error is not None:
            raise self._stop_error
        self._require_controller_contact()
        if before > self.log.start_offset:
            self.log.advance_start(before)

    async def _wait_deleted(self, before: int) -> None:
        """Returns once the in-sync set, which the next leader comes from, knows under this leader epoch that the log
        starts at `before`: who follows another leader does not say so here, and may have read the manifest before."""
        if not self._is_deleted(before):
            self.pending_deletions += 1
            try:
                self._notify_end_listeners()
                while not self._is_deleted(before):
                    await self._deletion_event.wait()
            finally:
                self.pending_deletions -= 1
        if self._stop_error is not None:
            raise self._stop_error
        self._require_controller_contact()

    def _is_deleted(self, before: int) -> bool:
        """True if nobody need wait for the deletion any more. A member that left the in-sync set below
        `min.insync.replicas` may lead too, and may have read the manifest before the deletion."""
        if self._stop_error is not None:
            return True
        return self.state.has_min_isr(self.log.config.min_insync_replicas) and self.state.is_deleted_on_isr(before)

    def _wake_deletions(self) -> None:
        if self.pending_deletions:
            self._deletion_event.set()
            self._deletion_event = asyncio.Event()

    @property
    def takeover_pending(self) -> bool:
        """Whether an earlier leader may still change the manifest."""
        return self._takeover_pending and (self.manifest is None or self.manifest.leader_epoch != self.leader_epoch)

    def roll(self) -> None:
        """Closes the active segment, so that it can go up."""
        self.log.roll()
        self._segments_seen = self.log.segment_count
        self._events.on_segment_closed(self)

    def resign(self, why: Refused) -> None:
        """Nobody is served here any more: `why` is the answer to all, those who wait included."""
        self._stop_error = why
        self.on_loss_reported()
        self._wake_all()
        self._wake_deletions()
        self._notify_end_listeners()


def _initial_cold_end_offset(start: LeaderStart) -> int:
    if start.manifest is not None:
        return start.manifest.cold_end_offset
    return start.restart.offset if start.restart is not None else 0
