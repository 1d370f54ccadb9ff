"""`tiered audit`: the newest events of the audit log that are wanted, from its topic or from a file."""

from __future__ import annotations

import asyncio
import heapq
import re
import time
from argparse import Namespace
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered_api.cli.configs import BROKER, describe_configs
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_error, print_json, print_rows
from tiered_api.cli.reach import open_client
from tiered_api.cli.text.offset_range import Point, PointKind, Range, parse_range
from tiered_api.cli.topic.consume import resolve_bounds
from tiered_api.cli.topic.describe import partitions_of
from tiered_api.kafka.client.client import KafkaClient, code_from_number
from tiered_api.kafka.client.consumer import KafkaConsumer

AUDIT_TOPIC = "tiered.audit.topic"
NAMES = ("time", "event", "outcome", "principal", "host", "operation", "resource_type", "resource_name", "detail")
"""The columns for people. JSON has the events as they are."""


def show_audit(args: Namespace) -> int:
    """Prints events of the audit log, the oldest one first."""
    newest = _Newest(args, _parse_since(args.since))
    if args.file:
        _read_file(args.file, newest)
    else:
        asyncio.run(_read_topic(args, newest))
    if newest.broken:
        print_error(f"{newest.broken} lines are no events of an audit log")
    found = newest.list_events()
    if args.format == "json":
        for event in found:
            print_json(event)
    else:
        print_rows([_to_row(event) for event in found], args.format, NAMES)
    return Exit.OK


class _Newest:
    """The last `args.num` events that are wanted. It holds no others."""

    def __init__(self, args: Namespace, since_ms: int | None) -> None:
        self.since_ms = since_ms
        self.broken = 0
        """Lines that are no events."""
        self._args = args
        self._lines = 0
        self._found: list[tuple[str, int, int, dict[str, Any]]] = []

    def add(self, line: bytes) -> None:
        """Takes one line of the audit log."""
        self._lines += 1
        event = _parse(line)
        if event is None:
            self.broken += 1
            return
        for number, each in enumerate(_list_resources(event)):
            if _is_wanted(each, self._args, self.since_ms):
                item = str(each.get("time", "")), self._lines, number, each
                (heapq.heappush if len(self._found) < self._args.num else heapq.heappushpop)(self._found, item)

    def list_events(self) -> list[dict[str, Any]]:
        """Returns the events, the oldest one first."""
        return [event for *_, event in sorted(self._found)]


def _read_file(name: str, newest: _Newest) -> None:
    """Reads `tiered.audit.file` of a broker."""
    try:
        with Path(name).open("rb") as file:
            for line in file:
                newest.add(line)
    except OSError as error:
        raise Refused(Code.INVALID_REQUEST, f"{name} cannot be read: {error.strerror}") from None


async def _read_topic(args: Namespace, newest: _Newest) -> None:
    """Reads the topic up to its end of now."""
    async with open_client(args) as client:
        topic = args.topic or await _find_topic(client)
        wanted = list(partitions_of(await client.fetch_topic(topic)))
        since_ms = newest.since_ms
        start = Point(PointKind.START) if since_ms is None else Point(PointKind.TIME, since_ms)
        starts, ends = await resolve_bounds(client, Range(start, Point(PointKind.END)), wanted, read_committed=False)
        consumer = KafkaConsumer(client, warn=print_error)
        consumer.assign({each: at for each, at in starts.items() if at < ends[each]})
        try:
            await _read_to(consumer, ends, newest)
        finally:
            await consumer.close()


async def _read_to(consumer: KafkaConsumer, ends: Mapping[TopicPartition, int], newest: _Newest) -> None:
    while consumer.positions():
        for fetched in await consumer.poll():
            for record in fetched.records:
                if record.offset < ends[fetched.tp] and record.value is not None:
                    newest.add(bytes(record.value))
        for tp, position in consumer.positions().items():
            if position >= ends[tp]:
                consumer.unassign(tp)


async def _find_topic(client: KafkaClient) -> str:
    """Returns the topic of the audit log by the settings of a broker."""
    for broker in (await client.fetch_metadata([])).brokers:
        for described in await describe_configs(
            client, BROKER, [str(broker.node_id)], [AUDIT_TOPIC], node=broker.node_id
        ):
            if described.error_code:
                why = described.error_message or f"error {described.error_code}"
                code = code_from_number(described.error_code)
                raise Refused(code, f"the brokers do not tell the topic of the audit log: {why}; name it with --topic")
            for config in described.configs:
                if config.value:
                    return config.value
    raise Refused(
        Code.INVALID_REQUEST,
        f"no broker has {AUDIT_TOPIC}: the audit log is on the disks of the brokers alone; name a file with --file",
    )


def _parse_since(text: str | None) -> int | None:
    """Returns a time in ms: the forms of `topic consume -o @TIME`. A duration without a sign is one that has passed."""
    if text is None:
        return None
    if re.fullmatch(r"[\d.]+[a-z][\da-z.]*", text):
        text = f"-{text}"
    point = parse_range(f"@{text.removeprefix('@')}", time.time_ns() // 1_000_000).start
    return point.value


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _list_resources(event: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns an event for each resource of a line that several changes share."""
    names = event.pop("resource_names", None)
    if not isinstance(names, list):
        return [event]
    return [{**event, "resource_name": str(name)} for name in names]


def _is_wanted(event: dict[str, Any], args: Namespace, since_ms: int | None) -> bool:
    return (
        (args.event is None or event["event"] == args.event)
        and (args.principal is None or event.get("principal") == args.principal)
        and (args.resource is None or _names(event, args.resource))
        and (since_ms is None or _time_ms(event) >= since_ms)
    )


def _names(event: dict[str, Any], resource: str) -> bool:
    """True if an event is about a resource. A partition is part of its topic."""
    name = str(event.get("resource_name", ""))
    return name == resource or (event.get("resource_type") == "TOPIC" and name.rpartition("-")[0] == resource)


def _time_ms(event: dict[str, Any]) -> float:
    try:
        return datetime.fromisoformat(str(event.get("time"))).timestamp() * 1000
    except ValueError:
        return 0


def _to_row(event: dict[str, Any]) -> Row:
    """Returns an event as columns. The reason of a refusal stands in the last one."""
    detail = event.get("detail") or event.get("why") or event.get("mechanism") or event.get("pot")
    claimed = f"(as user {event['claimed_user']})" if event.get("claimed_user") else ""
    more = f"({event['suppressed']} more without a line)" if event.get("suppressed") else ""
    described = {**event, "detail": " ".join(filter(None, (detail, claimed, more)))}
    return {name: described.get(name) for name in NAMES}
