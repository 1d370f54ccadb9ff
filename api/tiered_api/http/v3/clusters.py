"""REST v3: the cluster and its brokers."""

from __future__ import annotations

from aiohttp import web

from tiered.metadata.parts.brokers import BrokerImage
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.v3 import shapes
from tiered_api.http.v3.shapes import Shape, check_cluster, link, list_response, related_link, short_list_response


def cluster_shape(request: HttpRequest) -> Shape:
    url = link(request)
    controller = request.context.broker.image.controller
    return shapes.base_shape(request, "KafkaCluster", url) | {
        "controller": related_link(link(request, "brokers", controller)) if controller >= 0 else None,
        "acls": related_link(f"{url}/acls"),
        "brokers": related_link(f"{url}/brokers"),
        "broker_configs": related_link(f"{url}/broker-configs"),
        "consumer_groups": related_link(f"{url}/consumer-groups"),
        "topics": related_link(f"{url}/topics"),
        "partition_reassignments": related_link(f"{url}/topics/-/partitions/-/reassignment"),
    }


async def list_clusters(request: HttpRequest) -> web.StreamResponse:
    """Lists the one cluster that this broker belongs to."""
    return await short_list_response(request, "KafkaCluster", [cluster_shape(request)])


async def get_cluster(request: HttpRequest) -> web.StreamResponse:
    """Returns the cluster."""
    check_cluster(request)
    return json_response(cluster_shape(request))


def broker_of_path(request: HttpRequest) -> BrokerImage:
    """Returns the broker that the path names. Raises `HttpError` 404 if there is none."""
    number = request.path_number("broker")
    broker = request.context.broker.image.brokers.get(number)
    if broker is None:
        raise HttpError(404, f"broker {number} not found")
    return broker


async def list_brokers(request: HttpRequest) -> web.StreamResponse:
    """Lists all registered brokers."""
    check_cluster(request)
    brokers = [broker for _, broker in sorted(request.context.broker.image.brokers.items())]
    return await list_response(request, "KafkaBroker", brokers, lambda broker: (shapes.broker_shape(request, broker),))


async def get_broker(request: HttpRequest) -> web.StreamResponse:
    """Returns one broker."""
    check_cluster(request)
    return json_response(shapes.broker_shape(request, broker_of_path(request)))


async def list_broker_replicas(request: HttpRequest) -> web.StreamResponse:
    """Lists the replicas on one broker."""
    check_cluster(request)
    broker = broker_of_path(request).node_id
    replicas = [
        (topic, number, partition)
        for _, topic in sorted(request.context.broker.image.topics.items())
        for number, partition in enumerate(topic.partitions)
        if broker in partition.replicas
    ]
    return await list_response(
        request, "KafkaReplica", replicas, lambda each: (shapes.replica_shape(request, *each, broker),)
    )
