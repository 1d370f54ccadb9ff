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
from tiered.broker.group_coordinators import GroupCoordinators, GroupPorts
from tiered.broker.group_snapshots import make_group_snapshot_store
from tiered.broker.health import Health, assess_health
from tiered.broker.hosted_replicas import HostedReplicas
from tiered.broker.housekeeping import Housekeeping
from tiered.broker.isr_updater import IsrUpdater
from tiered.broker.producer_ids import ProducerIds
from tiered.broker.registration import Registration
from tiered.broker.replica_event_handlers import ReplicaEventHandlers
from tiered.broker.retention_clock import RetentionClock
from tiered.broker.startup_retry import StartupRetry
from tiered.broker.stored_ends import StoredEnds
from tiered.broker.suspects import SuspectedBrokers
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
from tiered.errors import Code, Fenced, InvariantViolation, Refused, Unavailable, first_cause, public_message
from tiered.ids import TopicId, TopicPartition, encode_uuid, incarnation_digest
from tiered.metadata.change_summary import summarize, summarize_losses
from tiered.metadata.changes import Change
from tiered.metadata.delta import hosted_partitions
from tiered.metadata.dynamic_config import DynamicBrokerConfig
from tiered.metadata.image import Image, TopicImage
from tiered.metadata.layout import FORMAT_KEY, encode_format
from tiered.metadata.log_reader import read_format
from tiered.metadata.log_writer import SNAPSHOT_SLOTS, MetadataLog
from tiered.metrics import Metrics
from tiered.object_store.metered import MeteredStore
from tiered.object_store.probe import probe, probe_at_restart
from tiered.peers import Peers
from tiered.ports import World
from tiered.replication.cold_tier import ColdTier
from tiered.replication.disk_state import DiskState
from tiered.replication.follower_reads import FollowerReads
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica

T = TypeVar("T")

log = logging.getLogger(__name__)

SUBMIT_SECONDS = 30.0
RETRY_SECONDS = 0.2
STOP_SECONDS = 5.0
LEAVE_BATCH_MAX = 2_500
"""Partitions that a stop gives up with one word to the controller."""
STORE_WRITE_SECONDS = 60.0
"""How long a start waits for the store to take its first entry: a store that refuses writes ends it."""


class Broker:
    """One broker. The caller holds the lock of the data directory and closes the network faces before `stop`.

    `ended` is set when it can serve no more. `peers` is how it talks to other brokers; without them it is alone.
    `log_level` is called with a new `log.level`. `manifest_fan` and `snapshot_slots` are smaller in simulations, so
    that spills and snapshots happen in short lives too.
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
        self._config = DynamicBrokerConfig(settings)
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
        self._rng = world.rng.stream("node")
        self.incarnation = self._draw_id()
        self.retention_clock = RetentionClock(world.clock)
        self.startup_retry = StartupRetry(self.store, world.clock, world.rng)
        self.disk = DiskState(world.clock, metrics, self._on_disk_failed)
        self.data_directory = DataDirectory(world.disk)
        self._metadata = MetadataLog(self.store, world.clock, world.rng, metrics, snapshot_slots=snapshot_slots)
        self.cluster = ClusterMember(
            self.incarnation, self._config, self.world, peers, self._metadata, self._apply_image, self._on_committed,
            self._draw_id,
        )  # fmt: skip
        self.cluster_metrics = ClusterMetrics(
            metrics, settings.node_id, lambda: self.image, lambda: self.cluster.is_controller
        )
        self.suspected_brokers = SuspectedBrokers(world.clock, lambda: self.image, self.cluster.on_broker_unreachable)
        self.cold_tier = self._make_cold_tier(manifest_fan)
        group_snapshots = make_group_snapshot_store(self.store, world.clock, metrics)
        self.hosted_replicas = HostedReplicas(
            settings, self.world, metrics, incarnation=self.incarnation,
            disk=self.disk, directory=self.data_directory, cold_tier=self.cold_tier,
            snapshot_store=group_snapshots, peers=peers,
            has_controller_contact=lambda: self.cluster.has_controller_contact, newest_image=lambda: self.image,
            suspected_brokers=self.suspected_brokers,
        )  # fmt: skip
        self.group_coordinators = GroupCoordinators(
            GroupPorts(
                self.store, group_snapshots, world.clock, world.rng, self.hosted_replicas,
                image=lambda: self.cluster.image, settings=lambda: self._config.current,
                has_controller_contact=lambda: self.cluster.has_controller_contact, submit=self.submit,
            ),
            metrics,
        )  # fmt: skip
        self.tiering = Tiering(
            settings,
            self.hosted_replicas.list_leaders,
            self.hosted_replicas.on_fenced,
            self.retention_clock,
            world.clock,
            world.rng,
            metrics,
        )
        self._is_registered = self._has_handed_over = self._is_serving = False
        self.isr_updater = IsrUpdater(
            self.submit, self.hosted_replicas.list_leaders, lambda: self.hosted_replicas.unreported_losses,
            lambda: self.image, lambda: self.settings, self.incarnation, world.clock, metrics,
        )  # fmt: skip
        self.stored_ends = StoredEnds(
            self.submit, self.hosted_replicas.list_leaders, lambda: self.hosted_replicas.unreported_losses,
            lambda: self.image, settings.node_id, self.incarnation, world.clock,
        )  # fmt: skip
        self.hosted_replicas.subscribe(
            ReplicaEventHandlers(self.tiering, self.isr_updater, self.stored_ends, self.group_coordinators)
        )
        self.awaited_ends = AwaitedEnds(
            self.submit, self.hosted_replicas.end_of, settings.node_id, self.incarnation, world.clock
        )
        labels = TopicLabels(settings.tiered_metrics_max_topics, lambda: self.image)
        self.topic_metrics = TopicMetrics(metrics, labels, self.hosted_replicas.list_replicas, lambda: self.image)
        self._main: asyncio.Task[None] | None = None
        self._loops: list[asyncio.Task[None]] = []
        self.registration = Registration(self)
        self.producer_ids = ProducerIds(self.submit, settings.node_id)
        self._failure = ""
        metrics.gauge("tiered_metadata_waiting_changes", "Changes of metadata that wait for the bucket.").set_function(
            lambda: float(self.cluster.pending)
        )
        metrics.gauge("tiered_disk_free_bytes", "Free bytes under the data directory.").set_function(
            lambda: float(world.disk.space().free)
        )

    def _make_cold_tier(self, manifest_fan: int) -> ColdTier:
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
    def settings(self) -> Settings:
        """The settings in force on this broker."""
        return self._config.current

    @property
    def startup_settings(self) -> Settings:
        """The settings that this broker was started with."""
        return self._config.startup

    @property
    def image(self) -> Image:
        """The committed state of the cluster, as far as this broker has heard."""
        return self.cluster.image

    def leader_replica(self, topic: str, partition: int) -> LeaderReplica:
        """The partition, led here: of the topic that has the name in the image. `Refused` when it is not there, led
        elsewhere or not readable."""
        tp = TopicPartition(topic, partition)
        found = self.hosted_replicas.find_leader(tp)
        if found is not None:
            return found
        known = self.image.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            raise Refused(
                Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition} of topic {topic[:249]!r}"
            )
        if tp in self.hosted_replicas.unopened_leaders:
            raise Refused(
                Code.KAFKA_STORAGE_ERROR, f"{tp} is not served: {self.hosted_replicas.unopened_leaders[tp][1]}"
            )
        raise Refused(Code.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {tp}")

    def topic(self, topic_id: TopicId) -> TopicImage:
        """The topic that has this id. `Refused(UNKNOWN_TOPIC_ID)` when it was deleted, or is not heard of yet."""
        known = self.image.topics_by_id.get(topic_id)
        if known is None:
            raise Refused(Code.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id}")
        return known

    def follower_reads(self, topic: str, partition: int) -> FollowerReads | None:
        """The partition as consumers near by read it, when it is copied here."""
        copy = self.hosted_replicas.find_follower(TopicPartition(topic, partition))
        return FollowerReads(copy, lambda: self._is_in_isr(copy)) if copy is not None else None

    def _is_in_isr(self, follower: FollowerReplica) -> bool:
        """Whether the cluster counts a copy in under the leader that it follows, as far as it is heard. Under the next
        one this broker may lead itself, which it has yet to act on."""
        topic = self.image.topics_by_id.get(follower.topic_id)
        if topic is None or not self.cluster.has_controller_contact:
            return False
        now = topic.partitions[follower.tp.partition]
        return now.leader_epoch == follower.leader_epoch and self.settings.node_id in now.isr

    def leader_replicas(self) -> list[LeaderReplica]:
        """Every partition that this broker leads."""
        return self.hosted_replicas.list_leaders()

    async def submit(self, request: Request, timeout: float = SUBMIT_SECONDS) -> Any:
        """Asks the controller; the reply's type stands with each request. `Refused` with the reason."""
        if self._main is None:
            raise Refused(Code.NOT_CONTROLLER, "the broker does not run")
        return await self.cluster.submit(request, timeout)

    async def submit_with_retry(self, request: Request, timeout: float = SUBMIT_SECONDS) -> None:
        """The same for what is as good when it is said twice: asks again where its controller ended first."""
        end = self.world.clock.mono_ns() + int(timeout * 1e9)
        while True:
            left = (end - self.world.clock.mono_ns()) / 1e9
            try:
                await self.submit(request, max(left, 0.001))
                return
            except Refused as refused:
                if refused.code is not Code.REQUEST_TIMED_OUT or left <= RETRY_SECONDS:
                    raise
                log.info("asks the controller again request=%s why=%s", type(request).__name__, refused.why)
            await self.world.clock.sleep(RETRY_SECONDS)

    async def announce(self, http: str, listeners: Mapping[str, str], advertised_http: str = "") -> None:
        """The HTTP interface answers at `http` (HOST:PORT), where a second broker with this node id asks. Clients are
        told `listeners`, and HTTP clients `advertised_http` (`http://HOST:PORT`; "": as `http` says). Says nothing to
        the cluster that it knows already. `Refused` where nobody reaches them."""
        await self.registration.announce(http, listeners, advertised_http)

    def health(self) -> Health:
        """Whether the broker serves, and what is wrong."""
        return assess_health(
            failure=self._failure,
            started=self._is_serving,
            waits_for_store=self.startup_retry.waiting_since_ns >= 0,
            disk=self.disk,
            outage=self.store.outage,
            waiting_segments=self.tiering.waiting_segments(),
            copy_lag_ms=self.tiering.copy_lag_ms(),
            copy_lag_max_ms=self.settings.tiered_upload_max_lag_ms,
            pending_metadata=self.cluster.pending,
            metadata_trouble=self._metadata.stall_reason,
            group_bytes=self.group_coordinators.memory_bytes,
            group_bytes_max=self.settings.tiered_groups_max_bytes,
            unserved=self.hosted_replicas.list_unserved() | self.group_coordinators.list_unserved(),
            replicas=self.hosted_replicas.list_leaders(),
            image=self.image,
            partition_health=self.cluster_metrics.partition_health,
            contact_lost_ms=0 if self.cluster.has_controller_contact else self.cluster.standby.silent_ms,
        )

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when everything is served, and waits for a store that is away. `Refused` when it must not run,
        `Unavailable` when the store refuses."""
        image = await self.startup_retry.retry_until_store_is_back(self._load_metadata)
        await self.registration.refuse_duplicate_broker(image)
        found = await self.data_directory.open(self.cluster_id, self.settings.node_id, self._draw_id())
        found = self.registration.assess_directory(image, found)
        self._apply_settings(image)
        self.hosted_replicas.settings = self.settings
        await self.hosted_replicas.recover(image, found)
        await self._write_at_startup(self.cluster.start(image))
        self._main = asyncio.create_task(self._run(), name="node")
        try:
            await self.startup_retry.retry_refused(self.registration.register)
        except Refused as refused:
            raise Unavailable(f"the broker could not register: {refused.why}") from None
        self._is_serving = True
        self.served.set()
        log.info(
            "broker serves node_id=%d cluster_id=%s incarnation_sha256=%s epoch=%d partitions=%d",
            self.settings.node_id, self.cluster_id, incarnation_digest(self.incarnation), self.image.controller_epoch,
            len(self.leader_replicas()),
        )  # fmt: skip

    async def _load_metadata(self) -> Image:
        """What the cluster of this store knows; the first broker of a store makes the cluster."""
        found = await read_format(self.store)
        if found is None:
            await probe(self.store, self.world.rng)
        else:
            await probe_at_restart(self.store, FORMAT_KEY, encode_format(found), self.world.rng)
        held, _ = await self._write_at_startup(self._metadata.load_or_create_format())
        self.cluster_id, self.credential = held.cluster_id, held.credential
        if self.peers is not None:
            self.peers.cluster_id, self.peers.credential = self.cluster_id, self.credential
        return await self._metadata.load()

    async def _write_at_startup(self, step: Coroutine[Any, Any, T]) -> T:
        """Writes metadata in the start. `Unavailable` when a store that is there has not taken it in time."""
        return await self.startup_retry.wait_for_store_write(
            step, STORE_WRITE_SECONDS, lambda: self._metadata.last_error or "no controller answers"
        )

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
                    group.create_task(self.group_coordinators.run(), name="coordinators"),
                    group.create_task(self.hosted_replicas.run_fetchers(), name="copying"),
                    group.create_task(self.isr_updater.run(), name="in-sync-sets"),
                    group.create_task(self.awaited_ends.run(), name="awaited-ends"),
                    group.create_task(self.stored_ends.run(), name="stored-ends"),
                ]
        except Exception as error:
            cause = first_cause(error)
            words = public_message(cause)
            self._fail(words)
            bug = error if words != str(cause) else None  # an error of ours says what is wrong, a bug only where
            log.critical("broker failed why=%s: %s", type(cause).__name__, cause, exc_info=bug)

    def _on_disk_failed(self, why: str) -> None:
        """The next start must believe only what was fsynced; this one ends."""
        with contextlib.suppress(Unavailable):
            self.data_directory.remove_boot_mark()
        self._fail(f"data directory: {why}")

    def on_invariant_violation(self, error: InvariantViolation) -> None:
        """Something that always holds did not, while a request was dealt with: the broker ends before it says more."""
        log.critical("broker failed why=%s: %s", type(error).__name__, error, exc_info=error)
        self._fail(public_message(error))

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self._is_serving = False
        self.group_coordinators.refuse(f"the broker failed: {self._failure}")
        self.hosted_replicas.refuse(Refused(Code.KAFKA_STORAGE_ERROR, f"the broker failed: {self._failure}"))
        self.ended.set()

    def _on_committed(self, changes: Sequence[Change], old: Image, new: Image) -> None:
        """These changes are committed. What a deleted topic had here ends at once, and what another broker leads is led
        here no more; all else waits for `_apply_image`."""
        deleted = old.topics_by_id.keys() - new.topics_by_id.keys()
        if deleted:
            self.hosted_replicas.stop_topics(deleted)
            self.group_coordinators.on_topics_deleted(sorted(old.topics_by_id[topic_id].name for topic_id in deleted))
        self.hosted_replicas.resign_superseded(new, changes)
        self.cluster_metrics.count_isr_changes(changes, old, new)
        for line in summarize(changes, old, new):
            log.info("%s", line)
        lost = summarize_losses(old, new)
        if lost:
            log.error("%s", lost)

    async def _apply_image(self, old: Image, new: Image) -> None:
        """Brokers act on committed entries only (M5): here they do."""
        known = new.brokers.get(self.settings.node_id)
        if known is not None and known.incarnation == self.incarnation:
            self._is_registered = True
        elif self._is_registered and known is None:
            raise Fenced(f"broker {self.settings.node_id} was unregistered while it was not heard")
        elif self._is_registered:
            raise Fenced(f"another process has taken the node id {self.settings.node_id}")
        self._apply_settings(new)
        await self.hosted_replicas.apply_image(old, new, self.settings)
        self.group_coordinators.on_image(old, new)
        self.awaited_ends.on_image(new)
        self.suspected_brokers.on_image()

    def _apply_settings(self, image: Image) -> None:
        """Takes the settings that are in force as of an image."""
        before = self.settings
        self._config.apply_image(image)
        if self.settings.log_level != before.log_level:
            self._log_level(self.settings.log_level)

    # -- stop ---------------------------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Others lead what they can, and count on this broker no more where enough others are in sync, while clients
        are still told so here. Once, before a clean stop."""
        if self._is_serving and not self._failure and not self._has_handed_over:
            self._has_handed_over = True
            await self._try_submit(requests.HandOver(self.settings.node_id, self.incarnation))

    async def stop(self, *, clean: bool = True) -> None:
        """Ends everything; `clean` also makes all durable, so that the next start has nothing to check or to report.

        A broker that failed is never stopped cleanly, nor one that has losses to tell: the next start must doubt the
        same logs again. Safe to call after a start that did not succeed.
        """
        if clean:
            await self._report_losses()
            await self.hand_over()
        served, self._is_serving = self._is_serving, False
        self.group_coordinators.refuse("the broker is stopping")
        self.hosted_replicas.refuse(Refused(Code.BROKER_NOT_AVAILABLE, "the broker is stopping"))
        clean = (
            clean and served and not self._failure and self.disk.dead is None and self.registration.directory_trusted
        )
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if clean:
            await self.group_coordinators.save_final_snapshots()
        if self.hosted_replicas.unreported_losses:
            with contextlib.suppress(Unavailable):
                self.data_directory.remove_boot_mark()
        durable = clean and not self.hosted_replicas.unreported_losses and await self.hosted_replicas.close_clean()
        if durable and not self.cold_tier.manifests.has_undecided_change and not self.hosted_replicas.takeover_pending:
            await self._leave_partitions()
            await self._try_submit(requests.StopBroker(self.settings.node_id, self.incarnation))
        elif self.disk.dead is not None:
            await self._try_submit(requests.NameDirectory(self.settings.node_id, self.incarnation, ""))
        if self._main is not None:
            self._main.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._main
        self.cold_tier.reader.close()
        if self.peers is not None:
            await self.peers.close()
        await self.store.close()
        if served or self._failure:
            log.info("broker stopped node_id=%d clean=%s", self.settings.node_id, durable)

    async def _report_losses(self) -> None:
        """What was not told yet, if it can be told soon."""
        if self.hosted_replicas.unreported_losses or self.hosted_replicas.overstated_losses:
            with contextlib.suppress(Refused, Unavailable, TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self.registration.report_losses()

    async def _leave_partitions(self) -> None:
        """Gives up many partitions in shares, each of which is decided and acted on without holding up others."""
        places = [(topic.topic_id, tp.partition) for tp, topic in hosted_partitions(self.image, self.settings.node_id)]
        for start in range(0, len(places) if len(places) > LEAVE_BATCH_MAX else 0, LEAVE_BATCH_MAX):
            share = tuple(places[start : start + LEAVE_BATCH_MAX])
            if not await self._try_submit(requests.LeavePartitions(self.settings.node_id, self.incarnation, share)):
                return

    async def _try_submit(self, request: Request) -> bool:
        """A last word to the cluster, if it can be said soon; whether it was."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.submit(request)
        except (Refused, TimeoutError):
            return False
        return True

    def _draw_id(self) -> TopicId:
        return encode_uuid(uuid.UUID(int=self._rng.getrandbits(128), version=4))
