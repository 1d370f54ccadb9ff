"""The objects of REST v3: kind, metadata with links, fields, related links."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import orjson

from tiered.metadata.parts.brokers import BrokerImage
from tiered.metadata.parts.topics import PartitionImage, TopicImage
from tiered.system.turns import each_of
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.limits import Exhausted
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import HttpResponse

Shape = dict[str, Any]
T = TypeVar("T")

UNCOUNTED_ITEMS_MAX = 100
"""Items of a list that does not count against the memory budget, so that a full budget does not delay it."""
ITEM_BYTES = 1_000
"""Estimated size of an item of a list; more memory is taken for larger items."""


def check_cluster(request: HttpRequest) -> str:
    """Returns the cluster id of the path. Raises `HttpError` 404 if it is not ours."""
    name = request.args["cluster"]
    if name != request.context.broker.cluster_id:
        raise HttpError(404, f"cluster {name[:80]!r} cannot be found")
    return name


def link(request: HttpRequest, *segments: object) -> str:
    """Returns the URL of an object below this cluster."""
    path = "/".join(quote(str(segment), safe=":") for segment in segments)
    root = f"{request.origin()}/v3/clusters/{quote(request.context.broker.cluster_id, safe='')}"
    return f"{root}/{path}" if path else root


def resource(cluster_id: str, *segments: object) -> str:
    """Returns Confluent's resource name: `crn:///kafka=.../topic=...`; segments are kinds and names in turn."""
    pairs = zip(segments[::2], segments[1::2], strict=True)
    return f"crn:///kafka={cluster_id}" + "".join(f"/{kind}={name}" for kind, name in pairs)


async def list_response(
    request: HttpRequest,
    kind: str,
    items: Sequence[T],
    shapes: Callable[[T], Iterable[Shape]],
    item_bytes: int = ITEM_BYTES,
) -> HttpResponse:
    """Returns a whole list: there are no further pages. `shapes` yields the object of each item.

    A long list counts against the memory budget, and other requests get their turn while it is made. Raises `Exhausted`
    if there is no room for it in time, or never.
    """
    counted = len(items) > UNCOUNTED_ITEMS_MAX
    if counted:
        await request.reserve_memory(len(items) * item_bytes)
    parts: list[bytes] = []
    size = 0
    async for item in each_of(items):
        if made := list(shapes(item)):
            parts.append(orjson.dumps(made)[1:-1])
            size += len(parts[-1])
        if 2 * size > request.context.budget.size:  # the pieces, and the response that they become
            raise Exhausted(f"the list has more than {size} bytes")
        if counted and 2 * size > request.held_bytes:
            request.set_held_memory(2 * size)
    here = request.origin() + request.target.partition("?")[0]
    head = orjson.dumps({"kind": f"{kind}List", "metadata": {"self": here, "next": None}, "data": []})
    body = head[:-2] + b",".join(parts) + b"]}"
    if counted:
        request.set_held_memory(len(body))
    return HttpResponse(body)


async def short_list_response(request: HttpRequest, kind: str, made: Sequence[Shape]) -> HttpResponse:
    """Returns a short list, or one whose objects exist already."""
    return await list_response(request, kind, made, lambda shape: (shape,))


def related_link(url: str) -> Shape:
    return {"related": url}


def base_shape(request: HttpRequest, kind: str, url: str, *names: object) -> Shape:
    """Returns the first fields of every object."""
    cluster_id = request.context.broker.cluster_id
    return {
        "kind": kind,
        "metadata": {"self": url, "resource_name": resource(cluster_id, *names)},
        "cluster_id": cluster_id,
    }


def broker_shape(request: HttpRequest, broker: BrokerImage) -> Shape:
    url = link(request, "brokers", broker.node_id)
    host, _, port = broker.http.rpartition("//")[2].rpartition(":")
    return base_shape(request, "KafkaBroker", url, "broker", broker.node_id) | {
        "broker_id": broker.node_id,
        "host": host or None,
        "port": int(port) if port.isdigit() else None,
        "rack": broker.rack or None,
        "configs": related_link(f"{url}/configs"),
        "partition_replicas": related_link(f"{url}/partition-replicas"),
    }


def topic_shape(request: HttpRequest, topic: TopicImage) -> Shape:
    url = link(request, "topics", topic.name)
    return base_shape(request, "KafkaTopic", url, "topic", topic.name) | {
        "topic_name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name.startswith("__"),
        "replication_factor": len(topic.partitions[0].replicas) if topic.partitions else 0,
        "partitions_count": len(topic.partitions),
        "partitions": related_link(f"{url}/partitions"),
        "configs": related_link(f"{url}/configs"),
        "partition_reassignments": related_link(f"{url}/partitions/-/reassignment"),
        "authorized_operations": [],
    }


def partition_shape(request: HttpRequest, topic: TopicImage, number: int) -> Shape:
    url = link(request, "topics", topic.name, "partitions", number)
    partition = topic.partitions[number]
    leader = related_link(f"{url}/replicas/{partition.leader}") if partition.leader >= 0 else None
    return base_shape(request, "KafkaPartition", url, "topic", topic.name, "partition", number) | {
        "topic_name": topic.name,
        "partition_id": number,
        "leader": leader,
        "replicas": related_link(f"{url}/replicas"),
        "reassignment": related_link(f"{url}/reassignment"),
    }


def reassignment_shape(request: HttpRequest, topic: TopicImage, number: int) -> Shape:
    place = link(request, "topics", topic.name, "partitions", number)
    return base_shape(
        request, "KafkaReassignment", f"{place}/reassignment", "topic", topic.name, "partition", number
    ) | {
        "topic_name": topic.name,
        "partition_id": number,
        "adding_replicas": list(topic.partitions[number].adding),
        "removing_replicas": list(topic.partitions[number].removing),
        "replicas": related_link(f"{place}/replicas"),
    }


def replica_shape(
    request: HttpRequest, topic: TopicImage, number: int, partition: PartitionImage, broker: int
) -> Shape:
    url = link(request, "topics", topic.name, "partitions", number, "replicas", broker)
    names = ("topic", topic.name, "partition", number, "replica", broker)
    return base_shape(request, "KafkaReplica", url, *names) | {
        "topic_name": topic.name,
        "partition_id": number,
        "broker_id": broker,
        "is_leader": broker == partition.leader,
        "is_in_sync": broker in partition.isr,
        "broker": related_link(link(request, "brokers", broker)),
    }
