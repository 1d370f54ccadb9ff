"""`tiered cluster health`: whether every partition has its leader and its replicas and every broker its bucket, and if
not, why."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from tiered.errors import Code, Refused, Unavailable
from tiered_api.cli.cluster.configs import TOPIC, described
from tiered_api.cli.cluster.health_verdict import At, Eligible, judged, to_ask_about, unwell
from tiered_api.cli.cluster.moves import moving
from tiered_api.cli.cluster.view import look, self_reports
from tiered_api.cli.exits import Exit
from tiered_api.cli.group.internal_rows import folded, is_internal
from tiered_api.cli.output import print_json, print_rows, say
from tiered_api.cli.reach import cluster
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)

WATCH_SECONDS = 2.0
TOPICS_AT_ONCE = 500
"""Of which one request asks."""
SHOWN_MAX = 100
"""Partitions that are explained in text; JSON has all."""
NAMED_MAX = 5
"""Partitions that are named in one line of text."""
MIN_ISR = "min.insync.replicas"
LISTS = {
    "Leaderless partitions": "leaderless_partitions",
    "Under-min-ISR partitions": "under_min_isr_partitions",
    "Under-replicated partitions": "under_replicated_partitions",
}


def health(args: Namespace) -> int:
    """Says whether every partition has its leader and all its replicas, and what brokers say is wrong with them. Exit
    code 10 when not all is well."""
    return asyncio.run(_watch(args) if args.watch else _once(args))


async def _once(args: Namespace) -> Exit:
    async with cluster(args) as client:
        return say_health(await found_health(client), args.format, internal=args.internal)


async def _watch(args: Namespace) -> Exit:
    """Prints the state whenever it is another one. A cluster that does not answer yet is waited for."""
    said: object = None
    while True:
        found: dict[str, Any] | Unavailable
        try:
            async with cluster(args) as client:
                found = await found_health(client)
        except Unavailable as fault:
            found = fault
        if str(found) != said:
            said = str(found)
            if isinstance(found, Unavailable):
                say([f"not reached: {found}"])
            else:
                say_health(found, args.format, internal=args.internal)
        if args.exit_when_healthy and isinstance(found, dict) and found["healthy"]:
            return Exit.OK
        await asyncio.sleep(WATCH_SECONDS)


async def found_health(client: KafkaClient) -> dict[str, Any]:
    """Asks what has to be known; of a cluster that is well that is two requests, and one to each broker."""
    seen = await look(client)
    names = to_ask_about(seen)
    said = await self_reports(client, seen)
    if not names:
        return judged(seen, (), said)
    min_isr, heirs = await least_in_sync(client, names), await eligible(client, names)
    return judged(seen, list(unwell(seen, min_isr, heirs, await _added(client))), said)


async def _added(client: KafkaClient) -> dict[At, list[int]]:
    """Replicas that moves add; nothing where nobody can be asked for them."""
    try:
        return {at: each.adding_replicas for at, each in (await moving(client)).items()}
    except (Refused, Unavailable):
        return {}


async def least_in_sync(client: KafkaClient, names: list[str]) -> dict[str, int]:
    """`min.insync.replicas` of topics; one that is gone meanwhile is left out."""
    found: dict[str, int] = {}
    for some in _portions(names):
        for result in await described(client, TOPIC, some, [MIN_ISR]):
            said = {each.name: each.value or "" for each in result.configs}.get(MIN_ISR, "")
            if said.isdecimal():
                found[result.resource_name] = int(said)
    return found


async def eligible(client: KafkaClient, names: list[str]) -> dict[At, Eligible]:
    """Who may lead partitions of topics; nothing where brokers do not say it (before Kafka 3.7)."""
    found: dict[At, Eligible] = {}
    for some in _portions(names):
        cursor: Cursor | None = None
        while True:
            request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name) for name in some], cursor=cursor)
            try:
                got = await client.send(request, DescribeTopicPartitionsResponse)
            except Refused as no:
                if no.code is Code.UNSUPPORTED_VERSION:
                    return {}
                raise
            for topic in got.topics:
                for each in topic.partitions:
                    elr, last_known = each.eligible_leader_replicas or (), each.last_known_elr or ()
                    found[topic.name or "", each.partition_index] = Eligible(tuple(elr), tuple(last_known))
            if got.next_cursor is None or got.next_cursor == cursor:
                break
            cursor = got.next_cursor
    return found


def _portions(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), TOPICS_AT_ONCE):
        yield sorted(names)[start : start + TOPICS_AT_ONCE]


def say_health(found: dict[str, Any], form: str, *, internal: bool = False) -> Exit:
    """Prints the health; the exit code says it too."""
    if form == "json":
        print_json(found)
    else:
        _say(found, internal)
    return Exit.OK if found["healthy"] else Exit.UNHEALTHY


def _say(found: dict[str, Any], internal: bool) -> None:
    lines = {
        "Healthy": str(found["healthy"]).lower(),
        "Unhealthy reasons": found["reasons"],
        "Controller ID": found["controller"],
        "All nodes": found["nodes"],
        "Nodes down": found["nodes_down"],
    }
    for words, key in LISTS.items():
        lines[f"{words} ({len(found[key])})"] = _few(found[key])
    lost = sorted(found["possible_losses"], key=lambda each: is_internal(each["topic"]))
    if lost:
        names = [f"{each['topic']}/{each['partition']} from offset {each['from_offset']} on" for each in lost]
        lines[f"Possible losses ({len(lost)})"] = [*_few(names), "see: tiered cluster losses"]
    for number, sentence in enumerate(found["broker_problems"], 1):
        lines[f"Problem {number}"] = sentence
    width = max(map(len, lines)) + 2
    say(["CLUSTER HEALTH OVERVIEW", "======================="])
    say(f"{name + ':':<{width}}{_listed(value)}" for name, value in lines.items())
    listed = sorted(found["partitions"], key=lambda each: is_internal(each["topic"]))
    rest: list[str] = []
    if not internal:
        listed, rest = folded(listed, lambda each: _folded_into(each) if is_internal(each["topic"]) else "")
    rows = [
        {
            "partition": f"{each['topic']}/{each['partition']}",
            "problem": each["problems"],
            "leader": each["leader"],
            "replicas": each["replicas"],
            "isr": each["isr"],
            "why": each["why"],
        }
        for each in listed[:SHOWN_MAX]
    ]
    if rows or rest:
        say([""])
    print_rows(rows, "text")
    if len(listed) > SHOWN_MAX:
        say([f"... and {len(listed) - SHOWN_MAX} more: --format json has all of them"])
    say(f"{line} (-i shows them)" for line in rest)


def _folded_into(each: dict[str, Any]) -> str:
    return f"{each['topic']}: {','.join(each['problems'])}"


def _few(names: list[str]) -> list[str]:
    """Each has a row of its own below: one line gives an idea of them."""
    few, rest = folded(names, lambda name: name.rpartition("/")[0] if is_internal(name) else "")
    return [*few[:NAMED_MAX], *([f"... and {len(few) - NAMED_MAX} more"] if len(few) > NAMED_MAX else []), *rest]


def _listed(value: object) -> str:
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, list) else str(value)
