"""Tests of REST v2 consumers whose topic, log or group changes below them: each record of later reaches a member."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.http_site import HttpBroker, HttpReply, run, wait_until
from tests.e2e.test_http_consumers import JSON, V2, HttpConsumer, values
from tests.e2e.test_http_consumers_bad_days import members as members_of
from tests.e2e.test_http_consumers_bad_days import parts
from tests.e2e.test_http_consumers_positions import HAND, TOPIC, committed, find_instance, read_once
from tests.e2e.test_http_read_committed import ONE, Producers
from tests.scenario import run_by
from tiered.controller.requests import DeleteTopic
from tiered.groups.requests import JoinGroup
from tiered.ids import TopicPartition
from tiered_api.http.consumers import reading
from tiered_api.http.consumers.member import encode_metadata


async def start_waiting_read(where: HttpBroker, one: HttpConsumer) -> asyncio.Task[HttpReply]:
    """Starts a read, and returns once it waits for more records of t-0."""
    waiting = asyncio.create_task(one.ask("GET", "/records", accept=JSON))
    await wait_until(lambda: bool(where.broker.leader_replica("t", 0).reads._parked))
    return waiting


@pytest.mark.parametrize("by_hand", [False, True])
def test_log_cut_below_a_waiting_read_costs_no_later_record(
    tmp_path: Path, by_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "RECHECK_SECONDS", 30.0)

    async def scenario(where: HttpBroker) -> None:
        await where.create("t")
        settings = {"fetch_min_bytes": "100000", "consumer_request_timeout_ms": "20000", **(HAND if by_hand else {})}
        one = await HttpConsumer.create(where, "g", "one", auto_offset_reset="latest", **settings)
        await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
        assert (await one.ask("GET", "/records?timeout=0", accept=JSON)).json == []
        await where.produce("t", "0")
        waiting = await start_waiting_read(where, one)
        replica = where.broker.leader_replica("t", 0)
        [(_, _, wake)] = replica.reads._parked._heap
        replica.reads._parked._heap.clear()  # the next records do not wake it before they are deleted
        await where.produce("t", "1", "2", "3")
        await replica.deletion.delete_records(4)
        wake()
        assert values((await waiting).json) == [0]
        assert await committed(where) == ({} if by_hand else {("t", 0): 0}), "the client has to get record 0 first"
        assert where.broker.group_coordinators.observer.commits <= 1, "it tries no reset again and again"
        assert (await one.ask("GET", "/records?timeout=0", accept=JSON)).json == []
        assert await committed(where) == ({} if by_hand else {("t", 0): 4})
        await where.produce("t", "4", "5")
        assert values((await one.ask("GET", "/records?timeout=0", accept=JSON)).json) == [4, 5]

    run(tmp_path, scenario)


@pytest.mark.parametrize("by_hand", [False, True])
def test_topic_made_again_below_a_waiting_read_costs_no_record(
    tmp_path: Path, by_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "RECHECK_SECONDS", 30.0)

    async def scenario(where: HttpBroker) -> None:
        await where.create("t")
        settings = {"fetch_min_bytes": "100000", "consumer_request_timeout_ms": "2000", **(HAND if by_hand else {})}
        one = await HttpConsumer.create(where, "g", "one", auto_offset_reset="latest", **settings)
        await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
        assert (await one.ask("GET", "/records?timeout=0", accept=JSON)).json == []
        await where.produce("t", "0")
        waiting = await start_waiting_read(where, one)
        await where.broker.submit(DeleteTopic("t"))
        await where.create("t")
        assert values((await waiting).json) == [0]
        await where.produce("t", "10", "11")
        assert values((await one.ask("GET", "/records?timeout=0", accept=JSON)).json) == [10, 11]

    run(tmp_path, scenario)


@run_by(run, "tmp_path")
async def test_first_read_that_is_full_begins_in_every_partition(where: HttpBroker) -> None:
    await where.create("t", partitions=3)
    await where.produce("t", "0", "1")
    one = await HttpConsumer.create(where, "g", "one", auto_offset_reset="latest")
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0), ("t", 1), ("t", 2)))
    named = {"offsets": [{"topic": "t", "partition": 0, "offset": 0}]}
    assert (await one.ask("POST", "/offsets", named)).status == 200
    assert values((await one.ask("GET", "/records?max_bytes=1", accept=JSON)).json) == [1]
    await where.produce("t", "2", partition=1)
    await where.produce("t", "3", partition=2)
    assert sorted(values(await one.read(2))) == [2, 3]


def test_commit_after_a_restart_and_a_seek_tells_of_lost_reads(tmp_path: Path) -> None:
    async def first(where: HttpBroker) -> None:
        await where.create("t", partitions=2)
        for partition in (0, 1):
            await where.produce("t", "1", "2", partition=partition)
        one = await HttpConsumer.create(where, "g", "one", **HAND)
        await one.ask_without_reply("POST", "/subscription", TOPIC)
        assert sorted(values(await one.read(4))) == [1, 1, 2, 2]

    async def second(where: HttpBroker) -> None:
        again = HttpConsumer(where, "/consumers/g/instances/one")
        while not await again.partitions():
            await asyncio.sleep(0.01)
        await again.ask_without_reply("POST", "/positions/end", parts(("t", 0)))
        told = await again.ask("POST", "/offsets")
        assert told.status == 400 and "come again" in told.json["message"]
        assert (await again.ask("POST", "/offsets")).json[0]["committed"] == 2

    run(tmp_path, first, group_initial_rebalance_delay_ms=0)
    run(tmp_path, second, group_initial_rebalance_delay_ms=0)


def test_consumer_is_found_after_a_restart_while_its_group_rebalances(tmp_path: Path) -> None:
    async def first(where: HttpBroker) -> None:
        await where.create("t")
        one = await HttpConsumer.create(where, "g", "one")
        await one.ask_without_reply("POST", "/subscription", TOPIC)
        assert await read_once(one) == []

    async def second(where: HttpBroker) -> None:
        protocols = (("range", encode_metadata(["t"], b"")),)
        join = JoinGroup("g", "", None, "x", "/x", 30_000, 60_000, "consumer", protocols, member_id_required=False)
        await wait_until(lambda: where.broker.group_coordinators.host.find_shard("g") is not None)
        joining = asyncio.create_task(where.broker.group_coordinators.submit("g", join, 60.0))
        while len(await members_of(where)) < 2:
            await asyncio.sleep(0.002)
        again = HttpConsumer(where, "/consumers/g/instances/one")
        assert (await again.ask("GET", "/subscription")).json == TOPIC
        taken = await where.ask("POST", "/consumers/g", {"name": "one"}, kind=V2)
        assert taken.json["error_code"] == 40902
        await joining

    run(tmp_path, first, group_initial_rebalance_delay_ms=0)
    run(tmp_path, second, group_initial_rebalance_delay_ms=0)


@run_by(run, "tmp_path")
async def test_reader_that_never_commits_keeps_no_lost_reads_of_deleted_topics(where: HttpBroker) -> None:
    one = await HttpConsumer.create(where, "g", "one", **HAND)
    for number in range(4):
        await where.create(f"t{number}")
        await where.produce(f"t{number}", "1")
        await one.ask_without_reply("POST", "/assignments", parts((f"t{number}", 0)))
        assert values(await one.read(1)) == [1]
        await where.broker.submit(DeleteTopic(f"t{number}"))
    assert len(find_instance(where, "one")._positions._lost) <= 1


@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0)
async def test_refused_commit_of_a_reset_is_repeated_by_the_next_read(where: HttpBroker) -> None:
    """The group has members at first: the consumer that has partitions by hand may not commit."""
    await where.create("t")
    await where.produce("t", "1")
    other = await HttpConsumer.create(where, "g", "other")
    await other.ask_without_reply("POST", "/subscription", {"topics": ["u"]})
    assert await read_once(other) == []
    one = await HttpConsumer.create(where, "g", "one", auto_offset_reset="latest")
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    assert (await one.ask("GET", "/records?timeout=0", accept=JSON)).json == []
    assert await committed(where) == {}
    await other.ask_without_reply("DELETE", "")
    assert (await one.ask("GET", "/records?timeout=0", accept=JSON)).json == []
    assert await committed(where) == {("t", 0): 1}


@pytest.mark.parametrize("begin", ["latest", "/positions/end", "/positions"])
@run_by(run, "tmp_path")
async def test_consumer_that_begins_at_the_end_gets_the_open_transaction(where: HttpBroker, *, begin: str) -> None:
    tp = {"topic": "t", "partition": 0}
    bodies = {"/positions": {"timestamps": [{**tp, "timestamp": "2100-01-01T00:00Z"}]}}
    await where.create("t")
    await where.produce("t", "1")
    producers = Producers(where)
    await producers.write(ONE, "2", "3")
    one = await HttpConsumer.create(where, "g", "one", auto_offset_reset="latest")
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    if begin != "latest":
        await one.ask_without_reply("POST", begin, bodies.get(begin, parts(("t", 0))))
    assert (await one.ask("GET", "/records?timeout=0", accept=JSON)).json == []
    await producers.end(ONE, commit=True)
    assert values((await one.ask("GET", "/records", accept=JSON)).json) == [2, 3]


@run_by(run, "tmp_path")
async def test_position_found_after_its_partition_was_lost_is_not_kept(where: HttpBroker) -> None:
    await where.create("t")
    one = await HttpConsumer.create(where, "g", "one", **HAND)
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    instance, tp = find_instance(where, "one"), TopicPartition("t", 0)
    place = where.broker.group_coordinators.host.led_partitions[
        await where.broker.group_coordinators.host.partition_for("g")
    ]
    held, place.coordinator = place.coordinator, None  # the group is loading
    resolving = asyncio.create_task(instance.resolve_position(tp, instance.open_partition(tp)))
    await asyncio.sleep(0)
    assert not resolving.done()
    await instance._on_revoked()
    place.coordinator = held
    assert await resolving is None
    assert (await one.ask("POST", "/offsets")).json == []
