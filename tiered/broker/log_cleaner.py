"""Compaction of the logs on this broker's disk: the dirtiest log first, under limits of I/O and memory.

Each replica of a partition cleans its own log, as in Kafka. A log of which the bucket gets a copy is cleaned in the
bucket only, by its leader. A log that cannot be cleaned is named in the health report, and does not stop the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from tiered.broker.hosted_replicas import HostedReplicas
from tiered.compaction.cleanable_range import CleanableRange, is_compacted, pick_dirtiest
from tiered.config.settings import Settings
from tiered.controller.member_view import MemberView
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_cleaning import CleanerResources, CleanResult, LogChanged
from tiered.ids import TopicPartition
from tiered.metrics import Metrics
from tiered.ports import World
from tiered.records.key_offset_map import SEED_BYTES
from tiered.replication.disk_state import DiskState
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica
from tiered.thread_pool import ThreadPool

log = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_SECONDS = 600.0
"""Time until a log with a batch that cannot be read is tried again."""
THREADS_MAX = 16

Replica = LeaderReplica | FollowerReplica


class LogCleaner:
    """The cleans of one broker. `uncleanable` has the logs that cannot be cleaned, with the reason of each."""

    def __init__(
        self, view: MemberView, world: World, hosted_replicas: HostedReplicas, disk: DiskState, metrics: Metrics
    ) -> None:
        self._view = view
        self._clock = world.clock
        self._rng = world.rng.stream("log-cleaner")
        self._hosted_replicas = hosted_replicas
        self._disk = disk
        self._pool = ThreadPool("log-cleaner", THREADS_MAX)
        self._throttle = IoThrottle(world)
        self._running: set[DiskLog] = set()
        self._retry_ns: dict[DiskLog, int] = {}
        """When a log that could not be cleaned is tried again."""
        self._ended = asyncio.Event()
        self._last_run_ns = world.clock.mono_ns()
        self.uncleanable: dict[TopicPartition, str] = {}
        self._read = metrics.counter("tiered_log_cleaner_read_records_total", "Records that cleans on disk read.")
        self._removed = metrics.counter("tiered_log_cleaner_removed_records_total", "Records that cleans removed.")
        self._freed = metrics.counter("tiered_log_cleaner_freed_bytes_total", "Bytes of log that cleans freed.")
        metrics.gauge(
            "tiered_log_cleaner_max_dirty_ratio", "Dirty share of the dirtiest log (Kafka: max-dirty-percent)."
        ).set_function(lambda: max((found.dirty_ratio for _, found in self.find_dirty()), default=0.0))
        metrics.gauge(
            "tiered_log_cleaner_last_run_seconds", "Time since the last clean (Kafka: time-since-last-run-ms)."
        ).set_function(lambda: (self._clock.mono_ns() - self._last_run_ns) / 1e9)
        metrics.gauge(
            "tiered_log_cleaner_uncleanable_partitions",
            "Logs that cannot be cleaned (Kafka: uncleanable-partitions-count).",
        ).set_function(lambda: float(len(self.uncleanable)))

    @property
    def _settings(self) -> Settings:
        return self._view.settings

    async def run(self) -> None:
        """Cleans what is due, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._forget_stopped()
                while self._settings.log_cleaner_enable and len(self._running) < self._settings.log_cleaner_threads:
                    picked = pick_dirtiest((each, found, each.config) for each, found in self.find_dirty())
                    if picked is None:
                        break
                    self._running.add(picked[0].log)
                    group.create_task(self._clean(*picked))
                self._ended.clear()
                await self._wait_for_work()

    async def _wait_for_work(self) -> None:
        """Waits until a clean ends or log.cleaner.backoff.ms is over."""
        waits = {
            asyncio.ensure_future(self._ended.wait()),
            asyncio.ensure_future(self._clock.sleep(self._settings.log_cleaner_backoff_ms / 1000)),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    def find_dirty(self) -> list[tuple[Replica, CleanableRange]]:
        """Returns the logs on this disk that compaction may clean and that no clean works on, with what it may
        clean."""
        now_ms, now_ns = self._clock.wall_ms(), self._clock.mono_ns()
        return [
            (replica, self._find_cleanable(replica, now_ms))
            for replica in self._hosted_replicas.list_replicas()
            if is_compacted(replica.config)
            and not replica.config.remote_storage_enable
            and not replica.is_stopped
            and not replica.log.write_failure
            and replica.log not in self._running
            and self._retry_ns.get(replica.log, 0) <= now_ns
        ]

    def _find_cleanable(self, replica: Replica, now_ms: int) -> CleanableRange:
        return replica.log.find_cleanable(replica.high_watermark, now_ms)

    async def _clean(self, replica: Replica, found: CleanableRange) -> None:
        hot = replica.log
        try:
            result = await self._disk.guard(
                hot.clean(found, self._resources(), keeps_tombstones=replica.cold_end_offset > 0)
            )
        except LogChanged:
            log.info("clean ends because the log changed partition=%s", replica.tp)
        except Corrupt as error:
            self._retry_ns[hot] = self._clock.mono_ns() + int(RETRY_SECONDS * 1e9)
            self.uncleanable[replica.tp] = str(error)
            log.error("log cannot be cleaned partition=%s why=%s", replica.tp, error)
        except (Unavailable, Refused) as error:
            self._retry_ns[hot] = self._clock.mono_ns() + self._settings.log_cleaner_backoff_ms * 1_000_000
            if not replica.is_stopped:
                log.warning("clean failed, is tried again partition=%s why=%s", replica.tp, error)
        else:
            self._note_result(replica, result)
        finally:
            self._running.discard(hot)
            self._ended.set()

    def _note_result(self, replica: Replica, result: CleanResult) -> None:
        self._last_run_ns = self._clock.mono_ns()
        self.uncleanable.pop(replica.tp, None)
        self._retry_ns.pop(replica.log, None)
        self._read.inc(result.records_read)
        self._removed.inc(result.records_read - result.records_kept)
        self._freed.inc(max(0, result.bytes_before - result.bytes_after))
        log.info(
            "log cleaned partition=%s to=%d bytes=%d after=%d records=%d kept=%d map_full=%s",
            replica.tp, result.clean_to, result.bytes_before, result.bytes_after, result.records_read,
            result.records_kept, result.is_map_full,
        )  # fmt: skip

    def _forget_stopped(self) -> None:
        """Forgets logs that this broker has no longer, so that the tables are bounded by its replicas."""
        replicas = self._hosted_replicas.list_replicas()
        logs, names = {each.log for each in replicas}, {each.tp for each in replicas if is_compacted(each.config)}
        self._retry_ns = {each: ns for each, ns in self._retry_ns.items() if each in logs}
        self.uncleanable = {tp: why for tp, why in self.uncleanable.items() if tp in names}

    def _resources(self) -> CleanerResources:
        settings = self._settings
        return CleanerResources(
            self._run_in_thread,
            lambda count: self._throttle.admit(count, settings.log_cleaner_io_max_bytes_per_second),
            settings.log_cleaner_dedupe_buffer_size // settings.log_cleaner_threads,
            max(settings.log_cleaner_io_buffer_size // settings.log_cleaner_threads, 1024),
            settings.log_cleaner_io_buffer_load_factor,
            self._rng.randbytes(SEED_BYTES),
        )

    async def _run_in_thread(self, call: Callable[[], T]) -> T:
        """Runs a call in a thread. A caller that is cancelled waits for the end of the call, which uses its files."""
        work = asyncio.ensure_future(self._pool.run(call))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})
            raise


class IoThrottle:
    """Spreads the bytes that all cleans read over time (log.cleaner.io.max.bytes.per.second)."""

    def __init__(self, world: World) -> None:
        self._clock = world.clock
        self._free_ns = 0

    async def admit(self, count: int, bytes_per_second: float) -> None:
        """Returns once so many more bytes may be read."""
        now = self._clock.mono_ns()
        start = max(now, self._free_ns)
        self._free_ns = start + int(min(count / bytes_per_second, 3600.0) * 1e9)
        await self._clock.sleep(max(0, start - now) / 1e9)
