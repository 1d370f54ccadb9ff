"""The one loop that moves records down: uploads, local drops, expiry, and the sweep of what was left behind.

A pass over a partition asks the plans in their order (object before manifest, manifest before local delete, manifest
before object delete) and performs what they say. A partition whose pass fails is tried again after a growing pause;
the others go on. A partition with nothing to do costs no request; inherited manifests and sweeps wait for uploads.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterable

from tiered.broker.retention_clock import RetentionClock
from tiered.cold.layout import manifest_key
from tiered.cold.manifest import Manifest, SegmentEntry, SubmanifestNeeded
from tiered.cold.planner import find_expiry, may_expire
from tiered.cold.uploader import TOGETHER_BYTES
from tiered.config.settings import Settings
from tiered.errors import Corrupt, Fenced, Refused, Unavailable
from tiered.hot import retention
from tiered.log_limiter import LogLimiter
from tiered.metrics import OTHERS, Metrics
from tiered.ports import Clock, Rng
from tiered.replication.leader_replica import LeaderReplica

log = logging.getLogger(__name__)

_PAUSE_SECONDS = (0.5, 60.0)
LAG_CHECK_SECONDS = (0.05, 1.0)
"""Between two looks for records that are due in the bucket: at least, and at most."""
NEVER = 2**63
LOW_PRIORITY_SHARE = 8
"""One pass in so many is of a partition that has nothing to upload, however many others do."""
UPLOAD_IN_FLIGHT_MS = 120_000
"""How long an upload that nobody waits for may take to land; a later one stays until the next epoch's sweep."""


class Tiering:
    """Passes over all replicas of a broker, a bounded number at once."""

    def __init__(
        self,
        settings: Settings,
        replicas: Callable[[], Iterable[LeaderReplica]],
        on_fenced: Callable[[LeaderReplica, Fenced], None],
        retention_clock: RetentionClock,
        clock: Clock,
        rng: Rng,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._on_fenced = on_fenced
        self._retention_clock = retention_clock
        self._clock = clock
        self._rng = rng.stream("tiering")
        self._due: dict[LeaderReplica, None] = {}
        self._due_low_priority: dict[LeaderReplica, None] = {}
        """Due as well, after the others but for their share: nothing to upload, but a manifest to take over, or to
        sweep."""
        self._passes = 0
        self._busy: set[LeaderReplica] = set()
        self._failures: dict[LeaderReplica, int] = {}
        self._sweep_due_ms: dict[LeaderReplica, int] = {}
        self._oldest_segments: dict[LeaderReplica, SegmentEntry] = {}
        self._lag_check_due_ms: dict[LeaderReplica, int] = {}
        """When the oldest record that is not in the bucket is due there; nothing that comes later is due before."""
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
        """A segment closed. Where other brokers have it too, it waits until the interval is over for others that the
        same change of the manifest can name, which saves one request for each."""
        copied = replica.config.remote_storage_enable and len(replica.state.isr) > 1
        if not copied or replica.unified_log.waiting_bytes >= TOGETHER_BYTES:
            self.wake(replica)

    def wake(self, replica: LeaderReplica) -> None:
        """A setting changed, or an interval is over. One that failed waits for its pause to end."""
        if replica not in self._failures:
            self._enqueue(replica)

    def _enqueue(self, replica: LeaderReplica) -> None:
        tidies = replica.takeover_pending or self._clock.wall_ms() >= self._sweep_due_ms.get(replica, NEVER)
        if tidies and not replica.unified_log.waiting_segments:
            self._due_low_priority[replica] = None
        else:
            self._due_low_priority.pop(replica, None)
            self._due[replica] = None
        self._wake.set()

    def _next_replica(self) -> LeaderReplica | None:
        """The one that has waited longest and is not under way."""
        queues = (
            (self._due, self._due_low_priority)
            if (self._passes + 1) % LOW_PRIORITY_SHARE
            else (self._due_low_priority, self._due)
        )
        return next((each for queue in queues for each in queue if each not in self._busy), None)

    def waiting_segments(self) -> int:
        """Closed segments of all partitions that are not in the bucket yet."""
        return sum(replica.unified_log.waiting_segments for replica in self._replicas())

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick())
            group.create_task(self._enforce_upload_lag())
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._next_replica() is not None:
                    await self._pass_slots.acquire()
                    replica = self._next_replica()
                    if replica is None:  # forgotten while it waited for a place
                        self._pass_slots.release()
                        break
                    self._passes += 1
                    self._due.pop(replica, None)
                    self._due_low_priority.pop(replica, None)
                    self._busy.add(replica)
                    group.create_task(self._run_pass(replica, group))

    async def _tick(self) -> None:
        """Everything is due once an interval: retention follows the clock, not the traffic."""
        while True:
            for replica in self._replicas():
                self.wake(replica)
            await self._clock.sleep(self._settings.remote_log_manager_task_interval_ms / 1000)

    async def _enforce_upload_lag(self) -> None:
        """Closes and copies what would else be in the bucket later than `tiered.upload.max.lag.ms` allows."""
        shortest, longest = LAG_CHECK_SECONDS
        while True:
            now_ms = self._clock.wall_ms()
            next_ms = min((self._check_upload_lag(replica, now_ms) for replica in self._replicas()), default=NEVER)
            await self._clock.sleep(min(max((next_ms - now_ms) / 1000, shortest), longest))

    def _check_upload_lag(self, replica: LeaderReplica, now_ms: int) -> int:
        """Returns when the partition is to be looked at again."""
        late_at = self._lag_check_due_ms.get(replica, now_ms)
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
            if replica.log.is_roll_due(now_ms, max_age_ms=lag_ms):
                replica.roll()
        except (Unavailable, Refused) as error:
            unsaid = self._log_limiter.admit("close")
            if unsaid is not None:
                log.warning("segment is closed later partition=%s unsaid=%d why=%s", replica.tp, unsaid, error)

    def copy_lag_ms(self) -> int:
        """Returns the age of the oldest record led here that is not in the bucket; 0 where there is none."""
        now_ms = self._clock.wall_ms()
        return max(
            (now_ms - since for each in self._replicas() if (since := each.unified_log.upload_lag_since_ms)), default=0
        )

    def _lag_by_topic(self) -> dict[tuple[str, ...], float]:
        """Returns the age in seconds of the oldest record that is not in the bucket, by topic."""
        now_ms = self._clock.wall_ms()
        lags: dict[str, float] = {}
        for replica in self._replicas():
            if replica.config.remote_storage_enable:
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
            self._on_fenced(replica, error)
        except (Unavailable, Corrupt, Refused) as error:
            self._failure_counter.inc(1, type(error).__name__.lower())
            replica.upload_problem = str(error)
            pause = self._next_pause(replica)
            unsaid = self._log_limiter.admit("upload")
            if unsaid is not None:
                log.warning(
                    "tiering failed partition=%s again_in=%.1f unsaid=%d why=%s", replica.tp, pause, unsaid, error
                )
            group.create_task(self._retry_after(replica, pause))
        finally:
            self._busy.discard(replica)
            self._pass_slots.release()
            if replica.cold.manifests.take_orphan_mark(replica.partition_id):
                self._sweep_due_ms[replica] = self._clock.wall_ms() + self._sweep_delay_ms()
            if replica.is_stopped:
                self.forget(replica)
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
        """It is led here no more."""
        self._due.pop(replica, None)
        self._due_low_priority.pop(replica, None)
        self._failures.pop(replica, None)
        self._sweep_due_ms.pop(replica, None)
        self._oldest_segments.pop(replica, None)
        self._lag_check_due_ms.pop(replica, None)

    async def run_steps(self, replica: LeaderReplica) -> None:
        """One pass: copy what is closed, expire, drop what need not be here, sweep. A step that fails does not keep
        the next from what it can do, so a bucket that takes nothing fills no disk with what is cold; the sweep waits
        for a pass that went well. `Fenced`, `Unavailable`, `Corrupt`, `Refused` (the disk): the first failure."""
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
        """Who inherited a partition served before the manifest was its own (`leading.begin`)."""
        if replica.takeover_pending:
            await self._take_over_manifest(replica)

    async def _upload(self, replica: LeaderReplica) -> None:
        """Closed segments below the last stable offset, oldest first: as many as one change of the manifest names. Then
        it is the turn of others, for a partition that is written fast enough would never be done."""
        if not replica.unified_log.waiting_segments:
            return
        epoch = replica.leader_epoch
        manifest = await self._take_over_manifest(replica)
        first = replica.log.local_start_offset
        if not manifest.nodes and first > manifest.cold_end_offset:
            # Nothing is cold and the log begins higher: what expired before it was tiered leaves no hole to guard.
            moved = await replica.cold.collector.advance_start(manifest, epoch, first)
            replica.unified_log.update_manifest(moved)
        if replica.is_stopped or replica.manifest is None:
            return
        stable = replica.last_stable_offset
        written = await replica.cold.uploader.upload_next(replica.log, replica.manifest, epoch, stable)
        if written is not None:
            replica.unified_log.update_manifest(written)
            if not replica.is_stopped and replica.unified_log.waiting_segments:
                self._due[replica] = None

    async def _take_over_manifest(self, replica: LeaderReplica) -> Manifest:
        """The manifest under the replica's epoch: nothing is uploaded, deleted or swept under another."""
        manifest = replica.manifest
        if manifest is None or manifest.leader_epoch != replica.leader_epoch:
            manifest = await replica.cold.manifests.take_over(replica.partition_id, replica.topic, replica.leader_epoch)
            replica.unified_log.update_manifest(manifest)
            replica.log.advance_start(min(manifest.log_start_offset, replica.log.end_offset))
        return manifest

    async def _expire_cold(self, replica: LeaderReplica) -> None:
        """Total retention of what is cold. The manifest is taken over first, but only when something will expire."""
        manifest, epoch, now_ms = replica.manifest, replica.leader_epoch, self._retention_clock.now_ms()
        if manifest is None or not manifest.nodes:
            return
        above = replica.unified_log.bytes_above_cold
        try:
            plan = find_expiry(
                manifest.adopt_epoch(epoch), epoch, replica.config,
                local_bytes_above_cold=above, now_ms=now_ms, submanifests={},
            )  # fmt: skip
        except SubmanifestNeeded:
            oldest = await self._find_oldest_segment(replica, manifest)
            if not may_expire(manifest, oldest, replica.config, local_bytes_above_cold=above, now_ms=now_ms):
                return
        else:
            if plan is None:
                return
        manifest = await self._take_over_manifest(replica)
        above = replica.unified_log.bytes_above_cold  # an earlier leader may have made more of it cold until then
        written = await replica.cold.collector.expire(
            manifest, epoch, replica.config, local_bytes_above_cold=above, now_ms=now_ms
        )
        manifest = written or manifest
        replica.unified_log.update_manifest(manifest)
        replica.log.advance_start(manifest.log_start_offset)

    async def _find_oldest_segment(self, replica: LeaderReplica, manifest: Manifest) -> SegmentEntry:
        """The segment that holds the log start; looked up in the sub-manifests once for each."""
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
        """The hot log's retention: what is cold may go here first, what is not goes by total retention only, and then
        the manifest says so before a file does."""
        tiered = replica.config.remote_storage_enable
        plan = retention.plan_retention(
            replica.log.closed_segments(),
            replica.log.active_view,
            replica.config,
            self._retention_clock.now_ms(),
            log_start=replica.log_start_offset,
            deletable_below=replica.last_stable_offset,
            cold_end=replica.cold_end_offset if tiered else None,
            cold_bytes_known=replica.manifest is not None and not replica.takeover_pending,
        )
        if plan.log_start > replica.log_start_offset:
            if replica.manifest is not None or replica.takeover_pending:
                manifest = await self._take_over_manifest(replica)
                moved = await replica.cold.collector.advance_start(manifest, replica.leader_epoch, plan.log_start)
                replica.unified_log.update_manifest(moved)
            replica.log.advance_start(plan.log_start)
        await replica.log.drop_local_below(plan.drop_below)
        if plan.roll_active:
            replica.roll()

    async def _collect_garbage(self, replica: LeaderReplica) -> None:
        """Once after this epoch began, and after whatever may have left an object behind: late enough for an
        upload that is still under way to land and to outlive its grace time. A partition of which nothing is cold has
        nothing to sweep."""
        now_ms = self._clock.wall_ms()
        if replica.manifest is None or now_ms < self._sweep_due_ms.setdefault(replica, now_ms + self._sweep_delay_ms()):
            return
        await self._take_over_manifest(replica)
        await replica.cold.collector.sweep(replica.partition_id, replica.topic, replica.leader_epoch)
        self._sweep_due_ms[replica] = NEVER

    def _sweep_delay_ms(self) -> int:
        """Once for what is under way to land, once for what landed to grow old enough."""
        return UPLOAD_IN_FLIGHT_MS + self._settings.tiered_object_delete_delay_ms + 1
