"""Decisions of the controller about topics: create, delete, add partitions and configure.

New topics are checked for name, settings, limits and replica placement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tiered.config.settings import Settings, TopicConfig, topic_rows
from tiered.config.topic_limits import check_topic_limits
from tiered.controller import leaders, partition_transitions, requests
from tiered.controller.decision import ControllerResult
from tiered.controller.features import check_settings
from tiered.controller.leaders import PartitionContexts
from tiered.controller.partition_limits import PartitionLimits
from tiered.controller.partition_transitions import PartitionContext
from tiered.controller.placement import check_assignments, count_machines, place_replicas, prefer_room, start_of
from tiered.errors import Code, Refused
from tiered.ids import TopicId
from tiered.metadata import changes as kinds
from tiered.metadata.changes import Change
from tiered.metadata.effective_config import (
    MIN_ISR,
    apply_edits,
    broker_settings,
    cluster_min_isr,
    flushes_to_bucket,
    normalize_edits,
    parse_topic_config,
)
from tiered.metadata.features import CREATORS, DELETED_NAMES
from tiered.metadata.image import Image
from tiered.metadata.internal_topics import check_changeable, check_configs, internal_topic_configs
from tiered.metadata.parts.topics import DeletedTopic, TopicImage
from tiered.metadata.topic_names import INTERNAL, TopicNames, check_name
from tiered.value import value

PARTITIONS_MAX = 10_000
"""Most partitions of one topic: bounds the size of the entry that creates them."""


@value
class Topics:
    """The topics of an image, for one decision. `settings` are the defaults; `draw_id` returns new topic ids."""

    image: Image
    settings: Settings
    draw_id: Callable[[], TopicId]

    def create(
        self, topic_requests: Sequence[requests.CreateTopic], now_ms: int
    ) -> ControllerResult[tuple[TopicImage | Refused, ...]]:
        """Creates the topics that can be created, all in one entry; the others are refused one by one."""
        in_force = broker_settings(self.image, self.settings, kinds.ALL_BROKERS)
        defaults = in_force.topic_defaults()
        limits = PartitionLimits(self.image, self.settings)
        names, number = TopicNames(self.image.topics), len(self.image.topics)
        results: list[TopicId | Refused] = []
        changes: list[Change] = []
        validated_only: list[Change] = []
        for each in topic_requests:
            try:
                topic_changes = self._topic_changes(each, now_ms, in_force, defaults, names, number, limits)
            except Refused as why:
                results.append(why)
            else:
                results.append(topic_changes[0].topic_id)
                names.add(each.name)
                number += 1
                (validated_only if each.validate_only else changes).extend(topic_changes)
        after = self.image.apply([*changes, *validated_only])
        replies = (each if isinstance(each, Refused) else after.topics_by_id[each] for each in results)
        return ControllerResult(tuple(changes), tuple(replies), None if validated_only else after)

    def _topic_changes(
        self,
        request: requests.CreateTopic,
        now_ms: int,
        in_force: Settings,
        defaults: TopicConfig,
        names: TopicNames,
        number: int,
        limits: PartitionLimits,
    ) -> tuple[kinds.TopicCreated, *tuple[Change, ...]]:
        """Returns the changes that create one topic. `names` are taken; `number` is the count of topics before it."""
        check_name(request.name)
        if request.name in names:
            raise Refused(Code.TOPIC_ALREADY_EXISTS, f"Topic {request.name!r} already exists.")
        names.check_collision(request.name)
        given = {**request.configs, **internal_topic_configs(request.name, self.settings)}
        configs = {name: text for name, text in normalize_edits(given, topic_rows()).items() if text is not None}
        check_settings(self.image, configs)
        if configs:
            parse_topic_config(request.name, configs, defaults)
        if request.name not in INTERNAL:
            check_topic_limits(configs, in_force)
        assignments = self._assignments(request, number)
        creator = request.creator if self.image.metadata_version >= CREATORS else ""
        if not self._is_default_internal(request.name, len(assignments)):
            limits.add_partitions(assignments, creator)
        topic_id = self.draw_id()
        default_factor = self.settings.default_replication_factor
        by_default = request.assignments is None and request.replication_factor == -1
        is_short = by_default and len(assignments[0]) < default_factor
        created = kinds.TopicCreated(
            request.name, topic_id, assignments, configs, now_ms, default_factor if is_short else 0, creator
        )
        return created, *self._new_partition_changes(topic_id, 0, assignments, configs)

    def _is_default_internal(self, name: str, partitions: int) -> bool:
        """True if it is an internal topic that groups need, of the usual size: no limit refuses that one."""
        return name in INTERNAL and partitions <= self.settings.offsets_topic_num_partitions

    def _assignments(self, request: requests.CreateTopic, number: int) -> tuple[tuple[int, ...], ...]:
        if request.assignments is not None:
            if request.partitions != -1 or request.replication_factor != -1:
                raise Refused(
                    Code.INVALID_REQUEST,
                    "a manual assignment excludes a partition count and a replication factor",
                )
            if not 1 <= len(request.assignments) <= PARTITIONS_MAX:
                raise Refused(
                    Code.INVALID_REPLICA_ASSIGNMENT, f"an assignment must have 1 to {PARTITIONS_MAX} partitions"
                )
            return self._check_assignments(request.assignments)
        partitions = self.settings.num_partitions if request.partitions == -1 else request.partitions
        replication_factor = request.replication_factor
        if replication_factor == -1:
            # With too few brokers it starts with fewer replicas; the rest follow (`missing_replicas`).
            replication_factor = min(
                self.settings.default_replication_factor,
                max(1, count_machines(self.image.placement_racks(), self.image.machines())),
            )
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise Refused(Code.INVALID_PARTITIONS, f"{partitions} partitions are not in 1..{PARTITIONS_MAX}")
        return self._place_replicas(partitions, replication_factor, start=number, first_partition=0)

    def _check_assignments(
        self, assignments: Sequence[Sequence[int]], first: Sequence[int] | None = None
    ) -> tuple[tuple[int, ...], ...]:
        """Checks manual assignments, of new partitions behind one with the replicas `first` if that is given. Returns
        them with one object for equal replicas."""
        check_assignments(
            assignments if first is None else [first, *assignments], list(self.image.brokers), self.image.machines()
        )
        named = sorted({node for replicas in assignments for node in replicas})
        if cordoned := [node for node in named if self.image.is_cordoned(node)]:
            raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, f"cordoned brokers take no new replicas: {cordoned}")
        shared: dict[tuple[int, ...], tuple[int, ...]] = {}
        return tuple(shared.setdefault(replicas, replicas) for replicas in map(tuple, assignments))

    def _place_replicas(
        self, partitions: int, replication_factor: int, *, start: int, first_partition: int
    ) -> tuple[tuple[int, ...], ...]:
        racks, full = self.image.placement_racks(), self.image.bad_disk_ids()
        return tuple(
            place_replicas(
                racks,
                partitions,
                replication_factor,
                start=start,
                first_partition=first_partition,
                full=full,
                machines=self.image.machines(),
            )
        )

    def _new_partition_changes(
        self,
        topic_id: TopicId,
        first_partition: int,
        assignments: Sequence[tuple[int, ...]],
        configs: Mapping[str, str],
    ) -> Iterator[kinds.PartitionChanged]:
        """Yields the first leader of each partition: the same one for equal replicas."""
        context = PartitionContext(
            self.image.live_ids(), int(configs.get(MIN_ISR, cluster_min_isr(self.image))),
            stopping=self.image.stopping_ids(), full=self.image.bad_disk_ids(),
            recovering=self.image.recovering_disk_ids(), chained=self._find_chained(configs),
        )  # fmt: skip
        elected = {each: partition_transitions.new_partition(each, context) for each in dict.fromkeys(assignments)}
        for p, replicas in enumerate(assignments, first_partition):
            new = elected[replicas]
            yield kinds.PartitionChanged(
                topic_id, p, new.leader, new.leader_epoch, new.isr, (), chains=tuple((*each,) for each in new.chains),
                is_in_bucket=new.is_in_bucket,
            )  # fmt: skip

    def _find_chained(self, configs: Mapping[str, str]) -> Mapping[int, str] | None:
        """Returns the incarnations of live brokers if a topic with these settings has `flush=bucket`."""
        if not flushes_to_bucket(self.image, configs):
            return None
        return {node: self.image.brokers[node].incarnation for node in self.image.live_ids()}

    def delete(self, request: requests.DeleteTopic, now_ms: int) -> ControllerResult[DeletedTopic]:
        """Deletes a topic; its name is free at once."""
        topic = self._find_topic(request.name)
        check_changeable(topic.name)
        if request.topic_id not in (None, topic.topic_id):
            raise Refused(Code.UNKNOWN_TOPIC_ID, f"there is no topic with id {request.topic_id}")
        changes = (kinds.TopicDeleted(topic.topic_id, now_ms, self._name_in_log(topic.name)),)
        after = self.image.apply(changes)
        return ControllerResult(changes, after.deleted_topics[topic.topic_id], after)

    def forget(self, topic_id: TopicId) -> ControllerResult[None]:
        """Ends a deleted topic without objects. Nothing is left to do for one that ended before."""
        deleted = self.image.deleted_topics.get(topic_id)
        if deleted is None:
            return ControllerResult((), None)
        return ControllerResult((kinds.TopicForgotten(topic_id, self._name_in_log(deleted.name)),), None)

    def _name_in_log(self, name: str) -> str:
        """Returns the name for a change that ends a topic: readers of the log have no other source of it."""
        return name if self.image.metadata_version >= DELETED_NAMES else ""

    def add_partitions(self, request: requests.CreatePartitions) -> ControllerResult[TopicImage]:
        """Adds partitions at the end of a topic."""
        topic = self._find_topic(request.name)
        check_changeable(topic.name)
        have = len(topic.partitions)
        if not have < request.count <= PARTITIONS_MAX:
            raise Refused(
                Code.INVALID_PARTITIONS,
                f"topic {request.name!r} has {have} partitions; the new total is not in {have + 1}..{PARTITIONS_MAX}",
            )
        added = self._added_assignments(request, topic)
        PartitionLimits(self.image, self.settings).add_partitions(added, topic.creator)
        changes: tuple[Change, ...] = (
            kinds.PartitionsAdded(topic.topic_id, added),
            *self._new_partition_changes(topic.topic_id, have, added, topic.configs),
        )
        return self._topic_decision(request.name, changes, request.validate_only)

    def _added_assignments(self, request: requests.CreatePartitions, topic: TopicImage) -> tuple[tuple[int, ...], ...]:
        have, first = len(topic.partitions), topic.partitions[0].target_replicas
        if request.assignments is None:
            racks = prefer_room(
                self.image.placement_racks(), self.image.bad_disk_ids(), len(first), self.image.machines()
            )
            start = start_of(racks, first[0])
            return self._place_replicas(request.count - have, len(first), start=start, first_partition=have)
        if len(request.assignments) != request.count - have:
            raise Refused(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"{request.count - have} partitions are added, {len(request.assignments)} assignments are given",
            )
        return self._check_assignments(request.assignments, first)

    def alter_configs(self, request: requests.AlterTopicConfigs, now_ms: int) -> ControllerResult[TopicImage]:
        """Changes settings of a topic, and the eligible replicas and leaders that follow from them."""
        topic = self._find_topic(request.name)
        settings = broker_settings(self.image, self.settings, kinds.ALL_BROKERS)
        defaults = settings.topic_defaults()
        in_force = {**defaults.to_strings(), **topic.configs}
        edits = apply_edits(request.configs, topic.configs, in_force, topic_rows(), replace=request.replace)
        check_settings(self.image, edits)
        check_topic_limits({name: text for name, text in edits.items() if text != topic.configs.get(name)}, settings)
        changes: tuple[Change, ...] = (kinds.TopicConfigChanged(topic.topic_id, edits),)
        image = self.image.apply(changes)
        after = image.topics[request.name]
        parse_topic_config(request.name, after.configs, defaults)
        check_configs(request.name, after.configs)
        if after.configs == topic.configs:
            return ControllerResult((), after)
        contexts = PartitionContexts(self.image, self.settings, self.image.live_ids(), now_ms)
        changes = (*changes, *leaders.reevaluate_partitions(self.image, image, [request.name], contexts))
        return self._topic_decision(request.name, changes, request.validate_only)

    def _topic_decision(
        self, name: str, changes: tuple[Change, ...], validate_only: bool
    ) -> ControllerResult[TopicImage]:
        after = self.image.apply(changes)
        return ControllerResult(() if validate_only else changes, after.topics[name], None if validate_only else after)

    def _find_topic(self, name: str) -> TopicImage:
        topic = self.image.topics.get(name)
        if topic is None:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:249]!r}")
        return topic
