"""The figures of a broker that an overview of the cluster shows, read from its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tiered.metrics import Metrics


class Figure(NamedTuple):
    """A number under the name of its metric. `label` is the value of the metric's first label, if it is kept apart."""

    name: str
    label: str
    value: float


SUMS = (
    "kafka_server_brokertopicmetrics_bytesin_total",
    "kafka_server_brokertopicmetrics_bytesout_total",
    "kafka_server_brokertopicmetrics_messagesin_total",
    "tiered_upload_waiting_segments",
    "tiered_disk_free_bytes",
    "tiered_kafka_connections",
    "tiered_http_connections",
)
"""Metrics of which the sum over all labels is shown."""
LARGEST = ("tiered_remote_copy_lag_seconds",)
"""Metrics of which the largest value is shown."""
BY_LABEL = ("tiered_store_requests_total", "tiered_store_bytes_total")
"""Metrics that are shown by their first label: the kind of request to the bucket."""


def read_figures(metrics: Metrics) -> list[Figure]:
    """Returns all figures that the broker has by now."""
    found: list[Figure] = []
    folds: tuple[tuple[tuple[str, ...], Callable[[Iterable[float]], float]], ...] = ((SUMS, sum), (LARGEST, max))
    for names, fold in folds:
        for name in names:
            if samples := metrics.samples(name):
                found.append(Figure(name, "", fold(samples.values())))
    for name in BY_LABEL:
        sums: dict[str, float] = {}
        for labels, value in metrics.samples(name).items():
            sums[labels[0]] = sums.get(labels[0], 0) + value
        found += [Figure(name, label, value) for label, value in sorted(sums.items())]
    return found
