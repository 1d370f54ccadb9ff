"""REST v2: topics, partitions, offsets and brokers as that API shows them."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tiered.metadata.parts.topics import PartitionImage
from tiered.security.acls import Operation
from tiered_api.http.console.pages import redirect_to_page, wants_page
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.errors import PARTITION_NOT_FOUND, HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import HttpResponse, json_response
from tiered_api.http.partitions.produce import find_topic
from tiered_api.http.partitions.reads import partition_of_path
from tiered_api.http.partitions.remote_partition import fetch_bounds

RESPONSE_TYPES = (media_types.V2, media_types.JSON)


def response_type(request: HttpRequest) -> str:
    """Returns the media type of a response: v2's, or plain JSON if the client prefers it. Raises `HttpError` 406 if the
    client accepts neither."""
    return media_types.negotiate_type(request.headers.get("Accept"), RESPONSE_TYPES)


def v2_response(request: HttpRequest, value: Any) -> HttpResponse:
    """Returns `value` in the media type that the client wants."""
    return json_response(value, media_type=response_type(request))


def partition_v2(number: int, partition: PartitionImage) -> dict[str, Any]:
    replicas = [
        {"broker": broker, "leader": broker == partition.leader, "in_sync": broker in partition.isr}
        for broker in partition.replicas
    ]
    return {"partition": number, "leader": partition.leader, "replicas": replicas}


async def root(request: HttpRequest) -> web.StreamResponse:
    """Returns an empty object, as v2 does at `/`; a redirect to the console for a browser."""
    return redirect_to_page() if wants_page(request) else v2_response(request, {})


async def list_topics(request: HttpRequest) -> web.StreamResponse:
    """Lists the names of all topics that the caller may describe."""
    return v2_response(request, [topic.name for topic in await request.list_topics(Operation.DESCRIBE)])


async def get_topic(request: HttpRequest) -> web.StreamResponse:
    """Returns one topic with its configs and partitions."""
    topic = find_topic(request.context, request.args["topic"])
    partitions = [partition_v2(number, partition) for number, partition in enumerate(topic.partitions)]
    return v2_response(request, {"name": topic.name, "configs": dict(topic.configs), "partitions": partitions})


async def list_partitions(request: HttpRequest) -> web.StreamResponse:
    """Lists the partitions of a topic."""
    topic = find_topic(request.context, request.args["topic"])
    return v2_response(request, [partition_v2(number, partition) for number, partition in enumerate(topic.partitions)])


async def get_partition(request: HttpRequest) -> web.StreamResponse:
    """Returns one partition."""
    topic, number = find_topic(request.context, request.args["topic"]), request.path_number("partition")
    if number >= len(topic.partitions):
        raise HttpError(PARTITION_NOT_FOUND, f"topic {topic.name!r} has no partition {number}")
    return v2_response(request, partition_v2(number, topic.partitions[number]))


async def get_offsets(request: HttpRequest) -> web.StreamResponse:
    """Returns the first offset that can be read and the one after the last."""
    start, end = await fetch_bounds(partition_of_path(request))
    return v2_response(request, {"beginning_offset": start, "end_offset": end})


async def list_brokers(request: HttpRequest) -> web.StreamResponse:
    """Lists the ids of the live brokers."""
    brokers = request.context.broker.image.brokers.values()
    return v2_response(request, {"brokers": sorted(broker.node_id for broker in brokers if broker.live)})
