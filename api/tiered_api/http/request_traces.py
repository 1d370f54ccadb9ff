"""The slowest requests of this broker with their phases, and the watch of an operator who waits for more."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tiered.request_trace import RequestTrace
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response

WATCH_SECONDS_MAX = 10
LISTED, LISTED_MAX = 20, 500
NS_PER_MS = 1_000_000


async def list_traces(request: HttpRequest) -> web.StreamResponse:
    """Lists the slowest traced requests of the last ten minutes, the slowest first. With `seconds`, traces all requests
    for so long before."""
    seconds = request.query_integer("seconds", 0, 0, WATCH_SECONDS_MAX)
    most = request.query_integer("limit", LISTED, 1, LISTED_MAX)
    broker = request.context.broker
    traces = broker.request_traces
    if seconds:
        with traces.watch():
            await request.context.clock.sleep(seconds)
    found = traces.list()[:most]
    body = {"node_id": broker.settings.node_id, "is_on": traces.is_on, "min_ms": broker.settings.tiered_trace_min_ms}
    return json_response(body | {"requests": [describe_trace(each) for each in found]})


def describe_trace(trace: RequestTrace) -> dict[str, Any]:
    """Returns a traced request as JSON has it."""
    return {
        "trace_id": trace.trace_id,
        "api": trace.api,
        "version": trace.version,
        "at_ms": trace.began_ms,
        "ms": trace.total_ns / NS_PER_MS,
        "idle_ms": trace.idle_ns / NS_PER_MS,
        "bytes": trace.size,
        "client_id": trace.client_id,
        "principal": trace.principal,
        "peer": trace.peer,
        "phases": [
            {
                "phase": each.name,
                "after_ms": (each.start_ns - trace.began_ns) / NS_PER_MS,
                "ms": (each.end_ns - each.start_ns) / NS_PER_MS,
            }
            for each in trace.phases
        ],
        "phases_left_out": trace.left_out,
    }
