"""The loop that moves records of led partitions to the bucket: uploads, local deletion, expiry and sweeps.

A pass over a partition makes the plans in their order and carries them out: object before manifest, manifest before
local delete (I22), manifest before object delete. Local segments that the bucket has cleaned go (I32). A partition
whose pass fails is tried again after a growing pause. A partition with nothing to do costs no request. Topics take
turns. Takeovers of manifests and sweeps wait for uploads."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable

from tiered.cold.layout import manifest_key
from tiered.cold.manifest import Manifest, SegmentEntry, SubmanifestNeeded
from tiered.cold.planner import find_expiry, may_expire
from tiered.cold.uploader import TOGETHER_BYTES
from tiered.compaction.cleanable_range import is_compacted
from tiered.config.settings import Settings
from tiered.errors import Corrupt, Fenced, Refused, Unavailable
from tiered.hot import retention
from tiered.log_limiter import LogLimiter
from tiered.metrics import OTHERS, Metrics
from tiered.ports import Clock, Rng
from tiered.quotas.rate import TokenBucket
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.led_partitions import LedPartitions
from tiered.upkeep.retention_clock import RetentionClock
from tiered.upkeep.topic_turns import TopicTurns

log = logging.getLogger(__name__)

_PAUSE_SECONDS = (0.5, 60.0)
"""Shortest and longest pause after a pass that failed."""
LAG_CHECK_SECONDS = (0.05, 1.0)
"""Shortest and longest pause between two looks for records that are due in the bucket."""
COPY_CHECK_SECONDS = 1.0
"""Longest pause between two looks if the rate of copies allows more."""
NEVER = 2**63
LOW_PRIORITY_SHARE = 8
"""One of so many passes is over a partition without uploads, however many others have some."""
UPLOAD_IN_FLIGHT_MS = 120_000
"""Longest time that an abandoned upload may take to land; the sweep of the next epoch finds a later one."""


class Tiering:
    """Passes over all leader replicas of one broker, a bounded number at once."""

    def __init__(
        self,
        settings: Settings,
        led_partitions: LedPartitions,
        retention_clock: RetentionClock,
        clock: Clock,
        rng: Rng,
        metrics: Metrics,
        current_settings: Callable[[], Settings] | None = None,
    ) -> None:
        """`current_settings` returns the settings that hold back uploads, which change while the broker runs."""
        self._settings = settings
        self._current_settings = current_settings or (lambda: settings)
        self._led_partitions = led_partitions
        self._retention_clock = retention_clock
        self._clock = clock
        self._rng = rng.stream("tiering")
        self._due = TopicTurns[LeaderReplica]()
        self._due_low_priority = TopicTurns[LeaderReplica]()
        """Due partitions with nothing to upload, whose manifest has to be taken over or swept."""
        self._passes = 0
        self._busy: set[LeaderReplica] = set()
        self._failures: dict[LeaderReplica, int] = {}
        self._sweep_due_ms: dict[LeaderReplica, int] = {}
        self._oldest_segments: dict[LeaderReplica, SegmentEntry] = {}
        self._lag_check_due_ms: dict[LeaderReplica, int] = {}
        """By partition: when the oldest record outside the bucket is due there."""
        self._copied_bytes = TokenBucket(0, 0, 0, clock.mono_ns() / 1e6)
        self._held_back: dict[LeaderReplica, None] = {}
        """Partitions whose uploads wait until the rate of copies allows more."""
        self._holds_back = asyncio.Event()
        self._log_limiter = LogLimiter(clock)
        self._wake = asyncio.Event()
        self._pass_slots = asyncio.Semaphore(settings.remote_log_manager_copier_thread_pool_size)
        self._failure_counter = metrics.counter(
            "tiered_tiering_failures_total", "Passes over a partition that failed.", ("why",)
        )
        for why in ("fenced", "unavailable", "corrupt", "refused"):
            self._failure_counter.inc(0, why)  # a rate over time needs the sample before the first failure
        waiting = metrics.gauge("tiered_upload_waiting_segments", "Closed segments that are not in the bucket yet.")
        waiting.set_function(lambda: float(self.waiting_segments()))
        failing = metrics.gauge("tiered_tiering_failing_partitions", "Partitions whose last pass failed.")
        failing.set_function(lambda: float(len(self._failures)))
        lag = metrics.gauge(
            "tiered_remote_copy_lag_seconds", "Age of the oldest record led here that is not in the bucket.", ("topic",)
        )
        lag.set_function(self._lag_by_topic)

    def on_segment_closed(self, replica: LeaderReplica) -> None:
        """Queues a partition with a newly closed segment.

        If other brokers have the segment too, it waits for the next interval. One change of the manifest then names
        several segments, which saves a request for each.
        """
        replicated = replica.config.copies_to_bucket and len(replica.state.isr) > 1
        if not replicated or replica.unified_log.waiting_bytes >= TOGETHER_BYTES:
            self.wake(replica)

    def wake(self, replica: LeaderReplica) -> None:
        """Queues a partition, unless its last pass failed: that waits for the end of its pause."""
        if replica not in self._failures:
            self._enqueue(replica)

    def _enqueue(self, replica: LeaderReplica) -> None:
        has_cleanup = replica.takeover_pending or self._clock.wall_ms() >= self._sweep_due_ms.get(replica, NEVER)
        if has_cleanup and not replica.unified_log.waiting_segments:
            self._due_low_priority.add(replica)
        else:
            self._due_low_priority.remove(replica)
            self._due.add(replica)
        self._wake.set()

    def _next_replica(self) -> LeaderReplica | None:
        """Returns the partition whose turn is next, and that has no pass in progress."""
        queues = (
            (self._due, self._due_low_priority)
            if (self._passes + 1) % LOW_PRIORITY_SHARE
            else (self._due_low_priority, self._due)
        )
        return next((found for queue in queues if (found := queue.find_next(self._busy)) is not None), None)

    def waiting_segments(self) -> int:
        """Returns the number of closed segments that are not in the bucket yet, over all partitions."""
        return sum(replica.unified_log.waiting_segments for replica in self._led_partitions.list_leaders())

    async def run(self) -> None:
        """Runs passes until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick())
            group.create_task(self._enforce_upload_lag())
            group.create_task(self._resume_copies())
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._next_replica() is not None:
                    await self._pass_slots.acquire()
                    replica = self._next_replica()
                    if replica is None:  # its leadership ended while it waited for a slot
                        self._pass_slots.release()
                        break
                    self._passes += 1
                    self._due.take(replica)
                    self._due_low_priority.take(replica)
                    self._busy.add(replica)
                    group.create_task(self._run_pass(replica, group))

    async def _tick(self) -> None:
        """Queues all partitions once an interval: retention depends on the clock, not on traffic."""
        while True:
            for replica in self._led_partitions.list_leaders():
                self.wake(replica)
            await self._clock.sleep(self._settings.remote_log_manager_task_interval_ms / 1000)

    async def _resume_copies(self) -> None:
        """Queues the partitions whose uploads were held back, once the rate of copies allows more."""
        while True:
            await self._holds_back.wait()
            while (debt := self._copy_debt_seconds()) > 0:
                await self._clock.sleep(min(debt, COPY_CHECK_SECONDS))  # the rate may be raised meanwhile
            self._holds_back.clear()
            held_back, self._held_back = self._held_back, {}
            for replica in held_back:
                self.wake(replica)

    def _copy_debt_seconds(self) -> float:
        """Returns the time after which the rate of copies allows more. Less than a millisecond is none."""
        rate = self._current_settings().remote_log_manager_copy_max_bytes_per_second
        debt_ms = self._copied_bytes.debt_ms(rate, self._clock.mono_ns() / 1e6)
        return debt_ms / 1000 if debt_ms >= 1 else 0.0

    def _on_upload(self, size: int) -> None:
        rate = self._current_settings().remote_log_manager_copy_max_bytes_per_second
        self._copied_bytes.record(size, rate, self._clock.mono_ns() / 1e6)

    async def _enforce_upload_lag(self) -> None:
        """Closes and uploads segments that would otherwise miss `tiered.upload.max.lag.ms`."""
        shortest, longest = LAG_CHECK_SECONDS
        while True:
            now_ms, next_ms = self._clock.wall_ms(), NEVER
            for replica in self._led_partitions.list_leaders():
                closed = replica.log.segments.count
                next_ms = min(next_ms, self._check_upload_lag(replica, now_ms))
                if replica.log.segments.count != closed:
                    await asyncio.sleep(0)  # a roll takes about a millisecond, and all partitions may be due at once
            await self._clock.sleep(min(max((next_ms - now_ms) / 1000, shortest), longest))

    def _check_upload_lag(self, replica: LeaderReplica, now_ms: int) -> int:
        """Returns when the partition has to be checked again, after a check if one is due."""
        late_at = self._lag_check_due_ms.get(replica, now_ms)
        if replica.is_stopped:
            return NEVER
        if now_ms < late_at:
            return late_at
        lag_ms = self._settings.tiered_upload_max_lag_ms
        since_ms = replica.unified_log.upload_lag_since_ms
        if since_ms is None or abs(now_ms - since_ms) < lag_ms:
            late_at = min(now_ms if since_ms is None else since_ms, now_ms) + lag_ms
        else:
            late_at = now_ms + int(LAG_CHECK_SECONDS[1] * 1000)
            self._close_lagging_segment(replica, now_ms, lag_ms)
            if replica not in self._busy:
                self.wake(replica)
        self._lag_check_due_ms[replica] = late_at
        return late_at

    def _close_lagging_segment(self, replica: LeaderReplica, now_ms: int, lag_ms: int) -> None:
        try:
            is_paused = self._current_settings().tiered_upload_pause
            if not is_paused and replica.log.is_roll_due(now_ms, max_age_ms=lag_ms):
                replica.roll()
        except (Unavailable, Refused) as error:
            suppressed = self._log_limiter.admit("close")
            if suppressed is not None:
                log.warning("segment is closed later partition=%s suppressed=%d why=%s", replica.tp, suppressed, error)

    def copy_lag_ms(self) -> int:
        """Returns the age of the oldest record that is not in the bucket, over all partitions; 0 if there is none."""
        slowest = self.find_most_lagging()
        since_ms = None if slowest is None else slowest.unified_log.upload_lag_since_ms
        return 0 if since_ms is None else self._clock.wall_ms() - since_ms

    def find_most_lagging(self) -> LeaderReplica | None:
        """Returns the led partition with the oldest record that is not in the bucket; None if there is none."""
        lagging = [
            (since_ms, number, each)
            for number, each in enumerate(self._led_partitions.list_leaders())
            if (since_ms := each.unified_log.upload_lag_since_ms)
        ]
        return min(lagging)[2] if lagging else None

    def _lag_by_topic(self) -> dict[tuple[str, ...], float]:
        """Returns the age in seconds of the oldest record that is not in the bucket, by topic."""
        now_ms = self._clock.wall_ms()
        lags: dict[str, float] = {}
        for replica in self._led_partitions.list_leaders():
            if replica.config.copies_to_bucket:
                since_ms = replica.unified_log.upload_lag_since_ms
                lag = 0.0 if since_ms is None else max(0, now_ms - since_ms) / 1000
                lags[replica.topic] = max(lag, lags.get(replica.topic, 0.0))
        most = self._settings.tiered_metrics_max_topics
        found = heapq.nlargest(most + 1, lags.items(), key=lambda each: each[1])
        return {(topic if number < most else OTHERS,): lag for number, (topic, lag) in enumerate(found)}

    async def _run_pass(self, replica: LeaderReplica, group: asyncio.TaskGroup) -> None:
        try:
            await self.run_steps(replica)
            replica.upload_problem = ""
            self._failures.pop(replica, None)
        except Fenced as error:
            self._failure_counter.inc(1, "fenced")
            self._led_partitions.on_fenced(replica, error)
        except (Unavailable, Corrupt, Refused) as error:
            self._failure_counter.inc(1, type(error).__name__.lower())
            replica.upload_problem = str(error)
            pause = self._next_pause(replica)
            suppressed = self._log_limiter.admit("upload")
            if suppressed is not None:
                log.warning(
                    "tiering failed partition=%s again_in=%.1f suppressed=%d why=%s",
                    replica.tp, pause, suppressed, error,
                )  # fmt: skip
            group.create_task(self._retry_after(replica, pause))
        finally:
            self._busy.discard(replica)
            self._pass_slots.release()
            if replica.is_stopped:  # a next leader of the partition here takes the mark of orphans
                self.forget(replica)
            elif replica.cold.manifests.take_orphan_mark(replica.partition_id):
                self._sweep_due_ms[replica] = self._clock.wall_ms() + self._sweep_delay_ms()
            if self._due or self._due_low_priority:
                self._wake.set()

    def _next_pause(self, replica: LeaderReplica) -> float:
        shortest, longest = _PAUSE_SECONDS
        failures = self._failures[replica] = min(self._failures.get(replica, 0) + 1, 16)
        pause: float = min(longest, shortest * 2**failures)
        return pause * (0.5 + self._rng.random() / 2)

    async def _retry_after(self, replica: LeaderReplica, pause: float) -> None:
        await self._clock.sleep(pause)
        if replica in self._failures:
            self._enqueue(replica)

    def forget(self, replica: LeaderReplica) -> None:
        """Drops all state of a partition: its leadership has ended."""
        self._due.remove(replica)
        self._due_low_priority.remove(replica)
        self._failures.pop(replica, None)
        self._sweep_due_ms.pop(replica, None)
        self._oldest_segments.pop(replica, None)
        self._lag_check_due_ms.pop(replica, None)
        self._held_back.pop(replica, None)

    async def run_steps(self, replica: LeaderReplica) -> None:
        """Runs one pass: takes over the manifest, uploads, expires, deletes locally, sweeps.

        A step runs although an earlier one failed: a bucket that takes no objects must not fill the disk with cold
        segments. The sweep runs only in a pass without failures. Raises the first failure: `Fenced`, `Unavailable`,
        `Corrupt`, or `Refused` by the disk.
        """
        failure: Unavailable | Corrupt | Refused | None = None
        for step in (self._finish_takeover, self._upload, self._expire_cold, self._apply_local_retention):
            if replica.is_stopped:
                return
            try:
                await step(replica)
            except (Unavailable, Corrupt, Refused) as error:
                failure = failure or error
        if failure is not None:
            raise failure
        if not replica.is_stopped:
            await self._collect_garbage(replica)

    async def _finish_takeover(self, replica: LeaderReplica) -> None:
        """Takes over the manifest of a leader that serves already (`PreviousLeader.WAS_IN_SYNC_WITH`)."""
        if replica.takeover_pending:
            await replica.take_over_manifest()

    async def _upload(self, replica: LeaderReplica) -> None:
        """Uploads closed segments below the last stable offset, oldest first, as many as one manifest change names.

        Then other partitions have their pass: a partition with enough traffic would never be done. While uploads are
        paused, or beyond their rate, the segments wait.
        """
        settings = self._current_settings()
        if not replica.unified_log.waiting_segments or settings.tiered_upload_pause:
            return
        if self._copy_debt_seconds() > 0:
            self._held_back[replica] = None
            self._holds_back.set()
            return
        epoch = replica.leader_epoch
        manifest = await replica.take_over_manifest()
        first = replica.log.local_start_offset
        if not manifest.nodes and first > manifest.cold_end_offset:
            # Nothing is cold, and records below `first` expired before the topic was tiered: the manifest starts there.
            moved = await replica.cold.collector.advance_start(manifest, epoch, first)
            replica.unified_log.update_manifest(moved)
        if replica.is_stopped or replica.manifest is None:
            return
        stable = replica.last_stable_offset
        written = await replica.cold.uploader.upload_next(
            replica.log, replica.manifest, epoch, stable,
            together_bytes=settings.remote_log_manager_copy_max_bytes_per_second, on_upload=self._on_upload,
        )  # fmt: skip
        if written is not None:
            replica.unified_log.update_manifest(written)
            if not replica.is_stopped and replica.unified_log.waiting_segments:
                self._due.add(replica)

    async def _expire_cold(self, replica: LeaderReplica) -> None:
        """Applies total retention to cold segments. Takes over the manifest first, but only if a segment expires."""
        manifest, epoch, now_ms = replica.manifest, replica.leader_epoch, self._retention_clock.now_ms()
        if manifest is None or not manifest.nodes:
            return
        above = replica.unified_log.bytes_above_cold
        try:
            plan = find_expiry(
                manifest.adopt_epoch(epoch), epoch, retention.total_limits(replica.config),
                local_bytes_above_cold=above, now_ms=now_ms, submanifests={},
            )  # fmt: skip
        except SubmanifestNeeded:
            oldest = await self._find_oldest_segment(replica, manifest)
            limits = retention.total_limits(replica.config)
            if not may_expire(manifest, oldest, limits, local_bytes_above_cold=above, now_ms=now_ms):
                return
        else:
            if plan is None:
                return
        manifest = await replica.take_over_manifest()
        above = replica.unified_log.bytes_above_cold  # an earlier leader may have uploaded more meanwhile
        written = await replica.cold.collector.expire(
            manifest, epoch, retention.total_limits(replica.config), local_bytes_above_cold=above, now_ms=now_ms
        )
        manifest = written or manifest
        replica.unified_log.update_manifest(manifest)
        replica.log.advance_start(manifest.log_start_offset)

    async def _find_oldest_segment(self, replica: LeaderReplica, manifest: Manifest) -> SegmentEntry:
        """Returns the cold segment that holds the log start; reads the sub-manifests once for each such segment."""
        start, known = manifest.log_start_offset, self._oldest_segments.get(replica)
        if known is None or not known.base_offset <= start < known.next_offset:
            known = await replica.cold.manifests.find_segment(manifest, start)
            if known is None:
                raise Corrupt(
                    f"the manifest names no segment at its log start {start}", where=manifest_key(replica.partition_id)
                )
            self._oldest_segments[replica] = known
        return known

    async def _apply_local_retention(self, replica: LeaderReplica) -> None:
        """Applies retention to the local log.

        Records that are cold are deleted by local retention, others by total retention only. For the latter the
        manifest has the new log start before a file is deleted. A topic that gives up its tier begins where the disk
        does. The disk of a compacted topic keeps nothing that the bucket has cleaned (I32).
        """
        tiered, manifest = replica.config.remote_storage_enable, replica.manifest
        plan = retention.plan_retention(
            replica.log.segments.closed(),
            replica.log.segments.active,
            replica.config,
            self._retention_clock.now_ms(),
            log_start=replica.log_start_offset,
            deletable_below=replica.last_stable_offset,
            cold_end=replica.cold_end_offset if tiered else None,
            cold_bytes_known=manifest is not None and not replica.takeover_pending,
            clean_to=manifest.clean_to if manifest is not None and is_compacted(replica.config) else 0,
        )
        log_start = plan.log_start
        if replica.config.deletes_cold:
            log_start = max(log_start, min(replica.log.local_start_offset, replica.last_stable_offset))
        if log_start > replica.log_start_offset:
            if replica.manifest is not None or replica.takeover_pending:
                manifest = await replica.take_over_manifest()
                moved = await replica.cold.collector.advance_start(manifest, replica.leader_epoch, log_start)
                replica.unified_log.update_manifest(moved)
                if replica.is_stopped:
                    return
            replica.log.advance_start(log_start)
        await replica.log.drop_local_below(plan.drop_below)
        if plan.roll_active and not replica.is_stopped:
            replica.roll()

    async def _collect_garbage(self, replica: LeaderReplica) -> None:
        """Sweeps once in each leader epoch, and after each failure that may have left an object behind.

        The sweep is late enough that an upload in progress has landed and its grace time is over. A partition without
        a manifest has nothing to sweep.
        """
        now_ms = self._clock.wall_ms()
        if replica.manifest is None or now_ms < self._sweep_due_ms.setdefault(replica, now_ms + self._sweep_delay_ms()):
            return
        manifest = await replica.take_over_manifest()
        # A clean that failed may have left objects that no change can name any more.
        replica.unified_log.update_manifest(await replica.cold.cleaner.settle(manifest, replica.leader_epoch))
        await replica.cold.collector.sweep(replica.partition_id, replica.topic, replica.leader_epoch)
        self._sweep_due_ms[replica] = NEVER

    def _sweep_delay_ms(self) -> int:
        """Returns the time for an upload to land plus its grace time."""
        return UPLOAD_IN_FLIGHT_MS + self._settings.tiered_object_delete_delay_ms + 1
