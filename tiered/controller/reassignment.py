"""Decisions of the controller about partition reassignments (KIP-455): granted, refused or cancelled.

The steps of one partition are in `partition_transitions`, plans for many in `reassignment_planner`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from operator import attrgetter
from typing import NamedTuple

from tiered.config.settings import Settings
from tiered.controller import partition_transitions, requests
from tiered.controller.decision import ControllerResult
from tiered.controller.leaders import PartitionContexts
from tiered.controller.partition_limits import PartitionLimits
from tiered.controller.partition_transitions import PartitionContext
from tiered.controller.placement import describe_shared_machine, find_shared_machine
from tiered.errors import Code, Refused
from tiered.ids import TopicId
from tiered.metadata.changes import Change, LossReported, PartitionChanged
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import PartitionImage, TopicImage

_PARTITION_CHANGE = attrgetter(*(each.name for each in fields(PartitionChanged)))
"""Returns the fields of a change: the id of the topic and the partition come first."""
REASONS = {
    Code.NO_REASSIGNMENT_IN_PROGRESS: "No partition reassignment is in progress.",
    Code.INVALID_REPLICA_ASSIGNMENT: "none of the replicas that would stay has all acknowledged records",
}


def reassign(
    image: Image, settings: Settings, request: requests.Reassign, now_ms: int
) -> ControllerResult[tuple[Refused | None, ...]]:
    """Decides each move by itself and returns the changes of all that are granted.

    Equal moves of equal partitions of a topic are judged once: a request may name ten thousand partitions.
    """
    contexts = PartitionContexts(image, settings, image.live_ids(), now_ms)
    limits = PartitionLimits(image, settings)
    changes: list[Change] = []
    results: list[Refused | None] = []
    decided: set[tuple[TopicId, int]] = set()
    judged: dict[tuple[TopicId, int, tuple[int, ...] | None], _Outcome] = {}
    topics_by_id = image.topics_by_id
    for move in request.moves:
        key = (move.topic_id, move.partition)
        try:
            topic = topics_by_id.get(move.topic_id)
            if topic is None or not 0 <= move.partition < len(topic.partitions):
                raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, "the partition does not exist")
            if key in decided:
                raise Refused(Code.INVALID_REQUEST, "the request names the partition twice")
            decided.add(key)
            old = topic.partitions[move.partition]
            outcome = judged.get((move.topic_id, id(old), move.replicas))
            if outcome is None:
                outcome = _judge_move(image, topic, old, move, contexts(topic), other_counts=request.other_counts)
                judged[move.topic_id, id(old), move.replicas] = outcome
            if outcome.refused is not None:
                raise outcome.refused
            if outcome.added:
                limits.add_replica_of_each(outcome.added)
        except Refused as refused:
            results.append(refused.with_traceback(None))
            continue
        results.append(None)
        changes += [_move_to(change, move.partition) for change in outcome.changes]
    return ControllerResult(tuple(changes), tuple(results))


def _move_to(change: PartitionChanged | LossReported, partition: int) -> Change:
    """Returns the same change of another partition. `replace` takes three times as long."""
    if not isinstance(change, PartitionChanged):
        return replace(change, partition=partition)
    topic_id, _, *others = _PARTITION_CHANGE(change)
    return PartitionChanged(topic_id, partition, *others)


class _Outcome(NamedTuple):
    """The outcome of a move: the brokers that get a replica and the changes, or the refusal."""

    added: tuple[int, ...] = ()
    changes: tuple[PartitionChanged | LossReported, ...] = ()
    refused: Refused | None = None


def _judge_move(
    image: Image,
    topic: TopicImage,
    old: PartitionImage,
    move: requests.Move,
    context: PartitionContext,
    *,
    other_counts: bool,
) -> _Outcome:
    try:
        new = _reassign_partition(image, old, move.replicas, context, other_counts=other_counts)
    except Refused as refused:
        return _Outcome(refused=refused)
    changes = tuple(partition_transitions.to_changes(topic.topic_id, move.partition, old, new, context))
    return _Outcome(tuple(set(new.replicas) - set(old.replicas)), changes)


def _reassign_partition(
    image: Image, old: PartitionImage, target: tuple[int, ...] | None, context: PartitionContext, *, other_counts: bool
) -> PartitionImage:
    if target is None:
        cancelled = partition_transitions.cancel_reassignment(old, context)
        if isinstance(cancelled, Code):
            raise Refused(cancelled, REASONS[cancelled])
        return cancelled
    _check_target(image, old, target)
    if not other_counts and len(target) != len(old.target_replicas):
        why = f"the number of replicas would change from {len(old.target_replicas)} to {len(target)}"
        raise Refused(Code.INVALID_REPLICATION_FACTOR, why)
    if not old.is_reassigning:
        return partition_transitions.start_reassignment(old, target, context)
    if target != old.target_replicas:
        why = f"a reassignment to {list(old.target_replicas)} is in progress: wait for its end or cancel it first"
        raise Refused(Code.REASSIGNMENT_IN_PROGRESS, why)
    return old


def _check_target(image: Image, old: PartitionImage, target: tuple[int, ...]) -> None:
    """Raises `Refused`, with Kafka's words where Kafka refuses too.

    New replicas must be live: otherwise the reassignment would never end.
    """
    what = "The manual partition assignment includes"
    if not target:
        raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, f"{what} an empty replica list.")
    for index, node in enumerate(target):
        known = image.brokers.get(node)
        if known is None:
            raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, f"{what} broker {node}, but no such broker is registered.")
        if node in target[:index]:
            raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, f"{what} the broker {node} more than once.")
        if node not in old.replicas and not known.live:
            raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, f"{what} broker {node}, which is not live.")
        if node not in old.replicas and image.is_cordoned(node):
            raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, f"{what} broker {node}, which is cordoned.")
    # Replicas that are to leave count too: they stay until the new ones are in sync.
    added = [node for node in target if node not in old.replicas]
    if added and (pair := find_shared_machine([*old.replicas, *added], image.machines())) is not None:
        raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, f"{describe_shared_machine(*pair)}.")
