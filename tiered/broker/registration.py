"""How an incarnation takes its place in the cluster: no twin of it answers (R6), it registers (R1), it tells what its
logs may have lost, and only then does the next start trust the data directory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tiered.broker.data_directory import DirectoryState
from tiered.broker.duplicate_check import TIMEOUT_SECONDS, is_answering
from tiered.broker.hosted_replicas import is_loss_overstated, is_loss_unreported
from tiered.broker.retention_clock import CLOCK_SKEW_MS
from tiered.controller import requests
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.hot.synced_logs import NO_SYNCED_LOGS
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.delta import hosted_partitions
from tiered.metadata.effective_config import overridden_settings
from tiered.metadata.image import BrokerImage, Image, PartitionImage

if TYPE_CHECKING:
    from tiered.broker.broker import Broker
    from tiered.replication.leader_replica import LeaderReplica

log = logging.getLogger(__name__)

REGISTER_SECONDS = 30.0
REACH_SECONDS = 15.0
"""How long the way from the controller to a broker that starts may be closed."""
RETRY_SECONDS = 1.0
SECONDS_PER_PARTITION = 2.0
"""Added to the wait for a registration per partition: each may have to be agreed with a slow bucket first."""
REPORTS_AT_ONCE = 500
PARTITIONS_LOGGED_MAX = 100
"""Of a topic, in a line of the log. `possible_loss` has them all."""
"""Fewer than may wait for the metadata log."""


class Registration:
    """The start of one node, and what is left of it to do later: `trusted` once all logs could be opened, every loss
    is told, and the next start may believe the data directory."""

    def __init__(self, node: Broker) -> None:
        self._node = node
        self._is_known_directory = False
        self._first_request_ms = 0
        """By this broker's clock, when it first asked to be registered."""
        self._directory_state: DirectoryState | None = None
        self.directory_trusted = False
        self._logged_losses: set[LeaderReplica] = set()
        """Those of which the log has a line, while they are still to be told."""
        self._report_lock = asyncio.Lock()

    async def refuse_duplicate_broker(self, image: Image) -> None:
        """Refuses to start while another process answers under this node id (R6)."""
        known = image.brokers.get(self._node.settings.node_id)
        where = await self._find_live_address(known) if known is not None and known.alive else ""
        if known is not None and where:
            raise Refused(
                Code.DUPLICATE_BROKER_REGISTRATION,
                f"broker {known.node_id} of this store answers at {where}; stop it first,"
                " or give this one another node.id",
            )

    async def _find_live_address(self, known: BrokerImage) -> str:
        """Where that incarnation answers; "" where it does not. HTTP may be there for its own machine only, the
        listener for brokers is for all of them."""
        node = self._node
        if await is_answering(node.world.net, known.http, known.incarnation):
            return known.http
        address = known.address(node.settings.inter_broker_listener_name)
        if node.peers is None or not address:
            return ""
        try:
            heard = await node.peers.get_controller_view(address, TIMEOUT_SECONDS)
        except (Unavailable, Refused, Corrupt):
            return ""
        return address if (heard.node_id, heard.incarnation) == (known.node_id, known.incarnation) else ""

    def assess_directory(self, image: Image, state: DirectoryState) -> DirectoryState:
        """What may be believed of the directory."""
        self._directory_state, self._is_known_directory = discard_untrusted(
            image.brokers.get(self._node.settings.node_id), state
        )
        return self._directory_state

    async def register(self) -> None:
        """The new incarnation takes its leaderships; what its logs cannot prove is reported, partition by partition.
        Where it listens is said once it does (`announce`): a connection that is refused would look like its end."""
        assert self._directory_state is not None
        node, settings = self._node, self._node.settings
        known, whole = self._is_known_directory, self._is_known_directory and self._directory_state.is_intact
        proved: list[tuple[TopicId, int]] = []
        doubtful: list[TopicPartition] = []
        ends: list[requests.ReplicaEnd] = []
        for tp, topic in hosted_partitions(node.image, settings.node_id):
            proof = whole or self._directory_state.synced_logs.is_fully_synced(tp, topic.topic_id)
            if not proof or node.hosted_replicas.is_suspect(tp):
                doubtful.append(tp)
            elif not whole:
                proved.append((topic.topic_id, tp.partition))
            now = topic.partitions[tp.partition]
            # Also where no other replica is known of: the controller may have begun a move that is not heard of here.
            if doubtful[-1:] == [tp] or not (now.isr or now.elr):
                end = node.hosted_replicas.end_of(tp, topic.topic_id)
                ends.append(requests.ReplicaEnd(topic.topic_id, tp.partition, *end))
        node.hosted_replicas.suspect_partitions = frozenset(doubtful)
        registration = requests.RegisterBroker(
            settings.node_id, node.incarnation, self._directory_state.directory_id if known else "", settings.http,
            settings.broker_rack, whole, {}, tuple(ends), tuple(proved),
        )  # fmt: skip
        count = sum(1 for _ in hosted_partitions(node.image, settings.node_id))
        if not self._first_request_ms:  # the cluster keeps the time of the first try, however often it is made
            self._first_request_ms = node.world.clock.wall_ms()
        await node.cluster.channel.submit_with_retry(registration, REGISTER_SECONDS + SECONDS_PER_PARTITION * count)
        self._compare_clocks(self._first_request_ms)
        for name, (given, in_force) in overridden_settings(node.image, node.startup_settings, settings.node_id).items():
            log.warning(
                "a setting of this broker is not in force, the cluster says otherwise name=%s given=%s in_force=%s",
                name, given, in_force,
            )  # fmt: skip
        # Where others lead, or are to, the registration said all that there was to say: the log follows theirs.
        node.hosted_replicas.suspect_partitions = frozenset(
            tp for tp in doubtful if can_lead(self._get_partition_image(tp), settings.node_id)
        )
        try:
            await self.report_losses()
        except Unavailable as error:
            log.warning("the data directory is trusted later why=%s", error)

    async def announce(self, http: str, listeners: Mapping[str, str], advertised_http: str) -> None:
        """Tells the cluster where this incarnation answers; waits a while for a way that may come to be open."""
        node = self._node
        announced = requests.AnnounceBroker(node.settings.node_id, node.incarnation, http, listeners, advertised_http)
        until_ns = node.world.clock.mono_ns() + int(REACH_SECONDS * 1e9)
        while True:
            try:
                await node.startup_retry.retry_refused(lambda: node.cluster.channel.submit_with_retry(announced))
                return
            except Refused as refused:
                if refused.code is not Code.BROKER_NOT_AVAILABLE or node.world.clock.mono_ns() >= until_ns:
                    raise
                log.warning("clients are not told of this broker yet why=%s", refused.why)
            await node.world.clock.sleep(RETRY_SECONDS)

    def _compare_clocks(self, request_ms: int) -> None:
        """Clocks decide nothing but ages and timestamps of records: one that is wrong is said, not refused."""
        node = self._node
        known = node.image.brokers.get(node.settings.node_id)
        if known is not None and known.incarnation == node.incarnation:
            now_ms, there_ms = node.world.clock.wall_ms(), known.registered_ms
            ahead_ms = request_ms - there_ms if there_ms < request_ms else min(0, now_ms - there_ms)
            node.retention_clock.set_skew(ahead_ms)
            if abs(ahead_ms) >= CLOCK_SKEW_MS:
                log.warning(
                    "clock differs from the controller's ahead_seconds=%d controller=%d: timestamps of records go by"
                    " this one, retention by the earlier of the two, set one of them right",
                    ahead_ms // 1000, node.image.controller,
                )  # fmt: skip

    def _get_partition_image(self, tp: TopicPartition) -> PartitionImage | None:
        topic = self._node.image.topics.get(tp.topic)
        known = topic.partitions if topic is not None else ()
        return known[tp.partition] if tp.partition < len(known) else None

    def _make_loss_report(self, replica: LeaderReplica) -> requests.ReportLoss:
        return requests.ReportLoss(
            replica.topic_id,
            replica.partition,
            replica.leader_epoch,
            replica.epoch_start,
            replica.initial_cold_end_offset,
        )

    def _is_unreported(self, replica: LeaderReplica) -> bool:
        """Whether the cluster still has to be told."""
        topic, known = self._node.image.topics.get(replica.topic), self._get_partition_image(replica.tp)
        if topic is None or topic.topic_id != replica.topic_id or known is None:
            return False
        return is_loss_unreported(known.loss, replica)

    def _is_overstated(self, replica: LeaderReplica) -> bool:
        """Whether the cluster holds for lost what this leader found in the bucket."""
        known = self._get_partition_image(replica.tp)
        return not replica.is_stopped and known is not None and is_loss_overstated(known.loss, replica)

    async def report_losses(self) -> None:
        """Tells the cluster from which offsets on records may be gone; what cannot be told now stays to be told."""
        async with self._report_lock:
            await self._report_losses()

    async def _report_losses(self) -> None:
        node, partitions = self._node, self._node.hosted_replicas
        lost = list(partitions.unreported_losses)
        _log_losses(
            [replica for replica in lost if replica not in self._logged_losses and replica.possible_loss is not None]
        )
        self._logged_losses = set(lost)
        try:
            # The lowest offset last: it is the one that stays.
            reports = map(
                self._make_loss_report,
                sorted({*lost, *partitions.overstated_losses}, key=_get_loss_offset, reverse=True),
            )
            while some := list(islice(reports, REPORTS_AT_ONCE)):
                await asyncio.gather(*map(node.submit, some))
        finally:  # a report that is refused, or given up, leaves all of them to be told
            partitions.unreported_losses = [
                replica
                for replica in partitions.unreported_losses
                if replica not in lost or self._is_unreported(replica)
            ]
            partitions.overstated_losses = [
                replica for replica in partitions.overstated_losses if self._is_overstated(replica)
            ]
            for replica in set(lost).difference(partitions.unreported_losses):
                replica.on_loss_reported()
        partitions.suspect_partitions -= {replica.tp for replica in lost} - {
            replica.tp for replica in partitions.unreported_losses
        }
        untold = partitions.has_unchecked_logs or partitions.suspect_partitions or partitions.unreported_losses
        if not untold and not self.directory_trusted:
            # Not earlier: after a death before this, the next start must doubt the same logs again.
            if not self._is_known_directory and self._directory_state is not None:
                directory = self._directory_state.directory_id
                await node.submit(requests.NameDirectory(node.settings.node_id, node.incarnation, directory))
            await node.data_directory.write_boot_mark()
            await node.hosted_replicas.clear_suspicion()
            self.directory_trusted = True


def discard_untrusted(last: BrokerImage | None, state: DirectoryState) -> tuple[DirectoryState, bool]:
    """Returns what may be believed of a directory, and whether the cluster knows it: it says something of its logs only
    as the one of the `last` incarnation, whose disk did not fail. What is noted of synced logs is the word of one
    incarnation: after another one, of a version that notes nothing, it is void."""
    known = last is None or last.directory == state.directory_id
    if last is None or last.incarnation not in state.synced_logs.incarnations:
        state = state._replace(synced_logs=NO_SYNCED_LOGS)
    if not known:
        state = state._replace(same_boot=False, clean=False, clean_entries={}, synced_logs=NO_SYNCED_LOGS)
    return state, known


def can_lead(now: PartitionImage | None, node_id: int) -> bool:
    """Whether the log that a start has found may yet be led as it is. Where nobody leads, this broker may be fenced
    for a moment, and lead again before it has acted on having led."""
    return now is not None and now.leader in (node_id, NO_LEADER)


def _get_loss_offset(replica: LeaderReplica) -> int:
    return replica.epoch_start


def _log_losses(lost: Sequence[LeaderReplica]) -> None:
    """A line for each topic: with a disk all partitions there are go at once, and one that matters has to be seen."""
    topics: dict[str, list[LeaderReplica]] = {}
    for replica in lost:
        topics.setdefault(replica.tp.topic, []).append(replica)
    for topic, replicas in sorted(topics.items()):
        places = sorted((each.tp.partition, each.epoch_start) for each in replicas)
        said = ",".join(f"{partition}@{offset}" for partition, offset in places[:PARTITIONS_LOGGED_MAX])
        log.warning(
            "records may be gone from an offset on topic=%s partitions=%d partition@offset=%s%s",
            topic, len(places), said, ",..." if len(places) > PARTITIONS_LOGGED_MAX else "",
        )  # fmt: skip
