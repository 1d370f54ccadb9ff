"""The partitions of one broker: their logs, and the replicas that it leads. Follows the committed image only.

A partition that cannot be opened or agreed with the bucket is not served; it is named with the reason and tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping

from tiered.config import Settings, TopicConfig
from tiered.data_directory import DataDirectory, Found
from tiered.errors import Code, Corrupt, Fenced, Refused, Unavailable
from tiered.hot.disk_log import DiskLog
from tiered.hot.left import Left
from tiered.hot.segment_files import OpenFiles
from tiered.ids import TopicPartition
from tiered.metadata.delta import Lead, between
from tiered.metadata.group_images import GroupImages
from tiered.metadata.image import Image, Loss, TopicImage
from tiered.metadata.settings import topic_config
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.metrics import Metrics
from tiered.ports import World
from tiered.replication.leading import Past, begin
from tiered.replication.partition import Partition
from tiered.replication.replica import Replica
from tiered.replication.storage import ColdTier, DiskState

log = logging.getLogger(__name__)

OPENING_AT_ONCE = 32


class Partitions:
    """`begun` hears of each replica that is led, `closed` of each closed segment, `forgotten` of each replica that is
    led no more.

    `unopened` names what should be led and cannot be, with the reason; `unreported` what is led from a log that may
    have lost records. `doubtful` are the partitions whose logs the start could not prove whole.
    """

    def __init__(
        self,
        settings: Settings,
        world: World,
        metrics: Metrics,
        *,
        incarnation: str,
        disk: DiskState,
        directory: DataDirectory,
        cold: ColdTier,
        images: GroupImages,
        begun: Callable[[Replica], None],
        closed: Callable[[Replica], None],
        forgotten: Callable[[Replica], None],
    ) -> None:
        self.settings = settings
        self.unopened: dict[TopicPartition, tuple[Lead, str]] = {}
        self.doubtful: frozenset[TopicPartition] = frozenset()
        self.unreported: list[Replica] = []
        self.past = Past.OPEN
        self._incarnation = incarnation
        self._world = world
        self._metrics = metrics
        self._disk = disk
        self._directory = directory
        self._cold = cold
        self._images = images
        self._begun = begun
        self._closed = closed
        self._forgotten = forgotten
        self._files = OpenFiles(world.disk)
        self._logs: dict[TopicPartition, DiskLog] = {}
        self._replicas: dict[TopicPartition, Replica] = {}
        self._found: Found | None = None
        self._noted_before: set[TopicPartition] = set()
        """Partitions of deleted topics of which offsets may still be written down."""
        self._never_cold: set[TopicPartition] = set()
        """Partitions of which nothing was in the bucket when this broker, the last to lead them, stopped cleanly."""
        self._moving = asyncio.Lock()
        self._last_config: tuple[Mapping[str, str], Settings, TopicConfig] = ({}, settings, TopicConfig())
        gauge = metrics.gauge("tiered_partitions", "Partitions that this broker leads.")
        gauge.read(lambda: float(len(self._replicas)))

    def led(self) -> list[Replica]:
        """Every partition that this broker leads."""
        return list(self._replicas.values())

    def get(self, at: TopicPartition) -> Replica | None:
        """The partition, when it is led here."""
        return self._replicas.get(at)

    # -- start --------------------------------------------------------------------------------------------------------

    async def recover(self, image: Image, found: Found) -> bool:
        """Opens the logs of all partitions that have a replica here, as they were left, before anybody is told.
        Whether all could be opened."""
        known = dict(held(image, self.settings.node_id))
        self._noted_before = {*found.recovery_points, *found.log_starts} - known.keys()
        self._found = found = self._directory.tidy({at: topic.topic_id for at, topic in known.items()}, found)
        for at, topic in known.items():
            try:
                self._logs[at] = await self._open(at, topic, found)
                left, led = found.left.get(at), topic.partitions[at.partition].leader_epoch
                if self.past is Past.SETTLED and left is not None and not left.cold and left.leader_epoch == led:
                    self._never_cold.add(at)
            except (Unavailable, Corrupt) as error:
                log.error("log cannot be opened partition=%s why=%s", at, error)
        return len(self._logs) == len(known)

    async def _open(self, at: TopicPartition, topic: TopicImage, found: Found, *, fresh: bool = False) -> DiskLog:
        left = found.left.get(at) if not fresh else None
        return await DiskLog.open(
            self._world.disk,
            self._world.clock,
            self._directory.path(at),
            self._config_of(topic),
            same_boot=found.same_boot,
            clean=found.clean,
            recovery_point=found.recovery_points.get(at, 0),
            start_offset=found.log_starts.get(at, 0),
            metrics=self._metrics,
            topic_id=topic.topic_id,
            name=str(at),
            files=self._files,
            fresh=fresh,
            left=None if left is None or left.topic_id != topic.topic_id else left,
        )

    def _config_of(self, topic: TopicImage) -> TopicConfig:
        """What a topic goes by; worked out once for all partitions that come one after the other and say the same."""
        known_topic, known_settings, config = self._last_config
        if known_settings is not self.settings or known_topic != topic.configs:
            config = topic_config(topic, self.settings.topic_defaults())
            self._last_config = (topic.configs, self.settings, config)
        return config

    # -- following the image ------------------------------------------------------------------------------------------

    async def follow(self, old: Image, new: Image, settings: Settings) -> None:
        """Does what it takes to get from `old` to `new`: drop, resign, configure, lead."""
        async with self._moving:
            await self._follow(old, new, settings)

    async def _follow(self, old: Image, new: Image, settings: Settings) -> None:
        delta = between(old, new, settings.node_id, self._incarnation)
        self.settings = settings
        for at in delta.dropped:
            self._drop(at, old.topics[at.topic].topic_id)
        for at in delta.resigned:
            self.resign(at, Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{at} is led elsewhere now"))
        for name in new.topics if delta.brokers_configured else delta.configured:
            self._configure(new.topics[name])
        await self._lead_all(new, delta.led)
        for at, loss in delta.lost:
            if at in self._replicas:
                self._replicas[at].possible_loss = loss._asdict()

    async def open_missing(self, image: Callable[[], Image]) -> None:
        """Tries again to lead what could not be opened. Not while the image is followed: what is opened here may be
        deleted there, or led under a later epoch."""
        if self.unopened:
            async with self._moving:
                await self._lead_all(image(), [lead for lead, _ in self.unopened.values()])

    async def settled(self) -> None:
        """Returns once nothing is being followed: all that the image says is led, or named in `unopened`."""
        async with self._moving:
            return

    async def _lead_all(self, image: Image, leads: Iterable[Lead]) -> None:
        self._images.renew()
        places = asyncio.Semaphore(OPENING_AT_ONCE)
        await asyncio.gather(*(self._lead(image, lead, places) for lead in leads))

    async def _lead(self, image: Image, lead: Lead, places: asyncio.Semaphore) -> None:
        topic = image.topics_by_id.get(lead.topic_id)
        if topic is None or topic.partitions[lead.at.partition].leader_epoch != lead.leader_epoch:
            return  # the image went on, and is about to be followed
        async with places:
            if lead.fresh:
                await asyncio.sleep(0)  # a thousand new logs wait for nothing: others have their turn between them
            try:
                replica = await self._begin(topic, lead)
                if replica.restarted:
                    # The point noted before may lie above the new end: it must not vouch for what comes below it now.
                    await self.save_offsets()
            except (Unavailable, Corrupt, Fenced, Refused) as error:
                log.error("partition is not served partition=%s why=%s", lead.at, error)
                self._judge(lead.at, error)
                self.unopened[lead.at] = (lead, str(error))
                return
        self._replicas[lead.at] = replica
        self.unopened.pop(lead.at, None)
        told = topic.partitions[lead.at.partition].loss
        replica.possible_loss = told._asdict() if told is not None else None
        if replica.restarted or (lead.at in self.doubtful and not lead.fresh):
            self.unreported.append(replica)
            replica.possible_loss = Loss(lead.leader_epoch, replica.epoch_start, self._world.clock.wall_ms())._asdict()
        self._begun(replica)

    def _judge(self, at: TopicPartition, error: Unavailable | Corrupt | Fenced | Refused) -> None:
        """A log that broke while it was made ready: on a full disk it is opened anew, on a failing one nothing is."""
        hot = self._logs.get(at)
        if hot is None or not hot.broken:
            return
        if isinstance(error, Unavailable) and not error.final:
            self._disk.refused(str(error))
            hot.close()
            del self._logs[at]
        else:
            self._disk.died(str(error))

    async def _begin(self, topic: TopicImage, lead: Lead) -> Replica:
        assert self._found is not None
        if lead.at not in self._logs:
            if lead.fresh:  # whatever lies there is of an earlier topic of that name
                self._put_aside(lead.at, f"before-{lead.topic_id}", 0)
                if lead.at in self._noted_before:  # else the next start would take them for offsets of this log
                    await self.save_offsets()
            # What is created now has no past to doubt, and no fsync to wait for.
            unknown = self._found._replace(
                recovery_points={}, log_starts={}, left={}, same_boot=lead.fresh or self._found.same_boot
            )
            self._logs[lead.at] = await self._open(lead.at, topic, unknown, fresh=lead.fresh)
        hot = self._logs[lead.at]
        pid = Replica.id_of(lead.at, lead.topic_id)
        past = Past.NONE if lead.fresh or lead.at in self._never_cold else self.past
        self._never_cold.discard(lead.at)
        if topic.name == OFFSETS_TOPIC and not lead.fresh:
            begun = await self._images.begin(hot, pid)
        else:
            begun = await begin(hot, self._cold, pid, topic.name, lead.leader_epoch, past)
        known = topic.partitions[lead.at.partition]
        return Replica(
            lead.at,
            lead.topic_id,
            hot,
            Partition(
                self.settings.node_id,
                lead.leader_epoch,
                known.isr,
                replicas=known.replicas,
                epoch_start=hot.end_offset,
                partition_epoch=known.partition_epoch,
                began_ns=self._world.clock.mono_ns(),
            ),
            cold=self._cold,
            begun=begun,
            clock=self._world.clock,
            disk=self._disk,
            segment_closed=self._closed,
            joinable=lambda replica: None,
        )

    def _configure(self, topic: TopicImage) -> None:
        config = self._config_of(topic)
        for p in range(len(topic.partitions)):
            at = TopicPartition(topic.name, p)
            if at in self._logs:
                self._logs[at].config = config
            if at in self._replicas:
                self._closed(self._replicas[at])

    def resign(self, at: TopicPartition, why: Refused) -> None:
        """Not led here any more; who waits is answered with `why`."""
        self.unopened.pop(at, None)
        replica = self._replicas.pop(at, None)
        if replica is not None:
            replica.resign(why)
            self._cold.uploader.forget(replica.pid)
            self._forgotten(replica)

    def fenced(self, replica: Replica, error: Fenced) -> None:
        """A newer leader wrote its epoch into the manifest. What comes late for a deleted topic is not meant for the
        one that has its name now."""
        log.error("fenced partition=%s why=%s", replica.at, error)
        if self._replicas.get(replica.at) is replica:
            self.resign(replica.at, Refused(Code.NOT_LEADER_OR_FOLLOWER, str(error)))

    def _drop(self, at: TopicPartition, topic_id: str) -> None:
        replica = self._replicas.get(at)
        self.resign(at, Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {at.topic!r} was deleted"))
        if replica is not None:
            self._cold.manifests.forget(replica.pid)
        hot = self._logs.pop(at, None)
        self._noted_before.add(at)
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
        self._files.forget_below(self._directory.path(at))  # of a log that was never opened to the end, too
        self._directory.condemn(at, topic_id, self._world.clock.wall_ms() + delay_ms)

    # -- the end ------------------------------------------------------------------------------------------------------

    def refuse(self, why: Refused) -> None:
        """Answers everybody with `why` from now on; the logs stay as they are."""
        for replica in self._replicas.values():
            replica.resign(why)

    async def save_offsets(self) -> None:
        """Writes down how far each log is durable and where it starts."""
        gone = self._noted_before - self._logs.keys()
        await self._directory.save_offsets(self._logs)
        self._noted_before -= gone

    async def close_clean(self) -> bool:
        """Whether all logs are durable, closed and marked so: the next start then has nothing to check."""
        try:
            places = asyncio.Semaphore(OPENING_AT_ONCE)
            await asyncio.gather(*(self._close_clean(hot, places) for hot in self._logs.values()))
            await self.save_offsets()
            await self._directory.mark_clean(self._left())
        except (Unavailable, Refused) as error:
            log.error("logs could not be closed cleanly why=%s", error)
            return False
        return True

    def _left(self) -> dict[TopicPartition, Left]:
        """What the next start need not read anew."""
        found = {}
        for at, hot in self._logs.items():
            replica = self._replicas.get(at)
            if replica is not None and (left := hot.left(replica.leader_epoch, replica.manifest is not None)):
                found[at] = left
        return found

    @staticmethod
    async def _close_clean(hot: DiskLog, places: asyncio.Semaphore) -> None:
        async with places:
            await hot.close_clean()


def held(image: Image, node_id: int) -> Iterable[tuple[TopicPartition, TopicImage]]:
    """The partitions that have a replica on a broker."""
    for topic in image.topics.values():
        for p, partition in enumerate(topic.partitions):
            if node_id in partition.replicas:
                yield TopicPartition(topic.name, p), topic
