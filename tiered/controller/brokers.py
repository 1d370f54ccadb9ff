"""Decisions of the controller about brokers: register, announce, unregister and configure (R1).

Effects on partitions are in `leaders` and `partition_transitions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tiered.config.exposure import check_exposure
from tiered.config.listener_overrides import has_listener, is_dynamic
from tiered.config.rules import check_addresses
from tiered.config.setting import text_of
from tiered.config.settings import Settings, TopicConfig, broker_rows
from tiered.config.unserved import CHANGEABLE, is_known_to_kafka, is_of_one_broker
from tiered.controller import leaders, partition_transitions, requests
from tiered.controller.adoption import find_adopted, is_proved
from tiered.controller.decision import ControllerResult
from tiered.controller.features import check_settings
from tiered.controller.leaders import UNCLEAN, PartitionContexts
from tiered.controller.partition_transitions import PartitionContext
from tiered.controller.placement import describe_shared_machine, find_shared_machine
from tiered.errors import Code, Refused
from tiered.ids import NO_EPOCH, PROCESSES_MAX, PartitionId, machine_of
from tiered.metadata import changes as kinds
from tiered.metadata import delta
from tiered.metadata.changes import ALL_BROKERS, Change
from tiered.metadata.effective_config import (
    CLUSTER_FLUSH,
    FLUSH_BUCKET,
    MIN_ISR,
    apply_edits,
    broker_settings,
    check_dynamic,
    cluster_flush,
    topic_config,
)
from tiered.metadata.features import FEATURES, METADATA_VERSION, PROCESSES, PROCESSES_REFUSED
from tiered.metadata.image import CORDONED, Image
from tiered.metadata.parts.brokers import BrokerImage
from tiered.metadata.parts.topics import End, PartitionImage, TopicImage
from tiered.metadata.stored_configs import stored_rows


def register(image: Image, settings: Settings, request: requests.RegisterBroker, now_ms: int) -> ControllerResult[None]:
    """Registers a new incarnation under its node id (R1).

    Raises `Refused` (DUPLICATE_BROKER_REGISTRATION) if another one has registered that the new one did not know: the
    request may be the late one of a process that is gone.

    Raises `Refused` (UNSUPPORTED_VERSION) if the broker does not support the level of `tiered.metadata.version` in
    force: it would stop at the first entry that it does not know.

    Raises `Refused` (INVALID_REGISTRATION) for a process whose node id belongs to another machine, or would put two
    replicas of a partition on one machine. `find_adopted` refuses replicas that it cannot take over.

    The first broker of a cluster sets the highest level of `tiered.metadata.version`.

    The first broker with a non-default `min.insync.replicas` sets that value for all brokers.
    """
    node, known = request.node_id, image.brokers.get(request.node_id)
    if known is not None and known.incarnation == request.incarnation:
        return ControllerResult((), None)
    if request.replaces not in (None, known.incarnation if known is not None else ""):
        why = f"another process has registered as broker {node}, or it was unregistered"
        raise Refused(Code.DUPLICATE_BROKER_REGISTRATION, why)
    if request.metadata_version < image.metadata_version:
        why = (
            f"broker {node} supports {METADATA_VERSION} up to level {request.metadata_version}, and the cluster has"
            f" level {image.metadata_version}: start the broker with a newer program"
        )
        raise Refused(Code.UNSUPPORTED_VERSION, why)
    _check_machine(image, request)
    changes: list[Change] = [
        kinds.BrokerRegistered(
            node, request.incarnation, request.directory, request.http, request.rack, now_ms, dict(request.listeners),
            process=request.process,
        )
    ]  # fmt: skip
    if not image.brokers and not image.topics and METADATA_VERSION not in image.features:
        changes.append(kinds.FeatureLevelSet(METADATA_VERSION, FEATURES[METADATA_VERSION].highest))
    own_min_isr = settings.min_insync_replicas
    if own_min_isr != TopicConfig().min_insync_replicas and MIN_ISR not in image.broker_configs.get(ALL_BROKERS, {}):
        changes.append(kinds.BrokerConfigChanged(ALL_BROKERS, {MIN_ISR: str(own_min_isr)}))
    changes += _adopt_flush(image.apply(changes), settings)
    adopted = find_adopted(image, node, request.process, request.adopted)
    reported_ends = _ReportedEnds(request)

    def register_replica(topic: TopicImage, p: int, old: PartitionImage, context: PartitionContext) -> PartitionImage:
        given = adopted.get(PartitionId(topic.topic_id, p)) if adopted else None
        if given is not None:
            end = reported_ends.end(topic, p, is_proved=is_proved(image, given))
            old = partition_transitions.adopt_replica(old, given.from_node, node)
            return partition_transitions.register_broker(old, node, end, context)
        if node not in old.replicas and not old.is_in_bucket:
            return old
        return partition_transitions.register_broker(old, node, reported_ends.end(topic, p), context)

    contexts = PartitionContexts(image.apply(changes), settings, image.live_ids() | {node}, now_ms)
    changes += leaders.change_partitions(image.topics.values(), contexts, register_replica)
    return ControllerResult(tuple(changes), None)


def _adopt_flush(image: Image, settings: Settings) -> Iterator[Change]:
    """Writes down `log.flush=bucket` of a configuration file, unless the metadata log has a value: controller and
    leaders must go by the same. Raises `Refused`."""
    if settings.log_flush == FLUSH_BUCKET and not cluster_flush(image):
        check_settings(image, {CLUSTER_FLUSH: FLUSH_BUCKET})
        yield kinds.BrokerConfigChanged(ALL_BROKERS, {CLUSTER_FLUSH: FLUSH_BUCKET})


def _check_machine(image: Image, request: requests.RegisterBroker) -> None:
    """Checks the machine of a broker that registers. Raises `Refused`."""
    node, process = request.node_id, request.process
    known, is_new = image.brokers.get(node), not image.brokers
    if process and not is_new and image.metadata_version < PROCESSES:
        raise Refused(Code.UNSUPPORTED_VERSION, PROCESSES_REFUSED)
    if not 0 <= process < PROCESSES_MAX or machine_of(node, process) < 0:
        raise Refused(Code.INVALID_REGISTRATION, f"broker {node} cannot be process {process} of a machine")
    if known is None or known.process == process:
        return
    machines = {**image.machines(), node: machine_of(node, process)}
    is_same_directory = bool(known.directory) and request.directory == known.directory
    for tp, topic in delta.hosted_partitions(image, node):
        if not is_same_directory:
            # Its records would count as lost, while the broker that has them is only stopped.
            why = f"broker {node} of machine {known.machine} has replicas, such as {tp}, in another data directory"
            raise Refused(
                Code.INVALID_REGISTRATION, f"{why}: give machines node ids that are no multiple of 1000 apart"
            )
        shared = find_shared_machine(topic.partitions[tp.partition].replicas, machines)
        if shared is not None:
            raise Refused(Code.INVALID_REGISTRATION, f"{tp}: {describe_shared_machine(*shared)}: move it away first")


class _ReportedEnds:
    """The log ends in a registration: none for a log that is proved whole (R1)."""

    def __init__(self, request: requests.RegisterBroker) -> None:
        self._node = request.node_id
        self._whole = request.whole
        self._proved = frozenset(request.proved if request.directory else ())
        self._ends = {(each.topic_id, each.partition): each for each in request.ends}

    def end(self, topic: TopicImage, p: int, *, is_proved: bool | None = None) -> End | None:
        """Returns the end of a log, or None if the log has everything that this broker ever reported to have.

        A log that is not proved whole and has no reported end counts as empty. `is_proved` says if an adopted log is:
        the proofs of this broker are not about it.
        """
        end = self._ends.get((topic.topic_id, p))
        if end is not None:
            return End(self._node, end.leader_epoch, end.end_offset)
        whole = self._whole or (topic.topic_id, p) in self._proved
        if is_proved is not None:
            whole = is_proved
        return None if whole else End(self._node, NO_EPOCH, 0)


def announce(image: Image, request: requests.AnnounceBroker, now_ms: int) -> ControllerResult[None]:
    """Records the addresses of an incarnation. Raises `Refused` if another live broker already has one of them."""
    known = image.check_incarnation(request.node_id, request.incarnation)
    for other in image.brokers.values():
        taken = set(request.listeners.values()).intersection(other.listeners.values())
        if other.live and other.node_id != request.node_id and taken:
            why = (
                f"broker {other.node_id} is at {min(taken)} already: set advertised.listeners of broker"
                f" {request.node_id} to its own address"
            )
            raise Refused(Code.INVALID_REGISTRATION, why)
    updated = replace(
        known, http=request.http, listeners=dict(request.listeners), advertised_http=request.advertised_http
    )
    return update_registration(image, updated, now_ms)


def update_registration(image: Image, broker: BrokerImage, now_ms: int) -> ControllerResult[None]:
    """Records other addresses or another data directory of the same incarnation."""
    if broker == image.brokers[broker.node_id]:
        return ControllerResult((), None)
    change = kinds.BrokerRegistered(
        broker.node_id, broker.incarnation, broker.directory, broker.http, broker.rack, now_ms, broker.listeners,
        broker.advertised_http, broker.process,
    )  # fmt: skip
    return ControllerResult((change,), None)


def unregister(image: Image, request: requests.UnregisterBroker) -> ControllerResult[None]:
    """Removes a broker and its settings from the metadata. Raises `Refused` while it is live or has replicas."""
    node, known = request.node_id, image.brokers.get(request.node_id)
    if known is None:
        raise Refused(Code.BROKER_ID_NOT_REGISTERED, f"there is no broker {node}")
    if known.live:
        raise Refused(Code.INVALID_REQUEST, f"broker {node} is live: stop it first")
    hosted = [str(tp) for tp, _ in delta.hosted_partitions(image, node)]
    if hosted:
        why = f"broker {node} has {len(hosted)} replicas, such as {hosted[0]}: move them away first (decommission)"
        raise Refused(Code.INVALID_REQUEST, why)
    return ControllerResult((kinds.BrokerUnregistered(node, known.incarnation),), None)


def alter_configs(
    image: Image, settings: Settings, request: requests.AlterBrokerConfigs, now_ms: int
) -> ControllerResult[dict[str, str]]:
    """Changes settings of one broker, or of all brokers if `node_id` is -1.

    `min.insync.replicas` can be set for all brokers only, because leader and controller must use the same value (R3).
    """
    if request.node_id != ALL_BROKERS and request.node_id not in image.brokers:
        raise Refused(Code.BROKER_ID_NOT_REGISTERED, f"there is no broker {request.node_id}")
    before = broker_settings(image, settings, request.node_id)
    current = image.broker_configs.get(request.node_id, {})
    unserved = {name: text_of(row.default) for name, row in CHANGEABLE.items()}
    in_force = {**unserved, **current, **before.to_strings()}
    edits = apply_edits(request.configs, current, in_force, stored_rows(), replace=request.replace)
    edits = {  # Kafka takes the reset of any setting, and there is nothing to reset
        name: value
        for name, value in edits.items()
        if value is not None or name in current or not is_known_to_kafka(name)
    }
    check_dynamic(edits)
    check_settings(image, edits)
    if request.node_id == ALL_BROKERS and (alone := [name for name in edits if is_of_one_broker(name)]):
        raise Refused(Code.INVALID_CONFIG, f"{alone[0]}: it can be set for one broker only")
    listeners = {each.name for each in settings.effective_listeners()}
    for name, value in edits.items():
        if value is not None and is_dynamic(name) and not has_listener(name, listeners):
            raise Refused(Code.INVALID_CONFIG, f"{name}: no listener has that name; there are: {', '.join(listeners)}")
    if request.node_id != ALL_BROKERS and edits.get(CLUSTER_FLUSH) == FLUSH_BUCKET:
        raise broker_rows()[CLUSTER_FLUSH].refuse(FLUSH_BUCKET, "it can be set for a topic or for all brokers only")
    if request.node_id != ALL_BROKERS and edits.get(MIN_ISR) is not None:
        raise broker_rows()[MIN_ISR].refuse(str(edits[MIN_ISR]), "it can be set for a topic or for all brokers only")
    if request.node_id == ALL_BROKERS and MIN_ISR in current and edits.get(MIN_ISR, "") is None:
        # Kafka refuses this too (KIP-966): a removal does not show which number takes effect instead.
        raise Refused(Code.INVALID_CONFIG, f"{MIN_ISR} of all brokers cannot be removed: set it to another value")
    if request.node_id == ALL_BROKERS and edits.get(CORDONED):
        raise broker_rows()[CORDONED].refuse(
            str(edits[CORDONED]), "it can be set for one broker only: new topics need others"
        )
    changes: tuple[Change, ...] = (kinds.BrokerConfigChanged(request.node_id, edits),)
    after = image.apply(changes)
    chosen = broker_settings(after, settings, request.node_id)
    check_addresses(chosen, broker_rows())
    check_exposure(chosen, before)
    defaults = chosen.topic_defaults()
    for topic in after.topics.values():
        topic_config(topic, defaults)
    if request.node_id == ALL_BROKERS and edits.keys() & {MIN_ISR, UNCLEAN, CLUSTER_FLUSH}:
        contexts = PartitionContexts(after, settings, after.live_ids(), now_ms)
        changes = (*changes, *leaders.reevaluate_partitions(image, after, after.topics, contexts))
    return ControllerResult(() if request.validate_only else changes, dict(after.broker_configs[request.node_id]))
