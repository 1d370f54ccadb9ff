"""Changes that callers make have lines in the audit log: over the Kafka protocol, over HTTP, and after a lost reply."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import tiered_api
from tests.e2e.http_site import HttpBroker
from tests.e2e.http_site import run as run_http
from tests.e2e.kafka_site import KafkaBroker, produce, run, wait_until
from tests.scenario import run_by
from tiered.broker.broker import Broker
from tiered_api.kafka.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tiered_api.kafka.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tiered_api.kafka.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tiered_api.kafka.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tiered_api.kafka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tiered_api.kafka.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tiered_api.kafka.protocol.messages.produce import ProduceResponse

TOPIC = 2
WITHOUT_CALLER = {
    "describe_quorum.py": "changes nothing",
    "scram_users.py": "the start of a broker",
}


def watch(broker: Broker) -> list[dict[str, Any]]:
    """Returns the list that gets the changes of the audit log from now on."""
    found: list[dict[str, Any]] = []

    def on_line(line: str) -> None:
        event = json.loads(line)
        if event["event"] == "change":
            found.append(event)

    broker.audit.subscribe(on_line)
    return found


def rows(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        tuple(each.get(key, "") for key in ("outcome", "operation", "resource_type", "resource_name", "detail"))
        for each in found
    ]


@run_by(run, "tmp_path")
async def test_changes_over_the_kafka_protocol_have_lines(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client, changes = await site.client(), watch(site.broker)
    await client.ask(produce(replica, b"a", b"b"), 9, ProduceResponse)
    config = AlterConfigsResource(TOPIC, "t", [AlterableConfig("retention.ms", 0, "1000")])
    absent = AlterConfigsResource(TOPIC, "absent", [AlterableConfig("retention.ms", 0, "1000")])
    await client.ask(IncrementalAlterConfigsRequest([config, absent]), 1, IncrementalAlterConfigsResponse)
    trim = DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 1), DeleteRecordsPartition(7, 1)])
    await client.ask(DeleteRecordsRequest([trim], 10_000), 2, DeleteRecordsResponse)
    place = [OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 1)])]
    committed = await client.ask(OffsetCommitRequest("g", topics=place), 8, OffsetCommitResponse)
    assert committed.topics[0].partitions[0].error_code == 0
    offsets = OffsetDeleteRequest("g", [OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)])])
    await client.ask(offsets, 0, OffsetDeleteResponse)
    await client.ask(OffsetCommitRequest("g", topics=place), 8, OffsetCommitResponse)
    await client.ask(DeleteGroupsRequest(["g", "absent"]), 2, DeleteGroupsResponse)
    await client.ask(DeleteTopicsRequest(topic_names=["t", "absent"], timeout_ms=10_000), 5, DeleteTopicsResponse)
    assert rows(changes) == [
        ("done", "ALTER_CONFIGS", "TOPIC", "t", "retention.ms=1000"),
        ("done", "DELETE", "TOPIC", "t-0", "records below 1"),
        ("done", "DELETE", "GROUP", "g", "offsets of t"),
        ("done", "DELETE", "GROUP", "g", ""),
        ("done", "DELETE", "TOPIC", "t", replica.topic_id),
    ]
    assert {(each["principal"], each["host"]) for each in changes} == {("User:ANONYMOUS", "127.0.0.1")}


@run_by(run, "tmp_path")
async def test_deletion_has_a_line_though_its_client_leaves_at_once(site: KafkaBroker) -> None:
    """Its connection is closed before the controller replies. The topic is deleted all the same."""
    await site.create("t")
    client, changes = await site.client(), watch(site.broker)
    request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000)
    await client.send(client.frame(request, 5))
    await wait_until(lambda: site.server.pending_requests == 1 or "t" not in site.broker.image.topics)
    client.close()
    await wait_until(lambda: "t" not in site.broker.image.topics)
    await wait_until(lambda: bool(changes))
    assert rows(changes)[0][1:4] == ("DELETE", "TOPIC", "t") and changes[0]["outcome"] in ("done", "unknown")


@run_by(run_http, "tmp_path")
async def test_changes_over_http_have_lines(site: HttpBroker) -> None:
    changes = watch(site.broker)
    base = f"{site.cluster}/topics"
    made = await site.ask("POST", base, {"topic_name": "t", "partitions_count": 2})
    assert made.status == 201, made
    await site.ask("PUT", f"{base}/t/configs/retention.ms", {"value": "1000"})
    await site.ask("PATCH", f"{base}/t", {"partitions_count": 3})
    await site.ask("DELETE", f"{base}/t/configs/retention.ms")
    assert (await site.ask("DELETE", f"{base}/t")).status == 204
    assert [row[:4] for row in rows(changes)] == [
        ("done", "CREATE", "TOPIC", "t"),
        ("done", "ALTER_CONFIGS", "TOPIC", "t"),
        ("done", "ALTER", "TOPIC", "t"),
        ("done", "ALTER_CONFIGS", "TOPIC", "t"),
        ("done", "DELETE", "TOPIC", "t"),
    ]
    assert [row[4] for row in rows(changes)[:4]] == [
        "partitions=2", "retention.ms=1000", "partitions=3", "retention.ms=reset",
    ]  # fmt: skip


def test_each_handler_names_the_caller_of_its_changes() -> None:
    nameless = set()
    for file in Path(tiered_api.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("broker.submit"):
                continue
            if "by" not in {keyword.arg for keyword in node.keywords}:
                nameless.add(file.name)
    assert nameless == WITHOUT_CALLER.keys()
