"""Compaction of the logs of one broker: the dirtiest log first, under limits of I/O, requests and memory.

Each replica of a partition cleans its own log, as in Kafka. A log of which the bucket gets a copy is cleaned in the
bucket only, by its leader. A log that cannot be cleaned is named in the health report, and does not stop the others.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from tiered.cold.cold_cleaning import ColdCleanResult
from tiered.compaction.cleanable_range import CleanableRange, is_compacted
from tiered.config.settings import Settings, TopicConfig
from tiered.controller.member_view import MemberView
from tiered.errors import Code, Corrupt, Fenced, InvariantViolation, Refused, Unavailable, public_message
from tiered.hosting.hosted_replicas import HostedReplicas
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_cleaning import CleanerResources, LogChanged
from tiered.ids import TopicPartition
from tiered.metrics import Metrics
from tiered.ports import World
from tiered.records.key_offset_map import SEED_BYTES
from tiered.replication.disk_state import DiskState
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica
from tiered.system.turns import each_of
from tiered.thread_pool import ThreadPool
from tiered.upkeep.clean_throttle import CleanThrottle
from tiered.upkeep.retention_clock import RetentionClock
from tiered.upkeep.tiering import Tiering

log = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_SECONDS = 600.0
"""Time until a log with a batch that cannot be read is tried again."""
REQUESTED_SECONDS = 1.0
"""Longest pause between two looks at a log of which an operator asked for a clean."""
THREADS_MAX = 16
DUE_MAX = 1000
"""Most logs that one look notes as due, the most urgent ones."""

Replica = LeaderReplica | FollowerReplica


class CleanFigures(Protocol):
    """The result of one clean, on the disk or in the bucket."""

    @property
    def clean_to(self) -> int: ...
    @property
    def bytes_before(self) -> int: ...
    @property
    def bytes_after(self) -> int: ...
    @property
    def records_read(self) -> int: ...
    @property
    def records_kept(self) -> int: ...
    @property
    def is_map_full(self) -> bool: ...
    @property
    def unopened(self) -> str: ...


class _ColdRange(NamedTuple):
    """The range that may be cleaned in the bucket, as of the manifest `sequence`, the settings and a time."""

    found: CleanableRange
    sequence: int
    cold_end_offset: int
    config: TopicConfig
    looked_ns: int


class _Due(NamedTuple):
    """A log that has to be cleaned. The greatest one is cleaned first; `number` differs for each."""

    is_requested: bool
    is_overdue: bool
    dirty_ratio: float
    number: int
    replica: Replica


class LogCleaner:
    """The cleans of one broker. `uncleanable` has the logs that cannot be cleaned, with the reason of each."""

    def __init__(
        self,
        view: MemberView,
        world: World,
        hosted_replicas: HostedReplicas,
        tiering: Tiering,
        disk: DiskState,
        throttle: CleanThrottle,
        retention_clock: RetentionClock,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._clock = world.clock
        self._rng = world.rng.stream("log-cleaner")
        self._hosted_replicas = hosted_replicas
        self._tiering = tiering
        self._disk = disk
        self._pool = ThreadPool("log-cleaner", THREADS_MAX)
        self._throttle = throttle
        self._retention_clock = retention_clock
        self._cold_ranges: dict[LeaderReplica, _ColdRange] = {}
        self._running: set[DiskLog] = set()
        self._retry_ns: dict[DiskLog, int] = {}
        """When a log that could not be cleaned is tried again."""
        self._requested: dict[Replica, int] = {}
        """Log end when an operator asked for a clean of the log now."""
        self._wake = asyncio.Event()
        self._due: list[_Due] = []
        """The logs that the last look found due and that no clean was begun for, the most urgent one last."""
        self._looked_ns: int | None = None
        self._max_dirty_ratio = 0.0
        self._last_run_ns = world.clock.mono_ns()
        self.uncleanable: dict[TopicPartition, str] = {}
        self._read = metrics.counter("tiered_log_cleaner_read_records_total", "Records that cleans read.")
        self._removed = metrics.counter("tiered_log_cleaner_removed_records_total", "Records that cleans removed.")
        self._freed = metrics.counter("tiered_log_cleaner_freed_bytes_total", "Bytes of log that cleans freed.")
        metrics.gauge(
            "tiered_log_cleaner_max_dirty_ratio", "Dirty share of the dirtiest log (Kafka: max-dirty-percent)."
        ).set_function(lambda: self._max_dirty_ratio)
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
                if not self._due or self._is_look_old():
                    await self._look()
                while self._settings.log_cleaner_enable and len(self._running) < self._settings.log_cleaner_threads:
                    picked = self._pick()
                    if picked is None:
                        break
                    self._running.add(picked.log)
                    group.create_task(self._clean(picked))
                self._wake.clear()
                await self._wait_for_work()

    def request_clean(self, replica: Replica) -> None:
        """Has a log cleaned as soon as possible, whatever its dirty ratio: all that it has now and that may be cleaned.

        Closes the active segment, which is never cleaned. Does nothing for a follower of a tiered log. Raises `Refused`
        if the log is not compacted, and what the roll raises.
        """
        if not is_compacted(replica.config):
            raise Refused(Code.INVALID_CONFIG, "it is not compacted: its cleanup.policy is without compact")
        if isinstance(replica, FollowerReplica) and replica.config.copies_to_bucket:
            return
        if replica.log.segments.active.size:
            replica.roll()
        if isinstance(replica, LeaderReplica) and _is_cleaned_in_bucket(replica):
            self._cold_ranges.pop(replica, None)
        self._requested[replica] = replica.log.end_offset
        self._looked_ns = None
        self._retry_ns.pop(replica.log, None)
        self._wake.set()

    def _pick(self) -> Replica | None:
        """Returns the log to clean next, of those that the last look found due and that still are: one that an operator
        asked for, an overdue one, or the dirtiest."""
        while self._due:
            replica = self._due.pop().replica
            found = self.find_cleanable(replica)
            if found is None:
                continue
            is_ready = self._is_ready(replica)
            if is_ready:
                del self._requested[replica]
            if found.is_due(replica.config) or (is_ready and found.dirty_bytes):
                return replica
        return None

    def _is_ready(self, replica: Replica) -> bool:
        """True if an operator asked for a clean of the log, and all that the log had then may be cleaned."""
        end = self._requested.get(replica, -1)
        if end < 0:
            return False
        if not replica.config.copies_to_bucket:
            return min(replica.log.flushed_offset, replica.high_watermark) >= end
        known = self._cold_ranges.get(replica) if isinstance(replica, LeaderReplica) else None
        return known is not None and known.cold_end_offset >= end

    async def _wait_for_work(self) -> None:
        """Waits until a clean ends, an operator asks for one, or it is time for another look."""
        waits = {
            asyncio.ensure_future(self._wake.wait()),
            asyncio.ensure_future(self._clock.sleep(self._pause_seconds())),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    def _pause_seconds(self) -> float:
        """Returns the time between two looks. A log that has to be uploaded or fsynced before the clean that was asked
        for is looked at more often."""
        pause = self._settings.log_cleaner_backoff_ms / 1000
        return min(pause, REQUESTED_SECONDS) if self._requested else pause

    def _is_look_old(self) -> bool:
        if self._looked_ns is None:
            return True
        return self._clock.mono_ns() - self._looked_ns >= self._pause_seconds() * 1e9

    def find_cleanable(self, replica: Replica) -> CleanableRange | None:
        """Returns what this broker may clean of a log: on the disk, or in the bucket as of the last look.

        Returns None if the log is not cleaned here, a clean works on it, or its last clean failed just now.
        """
        if not self._may_clean(replica):
            return None
        if not replica.config.copies_to_bucket:
            return (
                None
                if replica.log.status.write_failure
                else self._find_on_disk(replica, self._retention_clock.now_ms())
            )
        known = self._cold_ranges.get(replica) if isinstance(replica, LeaderReplica) else None
        return known.found if known is not None else None

    def _may_clean(self, replica: Replica) -> bool:
        """True if the log is compacted, no clean works on it, and its last clean did not fail just now."""
        return (
            is_compacted(replica.config)
            and not replica.is_stopped
            and replica.log not in self._running
            and self._retry_ns.get(replica.log, 0) <= self._clock.mono_ns()
        )

    def _find_on_disk(self, replica: Replica, now_ms: int) -> CleanableRange:
        return replica.log.compaction.find_cleanable(replica.log.start_offset, replica.high_watermark, now_ms)

    async def _look(self) -> None:
        """Notes which logs are due. The event loop goes on between some and the next ones."""
        due, max_ratio, is_bucket_there = list[_Due](), 0.0, True
        self._looked_ns = self._clock.mono_ns()
        async for number, replica in each_of(enumerate(self._hosted_replicas.list_replicas())):
            if is_bucket_there and isinstance(replica, LeaderReplica) and _is_cleaned_in_bucket(replica):
                is_bucket_there = await self._look_at_bucket(replica)
            found = self.find_cleanable(replica)
            if found is None:
                continue
            max_ratio = max(max_ratio, found.dirty_ratio)
            is_ready = self._is_ready(replica)
            if is_ready or found.is_due(replica.config):
                push = heapq.heappush if len(due) < DUE_MAX else heapq.heappushpop
                push(due, _Due(is_ready, found.overdue_ms > 0, found.dirty_ratio, number, replica))
        async for replica in each_of([*self._cold_ranges]):
            if not _is_cleaned_in_bucket(replica):
                self._cold_ranges.pop(replica, None)
        self._due, self._max_dirty_ratio = sorted(due), max_ratio

    async def _look_at_bucket(self, replica: LeaderReplica) -> bool:
        """Finds out what may be cleaned of a partition in the bucket. Looks again after log.cleaner.backoff.ms if its
        manifest and settings are as before. Returns False if the bucket is away: others would wait as long."""
        manifest, config, now_ns = replica.manifest, replica.config, self._clock.mono_ns()
        known = self._cold_ranges.get(replica)
        if (
            manifest is None
            or not self._may_clean(replica)
            or (
                known is not None
                and (known.sequence, known.config) == (manifest.sequence, config)
                and now_ns - known.looked_ns < self._settings.log_cleaner_backoff_ms * 1_000_000
            )
        ):
            return True
        try:
            found = await replica.cold.cleaner.find_cleanable(manifest, config, self._retention_clock.now_ms())
        except Corrupt as error:
            self._note_failure(replica, error)
        except Unavailable as error:
            self._note_failure(replica, error)
            return False
        else:
            self._cold_ranges[replica] = _ColdRange(found, manifest.sequence, manifest.cold_end_offset, config, now_ns)
            replica.cleanable_in_bucket = found
        return True

    async def _clean(self, replica: Replica) -> None:
        """Cleans a log that was picked in an earlier turn. Since then its broker may have resigned, and its settings
        may have changed."""
        try:
            if isinstance(replica, LeaderReplica) and _is_cleaned_in_bucket(replica):
                self._note_result(replica, await self._clean_in_bucket(replica))
            elif _is_cleaned_on_disk(replica):
                now_ms = self._retention_clock.now_ms()
                found = self._find_on_disk(replica, now_ms)
                resources = self._resources_while(partial(_is_cleaned_on_disk, replica))
                work = replica.log.compaction.clean(
                    found, resources, now_ms, keeps_tombstones=replica.may_have_cold_records
                )
                self._note_result(replica, await self._disk.guard(work))
            else:
                raise LogChanged
        except LogChanged:
            self._retry_ns[replica.log] = self._clock.mono_ns() + self._settings.log_cleaner_backoff_ms * 1_000_000
            log.info("clean ends because the log changed partition=%s", replica.tp)
        except (Corrupt, Unavailable, Refused) as error:
            self._note_failure(replica, error)
        finally:
            self._running.discard(replica.log)
            self._wake.set()

    async def _clean_in_bucket(self, replica: LeaderReplica) -> ColdCleanResult:
        """Cleans the objects of a partition, as its leader. The clean ends once the partition is led elsewhere, or its
        settings say that it is not cleaned in the bucket."""
        try:
            manifest = await replica.take_over_manifest()
            result = await replica.cold.cleaner.clean(
                manifest, replica.leader_epoch, replica.config, self._retention_clock.now_ms(),
                self._resources_while(partial(_is_cleaned_in_bucket, replica)), replica.log,
                on_change=replica.unified_log.update_manifest,
            )  # fmt: skip
        except Fenced as error:
            self._hosted_replicas.on_fenced(replica, error)
            raise LogChanged from error
        except (Corrupt, InvariantViolation, LogChanged, Refused, Unavailable):
            raise
        except Exception as error:  # a bug: its objects are no more than garbage, and the next leader has it too
            log.exception("clean in the bucket failed partition=%s", replica.tp)
            raise Corrupt(public_message(error)) from error
        replica.unified_log.update_manifest(result.manifest)
        self._tiering.wake(replica)  # the disk has superseded records, and the bucket has not any more
        self._cold_ranges.pop(replica, None)
        if not result.is_whole:
            raise LogChanged
        return result

    def _note_failure(self, replica: Replica, error: Corrupt | Unavailable | Refused) -> None:
        """Puts off the next clean of a log. Names it if a batch cannot be read: that lasts."""
        if isinstance(error, Corrupt):
            self._retry_ns[replica.log] = self._clock.mono_ns() + int(RETRY_SECONDS * 1e9)
            self.uncleanable[replica.tp] = str(error)
            log.error("log cannot be cleaned partition=%s why=%s", replica.tp, error)
            return
        self._retry_ns[replica.log] = self._clock.mono_ns() + self._settings.log_cleaner_backoff_ms * 1_000_000
        if not replica.is_stopped:
            log.warning("clean failed, is tried again partition=%s why=%s", replica.tp, error)

    def _note_result(self, replica: Replica, result: CleanFigures) -> None:
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
        if result.unopened:
            why = "a batch is too large to be opened, it stays as it is and so do later tombstones"
            log.warning("%s partition=%s why=%s", why, replica.tp, result.unopened)

    def _forget_stopped(self) -> None:
        """Forgets logs that this broker has or cleans no longer, so that the tables are bounded by its replicas."""
        now_ns = self._clock.mono_ns()
        self._retry_ns = {each: ns for each, ns in self._retry_ns.items() if ns > now_ns}
        self._requested = {each: end for each, end in self._requested.items() if not each.is_stopped}
        self.uncleanable = {tp: why for tp, why in self.uncleanable.items() if self._is_cleaned_here(tp)}

    def _is_cleaned_here(self, tp: TopicPartition) -> bool:
        """True if this broker cleans the log: on its disk, or in the bucket as the leader."""
        leader = self._hosted_replicas.find_leader(tp)
        replica = leader or self._hosted_replicas.find_follower(tp)
        if replica is None or not is_compacted(replica.config):
            return False
        return leader is not None or not replica.config.copies_to_bucket

    def _resources_while(self, is_cleaned: Callable[[], bool]) -> CleanerResources:
        """Returns the resources of a clean that ends once its log is not to be cleaned there any more."""
        resources = self._resources()

        async def admit(count: int) -> None:
            await resources.admit(count)
            if not is_cleaned():
                raise LogChanged

        return replace(resources, admit=admit)

    def _resources(self) -> CleanerResources:
        settings = self._settings
        return CleanerResources(
            self._run_in_thread,
            lambda count: self._throttle.admit_bytes(count, settings.log_cleaner_io_max_bytes_per_second),
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


def _is_cleaned_in_bucket(replica: LeaderReplica) -> bool:
    return is_compacted(replica.config) and replica.config.copies_to_bucket and not replica.is_stopped


def _is_cleaned_on_disk(replica: Replica) -> bool:
    return is_compacted(replica.config) and not replica.config.copies_to_bucket and not replica.is_stopped
