"""Settings and ports become a running broker. Wiring and order only: every rule it follows stands further down.

A start reads the cluster's memory, makes sure that no earlier incarnation of this node answers (R6), recovers the logs,
takes the controller's slot, registers (R1), agrees with the bucket (R5), and serves. A task that fails ends the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tiered.cold.cache import ChunkCache
from tiered.cold.collector import Collector
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.observed import ObservedStore
from tiered.cold.probe import probe
from tiered.cold.reader import ColdReader
from tiered.cold.uploader import Uploader
from tiered.config import Settings
from tiered.data_directory import DataDirectory, Found
from tiered.errors import Code, Corrupt, Fenced, Refused, Unavailable
from tiered.health import Health, assess
from tiered.hot.disk_log import DiskLog
from tiered.hot.segment_files import OpenFiles
from tiered.housekeeping import Housekeeping
from tiered.ids import TopicPartition, text_id
from tiered.metadata import requests
from tiered.metadata.changes import Change
from tiered.metadata.controller import Controller
from tiered.metadata.delta import Lead, between
from tiered.metadata.image import Image, TopicImage
from tiered.metadata.load import read_format
from tiered.metadata.metadata_log import MetadataLog
from tiered.metadata.registration import answers
from tiered.metadata.requests import Request
from tiered.metadata.runtime import Runtime
from tiered.metadata.settings import broker_settings, topic_config
from tiered.metrics import Metrics
from tiered.ports import World
from tiered.replication.leading import begin
from tiered.replication.partition import Partition
from tiered.replication.replica import Replica
from tiered.replication.storage import ColdTier, DiskState
from tiered.tiering import Tiering

log = logging.getLogger(__name__)

SUBMIT_SECONDS = 30.0
STOP_SECONDS = 5.0
OPENING_AT_ONCE = 32


class Node:
    """One broker. The caller holds the lock of the data directory and closes the network faces before `stop`.

    `image` is the committed state of the cluster, `ended` is set when the broker can serve no more.
    """

    def __init__(self, settings: Settings, world: World, metrics: Metrics) -> None:
        self.settings = settings
        self.metrics = metrics
        self.store = ObservedStore(world.store, world.clock, metrics)
        self.world = replace(world, store=self.store)
        self.image = Image()
        self.cluster_id = ""
        self.ended = asyncio.Event()
        self._own = settings
        self._chance = world.rng.stream("node")
        self.incarnation = self._draw_id()
        self.disk = DiskState(world.clock, metrics)
        self.directory = DataDirectory(world.disk)
        manifests = ManifestStore(self.store, world.clock, world.rng, metrics)
        cache = ChunkCache(metrics, settings.tiered_chunk_cache_bytes)
        uploader = Uploader(self.store, manifests, world.clock, world.rng, metrics)
        grace_ms = settings.tiered_object_delete_delay_ms
        self.cold = ColdTier(
            manifests,
            ColdReader(self.store, manifests, cache, metrics, world.clock),
            uploader,
            Collector(self.store, manifests, uploader.busy, world.clock, metrics, grace_ms=grace_ms),
        )
        self.tiering = Tiering(settings, self.replicas, self._lost, world.clock, world.rng, metrics)
        self._files = OpenFiles(world.disk)
        self._logs: dict[TopicPartition, DiskLog] = {}
        self._replicas: dict[TopicPartition, Replica] = {}
        self._unopened: dict[TopicPartition, tuple[Lead, str]] = {}
        self._found: Found | None = None
        self._runtime: Runtime[Request] | None = None
        self._main: asyncio.Task[None] | None = None
        self._failure = ""
        self._serving = False
        metrics.gauge("tiered_partitions", "Partitions that this broker leads.").read(
            lambda: float(len(self._replicas))
        )
        metrics.gauge("tiered_disk_free_bytes", "Free bytes under the data directory.").read(
            lambda: float(world.disk.space().free)
        )

    # -- what others ask ----------------------------------------------------------------------------------------------

    def replica(self, topic: str, partition: int) -> Replica:
        """The partition, led here. `Refused` when it is not there, led elsewhere or not readable."""
        found = self._replicas.get(TopicPartition(topic, partition))
        if found is not None:
            return found
        known = self.image.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            raise Refused(
                Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition} of topic {topic[:249]!r}"
            )
        unopened = self._unopened.get(TopicPartition(topic, partition))
        if unopened is not None:
            raise Refused(Code.KAFKA_STORAGE_ERROR, f"partition {topic}-{partition} is not served: {unopened[1]}")
        raise Refused(Code.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead partition {topic}-{partition}")

    def replicas(self) -> Iterable[Replica]:
        """Every partition that this broker leads."""
        return list(self._replicas.values())

    async def submit(self, request: Request) -> Any:
        """Asks the controller; the reply's type stands with each request. `Refused` with the reason."""
        if self._runtime is None:
            raise Refused(Code.NOT_CONTROLLER, "the broker does not run")
        return await self._runtime.submit(request, SUBMIT_SECONDS)

    async def announce(self, http: str) -> None:
        """The HTTP interface answers at `http` (HOST:PORT): a second broker with this node id asks there."""
        await self.submit(requests.AnnounceBroker(self.settings.node_id, self.incarnation, http))

    def health(self) -> Health:
        """Whether the broker serves, and what is wrong."""
        return assess(
            failure=self._failure,
            started=self._serving,
            disk=self.disk,
            outage=self.store.outage,
            waiting_segments=self.tiering.waiting_segments(),
            pending_metadata=self._runtime.pending if self._runtime else 0,
            unopened={str(at): why for at, (_, why) in self._unopened.items()},
            replicas=self._replicas.values(),
        )

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when everything is served. `Refused` when it must not run, `Unavailable` when the store is away."""
        if await read_format(self.store) is None:
            await probe(self.store, self.world.rng)
        metadata = MetadataLog(self.store, self.world.clock, self.world.rng, self.metrics)
        self.cluster_id = (await metadata.format())[0].cluster_id
        image = await metadata.load()
        gone = await self._refuse_twins(image)
        self._found = await self.directory.open(self.cluster_id, self.settings.node_id, self._draw_id())
        self.settings = broker_settings(image, self._own, self.settings.node_id)
        await self._recover(image)
        self.image = await metadata.take(image, self.settings.node_id, self.incarnation)
        controller = Controller(self.image, self._own, lambda: text_id(self._draw_uuid()))
        self._runtime = Runtime(controller, _Snapshotting(metadata, self), self.world.clock, self._committed)
        self._main = asyncio.create_task(self._run(), name="node")
        await self._register(gone)
        self._serving = True
        log.info(
            "broker serves node_id=%d cluster_id=%s incarnation=%s epoch=%d partitions=%d",
            self.settings.node_id, self.cluster_id, self.incarnation, self.image.controller_epoch, len(self._replicas),
        )  # fmt: skip

    async def _refuse_twins(self, image: Image) -> list[requests.StopBroker]:
        """Refuses to start beside a broker that answers (R6); what to say of those that do not."""
        gone: list[requests.StopBroker] = []
        for broker in image.brokers.values():
            if not broker.alive:
                continue
            if await answers(self.world.net, broker.http, broker.incarnation):
                raise Refused(
                    Code.DUPLICATE_BROKER_REGISTRATION,
                    f"broker {broker.node_id} of this store answers at {broker.http}; stop it first"
                    " (one broker runs on a store)",
                )
            if broker.node_id != self.settings.node_id:
                gone.append(requests.StopBroker(broker.node_id, broker.incarnation))
        return gone

    async def _recover(self, image: Image) -> None:
        """Opens the logs of all partitions that have a replica here, as they were left, before anybody is told."""
        assert self._found is not None
        known = {
            TopicPartition(topic.name, p): topic
            for topic in image.topics.values()
            for p, partition in enumerate(topic.partitions)
            if self.settings.node_id in partition.replicas
        }
        self.directory.tidy({at: topic.topic_id for at, topic in known.items()})
        for at, topic in known.items():
            try:
                self._logs[at] = await self._open_log(at, topic, self._found)
            except (Unavailable, Corrupt) as error:
                log.error("log cannot be opened partition=%s why=%s", at, error)
        if not self._found.same_boot:
            await self.directory.trust()

    async def _open_log(self, at: TopicPartition, topic: TopicImage, found: Found) -> DiskLog:
        return await DiskLog.open(
            self.world.disk,
            self.world.clock,
            self.directory.path(at),
            topic_config(topic, self.settings.topic_defaults()),
            same_boot=found.same_boot,
            clean=found.clean,
            recovery_point=found.recovery_points.get(at, 0),
            start_offset=found.log_starts.get(at, 0),
            metrics=self.metrics,
            topic_id=topic.topic_id,
            name=str(at),
            files=self._files,
        )

    async def _register(self, gone: Sequence[requests.StopBroker]) -> None:
        """The new incarnation takes its leaderships; what its logs cannot prove is reported, partition by partition."""
        assert self._found is not None
        known = self.image.brokers.get(self.settings.node_id)
        same = known is not None and known.directory == self._found.directory_id
        whole = same and self._found.whole
        for each in gone:
            await self.submit(each)
        before = {at for at, _ in self._led_before()}
        await self.submit(
            requests.RegisterBroker(
                self.settings.node_id, self.incarnation, self._found.directory_id, self.settings.http,
                self.settings.broker_rack, whole,
            )
        )  # fmt: skip
        lost = [
            replica
            for replica in self.replicas()
            if replica.restarted or (replica.at in before and not (whole or (same and replica.config.flush == "ack")))
        ]
        await asyncio.gather(*(self._report_loss(replica) for replica in lost))

    def _led_before(self) -> Iterable[tuple[TopicPartition, TopicImage]]:
        for topic in self.image.topics.values():
            for p, partition in enumerate(topic.partitions):
                if self.settings.node_id in partition.replicas:
                    yield TopicPartition(topic.name, p), topic

    async def _report_loss(self, replica: Replica) -> None:
        start = replica.epoch_start
        log.warning("records may be gone partition=%s from_offset=%d epoch=%d", replica.at, start, replica.leader_epoch)
        await self.submit(requests.ReportLoss(replica.topic_id, replica.partition, replica.leader_epoch, start))

    # -- running ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """All loops of the broker. The first one that fails ends them all, and the broker with them."""
        assert self._runtime is not None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._runtime.run(), name="metadata")
                group.create_task(self.tiering.run(), name="tiering")
                group.create_task(Housekeeping(self).run(), name="housekeeping")
        except Exception as error:
            self._fail(_reason(error))
            log.critical("broker failed why=%s", self._failure, exc_info=error)

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self._serving = False
        for replica in self.replicas():
            replica.resign(Refused(Code.KAFKA_STORAGE_ERROR, f"the broker failed: {self._failure}"))
        self.ended.set()

    async def _committed(self, changes: Sequence[Change], slot: int) -> None:
        """Brokers act on committed entries only (M5): here they do."""
        old, self.image = self.image, self.image.apply(changes, slot)
        delta = between(old, self.image, self.settings.node_id)
        for at in delta.dropped:
            self._drop(at, old.topics[at.topic].topic_id)
        for at in delta.resigned:
            self._resign(at, Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{at} is led elsewhere now"))
        if delta.brokers_configured:
            self.settings = broker_settings(self.image, self._own, self.settings.node_id)
        for name in self.image.topics if delta.brokers_configured else delta.configured:
            self._configure(self.image.topics[name])
        places = asyncio.Semaphore(OPENING_AT_ONCE)
        await asyncio.gather(*(self._lead(lead, places) for lead in delta.led))
        self._note_losses()

    async def _lead(self, lead: Lead, places: asyncio.Semaphore) -> None:
        async with places:
            try:
                self._replicas[lead.at] = await self._led(lead)
                self._unopened.pop(lead.at, None)
            except (Unavailable, Corrupt, Refused) as error:
                log.error("partition is not served partition=%s why=%s", lead.at, error)
                self._unopened[lead.at] = (lead, str(error))

    async def _led(self, lead: Lead) -> Replica:
        assert self._found is not None
        topic = self.image.topics_by_id[lead.topic_id]
        if lead.at not in self._logs:
            found = self._found._replace(recovery_points={}, log_starts={})
            self._logs[lead.at] = await self._open_log(lead.at, topic, found)
        hot = self._logs[lead.at]
        begun = await begin(hot, self.cold, Replica.id_of(lead.at, lead.topic_id), lead.leader_epoch, fresh=lead.fresh)
        image = topic.partitions[lead.at.partition]
        state = Partition(
            self.settings.node_id, lead.leader_epoch, image.isr, copies=len(image.replicas), end=hot.end_offset
        )
        return Replica(
            lead.at, lead.topic_id, hot, state,
            cold=self.cold, begun=begun, clock=self.world.clock, disk=self.disk, segment_closed=self.tiering.wake,
        )  # fmt: skip

    async def open_missing(self) -> None:
        """Tries again to lead what could not be read."""
        places = asyncio.Semaphore(OPENING_AT_ONCE)
        await asyncio.gather(*(self._lead(lead, places) for lead, _ in list(self._unopened.values())))

    def _configure(self, topic: TopicImage) -> None:
        config = topic_config(topic, self.settings.topic_defaults())
        for p in range(len(topic.partitions)):
            replica = self._replicas.get(TopicPartition(topic.name, p))
            if replica is not None:
                replica.log.config = config
                self.tiering.wake(replica)

    def _note_losses(self) -> None:
        for at, replica in self._replicas.items():
            loss = self.image.topics[at.topic].partitions[at.partition].loss
            replica.possible_loss = loss._asdict() if loss is not None else None

    def _resign(self, at: TopicPartition, why: Refused) -> Replica | None:
        self._unopened.pop(at, None)
        replica = self._replicas.pop(at, None)
        if replica is not None:
            replica.resign(why)
            self.tiering.forget(replica)
            self.cold.uploader.forget(replica.pid)
        return replica

    def _drop(self, at: TopicPartition, topic_id: str) -> None:
        replica = self._resign(at, Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {at.topic!r} was deleted"))
        hot = self._logs.pop(at, None)
        delay_ms = hot.config.file_delete_delay_ms if hot is not None else 0
        if hot is not None:
            hot.close()
        if replica is not None:
            self.cold.manifests.forget(replica.pid)
        try:
            self.directory.condemn(at, topic_id, self.world.clock.wall_ms() + delay_ms)
        except Unavailable as error:
            log.warning("log of a deleted topic stays until the next start partition=%s why=%s", at, error)

    def _lost(self, replica: Replica, error: Fenced) -> None:
        """A newer leader wrote its epoch into the manifest: this broker leads the partition no more."""
        log.error("fenced partition=%s why=%s", replica.at, error)
        self._resign(replica.at, Refused(Code.NOT_LEADER_OR_FOLLOWER, str(error)))

    # -- stop ---------------------------------------------------------------------------------------------------------

    async def stop(self, *, clean: bool = True) -> None:
        """Ends everything; `clean` also makes all durable, so that the next start has nothing to check or to report.

        A broker that failed is never stopped cleanly. Safe to call after a start that did not succeed.
        """
        served, self._serving = self._serving, False
        for replica in self.replicas():
            replica.resign(Refused(Code.BROKER_NOT_AVAILABLE, "the broker is stopping"))
        clean = clean and served and not self._failure and self.disk.dead is None
        durable = clean and await self._close_logs()
        if durable:
            with contextlib.suppress(Refused, TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self.submit(requests.StopBroker(self.settings.node_id, self.incarnation))
        if self._main is not None:
            self._main.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._main
        self.cold.reader.close()
        if self.disk.dead is not None:
            self.directory.distrust()
        await self.store.close()
        log.info("broker stopped node_id=%d clean=%s", self.settings.node_id, durable)

    async def _close_logs(self) -> bool:
        """Whether all logs are durable and marked so."""
        try:
            for hot in self._logs.values():
                await hot.close_clean()
            await self.directory.save_offsets(self._logs)
            await self.directory.mark_clean()
        except (Unavailable, Refused) as error:
            log.error("logs could not be closed cleanly why=%s", error)
            return False
        return True

    def _draw_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._chance.getrandbits(128), version=4)

    def _draw_id(self) -> str:
        return text_id(self._draw_uuid())


class _Snapshotting:
    """The metadata log of a controller, with a snapshot of what is committed whenever a replay would grow long."""

    def __init__(self, metadata: MetadataLog, node: Node) -> None:
        self._metadata = metadata
        self._node = node

    async def append(self, changes: Sequence[Change]) -> int:
        if self._metadata.snapshot_due:
            try:
                await self._metadata.snapshot(self._node.image)
            except Unavailable as error:
                log.warning("metadata snapshot comes later why=%s", error)
        return await self._metadata.append(changes)


def _reason(error: BaseException) -> str:
    """The first cause in a group of errors, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
