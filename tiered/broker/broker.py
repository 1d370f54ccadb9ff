"""Settings and ports become a running broker. Wiring and order only: every rule it follows stands further down.

A start reads the cluster's memory, makes sure that no earlier incarnation of this node answers (R6), recovers the logs,
takes the controller's slot, registers (R1), agrees with the bucket (R5), and serves. A task that fails ends the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tiered.broker.awaited_ends import AwaitedEnds
from tiered.broker.cluster_metrics import ClusterMetrics
from tiered.broker.data_directory import DataDirectory
from tiered.broker.group_coordinators import Coordinators
from tiered.broker.health import Health, assess
from tiered.broker.hosted_replicas import Partitions
from tiered.broker.housekeeping import Housekeeping
from tiered.broker.isr_updater import InSyncSets
from tiered.broker.producer_ids import ProducerIds
from tiered.broker.registration import Joining
from tiered.broker.retention_clock import Ages
from tiered.broker.startup_retry import Patience
from tiered.broker.stored_ends import StoredEnds
from tiered.broker.suspects import Doubts
from tiered.broker.tiering import Tiering
from tiered.broker.topic_metrics import TopicLabels, TopicMetrics
from tiered.cold.cache import ChunkCache
from tiered.cold.collector import Collector
from tiered.cold.manifest import FAN
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.reader import ColdReader
from tiered.cold.uploader import Uploader
from tiered.config.settings import Settings
from tiered.controller import requests
from tiered.controller.member import ClusterMember
from tiered.controller.requests import Request
from tiered.errors import Broken, Code, Fenced, Refused, Unavailable, first_cause, public_words
from tiered.ids import TopicId, TopicPartition, incarnation_digest, text_id
from tiered.metadata.change_summary import summarize_losses, summarize
from tiered.metadata.changes import Change
from tiered.metadata.delta import hosted_partitions
from tiered.metadata.effective_config import broker_settings
from tiered.metadata.image import Image, TopicImage
from tiered.metadata.layout import FORMAT_KEY, encode_format
from tiered.metadata.log_reader import read_format
from tiered.metadata.log_writer import SNAPSHOT_SLOTS, MetadataLog
from tiered.metrics import Metrics
from tiered.object_store.metered import MeteredStore
from tiered.object_store.probe import probe, probe_at_restart
from tiered.peers import Peers
from tiered.ports import World
from tiered.replication.follower_reads import FollowerReads
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.storage import ColdTier, DiskState

T = TypeVar("T")

log = logging.getLogger(__name__)

SUBMIT_SECONDS = 30.0
AGAIN_SECONDS = 0.2
STOP_SECONDS = 5.0
LEFT_AT_ONCE = 2_500
"""Partitions that a stop gives up with one word to the controller."""
TAKE_SECONDS = 60.0
"""How long a start waits for the store to take its first entry: a store that refuses writes ends it."""


class Node:
    """One broker. The caller holds the lock of the data directory and closes the network faces before `stop`.

    `settings` is what is in force now of those that the broker was `started_with`; `ended` is set when it can serve no
    more. `peers` is how it talks to other brokers; without them it is alone. `log_level` is called with a new
    `log.level`. `manifest_fan` and `snapshot_slots` are
    smaller in simulations, so that spills and snapshots happen in short lives too.
    """

    def __init__(
        self,
        settings: Settings,
        world: World,
        metrics: Metrics,
        *,
        peers: Peers | None = None,
        log_level: Callable[[str], None] = lambda _: None,
        manifest_fan: int = FAN,
        snapshot_slots: int = SNAPSHOT_SLOTS,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.store = MeteredStore(world.store, world.clock, metrics)
        self.world = replace(world, store=self.store)
        self.peers = peers
        self._log_level = log_level
        self.cluster_id = ""
        self.credential = b""
        """By which brokers of this cluster know each other; none before the store was read."""
        self.ended = asyncio.Event()
        self.served = asyncio.Event()
        self.started_with = settings
        self._chance = world.rng.stream("node")
        self.incarnation = self._draw_id()
        self.ages = Ages(world.clock)
        self.patience = Patience(self.store, world.clock, world.rng)
        self.disk = DiskState(world.clock, metrics, self._disk_died)
        self.directory = DataDirectory(world.disk)
        self._metadata = MetadataLog(self.store, world.clock, world.rng, metrics, snapshot_slots=snapshot_slots)
        self.cluster = ClusterMember(self, self._metadata, self._act)
        self.figures = ClusterMetrics(metrics, settings.node_id, lambda: self.image, lambda: self.cluster.is_controller)
        self.doubts = Doubts(world.clock, lambda: self.image, self.cluster.on_broker_unreachable)
        self.cold = self._cold_tier(manifest_fan)
        self.coordinators = Coordinators(self)
        self.partitions = Partitions(
            settings, self.world, metrics, incarnation=self.incarnation,
            disk=self.disk, directory=self.directory, cold=self.cold, images=self.coordinators.images, peers=peers,
            begun=self._begun,
            closed=lambda replica: self.tiering.closed(replica),
            configured=lambda replica: self.tiering.wake(replica),
            forgotten=self._forgotten,
            joinable=lambda replica: self.in_sync_sets.wake(replica),
            in_touch=lambda: self.cluster.has_controller_contact, heard=lambda: self.image, doubts=self.doubts,
        )  # fmt: skip
        self.tiering = Tiering(
            settings, self.partitions.led, self.partitions.fenced, self.ages, world.clock, world.rng, metrics
        )
        self._registered = self._handed_over = self._serving = False
        self.in_sync_sets = InSyncSets(
            self.submit, self.partitions.led, lambda: self.partitions.unreported, lambda: self.image,
            lambda: self.settings, self.incarnation, world.clock, metrics,
        )  # fmt: skip
        self.stored_ends = StoredEnds(
            self.submit, self.partitions.led, lambda: self.partitions.unreported, lambda: self.image,
            settings.node_id, self.incarnation, world.clock,
        )  # fmt: skip
        self.awaited_ends = AwaitedEnds(
            self.submit, self.partitions.end_of, settings.node_id, self.incarnation, world.clock
        )
        labels = TopicLabels(settings.tiered_metrics_max_topics, lambda: self.image)
        self.topic_metrics = TopicMetrics(metrics, labels, self.partitions.held, lambda: self.image)
        self._main: asyncio.Task[None] | None = None
        self._loops: list[asyncio.Task[None]] = []
        self.joining = Joining(self)
        self.producer_ids = ProducerIds(self.submit, settings.node_id)
        self._failure = ""
        metrics.gauge("tiered_metadata_waiting_changes", "Changes of metadata that wait for the bucket.").read(
            lambda: float(self.cluster.pending)
        )
        metrics.gauge("tiered_disk_free_bytes", "Free bytes under the data directory.").read(
            lambda: float(world.disk.space().free)
        )

    def _cold_tier(self, manifest_fan: int) -> ColdTier:
        world, settings, metrics = self.world, self.settings, self.metrics
        manifests = ManifestStore(self.store, world.clock, world.rng, metrics, fan=manifest_fan)
        cache = ChunkCache(metrics, settings.tiered_chunk_cache_bytes)
        uploader = Uploader(self.store, manifests, world.clock, world.rng, metrics)
        grace_ms = settings.tiered_object_delete_delay_ms
        return ColdTier(
            manifests,
            ColdReader(self.store, manifests, cache, metrics, world.clock),
            uploader,
            Collector(self.store, manifests, uploader.keys_in_flight, world.clock, metrics, grace_ms=grace_ms),
        )

    # -- what others ask ----------------------------------------------------------------------------------------------

    @property
    def image(self) -> Image:
        """The committed state of the cluster, as far as this broker has heard."""
        return self.cluster.image

    def replica(self, topic: str, partition: int) -> LeaderReplica:
        """The partition, led here: of the topic that has the name in the image. `Refused` when it is not there, led
        elsewhere or not readable."""
        at = TopicPartition(topic, partition)
        found = self.partitions.get(at)
        if found is not None:
            return found
        known = self.image.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            raise Refused(
                Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition} of topic {topic[:249]!r}"
            )
        if at in self.partitions.unopened:
            raise Refused(Code.KAFKA_STORAGE_ERROR, f"{at} is not served: {self.partitions.unopened[at][1]}")
        raise Refused(Code.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {at}")

    def topic(self, topic_id: TopicId) -> TopicImage:
        """The topic that has this id. `Refused(UNKNOWN_TOPIC_ID)` when it was deleted, or is not heard of yet."""
        known = self.image.topics_by_id.get(topic_id)
        if known is None:
            raise Refused(Code.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id}")
        return known

    def followed(self, topic: str, partition: int) -> FollowerReads | None:
        """The partition as consumers near by read it, when it is copied here."""
        copy = self.partitions.copied(TopicPartition(topic, partition))
        return FollowerReads(copy, lambda: self._in_sync(copy)) if copy is not None else None

    def _in_sync(self, copy: FollowerReplica) -> bool:
        """Whether the cluster counts a copy in under the leader that it follows, as far as it is heard. Under the next
        one this broker may lead itself, which it has yet to act on."""
        topic = self.image.topics_by_id.get(copy.topic_id)
        if topic is None or not self.cluster.has_controller_contact:
            return False
        now = topic.partitions[copy.at.partition]
        return now.leader_epoch == copy.leader_epoch and self.settings.node_id in now.isr

    def replicas(self) -> list[LeaderReplica]:
        """Every partition that this broker leads."""
        return self.partitions.led()

    async def submit(self, request: Request, timeout: float = SUBMIT_SECONDS) -> Any:
        """Asks the controller; the reply's type stands with each request. `Refused` with the reason."""
        if self._main is None:
            raise Refused(Code.NOT_CONTROLLER, "the broker does not run")
        return await self.cluster.submit(request, timeout)

    async def insist(self, request: Request, timeout: float = SUBMIT_SECONDS) -> None:
        """The same for what is as good when it is said twice: asks again where its controller ended first."""
        end = self.world.clock.mono_ns() + int(timeout * 1e9)
        while True:
            left = (end - self.world.clock.mono_ns()) / 1e9
            try:
                await self.submit(request, max(left, 0.001))
                return
            except Refused as refused:
                if refused.code is not Code.REQUEST_TIMED_OUT or left <= AGAIN_SECONDS:
                    raise
                log.info("asks the controller again request=%s why=%s", type(request).__name__, refused.why)
            await self.world.clock.sleep(AGAIN_SECONDS)

    async def announce(self, http: str, listeners: Mapping[str, str], advertised_http: str = "") -> None:
        """The HTTP interface answers at `http` (HOST:PORT), where a second broker with this node id asks. Clients are
        told `listeners`, and HTTP clients `advertised_http` (`http://HOST:PORT`; "": as `http` says). Says nothing to
        the cluster that it knows already. `Refused` where nobody reaches them."""
        await self.joining.announce(http, listeners, advertised_http)

    def health(self) -> Health:
        """Whether the broker serves, and what is wrong."""
        return assess(
            failure=self._failure,
            started=self._serving,
            waits=self.patience.since_ns >= 0,
            disk=self.disk,
            outage=self.store.outage,
            waiting_segments=self.tiering.waiting_segments(),
            copy_lag_ms=self.tiering.lag_ms(),
            copy_lag_max_ms=self.settings.tiered_upload_max_lag_ms,
            pending_metadata=self.cluster.pending,
            metadata_trouble=self._metadata.stall_reason,
            group_bytes=self.coordinators.held,
            group_bytes_max=self.settings.tiered_groups_max_bytes,
            unopened=self.partitions.troubles() | self.coordinators.troubles(),
            replicas=self.partitions.led(),
            image=self.image,
            standing=self.figures.standing,
            silent_ms=0 if self.cluster.has_controller_contact else self.cluster.standby.silent_ms,
        )

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when everything is served, and waits for a store that is away. `Refused` when it must not run,
        `Unavailable` when the store refuses."""
        image = await self.patience.outlast(self._agree)
        await self.joining.refuse_twins(image)
        found = await self.directory.open(self.cluster_id, self.settings.node_id, self._draw_id())
        found = self.joining.judge(image, found)
        self._go_by(image)
        self.partitions.settings = self.settings
        await self.partitions.recover(image, found)
        await self._soon(self.cluster.start(image))
        self._main = asyncio.create_task(self._run(), name="node")
        try:
            await self.patience.insist(self.joining.register)
        except Refused as refused:
            raise Unavailable(f"the broker could not register: {refused.why}") from None
        self._serving = True
        self.served.set()
        log.info(
            "broker serves node_id=%d cluster_id=%s incarnation_sha256=%s epoch=%d partitions=%d",
            self.settings.node_id, self.cluster_id, incarnation_digest(self.incarnation), self.image.controller_epoch,
            len(self.replicas()),
        )  # fmt: skip

    async def _agree(self) -> Image:
        """What the cluster of this store knows; the first broker of a store makes the cluster."""
        found = await read_format(self.store)
        if found is None:
            await probe(self.store, self.world.rng)
        else:
            await probe_at_restart(self.store, FORMAT_KEY, encode_format(found), self.world.rng)
        held, _ = await self._soon(self._metadata.load_or_create_format())
        self.cluster_id, self.credential = held.cluster_id, held.credential
        if self.peers is not None:
            self.peers.cluster_id, self.peers.credential = self.cluster_id, self.credential
        return await self._metadata.load()

    async def _soon(self, step: Coroutine[Any, Any, T]) -> T:
        """Writes metadata in the start. `Unavailable` when a store that is there has not taken it in time."""
        return await self.patience.take(step, TAKE_SECONDS, lambda: self._metadata.last_error or "no controller answers")

    # -- running ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """All loops of the broker. The first one that fails ends them all, and the broker with them."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.cluster.run(), name="cluster")
                group.create_task(self.cluster.loader.run(), name="carry-out")
                self._loops = [
                    group.create_task(self.tiering.run(), name="tiering"),
                    group.create_task(Housekeeping(self).run(), name="housekeeping"),
                    group.create_task(self.coordinators.run(), name="coordinators"),
                    group.create_task(self.partitions.copy(), name="copying"),
                    group.create_task(self.in_sync_sets.run(), name="in-sync-sets"),
                    group.create_task(self.awaited_ends.run(), name="awaited-ends"),
                    group.create_task(self.stored_ends.run(), name="stored-ends"),
                ]
        except Exception as error:
            cause = first_cause(error)
            words = public_words(cause)
            self._fail(words)
            bug = error if words != str(cause) else None  # an error of ours says what is wrong, a bug only where
            log.critical("broker failed why=%s: %s", type(cause).__name__, cause, exc_info=bug)

    def _disk_died(self, why: str) -> None:
        """The next start must believe only what was fsynced; this one ends."""
        with contextlib.suppress(Unavailable):
            self.directory.distrust()
        self._fail(f"data directory: {why}")

    def broke(self, error: Broken) -> None:
        """Something that always holds did not, while a request was dealt with: the broker ends before it says more."""
        log.critical("broker failed why=%s: %s", type(error).__name__, error, exc_info=error)
        self._fail(public_words(error))

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self._serving = False
        self.coordinators.refuse(f"the broker failed: {self._failure}")
        self.partitions.refuse(Refused(Code.KAFKA_STORAGE_ERROR, f"the broker failed: {self._failure}"))
        self.ended.set()

    def told(self, changes: Sequence[Change], old: Image, new: Image) -> None:
        """These changes are committed. What a deleted topic had here ends at once, and what another broker leads is led
        here no more; all else waits for `_act`."""
        deleted = old.topics_by_id.keys() - new.topics_by_id.keys()
        if deleted:
            self.partitions.stop(deleted)
            self.coordinators.topics_deleted(sorted(old.topics_by_id[topic_id].name for topic_id in deleted))
        self.partitions.depose(new, changes)
        self.figures.count(changes, old, new)
        for line in summarize(changes, old, new):
            log.info("%s", line)
        lost = summarize_losses(old, new)
        if lost:
            log.error("%s", lost)

    async def _act(self, old: Image, new: Image) -> None:
        """Brokers act on committed entries only (M5): here they do."""
        known = new.brokers.get(self.settings.node_id)
        if known is not None and known.incarnation == self.incarnation:
            self._registered = True
        elif self._registered and known is None:
            raise Fenced(f"broker {self.settings.node_id} was unregistered while it was not heard")
        elif self._registered:
            raise Fenced(f"another process has taken the node id {self.settings.node_id}")
        self._go_by(new)
        await self.partitions.follow(old, new, self.settings)
        self.coordinators.follow(old, new)
        self.awaited_ends.on_image(new)
        self.doubts.grown()

    def _go_by(self, image: Image) -> None:
        """Takes the settings that are in force as of an image."""
        was, self.settings = self.settings, broker_settings(image, self.started_with, self.settings.node_id)
        if self.settings.log_level != was.log_level:
            self._log_level(self.settings.log_level)

    def _begun(self, replica: LeaderReplica) -> None:
        self.stored_ends.lead(replica)
        self.coordinators.lead(replica)

    def _forgotten(self, replica: LeaderReplica) -> None:
        self.tiering.forget(replica)
        self.coordinators.resign(replica)

    # -- stop ---------------------------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Others lead what they can, and count on this broker no more where enough others are in sync, while clients
        are still told so here. Once, before a clean stop."""
        if self._serving and not self._failure and not self._handed_over:
            self._handed_over = True
            await self._say(requests.HandOver(self.settings.node_id, self.incarnation))

    async def stop(self, *, clean: bool = True) -> None:
        """Ends everything; `clean` also makes all durable, so that the next start has nothing to check or to report.

        A broker that failed is never stopped cleanly, nor one that has losses to tell: the next start must doubt the
        same logs again. Safe to call after a start that did not succeed.
        """
        if clean:
            await self._tell_losses()
            await self.hand_over()
        served, self._serving = self._serving, False
        self.coordinators.refuse("the broker is stopping")
        self.partitions.refuse(Refused(Code.BROKER_NOT_AVAILABLE, "the broker is stopping"))
        clean = clean and served and not self._failure and self.disk.dead is None and self.joining.trusted
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if clean:
            await self.coordinators.save_last()
        if self.partitions.unreported:
            with contextlib.suppress(Unavailable):
                self.directory.distrust()
        durable = clean and not self.partitions.unreported and await self.partitions.close_clean()
        if durable and not self.cold.manifests.has_undecided_change and not self.partitions.owes:
            await self._leave()
            await self._say(requests.StopBroker(self.settings.node_id, self.incarnation))
        elif self.disk.dead is not None:
            await self._say(requests.NameDirectory(self.settings.node_id, self.incarnation, ""))
        if self._main is not None:
            self._main.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._main
        self.cold.reader.close()
        if self.peers is not None:
            await self.peers.close()
        await self.store.close()
        if served or self._failure:
            log.info("broker stopped node_id=%d clean=%s", self.settings.node_id, durable)

    async def _tell_losses(self) -> None:
        """What was not told yet, if it can be told soon."""
        if self.partitions.unreported or self.partitions.overstated:
            with contextlib.suppress(Refused, Unavailable, TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self.joining.report_losses()

    async def _leave(self) -> None:
        """Gives up many partitions in shares, each of which is decided and acted on without holding up others."""
        places = [(topic.topic_id, at.partition) for at, topic in hosted_partitions(self.image, self.settings.node_id)]
        for start in range(0, len(places) if len(places) > LEFT_AT_ONCE else 0, LEFT_AT_ONCE):
            share = tuple(places[start : start + LEFT_AT_ONCE])
            if not await self._say(requests.LeavePartitions(self.settings.node_id, self.incarnation, share)):
                return

    async def _say(self, request: Request) -> bool:
        """A last word to the cluster, if it can be said soon; whether it was."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.submit(request)
        except (Refused, TimeoutError):
            return False
        return True

    def draw_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._chance.getrandbits(128), version=4)

    def _draw_id(self) -> str:
        return text_id(self.draw_uuid())
