"""`tiered topic describe-storage`: which offsets of each partition are on disk, in the bucket and in a table, and where
groups are."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.cli.configs import BROKER, describe_configs
from tiered_api.cli.output import Row, print_error, print_rows
from tiered_api.cli.reach import open_client
from tiered_api.cli.terminal import can_draw
from tiered_api.cli.topic.describe import offset_of, partitions_of, report_refusals, topics_by_name
from tiered_api.cli.topic.positions import Positions, fetch_positions
from tiered_api.cli.topic.topics import select_topics
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.leader_routing import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    cap_last_stable,
    list_offsets,
)
from tiered_api.kafka.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tiered_api.kafka.protocol.messages.metadata import MetadataResponseTopic

WAREHOUSE = "tiered.console.warehouse"

Sizes = Mapping[TopicPartition, tuple[int, int | None]]
ReadLoaded = Callable[[str, str, str], Mapping[int, int] | None]
"""Returns the next offset to load of each partition, by warehouse, topic and topic id; None without a table."""


class Storage(NamedTuple):
    """The rows of each topic or its refusal, and the last stable offsets of its partitions if they were asked for."""

    topics: Mapping[str, list[dict[str, Any]] | Refused]
    stable: Mapping[str, list[int | None]]


def describe_storage(args: Namespace, read_loaded: ReadLoaded) -> int:
    """Prints for each partition the start of its local records, the end of its records in the bucket, how far a table
    has it, and the positions of groups: as bars on a terminal, else as rows."""
    is_drawn = (
        args.format == "text" and not args.no_picture and can_draw(sys.stdout, "no picture is drawn", "--no-picture")
    )
    found = asyncio.run(_storage(args, read_loaded, with_stable=is_drawn))
    topics = {name: rows for name, rows in found.topics.items() if not isinstance(rows, Refused)}
    if is_drawn:
        from tiered_api.cli.topic.tier_picture import draw_topics

        draw_topics(topics, found.stable)
    else:
        print_rows([_shown(row, args.format) for rows in topics.values() for row in rows], args.format)
    return report_refusals(found.topics.values())


def _shown(row: Row, form: str) -> Row:
    """Returns a row in the form of the output: as text, groups are words."""
    if form == "json":
        return row
    return {**row, "groups": [f"{group}:{offset}" for group, offset in row["groups"].items()] or None}


async def _storage(args: Namespace, read_loaded: ReadLoaded, *, with_stable: bool) -> Storage:
    topics: dict[str, list[dict[str, Any]] | Refused] = {}
    stable: dict[str, list[int | None]] = {}
    async with open_client(args) as client:
        found = await topics_by_name(client, await select_topics(client, args))
        there = {name: topic for name, topic in found.items() if not isinstance(topic, Refused)}
        sizes, positions = await partition_sizes(client), await fetch_positions(client, there)
        loaded = await _loaded_offsets(client, args.warehouse, there, read_loaded)
        for name, topic in found.items():
            if isinstance(topic, Refused):
                topics[name] = topic
                continue
            rows = await _storage_rows(client, topic, sizes, positions)
            if loaded is not None:
                for row in rows:
                    row["loaded_offset"] = loaded.get(TopicPartition(name, row["partition"]))
            topics[name] = rows
            if with_stable:
                wanted = partitions_of(topic)
                ends = await list_offsets(client, dict.fromkeys(wanted, LATEST), read_committed=True)
                high = [row["high_watermark"] for row in rows]
                stable[name] = [cap_last_stable(offset_of(ends, tp), end) for tp, end in zip(wanted, high, strict=True)]
    return Storage(topics, stable)


async def _loaded_offsets(
    client: KafkaClient, place: str | None, topics: Mapping[str, MetadataResponseTopic], read_loaded: ReadLoaded
) -> dict[TopicPartition, int] | None:
    """Returns how far each partition is loaded into the table of its topic; None if no warehouse is known. A fault of
    the warehouse that a broker names, and that this machine perhaps cannot reach, ends no command."""
    warehouse = place or await _find_warehouse(client)
    if not warehouse:
        return None
    found: dict[TopicPartition, int] = {}
    for name, topic in topics.items():
        try:
            offsets = await asyncio.to_thread(read_loaded, warehouse, name, str(topic.topic_id))
        except (Refused, Corrupt, Unavailable) as fault:
            if place:
                raise
            print_error(f"what is loaded of {name} is not known ({WAREHOUSE}): {fault}")
            return None
        found |= {TopicPartition(name, number): offset for number, offset in (offsets or {}).items()}
    return found


async def _find_warehouse(client: KafkaClient) -> str:
    """Returns the warehouse that a broker is told of; empty if it is not, or does not say."""
    node = min(client.brokers, default=None)
    if node is None:
        return ""
    try:
        [found] = await describe_configs(client, BROKER, [str(node)], [WAREHOUSE], node=node)
    except Refused:
        return ""
    return next((each.value or "" for each in found.configs if each.name == WAREHOUSE), "")


async def _storage_rows(
    client: KafkaClient, topic: MetadataResponseTopic, sizes: Sizes, positions: Positions
) -> list[dict[str, Any]]:
    wanted = partitions_of(topic)
    at = {}
    for timestamp in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, LATEST):
        try:
            at[timestamp] = await list_offsets(client, dict.fromkeys(wanted, timestamp))
        except Refused:
            at[timestamp] = {}  # a broker that does not support this timestamp
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "log_start_offset": offset_of(at[EARLIEST], tp),
            "local_start_offset": offset_of(at[EARLIEST_LOCAL], tp),
            "last_tiered_offset": offset_of(at[LATEST_TIERED], tp),
            "high_watermark": offset_of(at[LATEST], tp),
            "local_bytes": sizes.get(tp, (None, None))[0],
            "remote_bytes": sizes.get(tp, (None, None))[1],
            "groups": dict(positions.get(tp, {})),
        }
        for tp in wanted
    ]


async def partition_sizes(client: KafkaClient) -> Sizes:
    """Returns the bytes of each partition: on the disk with most of them, and in the bucket, which only its leader
    knows. None if no broker reports it (Kafka)."""
    await client.fetch_metadata([])
    out: dict[TopicPartition, tuple[int, int | None]] = {}
    for node in list(client.brokers):
        got = await client.send(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, node_id=node)
        for directory in got.results:
            for topic in directory.topics:
                for each in topic.partitions:
                    tp = TopicPartition(topic.name, each.partition_index)
                    local, remote = out.get(tp, (0, None))
                    known = [size for size in (remote, each.remote_size) if size is not None and size >= 0]
                    out[tp] = max(local, each.partition_size), max(known, default=None)
    return out
