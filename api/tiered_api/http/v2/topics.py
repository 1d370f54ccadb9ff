"""REST v2: topics, partitions, offsets and brokers as that API shows them."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tiered.metadata.image import PartitionImage
from tiered_api.http.partitions.produce import topic_image
from tiered_api.http.partitions.reads import partition_of_path
from tiered_api.http.partitions.remote_partition import bounds
from tiered_api.http.server import media_types
from tiered_api.http.server.errors import PARTITION_NOT_FOUND, HttpError
from tiered_api.http.server.request import Request
from tiered_api.http.server.responses import Answer, as_json

ANSWER_TYPES = (media_types.V2, media_types.JSON)


def wanted(request: Request) -> str:
    """The media type of an answer: v2's, or plain JSON for who prefers that; HttpError 406 for who takes neither."""
    return media_types.answer_type(request.headers.get("Accept"), ANSWER_TYPES)


def shown(request: Request, value: Any) -> Answer:
    """`value` in the type that is wanted."""
    return as_json(value, kind=wanted(request))


def partition_v2(number: int, partition: PartitionImage) -> dict[str, Any]:
    replicas = [
        {"broker": broker, "leader": broker == partition.leader, "in_sync": broker in partition.isr}
        for broker in partition.replicas
    ]
    return {"partition": number, "leader": partition.leader, "replicas": replicas}


async def root(request: Request) -> web.StreamResponse:
    """An empty object, as v2 answers at `/`."""
    return shown(request, {})


async def list_topics(request: Request) -> web.StreamResponse:
    """The names of all topics."""
    return shown(request, sorted(request.site.node.image.topics))


async def get_topic(request: Request) -> web.StreamResponse:
    """One topic with its configs and partitions."""
    topic = topic_image(request.site, request.args["topic"])
    partitions = [partition_v2(number, partition) for number, partition in enumerate(topic.partitions)]
    return shown(request, {"name": topic.name, "configs": dict(topic.configs), "partitions": partitions})


async def list_partitions(request: Request) -> web.StreamResponse:
    """The partitions of a topic."""
    topic = topic_image(request.site, request.args["topic"])
    return shown(request, [partition_v2(number, partition) for number, partition in enumerate(topic.partitions)])


async def get_partition(request: Request) -> web.StreamResponse:
    """One partition."""
    topic, number = topic_image(request.site, request.args["topic"]), request.number("partition")
    if number >= len(topic.partitions):
        raise HttpError(PARTITION_NOT_FOUND, f"topic {topic.name!r} has no partition {number}")
    return shown(request, partition_v2(number, topic.partitions[number]))


async def get_offsets(request: Request) -> web.StreamResponse:
    """The first offset that can be read and the one after the last."""
    start, end = await bounds(partition_of_path(request))
    return shown(request, {"beginning_offset": start, "end_offset": end})


async def list_brokers(request: Request) -> web.StreamResponse:
    """The ids of the live brokers."""
    brokers = request.site.node.image.brokers.values()
    return shown(request, {"brokers": sorted(broker.node_id for broker in brokers if broker.live)})
