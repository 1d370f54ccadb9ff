"""Request latencies by API: from the whole frame to the reply that is ready to be sent."""

from __future__ import annotations

from bisect import bisect_left

from tiered.metrics import Exemplar, Metrics, Series
from tiered_api.kafka.protocol.apis import ALL_APIS

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Seconds."""
FOLLOWER_FETCH = 1 << 16
"""Stands for the API key of a follower's Fetch, which usually waits for records."""
API_LABELS = {key: api.name for key, api in ALL_APIS.items()} | {1: "FetchConsumer", FOLLOWER_FETCH: "FetchFollower"}
"""Labels as in Kafka's RequestMetrics."""


class Latencies:
    """The request latencies of one broker."""

    def __init__(self, metrics: Metrics) -> None:
        self._histogram = metrics.histogram(
            "tiered_kafka_request_seconds",
            "Time from a whole request to its reply, by API; fetches that wait for records are in it.",
            BUCKETS,
            ("api",),
            scale=1_000_000_000,
        )
        self._series: dict[int, Series] = {}

    def record(self, api_key: int, ns: int) -> None:
        """Records the latency of one request."""
        series = self._series.get(api_key)
        if series is None:
            series = self._series[api_key] = self._histogram.series(API_LABELS[api_key])
        series.counts[bisect_left(series.bounds, ns)] += 1
        series.sum += ns

    def keep_exemplar(self, api_key: int, exemplar: Exemplar) -> None:
        """Keeps the trace of a request whose latency is recorded, as the exemplar of its bucket."""
        series = self._series.get(api_key)
        if series is not None:
            series.keep_exemplar(exemplar)
