"""The dashboard of Grafana, made from the metrics that brokers define: names, kinds and help texts.

    .venv/bin/python infra/grafana/make_dashboard.py      writes tiered.json beside this file

A row of panels that a person looks at first comes first. Then each metric has a panel in a row of its area, closed
until somebody opens it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from tiered.testing.rest import ask

TARGET = Path(__file__).with_name("tiered.json")
COLUMNS, WIDTH, HEIGHT = 3, 8, 7
RATE = "[$__rate_interval]"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

JOB = '{job="$job"}'
FIRST = (
    ("Bytes written", f"sum(rate(kafka_server_brokertopicmetrics_bytesin_total{JOB}{RATE}))", "Bps"),
    ("Bytes read", f"sum(rate(kafka_server_brokertopicmetrics_bytesout_total{JOB}{RATE}))", "Bps"),
    ("Partitions that may lack records", f"max(tiered_possible_loss_partitions{JOB})", "short"),
    ("Partitions without a leader", f"max(kafka_controller_kafkacontroller_offlinepartitionscount{JOB})", "short"),
    ("Partitions that lack replicas", f"sum(kafka_server_replicamanager_underreplicatedpartitions{JOB})", "short"),
    ("Bucket away for", f"max(tiered_store_unavailable_seconds{JOB})", "s"),
    ("Segments that wait for the bucket", f"sum(tiered_upload_waiting_segments{JOB})", "short"),
    ("Oldest record outside of the bucket", f"max by (topic) (tiered_remote_copy_lag_seconds{JOB})", "s"),
    ("Requests to the bucket", f"sum by (verb) (rate(tiered_store_requests_total{JOB}{RATE}))", "reqps"),
    (
        "Requests by API, p99",
        f"histogram_quantile(0.99, sum by (le, api) (rate(tiered_kafka_request_seconds_bucket{JOB}{RATE})))",
        "s",
    ),
    ("Lag of groups, records", f"sum by (consumergroup) (kafka_consumergroup_lag_sum{JOB})", "short"),
    ("Lag of groups, seconds", f"max by (consumergroup) (kafka_consumergroup_lag_seconds{JOB})", "s"),
)
"""Title, query and unit of the first panels."""

AREAS = (
    ("Bucket and cold reads", r"tiered_(store|cold|upload|tiering|manifest|remote)|remotelog"),
    ("Metadata and controller", r"tiered_metadata|kafka_controller|tiered_clock"),
    ("Replication", r"tiered_(replica|isr|partitions)|replicamanager"),
    ("Disk and logs", r"tiered_(disk|log|possible|topic_possible)|kafka_log"),
    ("Groups and transactions", r"tiered_(group|transaction|producer)|consumergroup|addpartitions|transaction"),
    ("Kafka clients", r"tiered_kafka|brokertopicmetrics"),
    ("HTTP", r"tiered_http|idempotency"),
    ("Limits and security", r"tiered_(pot|throttled|tls|audit)"),
    ("Process", r"process_|tiered_(process|build|machine)"),
    ("Others", r""),
)
"""Titles of rows, and a part of the names of the metrics in them. The first that fits counts."""


class Metric(NamedTuple):
    """One metric as a broker defines it, and the labels of its samples."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]


def read_metrics(text: str) -> list[Metric]:
    """Returns the metrics of a scrape, by name."""
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\S+) (.*)$", text, re.MULTILINE))
    labels: dict[str, set[str]] = {}
    for name, given in re.findall(r"^([a-z_:0-9]+)\{(.*)\} ", text, re.MULTILINE):
        found = set(re.findall(r'(\w+)="', given)) - {"le"}
        labels.setdefault(re.sub(r"_(bucket|sum|count)$", "", name) if name not in kinds else name, set()).update(found)
    return [Metric(name, kinds[name], helps[name], tuple(sorted(labels.get(name, ())))) for name in sorted(kinds)]


def query(metric: Metric) -> str:
    """Returns the query of a panel: the rate of a counter, the 99th percentile of a histogram, a gauge as it is."""
    name, by = metric.name, ", ".join(("instance", *metric.labels))
    if metric.kind == "counter":
        return f"sum by ({by}) (rate({name}{JOB}{RATE}))"
    if metric.kind == "histogram":
        return f"histogram_quantile(0.99, sum by (le, {by}) (rate({name}_bucket{JOB}{RATE})))"
    return f"{name}{JOB}"


def unit(metric: Metric) -> str:
    """Returns the unit of a panel in the words of Grafana."""
    if metric.kind == "counter":
        return "Bps" if "bytes" in metric.name else "short"
    return "s" if "seconds" in metric.name else "bytes" if "bytes" in metric.name else "short"


def make_dashboard(metrics: list[Metric]) -> dict[str, Any]:
    """Returns the dashboard."""
    numbers = iter(range(1, 10_000))

    def panel(title: str, expr: str, unit: str, at: int, top: int, about: str = "", legend: str = "") -> dict[str, Any]:
        return {
            "id": next(numbers), "type": "timeseries", "title": title, "description": about, "datasource": SOURCE,
            "gridPos": {"x": at % COLUMNS * WIDTH, "y": top + at // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT},
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "targets": [{"refId": "A", "datasource": SOURCE, "expr": expr, "legendFormat": legend or "__auto"}],
        }  # fmt: skip

    panels: list[dict[str, Any]] = [panel(*each, at, 0) for at, each in enumerate(FIRST)]
    top = -(-len(FIRST) // COLUMNS) * HEIGHT
    sorted_metrics = sorted(metrics, key=lambda metric: (_area_of(metric), metric.name))
    for area, group in groupby(sorted_metrics, _area_of):
        inside = [
            panel(each.name, query(each), unit(each), at, top + 1, each.help) for at, each in enumerate(group)
        ]  # fmt: skip
        place = {"x": 0, "y": top, "w": COLUMNS * WIDTH, "h": 1}
        panels.append(
            {
                "id": next(numbers),
                "type": "row",
                "title": AREAS[area][0],
                "collapsed": True,
                "gridPos": place,
                "panels": inside,
            }
        )
        top += 1
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": "job", "type": "query", "label": "Job", "datasource": SOURCE, "refresh": 1,
            "query": "label_values(tiered_partitions, job)",
        },
    ]  # fmt: skip
    return {
        "uid": "tiered", "title": "tiered", "tags": ["kafka", "tiered"], "schemaVersion": 39, "editable": True,
        "time": {"from": "now-3h", "to": "now"}, "refresh": "30s", "templating": {"list": variables}, "panels": panels,
    }  # fmt: skip


def _area_of(metric: Metric) -> int:
    return next(number for number, (_, part) in enumerate(AREAS) if re.search(part, metric.name))


def fetch_metrics() -> list[Metric]:
    """Returns the metrics of a broker of this program."""
    command = [sys.executable, "-m", "tiered_api.cli.main", "serve", "--ephemeral"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as broker:
        assert broker.stdout is not None
        try:
            url = json.loads(broker.stdout.readline())["http_url"]
            cluster = ask(url, "GET", "/tiered/v1/node")["cluster_id"]
            ask(url, "POST", f"/v3/clusters/{cluster}/topics", {"topic_name": "t"})
            ask(url, "POST", "/topics/t", {"records": [{"value": 1}]}, "application/vnd.kafka.json.v2+json")
            with urllib.request.urlopen(f"{url}/metrics", timeout=60) as reply:
                return read_metrics(reply.read().decode())
        finally:
            broker.terminate()


if __name__ == "__main__":
    TARGET.write_text(json.dumps(make_dashboard(fetch_metrics()), indent=1) + "\n")
