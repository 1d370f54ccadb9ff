"""Kafka's own tool moves partitions between three brokers of ours, at a rate, and takes the rate away."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.serving import Served, tiered
from tests.peer.kafka import tool

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]
THOROUGH = pytest.mark.skipif(os.environ.get("COMPAT") != "ours", reason="make compat runs it, of ours only")
confluent_kafka = pytest.importorskip("confluent_kafka")

RATE = 2_000_000
COUNT, SIZE = 240, 50_000


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of one of three brokers; `t` is on the first two."""
    with ExitStack() as stack:
        store = f"file://{tmp_path / 'bucket'}"
        brokers = [
            stack.enter_context(Served(tmp_path / f"b{node}", "--store", store, "--node-id", str(node)))
            for node in (1, 2, 3)
        ]
        yield brokers[0].kafka


def settings(address: str) -> str:
    """All that is said of throttles."""
    told = tiered("topic", "describe", "t", "-c", "--brokers", address).stdout
    for node in ("1", "2", "3"):
        told += tiered(
            "cluster", "config", "list", "--node", node, "--filter", "throttled", "--brokers", address
        ).stdout
    return "\n".join(line for line in told.splitlines() if "throttled" in line)


@THOROUGH
def test_partitions_move_at_a_rate_and_the_rate_goes(address: str, tmp_path: Path) -> None:
    given = ("topic", "create", "t", "-p", "1", "-r", "2", "-c", "remote.storage.enable=false")
    made = tiered(*given, "--brokers", address)
    assert made.returncode == 0, made.stderr
    placed = tiered("cluster", "reassign", "t/0=1,2", "--throttle", "1000000", "--brokers", address)
    assert placed.returncode == 0, placed.stderr
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "acks": "all"})
    for number in range(COUNT):
        producer.produce("t", bytes([number]) * SIZE)
    assert producer.flush(30) == 0
    plan = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 3]}]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    asked = ("--bootstrap-server", address, "--reassignment-json-file", str(tmp_path / "plan.json"))
    began = time.monotonic()
    told = tool("reassign-partitions", *asked, "--execute", "--throttle", str(RATE))
    assert f"throttle limit was set to {RATE}" in told
    while "is complete" not in (told := tool("reassign-partitions", *asked, "--verify", "--preserve-throttles")):
        assert time.monotonic() - began < 60, told
    assert time.monotonic() - began > COUNT * SIZE / RATE - 2
    assert str(RATE) in settings(address) and re.search(r"follower\S+replicas\s+0:3", settings(address))
    assert "Clearing broker-level throttles" in tool("reassign-partitions", *asked, "--verify")
    left = settings(address)
    assert str(RATE) not in left and "0:3" not in left, left
