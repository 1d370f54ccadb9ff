"""The controller's decisions about in-sync sets and leaders, over all partitions that they concern.

Each partition goes by `in_sync`; here stand who is live, what each topic asks for, and what is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from tiered.config.settings import Settings
from tiered.controller import partition_transitions, requests
from tiered.controller.decision import Decision
from tiered.controller.partition_transitions import PartitionContext
from tiered.errors import Code, Refused
from tiered.ids import PartitionId, TopicId, incarnation_number
from tiered.metadata import changes as kinds
from tiered.metadata.changes import ALL_BROKERS, NO_LEADER, Change
from tiered.metadata.effective_config import MIN_ISR, cluster_min_isr
from tiered.metadata.image import BrokerImage, End, Image, PartitionImage, TopicImage

UNCLEAN = "unclean.leader.election.enable"
CORDONED = "cordoned.log.dirs"

PartitionTransition = Callable[[TopicImage, int, PartitionImage, PartitionContext], PartitionImage]


class PartitionContexts:
    """What the partitions of each topic go by, worked out once per topic.

    `min.insync.replicas` is what the log says of the topic or of all brokers, never what one broker was started with
    (`cluster_min_isr`)."""

    def __init__(self, image: Image, settings: Settings, live: frozenset[int], now_ms: int) -> None:
        said = image.broker_configs.get(ALL_BROKERS, {})
        unclean = said.get(UNCLEAN)
        unclean_default = settings.unclean_leader_election_enable if unclean is None else _is_true(unclean)
        self._defaults = PartitionContext(live, cluster_min_isr(image), unclean_default, now_ms, stopping_ids(image))

    def __call__(self, topic: TopicImage) -> PartitionContext:
        """The terms of one topic."""
        min_isr, unclean = topic.configs.get(MIN_ISR), topic.configs.get(UNCLEAN)
        context = self._defaults
        if min_isr is not None:
            context = replace(context, min_isr=int(min_isr))
        return context if unclean is None else replace(context, unclean=_is_true(unclean))


def live_brokers(image: Image) -> list[BrokerImage]:
    """The brokers that may lead and be in sync, by age."""
    return [broker for broker in image.brokers.values() if broker.live]


def stopping_ids(image: Image) -> frozenset[int]:
    """Those that have said so."""
    return frozenset(broker.node_id for broker in image.brokers.values() if broker.stopping)


def placement_racks(image: Image) -> dict[int, str]:
    """Where new replicas may go: the rack of each live broker that is not cordoned."""
    return {each.node_id: each.rack for each in live_brokers(image) if not is_cordoned(image, each.node_id)}


def is_cordoned(image: Image, node_id: int) -> bool:
    """Whether it gets no new replicas (KIP-1066)."""
    given = image.broker_configs.get(node_id, {}).get(CORDONED)
    return given is not None and bool(Settings.from_strings({CORDONED: given}).cordoned_log_dirs)


def live_ids(image: Image) -> frozenset[int]:
    """Their node ids."""
    return frozenset(broker.node_id for broker in image.brokers.values() if broker.live)


def check_incarnation(image: Image, node_id: int, incarnation: str) -> BrokerImage:
    """The broker, when this incarnation of it is the last that registered."""
    known = image.brokers.get(node_id)
    if known is None or known.incarnation != incarnation:
        raise Refused(Code.STALE_BROKER_EPOCH, f"another incarnation of broker {node_id} has registered")
    return known


def change_partitions(
    topics: Iterable[TopicImage], contexts: PartitionContexts, transition: PartitionTransition
) -> Iterator[Change]:
    """What `step` makes of each partition, as changes."""
    for topic in topics:
        context = contexts(topic)
        for p, old in enumerate(topic.partitions):
            new = transition(topic, p, old, context)
            if new is not old:
                yield from partition_transitions.to_changes(topic.topic_id, p, old, new, context)


def reevaluate_partitions(topics: Iterable[TopicImage], contexts: PartitionContexts) -> Iterator[Change]:
    """After other settings: who is eligible, and whether somebody leads now."""
    return change_partitions(topics, contexts, lambda _, __, old, terms: partition_transitions.reevaluate(old, terms))


def new_partition_change(
    topic_id: TopicId, p: int, replicas: tuple[int, ...], context: PartitionContext
) -> kinds.PartitionChanged:
    """Who leads a partition that comes to be."""
    made = partition_transitions.new_partition(replicas, context)
    return kinds.PartitionChanged(topic_id, p, made.leader, made.leader_epoch, made.isr, ())


def stop_broker(image: Image, settings: Settings, request: requests.StopBroker, now_ms: int) -> Decision[None]:
    """Leaderships move to live members of the ISR; where there is none, the partition waits."""
    check_incarnation(image, request.node_id, request.incarnation)
    stopped = kinds.BrokerStopped(request.node_id, request.incarnation)
    return Decision((stopped, *_remove_broker(image, settings, request.node_id, now_ms)), None)


def fence_broker(image: Image, settings: Settings, request: requests.FenceBroker, now_ms: int) -> Decision[None]:
    """As a stop, until it is heard again. Nothing to do for an incarnation that does not live."""
    known = image.brokers.get(request.node_id)
    if known is None or known.incarnation != request.incarnation or not known.live:
        return Decision((), None)
    fenced = kinds.BrokerFenced(request.node_id, request.incarnation)
    return Decision((fenced, *_remove_broker(image, settings, request.node_id, now_ms)), None)


def unfence_broker(image: Image, settings: Settings, request: requests.UnfenceBroker, now_ms: int) -> Decision[None]:
    """It may lead again what nobody leads; in-sync sets it joins as a follower."""
    node, known = request.node_id, image.brokers.get(request.node_id)
    if known is None or known.incarnation != request.incarnation or not known.fenced or not known.alive:
        return Decision((), None)

    def reevaluate_leaderless(_: TopicImage, __: int, old: PartitionImage, terms: PartitionContext) -> PartitionImage:
        waits = old.leader == NO_LEADER and node in old.replicas
        return partition_transitions.reevaluate(old, terms) if waits else old

    contexts = PartitionContexts(image, settings, live_ids(image) | {node}, now_ms)
    unfenced = kinds.BrokerUnfenced(node, request.incarnation)
    return Decision((unfenced, *change_partitions(image.topics.values(), contexts, reevaluate_leaderless)), None)


def hand_over_leaders(image: Image, settings: Settings, request: requests.HandOver, now_ms: int) -> Decision[int]:
    """Partition by partition; the reply counts what it still leads."""
    check_incarnation(image, request.node_id, request.incarnation)
    node, still_led = request.node_id, 0

    def step(_: TopicImage, __: int, old: PartitionImage, terms: PartitionContext) -> PartitionImage:
        nonlocal still_led
        new = partition_transitions.hand_over(old, node, terms)
        still_led += new.leader == node
        return new

    made = tuple(
        change_partitions(image.topics.values(), PartitionContexts(image, settings, live_ids(image), now_ms), step)
    )
    others = live_ids(image) - stopping_ids(image) - {node}
    said = (kinds.BrokerStopping(node, request.incarnation),) if others else ()
    return Decision((*said, *made), still_led)


def leave_partitions(
    image: Image, settings: Settings, request: requests.LeavePartitions, now_ms: int
) -> Decision[None]:
    """As a stop, for some partitions. Those that are not there any more are passed over."""
    check_incarnation(image, request.node_id, request.incarnation)
    node, made = request.node_id, list[Change]()
    contexts = PartitionContexts(image, settings, live_ids(image) - {node}, now_ms)
    for topic_id, p in dict.fromkeys(request.partitions):
        found = _find_partition(image, topic_id, p)
        if isinstance(found, Code):
            continue
        old, context = found[1], contexts(found[0])
        new = partition_transitions.remove_broker(old, node, context)
        if new is not old:
            made += partition_transitions.to_changes(topic_id, p, old, new, context)
    return Decision(tuple(made), None)


def alter_isrs(
    image: Image, settings: Settings, request: requests.AlterPartitions, now_ms: int
) -> Decision[tuple[Code, ...]]:
    """Wishes of one leader. The second for one partition goes by an epoch that has passed."""
    check_incarnation(image, request.node_id, request.incarnation)
    numbers = {
        broker.node_id: number for broker in live_brokers(image) if (number := _incarnation_number(broker)) is not None
    }
    contexts = PartitionContexts(image, settings, live_ids(image), now_ms)
    made: list[Change] = []
    codes: list[Code] = []
    decided: set[tuple[TopicId, int]] = set()
    for change in request.wishes:
        found = _find_partition(image, change.topic_id, change.partition)
        if isinstance(found, Code):
            codes.append(found)
            continue
        topic, old = found
        if (change.topic_id, change.partition) in decided:
            codes.append(Code.INVALID_UPDATE_VERSION)
            continue
        new = partition_transitions.alter_isr(old, request.node_id, change, numbers, contexts(topic))
        if isinstance(new, Code):
            codes.append(new)
            continue
        codes.append(Code.NONE)
        if new is not old:
            decided.add((change.topic_id, change.partition))
            made += partition_transitions.to_changes(change.topic_id, change.partition, old, new, contexts(topic))
    return Decision(tuple(made), tuple(codes))


def elect_leaders(
    image: Image, settings: Settings, request: requests.ElectLeaders, now_ms: int
) -> Decision[tuple[tuple[TopicId, int, Code], ...]]:
    """As an operator asks. Each partition once."""
    wanted: Iterable[tuple[TopicId, int]] = request.partitions or ()
    if request.partitions is None:
        wanted = ((topic.topic_id, p) for topic in image.topics.values() for p in range(len(topic.partitions)))
    contexts = PartitionContexts(image, settings, live_ids(image), now_ms)
    made: list[Change] = []
    codes: dict[tuple[TopicId, int], Code] = {}
    for topic_id, p in wanted:
        if (topic_id, p) in codes:
            continue
        found = _find_partition(image, topic_id, p)
        if isinstance(found, Code):
            codes[topic_id, p] = found
            continue
        topic, old = found
        new = (partition_transitions.elect_preferred if request.preferred else partition_transitions.elect_unclean)(
            old, contexts(topic)
        )
        codes[topic_id, p] = new if isinstance(new, Code) else Code.NONE
        if isinstance(new, PartitionImage):
            made += partition_transitions.to_changes(topic_id, p, old, new, contexts(topic))
    return Decision(tuple(made), tuple((topic_id, p, code) for (topic_id, p), code in codes.items()))


def plan_preferred_leaders(image: Image) -> tuple[tuple[TopicId, int], ...]:
    """Partitions that their first replica does not lead although it is in sync, and is not about to stop."""
    electable = live_ids(image) - stopping_ids(image)
    return tuple(
        (topic.topic_id, p)
        for topic in image.topics.values()
        for p, each in enumerate(topic.partitions)
        if each.leader != (first := each.replicas[0]) and first in each.isr and first in electable
    )


def report_loss(image: Image, request: requests.ReportLoss, now_ms: int) -> Decision[None]:
    """Also of a leader that is in force no more: whoever followed it has no more than it had. Of several losses the
    newest stays, and reaches as far back as any that is told of after it; what its own leader found in the bucket is
    not lost."""
    found = _find_partition(image, request.topic_id, request.partition)
    if isinstance(found, Code) or found[1].leader_epoch < request.leader_epoch:
        return Decision((), None)
    epoch, offset, known = request.leader_epoch, request.from_offset, found[1].loss
    if known is not None and known.leader_epoch >= epoch:
        offset = min(offset, known.from_offset)
        if known.leader_epoch == epoch:
            offset = max(offset, request.stored_to)
        if known.from_offset == offset:
            return Decision((), None)
        epoch = known.leader_epoch
    lost = kinds.LossReported(request.topic_id, request.partition, epoch, offset, now_ms)
    return Decision((lost,), None)


def acknowledge_losses(image: Image, request: requests.AcknowledgeLosses, now_ms: int) -> Decision[None]:
    """Those that are there; a loss that was told since stays."""
    seen = tuple(
        (topic_id, p, epoch)
        for topic_id, p, epoch in dict.fromkeys(request.losses)
        if any(each.leader_epoch <= epoch for each in image.losses.get(PartitionId(topic_id, p), ()))
    )
    return Decision((kinds.LossesAcknowledged(seen, now_ms),) if seen else (), None)


def note_stored_ends(image: Image, request: requests.NoteStoredEnds) -> Decision[None]:
    """Of the partitions that the broker still leads under the epoch that it names."""
    check_incarnation(image, request.node_id, request.incarnation)
    made = []
    for each in {(each.topic_id, each.partition): each for each in request.ends}.values():
        found = _find_partition(image, each.topic_id, each.partition)
        if isinstance(found, Code):
            continue
        leads = (found[1].leader, found[1].leader_epoch) == (request.node_id, each.leader_epoch)
        if leads and found[1].stored_end != each.offset:
            made.append((each.topic_id, each.partition, each.offset))
    return Decision((kinds.StoredEndsNoted(tuple(made)),) if made else (), None)


def report_ends(image: Image, settings: Settings, request: requests.ReportEnds, now_ms: int) -> Decision[None]:
    """A broker says how far logs go that elections wait for. What nobody waits for any more is passed over."""
    check_incarnation(image, request.node_id, request.incarnation)
    contexts = PartitionContexts(image, settings, live_ids(image), now_ms)
    made: list[Change] = []
    for each in {(each.topic_id, each.partition): each for each in request.ends}.values():
        found = _find_partition(image, each.topic_id, each.partition)
        if isinstance(found, Code) or found[1].leader_epoch != each.asked_in:
            continue
        (topic, old), end = found, End(request.node_id, each.leader_epoch, each.end_offset)
        context = contexts(topic)
        made += partition_transitions.to_changes(
            each.topic_id, each.partition, old, partition_transitions.report_end(old, end, context), context
        )
    return Decision(tuple(made), None)


def _remove_broker(image: Image, settings: Settings, node: int, now_ms: int) -> Iterator[Change]:
    contexts = PartitionContexts(image, settings, live_ids(image) - {node}, now_ms)
    return change_partitions(
        image.topics.values(), contexts, lambda _, __, old, terms: partition_transitions.remove_broker(old, node, terms)
    )


def _find_partition(image: Image, topic_id: TopicId, p: int) -> tuple[TopicImage, PartitionImage] | Code:
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        return Code.UNKNOWN_TOPIC_ID
    return (topic, topic.partitions[p]) if 0 <= p < len(topic.partitions) else Code.UNKNOWN_TOPIC_OR_PARTITION


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _incarnation_number(broker: BrokerImage) -> int | None:
    """None for an incarnation that no follower can name."""
    try:
        return incarnation_number(broker.incarnation)
    except ValueError:
        return None
