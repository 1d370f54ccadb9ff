"""The partitions of one broker: those that it leads, and those that it follows. Follows the committed image only.

A partition that cannot be opened or agreed with the bucket is not served; it is named with the reason and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence, Set

from tiered.broker.data_directory import DataDirectory, Found
from tiered.broker.log_store import OPENING_AT_ONCE, Logs
from tiered.broker.suspects import Doubts
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
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.leader_state import LeaderState
from tiered.replication.replica_fetcher import FetcherSettings, ReplicaFetchers, FetcherPorts
from tiered.replication.storage import ColdTier, DiskState

log = logging.getLogger(__name__)

DROPPED_AT_ONCE = 100
"""Partitions whose logs are put aside before others have their turn: some 7 ms."""


class Partitions:
    """`begun` hears of each replica that is led, `closed` of each closed segment, `configured` of each with other
    settings, `forgotten` of each replica that is led no more, `joinable` of one with a follower that could be in sync.
    Without `peers` nothing is followed. `heard` is the newest image, which runs ahead of the one that is followed.

    `unopened` names what should be led and cannot be, with the reason, `uncopied` what should be followed; `unreported`
    what is led from a log that may have lost records, `overstated` that of which less is lost than was told.
    `doubtful` are the partitions whose logs the start could not prove whole.
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
        images: CoordinatorSnapshotStore,
        peers: Peers | None,
        begun: Callable[[LeaderReplica], None],
        closed: Callable[[LeaderReplica], None],
        configured: Callable[[LeaderReplica], None],
        forgotten: Callable[[LeaderReplica], None],
        joinable: Callable[[LeaderReplica], None],
        in_touch: Callable[[], bool],
        heard: Callable[[], Image],
        doubts: Doubts,
    ) -> None:
        self.settings = settings
        self.unopened: dict[TopicPartition, tuple[Lead, str]] = {}
        self.uncopied: dict[TopicPartition, tuple[Follow, str]] = {}
        self.doubtful: frozenset[TopicPartition] = frozenset()
        self.unreported: list[LeaderReplica] = []
        self.overstated: list[LeaderReplica] = []
        self._incarnation = incarnation
        self._world = world
        self._disk = disk
        self._cold = cold
        self._images = images
        self._begun = begun
        self._closed = closed
        self._configured = configured
        self._forgotten = forgotten
        self._joinable = joinable
        self._in_touch = in_touch
        self._heard = heard
        self._image = Image()
        self._logs = Logs(world, metrics, directory, lambda: self.settings, incarnation, self._may_note_synced)
        self.synced_due = asyncio.Event()
        """Set when what is noted of synced logs may differ from what their settings ask for."""
        self.untold_due = asyncio.Event()
        """Set when there is a loss to tell."""
        self._replicas: dict[TopicPartition, LeaderReplica] = {}
        self._copies: dict[TopicPartition, FollowerReplica] = {}
        self._committed: dict[TopicPartition, int] = {}
        """High watermarks of partitions between two roles."""
        self._settled: dict[TopicPartition, int] = {}
        """The leader epoch after that in which the process before stopped cleanly, of partitions that it held alone."""
        self._never_cold: set[TopicPartition] = set()
        """Partitions of which nothing was in the bucket when this broker, the last to lead them, stopped cleanly."""
        self._moving = asyncio.Lock()
        self._fetchers: ReplicaFetchers | None = None
        if peers is not None:
            ports = FetcherPorts(peers, self._address_of, cold, world.clock, self._broken, doubts.lost, doubts.heard)
            self._fetchers = ReplicaFetchers(self._asking, ports, world.rng, metrics)
        gauge = metrics.gauge("tiered_partitions", "Partitions that this broker leads.")
        gauge.read(lambda: float(len(self._replicas)))
        gauge = metrics.gauge("tiered_partitions_followed", "Partitions that this broker follows.")
        gauge.read(lambda: float(len(self._copies)))
        gauge = metrics.gauge("tiered_producer_ids", "Producers that the logs of this broker remember.")
        gauge.read(lambda: float(self.producer_limits.producer_count))

    @property
    def producer_limits(self) -> ProducerLimits:
        """What the logs of this broker know of producers, and may."""
        return self._logs.producer_limits

    def led(self) -> list[LeaderReplica]:
        """Every partition that this broker leads."""
        return list(self._replicas.values())

    def get(self, at: TopicPartition) -> LeaderReplica | None:
        """The partition, when it is led here."""
        return self._replicas.get(at)

    def copied(self, at: TopicPartition) -> FollowerReplica | None:
        """The partition, when it is followed here."""
        return self._copies.get(at)

    def end_of(self, at: TopicPartition, topic_id: TopicId) -> tuple[int, int]:
        """The epoch of the last record of a log and where it ends; (-1, 0) where nothing can be read."""
        return self._logs.end_of(at, topic_id)

    def is_doubted(self, at: TopicPartition) -> bool:
        """Whether records of its log have rotted away, whatever else the start could prove."""
        return self._logs.is_doubted(at)

    @property
    def unjudged(self) -> bool:
        """Whether a log that the start could not open has not been opened since."""
        return self._logs.unjudged

    async def believe(self) -> None:
        """The cluster knows what every log lacks. `Unavailable` when that cannot be written down."""
        await self._logs.believe()

    def held(self) -> list[LeaderReplica | FollowerReplica]:
        """Every partition that has a log here, led or followed."""
        return [*self._replicas.values(), *self._copies.values()]

    def troubles(self) -> dict[str, str]:
        """Partitions that are neither led nor followed although they should be, with the reason."""
        return {str(at): why for at, (_, why) in (*self.unopened.items(), *self.uncopied.items())}

    async def copy(self) -> None:
        """Copies what is followed, until it is cancelled."""
        if self._fetchers is not None:
            await self._fetchers.run()

    def _asking(self) -> FetcherSettings:
        settings = self.settings
        return FetcherSettings(
            settings.node_id,
            incarnation_number(self._incarnation),
            settings.replica_fetch_wait_max_ms,
            settings.replica_fetch_response_max_bytes,
            settings.replica_fetch_max_bytes,
            settings.follower_replication_throttled_rate,
        )

    def _address_of(self, node_id: int) -> str:
        """Where another broker answers brokers."""
        broker = self._image.brokers.get(node_id)
        return broker.address(self.settings.inter_broker_listener_name) if broker is not None else ""

    # -- start --------------------------------------------------------------------------------------------------------

    async def recover(self, image: Image, found: Found) -> None:
        """Opens the logs of all partitions that have a replica here, as they were left, before anybody is told."""
        known = dict(hosted_partitions(image, self.settings.node_id))
        found = await self._logs.recover(known, found)
        try:
            await self._disk.guard(self._logs.renew_synced())
        except Unavailable as error:
            log.warning("which logs are whole at what they synced is noted later why=%s", error)
        before = image.brokers.get(self.settings.node_id)
        if before is None or before.alive or not found.clean:
            # That it is gone may have been said by another broker, which knows nothing of what was under way.
            return
        for at, topic in known.items():
            left, last = found.left.get(at), topic.partitions[at.partition]
            if not self._alone(last):
                continue
            self._settled[at] = last.leader_epoch + 1
            never_cold = left is not None and not left.has_cold_segments and left.leader_epoch == last.leader_epoch
            if never_cold and self._logs.get(at) is not None:
                self._never_cold.add(at)

    def _may_note_synced(self, at: TopicPartition) -> bool:
        """True if the log has its place and no loss of it is still to be told: until then the next start has to doubt
        it again."""
        replica = self._replicas.get(at)
        if at in self.doubtful or (replica is None and at not in self._copies):
            return False
        return replica is None or replica not in self.unreported

    def is_settled(self, at: TopicPartition, leader_epoch: int) -> bool:
        """True if the leader before was the last process of this broker, and stopped cleanly. With other replicas, or
        under a later epoch, others may have led it since."""
        return self._settled.get(at) == leader_epoch

    @property
    def owes(self) -> bool:
        """True if an earlier leader may still write the manifest of a partition that is held here alone: then the next
        process must not take this one for the last that could."""
        known = hosted_partitions(self._image, self.settings.node_id)
        mine = (at for at, topic in known if self._alone(topic.partitions[at.partition]))
        return any((replica := self._replicas.get(at)) is None or replica.takeover_pending for at in mine)

    def _alone(self, partition: PartitionImage) -> bool:
        """Whether nobody else can have led it."""
        return partition.replicas == (self.settings.node_id,)

    # -- following the image ------------------------------------------------------------------------------------------

    def stop(self, deleted: Set[TopicId]) -> None:
        """Leads and follows nothing of these topics any more, in the turn in which their deletion is heard. The image
        is followed later; until then clients come who know another topic of the same name. So the replica at a name
        is always of the topic that has the name in the newest image."""
        for replica in self.led():
            if replica.topic_id in deleted:
                self.resign(replica.at, _deleted(replica.at))
        for copy in list(self._copies.values()):
            if copy.topic_id in deleted:
                self._end_copy(copy.at)
        self.unopened = {at: each for at, each in self.unopened.items() if each[0].topic_id not in deleted}
        self.uncopied = {at: each for at, each in self.uncopied.items() if each[0].topic_id not in deleted}

    def depose(self, image: Image, changes: Sequence[Change]) -> None:
        """Leads nothing any more that `image` gives to another broker, or to this one under another epoch, in the turn
        in which that is heard: until it is acted on, a leader that was replaced uncleanly would acknowledge what the
        next one lacks (rule R6). Without `changes` the image came whole."""
        changed = (PartitionId(each.topic_id, each.partition) for each in changes if isinstance(each, PartitionChanged))
        for pid in changed if changes else [replica.pid for replica in self.led()]:
            topic = image.topics_by_id.get(pid.topic_id)
            replica = self._replicas.get(TopicPartition(topic.name, pid.partition)) if topic is not None else None
            if topic is None or replica is None:
                continue
            now = topic.partitions[pid.partition]
            if (now.leader, now.leader_epoch) != (self.settings.node_id, replica.leader_epoch):
                self.resign(replica.at, Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{replica.at} is led elsewhere now"))

    def _is_deleted(self, topic_id: TopicId) -> bool:
        """Whether its deletion was heard while its log was opened."""
        return topic_id not in self._heard().topics_by_id

    async def follow(self, old: Image, new: Image, settings: Settings) -> None:
        """Does what it takes to get from `old` to `new`: drop, resign, configure, lead."""
        async with self._moving:
            await self._follow(old, new, settings)

    async def _follow(self, old: Image, new: Image, settings: Settings) -> None:
        delta = compute_delta(old, new, settings.node_id, self._incarnation)
        self.settings, self._image = settings, new
        for number, at in enumerate(delta.dropped, 1):
            if number % DROPPED_AT_ONCE == 0:
                await asyncio.sleep(0)
            topic_id = old.topics[at.topic].topic_id
            self._drop(at, topic_id, moved=topic_id in new.topics_by_id)
        for at in delta.resigned:
            self.resign(at, Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{at} is led elsewhere now"))
        for each in delta.leaders:
            if each.at in self._replicas:  # by turns that are over already
                self.resign(each.at, Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{each.at} is led under another epoch now"))
        for at in (*(each.at for each in delta.followers), *(each.at for each in delta.leaders)):
            self._end_copy(at)
        for name in new.topics if delta.broker_configs_changed else delta.configured_topics:
            self._configure(new.topics[name])
        for at, partition in delta.isr_changed:
            if at in self._replicas:
                self._replicas[at].apply_isr(partition.isr, partition.replicas, partition.partition_epoch)
        await self._copy_all(new, delta.followers)
        await self._lead_all(new, delta.leaders)
        for at, loss in delta.loss_changes:
            if at in self._replicas:
                self._replicas[at].possible_loss = loss._asdict() if loss is not None else None

    async def open_missing(self, image: Callable[[], Image]) -> None:
        """Tries again to lead and to follow what could not be opened. Not while the image is followed: what is opened
        here may be deleted there, or led under a later epoch."""
        if self.unopened or self.uncopied:
            async with self._moving:
                await self._copy_all(image(), [follow for follow, _ in self.uncopied.values()])
                await self._lead_all(image(), [lead for lead, _ in self.unopened.values()])

    async def settled(self) -> None:
        """Returns once no image is being followed: all that it says is led, or named in `unopened`."""
        async with self._moving:
            return

    async def _lead_all(self, image: Image, leads: Iterable[Lead]) -> None:
        self._images.invalidate_listing()
        places = asyncio.Semaphore(OPENING_AT_ONCE)
        await asyncio.gather(*(self._lead(image, lead, places) for lead in leads))

    async def _lead(self, image: Image, lead: Lead, places: asyncio.Semaphore) -> None:
        topic = image.topics_by_id.get(lead.topic_id)
        if topic is None or topic.partitions[lead.at.partition].leader_epoch != lead.leader_epoch:
            return  # the image went on, and is about to be followed
        async with places:
            if lead.is_new:
                await asyncio.sleep(0)  # a thousand new logs wait for nothing: others have their turn between them
            try:
                replica = await self._begin(topic, lead)
                if replica.log.truncations.is_unsettled:  # else parts of what was cut off could come back
                    await self._disk.flush(replica.log)
                    await self._logs.save_offsets()
            except (Unavailable, Corrupt, Fenced, Refused) as error:
                _say("served", lead.at, error, self.unopened.get(lead.at))
                self._judge(lead.at, not isinstance(error, Unavailable) or error.final, str(error))
                if not self._is_deleted(lead.topic_id):
                    self.unopened[lead.at] = (lead, str(error))
                return
        if self._is_deleted(lead.topic_id):
            return  # its log goes when that is followed
        self._replicas[lead.at] = replica
        self.unopened.pop(lead.at, None)
        told, known = image.losses.get(replica.pid), topic.partitions[lead.at.partition]
        replica.possible_loss = told[-1]._asdict() if told else None
        if replica.restarted_at_cold_end or (lead.at in self.doubtful and not lead.is_new):
            self.unreported.append(replica)
            self.untold_due.set()
            if is_untold(known.loss, replica):
                replica.block_appends()
            if known.stored_end == UNKNOWN_END:
                made = Loss(lead.leader_epoch, replica.epoch_start, self._world.clock.wall_ms())
                replica.possible_loss = made._asdict()
        elif is_told_too_low(known.loss, replica):
            self.overstated.append(replica)
        self._look_at(replica.log)
        self._begun(replica)

    def _judge(self, at: TopicPartition, final: bool, why: str) -> None:
        """A log that broke while it was changed: on a full disk it is opened anew, on a failing one nothing is."""
        hot = self._logs.get(at)
        if hot is None or not hot.write_failure:
            return
        if final:
            self._disk.mark_dead(why)
        else:
            self._disk.mark_full(why)
            self._logs.close_broken(at)

    async def _begin(self, topic: TopicImage, lead: Lead) -> LeaderReplica:
        known = topic.partitions[lead.at.partition]
        hot = await self._logs.begin(lead.at, topic, fresh=lead.is_new)
        pid = LeaderReplica.id_of(lead.at, lead.topic_id)
        past = PreviousLeader.STOPPED_CLEANLY if self.is_settled(lead.at, lead.leader_epoch) else PreviousLeader.MAY_STILL_WRITE
        if lead.is_new or lead.at in self._never_cold:
            past = PreviousLeader.NONE
        elif lead.was_in_sync:
            past = PreviousLeader.WAS_IN_SYNC_WITH
        self._never_cold.discard(lead.at)
        if topic.name == OFFSETS_TOPIC and not lead.is_new:
            begun = await self._images.reconcile(hot, pid)
        else:
            begun = await prepare_leader_log(hot, self._cold, pid, topic.name, lead.leader_epoch, past)
        cold_end = begun.manifest.cold_end_offset if begun.manifest is not None else 0
        committed = max(self._committed.pop(lead.at, 0), cold_end, hot.start_offset)
        return LeaderReplica(
            lead.at, lead.topic_id, hot,
            LeaderState(
                self.settings.node_id, lead.leader_epoch, known.isr, replicas=known.replicas,
                epoch_start=hot.end_offset, partition_epoch=known.partition_epoch,
                high_watermark=min(committed, hot.end_offset), began_ns=self._world.clock.mono_ns(),
            ),
            cold=self._cold, start=begun, clock=self._world.clock, disk=self._disk,
            on_segment_closed=self._closed, on_follower_caught_up=self._joinable, has_controller_contact=self._in_touch,
            save_offsets=self.save_offsets,
        )  # fmt: skip

    async def _copy_all(self, image: Image, follows: Iterable[Follow]) -> None:
        places = asyncio.Semaphore(OPENING_AT_ONCE)
        await asyncio.gather(*(self._copy(image, follow, places) for follow in follows))

    async def _copy(self, image: Image, follow: Follow, places: asyncio.Semaphore) -> None:
        at, topic = follow.at, image.topics_by_id.get(follow.topic_id)
        before = self.uncopied.pop(at, None)
        if topic is None or topic.partitions[at.partition].leader_epoch != follow.leader_epoch:
            return  # the image went on, and is about to be followed
        async with places:
            if follow.is_new:
                await asyncio.sleep(0)  # as with those that are led
            try:
                hot = await self._logs.begin(at, topic, fresh=follow.is_new)
            except (Unavailable, Corrupt, Refused) as error:
                _say("followed", at, error, before)
                if isinstance(error, Unavailable) and error.final:
                    self._disk.mark_dead(str(error))
                if not self._is_deleted(follow.topic_id):
                    self.uncopied[at] = (follow, str(error))
                return
        if self._is_deleted(follow.topic_id):
            return  # as with those that are led
        if follow.leader != NO_LEADER:
            self.doubtful -= {at}  # what it lacks it copies again; until then it counts for nothing
        copy = self._copies[at] = FollowerReplica(
            at, follow.topic_id, hot, follow.leader, follow.leader_epoch,
            high_watermark=self._committed.pop(at, 0), clock=self._world.clock, disk=self._disk, save_offsets=self.save_offsets,
        )  # fmt: skip
        self._look_at(hot)
        if self._fetchers is not None and follow.leader != NO_LEADER:
            self._fetchers.follow(copy)

    def _end_copy(self, at: TopicPartition) -> None:
        """It is followed no more, or another leader is."""
        self.uncopied.pop(at, None)
        copy = self._copies.pop(at, None)
        if copy is not None:
            copy.stop()
            self._committed[at] = copy.high_watermark

    def _broken(self, copy: FollowerReplica, final: bool) -> None:
        """A cut of its log failed half way. On a full disk it is opened anew with the next look at all logs."""
        if self._copies.get(copy.at) is copy:
            self._end_copy(copy.at)
            follow = Follow(copy.at, copy.topic_id, copy.leader, copy.leader_epoch)
            self.uncopied[copy.at] = (follow, copy.log.write_failure)
            self._judge(copy.at, final, copy.log.write_failure)

    def _configure(self, topic: TopicImage) -> None:
        config = self._logs.config_of(topic)
        for p in range(len(topic.partitions)):
            at = TopicPartition(topic.name, p)
            hot = self._logs.configure(at, config)
            if hot is not None:
                self._look_at(hot)
            if at in self._replicas:
                self._replicas[at].on_config_changed()
                self._configured(self._replicas[at])

    def _look_at(self, hot: DiskLog) -> None:
        """Has it noted soon whether the log is whole at what it syncs, also where nobody writes."""
        if hot.synced_entry.is_due:
            self.synced_due.set()

    def resign(self, at: TopicPartition, why: Refused) -> None:
        """Not led here any more; who waits is answered with `why`."""
        self.unopened.pop(at, None)
        replica = self._replicas.pop(at, None)
        if replica is not None:
            self._committed[at] = replica.high_watermark
            replica.resign(why)
            self._cold.uploader.forget(replica.pid)
            self._forgotten(replica)

    def fenced(self, replica: LeaderReplica, error: Fenced) -> None:
        """A newer leader wrote its epoch into the manifest. What comes late for a deleted topic is not meant for the
        one that has its name now."""
        log.error("fenced partition=%s why=%s", replica.at, error)
        if self._replicas.get(replica.at) is replica:
            self.resign(replica.at, Refused(Code.NOT_LEADER_OR_FOLLOWER, str(error)))

    def _drop(self, at: TopicPartition, topic_id: TopicId, *, moved: bool) -> None:
        self.resign(at, Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{at} is elsewhere now") if moved else _deleted(at))
        self._cold.manifests.forget(LeaderReplica.id_of(at, topic_id))
        self._end_copy(at)
        self._committed.pop(at, None)
        self._never_cold.discard(at)
        self._logs.drop(at, topic_id)

    # -- the end ------------------------------------------------------------------------------------------------------

    def refuse(self, why: Refused) -> None:
        """Answers everybody with `why` from now on; the logs stay as they are."""
        for replica in self._replicas.values():
            replica.resign(why)
        for copy in self._copies.values():
            copy.stop()

    async def save_offsets(self) -> None:
        """Writes down how far each log is durable and where it starts. `Unavailable`."""
        await self._disk.guard(self._logs.save_offsets())

    async def close_clean(self) -> bool:
        """Whether all logs are durable, closed and marked so: the next start then has nothing to check."""
        return await self._logs.close_clean(self._left)

    def _left(self, at: TopicPartition, hot: DiskLog) -> CleanLogEntry | None:
        """What the next start need not read anew."""
        replica, copy = self._replicas.get(at), self._copies.get(at)
        if replica is not None:
            return hot.make_clean_entry(replica.leader_epoch, replica.manifest is not None or replica.takeover_pending)
        return hot.make_clean_entry(copy.leader_epoch, True) if copy is not None else None


def _deleted(at: TopicPartition) -> Refused:
    return Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {at.topic!r} was deleted")


def is_untold(told: Loss | None, replica: LeaderReplica) -> bool:
    """True if the cluster still has to be told that this leader lacks what was behind its start."""
    return told is None or told.leader_epoch < replica.leader_epoch or told.from_offset > replica.epoch_start


def is_told_too_low(told: Loss | None, replica: LeaderReplica) -> bool:
    """True if a loss reaches below what was in the bucket when this leader began: the controller did not know."""
    return told is not None and told.leader_epoch == replica.leader_epoch and told.from_offset < replica.initial_cold_end_offset


def _say(done: str, at: TopicPartition, error: Exception, before: tuple[object, str] | None) -> None:
    if before is None or before[1] != str(error):  # it is tried again and again
        log.error("partition is not %s partition=%s why=%s", done, at, error)
