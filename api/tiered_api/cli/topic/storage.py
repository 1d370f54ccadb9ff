"""`tiered topic describe-storage`: which offsets of each partition are on disk and in the bucket."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Mapping

from tiered.errors import Refused
from tiered.ids import TopicPartition
from tiered_api.cli.output import Row, print_rows
from tiered_api.cli.reach import open_client
from tiered_api.cli.terminal import can_draw
from tiered_api.cli.topic.describe import offset_of, partitions_of, report_refusals, topics_by_name
from tiered_api.cli.topic.topics import select_topics
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.leader_routing import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, list_offsets
from tiered_api.kafka.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tiered_api.kafka.protocol.messages.metadata import MetadataResponseTopic

Sizes = Mapping[TopicPartition, tuple[int, int | None]]


def describe_storage(args: Namespace) -> int:
    """Prints for each partition the start of its local records, and the end of its records in the bucket: as bars on a
    terminal, else as rows."""
    is_drawn = (
        args.format == "text" and not args.no_picture and can_draw(sys.stdout, "no picture is drawn", "--no-picture")
    )
    found, stable = asyncio.run(_storage(args, with_stable=is_drawn))
    if is_drawn:
        from tiered_api.cli.topic.tier_picture import draw_topics

        draw_topics({name: rows for name, rows in found.items() if not isinstance(rows, Refused)}, stable)
        return report_refusals(found.values())
    print_rows([row for rows in found.values() if not isinstance(rows, Refused) for row in rows], args.format)
    return report_refusals(found.values())


async def _storage(
    args: Namespace, *, with_stable: bool
) -> tuple[dict[str, list[Row] | Refused], dict[str, list[int | None]]]:
    """Returns the rows of each topic, and the last stable offsets of its partitions if they are wanted."""
    stable: dict[str, list[int | None]] = {}
    async with open_client(args) as client:
        found = await topics_by_name(client, await select_topics(client, args))
        sizes = await partition_sizes(client)
        rows = {
            name: topic if isinstance(topic, Refused) else await _storage_rows(client, topic, sizes)
            for name, topic in found.items()
        }
        for name, topic in found.items() if with_stable else ():
            if not isinstance(topic, Refused):
                wanted = partitions_of(topic)
                ends = await list_offsets(client, dict.fromkeys(wanted, LATEST), read_committed=True)
                stable[name] = [offset_of(ends, tp) for tp in wanted]
    return rows, stable


async def _storage_rows(client: KafkaClient, topic: MetadataResponseTopic, sizes: Sizes) -> list[Row]:
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
