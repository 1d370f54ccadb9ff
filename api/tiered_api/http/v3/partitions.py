"""REST v3: partitions, their offsets and their replicas."""

from __future__ import annotations

from aiohttp import web

from tiered.metadata.image import TopicImage
from tiered_api.http.partitions.produce import source_in, topic_image
from tiered_api.http.partitions.remote_partition import bounds
from tiered_api.http.server.errors import UNKNOWN_TOPIC_OR_PARTITION, HttpError
from tiered_api.http.server.request import Request
from tiered_api.http.server.responses import as_json
from tiered_api.http.v3.shapes import (
    cluster,
    listed,
    listed_whole,
    partition_shape,
    reassignment_shape,
    replica_shape,
)


def partition_of_path(request: Request) -> tuple[TopicImage, int]:
    """Topic and number; HttpError 404 (40403, as v3 has it) when there is no such partition."""
    cluster(request)
    topic = topic_image(request.site, request.args["topic"])
    number = request.number("partition")
    if number >= len(topic.partitions):
        raise HttpError(UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name!r} has no partition {number}")
    return topic, number


async def list_partitions(request: Request) -> web.StreamResponse:
    """The partitions of a topic."""
    cluster(request)
    topic = topic_image(request.site, request.args["topic"])
    numbers = range(len(topic.partitions))
    return await listed(request, "KafkaPartition", numbers, lambda number: (partition_shape(request, topic, number),))


async def get_partition(request: Request) -> web.StreamResponse:
    """One partition."""
    topic, number = partition_of_path(request)
    return as_json(partition_shape(request, topic, number))


async def get_partition_offset(request: Request) -> web.StreamResponse:
    """The first offset that can be read and the one after the last; `offset_type` asks for one of them."""
    topic, number = partition_of_path(request)
    start, end = await bounds(source_in(request.site, topic, number))
    offsets = {"earliest_offset": start, "latest_offset": end}
    wanted = request.parameters().get("offset_type")
    if wanted is not None:
        name = f"{wanted.lower()}_offset"
        if name not in offsets:
            raise HttpError(400, "offset_type has to be earliest or latest")
        offsets = {name: offsets[name]}
    shape = {"cluster_id": request.site.node.cluster_id, "topic_name": topic.name, "partition_id": number}
    return as_json({**shape, **offsets})


async def list_all_reassignments(request: Request) -> web.StreamResponse:
    """The partitions that are moving to other brokers."""
    cluster(request)
    topics = [topic for _, topic in sorted(request.site.node.image.topics.items())]
    return await _moving(request, *topics)


async def list_reassignments(request: Request) -> web.StreamResponse:
    """The partitions of a topic that are moving to other brokers."""
    cluster(request)
    topic = topic_image(request.site, request.args["topic"])
    return await _moving(request, topic)


async def _moving(request: Request, *topics: TopicImage) -> web.StreamResponse:
    moving = [
        (topic, number) for topic in topics for number, partition in enumerate(topic.partitions) if partition.is_reassigning
    ]
    return await listed(request, "KafkaReassignment", moving, lambda each: (reassignment_shape(request, *each),))


async def get_reassignment(request: Request) -> web.StreamResponse:
    """The brokers that a partition is moving to and from: none while it is not."""
    topic, number = partition_of_path(request)
    return as_json(reassignment_shape(request, topic, number))


async def list_replicas(request: Request) -> web.StreamResponse:
    """The replicas of a partition."""
    topic, number = partition_of_path(request)
    partition = topic.partitions[number]
    shapes = [replica_shape(request, topic, number, partition, broker) for broker in partition.replicas]
    return await listed_whole(request, "KafkaReplica", shapes)


async def get_replica(request: Request) -> web.StreamResponse:
    """One replica."""
    topic, number = partition_of_path(request)
    partition, broker = topic.partitions[number], request.number("broker")
    if broker not in partition.replicas:
        raise HttpError(404, f"partition {number} of topic {topic.name!r} has no replica on broker {broker}")
    return as_json(replica_shape(request, topic, number, partition, broker))
