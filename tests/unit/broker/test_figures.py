"""Tests of the figures of a broker: sums, the largest, and by kind."""

from __future__ import annotations

from tests.unit.hot.fixtures import FixedClock
from tiered.broker.figures import Figure, SelfReports, read_figures
from tiered.broker.health import Health
from tiered.metrics import Metrics


def test_figures_are_sums_largest_values_and_sums_by_kind() -> None:
    metrics = Metrics()
    bytes_in = metrics.counter("kafka_server_brokertopicmetrics_bytesin_total", "", ("topic",))
    bytes_in.inc(5, "a")
    bytes_in.inc(7, "b")
    lag = metrics.gauge("tiered_remote_copy_lag_seconds", "", ("topic",))
    lag.set(3, "a")
    lag.set(9, "b")
    requests = metrics.counter("tiered_store_requests_total", "", ("verb", "outcome"))
    for verb, outcome, count in (("put", "ok", 2), ("put", "conflict", 1), ("get", "ok", 4)):
        requests.inc(count, verb, outcome)
    assert read_figures(metrics) == [
        Figure("kafka_server_brokertopicmetrics_bytesin_total", "", 12),
        Figure("tiered_remote_copy_lag_seconds", "", 9),
        Figure("tiered_store_requests_total", "get", 4),
        Figure("tiered_store_requests_total", "put", 3),
    ]


def test_metric_without_values_has_no_figure() -> None:
    metrics = Metrics()
    metrics.gauge("tiered_remote_copy_lag_seconds", "", ("topic",))
    assert read_figures(metrics) == []


def test_report_of_many_replicas_is_kept_for_a_while() -> None:
    clock, asked, replicas = FixedClock(), list[int](), [499]

    def assess() -> Health:
        asked.append(clock.wall)
        return Health(True, [], {}, [])

    reports = SelfReports(clock, Metrics(), assess, lambda: replicas[0])
    reports.read(), reports.read()
    assert len(asked) == 2, "few replicas are looked at anew each time"
    replicas[0] = 5_499
    first = reports.read()
    clock.wall += 9_999
    assert reports.read() is first and len(asked) == 3
    clock.wall += 1
    assert reports.read() is not first and len(asked) == 4
