"""`tiered cluster reassign|rebalance|decommission`: partitions move to other brokers (KIP-455).

What moves where is planned by `tiered.controller.reassignment_planner`; the cluster judges each move, and copies before
it gives up.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tiered.controller.reassignment_planner import PartitionName, Reassignments, plan_balance, plan_drain
from tiered.errors import Code, Refused
from tiered_api.cli.cluster.throttle import cordon, cordoned, throttle, unthrottle, unthrottle_all
from tiered_api.cli.cluster.view import LIVE, View, look
from tiered_api.cli.exits import Exit
from tiered_api.cli.group.internal_rows import is_internal, print_folded
from tiered_api.cli.output import Row, print_rows, say
from tiered_api.cli.parsing import is_number
from tiered_api.cli.reach import cluster
from tiered_api.cli.topic.topics import status
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

AT_ONCE = 1_000
"""Partitions in one request."""
LOOK_SECONDS = 1.0
TIMEOUT_MS = 60_000

Wanted = Mapping[PartitionName, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where replicas are, or are to be once what moves has arrived; live brokers that take new ones, with their racks;
    and who leads."""

    placed: dict[PartitionName, tuple[int, ...]]
    racks: dict[int, str]
    leaderless: tuple[PartitionName, ...]
    cordoned: tuple[int, ...] = ()
    """Live brokers that take no new ones."""
    back: dict[PartitionName, tuple[int, ...]] = field(default_factory=dict)
    """Of what moves: the replicas that stay when it is called off."""


def target(text: str) -> tuple[PartitionName, tuple[int, ...]]:
    """`flights/0=1,2,3`. `Refused` when it is not that."""
    name, equals, listed = text.partition("=")
    nodes = listed.split(",")
    if not equals or not all(is_number(each.strip()) for each in nodes):
        raise Refused(Code.INVALID_REQUEST, f"{text!r} is not TOPIC/PARTITION=ID,ID,...")
    return partition(name), tuple(int(each) for each in nodes)


def partition(text: str) -> PartitionName:
    """`flights/0`. `Refused` when it is not that."""
    topic, slash, number = text.rpartition("/")
    if not slash or not topic or not is_number(number):
        raise Refused(Code.INVALID_REQUEST, f"{text!r} is not TOPIC/PARTITION")
    return PartitionName(topic, int(number))


def reassign(args: Namespace) -> int:
    """Sends partitions to the brokers that are named, calls moves off, or lists what moves."""
    return asyncio.run(_reassign(args))


async def _reassign(args: Namespace) -> Exit:
    wanted: dict[PartitionName, tuple[int, ...] | None] = dict(target(text) for text in args.targets)
    wanted |= dict.fromkeys(partition(text) for text in args.cancel)
    async with cluster(args) as client:
        if not wanted:
            print_rows([_row(at, each) for at, each in (await moving(client)).items()], args.format)
            return Exit.OK
        standing = await stand(client)
        return await _do(client, args, standing, wanted)


def unthrottled(args: Namespace) -> int:
    """Takes away every rate that holds copies."""
    return asyncio.run(_unthrottled(args))


async def _unthrottled(args: Namespace) -> Exit:
    async with cluster(args) as client:
        brokers, topics = await unthrottle_all(client)
    if args.format == "text":
        say([f"{brokers} brokers and {topics} topics hold no copies to a rate"])
    return Exit.OK


def rebalance(args: Namespace) -> int:
    """Prints what would move so that all brokers hold as much; with `--execute` it does."""
    return asyncio.run(_rebalance(args))


async def _rebalance(args: Namespace) -> Exit:
    async with cluster(args) as client:
        standing = await stand(client)
        if standing.cordoned and args.format == "text":
            named = ", ".join(map(str, standing.cordoned))
            say([f"cordoned.log.dirs keeps new replicas from broker {named}"])
        return await _carry_out(client, args, standing, plan_balance(standing.placed, standing.racks), args.execute)


def decommission(args: Namespace) -> int:
    """Moves everything off a broker, and waits until it holds nothing."""
    return asyncio.run(_decommission(args))


async def _decommission(args: Namespace) -> Exit:
    leaving: int = args.broker
    async with cluster(args) as client:
        seen = await look(client)
        if leaving not in seen.brokers:
            raise Refused(Code.BROKER_ID_NOT_REGISTERED, f"no broker {leaving}: there are {sorted(seen.brokers)}")
        standing, moves = await _drained(client, leaving, args.plan)
        done = await _carry_out(client, args, standing, moves, not args.plan)
        if done is not Exit.OK or args.plan or args.no_wait:
            return done
        while any(leaving in each.replica_nodes for topic in seen.topics for each in topic.partitions):
            await asyncio.sleep(LOOK_SECONDS)
            seen = await look(client)
    if args.format == "text":
        say([f"broker {leaving} holds nothing any more, gets nothing new, and may be stopped"])
    return Exit.OK


async def _drained(client: KafkaClient, leaving: int, plan: bool) -> tuple[Standing, Reassignments]:
    """What has to move so that a broker is free to leave. It gets nothing new before that is counted."""
    was = await cordoned(client, [leaving])
    if not plan and not was:
        await cordon(client, leaving)
    try:
        standing = await stand(client)
        return standing, plan_drain(standing.placed, standing.racks, leaving, standing.leaderless)
    except Refused:
        if not plan and not was:
            await cordon(client, leaving, lift=True)
        raise


async def _carry_out(client: KafkaClient, args: Namespace, standing: Standing, moves: Reassignments, execute: bool) -> Exit:
    if execute:
        return await _do(client, args, standing, moves)
    print_moves([_planned(at, standing.placed[at], to) for at, to in moves.items()], args)
    if args.format == "text":
        copied = sum(len(set(to) - set(standing.placed[at])) for at, to in moves.items())
        say([f"{len(moves)} partitions would change, {copied} replicas would be copied"])
    return Exit.OK


async def _do(client: KafkaClient, args: Namespace, standing: Standing, wanted: Wanted) -> Exit:
    """Asks for it, and prints what became of each. With a rate it waits until all has arrived, and takes it away."""
    held = {at: (standing.placed[at], to) for at, to in wanted.items() if to is not None and at in standing.placed}
    if args.throttle is None or not held:
        return await _ask(client, args, standing, wanted)
    try:
        await throttle(client, held, args.throttle)
        done = await _ask(client, args, standing, wanted)
        while held.keys() & (await moving(client)).keys():
            await asyncio.sleep(LOOK_SECONDS)
    except asyncio.CancelledError:
        why = "partitions go on moving at that rate; `tiered cluster unthrottle` takes it away"
        print(f"tiered: {why}", file=sys.stderr)
        raise
    await unthrottle(client, held)
    return done


async def _ask(client: KafkaClient, args: Namespace, standing: Standing, wanted: Wanted) -> Exit:
    outcomes: dict[PartitionName, str] = {}
    listed = sorted(wanted.items())
    for start in range(0, len(listed), AT_ONCE):
        outcomes.update(await alter(client, dict(listed[start : start + AT_ONCE])))
    rows = []
    for at, to in listed:
        replicas = standing.placed.get(at, ())
        if to is None:
            replicas = standing.back.get(at, replicas)
        rows.append({**_planned(at, replicas, to or ()), "status": outcomes.get(at, "no answer")})
    print_moves(rows, args)
    return Exit.OK if all(row["status"] == "OK" for row in rows) else Exit.FAILED


def print_moves(rows: Sequence[Row], args: Namespace) -> None:
    """Prints a row for each partition. Partitions that were named or refused have theirs in any case."""

    def words(row: Row) -> str:
        name = str(row["partition"])
        return name.rpartition("/")[0] if is_internal(name) and row.get("status", "OK") == "OK" else ""

    print_folded(rows, args.format, words, internal=getattr(args, "internal", True))


def _planned(at: PartitionName, replicas: tuple[int, ...], to: tuple[int, ...]) -> Row:
    return {"partition": str(at), "replicas": list(replicas), "to": list(to) or None}


def _row(at: PartitionName, each: OngoingPartitionReassignment) -> Row:
    return {
        "partition": str(at),
        "replicas": each.replicas,
        "adding": each.adding_replicas or None,
        "removing": each.removing_replicas or None,
    }


# -- what the cluster says --------------------------------------------------------------------------------------------


async def stand(client: KafkaClient, seen: View | None = None) -> Standing:
    """How replicas are placed."""
    seen = seen or await look(client)
    on_the_way = await moving(client)
    placed: dict[PartitionName, tuple[int, ...]] = {}
    back: dict[PartitionName, tuple[int, ...]] = {}
    leaderless = []
    for topic in seen.topics:
        for each in sorted(topic.partitions, key=lambda each: each.partition_index):
            at = PartitionName(topic.name or "", each.partition_index)
            move = on_the_way.get(at, OngoingPartitionReassignment())
            placed[at] = tuple(node for node in each.replica_nodes if node not in move.removing_replicas)
            if at in on_the_way:
                back[at] = tuple(node for node in each.replica_nodes if node not in move.adding_replicas)
            if each.leader_id < 0:
                leaderless.append(at)
    live = {node: each.rack or "" for node, each in seen.brokers.items() if each.state == LIVE}
    full = await cordoned(client, list(live))
    racks = {node: rack for node, rack in live.items() if node not in full}
    return Standing(placed, racks, tuple(leaderless), tuple(sorted(full)), back)


async def moving(client: KafkaClient) -> dict[PartitionName, OngoingPartitionReassignment]:
    """What is on its way."""
    request = ListPartitionReassignmentsRequest(TIMEOUT_MS, None)
    got = await client.send_to_controller(request, ListPartitionReassignmentsResponse)
    if got.error_code:
        raise to_refused(got.error_code, "what moves", got.error_message)
    return {PartitionName(topic.name, each.partition_index): each for topic in got.topics for each in topic.partitions}


async def alter(client: KafkaClient, wanted: Wanted) -> dict[PartitionName, str]:
    """Asks for other replicas, or (None) to call a move off; OK or why not, for each."""
    topics: dict[str, ReassignableTopic] = {}
    for at, to in wanted.items():
        row = ReassignablePartition(at.partition, None if to is None else list(to))
        topics.setdefault(at.topic, ReassignableTopic(at.topic, [])).partitions.append(row)
    request = AlterPartitionReassignmentsRequest(TIMEOUT_MS, True, list(topics.values()))
    got = await client.send_to_controller(request, AlterPartitionReassignmentsResponse)
    if got.error_code:
        raise to_refused(got.error_code, "moving partitions", got.error_message)
    return {
        PartitionName(topic.name, each.partition_index): status(each.error_code, each.error_message)
        for topic in got.responses
        for each in topic.partitions
    }
