"""Decisions of the controller about leaders and ISRs, over all partitions that a request concerns.

The transitions of one partition are in `partition_transitions`. This file finds the live brokers and each topic's
settings, and refuses requests that do not fit (R1 to R4).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from zlib import crc32

from tiered.config.settings import Settings
from tiered.controller import partition_transitions, requests
from tiered.controller.decision import ControllerResult
from tiered.controller.partition_transitions import PartitionContext
from tiered.errors import Code, Refused
from tiered.ids import PartitionId, TopicId, incarnation_number
from tiered.metadata import changes as kinds
from tiered.metadata.changes import (
    ALL_BROKERS,
    BAD_DISKS,
    DISK_RECOVERING,
    DISK_USABLE,
    NO_LEADER,
    Change,
)
from tiered.metadata.effective_config import (
    FLUSH,
    FLUSH_BUCKET,
    MIN_ISR,
    cluster_flush,
    cluster_min_isr,
    flushes_to_bucket,
)
from tiered.metadata.features import DISK_REPORTS, LOSS_TIMES, METADATA_VERSION
from tiered.metadata.image import Image
from tiered.metadata.parts.brokers import BrokerImage
from tiered.metadata.parts.topics import End, PartitionImage, TopicImage

UNCLEAN = "unclean.leader.election.enable"

DISK_STATES = (DISK_USABLE, *BAD_DISKS, DISK_RECOVERING)

PartitionTransition = Callable[[TopicImage, int, PartitionImage, PartitionContext], PartitionImage]


class PartitionContexts:
    """The context of each topic's partitions: live brokers and the topic's settings.

    `min.insync.replicas` is the value in the metadata log, for the topic or for all brokers. A value that one broker
    was started with never counts (`cluster_min_isr`).
    """

    def __init__(self, image: Image, settings: Settings, live: frozenset[int], now_ms: int) -> None:
        configs = image.broker_configs.get(ALL_BROKERS, {})
        unclean = configs.get(UNCLEAN)
        unclean_default = settings.unclean_leader_election_enable if unclean is None else _is_true(unclean)
        self._defaults = PartitionContext(
            live, cluster_min_isr(image), unclean_default, now_ms, image.stopping_ids(), image.bad_disk_ids(),
            image.recovering_disk_ids(),
        )  # fmt: skip
        self._image = image
        self._flush_default = cluster_flush(image)

    def __call__(self, topic: TopicImage) -> PartitionContext:
        """Returns the context of one topic."""
        min_isr, unclean = topic.configs.get(MIN_ISR), topic.configs.get(UNCLEAN)
        context = self._defaults
        if min_isr is not None:
            context = replace(context, min_isr=int(min_isr))
        if topic.configs.get(FLUSH, self._flush_default) == FLUSH_BUCKET:
            context = replace(context, chained={node: self._image.brokers[node].incarnation for node in context.live})
        return context if unclean is None else replace(context, unclean=_is_true(unclean))

    def of_partition(self, topic: TopicImage, p: int, context: PartitionContext) -> PartitionContext:
        """Returns the context of one partition of a topic with chains: the brokers take turns as the spare one. It is
        on no machine of another replica (I35)."""
        machines = self._image.machines()
        taken = {machines.get(node, node) for node in topic.partitions[p].replicas[1:]}
        free = [node for node in sorted(context.live) if machines.get(node, node) not in taken]
        spares = [node for node in free if node not in context.stopping | context.full] or free
        turn = crc32(topic.topic_id.encode()) + p
        return replace(context, spare=spares[turn % len(spares)] if spares else None)


def change_partitions(
    topics: Iterable[TopicImage], contexts: PartitionContexts, transition: PartitionTransition
) -> Iterator[Change]:
    """Returns the changes that `transition` makes to each partition."""
    for topic in topics:
        context = contexts(topic)
        for p, old in enumerate(topic.partitions):
            if context.chained is not None:
                context = contexts.of_partition(topic, p, context)
            new = transition(topic, p, old, context)
            if new is not old:
                yield from partition_transitions.to_changes(topic.topic_id, p, old, new, context)


def reevaluate_partitions(
    before: Image, after: Image, names: Iterable[str], contexts: PartitionContexts
) -> Iterator[Change]:
    """Returns the changes that follow from changed settings: eligible replicas and leaders may differ. `before` and
    `after` are the images without and with the changed settings."""

    for name in names:
        was_in_bucket = flushes_to_bucket(before, before.topics[name].configs)
        is_changed = was_in_bucket != flushes_to_bucket(after, after.topics[name].configs)
        transition = _change_flush if is_changed else _reevaluate
        yield from change_partitions([after.topics[name]], contexts, transition)


def _change_flush(_: TopicImage, __: int, old: PartitionImage, context: PartitionContext) -> PartitionImage:
    return partition_transitions.change_flush(old, context)


def _reevaluate(_: TopicImage, __: int, old: PartitionImage, context: PartitionContext) -> PartitionImage:
    return partition_transitions.reevaluate(old, context)


def stop_broker(image: Image, settings: Settings, request: requests.StopBroker, now_ms: int) -> ControllerResult[None]:
    """Moves leaderships of a stopped broker to live ISR members. A partition without one waits for its election."""
    image.check_incarnation(request.node_id, request.incarnation)
    stopped = kinds.BrokerStopped(request.node_id, request.incarnation)
    return ControllerResult((stopped, *_remove_brokers(image, settings, (request.node_id,), now_ms)), None)


def fence_broker(
    image: Image, settings: Settings, request: requests.FenceBroker, now_ms: int
) -> ControllerResult[None]:
    """Does the same as a stop, until the broker is unfenced. Changes nothing for an incarnation that is not live."""
    fenced = [
        kinds.BrokerFenced(node, incarnation)
        for node, incarnation in dict.fromkeys(((request.node_id, request.incarnation), *request.others))
        if (known := image.brokers.get(node)) is not None and known.incarnation == incarnation and known.live
    ]
    nodes = [each.node_id for each in fenced]
    return ControllerResult((*fenced, *(_remove_brokers(image, settings, nodes, now_ms) if nodes else ())), None)


def unfence_broker(
    image: Image, settings: Settings, request: requests.UnfenceBroker, now_ms: int
) -> ControllerResult[None]:
    """Lets a broker lead leaderless partitions again. It joins ISRs only as a follower."""
    node, known = request.node_id, image.brokers.get(request.node_id)
    if known is None or known.incarnation != request.incarnation or not known.fenced or not known.alive:
        return ControllerResult((), None)

    def reevaluate_leaderless(_: TopicImage, __: int, old: PartitionImage, context: PartitionContext) -> PartitionImage:
        waits = old.leader == NO_LEADER and node in old.replicas
        return partition_transitions.reevaluate(old, context) if waits else old

    contexts = PartitionContexts(image, settings, image.live_ids() | {node}, now_ms)
    unfenced = kinds.BrokerUnfenced(node, request.incarnation)
    return ControllerResult(
        (unfenced, *change_partitions(image.topics.values(), contexts, reevaluate_leaderless)), None
    )


def hand_over_leaders(
    image: Image, settings: Settings, request: requests.HandOver, now_ms: int
) -> ControllerResult[int]:
    """Hands over leaderships partition by partition; the reply is the number that the broker still leads."""
    image.check_incarnation(request.node_id, request.incarnation)
    node, still_led = request.node_id, 0

    def hand_over(_: TopicImage, __: int, old: PartitionImage, context: PartitionContext) -> PartitionImage:
        nonlocal still_led
        new = partition_transitions.hand_over(old, node, context)
        still_led += new.leader == node
        return new

    changes = tuple(
        change_partitions(
            image.topics.values(), PartitionContexts(image, settings, image.live_ids(), now_ms), hand_over
        )
    )
    others = image.live_ids() - image.stopping_ids() - {node}
    stopping = (kinds.BrokerStopping(node, request.incarnation),) if others else ()
    return ControllerResult((*stopping, *changes), still_led)


def report_disk(image: Image, settings: Settings, request: requests.ReportDisk, now_ms: int) -> ControllerResult[int]:
    """Records the state of a broker's disk, and moves leaderships from full or stalled disks to other ISR members.
    Followers with such disks leave ISRs that are large enough without them.

    A disk that has room again may take leaderships of other brokers whose disks are full.
    """
    known = image.check_incarnation(request.node_id, request.incarnation)
    if request.disk not in DISK_STATES:
        raise Refused(Code.INVALID_REQUEST, f"the disk of a broker is no {request.disk[:20]!r}")
    if image.metadata_version < DISK_REPORTS:
        raise Refused(Code.UNSUPPORTED_VERSION, f"brokers report disks from {METADATA_VERSION}={DISK_REPORTS} on")
    if known.disk == request.disk:
        return ControllerResult((), 0)
    node, moved = request.node_id, 0

    def leave_full_disk(_: TopicImage, __: int, old: PartitionImage, context: PartitionContext) -> PartitionImage:
        nonlocal moved
        new = partition_transitions.leave_full_disk(old, context)
        moved += old.leader == node != new.leader
        return new

    reported = kinds.BrokerDiskReported(node, request.incarnation, request.disk, 0, now_ms)
    contexts = PartitionContexts(image.apply((reported,)), settings, image.live_ids(), now_ms)
    changes = tuple(change_partitions(image.topics.values(), contexts, leave_full_disk))
    return ControllerResult((replace(reported, moved=moved), *changes), moved)


def leave_partitions(
    image: Image, settings: Settings, request: requests.LeavePartitions, now_ms: int
) -> ControllerResult[None]:
    """Does the same as a stop, for some partitions. Skips partitions that no longer exist."""
    image.check_incarnation(request.node_id, request.incarnation)
    node, changes = request.node_id, list[Change]()
    contexts = PartitionContexts(image, settings, image.live_ids() - {node}, now_ms)
    for topic_id, p in dict.fromkeys(request.partitions):
        found = _find_partition(image, topic_id, p)
        if isinstance(found, Code):
            continue
        old, context = found[1], contexts(found[0])
        new = partition_transitions.remove_brokers(old, (node,), context)
        if new is not old:
            changes += partition_transitions.to_changes(topic_id, p, old, new, context)
    return ControllerResult(tuple(changes), None)


def alter_isrs(
    image: Image, settings: Settings, request: requests.AlterPartitions, now_ms: int
) -> ControllerResult[tuple[Code, ...]]:
    """Decides ISR changes of one leader. A second change for a partition is refused: its partition epoch has passed."""
    image.check_incarnation(request.node_id, request.incarnation)
    numbers = {
        broker.node_id: number for broker in image.live_brokers() if (number := _incarnation_number(broker)) is not None
    }
    contexts = PartitionContexts(image, settings, image.live_ids(), now_ms)
    changes: list[Change] = []
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
            changes += partition_transitions.to_changes(change.topic_id, change.partition, old, new, contexts(topic))
    return ControllerResult(tuple(changes), tuple(codes))


def elect_leaders(
    image: Image, settings: Settings, request: requests.ElectLeaders, now_ms: int
) -> ControllerResult[tuple[tuple[TopicId, int, Code], ...]]:
    """Runs the elections that an operator requested, each partition once."""
    wanted: Iterable[tuple[TopicId, int]] = request.partitions or ()
    if request.partitions is None:
        wanted = ((topic.topic_id, p) for topic in image.topics.values() for p in range(len(topic.partitions)))
    contexts = PartitionContexts(image, settings, image.live_ids(), now_ms)
    changes: list[Change] = []
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
            changes += partition_transitions.to_changes(topic_id, p, old, new, contexts(topic))
    return ControllerResult(tuple(changes), tuple((topic_id, p, code) for (topic_id, p), code in codes.items()))


def report_loss(image: Image, request: requests.ReportLoss, now_ms: int) -> ControllerResult[None]:
    """Records a loss, also one reported by an earlier leader: its followers have no more than it had.

    The newest of several losses stays. It reaches back as far as any loss that is reported after it. Records that its
    own leader found in the bucket are not lost (`stored_to`).
    """
    found = _find_partition(image, request.topic_id, request.partition)
    if isinstance(found, Code) or found[1].leader_epoch < request.leader_epoch:
        return ControllerResult((), None)
    epoch, offset, known = request.leader_epoch, request.from_offset, found[1].loss
    if known is not None and known.leader_epoch >= epoch:
        offset = min(offset, known.from_offset)
        if known.leader_epoch == epoch:
            offset = max(offset, request.stored_to)
        if known.from_offset == offset:
            return ControllerResult((), None)
        epoch = known.leader_epoch
    is_dated = image.metadata_version >= LOSS_TIMES and offset == max(request.from_offset, request.stored_to)
    newest_ms = request.newest_ms if is_dated else 0
    lost = kinds.LossReported(request.topic_id, request.partition, epoch, offset, now_ms, newest_ms)
    return ControllerResult((lost,), None)


def acknowledge_losses(image: Image, request: requests.AcknowledgeLosses, now_ms: int) -> ControllerResult[None]:
    """Acknowledges the losses that exist; a loss of a later epoch stays."""
    seen = tuple(
        (topic_id, p, epoch)
        for topic_id, p, epoch in dict.fromkeys(request.losses)
        if any(each.leader_epoch <= epoch for each in image.losses.get(PartitionId(topic_id, p), ()))
    )
    return ControllerResult((kinds.LossesAcknowledged(seen, now_ms),) if seen else (), None)


def note_stored_ends(
    image: Image, settings: Settings, request: requests.NoteStoredEnds, now_ms: int
) -> ControllerResult[None]:
    """Records stored ends, and what is in chains, for partitions that the broker still leads under the epoch that it
    names."""
    image.check_incarnation(request.node_id, request.incarnation)
    noted = []
    for each in {(each.topic_id, each.partition): each for each in request.ends}.values():
        found = _find_partition(image, each.topic_id, each.partition)
        if isinstance(found, Code):
            continue
        leads = (found[1].leader, found[1].leader_epoch) == (request.node_id, each.leader_epoch)
        if leads and found[1].stored_end != each.offset:
            noted.append((each.topic_id, each.partition, each.offset))
    changes: list[Change] = [kinds.StoredEndsNoted(tuple(noted))] if noted else []
    contexts = PartitionContexts(image, settings, image.live_ids(), now_ms)
    for topic_id, p, partition_epoch, is_in_bucket in dict.fromkeys(request.chained):
        found = _find_partition(image, topic_id, p)
        if not isinstance(found, Code) and found[1].leader == request.node_id:
            topic, old = found
            context = contexts(topic)
            new = partition_transitions.note_stored(old, partition_epoch, context, is_in_bucket=is_in_bucket)
            if new is not old:
                changes += partition_transitions.to_changes(topic_id, p, old, new, context)
    return ControllerResult(tuple(changes), None)


def report_ends(image: Image, settings: Settings, request: requests.ReportEnds, now_ms: int) -> ControllerResult[None]:
    """Records log ends for which elections wait (R4). Skips partitions whose election no longer waits."""
    image.check_incarnation(request.node_id, request.incarnation)
    contexts = PartitionContexts(image, settings, image.live_ids(), now_ms)
    changes: list[Change] = []
    for each in {(each.topic_id, each.partition): each for each in request.ends}.values():
        found = _find_partition(image, each.topic_id, each.partition)
        if isinstance(found, Code) or found[1].leader_epoch != each.asked_in:
            continue
        (topic, old), end = found, End(request.node_id, each.leader_epoch, each.end_offset)
        context = contexts(topic)
        changes += partition_transitions.to_changes(
            each.topic_id, each.partition, old, partition_transitions.report_end(old, end, context), context
        )
    return ControllerResult(tuple(changes), None)


def _remove_brokers(image: Image, settings: Settings, nodes: Collection[int], now_ms: int) -> Iterator[Change]:
    contexts = PartitionContexts(image, settings, image.live_ids() - set(nodes), now_ms)
    return change_partitions(
        image.topics.values(), contexts, lambda _, __, old, ctx: partition_transitions.remove_brokers(old, nodes, ctx)
    )


def _find_partition(image: Image, topic_id: TopicId, p: int) -> tuple[TopicImage, PartitionImage] | Code:
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        return Code.UNKNOWN_TOPIC_ID
    return (topic, topic.partitions[p]) if 0 <= p < len(topic.partitions) else Code.UNKNOWN_TOPIC_OR_PARTITION


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _incarnation_number(broker: BrokerImage) -> int | None:
    """Returns None for an incarnation that has no number: no follower fetch can name it."""
    try:
        return incarnation_number(broker.incarnation)
    except ValueError:
        return None
