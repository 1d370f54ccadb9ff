"""Who is in sync with a partition, who left the set whole, and who leads: every way in which that changes.

Pure functions from one `PartitionImage` to the next; the same object where nothing changes. The rules are R1 to R4 of
docs/INVARIANTS.md. What always holds is in `check`; what must never be lost is the eligible set: while |ISR| is below
`min.insync.replicas` the high watermark stands still, so whoever left it since has all that was acknowledged (ELR,
KIP-966); as soon as the ISR is large enough again, it alone does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tiered.controller.requests import IsrWish
from tiered.errors import Code, check_invariant
from tiered.ids import NO_EPOCH, TopicId
from tiered.metadata.changes import NO_LEADER, Change, LossReported, PartitionChanged
from tiered.metadata.image import End, Loss, PartitionImage

END_UNKNOWN = (NO_EPOCH, 1)
"""What counts of a log of which nobody told the end: more than an empty one, and less than any that holds a record."""
UNKNOWN_OFFSET = 0
"""Where a loss begins of which nobody knows; the leader that finds its log reports what it has."""


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What a change goes by: who may lead, who of them is about to stop, the topic's settings, and the time. Where
    there are fewer replicas than `min_isr`, all of them are asked for, which leaves nobody else to be eligible."""

    live: frozenset[int]
    min_isr: int = 1
    unclean: bool = False
    now_ms: int = 0
    stopping: frozenset[int] = frozenset()


def new_partition(replicas: tuple[int, ...], context: PartitionContext) -> PartitionImage:
    """A new partition: nothing is stored, so everybody who lives is in sync."""
    isr = tuple(node for node in replicas if node in context.live)
    leader = _first_live(isr, replicas, context)
    return PartitionImage(replicas, NO_LEADER if leader is None else leader, 0, isr)


def remove_broker(old: PartitionImage, node: int, context: PartitionContext) -> PartitionImage:
    """`node` is fenced or has stopped; `terms.live` is without it. What its log holds is not in doubt."""
    if node not in old.isr:
        return reevaluate(old, context) if old.last_known else old  # an election may have waited for what it has
    isr = _without(old.isr, node)
    return _update_sets(old, isr, (*old.elr, node), old.last_known, old.ends, context)


def register_broker(old: PartitionImage, node: int, end: End | None, context: PartitionContext) -> PartitionImage:
    """A new incarnation of `node` is there, and in `terms.live` (rule R1). With an `end` its log is not proved whole:
    it is no longer eligible, and while nobody leads, an election may have to wait for it (rule R4)."""
    eligible = node in old.isr or node in old.elr
    if node not in old.replicas or not (eligible or old.leader == NO_LEADER):
        return old
    isr, elr, last_known, ends = _without(old.isr, node), _without(old.elr, node), old.last_known, old.ends
    if eligible and end is None:
        elr = old.elr if node in old.elr else (*elr, node)
    elif end is not None and (eligible or node in last_known):
        last_known = (*_without(last_known, node), node)
        ends = (*(each for each in ends if each.node_id != node), end)
    elif node not in last_known:
        ends = tuple(each for each in ends if each.node_id != node)  # of the incarnation before
        if end is not None and node in _replicas_without_end(old, last_known, ends, context.live):
            ends = (*ends, end)
    return _update_sets(old, isr, elr, last_known, ends, context)


def awaited_replicas(image: PartitionImage, live: frozenset[int]) -> frozenset[int]:
    """Returns the live replicas that have still to say how far their logs go. All last known members are back, and none
    of them has all that was acknowledged: one that was not in sync may have more of it than they (rule R4)."""
    election_waits = image.leader == NO_LEADER and not (image.isr or image.elr)
    return _replicas_without_end(image, image.last_known, image.ends, live) if election_waits else frozenset()


def report_end(old: PartitionImage, end: End, context: PartitionContext) -> PartitionImage:
    """A replica says how far its log goes; the best of all leads once nobody else is awaited."""
    if end.node_id not in awaited_replicas(old, context.live):
        return old
    return _update_sets(old, (), (), old.last_known, (*old.ends, end), context)


def reevaluate(old: PartitionImage, context: PartitionContext) -> PartitionImage:
    """The same incarnation lives again, or the topic's settings changed: somebody may lead now, and an ISR that is
    large enough now is alone eligible."""
    return _update_sets(old, old.isr, old.elr, old.last_known, old.ends, context)


def hand_over(old: PartitionImage, node: int, context: PartitionContext) -> PartitionImage:
    """`node` is about to stop. Where enough others are in sync it is so no more: nobody waits for what it copies no
    longer. Else it stays in sync until it has stopped, and another one leads, if there is one."""
    if node in old.isr and len(old.isr) > max(1, min(context.min_isr, len(old.replicas))):
        return remove_broker(old, node, replace(context, live=context.live - {node}))
    successor = _first_live(_without(old.isr, node), old.replicas, context)
    return old if old.leader != node or successor is None else _in_next_epoch(old, successor, old.isr, old.elr, context)


def elect_preferred(old: PartitionImage, context: PartitionContext) -> PartitionImage | Code:
    """The first replica leads, where it is in sync and is not about to stop."""
    preferred_leader = old.replicas[0]
    if old.leader == preferred_leader:
        return Code.ELECTION_NOT_NEEDED
    if preferred_leader not in old.isr or preferred_leader not in context.live or preferred_leader in context.stopping:
        return Code.PREFERRED_LEADER_NOT_AVAILABLE
    return _in_next_epoch(old, preferred_leader, old.isr, old.elr, context)


def elect_unclean(old: PartitionImage, context: PartitionContext) -> PartitionImage | Code:
    """Somebody who lives leads, whatever it lacks: an operator's word ends the wait."""
    if old.leader != NO_LEADER:
        return Code.ELECTION_NOT_NEEDED
    found = reevaluate(old, replace(context, unclean=True))
    return Code.ELIGIBLE_LEADERS_NOT_AVAILABLE if found is old else found


def alter_isr(
    old: PartitionImage, node: int, change: IsrWish, incarnations: Mapping[int, int], context: PartitionContext
) -> PartitionImage | Code:
    """What `node` wishes as leader, granted or refused (KIP-497). `incarnations` are the numbers of live brokers. That
    a member has all that is committed is for the leader to know (rule R2)."""
    if change.leader_epoch != old.leader_epoch:
        return Code.FENCED_LEADER_EPOCH if change.leader_epoch < old.leader_epoch else Code.UNKNOWN_LEADER_EPOCH
    if old.leader != node:
        return Code.NOT_LEADER_OR_FOLLOWER
    if change.partition_epoch != old.partition_epoch:
        return Code.INVALID_UPDATE_VERSION
    new_isr = [each.node_id for each in change.isr]
    if node not in new_isr or len(set(new_isr)) != len(new_isr):
        return Code.INVALID_REQUEST
    for each in change.isr:
        if each.node_id not in old.replicas or incarnations.get(each.node_id) != each.incarnation:
            return Code.INELIGIBLE_REPLICA
        if each.node_id in context.stopping and each.node_id not in old.isr:
            return Code.INELIGIBLE_REPLICA  # or everybody would wait for it once more
    isr = tuple(each for each in old.replicas if each in new_isr)
    if set(isr) == set(old.isr):
        return replace(old)  # a change all the same: with it the leader knows that no earlier wish is granted any more
    removed = tuple(each for each in old.isr if each not in new_isr)
    elr = (*(each for each in old.elr if each not in new_isr), *removed)
    return _update_sets(old, isr, elr, (), (), context)


def start_reassignment(old: PartitionImage, target: tuple[int, ...], context: PartitionContext) -> PartitionImage:
    """`target` are to be the replicas (KIP-455), of a partition that does not move yet. Whoever is in the way leaves
    once all of them are in sync: till then there are more copies, never fewer."""
    if target == old.replicas:
        return old
    adding = tuple(node for node in target if node not in old.replicas)
    removing = tuple(node for node in old.replicas if node not in target)
    return _finish_reassignment(replace(old, replicas=(*target, *removing), adding=adding, removing=removing), context)


def cancel_reassignment(old: PartitionImage, context: PartitionContext) -> PartitionImage | Code:
    """The move is called off: who was added leaves, unless nobody else has what was acknowledged."""
    if not old.is_reassigning:
        return Code.NO_REASSIGNMENT_IN_PROGRESS
    remaining = tuple(node for node in old.replicas if node not in old.adding)
    eligible = old.isr or old.elr
    if eligible and not set(remaining).intersection(eligible):
        return Code.INVALID_REPLICA_ASSIGNMENT
    if not eligible and not set(remaining).issuperset(old.last_known):
        return Code.INVALID_REPLICA_ASSIGNMENT
    return _keep_replicas(old, remaining, context)


def to_changes(
    topic_id: TopicId, p: int, old: PartitionImage, new: PartitionImage, context: PartitionContext
) -> Iterator[Change]:
    """What makes `new` of `old`. `Broken` rather than that something wrong is written."""
    if new is old:
        return
    check_invariants(new, context)
    check_invariant(new.leader_epoch >= old.leader_epoch, "leader epochs never go back", old, new)
    ends = tuple((end.node_id, end.leader_epoch, end.end_offset) for end in new.ends)
    yield PartitionChanged(
        topic_id, p, new.leader, new.leader_epoch, new.isr, new.elr, new.last_known, ends,
        () if new.replicas == old.replicas else new.replicas, new.adding, new.removing,
    )  # fmt: skip
    if new.loss is not None and new.loss != old.loss:
        yield LossReported(topic_id, p, new.loss.leader_epoch, new.loss.from_offset, new.loss.at_ms)


def check_invariants(image: PartitionImage, context: PartitionContext) -> None:
    """What always holds."""
    isr, elr = set(image.isr), set(image.elr)
    check_invariant(isr <= set(image.replicas) and elr <= set(image.replicas) and not isr & elr, image)
    check_invariant(isr <= context.live, image, context)
    check_invariant(image.leader in isr or (image.leader == NO_LEADER and not isr), image)
    check_invariant(not elr or len(isr) < context.min_isr, image, context)
    check_invariant(image.leader == NO_LEADER or not (image.last_known or image.ends), image)
    check_invariant(set(image.last_known) <= {end.node_id for end in image.ends} <= set(image.replicas), image)
    check_invariant(not elr & set(image.last_known), image)
    check_invariant(set(image.adding) | set(image.removing) <= set(image.replicas), image)
    check_invariant(not set(image.adding) & set(image.removing) and set(image.last_known) <= set(image.replicas), image)


def _update_sets(
    old: PartitionImage,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    last_known: tuple[int, ...],
    ends: tuple[End, ...],
    context: PartitionContext,
) -> PartitionImage:
    """`old` with these sets, led as follows from them; a move may be over by that, if nothing was lost by it."""
    new = _elect_leader(old, isr, elr, last_known, ends, context)
    return _finish_reassignment(new, context) if new.is_reassigning and new is not old and new.loss == old.loss else new


def _elect_leader(
    old: PartitionImage,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    last_known: tuple[int, ...],
    ends: tuple[End, ...],
    context: PartitionContext,
) -> PartitionImage:
    """A leader who is not in `isr` is none."""
    if len(isr) >= context.min_isr:
        elr = ()
    if old.leader in isr:
        same = isr == old.isr and elr == old.elr
        return old if same else _in_same_epoch(old, old.leader, isr, elr)
    leader = _first_live(isr, old.replicas, context)
    if leader is not None:
        return _in_next_epoch(old, leader, isr, elr, context)
    leader = _first_live(elr, old.replicas, context)
    if leader is not None:
        return _in_next_epoch(old, leader, (leader,), _without(elr, leader), context)
    candidates = old.replicas
    if context.unclean or not last_known:  # not all of them say what they have, and who was just added may have nothing
        candidates = tuple(node for node in old.replicas if node not in old.adding or node in last_known)
    leader = _last_resort(candidates, elr, last_known, ends, context)
    if leader is None:
        made = _in_same_epoch(old, NO_LEADER, (), elr, last_known, ends)
        return old if old.leader == NO_LEADER and made == old else made
    made = _in_next_epoch(old, leader, (leader,), (), context)
    if not elr and last_known in ((), (leader,)):
        return made  # nothing was ever stored, or the only one that is waited for reports itself what it lacks
    end = next((each for each in ends if each.node_id == leader), None)
    # Of who was not in sync to the last, an end of older records may lie beyond where later ones were acknowledged.
    end_is_certain = end is not None and (leader in last_known or end.leader_epoch == old.leader_epoch)
    offset = end.end_offset if end is not None and end_is_certain else UNKNOWN_OFFSET
    return replace(made, loss=Loss(made.leader_epoch, offset, context.now_ms))


def _in_same_epoch(
    old: PartitionImage,
    leader: int,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    last_known: tuple[int, ...] = (),
    ends: tuple[End, ...] = (),
) -> PartitionImage:
    """Under the same epoch. (Written out: `replace` takes four times as long, and a broker has ten thousand.)"""
    return PartitionImage(
        old.replicas, leader, old.leader_epoch, isr, elr, old.loss, old.partition_epoch, last_known, ends,
        old.adding, old.removing, old.stored_end,
    )  # fmt: skip


def _in_next_epoch(
    old: PartitionImage, leader: int, isr: tuple[int, ...], elr: tuple[int, ...], context: PartitionContext
) -> PartitionImage:
    """Under the next epoch, whoever led before; the election is over."""
    elr = () if len(isr) >= context.min_isr else elr
    return PartitionImage(
        old.replicas, leader, old.leader_epoch + 1, isr, elr, old.loss, old.partition_epoch, (), (),
        old.adding, old.removing, old.stored_end,
    )  # fmt: skip


def _finish_reassignment(image: PartitionImage, context: PartitionContext) -> PartitionImage:
    """Who is to leave does, once somebody leads and all others are in sync."""
    target = image.target_replicas
    is_complete = image.is_reassigning and image.leader != NO_LEADER and set(target) <= set(image.isr)
    return _keep_replicas(image, target, context) if is_complete else image


def _keep_replicas(image: PartitionImage, replicas: tuple[int, ...], context: PartitionContext) -> PartitionImage:
    """Only `replicas` are left, and nothing moves. When somebody leaves it is under the next epoch: nothing that a
    leader knows of who was there counts for who is added again, with an empty log."""
    isr = tuple(node for node in image.isr if node in replicas)
    elr = tuple(node for node in image.elr if node in replicas)
    last_known = tuple(node for node in image.last_known if node in replicas)
    ends = tuple(end for end in image.ends if end.node_id in replicas)
    kept = replace(image, replicas=replicas, isr=isr, elr=elr, adding=(), removing=(), last_known=last_known, ends=ends)
    if replicas == image.replicas:
        return kept
    if image.leader in isr:
        return _in_next_epoch(kept, image.leader, isr, elr, context)
    leader = _first_live(isr, replicas, context)
    return kept if leader is None else _in_next_epoch(kept, leader, isr, elr, context)


def _last_resort(
    replicas: tuple[int, ...],
    elr: tuple[int, ...],
    last_known: tuple[int, ...],
    ends: tuple[End, ...],
    context: PartitionContext,
) -> int | None:
    """Who leads though nobody who lives is eligible: the best of all who live, once all of the last known are back and
    all have said what they have (rule R4), anybody where nothing was ever stored, or where the topic prefers to serve.
    """
    if not context.unclean and (elr or not context.live.issuperset(last_known)):
        return None
    live = tuple(node for node in replicas if node in context.live)
    if not live:
        return None
    known_ends = {end.node_id: (end.leader_epoch, end.end_offset) for end in ends}
    if last_known and not context.unclean and not known_ends.keys() >= set(live):
        return None
    return max(live, key=lambda node: known_ends.get(node, END_UNKNOWN))  # the first in the order of replicas


def _replicas_without_end(
    image: PartitionImage, last_known: tuple[int, ...], ends: tuple[End, ...], live: frozenset[int]
) -> frozenset[int]:
    if not last_known or not live.issuperset(last_known):
        return frozenset()
    return live.intersection(image.replicas) - {end.node_id for end in ends}


def _first_live(nodes: tuple[int, ...], replicas: tuple[int, ...], context: PartitionContext) -> int | None:
    """Who lives, in the order of replicas. Who is about to stop serves nobody: only where there is no other."""
    live = [node for node in replicas if node in nodes and node in context.live]
    if not live:
        return None
    return next((node for node in live if node not in context.stopping), live[0]) if context.stopping else live[0]


def _without(nodes: tuple[int, ...], node: int) -> tuple[int, ...]:
    return tuple(each for each in nodes if each != node) if node in nodes else nodes
