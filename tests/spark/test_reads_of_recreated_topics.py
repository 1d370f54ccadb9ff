"""Tests of a topic that is made again between plan and read: a task reads the planned topic, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_tiered.log.broker import BrokerClient
from pyspark_tiered.log.offsets import CUT, Bound, BoundKind, Cut
from pyspark_tiered.log.plan import LiveSplit
from pyspark_tiered.reader import SplitPartition, TieredReader
from pyspark_tiered.source import check_options
from tests.e2e.serving import ServeProcess
from tests.spark import filling
from tiered.errors import Refused
from tiered.ids import PartitionId

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


def test_cut_of_a_topic_reads_its_ranges_of_that_topic_alone(tmp_path: Path) -> None:
    store, identity = f"file://{tmp_path}/store", filling.topic_id(1)
    filling.create_topic(store, TOPIC, identity, 2)
    for partition in (0, 1):
        rows = [(filling.BASE_MS + n, b"k", b"v", ()) for n in range(9)]
        filling.upload(store, TOPIC, PartitionId(identity, partition), list(filling.segments(rows, base_offset=0)))
    options = {"store": store, "topic": TOPIC, CUT: Cut(identity, {0: (2, 7)}).to_option()}
    reader = TieredReader(check_options(options), ("partition", "offset"))
    found = [row for each in reader.partitions() for rows in reader.read(each) for row in rows.to_pylist()]
    assert found == [{"partition": 0, "offset": n} for n in range(2, 7)], "partition 1 came after the cut"
    filling.delete_topic(store, identity)
    filling.create_topic(store, TOPIC, filling.topic_id(2), 1)
    with pytest.raises(Refused, match="created again"):
        reader.partitions()
    with pytest.raises(Refused, match=r"cut is for pyspark_tiered\.table alone"):
        TieredReader(check_options(options | {CUT: "{}"}), ("offset",))


def test_bounds_of_a_recreated_topic_are_refused(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker:
        broker.create_topic(TOPIC)
        broker.produce(TOPIC, {"n": 1})
        client = BrokerClient(broker.url)
        topic = client.topic(TOPIC)
        recreate(broker, 2)
        with pytest.raises(Refused, match="created again"):
            client.offset(topic, topic.partitions[0], Bound(BoundKind.TIMESTAMP, 0))
