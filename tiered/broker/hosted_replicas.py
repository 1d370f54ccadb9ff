"""The partitions of one broker: those that it leads, and those that it follows. Follows the committed image only.

A partition that cannot be opened or agreed with the bucket is not served; it is named with the reason and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence, Set

from tiered.broker.data_directory import DataDirectory, DirectoryState
from tiered.broker.log_store import OPENING_AT_ONCE, LogStore
from tiered.broker.suspects import SuspectedBrokers
from tiered.config.settings import Settings
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore
from tiered.errors import Code, Corrupt, Fenced, Refused, Unavailable
from tiered.hot.clean_shutdown import CleanLogEntry
from tiered.hot.disk_log import DiskLog
from tiered.hot.producer_state import ProducerLimits
from tiered.ids import UNKNOWN_END, PartitionId, TopicId, TopicPartition, incarnation_number
from tiered.metadata.changes import NO_LEADER, Change, PartitionChanged
from tiered.metadata.delta import Follow, Lead, compute_delta, hosted_partitions
from tiered.metadata.image import Image, Loss, PartitionImage, TopicImage
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.metrics import Metrics
from tiered.peers import Peers
from tiered.ports import World
from tiered.replication.become_leader import PreviousLeader, prepare_leader_log
from tiered.replication.cold_tier import ColdTier
from tiered.replication.disk_state import DiskState
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderPorts, LeaderReplica
from tiered.replication.leader_state import LeaderState
from tiered.replication.replica_events import ReplicaEvents
from tiered.replication.replica_fetcher import FetcherPorts, FetcherSettings, ReplicaFetchers

log = logging.getLogger(__name__)

DROPPED_AT_ONCE = 100
"""Partitions whose logs are put aside before others have their turn: some 7 ms."""


CONFIGURED_AT_ONCE = 2_000
"""Partitions of a topic that get other settings before others have their turn: some 10 ms."""
TASKS_AT_ONCE = 1_000
"""Most partitions that have a task while many are opened: a task takes more memory than an idle partition, and all are
made in one turn of the event loop."""


class HostedReplicas:
    """All replicas of one broker, by partition. The owner calls `subscribe` before the first start of a replica.

    Without `peers` no partition is followed. `newest_image` returns the newest image, which is ahead of the applied
    one.

    `unopened_leaders` and `unopened_followers` name the partitions that cannot be opened, each with the reason.
    `unreported_losses` are leaders of logs that may have lost records. Of `overstated_losses` less is lost than was
    reported. `suspect_partitions` are those whose logs the start could not prove whole.
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
        cold_tier: ColdTier,
        snapshot_store: CoordinatorSnapshotStore,
        peers: Peers | None,
        has_controller_contact: Callable[[], bool],
        newest_image: Callable[[], Image],
        suspected_brokers: SuspectedBrokers,
    ) -> None:
        self.settings = settings
        self.unopened_leaders: dict[TopicPartition, tuple[Lead, str]] = {}
        self.unopened_followers: dict[TopicPartition, tuple[Follow, str]] = {}
        self.suspect_partitions: frozenset[TopicPartition] = frozenset()
        self.unreported_losses: list[LeaderReplica] = []
        self.overstated_losses: list[LeaderReplica] = []
        self._incarnation = incarnation
        self._world = world
        self._disk = disk
        self._cold_tier = cold_tier
        self._snapshot_store = snapshot_store
        self._events: ReplicaEvents
        self._leader_ports: LeaderPorts
        self._has_controller_contact = has_controller_contact
        self._newest_image = newest_image
        self._image = Image()
        self._log_store = LogStore(
            world, metrics, directory, lambda: self.settings, incarnation, self._can_save_synced_entry
        )
        self.synced_entry_due = asyncio.Event()
        """Set when what is noted of synced logs may differ from what their settings ask for."""
        self.loss_report_due = asyncio.Event()
        """Set when there is a loss to tell."""
        self._leaders: dict[TopicPartition, LeaderReplica] = {}
        self._followers: dict[TopicPartition, FollowerReplica] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}
        """High watermarks of partitions between two roles."""
        self._clean_stop_epochs: dict[TopicPartition, int] = {}
        """The leader epoch after that in which the process before stopped cleanly, of partitions that it held alone."""
        self._never_tiered: set[TopicPartition] = set()
        """Partitions of which nothing was in the bucket when this broker, the last to lead them, stopped cleanly."""
        self._role_change_lock = asyncio.Lock()
        self._fetchers: ReplicaFetchers | None = None
        if peers is not None:
            ports = FetcherPorts(
                peers,
                self._find_address,
                cold_tier,
                world.clock,
                self._on_truncation_failed,
                suspected_brokers.connection_lost,
                suspected_brokers.answered,
            )
            self._fetchers = ReplicaFetchers(self._make_fetch_settings, ports, world.rng, metrics)
        gauge = metrics.gauge("tiered_partitions", "Partitions that this broker leads.")
        gauge.set_function(lambda: float(len(self._leaders)))
        gauge = metrics.gauge("tiered_partitions_followed", "Partitions that this broker follows.")
        gauge.set_function(lambda: float(len(self._followers)))
        gauge = metrics.gauge("tiered_producer_ids", "Producers that the logs of this broker remember.")
        gauge.set_function(lambda: float(self.producer_limits.producer_count))

    def subscribe(self, events: ReplicaEvents) -> None:
        """Reports all events of leader replicas to `events`."""
        self._events = events
        self._leader_ports = LeaderPorts(
            self._cold_tier, self._world.clock, self._disk, events, self._has_controller_contact, self.save_offsets
        )

    @property
    def producer_limits(self) -> ProducerLimits:
        """What the logs of this broker know of producers, and may."""
        return self._log_store.producer_limits

    def list_leaders(self) -> list[LeaderReplica]:
        """Every partition that this broker leads."""
        return list(self._leaders.values())

    def find_leader(self, tp: TopicPartition) -> LeaderReplica | None:
        """The partition, when it is led here."""
        return self._leaders.get(tp)

    def find_follower(self, tp: TopicPartition) -> FollowerReplica | None:
        """The partition, when it is followed here."""
        return self._followers.get(tp)

    def end_of(self, tp: TopicPartition, topic_id: TopicId) -> tuple[int, int]:
        """The epoch of the last record of a log and where it ends; (-1, 0) where nothing can be read."""
        return self._log_store.end_of(tp, topic_id)

    def is_suspect(self, tp: TopicPartition) -> bool:
        """Whether records of its log have rotted away, whatever else the start could prove."""
        return self._log_store.is_suspect(tp)

    @property
    def has_unchecked_logs(self) -> bool:
        """Whether a log that the start could not open has not been opened since."""
        return self._log_store.has_unchecked_logs

    async def clear_suspicion(self) -> None:
        """The cluster knows what every log lacks. `Unavailable` when that cannot be written down."""
        await self._log_store.clear_suspicion()

    def list_replicas(self) -> list[LeaderReplica | FollowerReplica]:
        """Every partition that has a log here, led or followed."""
        return [*self._leaders.values(), *self._followers.values()]

    def list_unserved(self) -> dict[str, str]:
        """Partitions that are neither led nor followed although they should be, with the reason."""
        return {str(tp): why for tp, (_, why) in (*self.unopened_leaders.items(), *self.unopened_followers.items())}

    async def run_fetchers(self) -> None:
        """Copies what is followed, until it is cancelled."""
        if self._fetchers is not None:
            await self._fetchers.run()

    def _make_fetch_settings(self) -> FetcherSettings:
        settings = self.settings
        return FetcherSettings(
            settings.node_id,
            incarnation_number(self._incarnation),
            settings.replica_fetch_wait_max_ms,
            settings.replica_fetch_response_max_bytes,
            settings.replica_fetch_max_bytes,
            settings.follower_replication_throttled_rate,
        )

    def _find_address(self, node_id: int) -> str:
        """Where another broker answers brokers."""
        broker = self._image.brokers.get(node_id)
        return broker.address(self.settings.inter_broker_listener_name) if broker is not None else ""

    # -- start --------------------------------------------------------------------------------------------------------

    async def recover(self, image: Image, state: DirectoryState) -> None:
        """Opens the logs of all partitions that have a replica here, as they were left, before anybody is told."""
        known = dict(hosted_partitions(image, self.settings.node_id))
        state = await self._log_store.recover(known, state)
        try:
            await self._disk.guard(self._log_store.save_synced_entries())
        except Unavailable as error:
            log.warning("which logs are whole at what they synced is noted later why=%s", error)
        before = image.brokers.get(self.settings.node_id)
        if before is None or before.alive or not state.clean:
            # That it is gone may have been said by another broker, which knows nothing of what was under way.
            return
        for tp, topic in known.items():
            left, last = state.clean_entries.get(tp), topic.partitions[tp.partition]
            if not self._is_sole_replica(last):
                continue
            self._clean_stop_epochs[tp] = last.leader_epoch + 1
            never_cold = left is not None and not left.has_cold_segments and left.leader_epoch == last.leader_epoch
            if never_cold and self._log_store.get(tp) is not None:
                self._never_tiered.add(tp)

    def _can_save_synced_entry(self, tp: TopicPartition) -> bool:
        """True if the log has its place and no loss of it is still to be told: until then the next start has to doubt
        it again."""
        replica = self._leaders.get(tp)
        if tp in self.suspect_partitions or (replica is None and tp not in self._followers):
            return False
        return replica is None or replica not in self.unreported_losses

    def has_clean_predecessor(self, tp: TopicPartition, leader_epoch: int) -> bool:
        """True if the leader before was the last process of this broker, and stopped cleanly. With other replicas, or
        under a later epoch, others may have led it since."""
        return self._clean_stop_epochs.get(tp) == leader_epoch

    @property
    def takeover_pending(self) -> bool:
        """True if an earlier leader may still write the manifest of a partition that is held here alone: then the next
        process must not take this one for the last that could."""
        known = hosted_partitions(self._image, self.settings.node_id)
        mine = (tp for tp, topic in known if self._is_sole_replica(topic.partitions[tp.partition]))
        return any((replica := self._leaders.get(tp)) is None or replica.takeover_pending for tp in mine)

    def _is_sole_replica(self, partition: PartitionImage) -> bool:
        """Whether nobody else can have led it."""
        return partition.replicas == (self.settings.node_id,)

    # -- following the image ------------------------------------------------------------------------------------------

    def stop_topics(self, deleted: Set[TopicId]) -> None:
        """Leads and follows nothing of these topics any more, in the turn in which their deletion is heard. The image
        is followed later; until then clients come who know another topic of the same name. So the replica at a name
        is always of the topic that has the name in the newest image."""
        for replica in self.list_leaders():
            if replica.topic_id in deleted:
                self.resign(replica.tp, _make_deleted_refusal(replica.tp))
        for copy in list(self._followers.values()):
            if copy.topic_id in deleted:
                self._close_follower(copy.tp)
        self.unopened_leaders = {
            tp: each for tp, each in self.unopened_leaders.items() if each[0].topic_id not in deleted
        }
        self.unopened_followers = {
            tp: each for tp, each in self.unopened_followers.items() if each[0].topic_id not in deleted
        }

    def resign_superseded(self, image: Image, changes: Sequence[Change]) -> None:
        """Leads nothing any more that `image` gives to another broker, or to this one under another epoch, in the turn
        in which that is heard: until it is acted on, a leader that was replaced uncleanly would acknowledge what the
        next one lacks (rule R6). Without `changes` the image came whole."""
        changed = (PartitionId(each.topic_id, each.partition) for each in changes if isinstance(each, PartitionChanged))
        for partition_id in changed if changes else [replica.partition_id for replica in self.list_leaders()]:
            topic = image.topics_by_id.get(partition_id.topic_id)
            replica = (
                self._leaders.get(TopicPartition(topic.name, partition_id.partition)) if topic is not None else None
            )
            if topic is None or replica is None:
                continue
            now = topic.partitions[partition_id.partition]
            if (now.leader, now.leader_epoch) != (self.settings.node_id, replica.leader_epoch):
                self.resign(replica.tp, Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{replica.tp} is led elsewhere now"))

    def _is_deleted(self, topic_id: TopicId) -> bool:
        """Whether its deletion was heard while its log was opened."""
        return topic_id not in self._newest_image().topics_by_id

    async def apply_image(self, old: Image, new: Image, settings: Settings) -> None:
        """Does what it takes to get from `old` to `new`: drop, resign, configure, lead."""
        async with self._role_change_lock:
            await self._apply_image(old, new, settings)

    async def _apply_image(self, old: Image, new: Image, settings: Settings) -> None:
        delta = compute_delta(old, new, settings.node_id, self._incarnation)
        self.settings, self._image = settings, new
        for number, tp in enumerate(delta.dropped, 1):
            if number % DROPPED_AT_ONCE == 0:
                await asyncio.sleep(0)
            topic_id = old.topics[tp.topic].topic_id
            self._drop(tp, topic_id, moved=topic_id in new.topics_by_id)
        for tp in delta.resigned:
            self.resign(tp, Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{tp} is led elsewhere now"))
        for each in delta.leaders:
            if each.tp in self._leaders:  # by turns that are over already
                self.resign(each.tp, Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{each.tp} is led under another epoch now"))
        for tp in (*(each.tp for each in delta.followers), *(each.tp for each in delta.leaders)):
            self._close_follower(tp)
        for name in new.topics if delta.broker_configs_changed else delta.configured_topics:
            await self._configure(new.topics[name])
        for tp, partition in delta.isr_changed:
            if tp in self._leaders:
                self._leaders[tp].apply_isr(partition.isr, partition.replicas, partition.partition_epoch)
        await self._open_followers(new, delta.followers)
        await self._open_leaders(new, delta.leaders)
        for tp, loss in delta.loss_changes:
            if tp in self._leaders:
                self._leaders[tp].possible_loss = loss._asdict() if loss is not None else None

    async def retry_unopened(self, image: Callable[[], Image]) -> None:
        """Tries again to lead and to follow what could not be opened. Not while the image is followed: what is opened
        here may be deleted there, or led under a later epoch."""
        if self.unopened_leaders or self.unopened_followers:
            async with self._role_change_lock:
                await self._open_followers(image(), [follow for follow, _ in self.unopened_followers.values()])
                await self._open_leaders(image(), [lead for lead, _ in self.unopened_leaders.values()])

    async def wait_applied(self) -> None:
        """Returns once no image is being followed: all that it says is led, or named in `unopened`."""
        async with self._role_change_lock:
            return

    async def _open_leaders(self, image: Image, leads: Sequence[Lead]) -> None:
        self._snapshot_store.invalidate_listing()
        places = asyncio.Semaphore(OPENING_AT_ONCE)
        for first in range(0, len(leads), TASKS_AT_ONCE):
            some = leads[first : first + TASKS_AT_ONCE]
            await asyncio.gather(*(self._open_leader(image, lead, places) for lead in some))

    async def _open_leader(self, image: Image, lead: Lead, slots: asyncio.Semaphore) -> None:
        topic = image.topics_by_id.get(lead.topic_id)
        if topic is None or topic.partitions[lead.tp.partition].leader_epoch != lead.leader_epoch:
            return  # the image went on, and is about to be followed
        async with slots:
            if lead.is_new:
                await asyncio.sleep(0)  # a thousand new logs wait for nothing: others have their turn between them
            try:
                replica = await self._become_leader(topic, lead)
                if replica.log.truncations.is_unsettled:  # else parts of what was cut off could come back
                    await self._disk.flush(replica.log)
                    await self._log_store.save_offsets()
            except (Unavailable, Corrupt, Fenced, Refused) as error:
                _log_failure("served", lead.tp, error, self.unopened_leaders.get(lead.tp))
                self._handle_write_failure(lead.tp, not isinstance(error, Unavailable) or error.final, str(error))
                if not self._is_deleted(lead.topic_id):
                    self.unopened_leaders[lead.tp] = (lead, str(error))
                return
        if self._is_deleted(lead.topic_id):
            return  # its log goes when that is followed
        self._leaders[lead.tp] = replica
        self.unopened_leaders.pop(lead.tp, None)
        told, known = image.losses.get(replica.partition_id), topic.partitions[lead.tp.partition]
        replica.possible_loss = told[-1]._asdict() if told else None
        if replica.restarted_at_cold_end or (lead.tp in self.suspect_partitions and not lead.is_new):
            self.unreported_losses.append(replica)
            self.loss_report_due.set()
            if is_loss_unreported(known.loss, replica):
                replica.block_appends()
            if known.stored_end == UNKNOWN_END:
                made = Loss(lead.leader_epoch, replica.epoch_start, self._world.clock.wall_ms())
                replica.possible_loss = made._asdict()
        elif is_loss_overstated(known.loss, replica):
            self.overstated_losses.append(replica)
        self._check_synced_entry(replica.log)
        self._events.on_lead(replica)

    def _handle_write_failure(self, tp: TopicPartition, final: bool, why: str) -> None:
        """A log that broke while it was changed: on a full disk it is opened anew, on a failing one nothing is."""
        hot = self._log_store.get(tp)
        if hot is None or not hot.write_failure:
            return
        if final:
            self._disk.mark_dead(why)
        else:
            self._disk.mark_full(why)
            self._log_store.close_broken(tp)

    async def _become_leader(self, topic: TopicImage, lead: Lead) -> LeaderReplica:
        known = topic.partitions[lead.tp.partition]
        hot = await self._log_store.open_or_create(lead.tp, topic, is_new=lead.is_new)
        partition_id = PartitionId(lead.topic_id, lead.tp.partition)
        past = (
            PreviousLeader.STOPPED_CLEANLY
            if self.has_clean_predecessor(lead.tp, lead.leader_epoch)
            else PreviousLeader.MAY_STILL_WRITE
        )
        if lead.is_new or lead.tp in self._never_tiered:
            past = PreviousLeader.NONE
        elif lead.was_in_sync:
            past = PreviousLeader.WAS_IN_SYNC_WITH
        self._never_tiered.discard(lead.tp)
        if topic.name == OFFSETS_TOPIC and not lead.is_new:
            begun = await self._snapshot_store.reconcile(hot, partition_id)
        else:
            begun = await prepare_leader_log(hot, self._cold_tier, partition_id, topic.name, lead.leader_epoch, past)
        cold_end = begun.manifest.cold_end_offset if begun.manifest is not None else 0
        committed = max(self._high_watermarks.pop(lead.tp, 0), cold_end, hot.start_offset)
        return LeaderReplica(
            lead.tp, lead.topic_id, hot,
            LeaderState(
                self.settings.node_id, lead.leader_epoch, known.isr, replicas=known.replicas,
                epoch_start=hot.end_offset, partition_epoch=known.partition_epoch,
                high_watermark=min(committed, hot.end_offset), began_ns=self._world.clock.mono_ns(),
            ),
            begun, self._leader_ports,
        )  # fmt: skip

    async def _open_followers(self, image: Image, follows: Sequence[Follow]) -> None:
        places = asyncio.Semaphore(OPENING_AT_ONCE)
        for first in range(0, len(follows), TASKS_AT_ONCE):
            some = follows[first : first + TASKS_AT_ONCE]
            await asyncio.gather(*(self._open_follower(image, follow, places) for follow in some))

    async def _open_follower(self, image: Image, follow: Follow, slots: asyncio.Semaphore) -> None:
        tp, topic = follow.tp, image.topics_by_id.get(follow.topic_id)
        before = self.unopened_followers.pop(tp, None)
        if topic is None or topic.partitions[tp.partition].leader_epoch != follow.leader_epoch:
            return  # the image went on, and is about to be followed
        async with slots:
            if follow.is_new:
                await asyncio.sleep(0)  # as with those that are led
            try:
                hot = await self._log_store.open_or_create(tp, topic, is_new=follow.is_new)
            except (Unavailable, Corrupt, Refused) as error:
                _log_failure("followed", tp, error, before)
                if isinstance(error, Unavailable) and error.final:
                    self._disk.mark_dead(str(error))
                if not self._is_deleted(follow.topic_id):
                    self.unopened_followers[tp] = (follow, str(error))
                return
        if self._is_deleted(follow.topic_id):
            return  # as with those that are led
        if follow.leader != NO_LEADER:
            self.suspect_partitions -= {tp}  # what it lacks it copies again; until then it counts for nothing
        copy = self._followers[tp] = FollowerReplica(
            tp, follow.topic_id, hot, follow.leader, follow.leader_epoch,
            high_watermark=self._high_watermarks.pop(tp, 0), clock=self._world.clock, disk=self._disk,
            save_offsets=self.save_offsets,
        )  # fmt: skip
        self._check_synced_entry(hot)
        if self._fetchers is not None and follow.leader != NO_LEADER:
            self._fetchers.follow(copy)

    def _close_follower(self, tp: TopicPartition) -> None:
        """It is followed no more, or another leader is."""
        self.unopened_followers.pop(tp, None)
        copy = self._followers.pop(tp, None)
        if copy is not None:
            copy.stop()
            self._high_watermarks[tp] = copy.high_watermark

    def _on_truncation_failed(self, follower: FollowerReplica, final: bool) -> None:
        """A cut of its log failed half way. On a full disk it is opened anew with the next look at all logs."""
        if self._followers.get(follower.tp) is follower:
            self._close_follower(follower.tp)
            follow = Follow(follower.tp, follower.topic_id, follower.leader, follower.leader_epoch)
            self.unopened_followers[follower.tp] = (follow, follower.log.write_failure)
            self._handle_write_failure(follower.tp, final, follower.log.write_failure)

    async def _configure(self, topic: TopicImage) -> None:
        config = self._log_store.get_config(topic)
        for p in range(len(topic.partitions)):
            if p and p % CONFIGURED_AT_ONCE == 0:
                await asyncio.sleep(0)
            tp = TopicPartition(topic.name, p)
            hot = self._log_store.configure(tp, config)
            if hot is not None:
                self._check_synced_entry(hot)
            if tp in self._leaders:
                self._leaders[tp].on_config_changed()
                self._events.on_config_changed(self._leaders[tp])

    def _check_synced_entry(self, hot: DiskLog) -> None:
        """Has it noted soon whether the log is whole at what it syncs, also where nobody writes."""
        if hot.synced_entry.is_due:
            self.synced_entry_due.set()

    def resign(self, tp: TopicPartition, why: Refused) -> None:
        """Not led here any more; who waits is answered with `why`."""
        self.unopened_leaders.pop(tp, None)
        replica = self._leaders.pop(tp, None)
        if replica is not None:
            self._high_watermarks[tp] = replica.high_watermark
            replica.resign(why)
            self._cold_tier.uploader.forget(replica.partition_id)
            self._events.on_resign(replica)

    def on_fenced(self, replica: LeaderReplica, error: Fenced) -> None:
        """A newer leader wrote its epoch into the manifest. What comes late for a deleted topic is not meant for the
        one that has its name now."""
        log.error("fenced partition=%s why=%s", replica.tp, error)
        if self._leaders.get(replica.tp) is replica:
            self.resign(replica.tp, Refused(Code.NOT_LEADER_OR_FOLLOWER, str(error)))

    def _drop(self, tp: TopicPartition, topic_id: TopicId, *, moved: bool) -> None:
        self.resign(
            tp, Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{tp} is elsewhere now") if moved else _make_deleted_refusal(tp)
        )
        self._cold_tier.manifests.forget(PartitionId(topic_id, tp.partition))
        self._close_follower(tp)
        self._high_watermarks.pop(tp, None)
        self._never_tiered.discard(tp)
        self._log_store.drop(tp, topic_id)

    # -- the end ------------------------------------------------------------------------------------------------------

    def refuse(self, why: Refused) -> None:
        """Answers everybody with `why` from now on; the logs stay as they are."""
        for replica in self._leaders.values():
            replica.resign(why)
        for copy in self._followers.values():
            copy.stop()

    async def save_offsets(self) -> None:
        """Writes down how far each log is durable and where it starts. `Unavailable`."""
        await self._disk.guard(self._log_store.save_offsets())

    async def close_clean(self) -> bool:
        """Whether all logs are durable, closed and marked so: the next start then has nothing to check."""
        return await self._log_store.close_clean(self._make_clean_entry)

    def _make_clean_entry(self, tp: TopicPartition, hot: DiskLog) -> CleanLogEntry | None:
        """What the next start need not read anew."""
        replica, copy = self._leaders.get(tp), self._followers.get(tp)
        if replica is not None:
            return hot.make_clean_entry(replica.leader_epoch, replica.manifest is not None or replica.takeover_pending)
        return hot.make_clean_entry(copy.leader_epoch, True) if copy is not None else None


def _make_deleted_refusal(tp: TopicPartition) -> Refused:
    return Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {tp.topic!r} was deleted")


def is_loss_unreported(reported: Loss | None, replica: LeaderReplica) -> bool:
    """True if the cluster still has to be told that this leader lacks what was behind its start."""
    return (
        reported is None or reported.leader_epoch < replica.leader_epoch or reported.from_offset > replica.epoch_start
    )


def is_loss_overstated(reported: Loss | None, replica: LeaderReplica) -> bool:
    """True if a loss reaches below what was in the bucket when this leader began: the controller did not know."""
    return (
        reported is not None
        and reported.leader_epoch == replica.leader_epoch
        and reported.from_offset < replica.initial_cold_end_offset
    )


def _log_failure(role: str, tp: TopicPartition, error: Exception, before: tuple[object, str] | None) -> None:
    if before is None or before[1] != str(error):  # it is tried again and again
        log.error("partition is not %s partition=%s why=%s", role, tp, error)
