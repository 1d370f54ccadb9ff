"""Tests of `tiered trace`: the slowest requests of a broker, and what each waited for."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tiered.testing import TieredCluster, cluster
from tiered_api.cli.main import main

SETTING = "tiered.trace.min.ms"


class Traced:
    """A cluster, and `tiered trace` of the broker that leads partition 0 of a topic."""

    def __init__(self, brokers: TieredCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self.brokers = brokers
        self._capsys = capsys
        self._producer = Producer({"bootstrap.servers": brokers.bootstrap_servers, "client.id": "shop", "acks": "all"})
        """Its connections are open before anything is traced."""

    def run(self, *words: str, topic: str = "") -> str:
        number = self.brokers.leader(topic) if topic else 1
        self._capsys.readouterr()
        assert main(["trace", "--http", self.brokers.http_urls[(number or 1) - 1], *words]) == 0
        return self._capsys.readouterr().out

    def requests(self, api: str, *words: str, topic: str = "t") -> list[dict[str, Any]]:
        """Returns the traced requests with this API, the slowest first."""
        found = json.loads(self.run("--format", "json", *words, topic=topic))
        return [each for each in found["requests"] if each["api"] == api]

    def switch(self, value: int) -> None:
        """Sets the setting of all brokers, and waits until they have it."""
        [known] = self.brokers.ask("GET", "/v3/clusters")["data"]
        path = f"/v3/clusters/{known['cluster_id']}/broker-configs/{SETTING}"
        self.brokers.ask("PUT", path, {"value": str(value)})
        expected = value >= 0
        self.brokers.wait_until(
            lambda: all(json.loads(self._of(url))["is_on"] == expected for url in self.brokers.http_urls)
        )

    def _of(self, url: str) -> str:
        self._capsys.readouterr()
        assert main(["trace", "--format", "json", "--http", url]) == 0
        return self._capsys.readouterr().out

    def produce(self, topic: str, value: str = "x") -> None:
        self._producer.produce(topic, value)
        assert self._producer.flush(60) == 0


@pytest.fixture(params=[1, 3])
def traced(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Iterator[Traced]:
    with cluster(request.param) as brokers:
        brokers.create_topic("t")
        yield Traced(brokers, capsys)


def exemplars(traced: Traced, api: str) -> dict[str, float]:
    """Returns the exemplars of an API at the broker that leads partition 0: trace id -> seconds."""
    url = traced.brokers.http_urls[(traced.brokers.leader("t") or 1) - 1]
    asked = urllib.request.Request(f"{url}/metrics", headers={"Accept": "application/openmetrics-text"})
    with urllib.request.urlopen(asked, timeout=60) as reply:
        text = reply.read().decode()
    found = re.findall(rf'_bucket{{api="{api}",le="[^"]+"}} \d+ # {{trace_id="(\w+)"}} (\S+) \d+\.\d+\n', text)
    return {trace_id: float(seconds) for trace_id, seconds in found}


def phases_of(each: dict[str, Any]) -> list[str]:
    return [span["phase"] for span in each["phases"]]


def test_nothing_is_traced_unless_it_is_wanted(traced: Traced) -> None:
    traced.produce("t")
    assert traced.run(topic="t").startswith("Broker ") and "traces no requests: --seconds 10" in traced.run(topic="t")


def test_produce_tells_its_client_and_what_it_waited_for(traced: Traced) -> None:
    traced.produce("t")
    traced.switch(0)
    traced.produce("t")
    [found] = traced.requests("Produce")
    alone = len(traced.brokers.http_urls) == 1
    assert phases_of(found) == (["append"] if alone else ["append", "replicate", "wait", "reply"])
    assert (found["client_id"], found["principal"]) == ("shop", "User:ANONYMOUS") and found["bytes"] > 60
    assert all(0 <= span["after_ms"] <= found["ms"] for span in found["phases"])
    assert " Produce " in traced.run(topic="t") and f"as shop, trace {found['trace_id']})" in traced.run(topic="t")
    assert exemplars(traced, "Produce")[found["trace_id"]] == pytest.approx(found["ms"] / 1000)
    traced.switch(-1)
    traced.produce("t")
    assert len(traced.requests("Produce")) == 1


def test_record_that_waits_for_the_bucket_says_so(traced: Traced) -> None:
    traced.brokers.create_topic("safe", flush="bucket")
    traced.switch(0)
    with traced.brokers.bucket_slow(0.2):
        traced.produce("safe")
    assert "bucket" in phases_of(traced.requests("Produce", topic="safe")[0])


def test_fetch_says_how_long_it_waited_for_records(traced: Traced) -> None:
    consumer = Consumer(
        {"bootstrap.servers": traced.brokers.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    traced.switch(0)
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.append(consumer.poll(60)))
    reader.start()
    waits = traced.brokers.wait_until(
        lambda: [each for each in traced.requests("Fetch", "-n", "500") if "wait" in phases_of(each)]
    )
    assert waits[0]["idle_ms"] > waits[0]["ms"] / 2
    traced.produce("t")
    reader.join(60)
    consumer.close()
    assert got[0] is not None


def test_operator_may_watch_for_a_few_seconds(traced: Traced) -> None:
    """A second request of the operator comes while the first one watches."""
    found: list[dict[str, Any]] = []
    watch = threading.Thread(target=lambda: found.extend(traced.requests("Produce", "--seconds", "2")))
    watch.start()
    traced.brokers.wait_until(lambda: any(each.broker.request_traces.is_on for each in traced.brokers._running()))
    traced.produce("t")
    watch.join(60)
    assert [each["client_id"] for each in found] == ["shop"]
    traced.brokers.wait_until(lambda: not any(each.broker.request_traces.is_on for each in traced.brokers._running()))
