"""The report of a broker on itself, for an overview of the cluster: its health, and figures of its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tiered.broker.health import Health
from tiered.metrics import Metrics
from tiered.ports import Clock


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


class SelfReport(NamedTuple):
    """Health and figures at one moment."""

    health: Health
    figures: list[Figure]


REPLICAS_PER_SECOND = 500
"""Replicas for each second that a report is kept. A report takes some 10 us for each replica, so that an overview which
asks every two seconds costs at most 1 % of a core. A broker with fewer replicas keeps none."""


class SelfReports:
    """The reports of one broker on itself."""

    def __init__(
        self, clock: Clock, metrics: Metrics, assess: Callable[[], Health], count_replicas: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._metrics = metrics
        self._assess = assess
        self._count_replicas = count_replicas
        self._kept: SelfReport | None = None
        self._until_ns = 0

    def read(self) -> SelfReport:
        """Returns a new report, or the last one while it is kept."""
        now_ns = self._clock.mono_ns()
        if self._kept is None or now_ns >= self._until_ns:
            self._kept = SelfReport(self._assess(), read_figures(self._metrics))
            self._until_ns = now_ns + self._count_replicas() // REPLICAS_PER_SECOND * 1_000_000_000
        return self._kept
