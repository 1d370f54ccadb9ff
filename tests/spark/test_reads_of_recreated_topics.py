"""Tests of a topic that is made again between plan and read: a task reads the planned topic, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_tiered.broker import BrokerClient
from pyspark_tiered.offsets import Bound, BoundKind
from pyspark_tiered.plan import LiveSplit
from pyspark_tiered.reader import SplitPartition, TieredReader
from pyspark_tiered.source import check_options
from tests.e2e.serving import ServeProcess
from tiered.errors import Refused

TOPIC = "again"


def recreate(broker: ServeProcess, *values: int) -> None:
    broker.ask("DELETE", f"/v3/clusters/{cluster_id(broker)}/topics/{TOPIC}")
    broker.create_topic(TOPIC)
    broker.produce(TOPIC, *({"n": n} for n in values))


def cluster_id(broker: ServeProcess) -> str:
    return str(broker.ask("GET", "/v3/clusters")[1]["data"][0]["cluster_id"])


def test_live_split_of_a_recreated_topic_is_refused(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker:
        broker.create_topic(TOPIC)
        broker.produce(TOPIC, *({"n": n} for n in range(50)))
        reader = TieredReader(check_options({"bootstrap": broker.url, "topic": TOPIC}), ("offset", "value"))
        planned = reader.partitions()
        assert sum(rows.num_rows for each in planned for rows in reader.read(each)) == 50
        recreate(broker, *range(100, 160))
        for each in planned:
            assert isinstance(each, SplitPartition) and isinstance(each.split, LiveSplit)
            with pytest.raises(Refused, match="created again"):
                list(reader.read(each))
        assert sum(rows.num_rows for each in reader.partitions() for rows in reader.read(each)) == 60


def test_bounds_of_a_recreated_topic_are_refused(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker:
        broker.create_topic(TOPIC)
        broker.produce(TOPIC, {"n": 1})
        client = BrokerClient(broker.url)
        topic = client.topic(TOPIC)
        recreate(broker, 2)
        with pytest.raises(Refused, match="created again"):
            client.offset(topic, topic.partitions[0], Bound(BoundKind.TIMESTAMP, 0))
