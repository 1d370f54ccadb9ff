"""One partition that this broker leads: appends from producers, fetches from followers, ISR changes (R2, R6).

Binds the rules of `leader_state` and `divergence` to a log. Does not decide what is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiered.cold.manifest import Manifest
from tiered.compaction.cleanable_range import CleanableRange
from tiered.config.settings import TopicConfig
from tiered.errors import Code, Corrupt, Fenced, Refused, Unavailable
from tiered.hot.batch_opening import open_in_thread
from tiered.hot.disk_log import DiskLog, LogAppendInfo
from tiered.hot.validation import OpenedBatch, RecordFaults, RecordsRefused, RecordsUnopened
from tiered.ids import UNKNOWN_END, TopicId, TopicPartition
from tiered.peers import DivergingEpoch, PartitionFetch
from tiered.ports import Clock
from tiered.producers.verification import VerificationGuard
from tiered.replication.append_admission import AppendAdmission
from tiered.replication.become_leader import LeaderStart
from tiered.replication.cold_tier import ColdTier
from tiered.replication.disk_state import DiskState
from tiered.replication.divergence import LeaderLog, validate_offset_and_epoch
from tiered.replication.leader_reads import LeaderReads
from tiered.replication.leader_state import LeaderState, ProposedIsr
from tiered.replication.leader_transactions import LeaderTransactions
from tiered.replication.read_result import FollowerReadResult, RecordBytes
from tiered.replication.record_deletion import RecordDeletion
from tiered.replication.replication_quota import ThrottledReplicas
from tiered.replication.unified_log import UnifiedLog
from tiered.replication.unstored_batches import UnstoredBatches
from tiered.request_trace import BUCKET, FSYNC, REPLICATE, timed
from tiered.wal.chain_writer import ChainedLog, ChainWriter

ACKS_ALL = -1
"""Producer acks: wait for every in-sync replica."""


_NO_BATCH = (OpenedBatch(None),)
"""Stands for bytes that are no batch, which the append refuses."""


class RecordValidation(Protocol):
    """The judge of records of topics with `confluent.value.schema.validation` or that of keys."""

    async def find_faults(
        self, topic: str, config: TopicConfig, data: bytearray | memoryview, owner: str
    ) -> Sequence[RecordFaults]:
        """Returns the faulty records of each batch. Raises `Refused` if it cannot judge."""


class LeaderEvents(Protocol):
    """The receiver of what leader replicas report. Each method is called from the event loop, in the turn in which the
    event happens. It returns at once and raises nothing."""

    def on_segment_closed(self, replica: LeaderReplica) -> None:
        """The log has a closed segment more, which may be uploaded."""

    def on_follower_caught_up(self, replica: LeaderReplica) -> None:
        """A follower that is not in the ISR has enough of the log to join it."""

    def on_chain_fenced(self, replica: LeaderReplica) -> None:
        """A later leader has fenced this one in its write-ahead chain."""


@dataclass(frozen=True)
class LeaderPorts:
    """The parts that all leader replicas of one broker share.

    `has_controller_contact` returns True if the broker has contact with the controller (R6). `save_offsets` writes the
    start offsets of all logs durably. `chain` is the write-ahead chain of the broker; None if it has none. `records`
    judges records by the schema registry.
    """

    cold: ColdTier
    clock: Clock
    disk: DiskState
    events: LeaderEvents
    has_controller_contact: Callable[[], bool]
    save_offsets: Callable[[], Awaitable[None]]
    chain: ChainWriter | None = None
    records: RecordValidation | None = None


class LeaderReplica:
    """The leader replica of one partition. `admission` says when it takes records, `reads` serves its readers,
    `transactions` writes its markers, and `deletion` deletes its records. No other broker changes its manifest, once it
    is taken over (`takeover_pending`)."""

    __slots__ = (
        "__weakref__",
        "_chain",
        "_chained",
        "_clock",
        "_disk",
        "_events",
        "_fsync_limits",
        "_records",
        "_segments_seen",
        "_takeover_pending",
        "_throttled_replicas",
        "admission",
        "cleanable_in_bucket",
        "cold",
        "deletion",
        "epoch_start",
        "in_snapshots_to",
        "initial_cold_end_offset",
        "led_since_slot",
        "log",
        "on_next_append",
        "partition",
        "partition_id",
        "possible_loss",
        "reads",
        "restarted_at_cold_end",
        "state",
        "topic",
        "topic_id",
        "tp",
        "traffic",
        "transactions",
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
        self.admission = AppendAdmission(tp, log, state, self.reads, ports.clock, ports.has_controller_contact)
        self.deletion = RecordDeletion(self.unified_log, state, self.reads, self.admission, ports.save_offsets)
        self.traffic = log.traffic
        self.epoch_start = log.end_offset
        self.transactions = LeaderTransactions(
            log, self.epoch_start, self, self.admission, ports.clock, start.lost_markers
        )
        self.led_since_slot = 0
        """Slot of the image by which this broker leads. It wrote no record of this leader epoch before."""
        self.in_snapshots_to = 0
        """All records below are in each snapshot of the coordinator that is kept; 0 for any other topic."""
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
        self._fsync_limits: set[asyncio.Timeout] | None = None
        """The deadlines of callers that wait for an fsync; None before the first: there are many partitions."""
        self._clock = ports.clock
        self._disk = ports.disk
        self._events = ports.events
        self._records = ports.records
        self._throttled_replicas = ThrottledReplicas()
        self._segments_seen = log.segments.count
        if state.high_watermark:
            log.producers.txns.on_high_watermark(state.high_watermark)
        state.record_deletion(self.log_start_offset)
        self._chain = ports.chain
        self._chained: ChainedLog | None = None
        self._begin_chain(max(start.stored_end, self.cold_end_offset))
        self._advance(self._own_position())

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
    def unchained_end(self) -> int:
        """All records below are in the bucket without a chain: in segments or in snapshots of a coordinator."""
        return max(self.cold_end_offset, self.in_snapshots_to)

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
        return (
            self.state.is_sole_member
            and self._chained is None
            and not self.log.synced_entry.fsynced_only
            and not self.admission.has_unreported_loss
        )

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
        if self.admission.has_unreported_loss:
            timeout_ms = await self.admission.wait_loss_reported_within(timeout_ms)
        try:
            appended = self.append_now(data, acks, deep, guard, holder=holder)
        except RecordsUnopened:
            opened = await self.open_batches(data, holder)
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
        self.admission.check(acks == ACKS_ALL)
        if acks != ACKS_ALL and acks not in (0, 1):
            raise Refused(Code.INVALID_REQUIRED_ACKS, f"acks={acks} is not -1, 0 or 1")
        config = self.log.config
        validates = config.confluent_value_schema_validation or config.confluent_key_schema_validation
        if validates and not from_coordinator:
            _require_schemas(opened)
        if self.transactions.lost_markers:
            self.transactions.append_lost_markers()
        return self.append_admitted(data, deep, guard, from_coordinator, opened, holder)

    async def open_batches(self, data: bytearray | memoryview, holder: str = "") -> Sequence[OpenedBatch]:
        """Returns what `append_now` has to know of the records of these batches, which must stay as they are until
        then. Raises `Refused` with REQUEST_TIMED_OUT if it cannot be found out in time."""
        opened = await open_in_thread(data, holder)
        config = self.log.config
        if self._records is None or not (
            config.confluent_value_schema_validation or config.confluent_key_schema_validation
        ):
            return opened
        faults = await self._records.find_faults(self.topic, config, data, holder)
        return [each._replace(faults=some) for each, some in zip(opened, faults, strict=True)] or _NO_BATCH

    def append_admitted(
        self,
        data: bytearray | memoryview,
        deep: bool = False,
        guard: VerificationGuard | None = None,
        from_coordinator: bool = False,
        opened: Sequence[OpenedBatch] = (),
        holder: str = "",
    ) -> LogAppendInfo:
        """Writes batches or a marker. The caller has checked the admission."""
        appended = self._write(data, deep, guard, from_coordinator, opened, holder)
        if self._chained is not None:
            self._chained.on_append(len(data))
        elif not self.log.synced_entry.fsynced_only:
            self._advance(appended.last_offset + 1)
        if self.reads.end_listeners:
            self.reads.end_listeners.notify()
        return appended

    def is_committed(self, end: int) -> bool:
        """True if all records below `end` are committed."""
        return self.state.high_watermark >= end

    async def confirm_committed(self, end: int, timeout_ms: int) -> None:
        """Returns once all records below `end` are committed and may be acknowledged: the broker still has contact with
        the controller. A leader that was replaced uncleanly may learn that replicas left the ISR, before it learns of
        the next leader (R6). Raises `Refused` like `wait_committed`, and NOT_LEADER_OR_FOLLOWER."""
        await self.wait_committed(end, timeout_ms)
        self.admission.require_controller_contact()

    async def wait_committed(self, end: int, timeout_ms: int) -> None:
        """Returns once all records below `end` are committed. With `flush=ack` this method makes the fsync that this
        takes.

        Raises `Refused`: REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND (replicas left the ISR meanwhile),
        KAFKA_STORAGE_ERROR, or the reason why this broker stopped leading the partition.
        """
        phase = REPLICATE if self._chained is None else BUCKET
        try:
            async with asyncio.timeout(timeout_ms / 1000) as limit:
                if self.log.synced_entry.fsynced_only:
                    if self._fsync_limits is None:
                        self._fsync_limits = set()
                    self._fsync_limits.add(limit)
                    try:
                        await timed(FSYNC, self.flush(end))
                    finally:
                        self._fsync_limits.discard(limit)
                while not self.is_committed(end):
                    await timed(phase, self.reads.wait_wakeup(end))
                    if not self.is_committed(end) and not self.state.has_min_isr(self.log.config.min_insync_replicas):
                        why = f"records below {end} of {self.tp} are on too few replicas: some left the ISR"
                        raise Refused(Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, why)
        except TimeoutError:
            if self.reads.stop_error is not None:
                raise self.reads.stop_error from None
            raise Refused(
                Code.REQUEST_TIMED_OUT, f"records below {end} of {self.tp} are not committed after {timeout_ms} ms"
            ) from None
        except Unavailable as error:
            raise Refused(Code.KAFKA_STORAGE_ERROR, f"the fsync of {self.tp} failed: {error}") from None

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
        await self._disk.flush(self.log, end)
        if self.reads.stop_error is None:
            self._advance(self._own_position())

    def _advance(self, position: int) -> None:
        if not self.state.advance(position, self.log.config.min_insync_replicas):
            return
        self.log.producers.txns.on_high_watermark(self.state.high_watermark)
        self.reads.on_high_watermark(self.state.high_watermark)

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
        self.deletion.wake()
        if broker not in state.isr and state.can_join_isr(broker):
            self._events.on_follower_caught_up(self)

    # -- ISR ----------------------------------------------------------------------------------------------------------

    def apply_isr(self, isr: Collection[int], replicas: Collection[int], partition_epoch: int) -> None:
        """Takes over an ISR from the metadata log, of the same leader epoch."""
        if self.state.apply_isr(isr, replicas, partition_epoch, self.log.config.min_insync_replicas):
            self._on_high_watermark()
        self.deletion.wake()
        self._wake_if_below_min_isr()

    def reject_isr_change(self, proposed: ProposedIsr) -> None:
        """Notes that the controller refused an ISR change."""
        if self.state.reject_isr_change(proposed, self.log.config.min_insync_replicas):
            self._on_high_watermark()
        self.deletion.wake()

    def on_config_changed(self) -> None:
        """Applies new topic settings: fewer in-sync replicas may be enough or more may be needed, and records that are
        not fsynced may count from now on."""
        self._begin_chain(self.cold_end_offset)
        self._advance(self._own_position())
        self.deletion.wake()
        self._wake_if_below_min_isr()

    def _wake_if_below_min_isr(self) -> None:
        if not self.state.has_min_isr(self.log.config.min_insync_replicas):
            self.reads.wake_all()

    # -- takeover, resignation ----------------------------------------------------------------------------------------

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
        self.admission.on_loss_reported()
        self.deletion.wake()
        self.log.producers.guards.clear()
        self._end_chain()
        self.reads.stop(why)
        for limit in self._fsync_limits or ():
            if not limit.expired():
                limit.reschedule(0.0)  # the fsync may take long, and decides nothing any more

    # -- the write-ahead chain ----------------------------------------------------------------------------------------

    @property
    def chain_stored_end(self) -> int | None:
        """All records below are in the bucket; None if the topic does not have `flush=bucket`."""
        return self._chained.stored.end if self._chained is not None else None

    @property
    def has_own_chain_only(self) -> bool:
        """True if all committed records are in segments or in the chain of this broker, put under this leadership."""
        return (
            self._chained is not None
            and self.unchained_end >= self._chained.base
            and self._chained.stored.end >= self.high_watermark
        )

    def _begin_chain(self, stored_end: int) -> None:
        """Begins or ends the use of the chain, as the topic's setting says. All records below `stored_end` are in the
        bucket."""
        if self.config.flush != "bucket" or self._chain is None:
            self._end_chain()
        elif self._chained is None and not self.is_stopped:
            batches = UnstoredBatches(self.log, self.unified_log, self.state, self._disk)
            self._chained = self._chain.add(
                self.partition_id, self.leader_epoch, batches, stored_end,
                on_stored=self._advance, on_fenced=lambda: self._events.on_chain_fenced(self),
            )  # fmt: skip

    def _end_chain(self) -> None:
        if self._chained is not None and self._chain is not None:
            self._chain.remove(self._chained)
            self._chained = None

    def _own_position(self) -> int:
        """Returns the end of the records that count here: those in the bucket, those that are fsynced, or all."""
        if self._chained is not None:
            return self._chained.stored.end
        return self.log.flushed_offset if self.log.synced_entry.fsynced_only else self.log.end_offset


def _require_schemas(opened: Sequence[OpenedBatch]) -> None:
    """Refuses batches that the schema registry has not judged yet, or whose records it does not permit."""
    if not opened:
        raise RecordsUnopened(Code.INVALID_RECORD, "the schemas of the records have to be looked up")
    for each in opened:
        if each.faults:
            raise RecordsRefused(each.faults)


def _initial_cold_end_offset(start: LeaderStart) -> int:
    if start.manifest is not None:
        return start.manifest.cold_end_offset
    return start.restart.offset if start.restart is not None else 0
