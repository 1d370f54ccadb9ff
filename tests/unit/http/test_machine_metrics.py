"""Tests of the metrics of all processes of a machine as one text."""

from __future__ import annotations

from tiered.metrics import Metrics
from tiered_api.http.machine_metrics import merge_metrics


def make_text(count: int) -> str:
    metrics = Metrics()
    metrics.counter("reads_total", "Reads {of all} kinds.", ("topic",)).inc(count, 'a "b" {c} d')
    metrics.counter("writes_total", "Writes.").inc(count)
    return metrics.render()


def test_samples_of_a_metric_stand_together_under_one_head() -> None:
    assert merge_metrics({0: make_text(1), 1: make_text(2)}).splitlines()[4:] == [
        "# HELP reads_total Reads {of all} kinds.",
        "# TYPE reads_total counter",
        'reads_total{process="0",topic="a \\"b\\" {c} d"} 1',
        'reads_total{process="1",topic="a \\"b\\" {c} d"} 2',
        "# HELP writes_total Writes.",
        "# TYPE writes_total counter",
        'writes_total{process="0"} 1',
        'writes_total{process="1"} 2',
    ]


def test_process_that_did_not_report_is_down_and_has_no_samples() -> None:
    merged = merge_metrics({0: make_text(1), 1: None})
    assert 'tiered_machine_process_up{process="0"} 1\ntiered_machine_process_up{process="1"} 0\n' in merged
    assert merged.count('process="1"') == 1
