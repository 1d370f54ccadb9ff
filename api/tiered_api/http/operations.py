"""What operators ask: health, metrics, who this broker is, and where a partition's records are."""

from __future__ import annotations

from aiohttp import web

from tiered.ids import incarnation_digest
from tiered_api.http.partitions.reads import led_here
from tiered_api.http.server import media_types
from tiered_api.http.server.request import Request
from tiered_api.http.server.responses import Answer, as_json

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


async def healthz(request: Request) -> web.StreamResponse:
    """200 when the broker serves, 503 and the reasons when it does not."""
    health = request.site.node.health()
    body = {"ok": health.ok, "problems": health.problems, "details": health.details}
    return as_json(body, status=200 if health.ok else 503)


async def metrics(request: Request) -> web.StreamResponse:
    """Prometheus text."""
    media_types.answer_type(request.headers.get("Accept"), (media_types.TEXT, "application/openmetrics-text"))
    if request.site.node.served.is_set():
        await request.site.group_lags.look()
    return Answer(request.site.node.metrics.render().encode(), kind=PROMETHEUS)


async def get_node(request: Request) -> web.StreamResponse:
    """Which broker answers here, and which life of it: what a second one with its id asks before it starts. Brokers
    know each other by incarnation, so that strangers are told a digest."""
    node = request.site.node
    life = incarnation_digest(node.incarnation)
    return as_json({"cluster_id": node.cluster_id, "node_id": node.settings.node_id, "incarnation_sha256": life})


async def get_partition_state(request: Request) -> web.StreamResponse:
    """Leader, offsets, bytes and segments of a partition, hot and cold; 307 to the broker that leads it."""
    return as_json(led_here(request).explain())
