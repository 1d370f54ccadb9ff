"""Tests of consumer groups over REST v3, beside a member that the coordinator knows."""

from __future__ import annotations

from typing import Any

from tests.e2e.http_site import RAW, HttpBroker, run
from tests.scenario import run_by
from tiered.errors import Code
from tiered.groups.requests import (
    CommitOffsets,
    ConsumerHeartbeat,
    JoinGroup,
    JoinGroupReply,
    PartitionOffset,
    SyncGroup,
)
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.records.batch import encode_batch
from tiered_api.kafka.client.group_member import write_assignment

GROUP = "readers"


async def join_and_commit(site: HttpBroker, *mine: TopicPartition) -> str:
    """Joins a group of one member with these partitions, and commits offsets of all; returns its id."""
    got = await join_group(site, *mine)
    offsets = tuple(PartitionOffset(topic, partition, 2 + partition) for topic, partition in mine)
    done = await site.broker.group_coordinators.submit(
        GROUP, CommitOffsets(GROUP, offsets, got.generation, got.member_id)
    )
    assert done.codes[0] is Code.NONE
    return got.member_id


async def join_group(site: HttpBroker, *mine: TopicPartition) -> JoinGroupReply:
    """Joins a group of one member with these partitions."""
    ask = site.broker.group_coordinators.submit
    join = JoinGroup(GROUP, "", None, "app", "/here", 30_000, 30_000, "consumer", (("range", b"\0\0"),))
    first: JoinGroupReply = await ask(GROUP, join)
    assert first.code is Code.MEMBER_ID_REQUIRED
    again = JoinGroup(GROUP, first.member_id, None, "app", "/here", 30_000, 30_000, "consumer", (("range", b"\0\0"),))
    got: JoinGroupReply = await ask(GROUP, again)
    sync = SyncGroup(GROUP, got.generation, got.member_id, assignments=((got.member_id, write_assignment(mine)),))
    assert (await ask(GROUP, sync)).code is Code.NONE
    return got


async def fill(site: HttpBroker) -> None:
    """Creates a topic of two partitions with five records each."""
    await site.create("t", partitions=2)
    for partition in (0, 1):
        await site.produce("t", *map(str, range(5)), partition=partition)


@run_by(run, "tmp_path")
async def test_groups_members_assignments_and_lags_are_shown(site: HttpBroker) -> None:
    await fill(site)
    member = await join_and_commit(site, TopicPartition("t", 0), TopicPartition("t", 1))

    async def get(path: str) -> Any:
        answer = await site.get(f"{site.cluster}/consumer-groups{path}")
        assert answer.status == 200, answer
        return answer.json

    (listed,) = (await get(""))["data"]
    group = await get(f"/{GROUP}")
    assert listed == group
    shown = {name: group[name] for name in ("state", "type", "partition_assignor", "is_simple")}
    assert shown == {"state": "STABLE", "type": "CLASSIC", "partition_assignor": "range", "is_simple": False}
    (consumer,) = (await get(f"/{GROUP}/consumers"))["data"]
    assert consumer == await get(f"/{GROUP}/consumers/{member}")
    assert (consumer["consumer_id"], consumer["client_id"], consumer["instance_id"]) == (member, "app", None)
    assigned = (await get(f"/{GROUP}/consumers/{member}/assignments"))["data"]
    assert [(each["topic_name"], each["partition_id"]) for each in assigned] == [("t", 0), ("t", 1)]
    assert assigned[1] == await get(f"/{GROUP}/consumers/{member}/assignments/t/partitions/1")
    lags = (await get(f"/{GROUP}/lags"))["data"]
    assert [(each["current_offset"], each["log_end_offset"], each["lag"]) for each in lags] == [
        (2, 5, 3),
        (3, 5, 2),
    ]
    assert lags[0] == await get(f"/{GROUP}/lags/t/partitions/0")
    assert lags[0]["consumer_id"] == member
    summary = await get(f"/{GROUP}/lag-summary")
    assert (summary["total_lag"], summary["max_lag"], summary["max_lag_partition_id"]) == (5, 3, 0)
    assert summary["max_lag_consumer_id"] == member


@run_by(run, "tmp_path")
async def test_consumer_group_is_shown_with_its_type_and_members(site: HttpBroker) -> None:
    await fill(site)
    heartbeat = ConsumerHeartbeat(GROUP, "a", 0, rebalance_timeout_ms=9_000, topics=("t",), owned={}, client_id="app")
    joined = await site.broker.group_coordinators.submit(GROUP, heartbeat)
    assert joined.code is Code.NONE
    group = (await site.get(f"{site.cluster}/consumer-groups/{GROUP}")).json
    assert (await site.get(f"{site.cluster}/consumer-groups")).json["data"] == [group]
    shown = [group[name] for name in ("state", "type", "partition_assignor", "is_simple")]
    assert shown == ["STABLE", "CONSUMER", "uniform", False]
    path = f"{site.cluster}/consumer-groups/{GROUP}/consumers/a/assignments"
    assigned = (await site.get(path)).json["data"]
    assert [(each["topic_name"], each["partition_id"]) for each in assigned] == [("t", 0), ("t", 1)]


@run_by(run, "tmp_path")
async def test_offset_above_the_end_has_a_negative_lag(site: HttpBroker) -> None:
    await fill(site)
    offsets = (PartitionOffset("t", 0, 9), PartitionOffset("t", 1, 4))
    await site.broker.group_coordinators.submit(GROUP, CommitOffsets(GROUP, offsets))
    path = f"{site.cluster}/consumer-groups/{GROUP}"
    assert [each["lag"] for each in (await site.get(f"{path}/lags")).json["data"]] == [-4, 1]
    summary = (await site.get(f"{path}/lag-summary")).json
    assert (summary["total_lag"], summary["max_lag"], summary["max_lag_partition_id"]) == (1, 1, 1)


@run_by(run, "tmp_path")
async def test_missing_group_or_member_is_404(site: HttpBroker) -> None:
    groups = f"{site.cluster}/consumer-groups"
    assert (await site.get(groups)).json["data"] == []
    await fill(site)
    await join_and_commit(site, TopicPartition("t", 0))
    for path, code in {
        "/nobody": 40405,
        "/nobody/lags": 40405,
        f"/{GROUP}/consumers/x": 404,
        f"/{GROUP}/lags/t/partitions/1": 40403,
    }.items():
        answer = await site.get(groups + path)
        assert (answer.status, answer.json["error_code"]) == (404, code), path


@run_by(run, "tmp_path")
async def test_batches_for_an_internal_topic_are_refused(site: HttpBroker) -> None:
    await site.create("t")
    await join_and_commit(site, TopicPartition("t", 0))
    batch = bytes(encode_batch([(0, b"k", b"v", ())]))
    seen = set()
    for partition in range(len(site.broker.image.topics[OFFSETS_TOPIC].partitions)):
        path = f"/topics/{OFFSETS_TOPIC}/partitions/{partition}/records"
        seen.add((await site.ask("POST", path, batch, kind=RAW)).status)
    assert seen == {400}
