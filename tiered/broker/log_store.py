"""The logs of one broker on its disk: opened as they were left, put aside with their topics, closed so that the next
start need not check them. Who leads or follows with them stands in `partitions.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping

from tiered.broker.data_directory import BETWEEN_YIELDS, ROOT, DataDirectory, Found
from tiered.config.settings import Settings, TopicConfig
from tiered.errors import Corrupt, Refused, Unavailable, always
from tiered.hot.clean_shutdown import CleanLogEntry
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_loader import CorruptLog
from tiered.hot.producer_state import ProducerLimits
from tiered.hot.segment_files import OpenFiles
from tiered.hot.synced_logs import SyncedLogEntry, SyncedLogs
from tiered.hot.unopened_log import find_proved_end
from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.metadata.effective_config import topic_config
from tiered.metadata.image import TopicImage
from tiered.metrics import Metrics
from tiered.ports import World

log = logging.getLogger(__name__)

OPENING_AT_ONCE = CLOSING_AT_ONCE = 32


class Logs:
    """One log for each partition that has a replica here, as far as it is open. `settings` are those in force."""

    def __init__(
        self,
        world: World,
        metrics: Metrics,
        directory: DataDirectory,
        settings: Callable[[], Settings],
        incarnation: str,
        may_note: Callable[[TopicPartition], bool],
    ) -> None:
        self._world = world
        self._metrics = metrics
        self._directory = directory
        self._settings = settings
        self._files = OpenFiles(world.disk)
        self.producer_limits = ProducerLimits(
            settings().tiered_producer_ids_max_per_partition, settings().tiered_producer_ids_max
        )
        self._synced = SyncedLogs(world.disk, ROOT, incarnation, may_note)
        self._open: dict[TopicPartition, DiskLog] = {}
        self._found: Found | None = None
        self._unjudged: set[TopicPartition] = set()
        """Those that the start could not open: what was noted of them still counts."""
        self._rotten: set[TopicPartition] = set()
        """Partitions whose logs cannot be opened because there is no room to note that they have rotted."""
        self._ends: dict[PartitionId, tuple[int, int]] = {}
        """What a start could read of logs that it could not open."""
        self._half_cut: set[TopicPartition] = set()
        """Those that were closed because they could not be cut."""
        self._noted_before: set[TopicPartition] = set()
        """Partitions that were deleted, or went elsewhere, of which offsets may still be written down."""
        self._last_config: tuple[Mapping[str, str], Settings, TopicConfig] = ({}, settings(), TopicConfig())

    def get(self, at: TopicPartition) -> DiskLog | None:
        """The log of a partition, when it is open."""
        return self._open.get(at)

    def end_of(self, at: TopicPartition, topic_id: TopicId) -> tuple[int, int]:
        """The epoch of the last record of a topic's log and where it ends; (-1, 0) where nothing can be read. The log
        that lies there may be of an earlier topic of that name."""
        hot = self._open.get(at)
        if hot is not None and hot.topic_id == topic_id:
            return hot.epochs.latest, hot.end_offset
        return self._ends.get(PartitionId(topic_id, at.partition), (-1, 0))

    # -- opening ------------------------------------------------------------------------------------------------------

    async def recover(self, known: Mapping[TopicPartition, TopicImage], found: Found) -> Found:
        """Opens all logs as they were left; what cannot be opened now is tried again by `begin`. What is left to say of
        the directory once logs of other topics are gone."""
        noted = {*found.recovery_points, *found.log_starts}
        self._found = found = self._directory.tidy({at: topic.topic_id for at, topic in known.items()}, found)
        self._noted_before = noted - {*found.recovery_points, *found.log_starts}
        rows = found.synced.logs.items()
        self._synced.adopt_rows({row for row in rows if row[0] in known and known[row[0]].topic_id == row[1]})
        for number, (at, topic) in enumerate(known.items(), 1):
            if number % BETWEEN_YIELDS == 0:
                await asyncio.sleep(0)
            if at in self._noted_before:
                continue  # `begin` makes it, once the offsets of the log that was there are not noted any more
            try:
                self._open[at] = await self._opened(at, topic, found)
            except (Unavailable, Corrupt) as error:
                log.error("log cannot be opened partition=%s why=%s", at, error)
                self._unjudged.add(at)
                if isinstance(error, CorruptLog):
                    self._rotten.add(at)
                if not isinstance(error, Corrupt) or isinstance(error, CorruptLog):
                    with contextlib.suppress(Unavailable):
                        point = found.recovery_points.get(at, 0)
                        end = find_proved_end(self._world.disk, self._directory.path(at), point)
                        self._ends[PartitionId(topic.topic_id, at.partition)] = end
        return found

    async def renew_synced(self) -> None:
        """Makes what is noted of synced logs the word of this incarnation too, before it registers. `Unavailable`."""
        assert self._found is not None
        try:
            await self._synced.save(self._found.synced.incarnations)
        finally:
            for hot in self._open.values():
                hot.synced_entry.refresh()

    async def begin(self, at: TopicPartition, topic: TopicImage, *, fresh: bool) -> DiskLog:
        """The log of a partition that is led or followed from now on, opened or made where it is not there. Of a
        `fresh` one no copy exists anywhere. `Unavailable`, `Corrupt`, `Refused`."""
        hot = self._open.get(at)
        if hot is not None:
            always(hot.topic_id == topic.topic_id, "log of another topic", at, hot.topic_id, topic.topic_id)
            return hot
        assert self._found is not None
        if fresh:  # whatever lies there is of an earlier topic of that name
            self._put_aside(at, f"before-{topic.topic_id}", 0)
        if at in self._noted_before:  # else the next start would take them for offsets of this log
            await self.save_offsets()
        past = self._found
        if fresh or at not in self._unjudged:
            # What is created now has no past to doubt, and no fsync to wait for; what was open was closed in trouble.
            same_boot = fresh or self._found.same_boot
            past = past._replace(recovery_points={}, log_starts={}, left={}, same_boot=same_boot, clean=False)
        hot = await self._opened(at, topic, past, fresh=fresh)
        self._unjudged.discard(at)
        self._half_cut.discard(at)
        known = topic.partitions[at.partition]
        counts = self._settings().node_id in (*known.isr, *known.elr)
        if hot.suspect and counts and at not in self._rotten:
            # The cluster relies on what it had: not before it was left out, or the next start has told of it.
            hot.close()
            raise Corrupt("records have rotted away; start the broker again", where=hot.name)
        self._open[at] = hot
        return hot

    async def _opened(self, at: TopicPartition, topic: TopicImage, found: Found, *, fresh: bool = False) -> DiskLog:
        left = found.left.get(at) if not fresh else None
        return await DiskLog.open(
            self._world.disk,
            self._world.clock,
            self._directory.path(at),
            self.config_of(topic),
            same_boot=found.same_boot,
            clean=found.clean,
            recovery_point=found.recovery_points.get(at, 0),
            start_offset=found.log_starts.get(at, 0),
            metrics=self._metrics,
            topic_id=topic.topic_id,
            name=str(at),
            files=self._files,
            is_new=fresh,
            truncation_interrupted=at in self._half_cut,
            clean_entry=None if left is None or left.topic_id != topic.topic_id else left,
            synced_entry=SyncedLogEntry(self._synced, at, topic.topic_id),
            producer_limits=self.producer_limits,
        )

    def is_doubted(self, at: TopicPartition) -> bool:
        """Whether records of it have rotted away that the cluster believes to be here."""
        hot = self._open.get(at)
        return at in self._rotten or (hot is not None and hot.suspect)

    @property
    def unjudged(self) -> bool:
        """Whether a log that the start could not open has not been opened since."""
        return bool(self._unjudged)

    async def believe(self) -> None:
        """The cluster knows what is missing of each log. `Unavailable` where that cannot be written down."""
        for hot in list(self._open.values()):
            await hot.clear_suspicion()

    def config_of(self, topic: TopicImage) -> TopicConfig:
        """What a topic goes by; worked out once for all partitions that come one after the other and say the same."""
        settings = self._settings()
        known_topic, known_settings, config = self._last_config
        if known_settings is not settings or known_topic != topic.configs:
            config = topic_config(topic, settings.topic_defaults())
            self._last_config = (topic.configs, settings, config)
        return config

    def configure(self, at: TopicPartition, config: TopicConfig) -> DiskLog | None:
        """Other settings are in force; returns the log that goes by them, when it is open."""
        hot = self._open.get(at)
        if hot is not None:
            hot.configure(config)
        return hot

    # -- going --------------------------------------------------------------------------------------------------------

    def close_broken(self, at: TopicPartition) -> None:
        """Only opening it anew can tell what is left of it: the next `begin` does."""
        hot = self._open.pop(at, None)
        if hot is not None:
            self._half_cut.add(at)
            hot.close()

    def drop(self, at: TopicPartition, topic_id: str) -> None:
        """The partition is not held here any more; its files go later."""
        hot = self._open.pop(at, None)
        self._synced.remove_row((at, TopicId(topic_id)))
        self._noted_before.add(at)
        self._unjudged.discard(at)
        self._half_cut.discard(at)
        delay_ms = 0
        if hot is not None:
            delay_ms = hot.config.file_delete_delay_ms
            with contextlib.suppress(Unavailable):  # a full disk does not take indexes that nobody needs
                hot.close()
        try:
            self._put_aside(at, topic_id, delay_ms)
        except Unavailable as error:
            log.warning("log of a deleted topic stays for now partition=%s why=%s", at, error)

    def _put_aside(self, at: TopicPartition, topic_id: str, delay_ms: int) -> None:
        """The place of a log is free; its files go later. `Unavailable` when the directory cannot be renamed."""
        self._files.forget_directory(self._directory.path(at))  # of a log that was never opened to the end, too
        self._directory.condemn(at, topic_id, self._world.clock.wall_ms() + delay_ms)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def save_offsets(self) -> None:
        """Writes down how far each log is durable and where it starts."""
        gone = self._noted_before - self._open.keys()
        await self._directory.save_offsets(self._open)
        self._noted_before -= gone

    async def close_clean(self, left: Callable[[TopicPartition, DiskLog], CleanLogEntry | None]) -> bool:
        """Whether all logs are durable, closed and marked so: the next start then has nothing to check. `left` is what
        that start need not even read."""
        try:
            logs = iter(list(self._open.values()))
            await asyncio.gather(*(self._close_each(logs) for _ in range(CLOSING_AT_ONCE)))
            await self.save_offsets()
            said = ((at, left(at, hot)) for at, hot in list(self._open.items()))
            await self._directory.mark_clean((at, each) for at, each in said if each is not None)
        except (Unavailable, Refused) as error:
            log.error("logs could not be closed cleanly why=%s", error)
            return False
        return True

    @staticmethod
    async def _close_each(logs: Iterator[DiskLog]) -> None:
        """Takes its share of the logs; others have their turn now and then."""
        for number, hot in enumerate(logs, 1):
            if not hot.is_unchanged_since_stop:
                await hot.close_clean()
                continue
            hot.close()
            if number % (BETWEEN_YIELDS // CLOSING_AT_ONCE) == 0:
                await asyncio.sleep(0)
