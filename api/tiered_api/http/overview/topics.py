"""All topics in short, for a list that may have ten thousand of them."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tiered.metadata.parts.topics import TopicImage
from tiered.metadata.topic_names import INTERNAL
from tiered.security.acls import Operation
from tiered.system.turns import each_of
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response


async def list_topic_summaries(request: HttpRequest) -> web.StreamResponse:
    """Lists the topics in short: partitions, replicas, and how many partitions lack a leader or replicas."""
    image = request.context.broker.image
    topics, live = await request.list_topics(Operation.DESCRIBE), image.live_ids()
    return json_response({"topics": [summarize_topic(topic, live) async for topic in each_of(topics)]})


def summarize_topic(topic: TopicImage, live: frozenset[int]) -> dict[str, Any]:
    """Returns one row of the list. `live`: the brokers that may lead."""
    parts = topic.partitions
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "is_internal": topic.name in INTERNAL,
        "partitions": len(parts),
        "replication_factor": max((len(each.replicas) for each in parts), default=0),
        "leaderless": sum(each.leader not in live for each in parts),
        "under_replicated": sum(len(each.isr) < len(each.replicas) - len(each.adding) for each in parts),
    }
