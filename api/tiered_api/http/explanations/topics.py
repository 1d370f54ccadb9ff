"""The explanation of a topic: its settings with their sources, its tiers, and its health."""

from __future__ import annotations

from aiohttp import web

from tiered.ids import TopicPartition
from tiered.metadata.config_sources import topic_config_entries
from tiered.metadata.effective_config import topic_config
from tiered_api.explanation.cause import describe_causes
from tiered_api.explanation.topic import SHOWN, PartitionTiers, TopicFacts, TopicSetting
from tiered_api.explanation.topic import explain_topic as explain
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.explanations.outages import find_outage
from tiered_api.http.explanations.transactions import fetch_held
from tiered_api.http.overview.cluster import PARTITION_BYTES, judge_topics
from tiered_api.http.overview.storage import Tiers, fetch_tiers
from tiered_api.http.partitions.produce import find_topic


async def explain_topic(request: HttpRequest) -> web.StreamResponse:
    """Tells what keeps and cleans the records of a topic, what is not in the bucket, and what its partitions lack."""
    topic, broker = find_topic(request.context, request.args["topic"]), request.context.broker
    tiers = await fetch_tiers(request, topic)
    _, unhealthy = await request.run_job(
        len(topic.partitions) * PARTITION_BYTES, judge_topics, broker.image, [topic], broker.settings
    )
    rows = [_summarize(number, each) for number, each in sorted(tiers.items())]
    held = [TopicPartition(topic.name, each.partition) for each in rows if each.is_held]
    entries = topic_config_entries(broker.image, broker.startup_settings, topic)
    facts = TopicFacts(
        topic.name,
        topic_config(topic, broker.settings.topic_defaults()),
        {each.row.name: TopicSetting(each.value, each.source.name) for each in entries if each.row.name in SHOWN},
        rows,
        unhealthy,
        await fetch_held(request, held),
        await find_outage(request),
    )
    return json_response({"topic": topic.name, "topic_id": str(topic.topic_id)} | describe_causes(explain(facts)))


def _summarize(number: int, tiers: Tiers) -> PartitionTiers:
    return PartitionTiers(
        number,
        tiers.get("cold_end_offset"),
        tiers.get("high_watermark"),
        tiers.get("log_start_offset"),
        tiers.get("local_bytes"),
        tiers.get("cold_bytes"),
        tiers.get("last_stable_offset"),
        tiers.get("error", ""),
    )
