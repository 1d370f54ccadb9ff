"""Tests of traced requests as spans of OpenTelemetry: a collector in this process gets them by OTLP over HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.sim.harness.clock import SimRng
from tests.unit.hot.fixtures import FixedClock
from tiered.broker.request_traces import RequestTraces
from tiered.broker.trace_exporter import EXPORT_SECONDS_MAX, NO_SDK, TraceExporter
from tiered.errors import Refused
from tiered.metrics import Metrics
from tiered.testing import TieredCluster, cluster

OUTCOMES = ("exported", "export_failures")


class Collector:
    """A collector that refuses some exports, and keeps the spans of the others."""

    def __init__(self) -> None:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

        self.refusals = 0
        self.paths: list[str] = []
        self.resources: list[dict[str, str]] = []
        self.spans: list[Any] = []
        collector = self

        class Exports(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if collector.refusals:
                    collector.refusals -= 1
                    self.send_error(400, "not today")
                    return
                export = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
                for each in export.resource_spans:
                    names = {known.key: known.value.string_value for known in each.resource.attributes}
                    collector.resources.append(names)
                    collector.spans += [span for scope in each.scope_spans for span in scope.spans]
                collector.paths.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Exports)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"

    @contextmanager
    def serve(self) -> Iterator[None]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join(60)
            self._server.server_close()

    def of(self, api: str) -> list[Any]:
        return [span for span in self.spans if span.name == api]


@pytest.fixture
def collector() -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'tiered[otel]'")
    made = Collector()
    with made.serve():
        yield made


def produce(brokers: TieredCluster) -> None:
    producer = Producer({"bootstrap.servers": brokers.bootstrap_servers, "client.id": "shop", "acks": "all"})
    producer.produce("t", "x")
    assert producer.flush(60) == 0


def export(brokers: TieredCluster) -> str:
    """Lets the broker export once. Returns what came of it."""
    [running] = brokers._running()
    counters = {name: running.broker.metrics.counter(f"tiered_trace_{name}_total", "") for name in OUTCOMES}
    before = {name: counter.value() for name, counter in counters.items()}
    brokers.advance(seconds=EXPORT_SECONDS_MAX)
    return brokers.wait_until(
        lambda: next((name for name, counter in counters.items() if counter.value() > before[name]), "")
    )


def test_traced_requests_reach_a_collector_once_as_spans_with_their_phases(collector: Collector) -> None:
    with cluster(1, tiered_trace_min_ms=0, tiered_trace_otlp_endpoint=collector.url) as brokers:
        brokers.create_topic("t")
        collector.refusals = 2
        produce(brokers)
        assert [export(brokers) for _ in range(3)] == ["export_failures", "export_failures", "exported"]
        produce(brokers)
        assert export(brokers) == "exported"
        with urllib.request.urlopen(f"{brokers.http_urls[0]}/tiered/v1/traces?limit=500", timeout=60) as reply:
            kept = {each["trace_id"]: each for each in json.load(reply)["requests"] if each["api"] == "Produce"}
    sent = collector.of("Produce")
    assert sorted(span.trace_id.hex() for span in sent) == sorted(kept) and len(kept) == 2
    for span in sent:
        phases = [each for each in collector.spans if each.parent_span_id == span.span_id]
        expected = kept[span.trace_id.hex()]
        assert [each.name for each in phases] == [each["phase"] for each in expected["phases"]]
        assert all(each.trace_id == span.trace_id for each in phases)
        assert (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6 == pytest.approx(expected["ms"])
        assert span.start_time_unix_nano == expected["at_ms"] * 1_000_000
        assert "shop" in {each.value.string_value for each in span.attributes}
    assert set(collector.paths) == {"/v1/traces"}
    assert all(each["service.name"] == "tiered" and each["service.instance.id"] == "1" for each in collector.resources)


def test_broker_without_the_packages_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tiered.broker.otlp_spans", raising=False)
    for name in [each for each in sys.modules if each.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    clock = FixedClock()
    exporter = TraceExporter(RequestTraces(clock, SimRng(1)), "http://127.0.0.1:4318/v1/traces", clock, Metrics())
    with pytest.raises(Refused, match=r"tiered\[otel\]") as refused:
        asyncio.run(exporter.start("cluster", 1))
    exporter.close()
    assert refused.value.why == NO_SDK
