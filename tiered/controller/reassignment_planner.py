"""What should move where, so that a broker is free to leave or all hold as much: as few replicas as possible move.

Pure, over the replicas of each partition, the preferred leader first. Loads are counted in replicas. Whether a move may
be is for the controller to say (`moves`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tiered.errors import Code, Refused


class At(NamedTuple):
    """A partition by the name of its topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


Placed = Mapping[At, tuple[int, ...]]
Moves = dict[At, tuple[int, ...]]


def drained(placed: Placed, racks: Mapping[int, str], leaving: int, leaderless: Iterable[At] = ()) -> Moves:
    """New replicas for all partitions that `leaving` has one of: another live broker takes its place in each. `racks`:
    live broker -> rack. `Refused` where too few brokers are left, or nobody leads a partition that has to go: then
    nothing can copy it, and `leaving` may have the last of it."""
    others = {node: rack for node, rack in racks.items() if node != leaving}
    held = {at: replicas for at, replicas in placed.items() if leaving in replicas}
    stuck = sorted(at for at in leaderless if at in held)
    if stuck:
        why = f"{_some(stuck)} has no leader to copy from: broker {leaving} may have the last copy"
        raise Refused(Code.ELIGIBLE_LEADERS_NOT_AVAILABLE, why)
    short = sorted(at for at, replicas in held.items() if not others.keys() - set(replicas))
    if short:
        why = f"{_some(short)} would have too few brokers: {len(others)} others are live and take new ones"
        raise Refused(Code.INVALID_REPLICATION_FACTOR, why)
    loads, firsts = _loads(placed), _firsts(placed)
    made: Moves = {}
    for at in sorted(held):
        replicas = held[at]
        used = {others[node] for node in replicas if others.get(node)}
        heirs = sorted(
            others.keys() - set(replicas),
            key=lambda node: (others[node] in used, loads[node], firsts[node], node),
        )
        made[at] = _put(replicas, leaving, heirs[0])
        loads[heirs[0]] += 1
        firsts[heirs[0]] += replicas[0] == leaving
    return made


def balanced(placed: Placed, racks: Mapping[int, str]) -> Moves:
    """What to change so that no live broker has two replicas more than another, where racks allow it, and leaders are
    spread as well. No partition comes to stand in fewer racks; one that has a replica elsewhere stays as it is."""
    now = {at: replicas for at, replicas in sorted(placed.items()) if all(node in racks for node in replicas)}
    loads, firsts = _loads(placed), _firsts(placed)
    held: dict[int, dict[At, None]] = {node: {} for node in racks}
    for at, replicas in now.items():
        for node in replicas:
            held[node][at] = None
    while (found := _relief(now, held, loads, racks)) is not None:
        at, crowded, free = found
        firsts[crowded] -= now[at][0] == crowded
        firsts[free] += now[at][0] == crowded
        now[at] = _put(now[at], crowded, free)
        del held[crowded][at]
        held[free][at] = None
        loads[crowded] -= 1
        loads[free] += 1
    _lead_evenly(now, firsts)
    return {at: replicas for at, replicas in now.items() if replicas != placed[at]}


def _relief(
    now: Placed, held: Mapping[int, Iterable[At]], loads: Counter[int], racks: Mapping[int, str]
) -> tuple[At, int, int] | None:
    """A partition that can go from a broker with many to one with few."""
    order = sorted(racks, key=lambda node: (loads[node], node))
    for crowded in reversed(order):
        for free in order:
            if loads[crowded] - loads[free] < 2:
                break
            for at in held[crowded]:
                if free not in now[at] and _spread(_put(now[at], crowded, free), racks) >= _spread(now[at], racks):
                    return at, crowded, free
    return None


def _lead_evenly(now: Moves, firsts: Counter[int]) -> None:
    """Another order moves nothing but leaderships."""
    changed = True
    while changed:
        changed = False
        for at, replicas in now.items():
            heir = min(replicas, key=lambda node: (firsts[node], node))
            if firsts[replicas[0]] - firsts[heir] >= 2:
                firsts[replicas[0]] -= 1
                firsts[heir] += 1
                now[at] = (heir, *(node for node in replicas if node != heir))
                changed = True


def _spread(replicas: tuple[int, ...], racks: Mapping[int, str]) -> int:
    return len({racks[node] for node in replicas})


def _put(replicas: tuple[int, ...], out: int, into: int) -> tuple[int, ...]:
    return tuple(into if node == out else node for node in replicas)


def _loads(placed: Placed) -> Counter[int]:
    return Counter(node for replicas in placed.values() for node in replicas)


def _firsts(placed: Placed) -> Counter[int]:
    return Counter(replicas[0] for replicas in placed.values())


def _some(named: list[At]) -> str:
    return str(named[0]) if len(named) == 1 else f"{named[0]} (and {len(named) - 1} more)"
