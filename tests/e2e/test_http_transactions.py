"""Tests of `POST /tiered/v1/transactions`: all records and offsets of one request, or none, at any broker."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.http_cluster import HttpCluster, http_cluster
from tests.e2e.http_cluster import run as run_cluster
from tests.e2e.http_site import TEST_SECONDS, HttpBroker, HttpReply, wait_until
from tests.e2e.http_site import run as run_single
from tests.e2e.test_http_login import BASIC, basic, remove_user, set_user
from tests.scenario import run_alone, run_by
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.transactions.body import parse_body
from tiered_api.http.transactions.transactional_ids import IDS_MAX, TransactionalIds

PATH = "/tiered/v1/transactions"


def record(topic: str, partition: int, value: str) -> dict[str, Any]:
    return {"topic_name": topic, "partition_id": partition, "value": {"type": "STRING", "data": value}}


async def commit(where: HttpBroker, records: list[dict[str, Any]], **more: Any) -> HttpReply:
    return await where.ask("POST", PATH, {"records": records, **more})


async def values(where: HttpBroker, topic: str, partition: int, count: int) -> list[str]:
    """Returns the committed values once there are `count`; the markers follow the reply to a transaction."""
    path, at = f"/topics/{topic}/partitions/{partition}/records?timeout=30000", 0
    found: list[str] = []
    while len(found) < count:
        reply = (await where.get(f"{path}&offset={at}")).json
        found += [row["value"] for row in reply["records"]]
        at = reply["next_offset"]
    return found


async def group_offset(where: HttpBroker, group: str) -> int:
    """Returns the committed offset of partition 0 of topic `a`."""
    reply = await where.get(f"{where.cluster}/consumer-groups/{group}/lags/a/partitions/0")
    return reply.json["current_offset"] if reply.status == 200 else -1


@run_by(run_single, "tmp_path")
async def test_broker_without_a_kafka_listener_refuses_transactions_at_once(site: HttpBroker) -> None:
    await site.ask("POST", f"{site.cluster}/topics", {"topic_name": "a"})
    async with asyncio.timeout(120):
        reply = await commit(site, [record("a", 0, "x")])
    assert (reply.status, reply.json["message"]) == (
        400,
        "transactions need a Kafka listener, and this broker has none",
    )


@run_by(run_cluster, "tmp_path")
async def test_any_broker_writes_several_partitions_in_one_transaction(three: HttpCluster) -> None:
    await three.create("a", [1, 2], [2, 3])
    await three.create("b", [3, 1])
    for n, broker in three.brokers.items():
        rows = [record("a", 0, f"x{n}"), record("b", 0, f"y{n}"), record("a", 1, f"z{n}"), record("a", 0, f"w{n}")]
        reply = await commit(broker, rows)
        assert reply.status == 200, reply
        places = [(each["topic_name"], each["partition_id"]) for each in reply.json["records"]]
        assert places == [("a", 0), ("b", 0), ("a", 1), ("a", 0)]
        for each, row in zip(reply.json["records"], rows, strict=True):
            path = f"/topics/{each['topic_name']}/partitions/{each['partition_id']}/records?timeout=30000"
            found = (await three[1].get(f"{path}&offset={each['offset']}&max_bytes=1")).json["records"]
            assert [got["value"] for got in found if got["offset"] == each["offset"]] == [row["value"]["data"]]


@run_by(run_cluster, "tmp_path")
async def test_records_and_offsets_of_a_group_are_committed_together(three: HttpCluster) -> None:
    await three.create("a", [1, 2])
    await three.create("b", [2, 3])
    offsets = [{"topic_name": "a", "partition_id": 0, "offset": 7, "metadata": "m"}]
    group = {"consumer_group_id": "g", "offsets": offsets}
    reply = await commit(three[3], [record("b", 0, "out")], consumer_group=group)
    assert reply.status == 200, reply
    assert reply.json["offsets"] == [{"topic_name": "a", "partition_id": 0, "offset": 7}]
    assert await values(three[1], "b", 0, 1) == ["out"]
    while await group_offset(three[1], "g") != 7:
        await asyncio.sleep(0)
    only = await commit(three[1], [], consumer_group={**group, "offsets": [{**offsets[0], "offset": 9}]})
    assert (only.status, only.json["records"]) == (200, [])
    while await group_offset(three[1], "g") != 9:
        await asyncio.sleep(0)


@run_by(run_cluster, "tmp_path")
async def test_one_refused_record_leaves_nothing_of_the_request(three: HttpCluster) -> None:
    await three.create("a", [1, 2])
    await three.create("small", [2, 3], max_message_bytes="200")
    group = {
        "consumer_group_id": "g",
        "offsets": [{"topic_name": "a", "partition_id": 0, "offset": 7}],
    }
    refused = await commit(three[3], [record("a", 0, "x"), record("small", 0, "y" * 500)], consumer_group=group)
    assert refused.status == 413, refused
    message = refused.json["message"]
    assert message.startswith("nothing was written: records of small-0: ")
    assert message.endswith("(MESSAGE_TOO_LARGE)") and message.count("MESSAGE_TOO_LARGE") == 1
    after = await commit(three[3], [record("a", 0, "z"), record("small", 0, "z")])
    assert after.status == 200, after
    assert await values(three[2], "a", 0, 1) == ["z"]
    assert await values(three[2], "small", 0, 1) == ["z"]
    assert await group_offset(three[1], "g") == -1


@run_by(run_cluster, "tmp_path")
async def test_group_that_knows_no_such_member_refuses_the_transaction(three: HttpCluster) -> None:
    await three.create("a", [1, 2])
    group = {
        "consumer_group_id": "g",
        "generation_id": 3,
        "member_id": "nobody",
        "offsets": [{"topic_name": "a", "partition_id": 0, "offset": 7}],
    }
    refused = await commit(three[1], [record("a", 0, "x")], consumer_group=group)
    why = "the group has been rebalanced meanwhile; read its assignment again (ILLEGAL_GENERATION)"
    assert (refused.status, refused.json["message"]) == (400, f"nothing was written: the offset of a-0: {why}")
    assert (await commit(three[1], [record("a", 0, "y")])).status == 200
    assert await values(three[1], "a", 0, 1) == ["y"]


@run_by(run_cluster, "tmp_path")
async def test_requests_at_once_are_each_whole(three: HttpCluster) -> None:
    await three.create("a", [1, 2], [2, 3], [3, 1])
    requests = [commit(three[1 + n % 3], [record("a", partition, f"{n}") for partition in range(3)]) for n in range(30)]
    assert {reply.status for reply in await asyncio.gather(*requests)} == {200}
    for partition in range(3):
        assert sorted(await values(three[1], "a", partition, 30), key=int) == [f"{n}" for n in range(30)]


@run_by(run_cluster, "tmp_path")
async def test_transaction_outlives_the_loss_of_a_broker(three: HttpCluster) -> None:
    await three.create("a", [2, 1], [3, 1])
    assert (await commit(three[1], [record("a", 0, "0"), record("a", 1, "0")])).status == 200
    lost = asyncio.create_task(three.end(2))
    replies = [await commit(three[1], [record("a", 0, f"{n}"), record("a", 1, f"{n}")]) for n in range(1, 4)]
    await lost
    written = ["0", *(f"{n}" for n, reply in enumerate(replies, 1) if reply.status == 200)]
    assert len(written) > 1, replies
    for partition in range(2):
        assert await values(three[1], "a", partition, len(written)) == written


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({}, 422, "neither records nor offsets"),
        ({"record": []}, 422, "the body has no field 'record'"),
        ({"records": {}}, 422, "records has to be an array"),
        ({"records": [1]}, 422, r"records\[0\]: a record has to be an object"),
        ({"records": [{"value": {"type": "STRING", "data": "x"}}]}, 422, r"records\[0\]: topic_name has to be"),
        ({"records": [{**record("t", 0, "x"), "offset": 1}]}, 422, "has no field 'offset'"),
        (
            {"records": [{**record("t", 0, "x"), "value": {"type": "AVRO", "data": 1}}]},
            422,
            r"records\[0\]: .* formats with a schema",
        ),
        ({"records": [record("t", 0, "x")] * 10_001}, 413, "more than 10000"),
        ({"consumer_group": {"consumer_group_id": "g", "offsets": []}}, 422, "neither records nor offsets"),
        ({"consumer_group": {"offsets": []}}, 422, "consumer_group_id has to be"),
        ({"consumer_group": {"consumer_group_id": "g", "offsets": [{"topic_name": "t"}]}}, 422, "partition_id has to"),
        (
            {
                "consumer_group": {
                    "consumer_group_id": "g",
                    "offsets": [{"topic_name": "t", "partition_id": 0, "offset": n} for n in range(2)],
                }
            },
            422,
            "t-0 has two offsets",
        ),
    ],
)
def test_invalid_body_is_refused_with_its_place(body: dict[str, Any], code: int, words: str) -> None:
    with pytest.raises(HttpError, match=words) as refused:
        parse_body(body, 0)
    assert refused.value.error_code == code


@run_by(run_cluster, "tmp_path")
async def test_unknown_topics_and_partitions_are_refused_before_any_write(three: HttpCluster) -> None:
    await three.create("a", [1, 2])
    none = await commit(three[1], [record("a", 0, "x"), record("none", 0, "x")])
    assert (none.status, none.json["error_code"]) == (404, 40401)
    beyond = await commit(three[1], [record("a", 0, "x"), record("a", 9, "x")])
    assert (beyond.status, beyond.json["error_code"]) == (404, 40402)
    internal = await commit(three[1], [record("__consumer_offsets", 0, "x")])
    assert internal.status in (400, 404), internal
    state = await three[1].get("/tiered/v1/topics/a/partitions/0")
    assert state.json["high_watermark"] == 0


def keyed_body(*records: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"records": list(records), **more}


async def commit_keyed(where: HttpBroker, key: str, body: dict[str, Any]) -> HttpReply:
    return await where.ask("POST", PATH, body, Idempotency_Key=key)


@run_by(run_cluster, "tmp_path")
async def test_transaction_sent_again_gets_the_first_offsets_at_every_broker(three: HttpCluster) -> None:
    await three.create("a", [1, 2], [2, 3])
    await three.create("b", [3, 1])
    keyless = {"topic_name": "a", "value": {"type": "STRING", "data": "k"}, "timestamp": 1_700_000_000_000}
    rows = [{**record("a", 0, "x"), "timestamp": 1}, {**record("b", 0, "y"), "timestamp": 1}, keyless]
    group = {
        "consumer_group_id": "g",
        "offsets": [{"topic_name": "a", "partition_id": 0, "offset": 7}],
    }
    body = keyed_body(*rows, consumer_group=group)
    first = await commit_keyed(three[1], '"one"', body)
    assert first.status == 200, first
    for broker in three.brokers.values():
        again = await commit_keyed(broker, "one", body)
        assert (again.status, again.json) == (200, first.json)
        other = await commit_keyed(broker, "one", keyed_body(record("a", 0, "z")))
        assert (other.status, other.json["error_code"]) == (422, 42209), other
    await three.end(2)
    assert (await commit_keyed(three[3], "one", body)).json == first.json
    assert await values(three[1], "b", 0, 1) == ["y"]
    fresh = await commit_keyed(three[3], "two", keyed_body(record("a", 0, "z")))
    assert fresh.status == 200, fresh
    [place] = first.json["records"][2:]
    expected = ["x", "k", "z"] if place["partition_id"] == 0 else ["x", "z"]
    assert await values(three[1], "a", 0, len(expected)) == expected


@run_by(run_cluster, "tmp_path")
async def test_same_transaction_at_once_is_written_once(three: HttpCluster) -> None:
    await three.create("a", [1, 2], [2, 3])
    body = keyed_body({**record("a", 0, "x"), "timestamp": 1}, {**record("a", 1, "x"), "timestamp": 1})
    replies = await asyncio.gather(*(commit_keyed(three[1 + n % 3], "one", body) for n in range(9)))
    assert {reply.status for reply in replies} <= {200, 409}, replies
    while (last := await commit_keyed(three[2], "one", body)).status == 409:
        await asyncio.sleep(0)
    assert {reply.body for reply in replies if reply.status == 200} <= {last.body}
    assert all(reply.json["error_code"] == 40904 for reply in replies if reply.status == 409)
    assert (await commit(three[1], [record("a", 0, "end")])).status == 200
    assert await values(three[1], "a", 0, 2) == ["x", "end"]


@run_by(run_cluster, "tmp_path")
async def test_refused_transaction_leaves_its_key_unused(three: HttpCluster) -> None:
    await three.create("small", [2, 3], max_message_bytes="200")
    refused = await commit_keyed(three[1], "one", keyed_body(record("small", 0, "y" * 500)))
    assert refused.status == 413, refused
    many = keyed_body(*[record("small", 0, "y" * 90)] * 2_000)
    assert (await commit_keyed(three[1], "one", many)).json["error_code"] == 413
    assert (await commit_keyed(three[3], "one", keyed_body(record("small", 0, "z")))).status == 200
    assert await values(three[2], "small", 0, 1) == ["z"]


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "one"}])
@run_by(run_alone)
async def test_transaction_of_a_user_removed_before_its_turn_writes_nothing(
    *, tmp_path: Path, headers: dict[str, str]
) -> None:
    async with asyncio.timeout(TEST_SECONDS), http_cluster(tmp_path, (1,), authentication_method=BASIC) as one:
        site = one[1]
        await set_user(site, "alice", "wonderland")
        await one.create("t", [1])
        ids = site.http._listener.context.service(TransactionalIds)
        others = AsyncExitStack()
        for _ in range(IDS_MAX):
            await others.enter_async_context(ids.admit(1, ""))
        login = basic("alice", "wonderland")
        body = {"records": [record("t", 0, "x")]}
        sent = asyncio.create_task(site.ask("POST", PATH, body, Authorization=login, **headers))
        await wait_until(lambda: ids.slots.waiting == 1)
        await remove_user(site, "alice")
        await others.aclose()
        reply = await sent
        assert (reply.status, site.broker.leader_replica("t", 0).log.end_offset) == (401, 0), reply
