"""Tests with real admin clients: Kafka's own tools, confluent-kafka and kafka-python."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka.admin
import kafka.admin
import pytest
from confluent_kafka import TopicCollection, TopicPartition

from tests.e2e.kafka_site import KafkaBroker, kafka_broker
from tests.peer.kafka import tool
from tests.sim.rig.broker_rig import batch

T = TypeVar("T")
admin: Any = confluent_kafka.admin
"""The module; it has no list of its exports."""
TEST_SECONDS = 240.0
SECONDS = 120


def run(directory: Path, scenario: Callable[[str, Callable[[str, int], int]], None], **settings: Any) -> None:
    """Runs `scenario` in a thread with the address of a broker; its second argument appends records without the
    protocol."""

    async def append_records(site: KafkaBroker, topic: str, count: int) -> int:
        return (await site.broker.leader_replica(topic, 0).append(batch([b"v"] * count))).base_offset

    async def run_all() -> None:
        async with asyncio.timeout(TEST_SECONDS), kafka_broker(directory, **settings) as site:
            loop = asyncio.get_running_loop()

            def fill(topic: str, count: int) -> int:
                return asyncio.run_coroutine_threadsafe(append_records(site, topic, count), loop).result(SECONDS)

            await asyncio.to_thread(scenario, site.address, fill)

    asyncio.run(run_all())


@pytest.mark.also("tests/e2e/test_kafka_admin_clients.py::test_admin_client_of_confluent_works")
@pytest.mark.java
def test_kafkas_tools_create_change_and_delete_topics(tmp_path: Path) -> None:
    def scenario(address: str, fill: Callable[[str, int], int]) -> None:
        def topics(*words: str) -> str:
            return tool("topics", "--bootstrap-server", address, *words)

        assert "Created topic t." in topics("--create", "--topic", "t", "--partitions", "2", "--config",
                                            "min.cleanable.dirty.ratio=0.1", "--config", "retention.ms=-1")  # fmt: skip
        with pytest.raises(RuntimeError, match="TopicExistsException"):
            topics("--create", "--topic", "t")
        topics("--create", "--topic", "c", "--config", "cleanup.policy=compact")
        assert topics("--list").split() == ["c", "t"]
        topics("--delete", "--topic", "c")
        told = topics("--describe", "--topic", "t")
        assert re.search(r"PartitionCount: 2\s+ReplicationFactor: 1\s+Configs: ", told)
        assert "min.cleanable.dirty.ratio=0.1" in told and "retention.ms=-1" in told
        assert re.search(r"Partition: 1\s+Leader: 1\s+Replicas: 1\s+Isr: 1\s+Elr: \s+LastKnownElr: ", told)
        topics("--alter", "--topic", "t", "--partitions", "3")
        assert "PartitionCount: 3" in topics("--describe", "--topic", "t")
        assert topics("--describe", "--unavailable-partitions").strip() == ""
        fill("t", 10)
        offsets = tool("get-offsets", "--bootstrap-server", address, "--topic", "t")
        assert offsets.split() == ["t:0:10", "t:1:0", "t:2:0"]
        file = tmp_path / "offsets.json"
        file.write_text(json.dumps({"partitions": [{"topic": "t", "partition": 0, "offset": 4}]}))
        words = ("--bootstrap-server", address, "--offset-json-file", str(file))
        assert "low_watermark: 4" in tool("delete-records", *words)
        for time, expected in (("-2", "4"), ("earliest", "4"), ("max-timestamp", "9"), ("earliest-local", "4")):
            found = tool("get-offsets", "--bootstrap-server", address, "--topic-partitions", "t:0", "--time", time)
            assert found.strip() == f"t:0:{expected}"
        topics("--delete", "--topic", "t")
        assert topics("--list").strip() == ""

    run(tmp_path, scenario)


@pytest.mark.also("tests/e2e/test_kafka_admin_clients.py::test_admin_client_of_confluent_works")
@pytest.mark.java
def test_kafkas_tools_show_and_change_settings_and_sizes(tmp_path: Path) -> None:
    def scenario(address: str, fill: Callable[[str, int], int]) -> None:
        def configs(*words: str) -> str:
            return tool("configs", "--bootstrap-server", address, *words)

        tool("topics", "--bootstrap-server", address, "--create", "--topic", "t")
        named, one = (
            ("--entity-type", "topics", "--entity-name", "t"),
            ("--entity-type", "brokers", "--entity-name", "1"),
        )
        configs("--alter", *named, "--add-config", "retention.ms=5000,flush.messages=7")
        told = configs("--describe", *named)
        assert "retention.ms=5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000" in told
        configs("--alter", *named, "--delete-config", "retention.ms")
        told = configs("--describe", "--all", *named)
        assert (
            "flush.messages=7 " in told
            and "retention.ms=604800000 " in told
            and "min.cleanable.dirty.ratio=0.5" in told
        )
        with pytest.raises(RuntimeError, match=r"retention\.ms=much"):
            configs("--alter", *named, "--add-config", "retention.ms=much")
        configs("--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "log.retention.ms=86400000")
        assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=86400000" in configs("--describe", "--all", *one)
        assert "num.partitions=1 " in configs("--describe", "--all", *one)
        with pytest.raises(RuntimeError, match="read at start only"):
            configs("--alter", *one, "--add-config", "num.partitions=3")
        fill("t", 10)
        sizes = json.loads(tool("log-dirs", "--bootstrap-server", address, "--describe").splitlines()[-1])
        (directory,) = sizes["brokers"][0]["logDirs"]
        assert directory["error"] is None and directory["partitions"][0]["partition"] == "t-0"
        assert directory["partitions"][0]["size"] > 10

    run(tmp_path, scenario)


def only_result(futures: dict[Any, Any]) -> Any:
    """Returns the result of the only future."""
    (future,) = futures.values()
    return future.result(SECONDS)


def test_admin_client_of_confluent_works(tmp_path: Path) -> None:
    def scenario(address: str, fill: Callable[[str, int], int]) -> None:
        client = admin.AdminClient({"bootstrap.servers": address})
        new = admin.NewTopic("t", 2, 1, config={"max.compaction.lag.ms": "7", "segment.ms": "9000"})
        only_result(client.create_topics([new], operation_timeout=SECONDS))
        only_result(client.create_partitions([admin.NewPartitions("t", 3)]))
        described = only_result(client.describe_topics(TopicCollection(["t"]), include_authorized_operations=True))
        assert [(each.id, each.leader.id) for each in described.partitions] == [(0, 1), (1, 1), (2, 1)]
        assert not described.is_internal and described.authorized_operations
        cluster = client.describe_cluster(include_authorized_operations=True).result(SECONDS)
        assert f"{cluster.controller.host}:{cluster.controller.port}" == address and len(cluster.nodes) == 1

        resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, "t")
        shown = only_result(client.describe_configs([resource]))
        assert shown["segment.ms"].value == "9000" and shown["max.compaction.lag.ms"].value == "7"
        assert shown["segment.ms"].source == admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        operation = admin.AlterConfigOpType.SET
        edit = admin.ConfigEntry("segment.ms", "8000", incremental_operation=operation)
        change = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, "t", incremental_configs=[edit])
        only_result(client.incremental_alter_configs([change]))
        assert only_result(client.describe_configs([resource]))["segment.ms"].value == "8000"
        broker = only_result(client.describe_configs([admin.ConfigResource(admin.ConfigResource.Type.BROKER, "1")]))
        assert broker["num.partitions"].value == "1" and broker["default.replication.factor"].is_read_only

        fill("t", 10)
        deleted = only_result(client.delete_records([TopicPartition("t", 0, 4)]))
        assert deleted.low_watermark == 4
        for spec, expected in ((admin.OffsetSpec.earliest(), 4), (admin.OffsetSpec.latest(), 10),
                               (admin.OffsetSpec.max_timestamp(), 9)):  # fmt: skip
            assert only_result(client.list_offsets({TopicPartition("t", 0): spec})).offset == expected
        only_result(client.delete_topics(["t"], operation_timeout=SECONDS))
        assert "t" not in client.list_topics(timeout=SECONDS).topics

    run(tmp_path, scenario)


def test_admin_client_of_kafka_python_works(tmp_path: Path) -> None:
    def scenario(address: str, fill: Callable[[str, int], int]) -> None:
        client = kafka.admin.KafkaAdminClient(bootstrap_servers=address)
        try:
            client.create_topics([kafka.admin.NewTopic("t", 2, 1, topic_configs={"delete.retention.ms": "5"})])
            assert client.list_topics() == ["t"]
            (told,) = client.describe_topics(["t"])
            assert [each["leader_id"] for each in told["partitions"]] == [1, 1]
            client.create_partitions({"t": kafka.admin.NewPartitions(3)})
            assert len(client.describe_topics(["t"])[0]["partitions"]) == 3
            assert client.describe_cluster()["controller_id"] == 1
            client.delete_topics(["t"])
            assert client.list_topics() == []
        finally:
            client.close()

    run(tmp_path, scenario)
