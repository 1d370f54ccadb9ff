"""Times of the next unread records of groups: with them a lag has seconds, and not records alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice

from tiered.errors import Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.consumer import KafkaConsumer

SECONDS = 5.0
"""Time for all reads of one group. The time of a record that is not read by then stays unknown."""
PARTITIONS_MAX = 500
"""Partitions of a group whose records are read, in their order."""
FETCH_BYTES = 64 << 10
"""Bytes of one fetch: a broker sends at least one batch, and the first record of a partition is enough."""


async def find_unread_times(client: KafkaClient, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Returns the time of the first record from the position on, for each partition whose record could be read."""
    consumer = KafkaConsumer(client, max_bytes=FETCH_BYTES)
    consumer.assign(dict(islice(sorted(positions.items()), PARTITIONS_MAX)))
    found: dict[TopicPartition, int] = {}
    try:
        async with asyncio.timeout(SECONDS):
            while consumer.positions():
                for batch in await consumer.poll():
                    if batch.records:
                        found.setdefault(batch.tp, batch.records[0].timestamp)
                        consumer.unassign(batch.tp)
    except (TimeoutError, Refused, Unavailable):
        pass  # a caller may describe a group without the right to read its topics: the lag in records is exact then too
    finally:
        await consumer.close()
    return found
