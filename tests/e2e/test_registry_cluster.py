"""The schema registry on three brokers: any of them reads and writes, and the leader of the log may die (I37)."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.http_cluster import ClusterBroker, HttpCluster, run
from tests.e2e.serving import ServeProcess
from tests.e2e.test_registry import avro, register
from tests.scenario import run_by
from tiered.errors import Refused, Unavailable
from tiered.ids import TopicId
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.remote_brokers import RemoteBrokers
from tiered_api.http.registry.schema_log import SCHEMAS_TOPIC

LEADER = 2


async def create_log(three: HttpCluster) -> None:
    await three.create(SCHEMAS_TOPIC, [LEADER, 3, 1], cleanup_policy="compact")


async def ids_of(broker: ClusterBroker, subject: str) -> list[int]:
    versions = (await broker.get(f"/subjects/{subject}/versions")).json
    return [(await broker.get(f"/subjects/{subject}/versions/{each}")).json["id"] for each in versions]


@run_by(run, "tmp_path")
async def test_any_broker_registers_and_all_give_the_same_ids(three: HttpCluster) -> None:
    """Brokers race for the same offsets of the log: each loses some, and no id stands for two schemas."""
    await create_log(three)
    brokers = list(three.brokers.values())
    assert await register(three[1], "first", avro("a")) == 1
    bodies = [avro("a", f"f{n % 5}") for n in range(15)]
    jobs = [register(brokers[n % 3], f"s{n % 2}", body) for n, body in enumerate(bodies)]
    ids = await asyncio.gather(*jobs)
    assert [ids[n % 5] for n in range(15)] == ids
    assert sorted(set(ids)) == [2, 3, 4, 5, 6]
    for path in ("/subjects", "/schemas", "/subjects/s0/versions", *(f"/schemas/ids/{each}" for each in set(ids))):
        await three.get_from_all(path)
    log = (await brokers[0].get(f"/topics/{SCHEMAS_TOPIC}/partitions/0/records")).json["records"]
    written = [json.loads(each["value"]) for each in log]
    assert len({(each["subject"], each["version"]) for each in written}) == len(written), "no version is written over"


@run_by(run, "tmp_path")
async def test_registry_goes_on_after_its_leader_died(three: HttpCluster) -> None:
    await create_log(three)
    acknowledged: dict[int, str] = {}

    async def register_until_end(broker: ClusterBroker) -> None:
        for n in range(12):
            subject = f"s{broker.number}-{n}"
            acknowledged[await register(broker, subject, avro(f"f{broker.number}x{n}"))] = subject

    async def end_leader() -> None:
        while len(acknowledged) < 5:
            await asyncio.sleep(0)
        await three.end(LEADER)

    await asyncio.gather(register_until_end(three[1]), register_until_end(three[3]), end_leader())
    assert len(acknowledged) == 24, "each id was given once"
    for broker in three.brokers.values():
        for id, subject in acknowledged.items():
            assert (await broker.get(f"/schemas/ids/{id}/subjects")).json == [subject]
    assert await register(three[1], "after", avro("a")) == max(acknowledged) + 1


@run_by(run, "tmp_path")
async def test_write_with_a_lost_reply_is_acknowledged_once(three: HttpCluster) -> None:
    """The record is there, but its writer cannot know: it reads the log, and finds its own record."""
    await create_log(three)
    assert await register(three[LEADER], "first", avro("a")) == 1
    append, calls = RemoteBrokers.append_at, []

    async def append_and_lose_reply(self: RemoteBrokers, *args: Any) -> None:
        calls.append(args)
        await append(self, *args)
        raise Unavailable("the reply is lost")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteBrokers, "append_at", append_and_lose_reply)
        assert await register(three[1], "lost", avro("b")) == 2
    assert len(calls) == 1
    assert await ids_of(three[3], "lost") == [2]


@run_by(run, "tmp_path")
async def test_append_at_another_offset_or_epoch_is_refused(three: HttpCluster) -> None:
    await create_log(three)
    await register(three[1], "first", avro("a"))
    replica = three[LEADER].broker.leader_replica(SCHEMAS_TOPIC, 0)
    end, remote = replica.log.end_offset, RemoteBrokers(three[1].broker)
    leader = remote.leader(replica.tp, replica.topic_id)
    codes = []
    for offset, epoch, topic_id in (
        (end - 1, leader.epoch, replica.topic_id),
        (end + 1, leader.epoch, replica.topic_id),
        (end, leader.epoch + 1, replica.topic_id),
        (end, leader.epoch, TopicId("AAAAAAAAAAAAAAAAAAAAAQ")),
    ):
        try:
            await remote.append_at(leader._replace(epoch=epoch), replica.tp, topic_id, b"", offset, 5_000)
        except (Refused, HttpError) as refused:
            codes.append(getattr(refused, "code", None))
    await remote.close()
    assert [getattr(each, "name", "") for each in codes] == [
        "OFFSET_OUT_OF_RANGE", "OFFSET_OUT_OF_RANGE", "NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_ID",
    ]  # fmt: skip
    assert replica.log.end_offset == end


def test_registry_comes_back_from_the_bucket_after_its_disk_is_lost(tmp_path: Path) -> None:
    """The bucket has the segments of `_schemas`; the log of the killed process is never seen again."""
    store = ("--store", f"file://{tmp_path}/bucket")
    soon = ("-c", "tiered.upload.max.lag.ms=1", "-c", "log.retention.check.interval.ms=20")
    with ServeProcess(tmp_path / "old", *store, *soon) as broker:
        for n in range(3):
            status, reply = broker.ask("POST", f"/subjects/s{n}/versions", avro(f"f{n}"))
            assert (status, reply["id"]) == (200, n + 1)
        broker.wait_for_offset(SCHEMAS_TOPIC, "cold_end_offset", 3)
        broker.stop(signal.SIGKILL)
    shutil.rmtree(tmp_path / "old")
    with ServeProcess(tmp_path / "new", *store) as broker:
        assert broker.ask("GET", "/subjects") == (200, ["s0", "s1", "s2"])
        assert broker.ask("GET", "/schemas/ids/2/subjects") == (200, ["s1"])
        assert broker.ask("POST", "/subjects/s3/versions", avro("f3"))[1]["id"] == 4
