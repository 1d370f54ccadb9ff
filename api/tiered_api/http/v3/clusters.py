"""REST v3: the cluster and its brokers."""

from __future__ import annotations

from aiohttp import web

from tiered.metadata.image import BrokerImage
from tiered_api.http.server.errors import HttpError
from tiered_api.http.server.request import Request
from tiered_api.http.server.responses import as_json
from tiered_api.http.v3 import shapes
from tiered_api.http.v3.shapes import Shape, cluster, link, listed, listed_whole, related


def cluster_shape(request: Request) -> Shape:
    url = link(request)
    controller = request.site.node.image.controller
    return shapes.head(request, "KafkaCluster", url) | {
        "controller": related(link(request, "brokers", controller)) if controller >= 0 else None,
        "acls": related(f"{url}/acls"),
        "brokers": related(f"{url}/brokers"),
        "broker_configs": related(f"{url}/broker-configs"),
        "consumer_groups": related(f"{url}/consumer-groups"),
        "topics": related(f"{url}/topics"),
        "partition_reassignments": related(f"{url}/topics/-/partitions/-/reassignment"),
    }


async def list_clusters(request: Request) -> web.StreamResponse:
    """The one cluster that this broker belongs to."""
    return await listed_whole(request, "KafkaCluster", [cluster_shape(request)])


async def get_cluster(request: Request) -> web.StreamResponse:
    """The cluster."""
    cluster(request)
    return as_json(cluster_shape(request))


async def list_acls(request: Request) -> web.StreamResponse:
    """The access rules: none, for there is no login yet and nobody is forbidden anything."""
    cluster(request)
    return await listed_whole(request, "KafkaAcl", [])


def broker_of_path(request: Request) -> BrokerImage:
    """The broker that the path names; HttpError 404 when there is none."""
    number = request.number("broker")
    broker = request.site.node.image.brokers.get(number)
    if broker is None:
        raise HttpError(404, f"broker {number} not found")
    return broker


async def list_brokers(request: Request) -> web.StreamResponse:
    """All registered brokers."""
    cluster(request)
    brokers = [broker for _, broker in sorted(request.site.node.image.brokers.items())]
    return await listed(request, "KafkaBroker", brokers, lambda broker: (shapes.broker_shape(request, broker),))


async def get_broker(request: Request) -> web.StreamResponse:
    """One broker."""
    cluster(request)
    return as_json(shapes.broker_shape(request, broker_of_path(request)))


async def list_broker_replicas(request: Request) -> web.StreamResponse:
    """The replicas on one broker."""
    cluster(request)
    broker = broker_of_path(request).node_id
    replicas = [
        (topic, number, partition)
        for _, topic in sorted(request.site.node.image.topics.items())
        for number, partition in enumerate(topic.partitions)
        if broker in partition.replicas
    ]
    return await listed(request, "KafkaReplica", replicas, lambda each: (shapes.replica_shape(request, *each, broker),))
