"""Tests of Kafka's own command line tools, as administrators run them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.compat.brokers import CompatBroker
from tests.compat.client import ClientRecord, DriverClient, look_until
from tests.compat.clients import ALL
from tests.peer.kafka import TOOLS, java, tool

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]
THOROUGH = pytest.mark.skipif(not ALL, reason="make compat runs it: a JVM for every step")
Run = Callable[..., str]


@pytest.fixture
def run(broker: CompatBroker) -> Run:
    """Runs a tool with the address of the broker; returns its output."""

    def one(name: str, *arguments: str, stdin: str = "") -> str:
        return tool(name, *broker.reach, *arguments, stdin=stdin)

    return one


def test_console_producer_and_consumer_exchange_records(run: Run, admin: DriverClient, name: str) -> None:
    admin.ask("create", topic=name)
    settings = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    run("console-producer", "--topic", name, *settings, stdin="a:1\nb:2\nc:3\n")
    shown = ["--formatter-property", "print.key=true", "--formatter-property", "print.offset=true"]
    read = run("console-consumer", "--topic", name, "--from-beginning", "--max-messages", "3", *shown)
    assert read.split() == ["Offset:0", "a", "1", "Offset:1", "b", "2", "Offset:2", "c", "3"]


@THOROUGH
def test_topics_tool_creates_changes_and_deletes_topics(
    run: Run, admin: DriverClient, broker: CompatBroker, name: str
) -> None:
    topic = ["--topic", name]
    run("topics", "--create", *topic, "--partitions", "2", "--config", "retention.ms=7200000")
    look_until(broker.name, lambda: admin.ask("topics").get(name), lambda count: count == 2)
    described = run("topics", "--describe", *topic)
    assert "PartitionCount: 2" in described and "ReplicationFactor: 1" in described
    assert "retention.ms=7200000" in described and "Leader: none" not in described
    run("topics", "--alter", *topic, "--partitions", "4")
    look_until(broker.name, lambda: admin.ask("topics").get(name), lambda count: count == 4)
    with pytest.raises(RuntimeError, match="TopicExistsException"):
        run("topics", "--create", *topic)
    assert name in run("topics", "--list").split()
    run("topics", "--delete", *topic)
    look_until(broker.name, lambda: name in admin.ask("topics"), lambda there: not there)


@THOROUGH
def test_configs_tool_shows_and_changes_settings(
    run: Run, admin: DriverClient, broker: CompatBroker, name: str
) -> None:
    admin.ask("create", topic=name)
    one = ["--entity-type", "topics", "--entity-name", name]
    run("configs", "--alter", *one, "--add-config", "max.message.bytes=4321,retention.ms=1234567")
    look = admin.ask
    look_until(
        broker.name, lambda: look("configs", kind="topic", name=name)["retention.ms"][0], lambda ms: ms == "1234567"
    )
    described = run("configs", "--describe", *one)
    assert "retention.ms=1234567 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=1234567" in described
    run("configs", "--alter", *one, "--delete-config", "retention.ms")
    look_until(
        broker.name, lambda: look("configs", kind="topic", name=name)["retention.ms"][0], lambda ms: ms != "1234567"
    )
    everything = run("configs", "--describe", "--all", *one)
    assert "max.message.bytes=4321" in everything and "DEFAULT_CONFIG:log.cleanup.policy=delete" in everything
    (number,) = admin.ask("brokers")
    of_broker = run("configs", "--describe", "--all", "--entity-type", "brokers", "--entity-name", number)
    assert "STATIC_BROKER_CONFIG:log.segment.bytes=4194304" in of_broker


@THOROUGH
def test_quorum_tool_shows_the_controller_and_its_log(run: Run, admin: DriverClient, name: str) -> None:
    (number,) = admin.ask("brokers")
    before = run("metadata-quorum", "describe", "--status")
    status = dict(line.split(":", 1) for line in before.splitlines() if ":" in line)
    assert status["LeaderId"].strip() == number and f'"id": {number}' in status["CurrentVoters"]
    assert int(status["MaxFollowerLag"]) == 0 and status["CurrentObservers"].strip() == "[]"
    admin.ask("create", topic=name)
    title, *rows = run("metadata-quorum", "describe", "--replication").splitlines()
    assert title.split()[:4] == ["NodeId", "DirectoryId", "LogEndOffset", "Lag"]
    ((node, _, end, lag, _, _, role),) = (row.split() for row in rows)
    assert (node, lag, role) == (number, "0", "Leader") and int(end) > int(status["HighWatermark"])


@THOROUGH
def test_groups_tool_shows_lag_and_resets_offsets(run: Run, admin: DriverClient, name: str) -> None:
    admin.ask("create", topic=name, partitions=2)
    admin.send(name, [ClientRecord(b"%d" % number, partition=number % 2) for number in range(20)])
    group = ["--group", name]
    read = run("console-consumer", "--topic", name, "--from-beginning", "--max-messages", "20", *group)
    assert sorted(map(int, read.split())) == list(range(20))
    admin.send(name, [ClientRecord(b"more", partition=1)] * 5)
    assert name in run("consumer-groups", "--list").split()
    assert lags(run("consumer-groups", "--describe", *group), name) == {0: (10, 10, 0), 1: (10, 15, 5)}
    assert "Empty" in run("consumer-groups", "--describe", "--state", *group)
    reset = ["--reset-offsets", *group, "--topic", name, "--execute"]
    run("consumer-groups", *reset, "--to-earliest")
    assert lags(run("consumer-groups", "--describe", *group), name) == {0: (0, 10, 10), 1: (0, 15, 15)}
    run("consumer-groups", *reset, "--shift-by", "4")
    assert admin.ask("group_offsets", group=name) == [[name, 0, 4], [name, 1, 4]]
    run("consumer-groups", "--delete-offsets", *group, "--topic", name)
    assert admin.ask("group_offsets", group=name) == []
    run("consumer-groups", "--delete", *group)
    assert name not in run("consumer-groups", "--list").split()


def lags(described: str, topic: str) -> dict[int, tuple[int, int, int]]:
    """Returns committed offset, end and lag by partition."""
    rows = [line.split() for line in described.splitlines() if topic in line.split()[1:2]]
    return {int(row[2]): (int(row[3]), int(row[4]), int(row[5])) for row in rows}


@THOROUGH
def test_offsets_and_delete_records_tools_work(run: Run, admin: DriverClient, name: str) -> None:
    admin.ask("create", topic=name)
    admin.send(name, [ClientRecord(b"%d" % number) for number in range(30)])
    assert run("get-offsets", "--topic", name).split() == [f"{name}:0:30"]
    wanted = json.dumps({"version": 1, "partitions": [{"topic": name, "partition": 0, "offset": 12}]})
    assert "low_watermark: 12" in run("delete-records", "--offset-json-file", "/dev/stdin", stdin=wanted)
    assert run("get-offsets", "--topic", name, "--time", "earliest").split() == [f"{name}:0:12"]
    logs = run("log-dirs", "--describe", "--topic-list", name)
    assert f'"partition":"{name}-0"' in logs and '"error":null' in logs


@THOROUGH
def test_api_versions_tool_lists_the_versions(run: Run) -> None:
    lines = run("broker-api-versions").splitlines()
    assert not [line for line in lines if line.startswith("\tProduce(0): UNSUPPORTED")]
    assert [line for line in lines if line.startswith("\tFetch(1): 4 to 18")]


@THOROUGH
def test_verifiable_producer_and_consumer_exchange_records(
    run: Run, broker: CompatBroker, admin: DriverClient, name: str
) -> None:
    admin.ask("create", topic=name, partitions=3)
    said = events(run("verifiable-producer", "--topic", name, "--max-messages", "1000", "--acks", "-1"))
    assert len([each for each in said if each["name"] == "producer_send_success"]) == 1000
    assert not [each for each in said if each["name"] == "producer_send_error"]
    group = ["--group-id", name, "--group-protocol", "classic", "--topic", name, "--reset-policy", "earliest"]
    command = java(TOOLS["verifiable-consumer"], [*broker.reach, *group, "--max-messages", "1000"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    said = events(done.stdout)
    assert sum(each["count"] for each in said if each["name"] == "records_consumed") == 1000, done.stderr
    assert all(each["success"] for each in said if each["name"] == "offsets_committed")
    assert sum(each[2] for each in admin.ask("group_offsets", group=name)) == 1000


def events(output: str) -> list[dict[str, Any]]:
    """Returns the events of the tool, one line of JSON each."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
