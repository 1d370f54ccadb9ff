"""Tests of the metrics in the form of OpenMetrics."""

from __future__ import annotations

from tiered.metrics import Metrics
from tiered_api.http.openmetrics import to_openmetrics


def test_counters_are_described_without_total_and_the_text_has_an_end() -> None:
    metrics = Metrics()
    metrics.counter("reads_total", 'Reads of "all" kinds.', ("topic",)).inc(1, "# HELP a_total b")
    metrics.gauge("free_bytes", "Free.").set(7)
    metrics.histogram("wait_seconds", "Waits.", (1.0,)).observe(0.5)
    assert to_openmetrics(metrics.render()).splitlines() == [
        "# HELP free_bytes Free.",
        "# TYPE free_bytes gauge",
        "free_bytes 7",
        '# HELP reads Reads of \\"all\\" kinds.',
        "# TYPE reads counter",
        'reads_total{topic="# HELP a_total b"} 1',
        "# HELP wait_seconds Waits.",
        "# TYPE wait_seconds histogram",
        'wait_seconds_bucket{le="1"} 1',
        'wait_seconds_bucket{le="+Inf"} 1',
        "wait_seconds_sum 0.5",
        "wait_seconds_count 1",
        "# EOF",
    ]


def test_broker_without_metrics_has_the_end_alone() -> None:
    assert to_openmetrics("") == "# EOF\n"
