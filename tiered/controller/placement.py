"""Replica placement for new partitions: even over brokers, and each partition over as many racks as possible.

Brokers may be processes of one machine. A partition has at most one replica on a machine: two would be lost together
(I35).
A broker whose disk is full gets a new replica only where no other broker is left, whatever its rack is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from tiered.errors import Code, Refused

Machines = Mapping[int, int]
"""Node id -> machine. A broker that is not in it has a machine of its own."""
NO_MACHINES: Machines = {}


def count_machines(nodes: Iterable[int], machines: Machines) -> int:
    """Returns the number of machines of these brokers, which is the most replicas that a partition can have on them."""
    return len({machines.get(node, node) for node in nodes})


def find_shared_machine(nodes: Sequence[int], machines: Machines) -> tuple[int, int] | None:
    """Returns two of these brokers that are processes of one machine, or None."""
    first_of: dict[int, int] = {}
    for node in nodes:
        first = first_of.setdefault(machines.get(node, node), node)
        if first != node:
            return first, node
    return None


def describe_shared_machine(one: int, other: int) -> str:
    """Returns why no partition has replicas on both brokers."""
    return f"brokers {one} and {other} are processes of one machine, and a partition has one replica on a machine"


def prefer_room(
    racks: Mapping[int, str], full: Set[int], replication_factor: int, machines: Machines = NO_MACHINES
) -> Mapping[int, str]:
    """Returns the brokers for partitions of that many replicas: those with room on their disks, and all if too few have
    room."""
    room = {node: rack for node, rack in racks.items() if node not in full}
    return room if count_machines(room, machines) >= replication_factor else racks


def place_replicas(
    racks: Mapping[int, str],
    partitions: int,
    replication_factor: int,
    *,
    start: int = 0,
    first_partition: int = 0,
    full: Set[int] = frozenset(),
    machines: Machines = NO_MACHINES,
) -> list[tuple[int, ...]]:
    """Returns the replicas of `partitions` partitions from `first_partition` on; the first replica is the preferred
    leader. Equal replicas are one object: partitions are many, brokers are few.

    Brokers stand in an order that alternates racks. Replica j of partition k is the broker `(start + j + k) mod n` in
    that order. A broker whose machine the partition already uses is skipped, and one whose rack it uses is skipped
    while a broker on another rack is left. Brokers with `full` disks come last. `racks`: node id -> rack, "" for none.
    """
    if not racks:
        raise Refused(Code.INVALID_REPLICATION_FACTOR, "no live broker takes new replicas: all are cordoned")
    most = count_machines(racks, machines)
    if not 1 <= replication_factor <= most:
        of_what = "live brokers that take" if most == len(racks) else "machines with live brokers that take"
        raise Refused(
            Code.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} is not in 1..{most}, the number of {of_what} new replicas",
        )
    racks = prefer_room(racks, full, replication_factor, machines)
    order = _alternate_racks(racks)
    chosen: dict[int, tuple[int, ...]] = {}
    for k in range(min(partitions, len(order))):
        first = (start + first_partition + k) % len(order)
        chosen[first] = _choose_replicas(order, racks, replication_factor, first, full, machines)
    return [chosen[(start + first_partition + k) % len(order)] for k in range(partitions)]


def start_of(racks: Mapping[int, str], broker: int) -> int:
    """Returns the `start` that puts the first replica of partition 0 on `broker`; 0 if the broker takes no replicas."""
    order = _alternate_racks(racks)
    return order.index(broker) if broker in order else 0


def check_assignments(
    assignments: Sequence[Sequence[int]], brokers: Sequence[int], machines: Machines = NO_MACHINES
) -> None:
    """Refuses a manual assignment that is empty, uneven, repeats a broker or a machine, or names an unknown broker."""
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
        if (pair := find_shared_machine(replicas, machines)) is not None:
            raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, f"partition {partition}: {describe_shared_machine(*pair)}")


def _alternate_racks(racks: Mapping[int, str]) -> list[int]:
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    rows = [by_rack[rack] for rack in sorted(by_rack)]
    return [row[i] for i in range(max(map(len, rows))) for row in rows if i < len(row)]


def _choose_replicas(
    order: Sequence[int],
    racks: Mapping[int, str],
    replication_factor: int,
    start: int,
    full: Set[int],
    machines: Machines,
) -> tuple[int, ...]:
    ring = [order[(start + j) % len(order)] for j in range(len(order))]
    chosen: list[int] = []
    used: set[str] = set()
    for broker in ring:
        if racks[broker] not in used or not racks[broker]:
            chosen.append(broker)
            used.add(racks[broker])
    rest = [broker for broker in ring if broker not in chosen]
    by_machine: dict[int, int] = {}
    for broker in sorted(chosen + rest, key=full.__contains__):
        by_machine.setdefault(machines.get(broker, broker), broker)
    return tuple(by_machine.values())[:replication_factor]
