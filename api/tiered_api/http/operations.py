"""The endpoints for operators: health, metrics, identity of the broker, state of a partition."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from tiered.broker.partition_report import explain
from tiered.errors import Refused, Unavailable
from tiered.ids import PROCESS_STEP, incarnation_digest
from tiered.security.acls import CLUSTER_NAME, Operation, ResourceType
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import HttpResponse, json_response
from tiered_api.http.group_lags import GroupLags
from tiered_api.http.machine_metrics import merge_metrics
from tiered_api.http.openmetrics import to_openmetrics
from tiered_api.http.partitions.reads import require_local_leader
from tiered_api.kafka.protocol.messages.tiered_metrics import TieredMetricsRequest, TieredMetricsResponse

PROCESS_SECONDS = 3.0
"""Time that another process of the machine has to report its metrics. Prometheus waits for ten seconds."""
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = f"{media_types.OPENMETRICS}; version=1.0.0; charset=utf-8"


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
    """Returns the metrics as Prometheus text, or as OpenMetrics if the client prefers it: those of this broker or, at
    the address that the processes of a machine share, those of each process.

    OpenMetrics has exemplars of this process too: ids of slow requests that were traced.
    """
    form = media_types.negotiate_type(request.headers.get("Accept"), (media_types.TEXT, media_types.OPENMETRICS))
    broker = request.context.broker
    others = [each for each in range(broker.settings.processes) if each != broker.settings.process]
    if not request.is_at_shared_address():
        others = []
    refreshing = request.context.service(GroupLags).refresh_if_served()
    _, *reports = await asyncio.gather(refreshing, *(_fetch_metrics(request, each) for each in others))
    text = broker.metrics.render(exemplars=form == media_types.OPENMETRICS)
    if others:
        texts = dict(sorted({broker.settings.process: text, **dict(zip(others, reports, strict=True))}.items()))
        text = await request.run_job(sum(len(each or "") for each in texts.values()), merge_metrics, texts)
    if form == media_types.OPENMETRICS:
        return HttpResponse(to_openmetrics(text).encode(), media_type=OPENMETRICS)
    return HttpResponse(text.encode(), media_type=PROMETHEUS)


async def _fetch_metrics(request: HttpRequest, process: int) -> str | None:
    """Returns the metrics of another process of this machine; None if it does not report them in time."""
    settings = request.context.broker.settings
    node = settings.node_id + PROCESS_STEP * (process - settings.process)
    try:
        async with asyncio.timeout(PROCESS_SECONDS):
            got = await request.context.remote_brokers.send_request(
                node, TieredMetricsRequest(), TieredMetricsResponse, 0, caller=request.caller
            )
    except (Unavailable, Refused, TimeoutError):
        return None
    return None if got.error_code else got.text.decode()


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
