"""The explanation of a Delta table in the warehouse of the console."""

from __future__ import annotations

from aiohttp import web

from tiered.ids import TopicPartition
from tiered.metadata.parts.topics import TopicImage
from tiered.security.acls import Operation, ResourceType
from tiered_api.explanation.cause import describe_causes
from tiered_api.explanation.table import LoadedPartition, TableFacts
from tiered_api.explanation.table import explain_table as explain
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.overview.storage import fetch_tiers
from tiered_api.http.overview.tables import (
    find_live_topic,
    list_partitions,
    read_table,
    refuse_table,
    topics_by_name,
)


async def explain_table(request: HttpRequest) -> web.StreamResponse:
    """Tells why records are not in a table: not loaded, behind, dead letters, or a loader that stopped."""
    name, image = request.args["table"], request.context.broker.image
    _, table = await read_table(request, name, 1)
    topic = _find_unloaded(request, name) if table is None else find_live_topic(table, image)
    tiers = {} if topic is None or table is None else await fetch_tiers(request, topic)
    ends = {} if topic is None else {
        TopicPartition(topic.name, number): each["high_watermark"]
        for number, each in tiers.items()
        if each.get("high_watermark") is not None
    }  # fmt: skip
    rows = list_partitions(table, image, ends) if table is not None and "problem" not in table else []
    facts = TableFacts(
        name,
        "of the console",
        table,
        [
            LoadedPartition(
                row["partition"], row["next_offset"], row["log_end_offset"],
                tiers.get(row["partition"], {}).get("cold_end_offset"),
            )
            for row in rows
        ],
        topic is not None,
        request.context.clock.wall_ms(),
    )  # fmt: skip
    return json_response({"table": name} | describe_causes(explain(facts)))


def _find_unloaded(request: HttpRequest, name: str) -> TopicImage:
    """Returns the topic whose table would have this name. Raises `HttpError` 404 if the caller may not read one."""
    topics = request.context.broker.image.topics
    for topic in topics_by_name(name):
        if topic in topics and request.may(Operation.READ, ResourceType.TOPIC, topic):
            return topics[topic]
    raise refuse_table(name)
