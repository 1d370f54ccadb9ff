"""Replica placement for new partitions: even over brokers, and each partition over as many racks as possible.

A broker whose disk is full gets a new replica only where no other broker is left, whatever its rack is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from tiered.errors import Code, Refused


def prefer_room(racks: Mapping[int, str], full: Set[int], replication_factor: int) -> Mapping[int, str]:
    """Returns the brokers for partitions of that many replicas: those with room on their disks, and all if too few have
    room."""
    room = {node: rack for node, rack in racks.items() if node not in full}
    return room if len(room) >= replication_factor else racks


def place_replicas(
    racks: Mapping[int, str],
    partitions: int,
    replication_factor: int,
    *,
    start: int = 0,
    first_partition: int = 0,
    full: Set[int] = frozenset(),
) -> list[tuple[int, ...]]:
    """Returns the replicas of `partitions` partitions from `first_partition` on; the first replica is the preferred
    leader. Equal replicas are one object: partitions are many, brokers are few.

    Brokers stand in an order that alternates racks. Replica j of partition k is the broker `(start + j + k) mod n` in
    that order. A broker whose rack the partition already uses is skipped while a broker on another rack is left.
    Brokers with `full` disks come last. `racks`: node id -> rack, "" for none.
    """
    if not racks:
        raise Refused(Code.INVALID_REPLICATION_FACTOR, "no live broker takes new replicas: all are cordoned")
    if not 1 <= replication_factor <= len(racks):
        raise Refused(
            Code.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} is not in 1..{len(racks)}, "
            "the number of live brokers that take new replicas",
        )
    racks = prefer_room(racks, full, replication_factor)
    order = _alternate_racks(racks)
    chosen: dict[int, tuple[int, ...]] = {}
    for k in range(min(partitions, len(order))):
        first = (start + first_partition + k) % len(order)
        chosen[first] = _choose_replicas(order, racks, replication_factor, first, full)
    return [chosen[(start + first_partition + k) % len(order)] for k in range(partitions)]


def start_of(racks: Mapping[int, str], broker: int) -> int:
    """Returns the `start` that puts the first replica of partition 0 on `broker`; 0 if the broker takes no replicas."""
    order = _alternate_racks(racks)
    return order.index(broker) if broker in order else 0


def check_assignments(assignments: Sequence[Sequence[int]], brokers: Sequence[int]) -> None:
    """Refuses a manual assignment that is empty, uneven, repeats a broker or names an unknown broker."""
    known, checked = set(brokers), set[tuple[int, ...]]()
    for partition, replicas in enumerate(assignments):
        if (distinct := tuple(replicas)) in checked:
            continue
        checked.add(distinct)
        if not replicas or len(set(replicas)) != len(replicas) or len(replicas) != len(assignments[0]):
            raise Refused(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"partition {partition}: replicas {list(replicas)} must be distinct, and as many as in partition 0",
            )
        if missing := [broker for broker in replicas if broker not in known]:
            raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, f"partition {partition}: no such broker: {missing}")


def _alternate_racks(racks: Mapping[int, str]) -> list[int]:
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    rows = [by_rack[rack] for rack in sorted(by_rack)]
    return [row[i] for i in range(max(map(len, rows))) for row in rows if i < len(row)]


def _choose_replicas(
    order: Sequence[int], racks: Mapping[int, str], replication_factor: int, start: int, full: Set[int]
) -> tuple[int, ...]:
    ring = [order[(start + j) % len(order)] for j in range(len(order))]
    chosen: list[int] = []
    used: set[str] = set()
    for broker in ring:
        if racks[broker] not in used or not racks[broker]:
            chosen.append(broker)
            used.add(racks[broker])
    rest = [broker for broker in ring if broker not in chosen]
    return tuple(sorted(chosen + rest, key=full.__contains__)[:replication_factor])
