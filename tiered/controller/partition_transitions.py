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
from tiered.errors import Code, always
from tiered.ids import NO_EPOCH, TopicId
from tiered.metadata.changes import NO_LEADER, Change, LossReported, PartitionChanged
from tiered.metadata.image import End, Loss, PartitionImage

UNTOLD = (NO_EPOCH, 1)
"""What counts of a log of which nobody told the end: more than an empty one, and less than any that holds a record."""
UNKNOWN_OFFSET = 0
"""Where a loss begins of which nobody knows; the leader that finds its log reports what it has."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a change goes by: who may lead, who of them is about to stop, the topic's settings, and the time. Where
    there are fewer replicas than `min_isr`, all of them are asked for, which leaves nobody else to be eligible."""

    live: frozenset[int]
    min_isr: int = 1
    unclean: bool = False
    now_ms: int = 0
    stopping: frozenset[int] = frozenset()


def first(replicas: tuple[int, ...], terms: Terms) -> PartitionImage:
    """A new partition: nothing is stored, so everybody who lives is in sync."""
    isr = tuple(node for node in replicas if node in terms.live)
    leader = _first_of(isr, replicas, terms)
    return PartitionImage(replicas, NO_LEADER if leader is None else leader, 0, isr)


def left(old: PartitionImage, node: int, terms: Terms) -> PartitionImage:
    """`node` is fenced or has stopped; `terms.live` is without it. What its log holds is not in doubt."""
    if node not in old.isr:
        return resettled(old, terms) if old.last_known else old  # an election may have waited for what it has
    isr = _without(old.isr, node)
    return _led(old, isr, (*old.elr, node), old.last_known, old.ends, terms)


def returned(old: PartitionImage, node: int, end: End | None, terms: Terms) -> PartitionImage:
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
        if end is not None and node in _awaited(old, last_known, ends, terms.live):
            ends = (*ends, end)
    return _led(old, isr, elr, last_known, ends, terms)


def awaited(image: PartitionImage, live: frozenset[int]) -> frozenset[int]:
    """Returns the live replicas that have still to say how far their logs go. All last known members are back, and none
    of them has all that was acknowledged: one that was not in sync may have more of it than they (rule R4)."""
    waits = image.leader == NO_LEADER and not (image.isr or image.elr)
    return _awaited(image, image.last_known, image.ends, live) if waits else frozenset()


def told(old: PartitionImage, end: End, terms: Terms) -> PartitionImage:
    """A replica says how far its log goes; the best of all leads once nobody else is awaited."""
    if end.node_id not in awaited(old, terms.live):
        return old
    return _led(old, (), (), old.last_known, (*old.ends, end), terms)


def resettled(old: PartitionImage, terms: Terms) -> PartitionImage:
    """The same incarnation lives again, or the topic's settings changed: somebody may lead now, and an ISR that is
    large enough now is alone eligible."""
    return _led(old, old.isr, old.elr, old.last_known, old.ends, terms)


def handed_over(old: PartitionImage, node: int, terms: Terms) -> PartitionImage:
    """`node` is about to stop. Where enough others are in sync it is so no more: nobody waits for what it copies no
    longer. Else it stays in sync until it has stopped, and another one leads, if there is one."""
    if node in old.isr and len(old.isr) > max(1, min(terms.min_isr, len(old.replicas))):
        return left(old, node, replace(terms, live=terms.live - {node}))
    heir = _first_of(_without(old.isr, node), old.replicas, terms)
    return old if old.leader != node or heir is None else _elected(old, heir, old.isr, old.elr, terms)


def preferred(old: PartitionImage, terms: Terms) -> PartitionImage | Code:
    """The first replica leads, where it is in sync and is not about to stop."""
    wanted = old.replicas[0]
    if old.leader == wanted:
        return Code.ELECTION_NOT_NEEDED
    if wanted not in old.isr or wanted not in terms.live or wanted in terms.stopping:
        return Code.PREFERRED_LEADER_NOT_AVAILABLE
    return _elected(old, wanted, old.isr, old.elr, terms)


def unclean(old: PartitionImage, terms: Terms) -> PartitionImage | Code:
    """Somebody who lives leads, whatever it lacks: an operator's word ends the wait."""
    if old.leader != NO_LEADER:
        return Code.ELECTION_NOT_NEEDED
    found = resettled(old, replace(terms, unclean=True))
    return Code.ELIGIBLE_LEADERS_NOT_AVAILABLE if found is old else found


def wished(
    old: PartitionImage, node: int, wish: IsrWish, incarnations: Mapping[int, int], terms: Terms
) -> PartitionImage | Code:
    """What `node` wishes as leader, granted or refused (KIP-497). `incarnations` are the numbers of live brokers. That
    a member has all that is committed is for the leader to know (rule R2)."""
    if wish.leader_epoch != old.leader_epoch:
        return Code.FENCED_LEADER_EPOCH if wish.leader_epoch < old.leader_epoch else Code.UNKNOWN_LEADER_EPOCH
    if old.leader != node:
        return Code.NOT_LEADER_OR_FOLLOWER
    if wish.partition_epoch != old.partition_epoch:
        return Code.INVALID_UPDATE_VERSION
    wanted = [each.node_id for each in wish.isr]
    if node not in wanted or len(set(wanted)) != len(wanted):
        return Code.INVALID_REQUEST
    for each in wish.isr:
        if each.node_id not in old.replicas or incarnations.get(each.node_id) != each.incarnation:
            return Code.INELIGIBLE_REPLICA
        if each.node_id in terms.stopping and each.node_id not in old.isr:
            return Code.INELIGIBLE_REPLICA  # or everybody would wait for it once more
    isr = tuple(each for each in old.replicas if each in wanted)
    if set(isr) == set(old.isr):
        return replace(old)  # a change all the same: with it the leader knows that no earlier wish is granted any more
    gone = tuple(each for each in old.isr if each not in wanted)
    elr = (*(each for each in old.elr if each not in wanted), *gone)
    return _led(old, isr, elr, (), (), terms)


def moved(old: PartitionImage, target: tuple[int, ...], terms: Terms) -> PartitionImage:
    """`target` are to be the replicas (KIP-455), of a partition that does not move yet. Whoever is in the way leaves
    once all of them are in sync: till then there are more copies, never fewer."""
    if target == old.replicas:
        return old
    adding = tuple(node for node in target if node not in old.replicas)
    removing = tuple(node for node in old.replicas if node not in target)
    return _arrived(replace(old, replicas=(*target, *removing), adding=adding, removing=removing), terms)


def stayed(old: PartitionImage, terms: Terms) -> PartitionImage | Code:
    """The move is called off: who was added leaves, unless nobody else has what was acknowledged."""
    if not old.moving:
        return Code.NO_REASSIGNMENT_IN_PROGRESS
    stay = tuple(node for node in old.replicas if node not in old.adding)
    eligible = old.isr or old.elr
    if eligible and not set(stay).intersection(eligible):
        return Code.INVALID_REPLICA_ASSIGNMENT
    if not eligible and not set(stay).issuperset(old.last_known):
        return Code.INVALID_REPLICA_ASSIGNMENT
    return _kept(old, stay, terms)


def changes(topic_id: TopicId, p: int, old: PartitionImage, new: PartitionImage, terms: Terms) -> Iterator[Change]:
    """What makes `new` of `old`. `Broken` rather than that something wrong is written."""
    if new is old:
        return
    check(new, terms)
    always(new.leader_epoch >= old.leader_epoch, "leader epochs never go back", old, new)
    ends = tuple((end.node_id, end.leader_epoch, end.end_offset) for end in new.ends)
    yield PartitionChanged(
        topic_id, p, new.leader, new.leader_epoch, new.isr, new.elr, new.last_known, ends,
        () if new.replicas == old.replicas else new.replicas, new.adding, new.removing,
    )  # fmt: skip
    if new.loss is not None and new.loss != old.loss:
        yield LossReported(topic_id, p, new.loss.leader_epoch, new.loss.from_offset, new.loss.at_ms)


def check(image: PartitionImage, terms: Terms) -> None:
    """What always holds."""
    isr, elr = set(image.isr), set(image.elr)
    always(isr <= set(image.replicas) and elr <= set(image.replicas) and not isr & elr, image)
    always(isr <= terms.live, image, terms)
    always(image.leader in isr or (image.leader == NO_LEADER and not isr), image)
    always(not elr or len(isr) < terms.min_isr, image, terms)
    always(image.leader == NO_LEADER or not (image.last_known or image.ends), image)
    always(set(image.last_known) <= {end.node_id for end in image.ends} <= set(image.replicas), image)
    always(not elr & set(image.last_known), image)
    always(set(image.adding) | set(image.removing) <= set(image.replicas), image)
    always(not set(image.adding) & set(image.removing) and set(image.last_known) <= set(image.replicas), image)


def _led(
    old: PartitionImage,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    last_known: tuple[int, ...],
    ends: tuple[End, ...],
    terms: Terms,
) -> PartitionImage:
    """`old` with these sets, led as follows from them; a move may be over by that, if nothing was lost by it."""
    new = _elect(old, isr, elr, last_known, ends, terms)
    return _arrived(new, terms) if new.moving and new is not old and new.loss == old.loss else new


def _elect(
    old: PartitionImage,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    last_known: tuple[int, ...],
    ends: tuple[End, ...],
    terms: Terms,
) -> PartitionImage:
    """A leader who is not in `isr` is none."""
    if len(isr) >= terms.min_isr:
        elr = ()
    if old.leader in isr:
        same = isr == old.isr and elr == old.elr
        return old if same else _with(old, old.leader, isr, elr)
    heir = _first_of(isr, old.replicas, terms)
    if heir is not None:
        return _elected(old, heir, isr, elr, terms)
    heir = _first_of(elr, old.replicas, terms)
    if heir is not None:
        return _elected(old, heir, (heir,), _without(elr, heir), terms)
    candidates = old.replicas
    if terms.unclean or not last_known:  # not all of them say what they have, and who was just added may have nothing
        candidates = tuple(node for node in old.replicas if node not in old.adding or node in last_known)
    heir = _last_resort(candidates, elr, last_known, ends, terms)
    if heir is None:
        made = _with(old, NO_LEADER, (), elr, last_known, ends)
        return old if old.leader == NO_LEADER and made == old else made
    made = _elected(old, heir, (heir,), (), terms)
    if not elr and last_known in ((), (heir,)):
        return made  # nothing was ever stored, or the only one that is waited for reports itself what it lacks
    end = next((each for each in ends if each.node_id == heir), None)
    # Of who was not in sync to the last, an end of older records may lie beyond where later ones were acknowledged.
    sure = end is not None and (heir in last_known or end.leader_epoch == old.leader_epoch)
    offset = end.end_offset if end is not None and sure else UNKNOWN_OFFSET
    return replace(made, loss=Loss(made.leader_epoch, offset, terms.now_ms))


def _with(
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


def _elected(
    old: PartitionImage, heir: int, isr: tuple[int, ...], elr: tuple[int, ...], terms: Terms
) -> PartitionImage:
    """Under the next epoch, whoever led before; the election is over."""
    elr = () if len(isr) >= terms.min_isr else elr
    return PartitionImage(
        old.replicas, heir, old.leader_epoch + 1, isr, elr, old.loss, old.partition_epoch, (), (),
        old.adding, old.removing, old.stored_end,
    )  # fmt: skip


def _arrived(image: PartitionImage, terms: Terms) -> PartitionImage:
    """Who is to leave does, once somebody leads and all others are in sync."""
    target = image.target
    here = image.moving and image.leader != NO_LEADER and set(target) <= set(image.isr)
    return _kept(image, target, terms) if here else image


def _kept(image: PartitionImage, replicas: tuple[int, ...], terms: Terms) -> PartitionImage:
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
        return _elected(kept, image.leader, isr, elr, terms)
    heir = _first_of(isr, replicas, terms)
    return kept if heir is None else _elected(kept, heir, isr, elr, terms)


def _last_resort(
    replicas: tuple[int, ...], elr: tuple[int, ...], last_known: tuple[int, ...], ends: tuple[End, ...], terms: Terms
) -> int | None:
    """Who leads though nobody who lives is eligible: the best of all who live, once all of the last known are back and
    all have said what they have (rule R4), anybody where nothing was ever stored, or where the topic prefers to serve.
    """
    if not terms.unclean and (elr or not terms.live.issuperset(last_known)):
        return None
    living = tuple(node for node in replicas if node in terms.live)
    if not living:
        return None
    known = {end.node_id: (end.leader_epoch, end.end_offset) for end in ends}
    if last_known and not terms.unclean and not known.keys() >= set(living):
        return None
    return max(living, key=lambda node: known.get(node, UNTOLD))  # the first in the order of replicas


def _awaited(
    image: PartitionImage, last_known: tuple[int, ...], ends: tuple[End, ...], live: frozenset[int]
) -> frozenset[int]:
    if not last_known or not live.issuperset(last_known):
        return frozenset()
    return live.intersection(image.replicas) - {end.node_id for end in ends}


def _first_of(nodes: tuple[int, ...], replicas: tuple[int, ...], terms: Terms) -> int | None:
    """Who lives, in the order of replicas. Who is about to stop serves nobody: only where there is no other."""
    living = [node for node in replicas if node in nodes and node in terms.live]
    if not living:
        return None
    return next((node for node in living if node not in terms.stopping), living[0]) if terms.stopping else living[0]


def _without(nodes: tuple[int, ...], node: int) -> tuple[int, ...]:
    return tuple(each for each in nodes if each != node) if node in nodes else nodes
