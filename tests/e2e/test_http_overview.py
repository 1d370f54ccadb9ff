"""Tests of the cluster's state over HTTP: health, topics, tiers and groups, the same from each broker."""

from __future__ import annotations

import pytest

from tests.e2e.http_cluster import HttpCluster, run
from tests.e2e.http_site import HttpBroker, wait_until
from tests.e2e.http_site import run as run_one
from tests.e2e.test_http_cluster import write
from tests.e2e.test_http_groups import GROUP, fill, join_and_commit
from tests.scenario import run_by
from tiered.ids import TopicPartition
from tiered_api.http.exchange.context import INLINE_BYTES
from tiered_api.http.overview import cluster
from tiered_api.kafka.server.context import replica_storage

OFFSETS = ("log_start_offset", "local_start_offset", "cold_end_offset", "last_stable_offset", "high_watermark")


@run_by(run, "tmp_path")
async def test_tiers_of_a_topic_are_the_same_from_each_broker(
    three: HttpCluster, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three.create("t", [1, 2], [2, 3], [3, 1])
    for partition in range(3):
        await write(three[1], "t", partition, "a", "b")
    first = (await three[1].get("/tiered/v1/topics/t/storage")).json
    for number, row in enumerate(first["partitions"]):
        assert (row["partition"], row["leader"], row["isr"]) == (number, number + 1, row["replicas"])
        assert (row["high_watermark"], row["last_stable_offset"], row["log_start_offset"]) == (2, 2, 0)
        assert row["local_bytes"] > 0 and row["cold_bytes"] == 0 and not row["cold_end_offset"]
        assert row.keys() >= set(OFFSETS)
    for broker in (three[2], three[3]):
        assert (await broker.get("/tiered/v1/topics/t/storage")).json["partitions"] == first["partitions"]
        marked = (await broker.get("/tiered/v1/topics/t/storage?marks=8")).json["partitions"]
        assert [[offset for offset, _ in row["time_marks"]] for row in marked] == [[0, 2]] * 3
        assert all(ms > 1_700_000_000_000 for row in marked for _, ms in row["time_marks"])
    assert [row["cleaned_to_offset"] for row in first["partitions"]] == [None] * 3
    monkeypatch.setattr(replica_storage, "find_cleaned_to", lambda replica: 1 + replica.tp.partition)
    for broker in three.brokers.values():
        rows = (await broker.get("/tiered/v1/topics/t/storage")).json["partitions"]
        assert [row["cleaned_to_offset"] for row in rows] == [1, 2, 3]
    assert (await three[1].get("/tiered/v1/topics/t/storage?marks=x")).status == 400
    assert (await three[1].get("/tiered/v1/topics/absent/storage")).json["error_code"] == 40401


@run_by(run_one, "tmp_path")
async def test_groups_of_a_topic_are_shown_with_their_offsets_and_lag(site: HttpBroker) -> None:
    await fill(site)
    await join_and_commit(site, TopicPartition("t", 0), TopicPartition("t", 1))
    await site.create("other")
    why = {each["code"]: each for each in (await site.get(f"/tiered/v1/groups/{GROUP}/explain")).json["facts"]}
    assert why.keys() == {"state", "lag"} and why["state"]["values"]["since_ms"] > 0
    assert why["lag"]["values"]["lag"] == 2 and why["lag"]["values"]["oldest_unread_ms"] > 0
    assert (await site.get("/tiered/v1/groups/nobody/explain")).json["error_code"] == 40405
    found = (await site.get("/tiered/v1/topics/t/groups")).json
    assert found["groups"] == [{"group": GROUP, "state": "Stable", "lag": 5, "offsets": {"0": 2, "1": 3}}]
    assert (await site.get("/tiered/v1/topics/other/groups")).json["groups"] == []


@run_by(run, "tmp_path")
async def test_health_of_the_cluster_names_a_broker_that_is_gone(three: HttpCluster) -> None:
    await three.create("t", [1, 2, 3], [2, 3, 1])
    good = (await three[1].get("/tiered/v1/cluster")).json
    assert good["healthy"] and not good["partial"] and [each["state"] for each in good["brokers"]] == ["live"] * 3
    assert [each["leaders"] for each in good["brokers"]] == [1, 1, 0] and good["partition_count"] == 2
    await write(three[1], "t", 1, "a", "b")
    figures = {each["node_id"]: each["figures"] for each in (await three[1].get("/tiered/v1/cluster")).json["brokers"]}
    assert [figures[node]["kafka_server_brokertopicmetrics_messagesin_total"] for node in (1, 2, 3)] == [0, 2, 0]
    assert all(each["tiered_store_requests_total"]["put"] > 0 for each in figures.values())
    await three.end(3)
    await wait_until(lambda: not three[1].broker.image.brokers[3].live)
    bad = (await three[1].get("/tiered/v1/cluster")).json
    assert not bad["healthy"] and bad["nodes_down"] == [3] and "under-replicated partitions" in bad["reasons"]
    assert [each["problems"] for each in bad["partitions"]] == [["under-replicated"]] * 2
    assert all(each["since_ms"] > 0 for each in bad["partitions"])
    assert (await three[2].get("/tiered/v1/cluster")).json["nodes_down"] == [3]


@run_by(run, "tmp_path")
async def test_lists_of_a_health_report_are_cut(three: HttpCluster, *, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may be gone that has replicas of all of a hundred thousand partitions."""
    monkeypatch.setattr(cluster, "LISTED_MAX", 1)
    monkeypatch.setattr(cluster, "PARTITION_BYTES", INLINE_BYTES + 1)  # the verdict is made in a thread
    await three.create("t", [1, 2, 3], [2, 3, 1])
    await three.end(3)
    await wait_until(lambda: not three[1].broker.image.brokers[3].live)
    found = (await three[1].get("/tiered/v1/cluster")).json
    assert not found["healthy"] and found["nodes_down"] == [3] and len(found["brokers"]) == 3
    assert len(found["partitions"]) == len(found["under_replicated_partitions"]) == 1
    assert found["partitions_left_out"] == 1


@run_by(run, "tmp_path")
async def test_topics_in_short_tell_what_each_lacks(three: HttpCluster) -> None:
    await three.create("t", [1], [3])
    await three.end(3)
    await wait_until(lambda: not three[1].broker.image.brokers[3].live)
    [row] = (await three[1].get("/tiered/v1/topics")).json["topics"]
    assert row == {
        "name": "t", "topic_id": row["topic_id"], "is_internal": False, "partitions": 2, "replication_factor": 1,
        "leaderless": 1, "under_replicated": 1,
    }  # fmt: skip
