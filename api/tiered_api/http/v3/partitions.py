"""REST v3: partitions, their offsets and their replicas."""

from __future__ import annotations

from aiohttp import web

from tiered.metadata.parts.topics import TopicImage
from tiered_api.http.exchange.errors import UNKNOWN_TOPIC_OR_PARTITION, HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.partitions.produce import find_partition, find_topic
from tiered_api.http.partitions.remote_partition import fetch_bounds
from tiered_api.http.v3.shapes import (
    check_cluster,
    list_response,
    partition_shape,
    reassignment_shape,
    replica_shape,
    short_list_response,
)


def partition_of_path(request: HttpRequest) -> tuple[TopicImage, int]:
    """Returns topic and partition number. Raises `HttpError` 404 (v3's code 40403) if there is no such partition."""
    check_cluster(request)
    topic = find_topic(request.context, request.args["topic"])
    number = request.path_number("partition")
    if number >= len(topic.partitions):
        raise HttpError(UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name!r} has no partition {number}")
    return topic, number


async def list_partitions(request: HttpRequest) -> web.StreamResponse:
    """Lists the partitions of a topic."""
    check_cluster(request)
    topic = find_topic(request.context, request.args["topic"])
    numbers = range(len(topic.partitions))
    return await list_response(
        request, "KafkaPartition", numbers, lambda number: (partition_shape(request, topic, number),)
    )


async def get_partition(request: HttpRequest) -> web.StreamResponse:
    """Returns one partition."""
    topic, number = partition_of_path(request)
    return json_response(partition_shape(request, topic, number))


async def get_partition_offset(request: HttpRequest) -> web.StreamResponse:
    """Returns the first offset that can be read and the one after the last; `offset_type` selects one of them."""
    topic, number = partition_of_path(request)
    start, end = await fetch_bounds(find_partition(request.context, topic, number, request))
    offsets = {"earliest_offset": start, "latest_offset": end}
    wanted = request.query_parameters().get("offset_type")
    if wanted is not None:
        name = f"{wanted.lower()}_offset"
        if name not in offsets:
            raise HttpError(400, "offset_type has to be earliest or latest")
        offsets = {name: offsets[name]}
    shape = {"cluster_id": request.context.broker.cluster_id, "topic_name": topic.name, "partition_id": number}
    return json_response({**shape, **offsets})


async def list_all_reassignments(request: HttpRequest) -> web.StreamResponse:
    """Lists the partitions that are moving to other brokers."""
    check_cluster(request)
    topics = [topic for _, topic in sorted(request.context.broker.image.topics.items())]
    return await _list_reassignments(request, *topics)


async def list_reassignments(request: HttpRequest) -> web.StreamResponse:
    """Lists the partitions of a topic that are moving to other brokers."""
    check_cluster(request)
    topic = find_topic(request.context, request.args["topic"])
    return await _list_reassignments(request, topic)


async def _list_reassignments(request: HttpRequest, *topics: TopicImage) -> web.StreamResponse:
    moving = [
        (topic, number)
        for topic in topics
        for number, partition in enumerate(topic.partitions)
        if partition.is_reassigning
    ]
    return await list_response(request, "KafkaReassignment", moving, lambda each: (reassignment_shape(request, *each),))


async def get_reassignment(request: HttpRequest) -> web.StreamResponse:
    """Returns the brokers that a partition is moving to and from; none if it is not moving."""
    topic, number = partition_of_path(request)
    return json_response(reassignment_shape(request, topic, number))


async def list_replicas(request: HttpRequest) -> web.StreamResponse:
    """Lists the replicas of a partition."""
    topic, number = partition_of_path(request)
    partition = topic.partitions[number]
    shapes = [replica_shape(request, topic, number, partition, broker) for broker in partition.replicas]
    return await short_list_response(request, "KafkaReplica", shapes)


async def get_replica(request: HttpRequest) -> web.StreamResponse:
    """Returns one replica."""
    topic, number = partition_of_path(request)
    partition, broker = topic.partitions[number], request.path_number("broker")
    if broker not in partition.replicas:
        raise HttpError(404, f"partition {number} of topic {topic.name!r} has no replica on broker {broker}")
    return json_response(replica_shape(request, topic, number, partition, broker))
