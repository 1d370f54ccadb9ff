"""One broker: start, run and stop of its parts. The broker wires and orders its parts; the rules of the parts are in
their own files.

A start loads the metadata, checks that no other process of this broker replies (R6), recovers the logs, finds or
becomes the controller, registers (R1), agrees with the bucket (R5), and serves. A task that fails ends the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tiered.access.audit_log import DONE, REFUSED, UNKNOWN, AuditLog
from tiered.access.authorization import Authorization
from tiered.access.client_quotas import ClientQuotas, Submitter
from tiered.access.delegation_tokens import DelegationTokens
from tiered.access.pots import Pots
from tiered.access.quota_reports import QuotaReports
from tiered.access.token_validator import TokenValidator
from tiered.broker.cluster_metrics import ClusterMetrics
from tiered.broker.duplicate_check import refuse_duplicate_broker
from tiered.broker.encryption import ListenerTls
from tiered.broker.fenced_brokers import FencedBrokers
from tiered.broker.figures import SelfReports
from tiered.broker.health import Health, assess_health
from tiered.broker.partition_troubles import PartitionTroubles
from tiered.broker.registration import Registration
from tiered.broker.replica_event_handlers import ReplicaEventHandlers
from tiered.broker.request_traces import RequestTraces
from tiered.broker.startup_retry import StartupRetry
from tiered.broker.topic_metrics import TopicLabels, TopicMetrics
from tiered.broker.trace_exporter import TraceExporter
from tiered.cold.disk_cache import DiskCache
from tiered.cold.fetch_throttle import FetchThrottle
from tiered.cold.manifest import FAN
from tiered.config.settings import Settings
from tiered.controller import requests
from tiered.controller.adoption import describe_left_out
from tiered.controller.change_costs import count_changes
from tiered.controller.change_descriptions import describe_changes
from tiered.controller.channel import SUBMIT_SECONDS
from tiered.controller.member import ClusterMember
from tiered.controller.partition_limits import count_partitions, count_replicas
from tiered.controller.requests import Request
from tiered.coordination.group_coordinators import GroupCoordinators, GroupPorts
from tiered.coordination.late_transactions import LateTransactions
from tiered.coordination.marker_writer import MarkerWriter
from tiered.coordination.offsets_beyond_end import OffsetsBeyondEnd
from tiered.coordination.orphaned_transactions import OrphanedTransactions
from tiered.coordination.producer_ids import ProducerIds
from tiered.coordination.share_coordinators import ShareCoordinators, SharePorts
from tiered.coordination.snapshot_stores import (
    make_group_snapshot_store,
    make_share_snapshot_store,
    make_transaction_snapshot_store,
)
from tiered.coordination.transaction_coordinators import TransactionCoordinators, TransactionPorts
from tiered.coordination.transaction_verification import TransactionVerification
from tiered.durability.awaited_ends import AwaitedEnds
from tiered.durability.data_directory import DataDirectory
from tiered.durability.disk_reports import DiskReports
from tiered.durability.loss_reporter import LossReporter
from tiered.durability.metadata_position import get_position
from tiered.durability.possible_losses import PossibleLosses
from tiered.durability.stored_ends import StoredEnds
from tiered.errors import (
    Code,
    Fenced,
    InvariantViolation,
    Refused,
    Unavailable,
    first_cause,
    public_message,
    unknown_topic_id,
)
from tiered.hosting.chains import Chains
from tiered.hosting.hosted_replicas import HostedReplicas, ReplicaStorage
from tiered.hosting.isr_updater import IsrUpdater
from tiered.hosting.schema_validation import SchemaValidation
from tiered.hosting.suspects import SuspectedBrokers
from tiered.ids import TopicId, TopicPartition, encode_uuid, incarnation_digest
from tiered.metadata.change_summary import summarize, summarize_losses, summarize_smaller_losses
from tiered.metadata.changes import Change
from tiered.metadata.delta import hosted_partitions
from tiered.metadata.dynamic_config import DynamicBrokerConfig
from tiered.metadata.image import Image
from tiered.metadata.layout import FORMAT_KEY, encode_format
from tiered.metadata.log_reader import read_format
from tiered.metadata.log_writer import SNAPSHOT_SLOTS, MetadataLog
from tiered.metadata.parts.topics import TopicImage
from tiered.metrics import Metrics
from tiered.object_store.encrypted import EncryptedStore
from tiered.object_store.metered import MeteredStore
from tiered.object_store.probe import probe, probe_at_restart
from tiered.object_store.store_usage import StoreUsage
from tiered.peers import Peers
from tiered.ports import World
from tiered.quotas.shares import BROKER_REPLICAS, PARTITIONS, Holdings
from tiered.quotas.timed_steps import TimedSteps
from tiered.replication.cold_tier import ColdTier
from tiered.replication.disk_state import DiskState
from tiered.replication.follower_reads import FollowerReads
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica
from tiered.security.acls import Operation
from tiered.security.administrators import parse_super_users
from tiered.security.broker_secrets import BrokerSecrets, choose_secrets
from tiered.security.principal import Caller
from tiered.upkeep.chain_deletion import ChainDeletion
from tiered.upkeep.clean_throttle import CleanThrottle
from tiered.upkeep.housekeeping import Housekeeping
from tiered.upkeep.log_cleaner import LogCleaner
from tiered.upkeep.object_deletion import ObjectDeletion
from tiered.upkeep.retention_clock import RetentionClock
from tiered.upkeep.store_watch import StoreWatch
from tiered.upkeep.tiering import Tiering

T = TypeVar("T")

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
LEAVE_BATCH_MAX = 2_500
"""Most partitions that a stop gives up in one request."""
STORE_WRITE_SECONDS = 60.0
"""Longest time that a start waits for the store to take its first entry: a store that refuses writes ends the start."""


class Broker:
    """One broker. The caller holds the lock of the data directory and closes the network faces before `stop`.

    `served` is set once it serves, `ended` when it can serve no more. Without `peers` it has no other brokers.
    `log_level` is called with a new `log.level`. `describe_process` returns problems of the process. Simulations pass a
    smaller `manifest_fan` and `snapshot_slots`, so that spills and snapshots happen in short runs too.
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
        describe_process: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._config = DynamicBrokerConfig(settings)
        self.metrics = metrics
        self.store_usage = StoreUsage()
        self.peers = peers
        self._log_level = log_level
        self._describe_process = describe_process
        self.ended = asyncio.Event()
        self.served = asyncio.Event()
        self._failure = ""
        self._is_registered = self._has_handed_over = self._is_serving = False
        self._main: asyncio.Task[None] | None = None
        self._loops: list[asyncio.Task[None]] = []

        self._build_store(world)
        self._build_access()
        self._build_data_directory()
        self._build_metadata(snapshot_slots)
        self._build_replicas(manifest_fan)
        self._build_reports()
        self._build_coordination()
        self._build_share_coordination()
        self._build_upkeep()
        self._subscribe_to_replicas()
        self._build_metrics()

    # -- parts, package by package: each function needs the parts of those above it -----------------------------------
    # Callbacks reach parts below; they are called after the constructor only.

    def _build_store(self, world: World) -> None:
        """The bucket, its requests counted, and the other ports of this broker."""
        self._encrypted = world.store if isinstance(world.store, EncryptedStore) else None
        self.store = MeteredStore(world.store, world.clock, self.metrics)
        self.world = replace(world, store=self.store)
        self.startup_retry = StartupRetry(self.store, world.clock, world.rng)

    def _build_access(self) -> None:
        """The callers: their logins, rights, quotas and shares (`tiered/access`)."""
        settings, clock, metrics = self.settings, self.world.clock, self.metrics
        self.tls = ListenerTls(lambda: self.settings, settings, clock, metrics)
        self.audit = AuditLog(clock, parse_super_users(settings.super_users))
        self.pots = Pots(clock, metrics, self.audit)
        self.authorization = Authorization(settings, self.audit)
        self.client_quotas = ClientQuotas(settings, clock, metrics)
        self.tokens = TokenValidator(settings, clock)
        self.delegation_tokens = DelegationTokens(settings, clock, lambda: self.image)
        self.pots.watch(self.delegation_tokens.holdings)
        self._watch_partitions()
        self.secrets = BrokerSecrets()
        """The secrets of brokers of this cluster; none before the store was read."""
        self._first_secret = b""
        self._on_logins: list[Callable[[], object]] = []

    def _build_data_directory(self) -> None:
        """The disk of this broker, and the files that describe it (`tiered/durability`)."""
        self.disk = DiskState(
            self.world.disk, self.world.clock, self.metrics, self._on_disk_failed,
            lambda: self.settings.tiered_disk_stall_timeout_ms,
        )  # fmt: skip
        self.data_directory = DataDirectory(self.world.disk)

    def _build_metadata(self, snapshot_slots: int) -> None:
        """The metadata log, and this broker as a member of the cluster (`tiered/metadata`, `tiered/controller`)."""
        world = self.world
        self.cluster_id = ""
        self._rng = world.rng.stream("node")
        self.incarnation = self._draw_id()
        self.retention_clock = RetentionClock(world.clock)
        self._metadata = MetadataLog(self.store, world.clock, world.rng, self.metrics, snapshot_slots=snapshot_slots)
        self.cluster = ClusterMember(
            self.incarnation,
            self._config,
            world,
            self.peers,
            self._metadata,
            apply_image=self._apply_image,
            on_changes=self._on_committed,
            draw_id=self._draw_id,
            on_clock_compared=self.retention_clock.on_compared,
            active_key=self._active_key,
        )
        self.view = self.cluster.view
        self.suspected_brokers = SuspectedBrokers(world.clock, self.view, self.cluster.on_broker_unreachable)

    def _build_replicas(self, manifest_fan: int) -> None:
        """The logs that this broker leads or follows, hot and cold (`tiered/hosting`, `tiered/cold`)."""
        world, metrics = self.world, self.metrics
        self._clean_throttle = CleanThrottle(world.clock)
        self._disk_cache = DiskCache(world.disk, world.clock, metrics, self.settings.tiered_chunk_cache_disk_bytes)
        self.cold_tier = self._make_cold_tier(manifest_fan)
        self._group_snapshots = make_group_snapshot_store(self.store, world.clock, metrics)
        self._transaction_snapshots = make_transaction_snapshot_store(self.store, world.clock, metrics)
        self._share_snapshots = make_share_snapshot_store(self.store, world.clock, metrics)
        snapshot_stores = {
            each.topic: each for each in (self._group_snapshots, self._transaction_snapshots, self._share_snapshots)
        }
        self.losses = PossibleLosses(self.view)
        self.chains = Chains(self.view, self.store, world, metrics, lambda: self.cluster_id)
        self.schema_validation = SchemaValidation(world.clock, metrics)
        """The validation of records; the server of the schema registry connects here."""
        self.hosted_replicas = HostedReplicas(
            self.view,
            world,
            metrics,
            storage=ReplicaStorage(self.disk, self.data_directory, self.cold_tier, snapshot_stores, self.chains),
            losses=self.losses,
            peers=self.peers,
            suspected_brokers=self.suspected_brokers,
            has_controller_contact=self._has_controller_contact,
            schema_validation=self.schema_validation,
        )
        self.pots.watch(self.hosted_replicas.log_store.producer_limits.holdings)

    def _build_reports(self) -> None:
        """Reports of this broker to the controller: its registration, its ISR changes, its ends, its losses and its
        disk (`tiered/durability`)."""
        view, channel, clock = self.view, self.cluster.channel, self.world.clock
        replicas, log_store = self.hosted_replicas, self.hosted_replicas.log_store
        self.isr_updater = IsrUpdater(view, channel, replicas, self.losses, clock, self.metrics)
        self.stored_ends = StoredEnds(view, channel, replicas, self.losses, clock)
        self.awaited_ends = AwaitedEnds(view, channel, log_store, clock)
        self.loss_reporter = LossReporter(view, channel, self.losses, log_store, self.data_directory)
        self._disk_reports = DiskReports(view, channel, self.disk, self.audit, clock)
        self.fenced_brokers = FencedBrokers(view, clock)
        self.partition_troubles = PartitionTroubles(clock)
        self.request_traces = RequestTraces(clock, self.world.rng)
        endpoint = self.settings.tiered_trace_otlp_endpoint
        self._trace_exporter = TraceExporter(self.request_traces, endpoint, clock, self.metrics) if endpoint else None
        self._quota_reports = (
            QuotaReports(self.client_quotas, view, self.peers, clock)
            if self.peers is not None and self.settings.processes > 1
            else None
        )
        self.registration = Registration(
            view,
            channel,
            self.startup_retry,
            log_store,
            self.losses,
            self.loss_reporter,
            clock,
            self.data_directory,
            refuse_duplicate=self._refuse_duplicate,
        )

    def _build_coordination(self) -> None:
        """The coordinators of groups and of transactions, and the markers of the latter (`tiered/coordination`)."""
        view, world, metrics = self.view, self.world, self.metrics
        self.group_coordinators = GroupCoordinators(
            GroupPorts(
                view,
                self.cluster.channel,
                self.hosted_replicas,
                self.store,
                self._group_snapshots,
                world.clock,
                world.rng,
                has_controller_contact=self._has_controller_contact,
                find_expiry_ms=self.retention_clock.find_expiry_ms,
            ),
            metrics,
        )
        self.pots.watch(self.group_coordinators.holdings)
        self.producer_ids = ProducerIds(self.cluster.channel, self.settings.node_id)
        self.marker_writer = MarkerWriter(self.leader_replica, self.group_coordinators)
        self.transaction_coordinators = TransactionCoordinators(
            TransactionPorts(
                view,
                self.cluster.channel,
                self.hosted_replicas,
                self.store,
                self._transaction_snapshots,
                world.clock,
                self.peers,
                self.producer_ids,
                own_partitions=self.marker_writer,
                has_controller_contact=self._has_controller_contact,
                find_expiry_ms=self.retention_clock.find_expiry_ms,
            ),
            metrics,
        )
        self.pots.watch(self.transaction_coordinators.holdings)
        self.transaction_verification = TransactionVerification(
            view, self.transaction_coordinators, self.peers, metrics
        )
        self.late_transactions = LateTransactions(
            self.hosted_replicas,
            self.group_coordinators.host,
            view,
            world.clock,
            find_names=self.transaction_coordinators.find_names,
            metrics=metrics,
        )
        self.offsets_beyond_end = OffsetsBeyondEnd(
            self.group_coordinators, self.hosted_replicas, view, world.clock, metrics
        )
        self.orphaned_transactions = OrphanedTransactions(
            self.late_transactions, self.transaction_coordinators, self.marker_writer, view, self.peers, world.clock
        )

    def _build_share_coordination(self) -> None:
        """The coordinators of share partitions (`tiered/coordination`)."""
        self.share_coordinators = ShareCoordinators(
            SharePorts(
                self.view,
                self.cluster.channel,
                self.hosted_replicas,
                self.store,
                self._share_snapshots,
                self.world.clock,
                has_controller_contact=self._has_controller_contact,
                find_expiry_ms=self.retention_clock.find_expiry_ms,
            ),
            self.metrics,
        )

    def _build_upkeep(self) -> None:
        """The timed work on partitions: uploads, deletion, cleaning (`tiered/upkeep`)."""
        view, world, replicas, metrics = self.view, self.world, self.hosted_replicas, self.metrics
        self.tiering = Tiering(
            self.settings, replicas, self.retention_clock, world.clock, world.rng, metrics, lambda: self.settings
        )
        self.housekeeping = Housekeeping(
            view, world, replicas, self.loss_reporter, self.tiering, self.disk, self.data_directory,
            self._disk_cache, served=self.served,
        )  # fmt: skip
        self.log_cleaner = LogCleaner(
            view, world, replicas, self.tiering, self.disk, self._clean_throttle, self.retention_clock, metrics
        )
        self._chain_deletion = ChainDeletion(view, self.chains, replicas, self.cluster, world.clock)
        self._object_deletion = ObjectDeletion(
            view, self.cluster.channel, self.cluster, self.cold_tier.collector, self.store, world.clock
        )
        self._store_watch = StoreWatch(self.store, self.cluster, world.clock)

    def _subscribe_to_replicas(self) -> None:
        """Passes the events of leader replicas to the parts that act on them."""
        self.hosted_replicas.subscribe(
            ReplicaEventHandlers(
                self.tiering,
                self.isr_updater,
                self.stored_ends,
                self.group_coordinators,
                self.transaction_coordinators,
                self.share_coordinators,
                self.hosted_replicas.on_fenced,
            )
        )

    def _build_metrics(self) -> None:
        """The metrics that no part above has of itself."""
        metrics = self.metrics
        self.cluster_metrics = ClusterMetrics(
            metrics, self.view, lambda: self.cluster.is_controller, self.cluster.clock_comparisons
        )
        labels = TopicLabels(self.settings.tiered_metrics_max_topics, self.view)
        self.topic_metrics = TopicMetrics(metrics, labels, self.hosted_replicas, self.view)
        self.self_reports = SelfReports(
            self.world.clock, metrics, self.health, lambda: len(self.hosted_replicas.list_replicas())
        )
        metrics.gauge("tiered_metadata_waiting_changes", "Changes of metadata that wait for the bucket.").set_function(
            lambda: float(self.cluster.pending)
        )
        metrics.gauge("tiered_disk_free_bytes", "Free bytes under the data directory.").set_function(
            lambda: float(self.world.disk.space().free)
        )

    def _has_controller_contact(self) -> bool:
        return self.cluster.has_controller_contact

    async def _refuse_duplicate(self, image: Image) -> None:
        await refuse_duplicate_broker(image, self.settings, self.world.net, self.peers)

    def _watch_partitions(self) -> None:
        """Watches the partitions of the cluster and the replicas of this broker. The controller has the same numbers,
        and refuses by them. Replicas are counted by creator only while shares are in force: there may be many."""
        cluster = Holdings(
            PARTITIONS,
            lambda: self.settings.tiered_partitions_max,
            lambda: self.image.partition_count,
            lambda: (count_partitions(self.image),),
        )
        own: Holdings = Holdings(
            BROKER_REPLICAS,
            lambda: self.settings.tiered_partitions_max_per_broker,
            lambda: self.image.replica_counts.get(self.settings.node_id, 0),
            lambda: (count_replicas(self.image, self.settings.node_id),) if own.is_scarce else (),
        )
        self.pots.watch(cluster)
        self.pots.watch(own)

    def _make_cold_tier(self, manifest_fan: int) -> ColdTier:
        world, settings = self.world, self.settings
        return ColdTier.build(
            self.store, world.clock, world.rng, self.metrics,
            lambda: self._clean_throttle.admit_request(self.settings.tiered_cleaner_max_requests_per_second),
            fan=manifest_fan,
            cache_bytes=settings.tiered_chunk_cache_bytes,
            grace_ms=settings.tiered_object_delete_delay_ms,
            clean_object_bytes=settings.tiered_cleaner_object_max_bytes,
            puts_at_once=settings.remote_log_manager_copier_thread_pool_size,
            fetch_throttle=FetchThrottle(
                world.clock, lambda: self.settings.remote_log_manager_fetch_max_bytes_per_second
            ),
            disk_cache=self._disk_cache,
        )  # fmt: skip

    # -- state --------------------------------------------------------------------------------------------------------

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
        """The newest committed image that this broker knows."""
        return self.view.image

    def leader_replica(self, topic: str, partition: int) -> LeaderReplica:
        """Returns the leader replica of a partition of the topic that has this name in the image.

        Raises `Refused` if there is no such partition, another broker leads it, or its log cannot be opened.
        """
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
        if self.hosted_replicas.openings.prefer(tp):
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, f"this broker is about to lead {tp}: retry")
        raise Refused(Code.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {tp}")

    def topic(self, topic_id: TopicId) -> TopicImage:
        """Returns the topic that has this id.

        Raises `Refused` (UNKNOWN_TOPIC_ID) if it was deleted, or is not in the image yet.
        """
        known = self.image.topics_by_id.get(topic_id)
        if known is None:
            raise unknown_topic_id(topic_id)
        return known

    def follower_reads(self, topic: str, partition: int) -> FollowerReads | None:
        """Returns the reads of consumers from a follower replica (KIP-392); None if this broker has none."""
        follower = self.hosted_replicas.find_follower(TopicPartition(topic, partition))
        return FollowerReads(follower, lambda: self._is_in_isr(follower)) if follower is not None else None

    def _is_in_isr(self, follower: FollowerReplica) -> bool:
        """True if a follower replica is in the ISR of the leader that it follows, in the newest image.

        Under a newer epoch this broker may lead the partition itself, and may not have applied that yet.
        """
        topic = self.image.topics_by_id.get(follower.topic_id)
        if topic is None or not self.cluster.has_controller_contact:
            return False
        now = topic.partitions[follower.tp.partition]
        return now.leader_epoch == follower.leader_epoch and self.settings.node_id in now.isr

    def leader_replicas(self) -> list[LeaderReplica]:
        """Returns the leader replicas of this broker."""
        return self.hosted_replicas.list_leaders()

    async def submit(self, request: Request, timeout: float = SUBMIT_SECONDS, *, by: Submitter | None = None) -> Any:
        """Returns the controller's reply; its type stands with each request. Raises `Refused` with the reason. A
        client pays for the changes that its request asks for, and the audit log gets what became of them."""
        count = count_changes(request, self.image, self.settings.num_partitions) if by is not None else 0
        if by is not None:
            by.admit_changes(count)
            request = self._name_creator(request, by.caller)
        reply, outcome = None, UNKNOWN  # also if the caller leaves before the reply
        try:
            reply = await self.cluster.channel.submit(request, timeout, "" if by is None else by.caller.holder)
            outcome = DONE
        except Refused as refused:
            outcome = UNKNOWN if refused.code is Code.REQUEST_TIMED_OUT else REFUSED
            if by is not None:
                self._report_share(by.caller, refused)
            raise
        finally:
            if by is not None and outcome != REFUSED:
                for each in reply if isinstance(request, requests.CreateTopics) and reply else ():
                    if isinstance(each, Refused):
                        self._report_share(by.caller, each)
                by.charge_time(count * self.view.change_time.mean_ns)
                self.audit.record_changes(by.caller, describe_changes(request, reply, self.image), outcome)
        return reply

    def _name_creator(self, request: Request, caller: Caller) -> Request:
        """Returns a request with the holder for which new topics count. Administrators create for others: their topics
        count for nobody. So do all topics without an authorizer, where nobody is kept from anything."""
        if not isinstance(request, requests.CreateTopic | requests.CreateTopics):
            return request
        if self.authorization.is_allowed_on_cluster(caller, Operation.ALTER):
            return request
        if isinstance(request, requests.CreateTopic):
            return replace(request, creator=caller.holder)
        return requests.CreateTopics(tuple(replace(each, creator=caller.holder) for each in request.topics))

    def _report_share(self, caller: Caller, refused: Refused) -> None:
        """Reports a refusal of partitions that the controller, here or elsewhere, made for want of a share."""
        for pot in (PARTITIONS, BROKER_REPLICAS):
            if refused.code is pot.code and f"({pot.setting})" in refused.why:
                self.pots.report(pot, caller.holder, refused.why)

    async def announce(self, http: str, listeners: Mapping[str, str], advertised_http: str = "") -> None:
        """Tells the cluster the addresses of this broker.

        A second process with this node id checks `http` (HOST:PORT). Kafka clients get `listeners`, and HTTP clients
        `advertised_http` (`http://HOST:PORT`; "": as `http`). Raises `Refused` if the controller cannot connect, and
        `Unavailable` if this broker failed after its start.
        """
        self._check_alive()
        await self.registration.announce(http, listeners, advertised_http)

    def health(self) -> Health:
        """Returns the health report: if the broker serves, and its problems."""
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
            pots=self.pots.describe(),
            process=[*self._describe_process(), *describe_left_out(self.image, self.settings.node_id, self.settings)],
            missing_keys=self._encrypted.describe_missing_keys(self.cluster.active_keys()) if self._encrypted else (),
            certificates=self.tls.describe_problems(),
            clocks=self.cluster.describe_clocks(),
            fenced=self.fenced_brokers.describe(),
            clock_comparisons=self.cluster.clock_comparisons(),
            unserved=self.hosted_replicas.list_unserved()
            | self.group_coordinators.host.list_unserved()
            | self.transaction_coordinators.host.list_unserved()
            | self.share_coordinators.host.list_unserved(),
            replicas=self.hosted_replicas.list_leaders(),
            replica_count=len(self.hosted_replicas.list_replicas()),
            image=self.image,
            partition_health=self.cluster_metrics.partition_health,
            late_transactions=self.late_transactions.find(),
            beyond_ends=self.offsets_beyond_end.find(),
            holding=self.late_transactions.find_holding(self.tiering.find_most_lagging()),
            uncleanable=self.log_cleaner.uncleanable,
            damaged=self.cold_tier.reader.list_damaged(),
            now_ms=self.world.clock.wall_ms(),
            contact_lost=self.cluster.describe_contact(),
        )

    def _active_key(self) -> str:
        return self._encrypted.active_key_id if self._encrypted is not None else ""

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the broker. Returns once it serves; waits as long as the store is unreachable.

        Raises `Refused` if this broker must not run, and `Unavailable` if the store refuses or the data directory
        failed.
        """
        await self.tokens.start()
        image = await self.startup_retry.retry_until_store_is_back(self._load_metadata)
        if self._trace_exporter is not None:
            await self._trace_exporter.start(self.cluster_id, self.settings.node_id)
        await self.registration.check_duplicate(image)
        self.data_directory.refuse_older_bucket(get_position(self.cluster_id, image))
        found = await self.data_directory.open(self.cluster_id, self.settings.node_id, self._draw_id())
        found = self.registration.assess_directory(image, found)
        self._apply_settings(image)
        await self.hosted_replicas.recover(image, found)
        await self._write_at_startup(self.cluster.start(image))
        self._main = asyncio.create_task(self._run(), name="node")
        self.cluster.channel.open()
        try:
            await self.startup_retry.retry_refused(self.registration.register)
        except Refused as refused:
            raise Unavailable(f"the broker could not register: {refused.why}") from None
        await self._note_metadata()
        # A failed disk does not raise in the steps above: in a running broker `_fail` ends it. The start checks here.
        self._check_alive()
        self._is_serving = True
        self.served.set()
        led, held = len(self.leader_replicas()), len(self.hosted_replicas.list_replicas())
        log.info(
            "broker serves node_id=%d cluster_id=%s incarnation_sha256=%s epoch=%d led=%d followed=%d",
            self.settings.node_id, self.cluster_id, incarnation_digest(self.incarnation), self.image.controller_epoch,
            led, held - led,
        )  # fmt: skip

    def _check_alive(self) -> None:
        """Raises `Unavailable` if the broker failed."""
        if self._failure:
            raise Unavailable(f"the broker failed at its start: {self._failure}", final=True)

    async def _note_metadata(self) -> None:
        """Notes what the metadata log has reached. A disk that cannot take the note ends nothing here."""
        try:
            await self.housekeeping.note_metadata()
        except (Unavailable, Refused) as error:
            log.warning("position of the metadata log is noted later why=%s", error)

    async def _load_metadata(self) -> Image:
        """Returns the image of this store's cluster; the first broker of a store creates the cluster."""
        found = await read_format(self.store)
        if found is None:
            await probe(self.store, self.world.rng)
        else:
            await probe_at_restart(self.store, FORMAT_KEY, encode_format(found), self.world.rng)
        held, _ = await self._write_at_startup(
            self._metadata.load_or_create_format(self.data_directory.read_cluster_id())
        )
        self.cluster_id, self._first_secret = held.cluster_id, held.credential
        if self.peers is not None:
            self.peers.cluster_id = self.cluster_id
        image = await self._metadata.load()
        self._apply_secrets(image)
        return image

    def _apply_secrets(self, image: Image) -> None:
        self.secrets = choose_secrets(self._first_secret, image.broker_secrets)
        if self.peers is not None:
            self.peers.credential = self.secrets.proof

    def subscribe_to_logins(self, on_logins: Callable[[], object]) -> None:
        """Calls a function after each change of users or of the secrets of brokers: it ends logins that stood on
        them."""
        self._on_logins.append(on_logins)

    def _announce_logins(self) -> None:
        for on_logins in self._on_logins:
            on_logins()

    @property
    def credential(self) -> bytes:
        """The secret by which this broker proves itself to others; empty before the store was read."""
        return self.secrets.proof

    @property
    def salt_secret(self) -> bytes:
        """The first secret of the cluster, the same on all brokers: no rotation changes what is derived from it. Empty
        before the store was read."""
        return self._first_secret

    async def _write_at_startup(self, step: Coroutine[Any, Any, T]) -> T:
        """Writes metadata during the start. Raises `Unavailable` if a reachable store does not take it in time."""
        return await self.startup_retry.wait_for_store_write(
            step, STORE_WRITE_SECONDS, lambda: self._metadata.last_error or "no controller replies"
        )

    # -- running ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Runs all loops of the broker. The first failure ends them all, and the broker."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.cluster.run(), name="cluster")
                group.create_task(self._apply_images(), name="carry-out")
                self._loops = [
                    group.create_task(self.chains.writer.run(), name="write-ahead-chain"),
                    group.create_task(self.tiering.run(), name="tiering"),
                    group.create_task(self.housekeeping.run(), name="housekeeping"),
                    group.create_task(self.log_cleaner.run(), name="log-cleaner"),
                    group.create_task(self._object_deletion.run(), name="object-deletion"),
                    group.create_task(self._chain_deletion.run(), name="chain-deletion"),
                    group.create_task(self._store_watch.run(), name="store-watch"),
                    group.create_task(self.group_coordinators.run(), name="coordinators"),
                    group.create_task(self.transaction_coordinators.run(), name="transactions"),
                    group.create_task(self.share_coordinators.run(), name="share-partitions"),
                    group.create_task(self.orphaned_transactions.run(), name="orphaned-transactions"),
                    group.create_task(self.hosted_replicas.run_fetchers(), name="copying"),
                    group.create_task(self.hosted_replicas.run_openings(), name="openings"),
                    group.create_task(self.isr_updater.run(), name="in-sync-sets"),
                    group.create_task(self.awaited_ends.run(), name="awaited-ends"),
                    group.create_task(self.stored_ends.run(), name="stored-ends"),
                    group.create_task(self._disk_reports.run(), name="disk-reports"),
                ]
                if self._quota_reports is not None:
                    self._loops.append(group.create_task(self._quota_reports.run(), name="quota-reports"))
                if self._trace_exporter is not None:
                    self._loops.append(group.create_task(self._trace_exporter.run(), name="trace-export"))
        except Exception as error:
            cause = first_cause(error)
            words = public_message(cause)
            self._fail(words)
            bug = error if words != str(cause) else None  # our own errors need no stack trace, bugs do
            log.critical("broker failed why=%s: %s", type(cause).__name__, cause, exc_info=bug)

    async def _apply_images(self) -> None:
        await TimedSteps(self.cluster.loader.run(), self.view.change_time, self.world.clock.mono_ns)

    def _on_disk_failed(self, why: str) -> None:
        """Ends the broker; without a proof the next start believes only what was fsynced."""
        with contextlib.suppress(Unavailable):
            self.data_directory.proof_file.remove()
        self._fail(f"data directory: {why}")

    def on_invariant_violation(self, error: InvariantViolation) -> None:
        """Ends the broker before it sends another reply: a request found a broken invariant."""
        log.critical("broker failed why=%s: %s", type(error).__name__, error, exc_info=error)
        self._fail(public_message(error))

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self._is_serving = False
        self._refuse_coordination(f"the broker failed: {self._failure}")
        self.hosted_replicas.refuse(Refused(Code.KAFKA_STORAGE_ERROR, f"the broker failed: {self._failure}"))
        self.ended.set()

    def _refuse_coordination(self, why: str) -> None:
        self.group_coordinators.host.refuse(why)
        self.transaction_coordinators.host.refuse(why)
        self.share_coordinators.host.refuse(why)

    def _on_committed(self, changes: Sequence[Change], old: Image, new: Image) -> None:
        """Ends at once the replicas of deleted topics, the leaderships that another broker has now, and the logins of
        users that are removed or changed.

        `_apply_image` does all else later. The changes are committed, or the image is from a snapshot.
        """
        self.view.change_time.count(len(changes))
        deleted = old.topics_by_id.keys() - new.topics_by_id.keys()
        if deleted:
            self.hosted_replicas.stop_topics(deleted)
            self.group_coordinators.on_topics_deleted(sorted(old.topics_by_id[topic_id].name for topic_id in deleted))
            self.share_coordinators.on_topics_deleted(deleted)
        self.hosted_replicas.resign_superseded(new, changes)
        if new.scram is not old.scram:
            self._announce_logins()
        self.cluster_metrics.count_isr_changes(changes, old, new)
        for line in summarize(changes, old, new):
            log.info("%s", line)
        if log.isEnabledFor(logging.DEBUG):
            counted = Counter(type(change).__name__ for change in changes)
            kinds = " ".join(f"{kind}={count}" for kind, count in counted.items())
            log.debug("metadata changed slot=%d %s", new.slot, kinds)
        lost = summarize_losses(old, new)
        if lost:
            log.error("%s", lost)
        smaller = summarize_smaller_losses(old, new)
        if smaller:
            log.warning("%s", smaller)

    async def _apply_image(self, old: Image, new: Image) -> None:
        """Applies a committed image (M5). Raises `Fenced` if another process has the node id, or it is unregistered."""
        known = new.brokers.get(self.settings.node_id)
        if known is not None and known.incarnation == self.incarnation:
            self._is_registered = True
        elif self._is_registered and known is None:
            raise Fenced(f"broker {self.settings.node_id} was unregistered while it had no contact with the controller")
        elif self._is_registered:
            raise Fenced(f"another process has taken the node id {self.settings.node_id}")
        self._apply_settings(new)
        self._apply_secrets(new)
        if new.broker_secrets is not old.broker_secrets:
            self._announce_logins()
        self.authorization.apply_image(new)
        self.client_quotas.apply_image(new)
        self.delegation_tokens.on_image()
        await self.hosted_replicas.apply_image(old, new)
        self.group_coordinators.on_image(old, new)
        self.transaction_coordinators.on_image()
        self.share_coordinators.on_image(old, new)
        self.transaction_verification.on_image()
        self.awaited_ends.on_image(new)
        self._disk_reports.on_image(old, new)
        self.fenced_brokers.on_image(old, new)
        self.partition_troubles.on_image(old, new)
        self.suspected_brokers.on_image()

    def _apply_settings(self, image: Image) -> None:
        """Takes the settings in force as of an image."""
        before = self.settings
        self._config.apply_image(image)
        if self.settings.log_level != before.log_level:
            self._log_level(self.settings.log_level)
        self.request_traces.set_min_ms(self.settings.tiered_trace_min_ms)

    # -- stop ---------------------------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Moves leaderships to other brokers before a clean stop, and leaves each ISR with enough other members.

        Clients still learn the new leaders from this broker. A second call does nothing.
        """
        if self._is_serving and not self._failure and not self._has_handed_over:
            self._has_handed_over = True
            await self._try_submit(requests.HandOver(self.settings.node_id, self.incarnation))

    async def stop(self, *, clean: bool = True) -> None:
        """Stops the broker. `clean` also makes all logs durable: the next start then checks and reports nothing.

        A broker that failed, or has losses to report, never stops cleanly: the next start then finds the same logs
        unproved again. The call is safe after a start that failed.
        """
        self.audit.write_counts()
        await self.tokens.close()
        if clean:
            await self._report_losses()
            await self._put_rest()
            await self.hand_over()
        served, self._is_serving = self._is_serving, False
        self._refuse_coordination("the broker is stopping")
        self.hosted_replicas.refuse(Refused(Code.BROKER_NOT_AVAILABLE, "the broker is stopping"))
        if clean:
            await self._put_rest()
        clean = (
            clean and served and not self._failure and self.disk.dead is None and self.loss_reporter.directory_trusted
        )
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if clean:
            await asyncio.gather(
                self.group_coordinators.host.save_final_snapshots(),
                self.transaction_coordinators.host.save_final_snapshots(),
                self.share_coordinators.host.save_final_snapshots(),
            )
        if self.losses.unreported:
            with contextlib.suppress(Unavailable):
                await self.data_directory.remove_boot_mark()
        durable = clean and not self.losses.unreported and await self.hosted_replicas.close_clean()
        if durable and not self.cold_tier.manifests.has_undecided_change and not self.hosted_replicas.takeover_pending:
            await self._leave_partitions()
            await self._try_submit(requests.StopBroker(self.settings.node_id, self.incarnation))
            await self._note_metadata()
        elif self.disk.dead is not None:
            await self._try_submit(requests.NameDirectory(self.settings.node_id, self.incarnation, ""))
        if self._main is not None:
            self._main.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._main
        if self._trace_exporter is not None:
            self._trace_exporter.close()
        self.cold_tier.reader.close()
        await self.transaction_verification.close()
        if self.peers is not None:
            await self.peers.close()
        await self.store.close()
        if served or self._failure:
            log.info("broker stopped node_id=%d clean=%s", self.settings.node_id, durable)

    async def _report_losses(self) -> None:
        """Reports losses that are due, if the controller replies soon."""
        if self.losses.has_any_to_report:
            with contextlib.suppress(Refused, Unavailable, TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self.loss_reporter.report_losses()

    async def _put_rest(self) -> None:
        """Puts the records of `flush=bucket` that are on the disk alone: those with acks=1 may be."""
        if not await self.chains.writer.put_rest(STOP_SECONDS):
            why = self.chains.writer.last_error or "the puts take long"
            log.warning("records of flush=bucket stay on the disk until the next start why=%s", why)

    async def _leave_partitions(self) -> None:
        """Gives up many partitions in batches, so that no decision of the controller takes long."""
        places = [(topic.topic_id, tp.partition) for tp, topic in hosted_partitions(self.image, self.settings.node_id)]
        for start in range(0, len(places) if len(places) > LEAVE_BATCH_MAX else 0, LEAVE_BATCH_MAX):
            batch = tuple(places[start : start + LEAVE_BATCH_MAX])
            if not await self._try_submit(requests.LeavePartitions(self.settings.node_id, self.incarnation, batch)):
                return

    async def _try_submit(self, request: Request) -> bool:
        """Submits a last request. Returns False if the controller did not accept it soon."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.submit(request)
        except (Refused, TimeoutError):
            return False
        return True

    def _draw_id(self) -> TopicId:
        return encode_uuid(uuid.UUID(int=self._rng.getrandbits(128), version=4))
