"""Tests of the lag of groups in the metrics of their coordinator, for partitions of any leader."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e import http_cluster
from tests.e2e.http_cluster import HttpCluster
from tests.e2e.http_site import HttpBroker, run
from tests.e2e.test_http_groups import GROUP, fill, join_group
from tests.metric_samples import samples
from tests.scenario import run_by
from tiered.controller.requests import DeleteTopic
from tiered.errors import Code, Refused
from tiered.groups.requests import CommitOffsets, ConsumerHeartbeat, PartitionOffset
from tiered.ids import TopicPartition
from tiered.metrics import OTHERS
from tiered_api.http import group_lags
from tiered_api.http.consumers.coordinator_calls import find_coordinator

Found = dict[tuple[str, ...], float]


@pytest.fixture(autouse=True)
def no_lag_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lags, "REFRESH_INTERVAL_MS", 0)


async def commit(site: HttpBroker, group: str, *offsets: tuple[str, int, int]) -> None:
    """(topic, partition, offset)."""
    done = await site.broker.group_coordinators.submit(
        group, CommitOffsets(group, tuple(PartitionOffset(*each) for each in offsets))
    )
    assert set(done.codes) == {Code.NONE}


async def commit_at_coordinator(three: HttpCluster, group: str, *offsets: tuple[str, int, int]) -> HttpBroker:
    """Commits as a client does, which asks again for a coordinator that does not serve yet. Returns its broker."""
    async with asyncio.timeout(120):
        while True:
            home = three[await find_coordinator(three[1].http._listener.context, group)]
            try:
                await commit(home, group, *offsets)
            except Refused as refused:
                assert refused.code in (Code.NOT_COORDINATOR, Code.COORDINATOR_LOAD_IN_PROGRESS)
                await asyncio.sleep(0.01)
            else:
                return home


async def next_ms(site: HttpBroker) -> None:
    """Waits until the clock of the broker shows a later time than at the call: two looks can share a millisecond."""
    began = site.broker.world.clock.wall_ms()
    async with asyncio.timeout(60):
        while site.broker.world.clock.wall_ms() <= began:
            await asyncio.sleep(0.001)


async def read_samples(site: HttpBroker, name: str) -> Found:
    answer = await site.get("/metrics")
    assert answer.status == 200
    return samples(answer.body.decode(), name)


@run_by(run, "tmp_path")
async def test_lag_is_the_sum_over_partitions_and_the_age_of_the_oldest(site: HttpBroker) -> None:
    await site.create("t", partitions=2)
    await site.produce("t", *"abcde")
    await site.produce("t", *"abc", partition=1)
    assert await read_samples(site, "kafka_consumergroup_lag_sum") == {}
    await commit(site, "g", ("t", 0, 2), ("t", 1, 3))
    await commit(site, "done", ("t", 1, 3))
    assert await read_samples(site, "kafka_consumergroup_lag_sum") == {("g", "t"): 3, ("done", "t"): 0}
    assert await read_samples(site, "kafka_consumergroup_current_offset_sum") == {("g", "t"): 5, ("done", "t"): 3}
    held = site.broker.hosted_replicas.find_leader(TopicPartition("t", 0))
    assert held is not None
    began = held.log.segments.created_ms(2)
    behind = await read_samples(site, "kafka_consumergroup_lag_seconds")
    assert behind["done", "t"] == 0
    assert 0 < behind["g", "t"] <= (site.broker.world.clock.wall_ms() - began) / 1000 + 0.001
    await commit(site, "g", ("t", 0, 5))
    assert (await read_samples(site, "kafka_consumergroup_lag_seconds"))["g", "t"] == 0
    await site.produce("t", "f")
    first = await read_samples(site, "kafka_consumergroup_lag_seconds")
    await next_ms(site)
    second = await read_samples(site, "kafka_consumergroup_lag_seconds")
    assert 0 <= first["g", "t"] < second["g", "t"] < behind["g", "t"] + 60, "since the last look that had none"
    assert (await read_samples(site, "kafka_consumergroup_lag_sum"))["g", "t"] == 1
    await site.broker.submit(DeleteTopic("t"))
    assert await read_samples(site, "kafka_consumergroup_lag_sum") == {}


@run_by(run, "tmp_path")
async def test_partition_of_a_member_counts_before_its_first_commit(site: HttpBroker) -> None:
    await fill(site)
    joined = await join_group(site, TopicPartition("t", 0), TopicPartition("t", 1))
    assert await read_samples(site, "kafka_consumergroup_lag_sum") == {(GROUP, "t"): 10}
    await next_ms(site)
    assert (await read_samples(site, "kafka_consumergroup_lag_seconds"))[GROUP, "t"] > 0
    assert await read_samples(site, "kafka_consumergroup_current_offset_sum") == {(GROUP, "t"): 0}
    mine = CommitOffsets(GROUP, (PartitionOffset("t", 1, 3),), joined.generation, joined.member_id)
    assert (await site.broker.group_coordinators.submit(GROUP, mine)).codes == (Code.NONE,)
    assert await read_samples(site, "kafka_consumergroup_lag_sum") == {(GROUP, "t"): 5 + 2}
    joins = ConsumerHeartbeat("new", "m", 0, topics=("t",), owned={}, rebalance_timeout_ms=60_000, assignor="uniform")
    assert (await site.broker.group_coordinators.submit("new", joins)).code is Code.NONE
    assert await read_samples(site, "kafka_consumergroup_lag_sum") == {(GROUP, "t"): 5 + 2, ("new", "t"): 10}


@run_by(run, "tmp_path", tiered_metrics_max_group_topics=3)
async def test_groups_above_the_limit_share_a_label(site: HttpBroker) -> None:
    await site.create("t")
    await site.create("u")
    await site.produce("t", *"abcde")
    for number in range(4):
        await commit(site, f"g{number}", ("t", 0, number), ("u", 0, 0))
        await read_samples(site, "kafka_consumergroup_lag_sum")
    found = await read_samples(site, "kafka_consumergroup_lag_sum")
    assert found == {("g0", "t"): 5, ("g0", "u"): 0, ("g1", "t"): 4, (OTHERS, OTHERS): 5}


@run_by(http_cluster.run, "tmp_path")
async def test_lag_includes_partitions_that_other_brokers_lead(three: HttpCluster) -> None:
    await three.create("t", [1], [2], [3])
    for p in range(3):
        await three[1].produce("t", *"abcd"[: p + 2], partition=p)
    home = await commit_at_coordinator(three, GROUP, ("t", 0, 1), ("t", 1, 1))
    assert await read_samples(home, "kafka_consumergroup_lag_sum") == {(GROUP, "t"): 1 + 2}
    await join_group(home, *(TopicPartition("t", p) for p in range(3)))
    assert await read_samples(home, "kafka_consumergroup_lag_sum") == {(GROUP, "t"): 1 + 2 + 4}
    others = [each for each in three.brokers.values() if each is not home]
    for each in others:
        assert await read_samples(each, "kafka_consumergroup_lag_sum") == {}, "each group is named by one broker"
    gone = others[0].number
    await three.end(gone)
    async with asyncio.timeout(120):
        found = await read_samples(home, "kafka_consumergroup_lag_sum")
    assert found == {(GROUP, "t"): 7}, "the ends and starts of before count"
