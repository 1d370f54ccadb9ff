"""The endpoints for operators: health, metrics, identity of the broker, state of a partition."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tiered.broker.partition_report import explain
from tiered.ids import incarnation_digest
from tiered.security.acls import CLUSTER_NAME, Operation, ResourceType
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import HttpResponse, json_response
from tiered_api.http.group_lags import GroupLags
from tiered_api.http.partitions.reads import require_local_leader

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


async def healthz(request: HttpRequest) -> web.StreamResponse:
    """Returns 200 if the broker serves, else 503. Problems name topics: they need DESCRIBE on the cluster.

    Other callers get no list at all: an empty one would say that nothing is wrong.
    """
    health = request.context.broker.health()
    body: dict[str, Any] = {"ok": health.ok}
    if request.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        body |= {"problems": health.problems, "details": health.details}
    return json_response(body, status=200 if health.ok else 503)


async def metrics(request: HttpRequest) -> web.StreamResponse:
    """Returns the metrics as Prometheus text."""
    media_types.negotiate_type(request.headers.get("Accept"), (media_types.TEXT, "application/openmetrics-text"))
    if request.context.broker.served.is_set():
        await request.context.service(GroupLags).refresh()
    return HttpResponse(request.context.broker.metrics.render().encode(), media_type=PROMETHEUS)


async def get_node(request: HttpRequest) -> web.StreamResponse:
    """Returns the identity of this broker. Another process with the same node id requests it before it starts. Brokers
    identify each other by incarnation, so clients get only a digest of it."""
    broker = request.context.broker
    digest = incarnation_digest(broker.incarnation)
    return json_response(
        {"cluster_id": broker.cluster_id, "node_id": broker.settings.node_id, "incarnation_sha256": digest}
    )


async def get_partition_state(request: HttpRequest) -> web.StreamResponse:
    """Returns leader, offsets, bytes and segments of a partition, hot and cold; 307 to the broker that leads the
    partition."""
    return json_response(explain(require_local_leader(request)))
