"""The progress of compaction in the partitions of topics, and their dirty bytes, as rows for people."""

from __future__ import annotations

from collections.abc import Iterable

from tiered.time_text import format_time
from tiered_api.cli.cluster.losses import possible_losses
from tiered_api.cli.output import Row
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.protocol.messages.tiered_compact import (
    CompactedTopic,
    CompactionFacts,
    TieredCompactRequest,
    TieredCompactResponse,
)


async def compaction_facts(client: KafkaClient, topics: Iterable[str], *, clean: bool = False) -> list[CompactionFacts]:
    """Returns the facts of compaction of these topics, by partition. Raises `Refused` with brokers that are not
    ours."""
    await possible_losses(client)
    await client.fetch_metadata([])
    request = TieredCompactRequest([CompactedTopic(name) for name in topics], clean)
    found: list[CompactionFacts] = []
    for node in list(client.brokers):
        found += (await client.send(request, TieredCompactResponse, node_id=node)).partitions
    return sorted(found, key=lambda each: (each.topic, each.partition))


def compaction_rows(facts: Iterable[CompactionFacts]) -> list[Row]:
    """Returns a row for each partition."""
    return [
        {
            "topic": each.topic,
            "partition": each.partition,
            "where": "bucket" if each.is_in_bucket else "disk",
            "clean_to": each.clean_to if each.clean_to >= 0 else None,
            "cleaned_at": format_time(each.cleaned_ms) if each.cleaned_ms >= 0 else None,
            "bytes_before": each.bytes_before,
            "bytes_after": each.bytes_after,
            "dirty_bytes": each.dirty_bytes,
            "dirty_ratio": round(each.dirty_bytes / max(1, each.dirty_bytes + each.clean_bytes), 3),
            "problem": each.problem,
        }
        for each in facts
    ]
