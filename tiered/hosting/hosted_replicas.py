"""The replicas of one broker: leaders and followers of its partitions, opened and closed as the committed image says.

Rules: M5 (changes roles only by committed images), R5 (a leader agrees with the bucket before it serves) and R6
(`resign_superseded`). A partition that cannot be opened is not served: it is named with the reason and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

from tiered.controller.member_view import MemberView
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore
from tiered.durability.adopted_logs import AdoptedLog, choose_adopted
from tiered.durability.data_directory import DataDirectory, DirectoryState
from tiered.durability.log_store import OPENING_AT_ONCE, LogStore
from tiered.durability.loss_rules import is_overstated, is_unreported
from tiered.durability.possible_losses import PossibleLosses
from tiered.errors import Code, Corrupt, Fenced, Refused, Unavailable
from tiered.hosting.chains import ChainError, Chains
from tiered.hosting.openings import Opening, Openings
from tiered.hosting.replica_events import ReplicaEvents
from tiered.hosting.schema_validation import SchemaValidation
from tiered.hosting.suspects import SuspectedBrokers
from tiered.hot.clean_shutdown import CleanLogEntry
from tiered.hot.disk_log import DiskLog
from tiered.ids import UNKNOWN_END, PartitionId, TopicId, TopicPartition, incarnation_number
from tiered.metadata.changes import NO_LEADER, Change, PartitionChanged
from tiered.metadata.delta import Follow, compute_delta, hosted_partitions
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import Loss, PartitionImage, TopicImage
from tiered.metrics import Metrics
from tiered.peers import Peers
from tiered.ports import World
from tiered.replication.become_leader import PreviousLeader, prepare_leader_log, refuse_later_epochs
from tiered.replication.chain_history import ChainHistory
from tiered.replication.cold_tier import ColdTier
from tiered.replication.disk_state import DiskState
from tiered.replication.follower_replica import FollowerPorts, FollowerReplica
from tiered.replication.leader_replica import LeaderPorts, LeaderReplica
from tiered.replication.leader_state import LeaderState
from tiered.replication.replica_fetcher import FetcherPorts, FetcherSettings, ReplicaFetchers
from tiered.system.turns import each_of

log = logging.getLogger(__name__)


class ReplicaStorage(NamedTuple):
    """The storage that the replicas of a broker share: disk, data directory, bucket, snapshots of coordinators.

    `snapshot_stores` has one for each internal topic, by its name. `chains` are the write-ahead chains.
    """

    disk: DiskState
    directory: DataDirectory
    cold_tier: ColdTier
    snapshot_stores: Mapping[str, CoordinatorSnapshotStore]
    chains: Chains


TASKS_AT_ONCE = 1_000
"""Most partitions that have a task while many are opened: a task takes more memory than an idle partition, and all are
made in one turn of the event loop."""


OPENED_LATER = "its records are being read from the bucket"


class HostedReplicas:
    """All replicas of one broker, by partition. The owner calls `subscribe` before the first start of a replica.

    Without `peers` no partition is followed. `unopened_leaders` and `unopened_followers` name the partitions that
    cannot be opened, each with the reason. `losses` gets the leaders whose logs may lack records.

    An image is applied once each of its replicas is open or named, but for leaders whose records are in write-ahead
    chains: `run_openings` opens these, and `openings` has them until then.
    """

    def __init__(
        self,
        view: MemberView,
        world: World,
        metrics: Metrics,
        *,
        storage: ReplicaStorage,
        losses: PossibleLosses,
        peers: Peers | None,
        suspected_brokers: SuspectedBrokers,
        has_controller_contact: Callable[[], bool],
        schema_validation: SchemaValidation,
    ) -> None:
        self.losses = losses
        self._schema_validation = schema_validation
        self.unopened_leaders: dict[TopicPartition, tuple[Opening, str]] = {}
        self.unopened_followers: dict[TopicPartition, tuple[Follow, str]] = {}
        self._view = view
        self._world = world
        self._disk, self._directory = storage.disk, storage.directory
        self._cold_tier = storage.cold_tier
        self._snapshot_stores = storage.snapshot_stores
        self._chains = storage.chains
        self._events: ReplicaEvents
        self._leader_ports: LeaderPorts
        self._follower_ports = FollowerPorts(world.clock, storage.disk, self.save_offsets)
        self._has_controller_contact = has_controller_contact
        self.openings = Openings()
        self._has_refused = False
        self._image = Image()
        """The image that is applied, or is being applied; the view has the newest one."""
        self.log_store = LogStore(view, world, metrics, storage.directory, self._can_save_synced_entry)
        self.synced_entry_due = asyncio.Event()
        """Set when the notes of synced logs may differ from the settings of the logs."""
        self._leaders: dict[TopicPartition, LeaderReplica] = {}
        self._followers: dict[TopicPartition, FollowerReplica] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}
        """High watermarks of partitions between two roles."""
        self._clean_stop_epochs: dict[PartitionId, int] = {}
        """By partition that has its only replica here: the leader epoch after a clean stop of the process before."""
        self._never_tiered: set[PartitionId] = set()
        """Partitions without objects in the bucket when this broker, as their last leader, stopped cleanly."""
        self._role_change_lock = asyncio.Lock()
        self._fetchers: ReplicaFetchers | None = None
        if peers is not None:
            ports = FetcherPorts(
                peers,
                self._find_address,
                storage.cold_tier,
                world.clock,
                self._on_truncation_failed,
                suspected_brokers.connection_lost,
                suspected_brokers.on_reply,
            )
            self._fetchers = ReplicaFetchers(self._make_fetch_settings, ports, world.rng, metrics)
        gauge = metrics.gauge("tiered_partitions", "Partitions that this broker leads.")
        gauge.set_function(lambda: float(len(self._leaders)))
        gauge = metrics.gauge("tiered_partitions_followed", "Partitions that this broker follows.")
        gauge.set_function(lambda: float(len(self._followers)))
        gauge = metrics.gauge("tiered_producer_ids", "Producers that the logs of this broker remember.")
        gauge.set_function(lambda: float(self.log_store.producer_limits.producer_count))
        metrics.counter(
            "tiered_idempotency_keys_forgotten_total",
            "Idempotency keys that were forgotten early, because there were too many in a partition or in all.",
        ).set_function(lambda: self.log_store.producer_limits.keys_forgotten)

    def subscribe(self, events: ReplicaEvents) -> None:
        """Reports all events of leader replicas to `events`."""
        self._events = events
        self._leader_ports = LeaderPorts(
            self._cold_tier,
            self._world.clock,
            self._disk,
            events,
            self._has_controller_contact,
            self.save_offsets,
            self._chains.writer,
            self._schema_validation,
        )

    def list_leaders(self) -> list[LeaderReplica]:
        """Returns the leader replicas of this broker."""
        return list(self._leaders.values())

    def find_leader(self, tp: TopicPartition) -> LeaderReplica | None:
        """Returns the leader replica of a partition; None if this broker does not lead it."""
        return self._leaders.get(tp)

    def find_follower(self, tp: TopicPartition) -> FollowerReplica | None:
        """Returns the follower replica of a partition; None if this broker does not follow it."""
        return self._followers.get(tp)

    def list_replicas(self) -> list[LeaderReplica | FollowerReplica]:
        """Returns the leader and follower replicas of this broker."""
        return [*self._leaders.values(), *self._followers.values()]

    def list_unserved(self) -> dict[str, str]:
        """Returns the partitions that are not open, with the reason of each."""
        failed = (*self.unopened_leaders.items(), *self.unopened_followers.items())
        return {str(tp): OPENED_LATER for tp in self.openings} | {str(tp): why for tp, (_, why) in failed}

    def list_unopened(self) -> set[TopicPartition]:
        """Returns the partitions that cannot be opened."""
        return {*self.unopened_leaders, *self.unopened_followers}

    async def run_fetchers(self) -> None:
        """Fetches records for the follower replicas until it is cancelled."""
        if self._fetchers is not None:
            await self._fetchers.run()

    def _make_fetch_settings(self) -> FetcherSettings:
        settings = self._view.settings
        return FetcherSettings(
            settings.node_id,
            incarnation_number(self._view.incarnation),
            settings.replica_fetch_wait_max_ms,
            settings.replica_fetch_response_max_bytes,
            settings.replica_fetch_max_bytes,
            settings.follower_replication_throttled_rate,
        )

    def _find_address(self, node_id: int) -> str:
        """Returns HOST:PORT of another broker; "" if the applied image has none."""
        broker = self._image.brokers.get(node_id)
        return broker.address(self._view.settings.inter_broker_listener_name) if broker is not None else ""

    # -- start --------------------------------------------------------------------------------------------------------

    async def recover(self, image: Image, state: DirectoryState) -> None:
        """Opens the logs of all partitions that have a replica here, before this broker registers."""
        known = dict(hosted_partitions(image, self._view.node_id))
        adopted = self._choose_adopted(image, state)
        if adopted and not known:
            # All logs here are as a clean stop left them: no record is in the page cache alone. Without this proof a
            # kill before the first proof of this directory would be reported as a possible loss.
            state = state._replace(same_boot=True)
        known |= {each.tp: image.topics_by_id[each.topic_id] for each in adopted}
        state = await self.log_store.recover(known, state, adopted)
        try:
            await self._disk.guard(self.log_store.adopt_proof())
        except Unavailable as error:
            log.warning("proof of the data directory is written later why=%s", error)
        before = image.brokers.get(self._view.node_id)
        if before is None or before.alive or not state.clean:
            # The last process did not report a clean stop itself: its requests may still be in progress.
            return
        for tp, topic in known.items():
            entry, last = state.clean_entries.get(tp), topic.partitions[tp.partition]
            if not self._is_sole_replica(last):
                continue
            partition_id = PartitionId(topic.topic_id, tp.partition)
            self._clean_stop_epochs[partition_id] = last.leader_epoch + 1
            never_cold = entry is not None and not entry.has_cold_segments and entry.leader_epoch == last.leader_epoch
            if never_cold and self.log_store.get(tp) is not None:
                self._never_tiered.add(partition_id)

    def _choose_adopted(self, image: Image, state: DirectoryState) -> tuple[AdoptedLog, ...]:
        """Returns the logs from another process of this machine that become replicas here. Keeps those that cannot
        become replicas beside the others: the cluster has no other place for them."""
        adopted, refused = choose_adopted(image, self._view.node_id, self._view.settings.process, state.adopted)
        for each, why in refused:
            if name := self._directory.set_aside(each.tp):
                log.error(
                    "log of another broker is kept and not served partition=%s name=%s why=%s", each.tp, name, why
                )
        return adopted

    def _can_save_synced_entry(self, tp: TopicPartition) -> bool:
        """True if the partition has a role here and no loss of it is unreported.

        Before that the next start has to find the log suspect again.
        """
        replica = self._leaders.get(tp)
        if tp in self.losses.suspect_partitions or (replica is None and tp not in self._followers):
            return False
        return replica is None or replica not in self.losses.unreported

    def has_clean_predecessor(self, partition_id: PartitionId, leader_epoch: int) -> bool:
        """True if the previous leader was the last process of this broker, and stopped cleanly.

        With other replicas, or under a later epoch, another broker may have led the partition since.
        """
        return self._clean_stop_epochs.get(partition_id) == leader_epoch

    @property
    def takeover_pending(self) -> bool:
        """True if an earlier leader may still write the manifest of a partition that has its only replica here.

        The next process must then not take this one for the last writer.
        """
        known = hosted_partitions(self._image, self._view.node_id)
        mine = (tp for tp, topic in known if self._is_sole_replica(topic.partitions[tp.partition]))
        return any((replica := self._leaders.get(tp)) is None or replica.takeover_pending for tp in mine)

    def _is_sole_replica(self, partition: PartitionImage) -> bool:
        """True if no other broker can have led the partition."""
        return partition.replicas == (self._view.node_id,)

    # -- applying images ----------------------------------------------------------------------------------------------

    def stop_topics(self, deleted: Set[TopicId]) -> None:
        """Stops all replicas of these topics at once, in the turn in which their deletion is committed.

        The image is applied later. Clients may send requests for another topic of the same name before that. So the
        replica with a name always belongs to the topic that has the name in the newest image.
        """
        for replica in self.list_leaders():
            if replica.topic_id in deleted:
                self.resign(replica.tp, _make_deleted_refusal(replica.tp))
        for follower in list(self._followers.values()):
            if follower.topic_id in deleted:
                self._close_follower(follower.tp)
        self.unopened_leaders = {
            tp: each for tp, each in self.unopened_leaders.items() if each[0].lead.topic_id not in deleted
        }
        self.unopened_followers = {
            tp: each for tp, each in self.unopened_followers.items() if each[0].topic_id not in deleted
        }

    def resign_superseded(self, image: Image, changes: Sequence[Change]) -> None:
        """Ends at once the leaderships that `image` gives to another broker, or to this one under another epoch.

        The image is applied later. A leader that was replaced uncleanly would acknowledge records before that, and the
        next leader lacks them (R6). Without `changes` the image is from a snapshot.
        """
        changed = (PartitionId(each.topic_id, each.partition) for each in changes if isinstance(each, PartitionChanged))
        for partition_id in changed if changes else [replica.partition_id for replica in self.list_leaders()]:
            topic = image.topics_by_id.get(partition_id.topic_id)
            replica = (
                self._leaders.get(TopicPartition(topic.name, partition_id.partition)) if topic is not None else None
            )
            if topic is not None and replica is not None:
                self._resign_if_superseded(replica, topic)

    def _resign_if_superseded(self, replica: LeaderReplica, topic: TopicImage) -> None:
        now = topic.partitions[replica.partition]
        if (now.leader, now.leader_epoch) != (self._view.node_id, replica.leader_epoch):
            self.resign(replica.tp, Refused(Code.NOT_LEADER_OR_FOLLOWER, f"this broker no longer leads {replica.tp}"))

    def _is_deleted(self, topic_id: TopicId) -> bool:
        """True if the topic was deleted while its log was opened."""
        return topic_id not in self._view.image.topics_by_id

    async def apply_image(self, old: Image, new: Image) -> None:
        """Changes the replicas of this broker from `old` to `new`: drops, resigns, configures, follows and leads."""
        async with self._role_change_lock:
            await self._apply_image(old, new)

    async def _apply_image(self, old: Image, new: Image) -> None:
        delta = compute_delta(old, new, self._view.node_id, self._view.incarnation)
        new_roles = (*(each.tp for each in delta.followers), *(each.tp for each in delta.leaders))
        await self.openings.leave((*delta.dropped, *delta.resigned, *new_roles))
        self._image = new
        async for tp in each_of(delta.dropped):
            topic_id = old.topics[tp.topic].topic_id
            self._drop(tp, topic_id, moved=topic_id in new.topics_by_id)
        for tp in delta.resigned:
            self.resign(tp, Refused(Code.NOT_LEADER_OR_FOLLOWER, f"this broker no longer leads {tp}"))
        for each in delta.leaders:
            if each.tp in self._leaders:  # under an earlier epoch
                self.resign(each.tp, Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{each.tp} is led under another epoch now"))
        for tp in new_roles:
            self._close_follower(tp)
        for name in new.topics if delta.broker_configs_changed else delta.configured_topics:
            await self._configure(new.topics[name])
        for tp, partition in delta.isr_changed:
            if tp in self._leaders:
                self._leaders[tp].apply_isr(partition.isr, partition.replicas, partition.partition_epoch)
        await self._open_followers(new, delta.followers)
        await self._open_leaders(new, [Opening(each, new) for each in delta.leaders])
        for tp, loss in delta.loss_changes:
            if tp in self._leaders:
                self._leaders[tp].possible_loss = loss._asdict() if loss is not None else None

    async def retry_unopened(self) -> None:
        """Tries again to open the replicas that could not be opened.

        Waits while an image is applied: that may delete the same replicas, or give them a later epoch.
        """
        if self.unopened_leaders or self.unopened_followers:
            async with self._role_change_lock:
                followers = [follow for follow, _ in self.unopened_followers.values()]
                await self._open_followers(self._view.image, followers)
                await self._open_leaders(self._view.image, [each for each, _ in self.unopened_leaders.values()])

    async def wait_applied(self) -> None:
        """Returns once no image is being applied: each replica of it is open, or named as unopened. It waits for
        leaders that are opened later, too, if they may lack records."""
        async with self._role_change_lock:
            may_lack = (PartitionId(*each) for each in self._image.losses)
            named = ((each, self._image.topics_by_id.get(each.topic_id)) for each in may_lack)
            tps = [TopicPartition(topic.name, each.partition) for each, topic in named if topic is not None]
        await self.openings.wait_ended(tps)

    async def _open_leaders(self, image: Image, openings: Sequence[Opening]) -> None:
        for store in self._snapshot_stores.values():
            store.invalidate_listing()
        chained: list[Opening] = []
        others: list[Opening] = []
        for each in openings:
            (chained if self._chains.is_needed(image, each.lead) else others).append(each)
        self.openings.add(chained)
        for each in chained:
            if each.tp.topic in self._snapshot_stores:  # groups and transactions of all topics wait for these
                self.openings.prefer(each.tp)
        old, new = _opening_slots()
        for first in range(0, len(others), TASKS_AT_ONCE):
            some = others[first : first + TASKS_AT_ONCE]
            await asyncio.gather(*(self._open_in_turn(image, each, new if each.lead.is_new else old) for each in some))

    async def _open_in_turn(self, image: Image, opening: Opening, slots: asyncio.Semaphore) -> None:
        async with slots:
            if opening.lead.is_new:
                await asyncio.sleep(0)  # opening a new log waits for nothing: a thousand would block the event loop
            await self._open_leader(image, opening, None)

    async def run_openings(self) -> None:
        """Opens the leaders whose records are in write-ahead chains, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                openings = await self.openings.take_unread()
                group.create_task(self._open_from_chains(openings), name="openings")

    async def _open_from_chains(self, openings: Sequence[Opening]) -> None:
        began_ns = self._world.clock.mono_ns()
        with self._chains.reading():
            histories = await self._chains.take_over(self._image, [each.lead for each in openings])
            self.openings.add_histories(openings, histories)
            async with asyncio.TaskGroup() as group:
                for _ in range(self.openings.count_due(OPENING_AT_ONCE)):
                    group.create_task(self._open_waiting(began_ns), name="openings")

    async def _open_waiting(self, began_ns: int) -> None:
        """Opens one waiting leader after the other, until none is left."""
        while (found := self.openings.begin()) is not None:
            opening, history = found
            try:
                await self._open_leader(self._image, opening, history)
            finally:
                self.openings.end(opening.tp)
        if not self.openings:
            seconds = (self._world.clock.mono_ns() - began_ns) / 1e9
            log.info("records of chains are read led=%d seconds=%.1f", len(self._leaders), seconds)

    async def _open_leader(self, image: Image, opening: Opening, history: ChainHistory | ChainError | None) -> None:
        lead = opening.lead
        topic = image.topics_by_id.get(lead.topic_id)
        if topic is None or topic.partitions[lead.tp.partition].leader_epoch != lead.leader_epoch:
            return  # a newer image is about to be applied
        replica: LeaderReplica | None = None
        try:
            replica = await self._become_leader(topic, opening, history)
            if replica.log.truncations.is_unsettled:  # else parts of the truncated records could come back
                await self._disk.flush(replica.log)
                await self.log_store.save_offsets()
        except (Unavailable, Corrupt, Fenced, Refused) as error:
            _log_failure("served", lead.tp, error, self.unopened_leaders.get(lead.tp))
            self._handle_write_failure(lead.tp, not isinstance(error, Unavailable) or error.final, str(error))
            if replica is not None:
                replica.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, str(error)))
            if not self._is_deleted(lead.topic_id):
                self.unopened_leaders[lead.tp] = (opening, str(error))
            return
        newest = self._view.image.topics_by_id.get(lead.topic_id)
        if newest is None or self._has_refused:  # its log is deleted when that image is applied, or the broker ends
            replica.resign(_make_deleted_refusal(lead.tp))
            return
        if self._image.slot > image.slot:  # others were applied while it was opened
            image, topic = self._image, self._image.topics_by_id[lead.topic_id]
            self._take_changes(replica, topic)
        replica.led_since_slot = image.slot
        self._leaders[lead.tp] = replica
        self.unopened_leaders.pop(lead.tp, None)
        self._check_loss(image, topic, opening, replica)
        self._check_synced_entry(replica.log)
        self._resign_if_superseded(replica, newest)  # `resign_superseded` found no replica yet
        if replica.is_stopped:
            return
        self._events.on_lead(replica, opening.decided, image)
        try:
            await replica.transactions.write_lost_markers()
        except (Unavailable, Refused) as error:
            log.error("lost markers are written later partition=%s why=%s", lead.tp, error)

    def _take_changes(self, replica: LeaderReplica, topic: TopicImage) -> None:
        """Takes what images changed of a topic while a leader was opened. Its epoch is the same."""
        self.log_store.configure(replica.tp, self.log_store.get_config(topic))
        replica.on_config_changed()
        now = topic.partitions[replica.partition]
        if now.partition_epoch != replica.state.partition_epoch:
            replica.apply_isr(now.isr, now.replicas, now.partition_epoch)

    def _check_loss(self, image: Image, topic: TopicImage, opening: Opening, replica: LeaderReplica) -> None:
        """Notes a loss that the new leader has to report (R4), and blocks appends if the metadata log lacks it."""
        lead, known = opening.lead, topic.partitions[opening.tp.partition]
        reported = image.losses.get(replica.partition_id)
        replica.possible_loss = reported[-1]._asdict() if reported else None
        if opening.partition.is_in_bucket:  # each acknowledged record was in the bucket, and has been read
            self.losses.clear_suspect_partitions({lead.tp})
        elif replica.restarted_at_cold_end or (lead.tp in self.losses.suspect_partitions and not lead.is_new):
            self.losses.add_unreported(replica)
            if is_unreported(known.loss, replica.leader_epoch, replica.epoch_start):
                replica.admission.block_appends()
            if known.stored_end == UNKNOWN_END:
                now_ms, newest_ms = self._world.clock.wall_ms(), self.losses.unreported[replica]
                replica.possible_loss = Loss(lead.leader_epoch, replica.epoch_start, now_ms, newest_ms)._asdict()
        elif is_overstated(known.loss, replica.leader_epoch, replica.initial_cold_end_offset):
            self.losses.add_overstated(replica)

    def _handle_write_failure(self, tp: TopicPartition, final: bool, why: str) -> None:
        """Handles a log that broke during a change. On a full disk only this log is closed, to be opened again.

        On a failed disk the whole data directory is given up.
        """
        hot = self.log_store.get(tp)
        if hot is None or not hot.status.write_failure:
            return
        if final:
            self._disk.mark_dead(why)
        else:
            self._disk.mark_full(why)
            self.log_store.close_broken(tp)

    async def _become_leader(
        self, topic: TopicImage, opening: Opening, history: ChainHistory | ChainError | None
    ) -> LeaderReplica:
        if isinstance(history, Exception):
            raise history
        lead = opening.lead
        known = topic.partitions[lead.tp.partition]
        hot = await self.log_store.open_or_create(lead.tp, topic, is_new=lead.is_new)
        refuse_later_epochs(hot, lead.leader_epoch)
        partition_id = PartitionId(lead.topic_id, lead.tp.partition)
        previous_leader = (
            PreviousLeader.STOPPED_CLEANLY
            if self.has_clean_predecessor(partition_id, lead.leader_epoch)
            else PreviousLeader.MAY_STILL_WRITE
        )
        if lead.is_new or (partition_id in self._never_tiered and history is None):
            previous_leader = PreviousLeader.NONE
        elif lead.was_in_sync:
            previous_leader = PreviousLeader.WAS_IN_SYNC_WITH
        self._never_tiered.discard(partition_id)
        snapshot_store = self._snapshot_stores.get(topic.name)
        if snapshot_store is not None and not lead.is_new:
            start = await snapshot_store.reconcile(hot, partition_id, history, self.save_offsets)
        else:
            start = await prepare_leader_log(
                hot,
                self._cold_tier,
                partition_id,
                topic.name,
                lead.leader_epoch,
                previous_leader,
                history,
                self.save_offsets,
            )
        cold_end = start.manifest.cold_end_offset if start.manifest is not None else 0
        committed = max(self._high_watermarks.pop(lead.tp, 0), cold_end, hot.start_offset)
        if opening.partition.is_in_bucket:  # each record that was committed is there
            start = start._replace(stored_end=max(start.stored_end, min(committed, hot.end_offset)))
        return LeaderReplica(
            lead.tp, lead.topic_id, hot,
            LeaderState(
                self._view.node_id, lead.leader_epoch, known.isr, replicas=known.replicas,
                epoch_start=hot.end_offset, partition_epoch=known.partition_epoch,
                high_watermark=min(committed, hot.end_offset), began_ns=self._world.clock.mono_ns(),
            ),
            start, self._leader_ports,
        )  # fmt: skip

    async def _open_followers(self, image: Image, follows: Sequence[Follow]) -> None:
        old, new = _opening_slots()
        for first in range(0, len(follows), TASKS_AT_ONCE):
            some = follows[first : first + TASKS_AT_ONCE]
            await asyncio.gather(*(self._open_follower(image, each, new if each.is_new else old) for each in some))

    async def _open_follower(self, image: Image, follow: Follow, slots: asyncio.Semaphore) -> None:
        tp, topic = follow.tp, image.topics_by_id.get(follow.topic_id)
        before = self.unopened_followers.pop(tp, None)
        if topic is None or topic.partitions[tp.partition].leader_epoch != follow.leader_epoch:
            return  # a newer image is about to be applied
        async with slots:
            if follow.is_new:
                await asyncio.sleep(0)  # opening a new log waits for nothing, as for leader replicas
            try:
                hot = await self.log_store.open_or_create(tp, topic, is_new=follow.is_new)
            except (Unavailable, Corrupt, Refused) as error:
                _log_failure("followed", tp, error, before)
                if isinstance(error, Unavailable) and error.final:
                    self._disk.mark_dead(str(error))
                if not self._is_deleted(follow.topic_id):
                    self.unopened_followers[tp] = (follow, str(error))
                return
        if self._is_deleted(follow.topic_id):
            return  # as for leader replicas
        if follow.leader != NO_LEADER:
            # The follower copies the records that it lacks, and counts for nothing before that.
            self.losses.clear_suspect_partitions({tp})
        follower = self._followers[tp] = FollowerReplica(
            tp, follow.topic_id, hot, follow.leader, follow.leader_epoch, self._follower_ports,
            high_watermark=self._high_watermarks.pop(tp, 0),
        )  # fmt: skip
        self._check_synced_entry(hot)
        if self._fetchers is not None and follow.leader != NO_LEADER:
            self._fetchers.follow(follower)

    def _close_follower(self, tp: TopicPartition) -> None:
        """Ends a follower replica: this broker no longer follows the partition, or follows another leader."""
        self.unopened_followers.pop(tp, None)
        follower = self._followers.pop(tp, None)
        if follower is not None:
            follower.stop()
            self._high_watermarks[tp] = follower.high_watermark

    def _on_truncation_failed(self, follower: FollowerReplica, final: bool) -> None:
        """Closes a follower replica whose truncation failed half way; `retry_unopened` opens it again."""
        if self._followers.get(follower.tp) is follower:
            self._close_follower(follower.tp)
            follow = Follow(follower.tp, follower.topic_id, follower.leader, follower.leader_epoch)
            self.unopened_followers[follower.tp] = (follow, follower.log.status.write_failure)
            self._handle_write_failure(follower.tp, final, follower.log.status.write_failure)

    async def _configure(self, topic: TopicImage) -> None:
        config = self.log_store.get_config(topic)
        async for p in each_of(range(len(topic.partitions))):
            tp = TopicPartition(topic.name, p)
            hot = self.log_store.configure(tp, config)
            if hot is not None:
                self._check_synced_entry(hot)
            if tp in self._leaders:
                self._leaders[tp].on_config_changed()
                self._events.on_config_changed(self._leaders[tp])

    def _check_synced_entry(self, hot: DiskLog) -> None:
        """Has a change of `flush` noted soon, also if nobody appends to the log."""
        if hot.synced_entry.is_due:
            self.synced_entry_due.set()

    def resign(self, tp: TopicPartition, why: Refused) -> None:
        """Ends a leadership. Requests that wait for the leader replica get `why`."""
        self.unopened_leaders.pop(tp, None)
        replica = self._leaders.pop(tp, None)
        if replica is not None:
            self._high_watermarks[tp] = replica.high_watermark
            replica.resign(why)
            self._cold_tier.uploader.forget(replica.partition_id)
            self._cold_tier.cleaner.forget(replica.partition_id)
            self._events.on_resign(replica)

    def on_fenced(self, replica: LeaderReplica, error: Fenced) -> None:
        """Ends a leadership: a newer leader wrote its epoch into the manifest.

        The call may come late, for a topic whose name another topic has now.
        """
        log.error("leader is fenced by a newer one partition=%s why=%s", replica.tp, error)
        if self._leaders.get(replica.tp) is replica:
            self.resign(replica.tp, Refused(Code.NOT_LEADER_OR_FOLLOWER, str(error)))

    def _drop(self, tp: TopicPartition, topic_id: TopicId, *, moved: bool) -> None:
        self.resign(
            tp,
            Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{tp} has no replica on this broker now")
            if moved
            else _make_deleted_refusal(tp),
        )
        partition_id = PartitionId(topic_id, tp.partition)
        self._cold_tier.manifests.forget(partition_id)
        self._close_follower(tp)
        self._high_watermarks.pop(tp, None)
        self._clean_stop_epochs.pop(partition_id, None)
        self._never_tiered.discard(partition_id)
        self.losses.clear_suspect_partitions({tp})  # a leader that was not open yet has found no loss
        self.log_store.drop(tp, topic_id)

    # -- the end ------------------------------------------------------------------------------------------------------

    def refuse(self, why: Refused) -> None:
        """Refuses every request with `why` from now on; the logs stay as they are."""
        self._has_refused = True
        self.openings.clear()
        for replica in self._leaders.values():
            replica.resign(why)
        for follower in self._followers.values():
            follower.stop()

    async def save_offsets(self) -> None:
        """Saves how far each log is durable and where it starts. Raises `Unavailable` if the disk fails."""
        await self._disk.guard(self.log_store.save_offsets())

    async def close_clean(self) -> bool:
        """Makes all logs durable, closes and marks them. Returns True if the next start has nothing to check."""
        return await self.log_store.close_clean(self._make_clean_entry)

    def _make_clean_entry(self, tp: TopicPartition, hot: DiskLog) -> CleanLogEntry | None:
        """Returns the entry that spares the next start from reading the log; None without a role."""
        replica, follower = self._leaders.get(tp), self._followers.get(tp)
        if replica is not None:
            return hot.make_clean_entry(replica.leader_epoch, replica.manifest is not None or replica.takeover_pending)
        return hot.make_clean_entry(follower.leader_epoch, True) if follower is not None else None


def _opening_slots() -> tuple[asyncio.Semaphore, asyncio.Semaphore]:
    """Returns the slots of logs that exist, and of new ones. A new log is made on the event loop, which takes about a
    millisecond: one in each turn, so that requests go on between them."""
    return asyncio.Semaphore(OPENING_AT_ONCE), asyncio.Semaphore(1)


def _make_deleted_refusal(tp: TopicPartition) -> Refused:
    return Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {tp.topic!r} was deleted")


def _log_failure(role: str, tp: TopicPartition, error: Exception, before: tuple[object, str] | None) -> None:
    if before is None or before[1] != str(error):  # the same failure repeats with each attempt
        log.error("partition is not %s partition=%s why=%s", role, tp, error)
