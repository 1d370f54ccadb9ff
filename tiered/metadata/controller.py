"""The controller as a shard: topics, settings, broker incarnations and who leads what.

`image` runs ahead of the log by what was decided and is not committed yet; brokers act on committed images only (rule
M5). Every leadership it hands out moves the leader epoch, and no epoch is handed out twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tiered.config import Settings, TopicConfig, broker_rows, topic_rows
from tiered.errors import Code, Refused
from tiered.ids import TopicId
from tiered.metadata import changes as kinds
from tiered.metadata import requests
from tiered.metadata.changes import NO_LEADER, Change
from tiered.metadata.election import choose_leader
from tiered.metadata.image import BrokerImage, Image, PartitionImage, TopicImage
from tiered.metadata.internal_topics import check_changeable, check_configs, own_configs
from tiered.metadata.placement import check, place, start_of
from tiered.metadata.requests import Request
from tiered.metadata.settings import broker_settings, check_dynamic, edited, topic_config
from tiered.metadata.shard import Decision
from tiered.metadata.topic_names import check_collision, check_name

PARTITIONS_MAX = 10_000
"""Partitions of one topic: bounds the entry that creates them."""
PRODUCER_IDS = 1_000
"""Ids in a block, as Kafka's: so many producers come up without a word to the controller."""


class Controller:
    """`settings` gives the defaults; `draw_id` a fresh topic id per call."""

    def __init__(self, image: Image, settings: Settings, draw_id: Callable[[], TopicId]) -> None:
        self.image = image
        self._settings = settings
        self._draw_id = draw_id

    def apply(self, changes: Sequence[Change], slot: int | None = None) -> None:
        self.image = self.image.apply(changes, slot)

    def decide(self, request: Request, now_ms: int) -> Decision[Any]:
        """`Refused` when the request cannot be; the reply's type is told by each request."""
        match request:
            case requests.CreateTopic():
                made = self._create_topics((request,), now_ms)
                if isinstance(made.reply[0], Refused):
                    raise made.reply[0]
                return Decision(made.changes, made.reply[0])
            case requests.CreateTopics():
                return self._create_topics(request.topics, now_ms)
            case requests.DeleteTopic():
                return self._delete_topic(request, now_ms)
            case requests.ForgetTopic():
                waits = request.topic_id in self.image.deleted
                return Decision((kinds.TopicForgotten(request.topic_id),) if waits else (), None)
            case requests.CreatePartitions():
                return self._create_partitions(request)
            case requests.AlterTopicConfigs():
                return self._alter_topic(request)
            case requests.AlterBrokerConfigs():
                return self._alter_broker(request)
            case requests.RegisterBroker():
                return self._register(request, now_ms)
            case requests.AnnounceBroker():
                known = self._incarnation(request.node_id, request.incarnation)
                return self._restate(replace(known, http=request.http, listeners=dict(request.listeners)), now_ms)
            case requests.NameDirectory():
                known = self._incarnation(request.node_id, request.incarnation)
                return self._restate(replace(known, directory=request.directory), now_ms)
            case requests.StopBroker():
                return self._stop(request)
            case requests.ReportLoss():
                return self._report_loss(request, now_ms)
            case requests.AllocateProducerIds():
                block = kinds.ProducerIdsAllocated(request.node_id, self.image.next_producer_id, PRODUCER_IDS)
                return Decision((block,), block)

    # -- topics -------------------------------------------------------------------------------------------------------

    def _create_topics(
        self, wanted: Sequence[requests.CreateTopic], now_ms: int
    ) -> Decision[tuple[TopicImage | Refused, ...]]:
        defaults = broker_settings(self.image, self._settings, kinds.CLUSTER).topic_defaults()
        new: dict[str, TopicId] = {}
        judged: list[TopicId | Refused] = []
        changes: list[Change] = []
        unwanted: list[Change] = []
        for each in wanted:
            try:
                made = self._creation(each, now_ms, defaults, new)
            except Refused as why:
                judged.append(why)
            else:
                judged.append(made[0].topic_id)
                new[each.name] = made[0].topic_id
                (unwanted if each.validate_only else changes).extend(made)
        after = self.image.apply([*changes, *unwanted]).topics_by_id
        replies = (each if isinstance(each, Refused) else after[each] for each in judged)
        return Decision(tuple(changes), tuple(replies))

    def _creation(
        self, request: requests.CreateTopic, now_ms: int, defaults: TopicConfig, new: Mapping[str, TopicId]
    ) -> tuple[kinds.TopicCreated, *tuple[Change, ...]]:
        """The changes that make one topic; `new` are those that come to be with it."""
        check_name(request.name)
        if request.name in self.image.topics or request.name in new:
            raise Refused(Code.TOPIC_ALREADY_EXISTS, f"Topic {request.name!r} already exists.")
        check_collision(request.name, self.image.topics)
        check_collision(request.name, new)
        configs = {**request.configs, **own_configs(request.name, self._settings)}
        if configs:
            TopicConfig.from_strings(configs, defaults=defaults)
        topic_id = self._draw_id()
        assignments = self._assignments(request, len(self.image.topics) + len(new))
        created = kinds.TopicCreated(request.name, topic_id, assignments, configs, now_ms)
        return created, *self._first_leaders(topic_id, 0, assignments)

    def _assignments(self, request: requests.CreateTopic, number: int) -> tuple[tuple[int, ...], ...]:
        if request.assignments is not None:
            if request.partitions != -1 or request.replication_factor != -1:
                raise Refused(
                    Code.INVALID_REQUEST,
                    "an assignment by hand excludes a partition count and a replication factor",
                )
            if not 1 <= len(request.assignments) <= PARTITIONS_MAX:
                raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, "an assignment names at least one partition")
            check(request.assignments, list(self.image.brokers))
            return tuple(tuple(replicas) for replicas in request.assignments)
        partitions = self._settings.num_partitions if request.partitions == -1 else request.partitions
        copies = request.replication_factor
        if copies == -1:
            copies = self._settings.default_replication_factor
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise Refused(Code.INVALID_PARTITIONS, f"{partitions} partitions are not in 1..{PARTITIONS_MAX}")
        return self._place(partitions, copies, start=number, first=0)

    def _place(self, partitions: int, copies: int, *, start: int, first: int) -> tuple[tuple[int, ...], ...]:
        placed = place(self._racks(), partitions, copies, start=start, first=first)
        return tuple(tuple(replicas) for replicas in placed)

    def _first_leaders(
        self, topic_id: TopicId, first: int, assignments: Sequence[Sequence[int]]
    ) -> Iterator[kinds.PartitionChanged]:
        alive = {broker.node_id for broker in self._live()}
        for p, replicas in enumerate(assignments, first):
            isr = tuple(broker for broker in replicas if broker in alive)
            yield kinds.PartitionChanged(topic_id, p, isr[0] if isr else NO_LEADER, 0, isr, ())

    def _delete_topic(self, request: requests.DeleteTopic, now_ms: int) -> Decision[Any]:
        topic = self._topic(request.name)
        check_changeable(topic.name)
        if request.topic_id not in (None, topic.topic_id):
            raise Refused(Code.UNKNOWN_TOPIC_ID, f"there is no topic of the id {request.topic_id}")
        changes = (kinds.TopicDeleted(topic.topic_id, now_ms),)
        return Decision(changes, self.image.apply(changes).deleted[topic.topic_id])

    def _create_partitions(self, request: requests.CreatePartitions) -> Decision[TopicImage]:
        topic = self._topic(request.name)
        check_changeable(topic.name)
        have = len(topic.partitions)
        if not have < request.count <= PARTITIONS_MAX:
            raise Refused(
                Code.INVALID_PARTITIONS,
                f"topic {request.name!r} has {have} partitions; the new total is not in {have + 1}..{PARTITIONS_MAX}",
            )
        added = self._added(request, topic)
        changes: tuple[Change, ...] = (
            kinds.PartitionsAdded(topic.topic_id, added),
            *self._first_leaders(topic.topic_id, have, added),
        )
        return self._topic_decision(request.name, changes, request.validate_only)

    def _added(self, request: requests.CreatePartitions, topic: TopicImage) -> tuple[tuple[int, ...], ...]:
        have, first = len(topic.partitions), topic.partitions[0].replicas
        if request.assignments is None:
            start = start_of(self._racks(), first[0])
            return self._place(request.count - have, len(first), start=start, first=have)
        if len(request.assignments) != request.count - have:
            raise Refused(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"{request.count - have} partitions are added, {len(request.assignments)} assignments are given",
            )
        check([first, *request.assignments], list(self.image.brokers))
        return tuple(tuple(replicas) for replicas in request.assignments)

    def _alter_topic(self, request: requests.AlterTopicConfigs) -> Decision[TopicImage]:
        topic = self._topic(request.name)
        defaults = broker_settings(self.image, self._settings, kinds.CLUSTER).topic_defaults()
        in_force = {**defaults.to_strings(), **topic.configs}
        edits = edited(request.configs, topic.configs, in_force, topic_rows(), replace=request.replace)
        changes = (kinds.TopicConfigChanged(topic.topic_id, edits),)
        after = self.image.apply(changes).topics[request.name]
        TopicConfig.from_strings(dict(after.configs), defaults=defaults)
        check_configs(request.name, after.configs)
        return Decision(() if request.validate_only or after.configs == topic.configs else changes, after)

    def _topic_decision(self, name: str, changes: tuple[Change, ...], validate_only: bool) -> Decision[TopicImage]:
        return Decision(() if validate_only else changes, self.image.apply(changes).topics[name])

    def _topic(self, name: str) -> TopicImage:
        topic = self.image.topics.get(name)
        if topic is None:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:249]!r}")
        return topic

    # -- brokers ------------------------------------------------------------------------------------------------------

    def _alter_broker(self, request: requests.AlterBrokerConfigs) -> Decision[dict[str, str]]:
        if request.node_id != kinds.CLUSTER and request.node_id not in self.image.brokers:
            raise Refused(Code.BROKER_ID_NOT_REGISTERED, f"there is no broker {request.node_id}")
        in_force = broker_settings(self.image, self._settings, request.node_id).to_strings()
        own = self.image.broker_configs.get(request.node_id, {})
        edits = edited(request.configs, own, in_force, broker_rows(), replace=request.replace)
        check_dynamic(edits)
        changes = (kinds.BrokerConfigChanged(request.node_id, edits),)
        after = self.image.apply(changes)
        defaults = broker_settings(after, self._settings, request.node_id).topic_defaults()
        for topic in after.topics.values():
            topic_config(topic, defaults)
        return Decision(() if request.validate_only else changes, dict(after.broker_configs[request.node_id]))

    def _register(self, request: requests.RegisterBroker, now_ms: int) -> Decision[None]:
        known = self.image.brokers.get(request.node_id)
        if known is not None and known.incarnation == request.incarnation:
            return Decision((), None)
        told = dict(request.listeners)
        registered = kinds.BrokerRegistered(
            request.node_id, request.incarnation, request.directory, request.http, request.rack, now_ms, told
        )
        changes: list[Change] = [registered]
        alive = frozenset(broker.node_id for broker in self._live()) | {request.node_id}
        for topic in self.image.topics.values():
            for p, partition in enumerate(topic.partitions):
                changes += _returned(topic.topic_id, p, partition, request, alive)
        return Decision(tuple(changes), None)

    def _restate(self, broker: BrokerImage, now_ms: int) -> Decision[None]:
        """The same incarnation, with something else to say of itself."""
        if broker == self.image.brokers[broker.node_id]:
            return Decision((), None)
        change = kinds.BrokerRegistered(
            broker.node_id, broker.incarnation, broker.directory, broker.http, broker.rack, now_ms, broker.listeners
        )
        return Decision((change,), None)

    def _stop(self, request: requests.StopBroker) -> Decision[None]:
        """Leaderships move to live members of the ISR; where there is none they stay, for the next incarnation."""
        self._incarnation(request.node_id, request.incarnation)
        changes: list[Change] = [kinds.BrokerStopped(request.node_id, request.incarnation)]
        alive = frozenset(broker.node_id for broker in self._live()) - {request.node_id}
        for topic in self.image.topics.values():
            for p, partition in enumerate(topic.partitions):
                heir = choose_leader(partition.replicas, partition.isr, (), alive)
                if partition.leader == request.node_id and heir is not None:
                    isr = tuple(broker for broker in partition.isr if broker != request.node_id)
                    elr = (*partition.elr, request.node_id)
                    changes.append(
                        kinds.PartitionChanged(topic.topic_id, p, heir, partition.leader_epoch + 1, isr, elr)
                    )
        return Decision(tuple(changes), None)

    def _report_loss(self, request: requests.ReportLoss, now_ms: int) -> Decision[None]:
        topic = self.image.topics_by_id.get(request.topic_id)
        if topic is None or topic.partitions[request.partition].leader_epoch != request.leader_epoch:
            return Decision((), None)
        change = kinds.LossReported(
            request.topic_id, request.partition, request.leader_epoch, request.from_offset, now_ms
        )
        return Decision((change,), None)

    def _racks(self) -> dict[int, str]:
        return {broker.node_id: broker.rack for broker in self._live()}

    def _live(self) -> list[BrokerImage]:
        return [broker for broker in self.image.brokers.values() if broker.alive]

    def _incarnation(self, node_id: int, incarnation: str) -> BrokerImage:
        known = self.image.brokers.get(node_id)
        if known is None or known.incarnation != incarnation:
            raise Refused(Code.STALE_BROKER_EPOCH, f"another incarnation of broker {node_id} has registered")
        return known


def _returned(
    topic_id: TopicId, p: int, old: PartitionImage, request: requests.RegisterBroker, alive: frozenset[int]
) -> list[Change]:
    """What a new incarnation of a replica means for one partition (rules R1, R4).

    It leaves the ISR, and stays eligible only when it is whole. With nobody eligible the partition waits for the last
    known members; when this broker is the only one of them it leads again, and reports what its log cannot prove.
    """
    node = request.node_id
    if node not in old.replicas or not (node in old.isr or node in old.elr or old.leader in (node, NO_LEADER)):
        return []
    last_known = set(old.isr) | set(old.elr)
    isr = tuple(broker for broker in old.isr if broker != node)
    elr = tuple(broker for broker in old.elr if broker != node)
    if request.whole and node in last_known:
        elr = (*elr, node)
    leader = choose_leader(old.replicas, isr, elr, alive)
    if leader is None and last_known <= {node}:
        leader = node
    if leader is None:
        return [kinds.PartitionChanged(topic_id, p, NO_LEADER, old.leader_epoch + 1, isr, elr)]
    if leader not in isr:
        isr = (leader,)
    return [
        kinds.PartitionChanged(
            topic_id, p, leader, old.leader_epoch + 1, isr, tuple(broker for broker in elr if broker not in isr)
        )
    ]
