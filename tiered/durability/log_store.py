"""The logs of one broker on its disk: opened at the start, dropped with their topics, closed by a clean stop (R1).

This file decides no roles: `hosted_replicas` leads and follows with these logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from tiered.config.settings import Settings, TopicConfig
from tiered.controller.member_view import MemberView
from tiered.durability.adopted_logs import AdoptedLog
from tiered.durability.data_directory import DataDirectory, DirectoryState, LogOffsets
from tiered.errors import Corrupt, Refused, Unavailable, check_invariant
from tiered.hot.checkpoints import SUSPECT_FILE
from tiered.hot.clean_shutdown import CleanLogEntry
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_loader import CorruptLog
from tiered.hot.log_recovery import LogRecovery
from tiered.hot.segment_files import OpenFiles
from tiered.hot.synced_logs import SyncedLogEntry, SyncedLogs
from tiered.hot.unopened_log import find_proved_end
from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.metadata.effective_config import topic_config
from tiered.metadata.parts.topics import TopicImage
from tiered.metrics import Metrics
from tiered.ports import World
from tiered.producers.limits import ProducerLimits
from tiered.system.turns import each_of

log = logging.getLogger(__name__)

OPENING_AT_ONCE = CLOSING_AT_ONCE = 32
"""Logs that are opened or closed at once."""


class LogStore:
    """The open logs of one broker, at most one for each partition.

    `can_save_synced_entry` is True if the log of a partition may be noted as synced (`hot/synced_logs.py`).
    """

    def __init__(
        self,
        view: MemberView,
        world: World,
        metrics: Metrics,
        directory: DataDirectory,
        can_save_synced_entry: Callable[[TopicPartition], bool],
    ) -> None:
        self._view = view
        self._world = world
        self._metrics = metrics
        self._directory = directory
        self._files = OpenFiles(world.disk)
        settings = view.settings
        self.producer_limits = ProducerLimits(
            settings.tiered_producer_ids_max_per_partition, settings.tiered_producer_ids_max
        )
        """Limits of the producer state of all logs, and how much of it there is."""
        self._synced_logs = SyncedLogs(directory.proof_file, can_save_synced_entry)
        self._logs: dict[TopicPartition, DiskLog] = {}
        self._directory_state: DirectoryState | None = None
        self.adopted: tuple[AdoptedLog, ...] = ()
        """Logs of another process of this machine that this start opened: this broker has no replica of them before it
        registers."""
        self._unchecked: set[TopicPartition] = set()
        """Partitions whose logs the start could not open: the notes in the data directory still hold for them."""
        self._corrupt: set[TopicPartition] = set()
        """Partitions with rotten logs that the start could not open, or not cut, and with logs that are gone."""
        self._unopened_ends: dict[PartitionId, tuple[int, int]] = {}
        """Last epoch and end offset of logs that the start could read but not open."""
        self._is_closing = False
        self._truncation_failed: set[TopicPartition] = set()
        """Partitions whose logs were closed because a truncation failed."""
        self._closed_offsets: dict[TopicPartition, LogOffsets] = {}
        """Logs that are not open, and what the checkpoint files keep of them. A log that was closed in the middle of a
        change has the recovery point 0: all of it is checked."""
        self._stale_checkpoints: set[TopicPartition] = set()
        """Partitions that were deleted or moved, whose offsets may still be in the checkpoint files."""
        self._last_config: tuple[Mapping[str, str], Settings, TopicConfig] | None = None

    def get(self, tp: TopicPartition) -> DiskLog | None:
        """Returns the open log of a partition, or None."""
        return self._logs.get(tp)

    def end_of(self, tp: TopicPartition, topic_id: TopicId) -> tuple[int, int]:
        """Returns the epoch of the last record of a topic's log, and its end offset; (-1, 0) if it cannot be read.

        The log of an earlier topic of that name counts as none.
        """
        hot = self._logs.get(tp)
        if hot is not None and hot.topic_id == topic_id:
            return hot.epochs.latest, hot.end_offset
        return self._unopened_ends.get(PartitionId(topic_id, tp.partition), (-1, 0))

    # -- opening ------------------------------------------------------------------------------------------------------

    async def recover(
        self,
        known: Mapping[TopicPartition, TopicImage],
        state: DirectoryState,
        adopted: Sequence[AdoptedLog] = (),
    ) -> DirectoryState:
        """Opens all logs in the data directory, and deletes those of other topics. The process that `adopted` logs come
        from had stopped cleanly.

        A log that cannot be opened now is tried again by `open_or_create`. Returns the state of the directory without
        the deleted logs.
        """
        self.adopted = tuple(adopted)
        stopped_cleanly = {each.tp for each in adopted}
        noted = {*state.recovery_points, *state.log_starts}
        state, lost = await self._directory.delete_stray_logs(
            {tp: topic.topic_id for tp, topic in known.items()}, state
        )
        self._directory_state = state
        for tp in lost:
            log.error("log is gone that a checkpoint notes partition=%s", tp)
            try:
                await self._directory.mark_lost(tp)
            except Unavailable as error:
                if error.final:
                    raise
                log.error("loss of a log is noted in memory alone partition=%s why=%s", tp, error)
                self._corrupt.add(tp)
        self._stale_checkpoints = noted - {*state.recovery_points, *state.log_starts, *lost}
        self._synced_logs.adopt_rows(
            (tp, topic_id)
            for tp, topic_id in state.synced_logs
            if tp in known and tp not in lost and known[tp].topic_id == topic_id
        )
        async for tp, topic in each_of(known.items()):
            if tp in self._stale_checkpoints:
                continue  # `open_or_create` creates the log after the checkpoint files forgot the earlier one
            past = state._replace(clean=True) if tp in stopped_cleanly else state
            try:
                self._logs[tp] = await self._open_log(tp, topic, past)
            except (Unavailable, Corrupt) as error:
                log.error("log cannot be opened partition=%s why=%s", tp, error)
                self._unchecked.add(tp)
                self._closed_offsets[tp] = LogOffsets(state.recovery_points.get(tp), state.log_starts.get(tp, 0))
                if isinstance(error, CorruptLog) or self._is_marked_suspect(tp):
                    self._corrupt.add(tp)
                if not isinstance(error, Corrupt) or isinstance(error, CorruptLog):
                    with contextlib.suppress(Unavailable):
                        point = state.recovery_points.get(tp, 0)
                        found = find_proved_end(self._world.disk, self._directory.log_path(tp), point)
                        self._unopened_ends[PartitionId(topic.topic_id, tp.partition)] = found[:2]
                        if state.is_intact and not found.is_whole:  # no power cut tore it: it has rotted
                            self._corrupt.add(tp)
        return state

    async def adopt_proof(self) -> None:
        """Writes what this start believes under this incarnation too, before it registers.

        The earlier incarnations stay: nobody knows yet if this one registers, or one that died before it could. Raises
        `Unavailable`.
        """
        state = self._directory_state
        assert state is not None
        incarnations = self._view.incarnation, *state.incarnations
        self._directory.set_proof(same_boot=state.same_boot, incarnations=incarnations)
        try:
            await self._synced_logs.save(always=state.same_boot)
        finally:
            for hot in self._logs.values():
                hot.synced_entry.refresh()

    async def open_or_create(self, tp: TopicPartition, topic: TopicImage, *, is_new: bool) -> DiskLog:
        """Returns the log of a partition that gets a role here; opens or creates it if it is not open.

        `is_new`: no copy of the log exists anywhere. Raises `Unavailable`, `Corrupt` or `Refused`.
        """
        hot = self._logs.get(tp)
        if hot is not None:
            check_invariant(hot.topic_id == topic.topic_id, "log of another topic", tp, hot.topic_id, topic.topic_id)
            return hot
        assert self._directory_state is not None
        self._refuse_if_closing(tp)
        if is_new:
            self._closed_offsets.pop(tp, None)
        if tp not in self._closed_offsets:  # a log in its directory belongs to an earlier topic of that name
            self._rename_for_deletion(tp, f"before-{topic.topic_id}", 0)
        if tp in self._stale_checkpoints:  # else the next start would take its offsets for those of this log
            await self.save_offsets()
        past = self._directory_state
        if is_new or tp not in self._unchecked:
            # A new log has no earlier records to check. A log that was open before was closed after a failure.
            same_boot = is_new or self._directory_state.same_boot
            left = self._closed_offsets.get(tp)
            starts = {} if left is None else {tp: left.start}
            past = past._replace(
                recovery_points={}, log_starts=starts, clean_entries={}, same_boot=same_boot, clean=False
            )
        hot = await self._open_log(tp, topic, past, is_new=is_new)
        if self._is_closing:
            hot.close()
        self._refuse_if_closing(tp)
        self._unchecked.discard(tp)
        self._truncation_failed.discard(tp)
        known = topic.partitions[tp.partition]
        counts = self._view.node_id in (*known.isr, *known.elr)
        if hot.suspect and counts and tp not in self._corrupt:
            # The cluster relies on the records of this log, until it left the ISR or the next start reported a loss.
            hot.close()
            raise Corrupt("the log lacks records that the cluster counts on; start the broker again", where=hot.name)
        self._logs[tp] = hot
        self._closed_offsets.pop(tp, None)
        return hot

    async def _open_log(
        self, tp: TopicPartition, topic: TopicImage, state: DirectoryState, *, is_new: bool = False
    ) -> DiskLog:
        left = state.clean_entries.get(tp) if not is_new else None
        return await DiskLog.open(
            self._world.disk,
            self._world.clock,
            self._directory.log_path(tp),
            self.get_config(topic),
            LogRecovery(
                same_boot=state.same_boot,
                clean=state.clean,
                recovery_point=state.recovery_points.get(tp, 0),
                start_offset=state.log_starts.get(tp, 0),
                is_new=is_new,
                truncation_interrupted=tp in self._truncation_failed,
                clean_entry=None if left is None or left.topic_id != topic.topic_id else left,
            ),
            metrics=self._metrics,
            topic_id=topic.topic_id,
            name=str(tp),
            files=self._files,
            synced_entry=SyncedLogEntry(self._synced_logs, tp, topic.topic_id),
            producer_limits=self.producer_limits,
        )

    def is_suspect(self, tp: TopicPartition) -> bool:
        """True if rot took records of the log that the cluster believes to be here."""
        hot = self._logs.get(tp)
        return tp in self._corrupt or (hot is not None and hot.suspect)

    def _is_marked_suspect(self, tp: TopicPartition) -> bool:
        with contextlib.suppress(Unavailable):
            return self._world.disk.exists(f"{self._directory.log_path(tp)}/{SUSPECT_FILE}")
        return True

    @property
    def has_unchecked_logs(self) -> bool:
        """True if a log that the start could not open is still not open."""
        return bool(self._unchecked)

    async def clear_suspicion(self) -> None:
        """Ends the suspicion of all logs: the cluster knows what each log lacks.

        Raises `Unavailable` if the disk fails.
        """
        for hot in list(self._logs.values()):
            await hot.clear_suspicion()

    def get_config(self, topic: TopicImage) -> TopicConfig:
        """Returns the settings of a topic; cached for calls with the same settings in a row."""
        settings = self._view.settings
        if self._last_config is not None:
            known_topic, known_settings, config = self._last_config
            if known_settings is settings and known_topic == topic.configs:
                return config
        config = topic_config(topic, settings.topic_defaults())
        self._last_config = (topic.configs, settings, config)
        return config

    def configure(self, tp: TopicPartition, config: TopicConfig) -> DiskLog | None:
        """Configures the log of a partition. Returns the log, or None if it is not open."""
        hot = self._logs.get(tp)
        if hot is not None:
            hot.configure(config)
        return hot

    # -- dropping -----------------------------------------------------------------------------------------------------

    def close_broken(self, tp: TopicPartition) -> None:
        """Closes a log that failed during a change. The next `open_or_create` finds out what is left of it."""
        hot = self._logs.pop(tp, None)
        if hot is not None:
            self._truncation_failed.add(tp)
            self._closed_offsets[tp] = LogOffsets(0, hot.start_offset)
            hot.close()

    def drop(self, tp: TopicPartition, topic_id: str) -> None:
        """Closes the log of a partition that has no replica here any more; its files are deleted later."""
        hot = self._logs.pop(tp, None)
        self._synced_logs.remove_row((tp, TopicId(topic_id)))
        self._stale_checkpoints.add(tp)
        self._unchecked.discard(tp)
        self._truncation_failed.discard(tp)
        self._corrupt.discard(tp)
        self._closed_offsets.pop(tp, None)
        delay_ms = 0
        if hot is not None:
            delay_ms = hot.config.file_delete_delay_ms
            with contextlib.suppress(Unavailable):  # a full disk takes no indexes, and nobody needs them
                hot.close()
        try:
            self._rename_for_deletion(tp, topic_id, delay_ms)
        except Unavailable as error:
            log.warning("log of a dropped partition stays for now partition=%s why=%s", tp, error)

    def _rename_for_deletion(self, tp: TopicPartition, topic_id: str, delay_ms: int) -> None:
        """Frees the directory of a log; its files are deleted later. Raises `Unavailable` if the renaming fails."""
        self._files.forget_directory(self._directory.log_path(tp))  # also if opening the log failed halfway
        self._directory.rename_for_deletion(tp, topic_id, self._world.clock.wall_ms() + delay_ms)

    def _refuse_if_closing(self, tp: TopicPartition) -> None:
        if self._is_closing:
            raise Unavailable(f"the log of {tp} is not opened: the broker is stopping")

    # -- the end ------------------------------------------------------------------------------------------------------

    async def save_offsets(self) -> None:
        """Saves how far each log is durable and where it starts."""
        gone = {tp for tp in self._stale_checkpoints if tp not in self._logs}  # `-` would walk through all logs
        await self._directory.save_offsets(self._logs, self._closed_offsets)
        self._stale_checkpoints -= gone

    async def close_clean(self, make_clean_entry: Callable[[TopicPartition, DiskLog], CleanLogEntry | None]) -> bool:
        """Makes all logs durable, closes and marks them. Returns False if that failed, or if a log is not open.

        The next start then has nothing to check. `make_clean_entry` returns the entry of a small log, which the next
        start need not even read.
        """
        self._is_closing = True  # a log that is opened now would be written to after its mark
        try:
            logs = iter(list(self._logs.values()))
            await asyncio.gather(*(self._close_logs(logs) for _ in range(CLOSING_AT_ONCE)))
            await self.save_offsets()
            if self._closed_offsets:
                raise Unavailable(f"{next(iter(self._closed_offsets))} is not open, so nothing makes it durable")
            entries = ((tp, make_clean_entry(tp, hot)) for tp, hot in list(self._logs.items()))
            kept = ((tp, each) for tp, each in entries if each is not None)
            await self._directory.mark_clean(kept, self._view.incarnation)
        except (Unavailable, Refused) as error:
            log.error("logs could not be closed cleanly why=%s", error)
            return False
        return True

    @staticmethod
    async def _close_logs(logs: Iterator[DiskLog]) -> None:
        """Closes logs until the iterator, which other tasks share, is empty."""
        async for hot in each_of(logs):
            if hot.is_unchanged_since_stop:
                hot.close()
            else:
                await hot.close_clean()
