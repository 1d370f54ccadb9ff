"""One partition that this broker leads: appends from producers, fetches from followers, ISR changes (R2, R6).

Binds the rules of `leader_state` and `divergence` to a log. Does not decide what is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from tiered.cold.manifest import Manifest
from tiered.compaction.cleanable_range import DELETE, CleanableRange, is_compacted
from tiered.config.settings import TopicConfig
from tiered.errors import Code, Corrupt, Fenced, Refused, Unavailable
from tiered.hot.batch_opening import open_in_thread
from tiered.hot.disk_log import DiskLog, LogAppendInfo
from tiered.hot.validation import OpenedBatch, RecordsUnopened
from tiered.ids import UNKNOWN_END, TopicId, TopicPartition
from tiered.peers import DivergingEpoch, PartitionFetch
from tiered.ports import Buffer, Clock
from tiered.producers.verification import UnverifiedProducer, VerificationGuard
from tiered.records.batch import decode_header
from tiered.records.marker import TransactionMarker, encode_marker
from tiered.records.model import ATTRIBUTES_END, HEADER_BYTES, PRODUCER, PRODUCER_AT, TRANSACTIONAL
from tiered.replication.become_leader import LeaderStart
from tiered.replication.cold_tier import ColdTier
from tiered.replication.disk_state import DiskState
from tiered.replication.divergence import LeaderLog, validate_offset_and_epoch
from tiered.replication.leader_reads import LeaderReads
from tiered.replication.leader_state import LeaderState, ProposedIsr
from tiered.replication.read_result import FollowerReadResult, RecordBytes
from tiered.replication.replication_quota import ThrottledReplicas
from tiered.replication.unified_log import UnifiedLog

ACKS_ALL = -1
"""Producer acks: wait for every in-sync replica."""


class LeaderEvents(Protocol):
    """The receiver of what leader replicas report. Each method is called from the event loop, in the turn in which the
    event happens. It returns at once and raises nothing."""

    def on_segment_closed(self, replica: LeaderReplica) -> None:
        """The log has a closed segment more, which may be uploaded."""

    def on_follower_caught_up(self, replica: LeaderReplica) -> None:
        """A follower that is not in the ISR has enough of the log to join it."""


@dataclass(frozen=True)
class LeaderPorts:
    """The parts that all leader replicas of one broker share.

    `has_controller_contact` returns True if the broker has contact with the controller (R6). `save_offsets` writes the
    start offsets of all logs durably.
    """

    cold: ColdTier
    clock: Clock
    disk: DiskState
    events: LeaderEvents
    has_controller_contact: Callable[[], bool]
    save_offsets: Callable[[], Awaitable[None]]


class LeaderReplica:
    """The leader replica of one partition; `reads` serves its readers. No other broker changes its manifest, once it is
    taken over (`takeover_pending`)."""

    __slots__ = (
        "_clock",
        "_deletion_event",
        "_disk",
        "_events",
        "_has_controller_contact",
        "_loss_reported",
        "_lost_markers",
        "_save_offsets",
        "_segments_seen",
        "_takeover_pending",
        "_throttled_replicas",
        "cleanable_in_bucket",
        "cold",
        "epoch_start",
        "initial_cold_end_offset",
        "led_since_slot",
        "log",
        "on_next_append",
        "partition",
        "partition_id",
        "pending_deletions",
        "possible_loss",
        "reads",
        "restarted_at_cold_end",
        "state",
        "topic",
        "topic_id",
        "tp",
        "traffic",
        "unified_log",
        "upload_problem",
    )

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        log: DiskLog,
        state: LeaderState,
        start: LeaderStart,
        ports: LeaderPorts,
    ) -> None:
        self.tp = tp
        self.topic, self.partition = tp
        self.topic_id = topic_id
        self.log = log
        self.cold = ports.cold
        self.state = state
        self.unified_log = UnifiedLog(tp, topic_id, log, ports.cold, start.manifest)
        self.partition_id = self.unified_log.partition_id
        self.reads = LeaderReads(self.unified_log, state)
        self.traffic = log.traffic
        self.epoch_start = log.end_offset
        self.led_since_slot = 0
        """Slot of the image by which this broker leads. It wrote no record of this leader epoch before."""
        self.upload_problem = ""
        self.cleanable_in_bucket: CleanableRange | None = None
        """The part of the bucket that a clean may read, as of the last look; None before it."""
        self.possible_loss: dict[str, int] | None = None
        self.restarted_at_cold_end = start.restart is not None and not start.restart.empty
        self.initial_cold_end_offset = _initial_cold_end_offset(start)
        """All records below were in the bucket when this leader epoch started."""
        self.on_next_append: Callable[[], None] | None = None
        """Called once, with the next append: the metadata log says that the whole log is in the bucket, which is no
        longer true then."""
        self._takeover_pending = start.takeover_pending
        self._lost_markers = list(start.lost_markers)
        """Markers that have to be written before any other record."""
        self._clock = ports.clock
        self._disk = ports.disk
        self._events = ports.events
        self._has_controller_contact = ports.has_controller_contact
        self._save_offsets = ports.save_offsets
        self._throttled_replicas = ThrottledReplicas()
        self.pending_deletions = 0
        """Number of `delete_records` callers that wait for followers: followers must then learn a new log start at
        once."""
        self._deletion_event: asyncio.Event | None = None
        """Set, and replaced by a new event, whenever the condition of these callers may have become true. None while
        nobody waits: an event takes as much memory as a tenth of a partition."""
        self._loss_reported: asyncio.Event | None = None
        """Set once the controller has recorded a loss; None if it has already, or if there is none to report."""
        self._segments_seen = log.segments.count
        if state.high_watermark:
            log.producers.txns.on_high_watermark(state.high_watermark)
        state.record_deletion(self.log_start_offset)
        self._advance(log.flushed_offset if log.synced_entry.fsynced_only else log.end_offset)

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def config(self) -> TopicConfig:
        """The topic settings in force; they may change at any time."""
        return self.log.config

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def high_watermark(self) -> int:
        return self.state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """All records below are committed and belong to no open transaction. Never below the log start offset."""
        return self.reads.offset_snapshot()[1]

    @property
    def manifest(self) -> Manifest | None:
        """The newest known list of cold segments; None if there is none as far as is known."""
        return self.unified_log.manifest

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read, hot or cold."""
        return self.unified_log.log_start_offset

    @property
    def local_start_offset(self) -> int:
        return self.log.local_start_offset

    @property
    def cold_end_offset(self) -> int:
        """All records from the log start up to here are in the bucket; 0 if none ever was."""
        return self.unified_log.cold_end_offset

    @property
    def may_have_cold_records(self) -> bool:
        """False if no record is in the bucket."""
        return self.cold_end_offset > 0

    @property
    def stored_end(self) -> int:
        """The log end, if all records ever written are committed and each is in the bucket or deleted; else
        `UNKNOWN_END`. The log of `__consumer_offsets` starts where its last snapshot in the bucket ends."""
        end = self.log.end_offset
        is_stored = self.state.high_watermark == end <= max(self.cold_end_offset, self.log_start_offset)
        return end if is_stored else UNKNOWN_END

    @property
    def is_stopped(self) -> bool:
        """True if this broker has stopped leading the partition."""
        return self.reads.stop_error is not None

    @property
    def commits_on_append(self) -> bool:
        """True if `append_now` commits what it writes: no other replica, fsync or report of a loss has to come
        first."""
        return self.state.is_sole_member and not self.log.synced_entry.fsynced_only and self._loss_reported is None

    # -- a loss that is not reported yet ------------------------------------------------------------------------------

    @property
    def has_unreported_loss(self) -> bool:
        """True if records may be gone and the metadata log does not have the loss yet. No records are appended before
        that: after a restart, the loss would be reported from an offset above the new records."""
        return self._loss_reported is not None

    def block_appends(self) -> None:
        """Blocks appends until `on_loss_reported`."""
        self._loss_reported = asyncio.Event()

    def on_loss_reported(self) -> None:
        """Ends the wait: the metadata log has the loss, or this broker stopped leading the partition."""
        loss_reported, self._loss_reported = self._loss_reported, None
        if loss_reported is not None:
            loss_reported.set()

    async def wait_loss_reported(self) -> None:
        """Returns once no loss waits to be reported, or this broker stopped leading the partition."""
        if self._loss_reported is not None:
            await self._loss_reported.wait()

    async def _wait_loss_reported_within(self, timeout_ms: int) -> int:
        """Waits up to `timeout_ms` for the report of the loss; returns how many milliseconds of it are left."""
        until_ns = self._clock.mono_ns() + timeout_ms * 1_000_000
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await self.wait_loss_reported()
        return max(0, (until_ns - self._clock.mono_ns()) // 1_000_000)

    # -- produce ------------------------------------------------------------------------------------------------------

    async def append(
        self,
        data: bytearray | memoryview,
        *,
        acks: int = ACKS_ALL,
        timeout_ms: int = 30_000,
        deep: bool = False,
        guard: VerificationGuard | None = None,
        holder: str = "",
    ) -> LogAppendInfo:
        """Appends one or more produced batches, and stamps them in place. With acks=all, returns once they are
        committed, which includes an fsync if the topic has `flush=ack`. Returns in the same turn of the event loop if
        this replica is alone in the ISR and needs no fsync. Waits first until a loss is reported.

        A batch that begins a transaction needs a `guard` of `begin_verification`, which the coordinator has confirmed.
        New producers count for `holder`.

        Raises `Refused`: the codes of `validate_batches`, INVALID_TXN_STATE, NOT_LEADER_OR_FOLLOWER,
        NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, KAFKA_STORAGE_ERROR (full or failed disk),
        REQUEST_TIMED_OUT (the records are in the log and may still be committed).
        """
        if self._loss_reported is not None:
            timeout_ms = await self._wait_loss_reported_within(timeout_ms)
        try:
            appended = self.append_now(data, acks, deep, guard, holder=holder)
        except RecordsUnopened:
            opened = await open_in_thread(data, holder)
            appended = self.append_now(data, acks, deep, guard, opened=opened, holder=holder)
        end = appended.last_offset + 1
        if acks == ACKS_ALL and not self.is_committed(end):
            await self.confirm_committed(end, timeout_ms)
        return appended

    def append_now(
        self,
        data: bytearray | memoryview,
        acks: int,
        deep: bool = False,
        guard: VerificationGuard | None = None,
        *,
        from_coordinator: bool = False,
        opened: Sequence[OpenedBatch] = (),
        holder: str = "",
    ) -> LogAppendInfo:
        """Validates the batches, stamps them in place and writes them, without waiting. With acks=all, `is_committed`
        then tells whether they are committed, and `confirm_committed` waits for it. `from_coordinator`: a coordinator
        of this broker writes on behalf of a producer, without sequences. Raises `Refused` like `append`, but never
        REQUEST_TIMED_OUT; NOT_LEADER_OR_FOLLOWER while a loss waits to be reported; `RecordsUnopened` for a batch
        that a thread has to open first, whose result is `opened` then. New producers count for `holder`."""
        self._check_takes_appends(acks)
        self._append_lost_markers()
        return self._append_checked(data, deep, guard, from_coordinator, opened, holder)

    def _append_checked(
        self,
        data: bytearray | memoryview,
        deep: bool,
        guard: VerificationGuard | None,
        from_coordinator: bool,
        opened: Sequence[OpenedBatch] = (),
        holder: str = "",
    ) -> LogAppendInfo:
        appended = self._write(data, deep, guard, from_coordinator, opened, holder)
        if not self.log.synced_entry.fsynced_only:
            self._advance(appended.last_offset + 1)
        if self.reads.end_listeners:
            self.reads.end_listeners.notify()
        return appended

    def _check_takes_appends(self, acks: int) -> None:
        """Raises `Refused` if no append with these acks may be made now."""
        if self.reads.stop_error is not None:
            raise self.reads.stop_error
        if self._loss_reported is not None:
            why = f"records of {self.tp} may be lost, and the loss is not in the metadata log yet: retry"
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, why)
        if acks == ACKS_ALL:
            self._require_controller_contact()
            minimum = self.log.config.min_insync_replicas
            if not self.state.has_min_isr(minimum):
                why = f"{self.tp} has fewer than {minimum} in-sync replicas: {len(self.state.isr)}"
                raise Refused(Code.NOT_ENOUGH_REPLICAS, why)
        elif acks not in (0, 1):
            raise Refused(Code.INVALID_REQUIRED_ACKS, f"acks={acks} is not -1, 0 or 1")

    def _require_controller_contact(self) -> None:
        """Raises `Refused` if another broker may lead the partition by now (R6)."""
        if len(self.state.replicas) > 1 and not self._has_controller_contact():
            why = f"no contact with the controller: another broker may lead {self.tp} by now"
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, why)

    def is_committed(self, end: int) -> bool:
        """True if all records below `end` are committed."""
        return self.state.high_watermark >= end

    async def confirm_committed(self, end: int, timeout_ms: int) -> None:
        """Returns once all records below `end` are committed and may be acknowledged: the broker still has contact with
        the controller. A leader that was replaced uncleanly may learn that replicas left the ISR, before it learns of
        the next leader (R6). Raises `Refused` like `wait_committed`, and NOT_LEADER_OR_FOLLOWER."""
        await self.wait_committed(end, timeout_ms)
        self._require_controller_contact()

    async def wait_committed(self, end: int, timeout_ms: int) -> None:
        """Returns once all records below `end` are committed. With `flush=ack` this method makes the fsync that this
        takes.

        Raises `Refused`: REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND (replicas left the ISR meanwhile),
        KAFKA_STORAGE_ERROR, or the reason why this broker stopped leading the partition.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if self.log.synced_entry.fsynced_only:
                    await self.flush(end)
                while not self.is_committed(end):
                    await self.reads.wait_wakeup(end)
                    if not self.is_committed(end) and not self.state.has_min_isr(self.log.config.min_insync_replicas):
                        why = f"records below {end} of {self.tp} are on too few replicas: some left the ISR"
                        raise Refused(Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, why)
        except TimeoutError:
            raise Refused(
                Code.REQUEST_TIMED_OUT, f"records below {end} of {self.tp} are not committed after {timeout_ms} ms"
            ) from None
        except Unavailable as error:
            raise Refused(Code.KAFKA_STORAGE_ERROR, f"the fsync of {self.tp} failed: {error}") from None

    # -- transactions -------------------------------------------------------------------------------------------------

    def needs_verification(self, records: Buffer) -> UnverifiedProducer | None:
        """Returns the producer of produced records if they would begin a transaction here: its coordinator has to
        confirm first that the partition belongs to the transaction. Looks at the first batch only, as a produce request
        has one for each partition. Records that are no batch need no verification: `append_now` refuses them."""
        if len(records) < HEADER_BYTES or not records[ATTRIBUTES_END - 1] & TRANSACTIONAL:
            return None
        producers = self.log.producers
        if producers.has_ongoing_txn(*PRODUCER.unpack_from(records, PRODUCER_AT)):
            return None
        try:
            head = decode_header(records)
        except Corrupt:
            return None
        return producers.find_unverified(head)

    def begin_verification(
        self, producer_id: int, producer_epoch: int, base_sequence: int = 0, *, moves_epoch: bool = False
    ) -> VerificationGuard:
        """Returns a guard with which the producer may begin a transaction once its coordinator has confirmed it.
        `end_verification` has to follow in any case. `moves_epoch`: the producer gets a new epoch with each
        transaction."""
        producer = UnverifiedProducer(producer_id, producer_epoch, base_sequence)
        return self.log.producers.guards.begin(producer, moves_epoch)

    def check_transaction(self, producer_id: int, epoch: int, guard: VerificationGuard | None) -> None:
        """Raises `Refused` if `append_now` would refuse records of this transaction from a coordinator of this
        broker."""
        self._check_takes_appends(ACKS_ALL)
        self.log.producers.check_transaction(producer_id, epoch, guard, self._clock.mono_ns() // 1_000_000)

    def end_verification(self, guard: VerificationGuard) -> None:
        """Gives back a guard, used or not."""
        self.log.producers.guards.end(guard)

    async def append_marker(
        self, marker: TransactionMarker, *, timeout_ms: int = 30_000, may_wait: bool = True
    ) -> None:
        """Ends the transaction of a producer here: writes the marker unless it is in the log already. Returns once the
        marker is committed. A repeated call changes nothing. `may_wait`: waits first until a loss is reported.

        Raises `Refused` like `append` with acks=all, and INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED for a
        marker that is too late.
        """
        if may_wait and self._loss_reported is not None:
            timeout_ms = await self._wait_loss_reported_within(timeout_ms)
        end = self.append_marker_now(marker)
        if not self.is_committed(end):
            await self.confirm_committed(end, timeout_ms)

    def append_marker_now(self, marker: TransactionMarker) -> int:
        """Writes the marker unless it is in the log already, without waiting. Returns the offset below which all
        records have to be committed before the marker is. Raises `Refused` like `append_marker`, but never
        REQUEST_TIMED_OUT."""
        self._check_takes_appends(ACKS_ALL)
        self._append_lost_markers()
        is_due = self.log.producers.is_marker_due(marker)
        return self._write_marker(marker) if is_due else self.find_marker_end(marker.producer_id)

    def _write_marker(self, marker: TransactionMarker) -> int:
        """Every marker comes to the log this way. Returns the offset behind it."""
        data = encode_marker(marker, self._clock.wall_ms())
        return self._append_checked(data, deep=False, guard=None, from_coordinator=True).last_offset + 1

    async def write_lost_markers(self) -> None:
        """Writes the markers of cold transactions that all disks have lost. Call this at the start of the leadership,
        and once a loss is reported.

        Raises `Refused` or `Unavailable` if the disk is full or failed. The next append then writes the markers, or the
        rule for orphaned transactions does.
        """
        if self._lost_markers and self._loss_reported is None and self.reads.stop_error is None:
            self._append_lost_markers()
            if self.log.synced_entry.fsynced_only:
                await self.flush()

    def _append_lost_markers(self) -> None:
        """Writes them without waiting. A transaction that its producer begins before would be taken for theirs."""
        while self._lost_markers:
            self._write_marker(self._lost_markers[0])
            del self._lost_markers[0]

    def find_marker_end(self, producer_id: int) -> int:
        """Returns the offset below which all records have to be committed before the last marker of a producer is. The
        log end would move on with each append, and a caller that tries again would wait for later records each time.

        A marker of which only a producer snapshot knows is older than this leader epoch.
        """
        producer = self.log.producers.get(producer_id)
        return producer.marker_end if producer is not None and producer.marker_end >= 0 else self.epoch_start

    # -- the log ------------------------------------------------------------------------------------------------------

    def _write(
        self,
        data: bytearray | memoryview,
        deep: bool,
        guard: VerificationGuard | None,
        from_coordinator: bool,
        opened: Sequence[OpenedBatch],
        holder: str,
    ) -> LogAppendInfo:
        disk, hot = self._disk, self.log
        if disk.dead is not None:
            raise Refused(Code.KAFKA_STORAGE_ERROR, f"the data directory failed: {disk.dead.why}")
        try:
            appended = hot.append(
                data,
                leader_epoch=self.state.leader_epoch,
                now_ms=self._clock.wall_ms(),
                check_each_record=deep,
                guard=guard,
                from_coordinator=from_coordinator,
                opened=opened,
                holder=holder,
            )
        except Refused as refused:
            disk.on_append_refused(refused, hot)
            raise
        traffic = self.traffic
        traffic.bytes_in += len(data)
        traffic.records_in += 0 if appended.is_duplicate else appended.last_offset + 1 - appended.base_offset
        if disk.full is not None:
            disk.note_append(len(data))
        if hot.segments.count != self._segments_seen:
            self._segments_seen = hot.segments.count
            self._events.on_segment_closed(self)
        if self.on_next_append is not None:
            on_next_append, self.on_next_append = self.on_next_append, None
            on_next_append()
        return appended

    async def flush(self, end: int | None = None) -> None:
        """Fsyncs the log up to `end` (None: all). A failed fsync ends the use of the directory; a full disk does
        not."""
        flushed = await self._disk.flush(self.log, end)
        if self.reads.stop_error is None:
            self._advance(flushed if self.log.synced_entry.fsynced_only else self.log.end_offset)

    def _advance(self, position: int) -> None:
        if not self.state.advance(position, self.log.config.min_insync_replicas):
            return
        high_watermark = self.state.high_watermark
        self.log.producers.txns.on_high_watermark(high_watermark)
        self.reads.on_high_watermark(high_watermark)

    def _on_high_watermark(self) -> None:
        """Handles a new high watermark that followers brought about."""
        self.log.producers.txns.on_high_watermark(self.state.high_watermark)
        self.reads.on_high_watermark(self.state.high_watermark)

    # -- followers ----------------------------------------------------------------------------------------------------

    def handle_follower_fetch(
        self, broker: int, incarnation: int, request: PartitionFetch, max_bytes: int
    ) -> FollowerReadResult:
        """Returns records for a follower, up to the log end. The fetch tells the leader that the follower has all
        records below its offset (R2, R6). If there is no room left (`max_bytes` 0), only that is recorded. The caller
        must have checked that this incarnation is registered.

        Raises `Refused`: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, STALE_BROKER_EPOCH (another incarnation, or not a
        replica), KAFKA_STORAGE_ERROR (the records are damaged), or the reason why this broker stopped leading the
        partition.
        """
        if self.reads.stop_error is not None:
            raise self.reads.stop_error
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
                # The damaged records are cold: the follower restarts its log at the cold end.
                verdict, local_start = Code.OFFSET_MOVED_TO_TIERED_STORAGE, self.cold_end_offset
        return FollowerReadResult(
            Code.NONE if isinstance(verdict, DivergingEpoch) else verdict,
            verdict if isinstance(verdict, DivergingEpoch) else None,
            data,
            self.state.high_watermark,
            leader_log.log_start,
            local_start,
            self.cold_end_offset,
            self.log.compaction.may_have_gaps,
        )

    def handle_repeated_fetch(self, broker: int, incarnation: int, offset: int, now_ns: int) -> bool:
        """Fast path for a follower in the ISR that repeats its last fetch at the log end. Records the fetch and returns
        True; there are no records for the follower. Returns False and does nothing if `handle_follower_fetch` has to
        look."""
        return (
            self.reads.stop_error is None
            and offset == self.log.end_offset
            and self.state.record_repeated_fetch(broker, incarnation, offset, now_ns)
        )

    def is_follower_throttled(self, broker: int) -> bool:
        """True if fetches of `broker` are throttled (KIP-73); never for a member of the ISR."""
        entries, state = self.config.leader_replication_throttled_replicas, self.state
        return (
            bool(entries)
            and broker not in state.isr
            and self._throttled_replicas(entries, self.partition, state.node_id)
        )

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

    # -- ISR ----------------------------------------------------------------------------------------------------------

    def apply_isr(self, isr: Collection[int], replicas: Collection[int], partition_epoch: int) -> None:
        """Takes over an ISR from the metadata log, of the same leader epoch."""
        if self.state.apply_isr(isr, replicas, partition_epoch, self.log.config.min_insync_replicas):
            self._on_high_watermark()
        self._wake_deletions()
        self._wake_if_below_min_isr()

    def reject_isr_change(self, proposed: ProposedIsr) -> None:
        """Notes that the controller refused an ISR change."""
        if self.state.reject_isr_change(proposed, self.log.config.min_insync_replicas):
            self._on_high_watermark()
        self._wake_deletions()

    def on_config_changed(self) -> None:
        """Applies new topic settings: fewer in-sync replicas may be enough or more may be needed, and records that are
        not fsynced may count from now on."""
        self._advance(self.state.end if self.log.synced_entry.fsynced_only else self.log.end_offset)
        self._wake_deletions()
        self._wake_if_below_min_isr()

    def _wake_if_below_min_isr(self) -> None:
        if not self.state.has_min_isr(self.log.config.min_insync_replicas):
            self.reads.wake_all()

    # -- deletion, takeover, resignation ------------------------------------------------------------------------------

    async def delete_records(self, before: int) -> int:
        """Moves the log start offset to `before` (-1: the high watermark). Returns the log start offset once no later
        leader can serve records below `before`. A caller that gives up earlier leaves the deletion in progress.

        Raises `Refused`: OFFSET_OUT_OF_RANGE beyond the high watermark, or the reason why this broker stopped leading
        the partition. Raises `Fenced` and `Unavailable` (the bucket or the disk).
        """
        return await self.finish_deletion(await self.start_deletion(before))

    async def start_deletion(self, before: int) -> int:
        """The part of `delete_records` that may change the manifest. Returns the offset for `finish_deletion`."""
        before = self.high_watermark if before == -1 else before
        if not 0 <= before <= self.high_watermark:
            raise Refused(
                Code.OFFSET_OUT_OF_RANGE,
                f"offset {before} of {self.tp} is beyond the high watermark {self.high_watermark}",
            )
        if is_compacted(self.config) and DELETE not in self.config.cleanup_policy:
            raise Refused(
                Code.POLICY_VIOLATION,
                f"records of {self.tp} are not deleted: its cleanup.policy is compact without delete",
            )
        self._require_controller_contact()
        manifest = self.manifest
        tiered = self.config.remote_storage_enable or manifest is not None
        if tiered and before > (manifest.log_start_offset if manifest is not None else 0):
            manifest = manifest or await self.cold.manifests.take_over(self.partition_id, self.topic, self.leader_epoch)
            moved = await self.cold.collector.advance_start(manifest, self.leader_epoch, before)
            self.unified_log.update_manifest(moved)
        self.advance_start(before)
        self.state.record_deletion(before)  # not earlier: a failed put must keep no follower out of the ISR
        return before

    async def finish_deletion(self, before: int) -> int:
        """The part of `delete_records` that waits for the disk and for followers. Partitions that wait together share
        one write of the offsets. Returns the offset below which no later leader serves a record: retention may have
        moved the log start of this leader further meanwhile."""
        if self.manifest is None and self.log.checkpointed_start_offset < before:
            await self._save_offsets()
        await self._wait_deleted(before)
        return self.state.low_watermark(self.log_start_offset)

    def advance_start(self, before: int) -> None:
        """Stops serving records below `before`. Later leaders need not know of it. Raises `Refused` if another broker
        leads the partition, or may."""
        if self.reads.stop_error is not None:
            raise self.reads.stop_error
        self._require_controller_contact()
        if before > self.log.start_offset:
            self.log.advance_start(before)

    async def _wait_deleted(self, before: int) -> None:
        """Returns once every member of the ISR, from which the next leader comes, knows under this leader epoch that
        the log starts at `before`. A member that follows another leader does not say so to this one, and may have read
        the manifest before the deletion."""
        if not self._is_deleted(before):
            self.pending_deletions += 1
            try:
                self.reads.end_listeners.notify()
                while not self._is_deleted(before):
                    if self._deletion_event is None:
                        self._deletion_event = asyncio.Event()
                    await self._deletion_event.wait()
            finally:
                self.pending_deletions -= 1
        if self.reads.stop_error is not None:
            raise self.reads.stop_error
        self._require_controller_contact()

    def _is_deleted(self, before: int) -> bool:
        """True if no caller has to wait for the deletion any longer. A member that left the ISR while it was below
        `min.insync.replicas` may lead too, and may have read the manifest before the deletion."""
        if self.reads.stop_error is not None:
            return True
        return self.state.has_min_isr(self.log.config.min_insync_replicas) and self.state.is_deleted_on_isr(before)

    def _wake_deletions(self) -> None:
        event, self._deletion_event = self._deletion_event, None
        if event is not None:
            event.set()

    async def take_over_manifest(self) -> Manifest:
        """Returns the manifest under the epoch of this leader. Under another epoch nothing is uploaded, deleted, swept
        or cleaned. Raises `Fenced` and `Unavailable`."""
        manifest = self.manifest
        if manifest is None or manifest.leader_epoch != self.leader_epoch:
            manifest = await self.cold.manifests.take_over(self.partition_id, self.topic, self.leader_epoch)
            self.unified_log.update_manifest(manifest)
            self.log.advance_start(min(manifest.log_start_offset, self.log.end_offset))
        return manifest

    @property
    def takeover_pending(self) -> bool:
        """True if an earlier leader may still change the manifest."""
        return self._takeover_pending and (self.manifest is None or self.manifest.leader_epoch != self.leader_epoch)

    def roll(self) -> None:
        """Closes the active segment, so that it can be uploaded."""
        self._disk.roll(self.log)
        self._segments_seen = self.log.segments.count
        self._events.on_segment_closed(self)

    def resign(self, why: Refused) -> None:
        """Stops serving: every caller gets `why`, those that already wait included."""
        self.on_loss_reported()
        self._wake_deletions()
        self.log.producers.guards.clear()
        self.reads.stop(why)


def _initial_cold_end_offset(start: LeaderStart) -> int:
    if start.manifest is not None:
        return start.manifest.cold_end_offset
    return start.restart.offset if start.restart is not None else 0
