"""Tests of the positions of REST v2 consumers: which the group gets, when, and what a commit says of lost ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.http_site import TEST_SECONDS, HttpBroker, http_broker, run, wait_until
from tests.e2e.test_http_consumers import JSON, HttpConsumer, values
from tests.e2e.test_http_consumers_bad_days import parts, start_slow_read
from tests.scenario import run_alone, run_by
from tiered.controller.requests import DeleteTopic
from tiered.groups.requests import FetchOffsets
from tiered.ids import TopicPartition
from tiered_api.http.consumers.instance import ConsumerInstance
from tiered_api.http.consumers.instances import ConsumerInstances

PARTITIONS = 50
HAND = {"auto_commit_enable": "false"}
TOPIC = {"topics": ["t"]}


class CountedPartition(TopicPartition):
    """A partition that counts how often others are compared with one of its kind."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedPartition.compared += 1
        return tuple.__eq__(self, other)

    __hash__ = TopicPartition.__hash__


async def committed(where: HttpBroker) -> dict[tuple[str, int], int]:
    """Returns the committed offsets of the group."""
    found = await where.broker.group_coordinators.submit("g", FetchOffsets("g", None))
    return {(row.topic, row.partition): row.offset for row in found.offsets}


def find_instance(where: HttpBroker, name: str) -> ConsumerInstance:
    """Returns the instance behind a consumer of group g."""
    living = where.http._listener.context.service(ConsumerInstances)._instances.values()
    return next(each for each in living if each.name == name)


async def read_once(one: HttpConsumer) -> list[Any]:
    answer = await one.ask("GET", "/records", accept=JSON)
    assert answer.status == 200, answer
    return values(answer.json)


async def rebalance(where: HttpBroker, one: HttpConsumer, name: str) -> HttpConsumer:
    """Lets another consumer join the group, and returns it once `one` has an assignment again."""
    instance = find_instance(where, one.path.rsplit("/", 1)[1])
    version = instance.assignment_version
    other = await HttpConsumer.create(where, "g", name)
    await other.ask_without_reply("POST", "/subscription", TOPIC)
    await wait_until(lambda: instance.assignment_version > version)
    assert instance.member is not None
    async with asyncio.timeout(TEST_SECONDS):
        await instance.member.join_done.wait()
    return other


@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0)
async def test_commit_after_a_lost_assignment_is_refused_once(where: HttpBroker) -> None:
    await where.create("t")
    await where.produce("t", "1", "2")
    one = await HttpConsumer.create(where, "g", "one", **HAND)
    await one.ask_without_reply("POST", "/subscription", TOPIC)
    assert values(await one.read(2)) == [1, 2]
    two = await rebalance(where, one, "two")
    told = await one.ask("POST", "/offsets")
    assert (told.status, told.json["error_code"]) == (400, 40002)
    assert "t-0" in told.json["message"] and "come again" in told.json["message"]
    again = await one.ask("POST", "/offsets")
    assert (again.status, again.json) == (200, []), "nothing is left to commit, and the reply says so"
    rows: list[Any] = []
    while len(rows) < 2:
        rows += [*await read_once(one), *await read_once(two)]
    assert rows == [1, 2]


@pytest.mark.parametrize("change", ["subscribe", "unsubscribe", "assign"])
@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0)
async def test_reads_that_the_user_gave_up_are_told_at_the_commit(where: HttpBroker, *, change: str) -> None:
    for topic in ("t", "u"):
        await where.create(topic)
        await where.produce(topic, "1", "2")
    one = await HttpConsumer.create(where, "g", "one", **HAND)
    if change == "assign":
        await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    else:
        await one.ask_without_reply("POST", "/subscription", TOPIC)
    assert values(await one.read(2)) == [1, 2]
    if change == "assign":
        await one.ask_without_reply("POST", "/assignments", parts(("u", 0)))
    elif change == "subscribe":
        await one.ask_without_reply("POST", "/subscription", {"topics": ["u"]})
    else:
        await one.ask_without_reply("DELETE", "/subscription")
    told = await one.ask("POST", "/offsets")
    assert told.status == 400 and "t-0" in told.json["message"]
    if change != "unsubscribe":
        assert [row["topic"] for row in await one.read(2)] == ["u", "u"]
        assert (await one.ask("POST", "/offsets")).status == 200
        assert await committed(where) == {("u", 0): 2}


@run_by(run, "tmp_path")
async def test_lost_reads_of_a_deleted_topic_refuse_no_commit(where: HttpBroker) -> None:
    for topic in ("t", "u"):
        await where.create(topic)
        await where.produce(topic, "1")
    one = await HttpConsumer.create(where, "g", "one", **HAND)
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    assert values(await one.read(1)) == [1]
    await one.ask_without_reply("POST", "/assignments", parts(("u", 0)))
    await where.broker.submit(DeleteTopic("t"))
    assert values(await one.read(1)) == [1]
    assert (await one.ask("POST", "/offsets")).status == 200
    assert await committed(where) == {("u", 0): 1}


@run_by(run, "tmp_path")
async def test_named_commit_settles_the_reads_that_it_covers(where: HttpBroker) -> None:
    await where.create("t")
    await where.create("u")
    await where.produce("t", "1", "2")
    one = await HttpConsumer.create(where, "g", "one", **HAND)
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    assert values(await one.read(2)) == [1, 2]
    await one.ask_without_reply("POST", "/assignments", parts(("u", 0)))
    named = {"offsets": [{"topic": "t", "partition": 0, "offset": 1}]}
    assert (await one.ask("POST", "/offsets", named)).status == 200
    assert (await one.ask("POST", "/offsets")).status == 200


@run_by(run, "tmp_path")
async def test_commit_before_the_first_read_names_nothing(where: HttpBroker) -> None:
    await where.create("t")
    one = await HttpConsumer.create(where, "g", "one", **HAND)
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    told = await one.ask("POST", "/offsets")
    assert (told.status, told.json) == (200, [])
    assert await committed(where) == {}


def test_commit_by_hand_after_a_restart_tells_of_lost_reads(tmp_path: Path) -> None:
    async def first(where: HttpBroker) -> None:
        await where.create("t")
        await where.produce("t", "1", "2")
        one = await HttpConsumer.create(where, "g", "one", **HAND)
        await one.ask_without_reply("POST", "/subscription", TOPIC)
        assert values(await one.read(2)) == [1, 2]

    async def second(where: HttpBroker) -> None:
        again = HttpConsumer(where, "/consumers/g/instances/one")
        told = await again.ask("POST", "/offsets")
        assert told.status == 400 and "come again" in told.json["message"]
        assert values(await again.read(2)) == [1, 2]
        assert (await again.ask("POST", "/offsets")).json[0]["committed"] == 2

    run(tmp_path, first, group_initial_rebalance_delay_ms=0)
    run(tmp_path, second, group_initial_rebalance_delay_ms=0)


@run_by(run, "tmp_path")
async def test_commit_by_hand_includes_positions_of_resets(where: HttpBroker) -> None:
    await where.create("t")
    await where.produce("t", "1", "2")
    one = await HttpConsumer.create(where, "g", "one", auto_offset_reset="latest", **HAND)
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    assert await read_once(one) == []
    assert await committed(where) == {}, "it commits nothing by itself"
    told = await one.ask("POST", "/offsets")
    assert told.json == [{"topic": "t", "partition": 0, "consumed": 2, "committed": 2}]
    assert await committed(where) == {("t", 0): 2}
    named = {"offsets": [{"topic": "t", "partition": 0, "offset": 0}]}
    assert (await one.ask("POST", "/offsets", named)).status == 200
    assert await committed(where) == {("t", 0): 1}
    assert (await one.ask("POST", "/offsets")).json[0]["committed"] == 2, "its position, once more"


@pytest.mark.parametrize(
    ("below", "offset"),
    [("/positions/beginning", 0), ("/positions/end", 5), ("/positions", 1), ("/positions by time", 0)],
)
@pytest.mark.parametrize("by_hand", [False, True])
@run_by(run, "tmp_path")
async def test_position_of_a_seek_is_committed(where: HttpBroker, *, below: str, offset: int, by_hand: bool) -> None:
    tp = parts(("t", 0))["partitions"][0]
    bodies: dict[str, Any] = {
        "/positions": {"offsets": [{**tp, "offset": 1}]},
        "/positions by time": {"timestamps": [{**tp, "timestamp": "2020-01-01T00:00Z"}]},
    }
    await where.create("t")
    await where.produce("t", "1", "2", "3")
    one = await HttpConsumer.create(where, "g", "one", **(HAND if by_hand else {}))
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    assert values(await one.read(3)) == [1, 2, 3]
    await where.produce("t", "4", "5")
    await one.ask_without_reply("POST", below.split()[0], bodies.get(below, parts(("t", 0))))
    if by_hand:
        assert (await one.ask("POST", "/offsets")).json[0]["committed"] == offset
    await one.ask_without_reply("DELETE", "")
    assert await committed(where) == {("t", 0): offset}


@run_by(run, "tmp_path")
async def test_new_assignment_by_hand_commits_the_reads_of_the_old_one(where: HttpBroker) -> None:
    for topic in ("t", "u"):
        await where.create(topic)
        await where.produce(topic, "1")
    one = await HttpConsumer.create(where, "g", "one")
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    assert values(await one.read(1)) == [1]
    await one.ask_without_reply("POST", "/assignments", parts(("u", 0)))
    assert await committed(where) == {("t", 0): 1}


@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0)
async def test_first_read_commits_the_positions_of_resets(where: HttpBroker) -> None:
    await where.create("t", partitions=3)
    await where.produce("t", "1", "2", partition=1)
    one = await HttpConsumer.create(where, "g", "one", auto_offset_reset="latest")
    await one.ask_without_reply("POST", "/subscription", TOPIC)
    assert await read_once(one) == []
    assert await committed(where) == {("t", 0): 0, ("t", 1): 2, ("t", 2): 0}


@run_by(run, "tmp_path")
async def test_read_that_fails_commits_the_resets_that_it_found(where: HttpBroker) -> None:
    await where.create("t")
    await where.produce("t", "no json")
    one = await HttpConsumer.create(where, "g", "one")
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    assert (await one.ask("GET", "/records", accept=JSON)).json["error_code"] == 42203
    assert await committed(where) == {("t", 0): 0}


@run_by(run, "tmp_path")
async def test_position_out_of_range_is_reset_and_committed(where: HttpBroker) -> None:
    await where.create("t")
    await where.produce("t", "1", "2")
    one = await HttpConsumer.create(where, "g", "one", auto_offset_reset="latest")
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    stray = {"offsets": [{"topic": "t", "partition": 0, "offset": 70}]}
    await one.ask_without_reply("POST", "/positions", stray)
    assert await read_once(one) == []
    assert await committed(where) == {("t", 0): 2}
    await where.produce("t", "3")
    assert values(await one.read(1)) == [3]


@run_by(run, "tmp_path")
async def test_partition_without_an_offset_is_an_error_without_a_reset(where: HttpBroker) -> None:
    """The reads were empty for ever, although the partition had records."""
    await where.create("t", partitions=2)
    await where.produce("t", "1", "2")
    one = await HttpConsumer.create(where, "g", "one", auto_offset_reset="none", **HAND)
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0), ("t", 1)))
    errors = [(await one.ask("GET", "/records", accept=JSON)).json for _ in range(2)]
    assert [each["error_code"] for each in errors] == [50002, 50002]
    assert [each["message"].partition(",")[0] for each in errors] == [
        f"group g has no offset of t-{number}" for number in range(2)
    ]
    spots = {"offsets": [{"topic": "t", "partition": number, "offset": 1 - number} for number in range(2)]}
    await one.ask_without_reply("POST", "/positions", spots)
    assert values(await one.read(1)) == [2]
    assert (await one.ask("POST", "/offsets")).status == 200
    again = await HttpConsumer.create(where, "g", "two", auto_offset_reset="none", **HAND)
    await again.ask_without_reply("POST", "/assignments", parts(("t", 0), ("t", 1)))
    await where.produce("t", "3")
    assert values(await again.read(1)) == [3]
    stray = {"offsets": [{"topic": "t", "partition": 0, "offset": 70}]}
    await again.ask_without_reply("POST", "/positions", stray)
    refused = (await again.ask("GET", "/records", accept=JSON)).json
    assert refused["error_code"] == 50002 and refused["message"].startswith("t-0 has no offset 70,")


@pytest.mark.parametrize("clean", [True, False])
@run_by(run_alone)
async def test_records_after_the_first_read_outlive_a_restart(*, tmp_path: Path, clean: bool) -> None:
    async def scenario() -> None:
        async with http_broker(tmp_path) as where:
            await where.create("t")
            await where.produce("t", "1")
            one = await HttpConsumer.create(where, "g", "one", auto_offset_reset="latest")
            await one.ask_without_reply("POST", "/subscription", TOPIC)
            assert await read_once(one) == []
            await where.produce("t", "2", "3")
            if not clean:
                await where.http.close()
                await where.broker.stop(clean=False)
        async with http_broker(tmp_path) as where:
            again = HttpConsumer(where, "/consumers/g/instances/one")
            assert values(await again.read(2)) == [2, 3]

    async with asyncio.timeout(TEST_SECONDS):
        await scenario()


@pytest.mark.parametrize("by_hand", [False, True])
@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0)
async def test_reply_that_outlives_its_assignment_moves_no_position(where: HttpBroker, *, by_hand: bool) -> None:
    """The client takes the reply slowly, and the group rebalances before the last byte is written."""
    large = orjson.dumps("x" * 500_000).decode()
    await where.create("t")
    for _ in range(14):
        await where.produce("t", large)
    settings = {"fetch_min_bytes": "7000000", "consumer_request_timeout_ms": "20000"}
    one = await HttpConsumer.create(where, "g", "one", **settings, **(HAND if by_hand else {}))
    await one.ask_without_reply("POST", "/subscription", TOPIC)
    reader, writer = await start_slow_read(where, one)
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    instance = find_instance(where, "one")
    two = await rebalance(where, one, "two")
    assert instance.lock.locked(), "the reply is still being written"
    while instance.lock.locked():
        await reader.read(1 << 20)
    writer.transport.abort()
    told = await one.ask("POST", "/offsets")
    assert told.status == 400 and "t-0" in told.json["message"], "the client has the records"
    assert (await one.ask("POST", "/offsets")).json == []
    assert await committed(where) == ({} if by_hand else {("t", 0): 0})
    offsets: list[int] = []
    while len(offsets) < 14:
        for each in (one, two):
            offsets += [row["offset"] for row in (await each.ask("GET", "/records", accept=JSON)).json]
    assert offsets == list(range(14)), "the next owner gets them from the same place"


@run_by(run, "tmp_path")
async def test_seek_of_many_rows_compares_each_with_few_partitions(where: HttpBroker) -> None:
    """Once, each row was looked for in the list of all assigned partitions: some 14,000 rows beside 3,000 partitions
    blocked all other clients for 0.8 s."""
    await where.create("t", PARTITIONS)
    one = await HttpConsumer.create(where, "g", "one", **HAND)
    rows = [{"topic": "t", "partition": number} for number in range(PARTITIONS)]
    await one.ask_without_reply("POST", "/assignments", {"partitions": rows})
    instance = find_instance(where, "one")
    instance.manual_assignment = [CountedPartition(*each) for each in instance.manual_assignment]
    CountedPartition.compared = 0
    seeks: list[tuple[str, str]] = [("/positions/end", "partitions"), ("/positions", "timestamps")]
    for path, name in seeks:
        moved = [{**row, "timestamp": "2026-01-01T00:00:00Z"} if name == "timestamps" else row for row in rows]
        await one.ask_without_reply("POST", path, {name: moved * 2})
    await one.ask_without_reply(
        "POST", "/positions", {"offsets": [{**row, "offset": at} for at in (3, 5) for row in rows]}
    )
    assert CountedPartition.compared < 10 * PARTITIONS
    await one.ask("POST", "/offsets")
    assert await committed(where) == {("t", number): 5 for number in range(PARTITIONS)}
