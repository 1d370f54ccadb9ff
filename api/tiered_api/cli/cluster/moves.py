"""`tiered cluster reassign|rebalance|decommission`: partitions move to other brokers (KIP-455).

`tiered.controller.reassignment_planner` plans the moves. The cluster checks each move, and copies all records before it
removes a replica.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import field

from tiered.controller.reassignment_planner import PartitionName, Reassignments, plan_balance, plan_drain
from tiered.errors import Code, Refused
from tiered.value import value
from tiered_api.cli.cluster.throttle import cordon, fetch_cordoned, throttle, unthrottle, unthrottle_all
from tiered_api.cli.cluster.view import fetch_cluster_view
from tiered_api.cli.exits import Exit
from tiered_api.cli.internal_rows import is_internal, print_folded
from tiered_api.cli.output import Row, print_lines, print_rows
from tiered_api.cli.parsing import is_number
from tiered_api.cli.progress import show_progress
from tiered_api.cli.reach import open_client
from tiered_api.cli.status import format_status
from tiered_api.health.view import LIVE, ClusterView
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tiered_api.kafka.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
)

PARTITIONS_PER_REQUEST = 1_000
"""Most partitions in one request."""
POLL_SECONDS = 1.0
TIMEOUT_MS = 60_000

TargetReplicas = Mapping[PartitionName, tuple[int, ...] | None]


@value
class ReplicaPlacement:
    """The replicas of all partitions, also those that reassignments are about to make; live brokers that accept new
    replicas, with their racks; and the leaders."""

    replicas: dict[PartitionName, tuple[int, ...]]
    racks: dict[int, str]
    leaderless: tuple[PartitionName, ...]
    cordoned: tuple[int, ...] = ()
    """Live brokers that accept no new replicas."""
    replicas_if_cancelled: dict[PartitionName, tuple[int, ...]] = field(default_factory=dict)
    """By moving partition: the replicas that stay if the reassignment is cancelled."""
    full: frozenset[int] = frozenset()
    """Live brokers whose disk is full."""
    machines: Mapping[int, int] = field(default_factory=dict)
    """Broker -> machine of the brokers that are processes of a machine with others."""


def parse_target(text: str) -> tuple[PartitionName, tuple[int, ...]]:
    """Parses `flights/0=1,2,3`. Raises `Refused` for another form."""
    name, equals, listed = text.partition("=")
    nodes = listed.split(",")
    if not equals or not all(is_number(each.strip()) for each in nodes):
        raise Refused(Code.INVALID_REQUEST, f"{text!r} is not TOPIC/PARTITION=ID,ID,...")
    return parse_partition(name), tuple(int(each) for each in nodes)


def parse_partition(text: str) -> PartitionName:
    """Parses `flights/0`. Raises `Refused` for another form."""
    topic, slash, number = text.rpartition("/")
    if not slash or not topic or not is_number(number):
        raise Refused(Code.INVALID_REQUEST, f"{text!r} is not TOPIC/PARTITION")
    return PartitionName(topic, int(number))


async def reassign(args: Namespace) -> int:
    """Moves partitions to the named brokers, cancels moves, or lists current moves."""
    wanted: dict[PartitionName, tuple[int, ...] | None] = dict(parse_target(text) for text in args.targets)
    wanted |= dict.fromkeys(parse_partition(text) for text in args.cancel)
    async with open_client(args) as client:
        if not wanted:
            print_rows(
                [_reassignment_row(tp, each) for tp, each in (await fetch_reassignments(client)).items()], args.format
            )
            return Exit.OK
        placement = await fetch_placement(client)
        return await _execute_moves(client, args, placement, wanted)


async def remove_throttles(args: Namespace) -> int:
    """Removes every copying rate."""
    async with open_client(args) as client:
        brokers, topics = await unthrottle_all(client)
    if args.format == "text":
        print_lines([f"{brokers} brokers and {topics} topics have no copying rates any more"])
    return Exit.OK


async def rebalance(args: Namespace) -> int:
    """Prints the moves that give all brokers equal shares; with `--execute` it starts them."""
    async with open_client(args) as client:
        placement = await fetch_placement(client)
        if placement.cordoned and args.format == "text":
            named = ", ".join(map(str, placement.cordoned))
            print_lines([f"cordoned.log.dirs keeps new replicas from broker {named}"])
        return await _print_or_execute(
            client,
            args,
            placement,
            plan_balance(placement.replicas, placement.racks, placement.full, placement.machines),
            args.execute,
        )


async def decommission(args: Namespace) -> int:
    """Moves all replicas off a broker, and waits until it has none."""
    leaving: int = args.broker
    async with open_client(args) as client:
        seen = await fetch_cluster_view(client)
        if leaving not in seen.brokers:
            raise Refused(Code.BROKER_ID_NOT_REGISTERED, f"no broker {leaving}: there are {sorted(seen.brokers)}")
        placement, moves = await _plan_drain(client, leaving, args.plan)
        done = await _print_or_execute(client, args, placement, moves, not args.plan)
        if done is not Exit.OK or args.plan or args.no_wait:
            return done
        with show_progress(args, f"empty broker {leaving}") as shown:
            total = _count_replicas(seen, leaving)
            while left := _count_replicas(seen, leaving):
                shown.report(total - left, total, "replicas")
                await asyncio.sleep(POLL_SECONDS)
                seen = await fetch_cluster_view(client)
    if args.format == "text":
        print_lines([f"broker {leaving} has no replicas any more, gets no new ones, and may be stopped"])
    return Exit.OK


def _count_replicas(seen: ClusterView, node: int) -> int:
    return sum(node in each.replica_nodes for topic in seen.topics for each in topic.partitions)


async def _plan_drain(client: KafkaClient, leaving: int, plan: bool) -> tuple[ReplicaPlacement, Reassignments]:
    """Returns the moves that free a broker from all replicas. The broker is cordoned first, so that it gets no new
    ones."""
    was = await fetch_cordoned(client, [leaving])
    if not plan and not was:
        await cordon(client, leaving)
    try:
        placement = await fetch_placement(client)
        moves = plan_drain(
            placement.replicas, placement.racks, leaving, placement.leaderless, placement.full, placement.machines
        )
        return placement, moves
    except Refused:
        if not plan and not was:
            await cordon(client, leaving, lift=True)
        raise


async def _print_or_execute(
    client: KafkaClient, args: Namespace, placement: ReplicaPlacement, moves: Reassignments, execute: bool
) -> Exit:
    if execute:
        return await _execute_moves(client, args, placement, moves)
    _warn_of_full_disks(placement, moves)
    print_moves([_planned_row(tp, placement.replicas[tp], to) for tp, to in moves.items()], args)
    if args.format == "text":
        copied = sum(len(set(to) - set(placement.replicas[tp])) for tp, to in moves.items())
        print_lines([f"{len(moves)} partitions would change, {copied} replicas would be copied"])
    return Exit.OK


async def _execute_moves(
    client: KafkaClient, args: Namespace, placement: ReplicaPlacement, wanted: TargetReplicas
) -> Exit:
    """Starts the moves, and prints the outcome of each. With a rate, waits until all are complete, and removes the
    rate."""
    _warn_of_full_disks(placement, wanted)
    throttled = {
        tp: (placement.replicas[tp], to) for tp, to in wanted.items() if to is not None and tp in placement.replicas
    }
    if args.throttle is None or not throttled:
        return await _send_moves(client, args, placement, wanted)
    try:
        await throttle(client, throttled, args.throttle)
        done = await _send_moves(client, args, placement, wanted)
        with show_progress(args, "move partitions") as shown:
            while left := throttled.keys() & (await fetch_reassignments(client)).keys():
                shown.report(len(throttled) - len(left), len(throttled), "partitions")
                await asyncio.sleep(POLL_SECONDS)
    except asyncio.CancelledError:
        why = "partitions go on moving at that rate; `tiered cluster unthrottle` takes it away"
        print(f"tiered: {why}", file=sys.stderr)
        raise
    await unthrottle(client, throttled)
    return done


def _warn_of_full_disks(placement: ReplicaPlacement, wanted: TargetReplicas) -> None:
    """Says on the error stream which brokers with full disks get replicas."""
    added = {node for tp, to in wanted.items() for node in set(to or ()) - set(placement.replicas.get(tp, ()))}
    for node in sorted(added & placement.full):
        why = f"the disk of broker {node} is full: the replicas that move there join no ISR until it has room"
        print(f"tiered: {why}", file=sys.stderr)


async def _send_moves(
    client: KafkaClient, args: Namespace, placement: ReplicaPlacement, wanted: TargetReplicas
) -> Exit:
    outcomes: dict[PartitionName, str] = {}
    listed = sorted(wanted.items())
    for start in range(0, len(listed), PARTITIONS_PER_REQUEST):
        outcomes.update(await alter_reassignments(client, dict(listed[start : start + PARTITIONS_PER_REQUEST])))
    rows = []
    for tp, to in listed:
        replicas = placement.replicas.get(tp, ())
        if to is None:
            replicas = placement.replicas_if_cancelled.get(tp, replicas)
        rows.append({**_planned_row(tp, replicas, to or ()), "status": outcomes.get(tp, "no reply")})
    print_moves(rows, args)
    return Exit.OK if all(row["status"] == "OK" for row in rows) else Exit.FAILED


def print_moves(rows: Sequence[Row], args: Namespace) -> None:
    """Prints a row for each partition. Partitions that were named or refused always have a row."""

    def words(row: Row) -> str:
        name = str(row["partition"])
        return name.rpartition("/")[0] if is_internal(name) and row.get("status", "OK") == "OK" else ""

    print_folded(rows, args.format, words, internal=getattr(args, "internal", True))


def _planned_row(tp: PartitionName, replicas: tuple[int, ...], to: tuple[int, ...]) -> Row:
    return {"partition": str(tp), "replicas": list(replicas), "to": list(to) or None}


def _reassignment_row(tp: PartitionName, each: OngoingPartitionReassignment) -> Row:
    return {
        "partition": str(tp),
        "replicas": each.replicas,
        "adding": each.adding_replicas or None,
        "removing": each.removing_replicas or None,
    }


# -- state of the cluster ---------------------------------------------------------------------------------------------


async def fetch_placement(client: KafkaClient, seen: ClusterView | None = None) -> ReplicaPlacement:
    """Returns the placement of replicas."""
    seen = seen or await fetch_cluster_view(client)
    on_the_way = await fetch_reassignments(client)
    placed: dict[PartitionName, tuple[int, ...]] = {}
    back: dict[PartitionName, tuple[int, ...]] = {}
    leaderless = []
    for topic in seen.topics:
        for each in sorted(topic.partitions, key=lambda each: each.partition_index):
            tp = PartitionName(topic.name or "", each.partition_index)
            move = on_the_way.get(tp, OngoingPartitionReassignment())
            placed[tp] = tuple(node for node in each.replica_nodes if node not in move.removing_replicas)
            if tp in on_the_way:
                back[tp] = tuple(node for node in each.replica_nodes if node not in move.adding_replicas)
            if each.leader_id < 0:
                leaderless.append(tp)
    live = {node: each.rack or "" for node, each in seen.brokers.items() if each.state == LIVE}
    cordoned_brokers = await fetch_cordoned(client, list(live))
    racks = {node: rack for node, rack in live.items() if node not in cordoned_brokers}
    full = frozenset(node for node in live if seen.is_disk_full(node))
    cordoned = tuple(sorted(cordoned_brokers))
    return ReplicaPlacement(placed, racks, tuple(leaderless), cordoned, back, full, seen.machines())


async def fetch_reassignments(client: KafkaClient) -> dict[PartitionName, OngoingPartitionReassignment]:
    """Returns the reassignments in progress."""
    request = ListPartitionReassignmentsRequest(TIMEOUT_MS, None)
    got = await client.send_to_controller(request, ListPartitionReassignmentsResponse)
    if got.error_code:
        raise to_refused(got.error_code, "what moves", got.error_message)
    return {PartitionName(topic.name, each.partition_index): each for topic in got.topics for each in topic.partitions}


async def alter_reassignments(client: KafkaClient, wanted: TargetReplicas) -> dict[PartitionName, str]:
    """Sets the target replicas of partitions, or cancels a reassignment (None). Returns OK or the error of each."""
    topics: dict[str, ReassignableTopic] = {}
    for tp, to in wanted.items():
        row = ReassignablePartition(tp.partition, None if to is None else list(to))
        topics.setdefault(tp.topic, ReassignableTopic(tp.topic, [])).partitions.append(row)
    request = AlterPartitionReassignmentsRequest(TIMEOUT_MS, True, list(topics.values()))
    got = await client.send_to_controller(request, AlterPartitionReassignmentsResponse)
    if got.error_code:
        raise to_refused(got.error_code, "moving partitions", got.error_message)
    return {
        PartitionName(topic.name, each.partition_index): format_status(each.error_code, each.error_message)
        for topic in got.responses
        for each in topic.partitions
    }
