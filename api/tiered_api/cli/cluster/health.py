"""`tiered cluster health`: checks that every partition has its leader and its replicas and every broker its bucket, and
gives reasons if not."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from typing import Any

from tiered.errors import Code, Refused, Unavailable
from tiered.time_text import format_time
from tiered_api.cli.cluster.moves import fetch_reassignments
from tiered_api.cli.cluster.view import fetch_cluster_view, fetch_reports_of_down, fetch_self_reports
from tiered_api.cli.configs import TOPIC, describe_configs
from tiered_api.cli.exits import Exit
from tiered_api.cli.internal_rows import fold_rows, is_internal
from tiered_api.cli.output import print_json, print_lines, print_rows
from tiered_api.cli.reach import open_client
from tiered_api.health.verdict import (
    EligibleReplicas,
    TopicAndPartition,
    TroubleTimes,
    UnhealthyPartition,
    find_unhealthy,
    summarize_health,
    topics_to_examine,
)
from tiered_api.health.view import ClusterView
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)

WATCH_SECONDS = 2.0
TOPICS_AT_ONCE = 500
"""Most topics in one request."""
SHOWN_MAX = 100
"""Most partitions that are explained in text; JSON has all."""
NAMED_MAX = 5
"""Most partitions that are named in one line of text."""
MIN_ISR = "min.insync.replicas"
LISTS = {
    "Leaderless partitions": "leaderless_partitions",
    "Under-min-ISR partitions": "under_min_isr_partitions",
    "Under-replicated partitions": "under_replicated_partitions",
}


async def health(args: Namespace) -> int:
    """Prints the health of all partitions and brokers. Returns exit code 10 if not all are healthy, and 11 if all that
    the caller may see are."""
    if args.watch:
        return await _watch(args)
    async with open_client(args) as client:
        return print_health(await check_health(client), args.format, internal=args.internal)


async def _watch(args: Namespace) -> Exit:
    """Prints the state whenever it changes. Waits for a cluster that does not reply yet."""
    said: object = None
    while True:
        found: dict[str, Any] | Unavailable
        try:
            async with open_client(args) as client:
                found = await check_health(client)
        except Unavailable as fault:
            found = fault
        if str(found) != said:
            said = str(found)
            if isinstance(found, Unavailable):
                print_lines([f"not reached: {found}"])
            else:
                print_health(found, args.format, internal=args.internal)
        if args.exit_when_healthy and isinstance(found, dict) and found["healthy"]:
            return Exit.PARTIAL if found["partial"] else Exit.OK
        await asyncio.sleep(WATCH_SECONDS)


async def check_health(client: KafkaClient) -> dict[str, Any]:
    """Fetches the state that the verdict needs. For a healthy cluster that takes two requests, and one to each
    broker. A broker that is down is tried too."""
    seen = await fetch_cluster_view(client)
    names = topics_to_examine(seen)
    said = [*await fetch_self_reports(client, seen), *await fetch_reports_of_down(client, seen)]
    if not names:
        return summarize_health(seen, (), said)
    return summarize_health(seen, await explain_partitions(client, seen, names), said)


async def explain_partitions(client: KafkaClient, seen: ClusterView, names: list[str]) -> list[UnhealthyPartition]:
    """Fetches what the verdict on these topics needs besides the view. Returns the partitions that lack something."""
    min_isr, (eligible_replicas, times) = await fetch_min_isr(client, names), await fetch_eligible(client, names)
    return list(find_unhealthy(seen, min_isr, eligible_replicas, await _adding_replicas(client), times))


async def _adding_replicas(client: KafkaClient) -> dict[TopicAndPartition, list[int]]:
    """Returns the replicas that reassignments add; nothing if no controller replies."""
    try:
        return {tp: each.adding_replicas for tp, each in (await fetch_reassignments(client)).items()}
    except (Refused, Unavailable):
        return {}


async def fetch_min_isr(client: KafkaClient, names: list[str]) -> dict[str, int]:
    """Returns `min.insync.replicas` of topics, without topics that were deleted meanwhile."""
    found: dict[str, int] = {}
    for some in topic_chunks(names):
        for result in await describe_configs(client, TOPIC, some, [MIN_ISR]):
            said = {each.name: each.value or "" for each in result.configs}.get(MIN_ISR, "")
            if said.isdecimal():
                found[result.resource_name] = int(said)
    return found


async def fetch_eligible(
    client: KafkaClient, names: list[str]
) -> tuple[dict[TopicAndPartition, EligibleReplicas], dict[TopicAndPartition, TroubleTimes]]:
    """Returns the replicas that may lead partitions of topics, and since when partitions lack something; nothing if
    brokers do not report them (before Kafka 3.7)."""
    found: dict[TopicAndPartition, EligibleReplicas] = {}
    times: dict[TopicAndPartition, TroubleTimes] = {}
    try:
        async for topic in fetch_partitions(client, names):
            for each in topic.partitions:
                elr, last_known = each.eligible_leader_replicas or (), each.last_known_elr or ()
                found[topic.name or "", each.partition_index] = EligibleReplicas(tuple(elr), tuple(last_known))
                if each.leaderless_since_ms >= 0 or each.missing_since_ms:
                    seen_times = TroubleTimes(each.leaderless_since_ms, each.missing_since_ms)
                    times[topic.name or "", each.partition_index] = seen_times
    except Refused as no:
        if no.code is Code.UNSUPPORTED_VERSION:
            return {}, {}
        raise
    return found, times


async def fetch_partitions(
    client: KafkaClient, names: list[str]
) -> AsyncIterator[DescribeTopicPartitionsResponseTopic]:
    """Yields topics with all their partitions, in pages: a large topic comes in pieces. Raises `Refused` if brokers do
    not describe them (before Kafka 3.7)."""
    for some in topic_chunks(names):
        cursor: Cursor | None = None
        while True:
            request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name) for name in some], cursor=cursor)
            got = await client.send(request, DescribeTopicPartitionsResponse)
            for topic in got.topics:
                yield topic
            if got.next_cursor is None or got.next_cursor == cursor:
                break
            cursor = got.next_cursor


def topic_chunks(names: list[str]) -> Iterator[list[str]]:
    """Yields the names in order, as many as one request may have."""
    for start in range(0, len(names), TOPICS_AT_ONCE):
        yield sorted(names)[start : start + TOPICS_AT_ONCE]


def print_health(found: dict[str, Any], form: str, *, internal: bool = False) -> Exit:
    """Prints the health. The exit code repeats the verdict."""
    if form == "json":
        print_json(found)
    else:
        _print_overview(found, internal)
    if not found["healthy"]:
        return Exit.UNHEALTHY
    return Exit.PARTIAL if found["partial"] else Exit.OK


def _print_overview(found: dict[str, Any], internal: bool) -> None:
    lines = {
        "Healthy": str(found["healthy"]).lower(),
        "Unhealthy reasons": found["reasons"],
        **({"Partial": found["hidden"]} if found["partial"] else {}),
        "Controller ID": found["controller"],
        "All nodes": found["nodes"],
        "Nodes down": found["nodes_down"],
        **({"Machines down": found["machines_down"]} if found["machines_down"] else {}),
    }
    for words, key in LISTS.items():
        lines[f"{words} ({len(found[key])})"] = _abbreviate(found[key])
    lost = sorted(found["possible_losses"], key=lambda each: is_internal(each["topic"]))
    if lost:
        names = [
            f"{each['topic']}/{each['partition']} from offset {each['from_offset']} on{_format_missing_time(each)}"
            for each in lost
        ]
        lines[f"Possible losses ({len(lost)})"] = [*_abbreviate(names), "see: tiered cluster losses"]
    for number, sentence in enumerate(found["broker_problems"], 1):
        lines[f"Problem {number}"] = sentence
    width = max(map(len, lines)) + 2
    print_lines(["CLUSTER HEALTH OVERVIEW", "======================="])
    print_lines(f"{name + ':':<{width}}{_format_value(value)}" for name, value in lines.items())
    listed = sorted(found["partitions"], key=lambda each: is_internal(each["topic"]))
    rest: list[str] = []
    if not internal:
        listed, rest = fold_rows(listed, lambda each: _fold_key(each) if is_internal(each["topic"]) else "")
    rows = [
        {
            "partition": f"{each['topic']}/{each['partition']}",
            "problem": each["problems"],
            "leader": each["leader"],
            "replicas": each["replicas"],
            "isr": each["isr"],
            "since": "-" if each["since_ms"] is None else format_time(each["since_ms"]),
            "why": each["why"],
        }
        for each in listed[:SHOWN_MAX]
    ]
    if rows or rest:
        print_lines([""])
    print_rows(rows, "text")
    if len(listed) > SHOWN_MAX:
        print_lines([f"... and {len(listed) - SHOWN_MAX} more: --format json has all of them"])
    print_lines(f"{line} (-i shows them)" for line in rest)


def _fold_key(each: dict[str, Any]) -> str:
    return f"{each['topic']}: {','.join(each['problems'])}"


def _abbreviate(names: list[str]) -> list[str]:
    """Shortens the list: each partition has a row of its own below."""
    few, rest = fold_rows(names, lambda name: name.rpartition("/")[0] if is_internal(name) else "")
    return [*few[:NAMED_MAX], *([f"... and {len(few) - NAMED_MAX} more"] if len(few) > NAMED_MAX else []), *rest]


def _format_value(value: object) -> str:
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, list) else str(value)


def _format_missing_time(loss: dict[str, Any]) -> str:
    return "" if loss["at_most_seconds"] is None else f" (at most the last {loss['at_most_seconds']} s)"
