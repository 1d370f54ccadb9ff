"""Every transition of one partition's leader, ISR and ELR (R1 to R4, R7, I8 to I10, I36).

Pure functions from one `PartitionImage` to the next. The functions return the same object if nothing changes.
`check_invariants` holds after each transition. The eligible replicas must never be lost: while the ISR is below
`min.insync.replicas`, the high watermark stands still. So a replica that left the ISR since then has all acknowledged
records (ELR, KIP-966). Once the ISR is large enough again, only its members are certain to have them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from tiered.controller.requests import IsrChange
from tiered.errors import Code, check_invariant
from tiered.ids import NO_EPOCH, TopicId
from tiered.metadata.changes import NO_LEADER, LossReported, PartitionChanged
from tiered.metadata.parts.topics import ChainRef, End, Loss, PartitionImage
from tiered.value import value

END_UNKNOWN = (NO_EPOCH, 1)
"""(epoch, end) that ranks a log without a reported end: above an empty log and below any log with a record."""
UNKNOWN_OFFSET = 0
"""First offset of a loss whose extent is unknown; the elected leader reports the true extent from its log."""


@value
class PartitionContext:
    """Inputs of a transition: the live brokers, those that are stopping, those whose disk is full or recovers from
    that, the topic's settings and the time.

    If a partition has fewer replicas than `min_isr`, all of them are required, which leaves no other replica eligible.
    `chained` has the incarnation of each live broker if the topic has `flush=bucket`, else None. `spare` is a live
    broker that takes the place of a replica if none is left; None if there is no such broker.
    """

    live: frozenset[int]
    min_isr: int = 1
    unclean: bool = False
    now_ms: int = 0
    stopping: frozenset[int] = frozenset()
    full: frozenset[int] = frozenset()
    recovering: frozenset[int] = frozenset()
    chained: Mapping[int, str] | None = None
    spare: int | None = None


def new_partition(replicas: tuple[int, ...], context: PartitionContext) -> PartitionImage:
    """Returns a new partition: nothing is stored yet, so all live replicas are in sync.

    Replicas on full disks are left out if enough others are there: acks=all would wait for them.
    """
    live = tuple(node for node in replicas if node in context.live)
    room = tuple(node for node in live if node not in context.full)
    isr = room if len(room) >= max(1, min(context.min_isr, len(replicas))) else live
    leader = _first_live(isr, replicas, context)
    if leader is None:
        return PartitionImage(replicas, NO_LEADER, 0, isr)
    if context.chained is None:
        return PartitionImage(replicas, leader, 0, isr)
    chains = (ChainRef(0, leader, context.chained[leader]),)
    return PartitionImage(replicas, leader, 0, isr, chains=chains, is_in_bucket=True)


def remove_brokers(old: PartitionImage, nodes: Collection[int], context: PartitionContext) -> PartitionImage:
    """Removes `nodes`, which are fenced or stopped, from the ISR; `context.live` no longer has them.

    Their logs are still trusted, so they can stay eligible (ELR). All that leave at once can: no leader commits between
    them. If they left one after the other, only the last one of a whole ISR could lead again.
    """
    removed = tuple(node for node in old.isr if node in nodes)
    if not removed:
        return reevaluate(old, context) if old.last_known else old  # an election may have waited for a log end
    isr = tuple(node for node in old.isr if node not in nodes)
    return _update_sets(old, isr, (*old.elr, *removed), old.last_known, old.ends, context)


def register_broker(old: PartitionImage, node: int, end: End | None, context: PartitionContext) -> PartitionImage:
    """Registers a new incarnation of `node`, which is in `context.live` (R1).

    With an `end`, its log is not proved whole. It is then no longer eligible. If the partition has no leader, the
    election may have to wait for it (R4).
    """
    eligible = node in old.isr or node in old.elr
    if node not in old.replicas and old.is_in_bucket and old.leader == NO_LEADER:
        return reevaluate(old, context)  # it can lead, with what is in the bucket
    if node not in old.replicas or not (eligible or old.leader == NO_LEADER):
        return old
    isr, elr, last_known, ends = _without(old.isr, node), _without(old.elr, node), old.last_known, old.ends
    if eligible and end is None:
        elr = old.elr if node in old.elr else (*elr, node)
    elif end is not None and (eligible or node in last_known):
        last_known = (*_without(last_known, node), node)
        ends = (*(each for each in ends if each.node_id != node), end)
    elif node not in last_known:
        ends = tuple(each for each in ends if each.node_id != node)  # the earlier incarnation's
        if end is not None and node in _replicas_without_end(old, last_known, ends, context.live):
            ends = (*ends, end)
    return _update_sets(old, isr, elr, last_known, ends, context)


def adopt_replica(old: PartitionImage, giver: int, node: int) -> PartitionImage:
    """Gives the place of `giver`, which is not live, to `node`: the log has moved there as it was (I36).

    The leader epoch is raised, as for each replica that leaves: nothing that a leader knows of `giver` counts for
    `node`.
    """
    check_invariant(giver not in old.isr and node not in old.replicas, old, giver, node)

    def swap(nodes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(node if each == giver else each for each in nodes)

    ends = tuple(end._replace(node_id=node) if end.node_id == giver else end for end in old.ends)
    return replace(
        old, replicas=swap(old.replicas), leader_epoch=old.leader_epoch + 1, elr=swap(old.elr),
        last_known=swap(old.last_known), ends=ends, adding=swap(old.adding), removing=swap(old.removing),
    )  # fmt: skip


def awaited_replicas(image: PartitionImage, live: frozenset[int]) -> frozenset[int]:
    """Returns the live replicas whose log ends a waiting election still needs (R4).

    All last known members are then back and none of them is proved whole. A replica that was not in sync may have more
    of the acknowledged records than they have.
    """
    election_waits = image.leader == NO_LEADER and not (image.isr or image.elr)
    return _replicas_without_end(image, image.last_known, image.ends, live) if election_waits else frozenset()


def report_end(old: PartitionImage, end: End, context: PartitionContext) -> PartitionImage:
    """Records the log end of a replica. The most complete log leads once no other end is awaited."""
    if end.node_id not in awaited_replicas(old, context.live):
        return old
    return _update_sets(old, (), (), old.last_known, (*old.ends, end), context)


def reevaluate(old: PartitionImage, context: PartitionContext) -> PartitionImage:
    """Applies changed settings, or the return of the same incarnation.

    A leader may be found now. If the ISR is large enough now, only its members stay eligible.
    """
    return _update_sets(old, old.isr, old.elr, old.last_known, old.ends, context)


def change_flush(old: PartitionImage, context: PartitionContext) -> PartitionImage:
    """Applies another `flush` of the topic: until its leader says so again, records may be on disks alone. While nobody
    leads, nobody writes, and what was in the bucket is all that there is.

    The chains stay: the leader may not have read them yet. The partition epoch grows even if nothing else changes, so
    that a note under the settings before does not count (`note_stored`).
    """
    return reevaluate(replace(old, is_in_bucket=old.is_in_bucket and old.leader == NO_LEADER), context)


def hand_over(old: PartitionImage, node: int, context: PartitionContext) -> PartitionImage:
    """Prepares the stop of `node`.

    If enough others are in sync, removes `node` from the ISR now, so that acks=all no longer waits for it. Otherwise
    `node` stays in sync until it has stopped, and another ISR member leads if there is one.
    """
    if node in old.isr and _has_more_than_needed(old, context):
        return remove_brokers(old, (node,), replace(context, live=context.live - {node}))
    successor = _first_live(_without(old.isr, node), old.replicas, context)
    return old if old.leader != node or successor is None else _in_next_epoch(old, successor, old.isr, old.elr, context)


def leave_full_disk(old: PartitionImage, context: PartitionContext) -> PartitionImage:
    """Moves the leadership away from a broker whose disk is full, if an ISR member has room. Without such a member it
    keeps leading: reads go on.

    If enough others are in sync, each broker with a full disk leaves the ISR, so that acks=all does not wait for it.
    """
    new = old
    if old.leader in context.full:
        successor = _first_live(_without(old.isr, old.leader), old.replicas, context)
        if successor is None or successor in context.full or successor in context.stopping:
            return old
        new = hand_over(old, old.leader, context)
    for node in new.isr:
        if node in context.full and node != new.leader and _has_more_than_needed(new, context):
            new = remove_brokers(new, (node,), replace(context, live=context.live - {node}))
    return new


def _has_more_than_needed(image: PartitionImage, context: PartitionContext) -> bool:
    """True if the ISR is large enough without one of its members."""
    return len(image.isr) > max(1, min(context.min_isr, len(image.replicas)))


def elect_preferred(old: PartitionImage, context: PartitionContext) -> PartitionImage | Code:
    """Elects the preferred leader if it is in sync, live and not stopping, and its disk is not full."""
    preferred_leader = old.replicas[0]
    if old.leader == preferred_leader:
        return Code.ELECTION_NOT_NEEDED
    electable = context.live - context.stopping - context.full
    if preferred_leader not in old.isr or preferred_leader not in electable:
        return Code.PREFERRED_LEADER_NOT_AVAILABLE
    return _in_next_epoch(old, preferred_leader, old.isr, old.elr, context)


def elect_unclean(old: PartitionImage, context: PartitionContext) -> PartitionImage | Code:
    """Elects a live replica even if it lacks records: an operator's command ends the wait (R4)."""
    if old.leader != NO_LEADER:
        return Code.ELECTION_NOT_NEEDED
    new = reevaluate(old, replace(context, unclean=True))
    return Code.ELIGIBLE_LEADERS_NOT_AVAILABLE if new is old else new


def alter_isr(
    old: PartitionImage, node: int, change: IsrChange, incarnations: Mapping[int, int], context: PartitionContext
) -> PartitionImage | Code:
    """Grants or refuses an ISR change of leader `node` (KIP-497). `incarnations` are the numbers of live brokers.

    The leader ensures that each member has everything that is committed (R2).
    """
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
        if each.node_id in context.stopping | context.full and each.node_id not in old.isr:
            return Code.INELIGIBLE_REPLICA  # acks=all would wait for it again
    isr = tuple(each for each in old.replicas if each in new_isr)
    if set(isr) == set(old.isr):
        # Still a change: its partition epoch tells the leader that no earlier request can be granted any more.
        return replace(old)
    removed = tuple(each for each in old.isr if each not in new_isr)
    elr = (*(each for each in old.elr if each not in new_isr), *removed)
    return leave_full_disk(_update_sets(old, isr, elr, (), (), context), context)


def start_reassignment(old: PartitionImage, target: tuple[int, ...], context: PartitionContext) -> PartitionImage:
    """Starts a reassignment to `target` (KIP-455) of a partition that has none in progress.

    Replicas to remove stay until all of `target` are in sync: meanwhile there are more replicas, never fewer.
    """
    if target == old.replicas:
        return old
    adding = tuple(node for node in target if node not in old.replicas)
    removing = tuple(node for node in old.replicas if node not in target)
    return _finish_reassignment(replace(old, replicas=(*target, *removing), adding=adding, removing=removing), context)


def cancel_reassignment(old: PartitionImage, context: PartitionContext) -> PartitionImage | Code:
    """Cancels a reassignment: added replicas leave, unless no other replica has all acknowledged records."""
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
) -> Iterator[PartitionChanged | LossReported]:
    """Yields the changes that turn `old` into `new`. Raises `InvariantViolation` if `new` breaks an invariant."""
    if new is old:
        return
    check_invariants(new, context)
    check_invariant(new.leader_epoch >= old.leader_epoch, "leader epochs never go back", old, new)
    ends = tuple((end.node_id, end.leader_epoch, end.end_offset) for end in new.ends)
    chains = tuple((*each,) for each in new.chains) if new.chains else ()
    yield PartitionChanged(
        topic_id, p, new.leader, new.leader_epoch, new.isr, new.elr, new.last_known, ends,
        () if new.replicas == old.replicas else new.replicas, new.adding, new.removing, chains, new.is_in_bucket,
    )  # fmt: skip
    if new.loss is not None and new.loss != old.loss:
        yield LossReported(topic_id, p, *new.loss)


def check_invariants(image: PartitionImage, context: PartitionContext) -> None:
    """Asserts what holds for every partition after every transition."""
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
    """Returns `old` with these sets and the leader that follows from them.

    This can complete a reassignment, if no records were lost by it.
    """
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
    """Returns the partition with these sets and an elected leader. A leader outside `isr` counts as none."""
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
    if old.is_in_bucket:
        return _elect_from_bucket(old, elr, last_known, ends, context)
    candidates = old.replicas
    if context.unclean or not last_known:  # not all have reported their ends, and a replica just added may be empty
        candidates = tuple(node for node in old.replicas if node not in old.adding or node in last_known)
    leader = _last_resort(candidates, elr, last_known, ends, context)
    if leader is None:
        new = _in_same_epoch(old, NO_LEADER, (), elr, last_known, ends)
        return old if old.leader == NO_LEADER and new == old else new
    new = _in_next_epoch(old, leader, (leader,), (), context)
    if not elr and last_known in ((), (leader,)):
        return new  # nothing was ever stored, or the only last known member reports its own loss
    end = next((each for each in ends if each.node_id == leader), None)
    # The end of a replica that was not last known is certain only if its last record is of the last leader epoch:
    # older records may reach beyond the offset at which later ones were acknowledged.
    end_is_certain = end is not None and (leader in last_known or end.leader_epoch == old.leader_epoch)
    offset = end.end_offset if end is not None and end_is_certain else UNKNOWN_OFFSET
    return replace(new, loss=Loss(new.leader_epoch, offset, context.now_ms))


def _elect_from_bucket(
    old: PartitionImage,
    elr: tuple[int, ...],
    last_known: tuple[int, ...],
    ends: tuple[End, ...],
    context: PartitionContext,
) -> PartitionImage:
    """Elects any live replica: all acknowledged records are in the bucket, and it reads those that it lacks. If none
    lives, the spare broker takes the place of the first replica."""
    leader = _first_live(old.replicas, old.replicas, context)
    if leader is not None:
        return _in_next_epoch(old, leader, (leader,), (), context)
    if context.spare is None:
        new = _in_same_epoch(old, NO_LEADER, (), elr, last_known, ends)
        return old if old.leader == NO_LEADER and new == old else new
    lost, *rest = old.replicas
    moved = replace(
        old, replicas=(context.spare, *rest), adding=_without(old.adding, lost), removing=_without(old.removing, lost)
    )
    return _in_next_epoch(moved, context.spare, (context.spare,), (), context)


def _in_same_epoch(
    old: PartitionImage,
    leader: int,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    last_known: tuple[int, ...] = (),
    ends: tuple[End, ...] = (),
) -> PartitionImage:
    """Returns the partition with these sets, under the same leader epoch.

    Written out because `replace` takes four times as long, and a broker has ten thousand partitions.
    """
    return PartitionImage(
        old.replicas, leader, old.leader_epoch, isr, elr, old.loss, old.partition_epoch, last_known, ends,
        old.adding, old.removing, old.stored_end, old.chains, old.is_in_bucket,
    )  # fmt: skip


def _in_next_epoch(
    old: PartitionImage, leader: int, isr: tuple[int, ...], elr: tuple[int, ...], context: PartitionContext
) -> PartitionImage:
    """Returns the partition with this leader under the next leader epoch, even for the same leader.

    Ends the election.
    """
    elr = () if len(isr) >= context.min_isr else elr
    return PartitionImage(
        old.replicas, leader, old.leader_epoch + 1, isr, elr, old.loss, old.partition_epoch, (), (),
        old.adding, old.removing, old.stored_end, _add_chain(old, leader, context) if old.is_in_bucket else old.chains,
        old.is_in_bucket and context.chained is not None,
    )  # fmt: skip


def _add_chain(old: PartitionImage, leader: int, context: PartitionContext) -> tuple[ChainRef, ...]:
    """Returns the chains of a partition that is in the bucket, once `leader` leads it under the next leader epoch."""
    if context.chained is None:
        return old.chains
    ref = ChainRef(old.leader_epoch + 1, leader, context.chained[leader])
    return (*(each for each in old.chains if each[1:] != ref[1:]), ref)


def note_stored(
    old: PartitionImage, partition_epoch: int, context: PartitionContext, *, is_in_bucket: bool
) -> PartitionImage:
    """Notes that the leader needs no chain of an earlier one, under the partition epoch that it knows.

    If it goes by `flush=bucket`, all records are in segments or in its own chain, and from now on no record is on disks
    alone (`is_in_bucket`). With another value, it has on its disk what the chains had. A note by another value than
    that of the topic counts for nothing.
    """
    if old.leader == NO_LEADER or old.partition_epoch != partition_epoch:
        return old
    if is_in_bucket != (context.chained is not None):
        return old
    if context.chained is None:
        return replace(old, chains=(), is_in_bucket=False)
    chains = (ChainRef(old.leader_epoch, old.leader, context.chained[old.leader]),)
    return replace(old, chains=chains, is_in_bucket=True)


def _finish_reassignment(image: PartitionImage, context: PartitionContext) -> PartitionImage:
    """Removes the replicas to remove, if the partition has a leader and all other replicas are in sync."""
    target = image.target_replicas
    is_complete = image.is_reassigning and image.leader != NO_LEADER and set(target) <= set(image.isr)
    return _keep_replicas(image, target, context) if is_complete else image


def _keep_replicas(image: PartitionImage, replicas: tuple[int, ...], context: PartitionContext) -> PartitionImage:
    """Keeps only `replicas` and ends the reassignment.

    If a replica leaves, the leader epoch is raised. Nothing that a leader knows of the removed replica then counts if
    that broker is added again with an empty log.
    """
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
    """Returns the leader when no live replica is eligible, or None to wait (R4).

    The live replica with the most complete log leads, once all last known members are back and all live replicas have
    reported their ends. Any live replica may lead if nothing was ever stored, or if the topic allows unclean election.
    """
    if not context.unclean and (elr or not context.live.issuperset(last_known)):
        return None
    live = tuple(node for node in replicas if node in context.live)
    if not live:
        return None
    known_ends = {end.node_id: (end.leader_epoch, end.end_offset) for end in ends}
    if last_known and not context.unclean and not known_ends.keys() >= set(live):
        return None
    # A leader had deleted all below the start of a log without a record: the log ends there, in no epoch.
    start = max((known_ends[node][1] for node in live if known_ends.get(node, (0, 0))[0] == NO_EPOCH), default=0)
    found = [node for node in live if known_ends.get(node, END_UNKNOWN)[1] >= start] or live
    return max(found, key=lambda node: known_ends.get(node, END_UNKNOWN))  # of equal ends, the first replica


def _replicas_without_end(
    image: PartitionImage, last_known: tuple[int, ...], ends: tuple[End, ...], live: frozenset[int]
) -> frozenset[int]:
    if not last_known or not live.issuperset(last_known):
        return frozenset()
    return live.intersection(image.replicas) - {end.node_id for end in ends}


def _first_live(nodes: tuple[int, ...], replicas: tuple[int, ...], context: PartitionContext) -> int | None:
    """Returns the first live node in the order of replicas. Takes a stopping broker only if there is no other, and one
    whose disk is full or recovering only if no other is usable."""
    live = [node for node in replicas if node in nodes and node in context.live]
    if not live:
        return None
    stopping, full, recovering = context.stopping, context.full, context.recovering
    if not (stopping or full or recovering):
        return live[0]
    return min(live, key=lambda node: (node in stopping, node in full, node in recovering))


def _without(nodes: tuple[int, ...], node: int) -> tuple[int, ...]:
    return tuple(each for each in nodes if each != node) if node in nodes else nodes
