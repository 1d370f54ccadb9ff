"""Tests of REST v2 consumers: the requests of clients of the REST Proxy, and the replies that they rely on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.http_site import TEST_SECONDS, HttpBroker, HttpReply, http_broker, run
from tests.scenario import run_alone, run_by
from tiered.controller.requests import DeleteTopic
from tiered.errors import Code
from tiered.groups.requests import CommitTransactionalOffsets, FetchOffsets, PartitionOffset
from tiered.ids import TopicPartition
from tiered.records.marker import TransactionMarker
from tiered.shard import ProducerIdAndEpoch
from tiered_api.http.consumers.member import encode_metadata, user_data_of

V2 = "application/vnd.kafka.v2+json"
JSON = "application/vnd.kafka.json.v2+json"
BINARY = "application/vnd.kafka.binary.v2+json"


class HttpConsumer:
    """One consumer instance, as its client sees it."""

    def __init__(self, where: HttpBroker, path: str) -> None:
        self.site = where
        self.path = path

    @classmethod
    async def create(cls, where: HttpBroker, group: str, name: str = "", **choices: Any) -> HttpConsumer:
        dotted = {key.replace("_", "."): value for key, value in choices.items()}
        body = {"format": "json", "auto.offset.reset": "earliest", **({"name": name} if name else {}), **dotted}
        made = await where.ask("POST", f"/consumers/{group}", body, kind=V2)
        assert made.status == 200, made
        assert made.json["base_uri"] == f"{where.url}/consumers/{group}/instances/{made.json['instance_id']}"
        return cls(where, made.json["base_uri"].removeprefix(where.url))

    async def ask(self, method: str, below: str, body: Any = None, accept: str = "") -> HttpReply:
        return await self.site.ask(method, f"{self.path}{below}", body, kind=V2, accept=accept)

    async def ask_without_reply(self, method: str, below: str, body: Any = None) -> None:
        answer = await self.ask(method, below, body)
        assert (answer.status, answer.body) == (204, b""), answer

    async def read(self, count: int) -> list[Any]:
        """Reads until there are so many rows; a read may be empty during a rebalance."""
        rows: list[Any] = []
        async with asyncio.timeout(TEST_SECONDS):
            while len(rows) < count:
                answer = await self.ask("GET", "/records", accept=JSON)
                assert answer.status == 200, answer
                rows += answer.json
        return rows

    async def partitions(self) -> list[TopicPartition]:
        rows = (await self.ask("GET", "/assignments")).json["partitions"]
        return sorted(TopicPartition(row["topic"], row["partition"]) for row in rows)


def values(rows: list[Any]) -> list[Any]:
    return [row["value"] for row in rows]


@run_by(run, "tmp_path")
async def test_consumer_subscribes_reads_commits_and_leaves(where: HttpBroker) -> None:
    await where.create("t")
    await where.produce("t", '"a"', '"b"')
    one = await HttpConsumer.create(where, "g", "one", auto_commit_enable="false")
    await one.ask_without_reply("POST", "/subscription", {"topics": ["t"]})
    assert (await one.ask("GET", "/subscription")).json == {"topics": ["t"]}
    rows = await one.read(2)
    assert rows[0] == {"topic": "t", "key": None, "value": "a", "partition": 0, "offset": 0}
    asked = {"partitions": [{"topic": "t", "partition": 0}]}
    assert (await one.ask("GET", "/offsets", asked)).json == {"offsets": []}
    committed = await one.ask("POST", "/offsets")
    assert committed.json == [{"topic": "t", "partition": 0, "consumed": 2, "committed": 2}]
    (row,) = (await one.ask("GET", "/offsets", asked)).json["offsets"]
    assert (row["offset"], row["metadata"]) == (2, "")
    named = {"offsets": [{"topic": "t", "partition": 0, "offset": 0, "metadata": "why"}]}
    assert (await one.ask("POST", "/offsets", named)).status == 200
    (row,) = (await one.ask("GET", "/offsets", asked)).json["offsets"]
    assert (row["offset"], row["metadata"]) == (1, "why"), "the record at 0 is dealt with"
    await one.ask_without_reply("DELETE", "")
    assert (await one.ask("GET", "/records")).json["error_code"] == 40403
    again = await HttpConsumer.create(where, "g", "one")
    await again.ask_without_reply("POST", "/subscription", {"topics": ["t"]})
    assert values(await again.read(1)) == ["b"], "goes on at what was committed"


@run_by(run, "tmp_path")
async def test_commit_of_what_was_read_leaves_out_deleted_topics(where: HttpBroker) -> None:
    for topic in ("t", "u"):
        await where.create(topic)
        await where.produce(topic, '"a"', '"b"')
    one = await HttpConsumer.create(where, "g", "one", auto_commit_enable="false")
    mine = [{"topic": topic, "partition": 0} for topic in ("t", "u")]
    await one.ask_without_reply("POST", "/assignments", {"partitions": mine})
    assert sorted(values(await one.read(4))) == ["a", "a", "b", "b"]
    await where.broker.submit(DeleteTopic("t"))
    committed = await one.ask("POST", "/offsets")
    assert committed.json == [{"topic": "u", "partition": 0, "consumed": 2, "committed": 2}]
    fetched = await where.broker.group_coordinators.submit("g", FetchOffsets("g", None))
    assert [(row.topic, row.offset) for row in fetched.offsets] == [("u", 2)]


@run_by(run, "tmp_path")
async def test_topic_made_again_has_no_named_offsets_of_the_deleted_one(where: HttpBroker) -> None:
    await where.create("t")
    await where.produce("t", '"a"', '"b"', '"c"')
    one = await HttpConsumer.create(where, "g", "one", auto_commit_enable="false")
    await one.ask_without_reply("POST", "/assignments", {"partitions": [{"topic": "t", "partition": 0}]})
    assert values(await one.read(3)) == ["a", "b", "c"]
    named = {"offsets": [{"topic": "t", "partition": 0, "offset": 1}]}
    asked = {"partitions": [{"topic": "t", "partition": 0}]}
    assert (await one.ask("POST", "/offsets", named)).status == 200
    await where.broker.submit(DeleteTopic("t"))
    await where.create("t")
    await where.produce("t", '"x"', '"y"', '"z"')
    assert (await one.ask("GET", "/offsets", asked)).json == {"offsets": []}
    refused = await one.ask("POST", "/offsets", named)
    assert (refused.status, refused.json["error_code"]) == (404, 40403), "it has read the deleted topic"
    assert values(await one.read(3)) == ["x", "y", "z"]
    assert (await one.ask("POST", "/offsets", named)).status == 200
    (row,) = (await one.ask("GET", "/offsets", asked)).json["offsets"]
    assert row["offset"] == 2


@run_by(run, "tmp_path")
async def test_waiting_read_returns_at_once_when_a_record_arrives(where: HttpBroker) -> None:
    await where.create("t")
    one = await HttpConsumer.create(where, "g", consumer_request_timeout_ms="20000")
    await one.ask_without_reply("POST", "/assignments", {"partitions": [{"topic": "t", "partition": 0}]})
    waiting = asyncio.create_task(one.ask("GET", "/records", accept=JSON))
    while not where.broker.leader_replica("t", 0).reads._parked:  # until it waits
        await asyncio.sleep(0)
    await where.produce("t", "1")
    async with asyncio.timeout(120):
        assert values((await waiting).json) == [1]


@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0)
async def test_consumers_of_a_group_share_its_partitions(where: HttpBroker) -> None:
    async def wait_assignment(*consumers: HttpConsumer) -> list[list[TopicPartition]]:
        """Returns the partitions of each consumer, once all partitions have an owner."""
        while True:
            for each in consumers:
                await each.ask("GET", "/records?timeout=0", accept=JSON)
            shares = [await each.partitions() for each in consumers]
            if sorted(tp for share in shares for tp in share) == ALL and all(shares):
                return shares
            await asyncio.sleep(0.01)

    ALL = [TopicPartition("t", number) for number in range(4)]
    await where.create("t", partitions=4)
    one, two = await HttpConsumer.create(where, "g"), await HttpConsumer.create(where, "g")
    for each in (one, two):
        await each.ask_without_reply("POST", "/subscription", {"topic_pattern": "t|u"})
    async with asyncio.timeout(TEST_SECONDS):
        assert [len(share) for share in await wait_assignment(one, two)] == [2, 2]
        for number in range(4):
            await where.produce("t", str(number), partition=number)
        assert sorted([*values(await one.read(2)), *values(await two.read(2))]) == [0, 1, 2, 3]
        await two.ask_without_reply("DELETE", "")
        await wait_assignment(one)
        await where.create("u")
        await where.produce("u", "4")
        assert values(await one.read(1)) == [4], "a topic that comes later and matches"


@run_by(run, "tmp_path")
async def test_assigned_consumer_reads_from_the_positions_that_it_sets(where: HttpBroker) -> None:
    await where.create("t", partitions=2)
    await where.produce("t", *map(str, range(5)))
    one = await HttpConsumer.create(where, "g", auto_offset_reset="latest", auto_commit_enable=False)
    mine = {"partitions": [{"topic": "t", "partition": 0}]}
    await one.ask_without_reply("POST", "/assignments", mine)
    assert await one.partitions() == [TopicPartition("t", 0)]
    assert (await one.ask("GET", "/records?timeout=0", accept=JSON)).json == []
    await one.ask_without_reply("POST", "/positions", {"offsets": [{"topic": "t", "partition": 0, "offset": 3}]})
    assert values(await one.read(2)) == [3, 4]
    await one.ask_without_reply("POST", "/positions/beginning", mine)
    assert values(await one.read(5)) == [0, 1, 2, 3, 4]
    await one.ask_without_reply(
        "POST", "/positions", {"timestamps": [{**mine["partitions"][0], "timestamp": "2020-01-01T00:00Z"}]}
    )
    assert values(await one.read(5)) == [0, 1, 2, 3, 4]
    await one.ask_without_reply("POST", "/positions/end", mine)
    await where.produce("t", "5")
    assert values(await one.read(1)) == [5]
    other = {"partitions": [{"topic": "t", "partition": 1}]}
    assert (await one.ask("POST", "/positions/end", other)).json["error_code"] == 40903


def test_subscribed_consumer_continues_after_a_restart(tmp_path: Path) -> None:
    async def first(where: HttpBroker) -> None:
        await where.create("t")
        await where.produce("t", "0", "1")
        one = await HttpConsumer.create(where, "g", "one")
        await one.ask_without_reply("POST", "/subscription", {"topics": ["t"]})
        assert values(await one.read(2)) == [0, 1]
        assert (await one.ask("POST", "/offsets")).status == 200

    async def second(where: HttpBroker) -> None:
        await where.produce("t", "2")
        again = HttpConsumer(where, "/consumers/g/instances/one")
        assert values(await again.read(1)) == [2]
        assert (await again.ask("GET", "/subscription")).json == {"topics": ["t"]}
        taken = await where.ask("POST", "/consumers/g", {"name": "one"}, kind=V2)
        assert taken.json["error_code"] == 40902

    run(tmp_path, first)
    run(tmp_path, second)


@pytest.mark.parametrize(
    ("method", "below", "body", "code"),
    [
        ("POST", "/subscription", {"topics": ["t"], "topic_pattern": "t"}, 422),
        ("POST", "/subscription", {"topic_pattern": "("}, 422),
        ("POST", "/subscription", {"topics": [1]}, 422),
        ("POST", "/assignments", {"partitions": [{"topic": "no", "partition": 0}]}, 40401),
        ("POST", "/assignments", {"partitions": [{"topic": "t", "partition": 9}]}, 40402),
        ("POST", "/assignments", {"partitions": [{"topic": "t"}]}, 422),
        ("POST", "/positions", {"offsets": [{"topic": "t", "partition": 0, "offset": 0}]}, 40903),
        ("POST", "/positions", {}, 422),
        ("POST", "/positions", {"timestamps": [{"topic": "t", "partition": 0, "timestamp": "noon"}]}, 40903),
        ("POST", "/offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": -5}]}, 422),
        ("POST", "/subscription", [], 422),
    ],
)
@run_by(run, "tmp_path")
async def test_invalid_consumer_request_has_a_reason(
    where: HttpBroker, *, method: str, below: str, body: Any, code: int
) -> None:
    await where.create("t")
    answer = await (await HttpConsumer.create(where, "g")).ask(method, below, body)
    assert (answer.json["error_code"], answer.status) == (code, code if code < 1000 else code // 100)


@run_by(run, "tmp_path")
async def test_name_format_and_subscription_of_a_consumer_are_exclusive(where: HttpBroker) -> None:
    await where.create("t")
    one = await HttpConsumer.create(where, "g", "one")
    twice = await where.ask("POST", "/consumers/g", {"name": "one"}, kind=V2)
    assert (twice.status, twice.json["error_code"]) == (409, 40902)
    for wrong, why in (
        ({"format": "xml"}, "format='xml': it must be binary or json or avro or jsonschema or protobuf"),
        ({"auto.offset.reset": "x"}, "auto.offset.reset='x': it must be earliest or latest or none"),
        ({"fetch.min.bytes": "-2"}, "fetch.min.bytes='-2': it must be an integer from -1 on"),
        (
            {"isolation": "x"},
            "a consumer has no field 'isolation' (did you mean 'isolation.level'?); there are format, ",
        ),
    ):
        refused = await where.ask("POST", "/consumers/g", wrong, kind=V2)
        assert (refused.status, refused.json["error_code"]) == (422, 42204), wrong
        assert refused.json["message"].startswith(why), refused.json
    await one.ask_without_reply("POST", "/assignments", {"partitions": [{"topic": "t", "partition": 0}]})
    assert (await one.ask("POST", "/subscription", {"topics": ["t"]})).json["error_code"] == 40903
    assert (await one.ask("GET", "/records", accept=BINARY)).json["error_code"] == 40601
    assert (await where.get("/consumers/g/instances/two/records")).json["error_code"] == 40403


def test_stored_state_of_a_member_is_ignored_by_other_clients() -> None:
    kept = b'{"of":"x"}'
    assert user_data_of(encode_metadata(["a", "b"], kept)) == kept
    assert user_data_of(b"\0\0garbage") == b"" and user_data_of(b"") == b""


@run_by(run_alone)
async def test_unused_consumer_expires(*, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered_api.http.consumers.instances.IDLE_SECONDS", 0.0)
    monkeypatch.setattr("tiered_api.http.consumers.instances.SWEEP_SECONDS", 0.01)
    async with asyncio.timeout(TEST_SECONDS), http_broker(tmp_path) as where:
        one = await HttpConsumer.create(where, "g")
        while (await one.ask("GET", "/subscription")).status != 404:
            await asyncio.sleep(0.02)


@run_by(run, "tmp_path")
async def test_consumer_waits_for_a_transaction_that_may_change_its_offset(where: HttpBroker) -> None:
    await where.create("t")
    await where.produce("t", '"a"', '"b"', '"c"')
    groups = where.broker.group_coordinators
    producer = ProducerIdAndEpoch(7, 0)

    async def confirm(tp: TopicPartition) -> Code:
        return Code.NONE

    commit = CommitTransactionalOffsets("g", (PartitionOffset("t", 0, 2),), producer)
    await groups.commit_transactional_offsets(commit, confirm, adds_partition=True)
    careful = await HttpConsumer.create(where, "g")
    await careful.ask_without_reply("POST", "/assignments", {"partitions": [{"topic": "t", "partition": 0}]})
    assert (await careful.ask("GET", "/records?timeout=300", accept=JSON)).json == []
    await groups.write_marker(await groups.host.partition_for("g"), TransactionMarker(*producer, True, 0))
    assert values(await careful.read(1)) == ["c"], "goes on at what the transaction committed"


@run_by(run, "tmp_path")
async def test_records_after_the_first_read_outlive_a_rebalance(where: HttpBroker) -> None:
    await where.create("t")
    await where.produce("t", '"old"')
    soon = {"auto_offset_reset": "latest", "consumer_request_timeout_ms": "200"}
    one = await HttpConsumer.create(where, "g", "one", **soon)
    await one.ask_without_reply("POST", "/subscription", {"topics": ["t"]})
    while not await one.partitions():
        assert (await one.ask("GET", "/records", accept=JSON)).json == []
    assert (await one.ask("GET", "/records", accept=JSON)).json == []
    await where.produce("t", '"new-1"', '"new-2"')
    two = await HttpConsumer.create(where, "g", "two", **soon)
    await two.ask_without_reply("POST", "/subscription", {"topics": ["t"]})
    rows: list[Any] = []
    while len(rows) < 2 or not await two.partitions() + await one.partitions():
        for each in (two, one):
            rows += (await each.ask("GET", "/records", accept=JSON)).json
    await where.produce("t", '"new-3"')
    while len(rows) < 3:
        for each in (one, two):
            rows += (await each.ask("GET", "/records", accept=JSON)).json
    assert values(rows) == ["new-1", "new-2", "new-3"]
