"""Pictures and tables of the states of a partition, a group and a transaction, made from the code.

The changes of a group and of a transaction are those that their `TRANSITIONS` permit. Those of a partition are found by
every event in every state that three replicas can reach. `python -m tests.test_docs` writes docs/internals/states.md
and its pictures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from textwrap import wrap
from xml.sax.saxutils import escape

from tiered.controller import partition_transitions as partitions
from tiered.controller.partition_transitions import PartitionContext
from tiered.controller.requests import InSync, IsrChange
from tiered.errors import Code
from tiered.groups.classic import TRANSITIONS as GROUP_TRANSITIONS
from tiered.groups.classic import ClassicGroupState
from tiered.ids import TopicId
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.parts.topics import End, PartitionImage
from tiered.transactions.metadata import TRANSITIONS as TRANSACTION_TRANSITIONS
from tiered.transactions.metadata import TransactionState

Edges = dict[tuple[str, str], str]
"""By the names of two states: when the first becomes the second."""


@dataclass(frozen=True)
class Machine:
    """One picture with its table."""

    name: str
    title: str
    text: str
    states: Mapping[str, str]
    edges: Edges


GROUP_STATES = {
    ClassicGroupState.EMPTY: "no members; perhaps committed offsets",
    ClassicGroupState.PREPARING: "members join, or join again",
    ClassicGroupState.COMPLETING: "members wait for the assignment of the group's leader",
    ClassicGroupState.STABLE: "each member has its partitions",
    ClassicGroupState.DEAD: "removed from the log",
}
_FIRST, _JOINING, _SYNCING = ClassicGroupState.EMPTY, ClassicGroupState.PREPARING, ClassicGroupState.COMPLETING
_STABLE, _DEAD = ClassicGroupState.STABLE, ClassicGroupState.DEAD
_UPGRADED = "a member joins by the consumer protocol: it is a consumer group from now on"
GROUP_CHANGES = {
    (_FIRST, _JOINING): "a member joins",
    (_FIRST, _DEAD): "it is deleted, or nothing of it is left: no member and no offset",
    (_JOINING, _SYNCING): "all members joined, or the time to join is over",
    (_JOINING, _FIRST): "no member is left",
    (_SYNCING, _STABLE): "the leader sent the assignment",
    (_SYNCING, _JOINING): "a member joins or leaves, or its session ends",
    (_STABLE, _JOINING): "a member joins or leaves, or its session ends",
    (_JOINING, _DEAD): _UPGRADED,
    (_SYNCING, _DEAD): _UPGRADED,
    (_STABLE, _DEAD): _UPGRADED,
}

_EMPTY, _OPEN = TransactionState.EMPTY, TransactionState.ONGOING
_COMMITTING, _ABORTING = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
_COMMITTED, _ABORTED = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
TRANSACTION_STATES = {
    _EMPTY: "the id has a producer, and no transaction",
    _OPEN: "the transaction has partitions",
    _COMMITTING: "decided: committed; markers are written",
    _COMMITTED: "each partition has its marker",
    _ABORTED: "each partition has its marker",
    _ABORTING: "decided: aborted; markers are written",
}
_NEXT = "AddPartitionsToTxn or AddOffsetsToTxn: the next transaction"
_INIT = "InitProducerId: a producer begins"
_NOTHING = "EndTxn of version 2 aborts a transaction without partitions"
TRANSACTION_CHANGES = {
    (_EMPTY, _EMPTY): _INIT,
    (_EMPTY, _OPEN): "AddPartitionsToTxn or AddOffsetsToTxn: the first partition",
    (_EMPTY, _ABORTING): _NOTHING,
    (_OPEN, _OPEN): "more partitions",
    (_OPEN, _COMMITTING): "EndTxn commits",
    (_OPEN, _ABORTING): "EndTxn aborts, the timeout is over, or another producer fences this one",
    (_COMMITTING, _COMMITTED): "the last marker is committed",
    (_ABORTING, _ABORTED): "the last marker is committed",
    (_COMMITTED, _EMPTY): _INIT,
    (_COMMITTED, _OPEN): _NEXT,
    (_COMMITTED, _ABORTING): _NOTHING,
    (_ABORTED, _EMPTY): _INIT,
    (_ABORTED, _OPEN): _NEXT,
    (_ABORTED, _ABORTING): _NOTHING,
}

WHOLE, BEHIND, TOO_FEW = "Whole", "Under-replicated", "Under min ISR"
WAITS, WAITS_FOR_ENDS = "Waits for an eligible replica", "Waits for log ends"
PARTITION_STATES = {
    WHOLE: "all replicas are in sync",
    BEHIND: "some replicas are not in sync, and `min.insync.replicas` are",
    TOO_FEW: "it has a leader, and acks=all is refused",
    WAITS: "no leader; a replica that has everything (ELR) is not live",
    WAITS_FOR_ENDS: "no leader; no replica is proved whole, and the election compares log ends (R4)",
}
REPLICAS = (1, 2, 3)
MIN_ISR = 2
LOST_EVENT = "brokers stop or are fenced"


def group_machine() -> Machine:
    """Returns the states of a group of the classic protocol."""
    permitted = {(a, b) for a, after in GROUP_TRANSITIONS.items() for b in after}
    assert permitted == GROUP_CHANGES.keys() and GROUP_STATES.keys() == set(ClassicGroupState)
    return Machine(
        "group",
        "A group",
        "The table is `TRANSITIONS` of `tiered/groups/classic.py`. `tiered group describe` shows the state.",
        {state.value: text for state, text in GROUP_STATES.items()},
        {(a.value, b.value): text for (a, b), text in GROUP_CHANGES.items()},
    )


def transaction_machine() -> Machine:
    """Returns the states of a transactional id."""
    permitted = {(a, b) for a, after in TRANSACTION_TRANSITIONS.items() for b in after}
    assert permitted == TRANSACTION_CHANGES.keys() and TRANSACTION_STATES.keys() == set(TransactionState)
    return Machine(
        "transaction",
        "A transaction",
        "The table is `TRANSITIONS` of `tiered/transactions/metadata.py`. `tiered transaction list` shows the state. An"
        " id without an open transaction is removed after `transactional.id.expiration.ms`.",
        {state.label: text for state, text in TRANSACTION_STATES.items()},
        {(a.label, b.label): text for (a, b), text in TRANSACTION_CHANGES.items()},
    )


def state_of(image: PartitionImage) -> str:
    """Returns the name of the state of a partition."""
    if image.leader == NO_LEADER:
        return WAITS if image.elr else WAITS_FOR_ENDS
    if len(image.isr) == len(image.replicas):
        return WHOLE
    return BEHIND if len(image.isr) >= MIN_ISR else TOO_FEW


def events(image: PartitionImage, live: frozenset[int]) -> Iterator[tuple[str, PartitionImage, frozenset[int]]]:
    """Yields each event that may come next: its name, the partition and the live brokers after it."""
    context = PartitionContext(live, MIN_ISR)
    for node in live:
        gone = live - {node}
        left = PartitionContext(gone, MIN_ISR)
        yield LOST_EVENT, partitions.remove_brokers(image, (node,), left), gone
    yield LOST_EVENT, partitions.remove_brokers(image, live, PartitionContext(frozenset(), MIN_ISR)), frozenset()
    for node in sorted(set(REPLICAS) - live):
        back = live | {node}
        joined = PartitionContext(back, MIN_ISR)
        end = End(node, image.leader_epoch, node)
        yield "a broker comes back with a whole log", partitions.register_broker(image, node, None, joined), back
        yield "a broker comes back without a proof", partitions.register_broker(image, node, end, joined), back
    for node in partitions.awaited_replicas(image, live):
        end = End(node, image.leader_epoch, node)
        yield "the last awaited log end is known", partitions.report_end(image, end, context), live
    unclean = partitions.elect_unclean(image, context)
    if isinstance(unclean, PartitionImage):
        yield "an operator elects an unclean leader", unclean, live
    for node in live - {image.leader} if image.leader != NO_LEADER else ():
        name = "the leader removes a replica that lags" if node in image.isr else "a replica has caught up"
        isr = tuple(InSync(each, 0) for each in {*image.isr} ^ {node})
        change = IsrChange(TopicId("t"), 0, image.leader_epoch, image.partition_epoch, isr)
        found = partitions.alter_isr(image, image.leader, change, dict.fromkeys(live, 0), context)
        assert not isinstance(found, Code), found
        yield name, found, live


def partition_machine() -> Machine:
    """Returns the states of a partition of three replicas with `min.insync.replicas` of two."""
    live = frozenset(REPLICAS)
    first = partitions.new_partition(REPLICAS, PartitionContext(live, MIN_ISR))
    waiting, seen = [(first, live)], {(first, live)}
    names: dict[tuple[str, str], dict[str, None]] = {}
    while waiting:
        image, live = waiting.pop()
        for name, after, there in events(image, live):
            here, next_state = state_of(image), state_of(after)
            if here != next_state:
                names.setdefault((here, next_state), {})[name] = None
            known = replace(after, leader_epoch=0, partition_epoch=0, loss=None), there
            if known not in seen:
                seen.add(known)
                waiting.append(known)
    order = [*PARTITION_STATES]
    found = sorted(names, key=lambda edge: (order.index(edge[0]), order.index(edge[1])))
    return Machine(
        "partition",
        "A partition",
        "Found by every event in every state that three replicas with `min.insync.replicas=2` can reach, through the"
        " functions of `tiered/controller/partition_transitions.py`. `tiered topic describe -p` and `tiered cluster"
        " health` show the state.",
        PARTITION_STATES,
        {edge: "; ".join(sorted(names[edge])) for edge in found},
    )


WIDTH, HEIGHT, BOX = 760, 430, 34
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
.back { fill: #ffffff } .box { fill: #dbeafe; stroke: #2563eb } .line { fill: none; stroke: #59636e }
.tip { fill: #59636e } .mark { fill: #ffffff; stroke: #9ca3af } .number { font-size: 11px }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .back { fill: #0d1117 } .box { fill: #1e3a5f; stroke: #60a5fa } .line { stroke: #9198a1 }
.tip { fill: #9198a1 } .mark { fill: #0d1117; stroke: #6b7280 }
}
""".strip()
BOW = 26
"""How far an arrow is bent to its left, so that two opposite ones lie apart."""


def draw(machine: Machine) -> str:
    """Returns the picture of a machine: states on an ellipse, and its changes as numbered arrows."""
    widths = {state: 9 * len(state) + 20 for state in machine.states}
    places = {}
    for number, state in enumerate(machine.states):
        angle = 2 * math.pi * number / len(machine.states) - math.pi / 2
        places[state] = (WIDTH / 2 + 260 * math.cos(angle), HEIGHT / 2 + 165 * math.sin(angle))
    lines, marks = [], []
    for number, (before, after) in enumerate(machine.edges, 1):
        if before == after:
            continue
        (x1, y1), (x2, y2) = places[before], places[after]
        length = math.hypot(x2 - x1, y2 - y1)
        bent = (x1 + x2) / 2 + BOW * 2 * (y2 - y1) / length, (y1 + y2) / 2 - BOW * 2 * (x2 - x1) / length
        begin = _edge_of_box((x1, y1), bent, widths[before])
        end = _edge_of_box((x2, y2), bent, widths[after])
        lines.append(
            f'<path class="line" marker-end="url(#tip)"'
            f' d="M{begin[0]:.0f} {begin[1]:.0f}Q{bent[0]:.0f} {bent[1]:.0f} {end[0]:.0f} {end[1]:.0f}"/>'
        )
        middle = [(a + 2 * b + c) / 4 for a, b, c in zip(begin, bent, end, strict=True)]
        marks.append(
            f'<circle class="mark" cx="{middle[0]:.0f}" cy="{middle[1]:.0f}" r="10"/>'
            f'<text class="number" x="{middle[0]:.0f}" y="{middle[1] + 4:.0f}">{number}</text>'
        )
    boxes = [
        f'<rect class="box" x="{x - widths[state] / 2:.0f}" y="{y - BOX / 2:.0f}" width="{widths[state]}"'
        f' height="{BOX}" rx="6"/><text x="{x:.0f}" y="{y + 5:.0f}">{escape(state)}</text>'
        for state, (x, y) in places.items()
    ]
    tip = (
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="tip" d="M 0 0 L 8 4 L 0 8 z"/></marker>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>The states of {machine.title.lower()}, and its changes by the numbers of the table</title>",
            f"<style>{STYLE}</style>",
            f"<defs>{tip}</defs>",
            f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>',
            *lines,
            *boxes,
            *marks,
            "</svg>\n",
        ]
    )


def _edge_of_box(centre: tuple[float, float], towards: tuple[float, float], width: float) -> tuple[float, float]:
    """Returns the point of the border of a box that lies towards another point."""
    dx, dy = towards[0] - centre[0], towards[1] - centre[1]
    share = min((width / 2 + 3) / abs(dx) if dx else math.inf, (BOX / 2 + 3) / abs(dy) if dy else math.inf)
    return centre[0] + dx * share, centre[1] + dy * share


HEAD = """\
# States

For contributors, and for readers of a health report: see the states of a partition, a group and a transaction.

Generated from the code by `python -m tests.test_docs`. The numbers in a picture are those of its table.
"""


def pages() -> dict[str, str]:
    """Returns the page and its pictures, by the names of their files."""
    machines = (partition_machine(), group_machine(), transaction_machine())
    parts, files = [HEAD], {}
    for each in machines:
        files[f"states-{each.name}.svg"] = draw(each)
        parts += [f"## {each.title}", "", *wrap(each.text, 120, break_on_hyphens=False), ""]
        parts += [f"![The states of {each.title.lower()}](states-{each.name}.svg)", "", "| State | |", "| --- | --- |"]
        parts += [f"| {state} | {text} |" for state, text in each.states.items()]
        parts += ["", "| | From | To | When |", "| --- | --- | --- | --- |"]
        parts += [
            f"| {number} | {before} | {after} | {text} |"
            for number, ((before, after), text) in enumerate(each.edges.items(), 1)
        ]
        parts.append("")
    files["states.md"] = "\n".join(parts)
    return files
