"""Tests of REST v2 consumers under trouble: deleted topics, records that cannot be rendered, concurrent and invalid
requests."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.http_site import RAW, HttpBroker, run, wait_until
from tests.e2e.test_http_consumers import JSON, V2, HttpConsumer, values
from tests.scenario import run_by
from tiered.controller.requests import CreatePartitions, DeleteTopic
from tiered.errors import Code, Refused
from tiered.groups.requests import DescribeGroup, JoinGroup
from tiered.records.batch import Codec, encode_batch
from tiered_api.http.consumers import reading
from tiered_api.http.consumers.instance import ConsumerConfig
from tiered_api.http.consumers.instances import ConsumerInstances
from tiered_api.http.consumers.member import INSTANCE_ID_PREFIX, encode_metadata
from tiered_api.http.consumers.subscriptions import Subscription
from tiered_api.http.consumers.topic_patterns import TopicPattern
from tiered_api.http.partitions.reads import OBJECTS_MAX
from tiered_api.kafka.client.group_member import read_subscription


def parts(*places: tuple[str, int]) -> dict[str, Any]:
    return {"partitions": [{"topic": topic, "partition": partition} for topic, partition in places]}


async def members(where: HttpBroker, group: str = "g") -> list[str | None]:
    while True:  # the test's own deadline ends it
        try:
            found = await where.broker.group_coordinators.submit(group, DescribeGroup(group))
        except Refused as error:
            if error.code is not Code.COORDINATOR_LOAD_IN_PROGRESS:
                raise
            await asyncio.sleep(0.002)
            continue
        return [member.instance_id for member in found.members]


@run_by(run, "tmp_path")
async def test_deleted_topic_costs_no_records_of_others(where: HttpBroker) -> None:
    await where.create("a")
    await where.create("b")
    one = await HttpConsumer.create(where, "g")
    await one.ask_without_reply("POST", "/assignments", parts(("a", 0), ("b", 0)))
    await where.produce("a", "1", "2")
    await where.broker.submit(DeleteTopic("b"))
    assert values(await one.read(2)) == [1, 2]
    await where.produce("a", "3")
    assert values(await one.read(1)) == [3]


@run_by(run, "tmp_path")
async def test_positions_in_a_deleted_topic_do_not_apply_to_the_next_one(where: HttpBroker) -> None:
    await where.create("t")
    await where.produce("t", "0", "1", "2")
    one = await HttpConsumer.create(where, "g")
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    assert values(await one.read(3)) == [0, 1, 2]
    await where.broker.submit(DeleteTopic("t"))
    await where.create("t")
    await where.produce("t", "10", "11", "12", "13")
    assert values(await one.read(4)) == [10, 11, 12, 13]


@run_by(run, "tmp_path")
async def test_record_that_cannot_be_rendered_stops_its_partition_only(where: HttpBroker) -> None:
    await where.create("t", partitions=2)
    await where.produce("t", "1", partition=0)
    await where.produce("t", "0", "no json", "2", partition=1)
    one = await HttpConsumer.create(where, "g")
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0), ("t", 1)))
    assert sorted(values(await one.read(2))) == [0, 1]
    told = await one.ask("GET", "/records", accept=JSON)
    assert (told.status, told.json["error_code"]) == (422, 42203)
    await where.produce("t", "3", partition=0)
    assert values((await one.ask("GET", "/records", accept=JSON)).json) == [3]
    past = {"offsets": [{"topic": "t", "partition": 1, "offset": 2}]}
    await one.ask_without_reply("POST", "/positions", past)
    assert values(await one.read(1)) == [2]


@run_by(run, "tmp_path")
async def test_record_beyond_the_bounds_of_json_stops_its_partition_only(where: HttpBroker) -> None:
    await where.create("t", partitions=2)
    await where.produce("t", "1", partition=0)
    now = where.broker.world.clock.wall_ms()
    rows = [(now, None, b"0", ()), (now, None, b"5", (("h", b"x"),) * OBJECTS_MAX), (now, None, b"2", ())]
    path = "/topics/t/partitions/1/records"
    assert (await where.ask("POST", path, encode_batch(rows, codec=Codec.ZSTD), kind=RAW)).status == 200
    one = await HttpConsumer.create(where, "g")
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0), ("t", 1)))
    assert sorted(values(await one.read(2))) == [0, 1]
    told = await one.ask("GET", "/records", accept=JSON)
    assert (told.status, told.json["error_code"]) == (422, 42203)
    assert "t partition 1 at offset 1" in told.json["message"]
    await where.produce("t", "3", partition=0)
    assert values((await one.ask("GET", "/records", accept=JSON)).json) == [3]
    past = {"offsets": [{"topic": "t", "partition": 1, "offset": 2}]}
    await one.ask_without_reply("POST", "/positions", past)
    assert values(await one.read(1)) == [2]


@run_by(run, "tmp_path")
async def test_partition_with_a_backlog_does_not_starve_the_others(where: HttpBroker) -> None:
    await where.create("t", partitions=2)
    for number in range(3):
        await where.produce("t", str(number), partition=0)
    await where.produce("t", "9", partition=1)
    one = await HttpConsumer.create(where, "g")
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0), ("t", 1)))
    reads = [await one.ask("GET", "/records?max_bytes=1", accept=JSON) for _ in range(2)]
    assert sorted(row["partition"] for read in reads for row in read.json) == [0, 1]


@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0)
async def test_refused_commit_does_not_stop_reads(where: HttpBroker) -> None:
    """The consumer was assigned its partitions, and the group has members: only these may commit."""
    await where.create("t")
    await where.produce("t", "1")
    other, one = await HttpConsumer.create(where, "g"), await HttpConsumer.create(where, "g")
    await other.ask_without_reply("POST", "/subscription", {"topics": ["u"]})
    await other.ask("GET", "/records", accept=JSON)
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    assert values(await one.read(1)) == [1]
    await where.produce("t", "2")
    assert values(await one.read(1)) == [2]
    assert (await one.ask("POST", "/offsets")).status == 400


@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0)
async def test_new_subscription_replaces_the_old_one(where: HttpBroker) -> None:
    await where.create("a")
    await where.create("b")
    await where.produce("a", "1")
    await where.produce("b", "2")
    one = await HttpConsumer.create(where, "g", "one")
    await one.ask_without_reply("POST", "/subscription", {"topics": ["a"]})
    assert values(await one.read(1)) == [1]
    await one.ask_without_reply("POST", "/subscription", {"topics": ["b"]})
    assert (await one.ask("GET", "/subscription")).json == {"topics": ["b"]}
    assert values(await one.read(1)) == [2]
    assert await members(where) == ["rest-one"]


@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=3_000)
async def test_consumer_deleted_during_its_join_leaves_no_member(where: HttpBroker) -> None:
    one = await HttpConsumer.create(where, "g", "one")
    await one.ask_without_reply("POST", "/subscription", {"topics": ["a"]})
    while await members(where) != ["rest-one"]:
        await asyncio.sleep(0.002)
    await one.ask_without_reply("DELETE", "")
    assert await members(where) == []


@run_by(run, "tmp_path")
async def test_queued_request_does_not_restore_a_deleted_consumer(where: HttpBroker) -> None:
    one = await HttpConsumer.create(where, "g", "one")
    (instance,) = where.http._listener.context.service(ConsumerInstances)._instances.values()
    async with instance.lock:
        deleting = asyncio.create_task(one.ask("DELETE", ""))
        await wait_until(lambda: len(instance.lock._waiters or ()) == 1)
        subscribing = asyncio.create_task(one.ask("POST", "/subscription", {"topics": ["t"]}))
        await wait_until(lambda: len(instance.lock._waiters or ()) == 2)
    assert (await deleting).status == 204
    assert (await subscribing).json["error_code"] == 40403
    assert instance.member is None


@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0)
async def test_records_read_for_an_earlier_generation_are_dropped(where: HttpBroker) -> None:
    await where.create("t")
    one = await HttpConsumer.create(where, "g", "one", consumer_request_timeout_ms="30000", fetch_min_bytes="100000")
    await one.ask_without_reply("POST", "/subscription", {"topics": ["t"]})
    (instance,) = where.http._listener.context.service(ConsumerInstances)._instances.values()
    await instance.assigned_partitions(30)
    await where.produce("t", "1")
    waiting = asyncio.create_task(one.ask("GET", "/records", accept=JSON))
    await wait_until(
        lambda: bool(where.broker.leader_replica("t", 0).reads._parked)
    )  # it has read the record and wants more
    await instance._on_revoked()
    committed = (await one.ask("GET", "/offsets", parts(("t", 0)))).json["offsets"]
    assert [row["offset"] for row in committed] == [0], "nobody has it yet: the group is where its reset began"
    await where.produce("t", f'"{"x" * 100_000}"')
    rows = (await waiting).json
    assert [row["offset"] for row in rows] == [0, 1], "both of the place that it has now, none twice"


def test_read_during_a_rebalance_takes_no_position_of_a_lost_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "RECHECK_SECONDS", 30.0)  # only a record wakes the read, after the rebalance

    async def scenario(where: HttpBroker) -> None:
        await where.create("t", 2)
        settings = {"auto_commit_enable": "false", "consumer_request_timeout_ms": "30000"}
        one = await HttpConsumer.create(where, "g", "one", **settings)
        await one.ask_without_reply("POST", "/subscription", {"topics": ["t"]})
        (instance,) = where.http._listener.context.service(ConsumerInstances)._instances.values()
        await instance.assigned_partitions(30)
        waiting = asyncio.create_task(one.ask("GET", "/records", accept=JSON))
        await wait_until(lambda: bool(where.broker.leader_replica("t", 1).reads._parked))
        two = await HttpConsumer.create(where, "g", "two", **settings)
        await two.ask_without_reply("POST", "/subscription", {"topics": ["t"]})
        await wait_until(lambda: instance.member is not None and len(instance.member.assigned or ()) == 1)
        assert instance.member is not None and instance.member.assigned is not None
        [kept] = instance.member.assigned
        instance.skip_partition(kept)  # the waiting read comes to the other one first
        await where.produce("t", "1", partition=kept.partition)
        assert values((await waiting).json) == [1]
        committed = (await one.ask("POST", "/offsets")).json
        assert [(row["partition"], row["committed"]) for row in committed] == [(kept.partition, 1)]

    run(tmp_path, scenario, group_initial_rebalance_delay_ms=0)


@pytest.mark.parametrize(
    "pattern",
    ["orders", "orders.*", "(orders|payments)-.*", r"[a-z]+\.v[0-9]", "^a.*z$", "(ab){2}", ".*-orders-.*", "(a+)+b"],
)
def test_usual_patterns_are_accepted(pattern: str) -> None:
    TopicPattern(pattern)


@pytest.mark.parametrize(
    ("method", "below", "body", "code"),
    [
        ("POST", "/subscription", {"topic_pattern": "(a)\\1"}, 422),
        ("POST", "/subscription", {"topic_pattern": "(" * 120 + ")" * 120}, 204),
        ("POST", "/offsets", {"offsets": [{"topic": "no", "partition": 0, "offset": 1}]}, 40401),
        ("POST", "/offsets", {"offsets": [{"topic": "t", "partition": 7, "offset": 1}]}, 40402),
        ("POST", "/offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": (1 << 63) - 1}]}, 422),
    ],
)
@run_by(run, "tmp_path")
async def test_excessive_request_is_refused_with_a_reason(
    where: HttpBroker, *, method: str, below: str, body: Any, code: int
) -> None:
    await where.create("t")
    answer = await (await HttpConsumer.create(where, "g")).ask(method, below, body)
    assert (answer.json["error_code"] if answer.body else answer.status) == code


@pytest.mark.parametrize(
    "kept",
    [
        {"of": "tiered-rest"},
        {"of": "tiered-rest", "topics": 1, "pattern": ""},
        {"of": "tiered-rest", "topics": [1], "pattern": ""},
        {"of": "tiered-rest", "topics": [], "pattern": "(a)\\1"},
        {"of": "tiered-rest", "topics": [], "pattern": "", "more": 1},
        {"of": "tiered-rest", "topics": [], "pattern": "", "min_bytes": "x"},
    ],
)
@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0)
async def test_member_of_another_client_is_no_rest_consumer(where: HttpBroker, *, kept: dict[str, Any]) -> None:
    metadata = encode_metadata([], orjson.dumps(kept))
    join = JoinGroup("g", "", f"{INSTANCE_ID_PREFIX}one", "x", "/x", 30_000, 30_000, "consumer", (("range", metadata),))
    await where.broker.group_coordinators.submit("g", join, 30.0)
    answer = await where.ask("GET", "/consumers/g/instances/one/subscription", kind=V2)
    assert answer.json["error_code"] == 40403


@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0)
async def test_consumer_whose_place_another_client_took_says_so(where: HttpBroker) -> None:
    await where.create("t")
    one = await HttpConsumer.create(where, "g", "one")
    await one.ask_without_reply("POST", "/subscription", {"topics": ["t"]})
    await one.ask("GET", "/records", accept=JSON)
    (instance,) = where.http._listener.context.service(ConsumerInstances)._instances.values()
    metadata = encode_metadata(["t"], b"of another client")
    join = JoinGroup("g", "", f"{INSTANCE_ID_PREFIX}one", "x", "/x", 30_000, 30_000, "consumer", (("range", metadata),))
    await where.broker.group_coordinators.submit("g", join, 30.0)
    await wait_until(lambda: instance.is_fenced)
    for _ in range(2):
        told = await one.ask("GET", "/records", accept=JSON)
        assert (told.status, "FENCED_INSTANCE_ID" in told.json["message"]) == (400, True)


@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0)
async def test_request_waits_while_groups_are_loaded(where: HttpBroker) -> None:
    one = await HttpConsumer.create(where, "g", "one")
    await one.ask_without_reply("POST", "/subscription", {"topics": ["t"]})
    places = where.broker.group_coordinators.host.led_partitions
    held = {partition: place.coordinator for partition, place in places.items()}
    for place in places.values():
        place.coordinator = None
    group = f"{where.cluster}/consumer-groups"
    asked = [("GET", group), ("GET", f"{group}/g"), ("GET", "/consumers/g/instances/two/subscription")]
    asking = [asyncio.create_task(where.ask(method, path)) for method, path in asked]
    await asyncio.wait(asking, timeout=0.2)
    for partition, place in places.items():
        place.coordinator = held[partition]
    assert [(await each).status for each in asking] == [200, 200, 404]


def test_topic_that_grows_after_a_restart_is_assigned_again(tmp_path: Path) -> None:
    """The group leader rejoined without an assignment of its own."""

    async def first(where: HttpBroker) -> None:
        await where.create("t")
        one = await HttpConsumer.create(where, "g", "one")
        await one.ask_without_reply("POST", "/subscription", {"topics": ["t"]})
        await one.ask("GET", "/records", accept=JSON)

    async def second(where: HttpBroker) -> None:
        again = HttpConsumer(where, "/consumers/g/instances/one")
        while len(await again.partitions()) != 1:
            await again.ask("GET", "/records?timeout=0", accept=JSON)
        await where.broker.submit(CreatePartitions("t", 2))
        while len(await again.partitions()) != 2:
            await again.ask("GET", "/records?timeout=0", accept=JSON)

    run(tmp_path, first, group_initial_rebalance_delay_ms=0)
    run(tmp_path, second, group_initial_rebalance_delay_ms=0)


async def start_group_of(where: HttpBroker, *topics: str) -> HttpConsumer:
    """Returns a consumer that has the partitions of its first topic, and is to be found again after a restart."""
    for topic in topics:
        await where.create(topic)
    one = await HttpConsumer.create(where, "g", "one")
    await one.ask_without_reply("POST", "/subscription", {"topics": [topics[0]]})
    await one.ask("GET", "/records", accept=JSON)
    return one


def test_consumer_deleted_first_thing_after_a_restart_leaves_its_group(tmp_path: Path) -> None:
    """The member of the new process has sent nothing yet, but the group has the member of the one before."""

    async def first(where: HttpBroker) -> None:
        await start_group_of(where, "t")

    async def second(where: HttpBroker) -> None:
        assert await members(where) == ["rest-one"]
        await HttpConsumer(where, "/consumers/g/instances/one").ask_without_reply("DELETE", "")
        assert await members(where) == []

    run(tmp_path, first, group_initial_rebalance_delay_ms=0)
    run(tmp_path, second, group_initial_rebalance_delay_ms=0)


def test_other_subscription_first_thing_after_a_restart_is_assigned(tmp_path: Path) -> None:
    """A static member that comes back keeps its assignment, whatever topics it names."""

    async def first(where: HttpBroker) -> None:
        await start_group_of(where, "t", "u")

    async def second(where: HttpBroker) -> None:
        again = HttpConsumer(where, "/consumers/g/instances/one")
        await again.ask_without_reply("POST", "/subscription", {"topics": ["t", "u"]})
        await where.produce("u", "7")
        async with asyncio.timeout(120):
            assert values(await again.read(1)) == [7]
        assert len(await again.partitions()) == 2

    run(tmp_path, first, group_initial_rebalance_delay_ms=0)
    run(tmp_path, second, group_initial_rebalance_delay_ms=0)


@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0)
async def test_change_of_a_subscription_is_stored_before_its_reply(where: HttpBroker) -> None:
    """The group stores a subscription with a rebalance, which waits for another member here."""
    one = await start_group_of(where, "t", "u")
    protocols = (("range", encode_metadata(["t"], b"")),)
    join = JoinGroup("g", "", None, "x", "/x", 60_000, 60_000, "consumer", protocols, member_id_required=False)
    joined = await where.broker.group_coordinators.submit("g", join, 60.0)
    assert joined.code is Code.NONE
    await wait_for_state(where, "Stable")
    changing = asyncio.create_task(one.ask("POST", "/subscription", {"topics": ["u"]}))
    await wait_for_state(where, "PreparingRebalance")
    assert (await asyncio.wait([changing], timeout=0.5))[1], "the group does not have the topics yet"
    await where.broker.group_coordinators.submit("g", replace(join, member_id=joined.member_id), 60.0)
    assert (await changing).status == 204
    group = await where.broker.group_coordinators.submit("g", DescribeGroup("g", any_state=True))
    [metadata] = [each.metadata for each in group.members if each.instance_id == "rest-one"]
    assert read_subscription(metadata) == ["u"]


async def wait_for_state(where: HttpBroker, state: str) -> None:
    while (await where.broker.group_coordinators.submit("g", DescribeGroup("g"))).state != state:
        await asyncio.sleep(0.01)


def test_topic_that_a_pattern_matches_after_a_restart_is_assigned(tmp_path: Path) -> None:
    """The consumer comes back with more topics than the group knows it for."""

    async def first(where: HttpBroker) -> None:
        await where.create("t1")
        one = await HttpConsumer.create(where, "g", "one")
        await one.ask_without_reply("POST", "/subscription", {"topic_pattern": "t."})
        await one.ask("GET", "/records", accept=JSON)

    async def second(where: HttpBroker) -> None:
        await where.create("t2")
        await where.produce("t2", "7")
        again = HttpConsumer(where, "/consumers/g/instances/one")
        async with asyncio.timeout(120):
            assert values(await again.read(1)) == [7]

    run(tmp_path, first, group_initial_rebalance_delay_ms=0)
    run(tmp_path, second, group_initial_rebalance_delay_ms=0)


def test_stored_assignment_of_a_consumer_is_restored() -> None:
    requested, choices = Subscription(("a", "b")), ConsumerConfig(format="json", min_bytes=7, auto_commit=False)
    assert ConsumerConfig.from_user_data(choices.to_user_data(requested)) == (choices, requested)


@pytest.mark.parametrize("forged", [{"format": "x"}, {"reset": "x"}, {"timeout_ms": -1}, {"timeout_ms": 1 << 40}])
def test_stored_settings_that_no_request_can_make_are_not_taken(forged: dict[str, Any]) -> None:
    """Any member of the group can write them."""
    stored = orjson.loads(ConsumerConfig().to_user_data(Subscription(("a",)))) | forged
    assert ConsumerConfig.from_user_data(orjson.dumps(stored)) is None


async def start_slow_read(where: HttpBroker, one: HttpConsumer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Starts a read on a connection that takes few bytes at once."""
    host, port = where.url.removeprefix("http://").rsplit(":", 1)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    writer.write(f"GET {one.path}/records HTTP/1.1\r\nHost: {host}\r\nAccept: {JSON}\r\n\r\n".encode())
    return reader, writer


@run_by(run, "tmp_path")
async def test_client_that_leaves_a_waiting_read_loses_no_record(where: HttpBroker) -> None:
    await where.create("t")
    one = await HttpConsumer.create(where, "g", consumer_request_timeout_ms="20000")
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    _, writer = await start_slow_read(where, one)
    (instance,) = where.http._listener.context.service(ConsumerInstances)._instances.values()
    await wait_until(instance.lock.locked)
    writer.transport.abort()
    await wait_until(lambda: where.http._listener.open_connections() == 1)
    await where.produce("t", "1", "2")
    assert values(await one.read(2)) == [1, 2]


@run_by(run, "tmp_path")
async def test_client_that_leaves_in_the_middle_of_a_reply_loses_no_record(where: HttpBroker) -> None:
    large = orjson.dumps("x" * 500_000).decode()
    await where.create("t")
    for _ in range(14):
        await where.produce("t", large)
    one = await HttpConsumer.create(where, "g", fetch_min_bytes="7000000")
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    reader, writer = await start_slow_read(where, one)
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    writer.transport.abort()
    assert [row["offset"] for row in await one.read(14)] == list(range(14))


@run_by(run, "tmp_path")
async def test_answered_read_is_not_returned_again(where: HttpBroker) -> None:
    large = orjson.dumps("x" * 500_000).decode()
    await where.create("t")
    for _ in range(14):
        await where.produce("t", large)
    one = await HttpConsumer.create(where, "g")
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    assert [row["offset"] for row in await one.read(14)] == list(range(14))
    assert (await one.ask("GET", "/records", accept=JSON)).json == []
