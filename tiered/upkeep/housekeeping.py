"""Timed work on the logs of a broker: rolls, fsyncs, checkpoints, file deletion, and retries of what failed.

Each loop looks at its logs at the interval that a setting names, and carries out what is due. If the disk or the bucket
fails, the loop goes on at its next turn. Objects in the bucket are deleted by `object_deletion`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from tiered.cold.disk_cache import DiskCache
from tiered.compaction.cleanable_range import is_compacted
from tiered.controller.member_view import MemberView
from tiered.durability.data_directory import DataDirectory
from tiered.durability.loss_reporter import LossReporter
from tiered.durability.metadata_position import get_position
from tiered.errors import Refused, Unavailable
from tiered.hosting.hosted_replicas import HostedReplicas
from tiered.log_limiter import LogLimiter
from tiered.ports import World
from tiered.producers.known_producers import IDLE_MS
from tiered.replication.disk_state import DiskState
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica
from tiered.system.turns import each_of
from tiered.upkeep.tiering import Tiering

log = logging.getLogger(__name__)

RETRY_SECONDS = (1.0, 10.0)
"""Shortest and longest pause between two attempts at work that failed when it was due."""
SWEEP_SECONDS = 5.0
"""Pause between two looks for log directories of deleted topics."""
NOTE_SECONDS = 5.0
"""Pause between two notes of what the metadata log has reached."""
SYNCED_ENTRIES_AT_ONCE = 32
"""Logs for which a change of `flush` is noted at once."""
UNFLUSHED_BYTES_MAX = 64 << 20
"""Bytes of an active segment after which the next checkpoint fsyncs it too."""
EXPIRY_SECONDS = 60.0
"""Pause between two looks for chunks that are kept too long on disk."""
DISK_CHECK_SECONDS = 1.0
"""Pause between two looks at failed writes and at the room on a full disk."""


class Housekeeping:
    """The loops of one broker. `served` is set once the broker serves."""

    def __init__(
        self,
        view: MemberView,
        world: World,
        hosted_replicas: HostedReplicas,
        loss_reporter: LossReporter,
        tiering: Tiering,
        disk_state: DiskState,
        data_directory: DataDirectory,
        disk_cache: DiskCache,
        *,
        served: asyncio.Event,
    ) -> None:
        self._view = view
        self._clock = world.clock
        self._hosted_replicas = hosted_replicas
        self._loss_reporter = loss_reporter
        self._tiering = tiering
        self._disk_state = disk_state
        self._data_directory = data_directory
        self._disk_cache = disk_cache
        self._served = served
        self._flushed_ms: dict[LeaderReplica | FollowerReplica, int] = {}
        self._log_limiter = LogLimiter(world.clock)

    async def run(self) -> None:
        """Runs all loops until it is cancelled."""
        settings = self._view.settings
        async with asyncio.TaskGroup() as group:
            group.create_task(self.flush_tails())
            group.create_task(self._disk_state.watch_stalls())
            group.create_task(self.retry_unfinished())
            group.create_task(self.report_losses())
            group.create_task(self.update_synced_entries())
            group.create_task(self._run_every(settings.log_retention_check_interval_ms / 1000, self.maintain_logs))
            group.create_task(self._run_every(settings.log_flush_scheduler_interval_ms / 1000, self.flush_due))
            group.create_task(
                self._run_every(settings.log_flush_offset_checkpoint_interval_ms / 1000, self.write_checkpoints)
            )
            group.create_task(self._run_every(SWEEP_SECONDS, self.delete_dropped_logs))
            group.create_task(self._run_every(DISK_CHECK_SECONDS, self.check_disk))
            group.create_task(self._disk_cache.run())
            if self._disk_cache.is_on:
                group.create_task(self._run_every(EXPIRY_SECONDS, self._disk_cache.expire))
            await self._served.wait()  # a start writes the first note itself
            group.create_task(self._run_every(NOTE_SECONDS, self.note_metadata))

    async def _run_every(self, seconds: float, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except (Unavailable, Refused) as error:
                log.warning("housekeeping failed, goes on at its next turn step=%s why=%s", step.__name__, error)
            await self._clock.sleep(seconds)

    async def check_disk(self) -> None:
        """Marks the disk as full or failed after failed writes of any kind, and as writable once it has room."""
        self._disk_state.check()
        if self._disk_cache.is_on:
            await self._disk_cache.make_room()

    # -- retries ------------------------------------------------------------------------------------------------------

    async def retry_unfinished(self) -> None:
        """Opens replicas and reports losses that failed when they were due: soon at first, then less often."""
        pause, longest = RETRY_SECONDS
        losses = self._hosted_replicas.losses
        left: object = None
        while True:
            await self._clock.sleep(pause)
            try:
                await self._hosted_replicas.retry_unopened()
                await self._loss_reporter.report_losses()
            except (Unavailable, Refused) as error:
                suppressed = self._log_limiter.admit()
                if suppressed is not None:
                    log.warning(
                        "replica is not open or loss is not reported yet, is tried again suppressed=%d why=%s",
                        suppressed, error,
                    )  # fmt: skip
            unreported = {*losses.unreported, *losses.overstated}
            before, left = left, (self._hosted_replicas.list_unopened(), unreported)
            pause = min(2 * pause, longest) if left == before and any(left) else RETRY_SECONDS[0]

    async def report_losses(self) -> None:
        """Reports each loss at once: its leader appends no records before that. `retry_unfinished` tries again."""
        due = self._hosted_replicas.losses.report_due
        while True:
            await due.wait()
            due.clear()
            try:
                await self._loss_reporter.report_losses()
            except (Unavailable, Refused) as error:
                log.warning("losses are reported later why=%s", error)

    # -- rolls and deletion -------------------------------------------------------------------------------------------

    async def maintain_logs(self) -> None:
        """Closes old segments, deletes files whose delay is over, and forgets idle producers.

        A log that nobody appends to is maintained too. Other tasks run after each piece of the logs.
        """
        now_ms = self._clock.wall_ms()
        async for replica in each_of(self._hosted_replicas.list_replicas()):
            try:
                await self._disk_state.guard(self._maintain_log(replica, now_ms))
            except (Unavailable, Refused) as error:
                log.warning("log is maintained later partition=%s why=%s", replica.tp, error)
            if isinstance(replica, LeaderReplica):
                self._tiering.wake(replica)

    async def _maintain_log(self, replica: LeaderReplica | FollowerReplica, now_ms: int) -> None:
        """Deletes first: a full disk needs the space before it can take a new segment."""
        if replica.is_stopped:
            return
        await replica.log.delete_dropped_files(now_ms)
        if replica.is_stopped:
            return
        idle_ms = self._view.settings.producer_id_expiration_ms
        if self._hosted_replicas.log_store.producer_limits.is_scarce:
            idle_ms = min(idle_ms, IDLE_MS)
        replica.log.producers.known.remove_expired(self._clock.mono_ns() // 1_000_000, idle_ms)
        max_age_ms: int | None = None
        if isinstance(replica, FollowerReplica) and replica.config.copies_to_bucket:
            max_age_ms = self._view.settings.tiered_upload_max_lag_ms  # for a leader replica, tiering does this
        if is_compacted(replica.config):
            # The active segment is never cleaned, so a record in it cannot be cleaned in time.
            longest_ms = replica.config.max_compaction_lag_ms
            max_age_ms = longest_ms if max_age_ms is None else min(max_age_ms, longest_ms)
        if replica.log.is_roll_due(now_ms, max_age_ms=max_age_ms):
            replica.roll()
        if isinstance(replica, FollowerReplica):
            await replica.apply_local_retention()
        else:
            await replica.transactions.write_lost_markers()

    async def delete_dropped_logs(self) -> None:
        """Deletes the files of deleted topics soon after their delay is over.

        Deleted files keep their pages in memory before that, and new records need fresh pages, which cost several times
        more.
        """
        while True:
            now_ms = self._clock.wall_ms()
            if self._data_directory.must_save_offsets(now_ms):
                try:
                    await self._hosted_replicas.save_offsets()
                except Unavailable as error:
                    if error.final:
                        raise
                    log.warning("checkpoints keep the lines of deleted logs for now why=%s", error)
            if not await self._disk_state.guard(self._data_directory.delete_one_due(now_ms)):
                return
            await self._clock.sleep(0)  # the files of one log may be large, and unlink waits for nothing

    async def note_metadata(self) -> None:
        """Notes in the data directory what the metadata log has reached, if it has moved.

        The image has only entries that are in the bucket (M5). A crash forgets the last seconds of it.
        """
        reached = get_position(self._view.loader.cluster_id, self._view.image)
        await self._disk_state.guard(self._data_directory.note_metadata(reached))

    # -- fsync --------------------------------------------------------------------------------------------------------

    async def flush_tails(self) -> None:
        """Fsyncs once the records that an earlier process of this boot left in the page cache only.

        Waits until the broker serves: no replica has a role before that.
        """
        await self._served.wait()
        openings = self._hosted_replicas.openings
        later = tuple(openings)
        await self._flush_tails_of(self._hosted_replicas.list_replicas())
        await openings.wait_ended(later)
        found = (self._hosted_replicas.find_leader(tp) for tp in later)
        await self._flush_tails_of([each for each in found if each is not None])

    async def _flush_tails_of(self, replicas: Sequence[LeaderReplica | FollowerReplica]) -> None:
        for replica in replicas:
            if replica.log.flushed_offset < replica.log.end_offset and not replica.is_stopped:
                try:
                    await replica.flush()
                except Unavailable as error:
                    log.error("tail of an earlier process is not fsynced partition=%s why=%s", replica.tp, error)

    async def update_synced_entries(self) -> None:
        """Notes a change of `flush` for each log soon, also if nobody appends to the log (`hot/synced_logs.py`)."""
        event = self._hosted_replicas.synced_entry_due
        while True:
            await event.wait()
            event.clear()
            replicas = self._hosted_replicas.list_replicas()
            due = [each for each in replicas if each.log.synced_entry.is_due and not each.is_stopped]
            for first in range(0, len(due), SYNCED_ENTRIES_AT_ONCE):
                batch = due[first : first + SYNCED_ENTRIES_AT_ONCE]
                results = await asyncio.gather(
                    *(each.flush(each.log.end_offset) for each in batch), return_exceptions=True
                )
                for replica, error in zip(batch, results, strict=True):
                    if isinstance(error, Unavailable):
                        log.warning("change of flush is noted later partition=%s why=%s", replica.tp, error)
                    elif isinstance(error, BaseException):
                        raise error
            if any(each.log.synced_entry.is_due for each in due if not each.is_stopped):
                await self._clock.sleep(RETRY_SECONDS[0])
                event.set()

    async def flush_due(self) -> None:
        """Fsyncs logs whose `flush.ms` or `flush.messages` is reached."""
        now_ms = self._clock.wall_ms()
        async for replica in each_of(self._hosted_replicas.list_replicas()):
            waiting = replica.log.end_offset - replica.log.flushed_offset
            since_ms = self._flushed_ms.setdefault(replica, now_ms)
            if replica.is_stopped:
                continue
            if waiting <= 0:
                self._flushed_ms[replica] = now_ms
            elif waiting >= replica.config.flush_messages or now_ms - since_ms >= replica.config.flush_ms:
                await replica.flush()
                self._flushed_ms[replica] = now_ms
        self._flushed_ms = {replica: ms for replica, ms in self._flushed_ms.items() if not replica.is_stopped}

    async def write_checkpoints(self) -> None:
        """Fsyncs closed segments and long unproved active ones, then notes how far each log is durable.

        This bounds the part of the logs that a start after a power loss has to check.
        """
        for replica in self._hosted_replicas.list_replicas():
            closed = replica.log.segments.active.base_offset
            if replica.is_stopped:
                continue
            if replica.log.unproved_bytes >= UNFLUSHED_BYTES_MAX:
                await replica.flush()
            elif replica.log.flushed_offset < closed:
                await replica.flush(closed)
        await self._hosted_replicas.save_offsets()
