"""TieredMetrics (API key 20008, ours): the metrics of this broker as Prometheus text."""

from __future__ import annotations

from tiered_api.kafka.protocol.messages.tiered_metrics import TieredMetricsRequest, TieredMetricsResponse
from tiered_api.kafka.server.context.context import Call, KafkaContext


async def handle(context: KafkaContext, call: Call[TieredMetricsRequest]) -> TieredMetricsResponse:
    """Returns what `GET /metrics` at this broker's own address returns."""
    metrics = context.broker.metrics
    if metrics.refresh is not None:
        await metrics.refresh()
    return TieredMetricsResponse(text=metrics.render().encode())
