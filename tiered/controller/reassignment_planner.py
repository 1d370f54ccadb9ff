"""Plans of partition reassignments that drain a broker or balance all brokers, with as few replica moves as possible.

Pure, over the replicas of each partition, the preferred leader first. The load of a broker is its number of replicas.
The controller decides whether a move is allowed (`reassignment`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from tiered.controller.placement import NO_MACHINES, Machines, count_machines
from tiered.errors import Code, Refused


class PartitionName(NamedTuple):
    """A partition by the name of its topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


Assignments = Mapping[PartitionName, tuple[int, ...]]
Reassignments = dict[PartitionName, tuple[int, ...]]


def plan_drain(
    assignments: Assignments,
    racks: Mapping[int, str],
    leaving: int,
    leaderless: Iterable[PartitionName] = (),
    full: Set[int] = frozenset(),
    machines: Machines = NO_MACHINES,
) -> Reassignments:
    """Returns new replicas for all partitions of broker `leaving`: another live broker replaces it in each.

    `racks`: live broker -> rack. A broker with a `full` disk gets a replica only where no other is left. Raises
    `Refused` if too few brokers are left. Raises `Refused` too if one of the
    partitions has no leader: then nothing can copy it, and `leaving` may have its last replica.
    """
    others = {node: rack for node, rack in racks.items() if node != leaving}
    affected = {tp: replicas for tp, replicas in assignments.items() if leaving in replicas}
    stuck = sorted(tp for tp in leaderless if tp in affected)
    if stuck:
        why = f"{_format_names(stuck)} has no leader to copy from: broker {leaving} may have the last copy"
        raise Refused(Code.ELIGIBLE_LEADERS_NOT_AVAILABLE, why)
    free = {tp: _on_other_machines(others, replicas, machines) for tp, replicas in affected.items()}
    short = sorted(tp for tp, nodes in free.items() if not nodes)
    if short:
        left = count_machines(others, machines)
        why = f"{_format_names(short)} would have too few brokers: {left} others are live and take new ones"
        if machines:
            why += ", counted by machines: a partition has one replica on a machine"
        raise Refused(Code.INVALID_REPLICATION_FACTOR, why)
    replica_counts, leader_counts = _count_replicas(assignments), _count_preferred_leaders(assignments)
    planned: Reassignments = {}
    for tp in sorted(affected):
        replicas = affected[tp]
        used = {others[node] for node in replicas if others.get(node)}
        candidates = sorted(
            free[tp],
            key=lambda node: (node in full, others[node] in used, replica_counts[node], leader_counts[node], node),
        )
        planned[tp] = _replace_replica(replicas, leaving, candidates[0])
        replica_counts[candidates[0]] += 1
        leader_counts[candidates[0]] += replicas[0] == leaving
    return planned


def _on_other_machines(nodes: Iterable[int], replicas: Iterable[int], machines: Machines) -> list[int]:
    """Returns those of the brokers that are on no machine of the replicas."""
    taken = {machines.get(node, node) for node in replicas}
    return [node for node in nodes if machines.get(node, node) not in taken]


def plan_balance(
    assignments: Assignments,
    racks: Mapping[int, str],
    full: Set[int] = frozenset(),
    machines: Machines = NO_MACHINES,
) -> Reassignments:
    """Returns moves after which no live broker has two replicas more than another, as far as racks and machines allow
    it: a replica moves to no other process of a machine.

    Preferred leaders are spread too. No partition uses fewer racks than before. A partition with a replica on a broker
    that is not in `racks` stays as it is. A broker with a `full` disk gets no replica and no preferred leader.
    """
    planned = {tp: replicas for tp, replicas in sorted(assignments.items()) if all(node in racks for node in replicas)}
    replica_counts, leader_counts = _count_replicas(assignments), _count_preferred_leaders(assignments)
    hosted: dict[int, dict[PartitionName, None]] = {node: {} for node in racks}
    for tp, replicas in planned.items():
        for node in replicas:
            hosted[node][tp] = None
    while (move := _find_move(assignments, planned, hosted, replica_counts, racks, full, machines)) is not None:
        tp, crowded, free = move
        leader_counts[crowded] -= planned[tp][0] == crowded
        leader_counts[free] += planned[tp][0] == crowded
        planned[tp] = _replace_replica(planned[tp], crowded, free)
        del hosted[crowded][tp]
        hosted[free][tp] = None
        replica_counts[crowded] -= 1
        replica_counts[free] += 1
    _balance_leaders(planned, leader_counts, full)
    return {tp: replicas for tp, replicas in planned.items() if replicas != assignments[tp]}


def _find_move(
    assignments: Assignments,
    planned: Assignments,
    hosted: Mapping[int, Iterable[PartitionName]],
    replica_counts: Counter[int],
    racks: Mapping[int, str],
    full: Set[int],
    machines: Machines,
) -> tuple[PartitionName, int, int] | None:
    """Returns a partition, a broker with many replicas and one with few: the partition can move between them."""

    def may_get(tp: PartitionName, free: int) -> bool:
        """True if neither the planned replicas nor those before the moves are on the machine of `free`."""
        before = () if free in assignments[tp] else assignments[tp]
        return bool(_on_other_machines((free,), (*planned[tp], *before), machines))

    order = sorted(racks, key=lambda node: (replica_counts[node], node))
    for crowded in reversed(order):
        for free in (node for node in order if node not in full):
            if replica_counts[crowded] - replica_counts[free] < 2:
                break
            for tp in hosted[crowded]:
                if may_get(tp, free) and _count_racks(
                    _replace_replica(planned[tp], crowded, free), racks
                ) >= _count_racks(planned[tp], racks):
                    return tp, crowded, free
    return None


def _balance_leaders(planned: Reassignments, leader_counts: Counter[int], full: Set[int]) -> None:
    """Spreads preferred leaders by the order of replicas alone; moves no replica."""
    changed = True
    while changed:
        changed = False
        for tp, replicas in planned.items():
            leader = min(replicas, key=lambda node: (node in full, leader_counts[node], node))
            if leader_counts[replicas[0]] - leader_counts[leader] >= 2:
                leader_counts[replicas[0]] -= 1
                leader_counts[leader] += 1
                planned[tp] = (leader, *(node for node in replicas if node != leader))
                changed = True


def _count_racks(replicas: tuple[int, ...], racks: Mapping[int, str]) -> int:
    return len({racks[node] for node in replicas})


def _replace_replica(replicas: tuple[int, ...], out: int, into: int) -> tuple[int, ...]:
    return tuple(into if node == out else node for node in replicas)


def _count_replicas(assignments: Assignments) -> Counter[int]:
    return Counter(node for replicas in assignments.values() for node in replicas)


def _count_preferred_leaders(assignments: Assignments) -> Counter[int]:
    return Counter(replicas[0] for replicas in assignments.values())


def _format_names(named: list[PartitionName]) -> str:
    return str(named[0]) if len(named) == 1 else f"{named[0]} (and {len(named) - 1} more)"
