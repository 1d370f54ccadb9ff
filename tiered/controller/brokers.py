"""The controller's decisions about brokers: who they are, what is set for them, and what a new incarnation means."""

from __future__ import annotations

from dataclasses import replace

from tiered.config.settings import Settings, TopicConfig, broker_rows
from tiered.controller import leaders, partition_transitions, requests
from tiered.controller.decision import Decision
from tiered.controller.leaders import CORDONED, UNCLEAN, PartitionContexts
from tiered.controller.partition_transitions import PartitionContext
from tiered.errors import Code, Refused
from tiered.ids import NO_EPOCH
from tiered.metadata import changes as kinds
from tiered.metadata import delta
from tiered.metadata.changes import ALL_BROKERS, Change
from tiered.metadata.effective_config import MIN_ISR, apply_edits, broker_settings, check_dynamic, topic_config
from tiered.metadata.image import BrokerImage, End, Image, PartitionImage, TopicImage


def register(image: Image, settings: Settings, request: requests.RegisterBroker, now_ms: int) -> Decision[None]:
    """A new incarnation takes its node id. The first with a `min.insync.replicas` of its own says so for all."""
    node, known = request.node_id, image.brokers.get(request.node_id)
    if known is not None and known.incarnation == request.incarnation:
        return Decision((), None)
    made: list[Change] = [
        kinds.BrokerRegistered(
            node, request.incarnation, request.directory, request.http, request.rack, now_ms, dict(request.listeners)
        )
    ]
    wanted = settings.min_insync_replicas
    if wanted != TopicConfig().min_insync_replicas and MIN_ISR not in image.broker_configs.get(ALL_BROKERS, {}):
        made.append(kinds.BrokerConfigChanged(ALL_BROKERS, {MIN_ISR: str(wanted)}))
    reported_ends = _ReportedEnds(request)

    def step(topic: TopicImage, p: int, old: PartitionImage, terms: PartitionContext) -> PartitionImage:
        return (
            partition_transitions.register_broker(old, node, reported_ends.end(topic, p), terms)
            if node in old.replicas
            else old
        )

    contexts = PartitionContexts(image.apply(made), settings, leaders.live_ids(image) | {node}, now_ms)
    made += leaders.change_partitions(image.topics.values(), contexts, step)
    return Decision(tuple(made), None)


class _ReportedEnds:
    """What a registration says of each log: nothing where it is whole (rule R1), else its end."""

    def __init__(self, request: requests.RegisterBroker) -> None:
        self._node = request.node_id
        self._whole = request.whole
        self._proved = frozenset(request.proved if request.directory else ())
        self._ends = {(each.topic_id, each.partition): each for each in request.ends}

    def end(self, topic: TopicImage, p: int) -> End | None:
        """None: it has all that this broker ever said it has. An end that is not told is that of an empty log."""
        end = self._ends.get((topic.topic_id, p))
        if end is not None:
            return End(self._node, end.leader_epoch, end.end_offset)
        whole = self._whole or (topic.topic_id, p) in self._proved
        return None if whole else End(self._node, NO_EPOCH, 0)


def announce(image: Image, request: requests.AnnounceBroker, now_ms: int) -> Decision[None]:
    """Where an incarnation answers now. `Refused` where another broker that lives does."""
    known = leaders.check_incarnation(image, request.node_id, request.incarnation)
    for other in image.brokers.values():
        taken = set(request.listeners.values()).intersection(other.listeners.values())
        if other.live and other.node_id != request.node_id and taken:
            why = (
                f"broker {other.node_id} is at {min(taken)}: advertised.listeners of broker {request.node_id} must say"
                " where that one is reached itself"
            )
            raise Refused(Code.INVALID_REGISTRATION, why)
    updated = replace(
        known, http=request.http, listeners=dict(request.listeners), advertised_http=request.advertised_http
    )
    return update_registration(image, updated, now_ms)


def update_registration(image: Image, broker: BrokerImage, now_ms: int) -> Decision[None]:
    """The same incarnation, with something else to say of itself."""
    if broker == image.brokers[broker.node_id]:
        return Decision((), None)
    change = kinds.BrokerRegistered(
        broker.node_id, broker.incarnation, broker.directory, broker.http, broker.rack, now_ms, broker.listeners,
        broker.advertised_http,
    )  # fmt: skip
    return Decision((change,), None)


def unregister(image: Image, request: requests.UnregisterBroker) -> Decision[None]:
    """Takes a broker out of the metadata, and its settings with it. `Refused` while it is live or has replicas."""
    node, known = request.node_id, image.brokers.get(request.node_id)
    if known is None:
        raise Refused(Code.BROKER_ID_NOT_REGISTERED, f"there is no broker {node}")
    if known.live:
        raise Refused(Code.INVALID_REQUEST, f"broker {node} is live: stop it first")
    held = [str(tp) for tp, _ in delta.hosted_partitions(image, node)]
    if held:
        why = f"broker {node} has {len(held)} replicas, {held[0]} for one: move them away first (decommission)"
        raise Refused(Code.INVALID_REQUEST, why)
    return Decision((kinds.BrokerUnregistered(node, known.incarnation),), None)


def alter_configs(
    image: Image, settings: Settings, request: requests.AlterBrokerConfigs, now_ms: int
) -> Decision[dict[str, str]]:
    """Settings of one broker or of all; `min.insync.replicas` of all only, for everybody has to mean the same by it."""
    if request.node_id != ALL_BROKERS and request.node_id not in image.brokers:
        raise Refused(Code.BROKER_ID_NOT_REGISTERED, f"there is no broker {request.node_id}")
    in_force = broker_settings(image, settings, request.node_id).to_strings()
    own = image.broker_configs.get(request.node_id, {})
    edits = apply_edits(request.configs, own, in_force, broker_rows(), replace=request.replace)
    check_dynamic(edits)
    if request.node_id != ALL_BROKERS and edits.get(MIN_ISR) is not None:
        raise broker_rows()[MIN_ISR].refuse(str(edits[MIN_ISR]), "it is set for a topic or for all brokers")
    if request.node_id == ALL_BROKERS and MIN_ISR in own and edits.get(MIN_ISR, "") is None:
        # As Kafka refuses it (KIP-966): nobody sees from a removal which number comes in its place.
        raise Refused(Code.INVALID_CONFIG, f"{MIN_ISR} of all brokers is not removed: set it to what shall be in force")
    if request.node_id == ALL_BROKERS and edits.get(CORDONED):
        raise broker_rows()[CORDONED].refuse(str(edits[CORDONED]), "it is set for one broker: new topics need others")
    made: tuple[Change, ...] = (kinds.BrokerConfigChanged(request.node_id, edits),)
    after = image.apply(made)
    defaults = broker_settings(after, settings, request.node_id).topic_defaults()
    for topic in after.topics.values():
        topic_config(topic, defaults)
    if request.node_id == ALL_BROKERS and edits.keys() & {MIN_ISR, UNCLEAN}:
        contexts = PartitionContexts(after, settings, leaders.live_ids(after), now_ms)
        made = (*made, *leaders.reevaluate_partitions(after.topics.values(), contexts))
    return Decision(() if request.validate_only else made, dict(after.broker_configs[request.node_id]))
