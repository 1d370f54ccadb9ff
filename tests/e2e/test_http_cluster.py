"""Tests of HTTP on three brokers: each serves every partition and every group, whichever broker leads them."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.http_cluster import ClusterBroker, HttpCluster, run
from tests.e2e.http_site import JSON, RAW, wait_until
from tests.e2e.serving import ServeProcess
from tests.scenario import run_by
from tests.sim.rig.broker_rig import batch
from tiered.broker.broker import Broker
from tiered.controller.requests import ElectLeaders, Move, Reassign
from tiered_api.http.consumers import instances

V2 = "application/vnd.kafka.v2+json"
V2_JSON = "application/vnd.kafka.json.v2+json"
EVENTS = "text/event-stream"


async def write(broker: ClusterBroker, topic: str, partition: int, *values: Any) -> list[int]:
    """Writes through REST v2; returns the offsets."""
    body = {"records": [{"value": value} for value in values]}
    answer = await broker.ask("POST", f"/topics/{topic}/partitions/{partition}", body, kind=V2_JSON)
    assert answer.status == 200, answer
    assert not any(each["error"] for each in answer.json["offsets"]), answer
    return [each["offset"] for each in answer.json["offsets"]]


async def values(broker: ClusterBroker, topic: str, partition: int) -> list[Any]:
    answer = await broker.get(f"/topics/{topic}/partitions/{partition}/records?format=json")
    assert answer.status == 200, answer
    return [each["value"] for each in answer.json["records"]]


@run_by(run, "tmp_path")
async def test_any_broker_reads_what_the_leader_reads(three: HttpCluster) -> None:
    await three.create("t", [1, 2], [2, 3], [3, 1])
    for partition in range(3):
        await write(three[partition + 1], "t", partition, {"n": partition}, "x")
    for partition in range(3):
        place = f"/topics/t/partitions/{partition}"
        assert len((await three.get_from_all(f"{place}/records")).json["records"]) == 2
        assert (await three.get_from_all(f"{place}/records?offset=1", RAW)).body
        assert len((await three.get_from_all(f"{place}/records", V2_JSON)).json) == 2
        assert [
            each["offset"] for each in (await three.get_from_all(f"{place}/records?contains=X")).json["records"]
        ] == [1]
        assert (await three.get_from_all(f"{place}/records?offset=latest")).json["next_offset"] == 2
        assert (await three.get_from_all(f"{place}/records?timestamp=1")).json["records"][0]["offset"] == 0
        assert (await three.get_from_all(f"{place}/records?timestamp=99999999999999")).json["next_offset"] == 2
        gone = await three.get_from_all(f"{place}/records?offset=9")
        assert (gone.status, gone.json["message"]) == (416, "offset 9 is not in 0 to 2")
        assert (await three.get_from_all(f"{place}/offsets")).json == {"beginning_offset": 0, "end_offset": 2}
        offsets = (await three.get_from_all(f"{three.url}/topics/t/partitions/{partition}/offset")).json
        assert (offsets["earliest_offset"], offsets["latest_offset"]) == (0, 2)
    for path in ("/topics", "/topics/t", "/topics/t/partitions", "/brokers", three.url, f"{three.url}/brokers"):
        assert (await three.get_from_all(path)).status == 200
    assert (await three.get_from_all(f"{three.url}/topics/t/partitions/2/replicas")).status == 200
    assert (await three.get_from_all("/topics/t/partitions/7/records")).json["error_code"] == 40402


@run_by(run, "tmp_path")
async def test_any_broker_writes_to_the_leader(three: HttpCluster) -> None:
    await three.create("t", [1, 2], [2, 3], [3, 1])
    for n, broker in three.brokers.items():
        for partition in range(3):
            assert await write(broker, "t", partition, [n]) == [n - 1]
    for n, broker in three.brokers.items():
        entries = [{"id": str(p), "partition_id": p, "value": {"type": "JSON", "data": n}} for p in range(3)]
        answer = await broker.ask("POST", f"{three.url}/topics/t/records:batch", {"entries": entries})
        assert [each["partition_id"] for each in answer.json["successes"]] == [0, 1, 2], answer
        one = {"partition_id": 1, "value": {"type": "JSON", "data": "one"}}
        single = await broker.ask("POST", f"{three.url}/topics/t/records", one)
        assert (single.status, single.json["partition_id"]) == (200, 1), single
        lines = b"".join(json.dumps({**one, "partition_id": p}).encode() for p in (0, 1, 2))
        stream = await broker.ask("POST", f"{three.url}/topics/t/records", lines)
        assert [json.loads(line)["error_code"] for line in stream.body.splitlines()] == [200] * 3, stream
        keyed = {"records": [{"key": f"k{k}", "value": k} for k in range(30)]}
        spread = (await broker.ask("POST", "/topics/t", keyed, kind=V2_JSON)).json["offsets"]
        assert {each["partition"] for each in spread} == {0, 1, 2}
    written = [await values(three[1], "t", p) for p in range(3)]
    assert sum(map(len, written)) == 9 + 9 + 3 + 9 + 90


@run_by(run, "tmp_path")
async def test_refusal_of_the_leader_is_passed_on(three: HttpCluster) -> None:
    await three.create("t", [2], max_message_bytes="2000")
    large = {"value": {"type": "STRING", "data": "x" * 3000}}
    answers = [await each.ask("POST", f"{three.url}/topics/t/records", large) for each in three.brokers.values()]
    assert {(each.status, each.body) for each in answers} == {(413, answers[1].body)}


@run_by(run, "tmp_path")
async def test_request_that_only_one_broker_can_serve_is_redirected(three: HttpCluster) -> None:
    await three.create("t", [2])
    data = bytes(batch([b"whole"]))
    for path, body in (
        ("/tiered/v1/topics/t/partitions/0", None),
        ("/topics/t/partitions/0/records", data),
        (f"{three.url}/brokers/2/configs", None),
    ):
        method = "POST" if body else "GET"
        async with three[1].session.request(
            method, three[1].url + path, data=body, headers={"Content-Type": RAW}, allow_redirects=False
        ) as response:
            assert (response.status, response.headers["Location"]) == (307, three[2].url + path)
            assert (await response.json())["message"].startswith("broker 2 ")
        assert (await three[1].ask(method, path, body, kind=RAW)).status == 200, "a client that follows gets there"
    assert (await three.get_from_all("/topics/t/partitions/0/offsets")).json["end_offset"] == 1


@run_by(run, "tmp_path")
async def test_redirect_goes_to_the_advertised_address(three: HttpCluster) -> None:
    """The set-up is like a port mapping: `localhost` is another name here, and no broker listens there by it."""
    await three.create("t", [2])
    told = {}
    for number, broker in three.brokers.items():
        known = broker.broker.image.brokers[number]
        told[broker.url] = broker.url.replace("127.0.0.1", "localhost")
        await broker.broker.announce(known.http, known.listeners, told[broker.url])
    await wait_until(
        lambda: three.is_known_by_all(lambda node: all(each.advertised_http for each in node.image.brokers.values()))
    )
    path = "/tiered/v1/topics/t/partitions/0"
    async with three[1].session.get(three[1].url + path, allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (307, told[three[2].url] + path)
    assert (await three[1].get(path)).status == 200, "a client that follows gets there"
    made = [await each.ask("POST", "/consumers/g", {"format": "json"}, kind=V2) for each in three.brokers.values()]
    (home,) = {each.json["base_uri"].partition("/consumers/")[0] for each in made}
    assert home in told.values()


@run_by(run, "tmp_path")
async def test_waiting_read_returns_when_a_record_arrives(three: HttpCluster) -> None:
    await three.create("t", [2])
    waiting = asyncio.create_task(three[1].get("/topics/t/partitions/0/records?offset=0&timeout=20000&format=json"))
    quick = [await three[1].get("/topics/t/partitions/0/offsets") for _ in range(5)]
    assert {each.status for each in quick} == {200}, "what waits does not hold up what does not"
    await write(three[3], "t", 0, "there")
    assert [each["value"] for each in (await waiting).json["records"]] == ["there"]
    empty = await three[1].get("/topics/t/partitions/0/records?offset=1&timeout=50")
    assert (empty.status, empty.json["records"]) == (200, [])


async def events(broker: ClusterBroker, path: str, *, after: str = "") -> AsyncGenerator[tuple[int, Any], None]:
    """Returns (offset, value) of each event."""
    headers = {"Accept": EVENTS, **({"Last-Event-ID": after} if after else {})}
    number = -1
    async with broker.session.get(broker.url + path, headers=headers) as response:
        assert response.status == 200
        async for line in response.content:
            if line.startswith(b"id: "):
                number = int(line[4:])
            elif line.startswith(b"data: ") and number >= 0:
                yield number, json.loads(line[6:])["value"]


@pytest.mark.parametrize("clean", [True, False])
@run_by(run, "tmp_path")
async def test_event_stream_continues_when_the_leader_changes(three: HttpCluster, *, clean: bool) -> None:
    await three.create("t", [2, 3])
    await wait_until(lambda: set(three[1].broker.image.topics["t"].partitions[0].isr) == {2, 3})
    stream = events(three[1], "/topics/t/partitions/0/records?format=json")
    for n in range(3):
        assert await write(three[1], "t", 0, n) == [n]
        assert await anext(stream) == (n, n)
    reading = asyncio.ensure_future(anext(stream))
    await three.end(2, clean=clean)
    assert await write(three[1], "t", 0, 3) == [3], "a record waits for the next leader"
    assert await reading == (3, 3)
    await write(three[3], "t", 0, 4)
    assert await anext(stream) == (4, 4)
    await stream.aclose()
    resumed = events(three[3], "/topics/t/partitions/0/records?format=json", after="3")
    assert await anext(resumed) == (4, 4)
    await resumed.aclose()


@run_by(run, "tmp_path")
async def test_event_stream_continues_on_the_broker_that_becomes_leader(three: HttpCluster) -> None:
    await three.create("t", [2, 3])
    await wait_until(lambda: set(three[1].broker.image.topics["t"].partitions[0].isr) == {2, 3})
    path = "/topics/t/partitions/0/records?format=json"
    next_leader, other = events(three[3], path), events(three[1], path)
    await write(three[3], "t", 0, "a")
    assert await anext(next_leader) == await anext(other) == (0, "a")
    await three.end(2)
    await write(three[3], "t", 0, "b")
    assert await anext(next_leader) == await anext(other) == (1, "b")
    await next_leader.aclose()
    await other.aclose()


async def consumer(three: HttpCluster, group: str) -> tuple[ClusterBroker, str]:
    """Returns the broker that coordinates a group, and the path of a consumer there; all others redirect to it."""
    body = {"name": "c", "format": "json", "auto.offset.reset": "earliest", "auto.commit.enable": "false"}
    found: dict[str, ClusterBroker] = {}
    for broker in three.brokers.values():
        async with broker.session.post(
            f"{broker.url}/consumers/{group}", json=body, headers={"Content-Type": V2}, allow_redirects=False
        ) as response:
            if response.status == 307:
                where = response.headers["Location"]
                [target] = [each for each in three.brokers.values() if where == f"{each.url}/consumers/{group}"]
                found[target.url] = target
            else:
                assert response.status in (200, 409), await response.text()
                found[broker.url] = broker
    [home] = found.values()
    return home, f"/consumers/{group}/instances/c"


async def read_all(home: ClusterBroker, path: str, count: int) -> list[Any]:
    rows: list[Any] = []
    while len(rows) < count:
        answer = await home.ask("GET", f"{path}/records?timeout=5000", accept=V2_JSON)
        assert answer.status == 200, answer
        rows += answer.json
    return rows


@run_by(run, "tmp_path")
async def test_consumer_reads_all_brokers_and_every_broker_reports_its_lag(three: HttpCluster) -> None:
    await three.create("t", [1], [2], [3])
    for partition in range(3):
        await write(three[1], "t", partition, partition, partition)
    homes = []
    for n in range(4):
        group = f"g{n}"
        home, path = await consumer(three, group)
        homes.append(home.number)
        assert (await home.ask("POST", f"{path}/subscription", {"topics": ["t"]}, kind=V2)).status == 204
        rows = await read_all(home, path, 6)
        assert sorted(each["value"] for each in rows) == [0, 0, 1, 1, 2, 2]
        assert (await home.ask("POST", f"{path}/offsets", kind=V2)).status == 200
        groups = f"{three.url}/consumer-groups/{group}"
        assert (await three.get_from_all(groups)).json["coordinator"]["related"].endswith(f"/brokers/{home.number}")
        lags = (await three.get_from_all(f"{groups}/lags")).json["data"]
        assert [(each["partition_id"], each["lag"], each["log_end_offset"]) for each in lags] == [
            (0, 0, 2), (1, 0, 2), (2, 0, 2),
        ]  # fmt: skip
        assert len((await three.get_from_all(f"{groups}/consumers")).json["data"]) == 1
        assert (await three.get_from_all(f"{groups}/lag-summary")).json["total_lag"] == 0
        assert (await home.ask("DELETE", path, kind=V2)).status == 204
    assert len(set(homes)) > 1, "several brokers coordinate"
    listed = (await three.get_from_all(f"{three.url}/consumer-groups")).json["data"]
    assert [each["consumer_group_id"] for each in listed] == ["g0", "g1", "g2", "g3"]
    assert (await three.get_from_all(f"{three.url}/consumer-groups/none")).json["error_code"] == 40405


@run_by(run, "tmp_path")
async def test_consumer_waits_and_seeks_in_partitions_of_other_brokers(three: HttpCluster) -> None:
    await three.create("t", [1], [2], [3])
    home, path = await consumer(three, "g")
    mine = {"partitions": [{"topic": "t", "partition": p} for p in range(3)]}
    assert (await home.ask("POST", f"{path}/assignments", mine, kind=V2)).status == 204
    for partition in range(3):
        waiting = asyncio.create_task(read_all(home, path, 1))
        await write(three[2], "t", partition, partition)
        [row] = await waiting
        assert (row["partition"], row["value"]) == (partition, partition)
    assert (await home.ask("POST", f"{path}/positions/beginning", mine, kind=V2)).status == 204
    assert len(await read_all(home, path, 3)) == 3
    assert (await home.ask("POST", f"{path}/positions/end", mine, kind=V2)).status == 204
    when = {"timestamps": [{**each, "timestamp": "2020-01-01T00:00:00+00:00"} for each in mine["partitions"]]}
    assert (await home.ask("POST", f"{path}/positions", when, kind=V2)).status == 204
    assert len(await read_all(home, path, 3)) == 3


@run_by(run, "tmp_path", offsets_topic_replication_factor=3)
async def test_consumer_continues_at_the_next_coordinator(three: HttpCluster) -> None:
    await three.create("t", [1, 2, 3])
    await write(three[2], "t", 0, "a", "b")
    home, path = await consumer(three, "g")
    await wait_until(lambda: three.is_known_by_all(lambda node: "__consumer_offsets" in node.image.topics))
    assert (await home.ask("POST", f"{path}/subscription", {"topics": ["t"]}, kind=V2)).status == 204
    assert len(await read_all(home, path, 2)) == 2
    assert (await home.ask("POST", f"{path}/offsets", kind=V2)).status == 200
    await three.end(home.number, clean=True)
    [any_other, _] = three.brokers.values()
    await write(any_other, "t", 0, "c")
    body: list[Any] = []
    async with asyncio.timeout(120):
        while not body:  # a client that follows redirects, and asks again
            answer = await any_other.ask("GET", f"{path}/records?timeout=2000", accept=V2_JSON)
            body = answer.json if answer.status == 200 else []
    assert [row["value"] for row in body] == ["c"]


def test_broker_frees_consumers_that_moved_to_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "SWEEP_SECONDS", 0.1)

    async def scenario(three: HttpCluster) -> None:
        await three.create("t", [1, 2, 3])
        await write(three[2], "t", 0, "a")
        home, path = await consumer(three, "g")
        assert (await home.ask("POST", f"{path}/subscription", {"topics": ["t"]}, kind=V2)).status == 204
        assert len(await read_all(home, path, 1)) == 1
        assert consumers(home) == 1
        await home.broker.hand_over()
        await wait_until(lambda: not consumers(home))
        again = await home.get(f"{path}/assignments", V2)
        assert again.status == 200, "whoever follows redirects finds it at the next one"
        assert sum(consumers(each) for each in three.brokers.values()) == 1

    run(tmp_path, scenario, offsets_topic_replication_factor=3)


async def coordinate_at(three: HttpCluster, group: str, to: ClusterBroker) -> None:
    """Makes a broker the coordinator of a group, and waits until all brokers know that."""
    number = await to.broker.group_coordinators.host.partition_for(group)
    topic = to.broker.image.topics["__consumer_offsets"]
    order = sorted(topic.partitions[number].replicas, key=lambda node: node != to.number)
    assert await to.broker.submit(Reassign((Move(topic.topic_id, number, tuple(order)),))) == (None,)
    await to.broker.submit(ElectLeaders(True, ((topic.topic_id, number),)))

    def leads(node: Broker) -> bool:
        return node.image.topics["__consumer_offsets"].partitions[number].leader == to.number

    await wait_until(lambda: three.is_known_by_all(leads))
    await wait_until(lambda: to.broker.group_coordinators.host.find_shard(group) is not None)


@pytest.mark.parametrize("is_used_elsewhere", [False, True])
def test_consumer_whose_coordinator_comes_back_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_used_elsewhere: bool
) -> None:
    """The broker that coordinated the group before still has the consumer, as a member that was replaced."""
    monkeypatch.setattr(instances, "SWEEP_SECONDS", 600.0)

    async def scenario(three: HttpCluster) -> None:
        await three.create("t", [1, 2, 3])
        await write(three[2], "t", 0, "a", "b")
        home, path = await consumer(three, "g")
        assert (await home.ask("POST", f"{path}/subscription", {"topics": ["t"]}, kind=V2)).status == 204
        assert len(await read_all(home, path, 2)) == 2
        assert (await home.ask("POST", f"{path}/offsets", kind=V2)).status == 200
        other = next(each for each in three.brokers.values() if each is not home)
        await coordinate_at(three, "g", other)
        if is_used_elsewhere:
            await write(other, "t", 0, "c")
            assert [row["value"] for row in await read_all(other, path, 1)] == ["c"]
            assert (await other.ask("POST", f"{path}/offsets", kind=V2)).status == 200
            assert (await other.ask("POST", f"{path}/subscription", {"topics": ["t", "u"]}, kind=V2)).status == 204
            await other.ask("GET", f"{path}/records", accept=V2_JSON)
        await coordinate_at(three, "g", home)
        await write(home, "t", 0, "d")
        answers = [await home.ask("GET", f"{path}/records", accept=V2_JSON)]
        while answers[-1].status != 200 or not answers[-1].json:
            answers.append(await home.ask("GET", f"{path}/records", accept=V2_JSON))
            assert len([each for each in answers if each.status != 200]) <= 1, answers
        assert [row["value"] for row in answers[-1].json] == ["d"]
        topics = (await home.ask("GET", f"{path}/subscription", accept=V2)).json["topics"]
        assert topics == (["t", "u"] if is_used_elsewhere else ["t"])

    run(tmp_path, scenario, offsets_topic_replication_factor=3)


def consumers(broker: ClusterBroker) -> int:
    """Returns how many consumers a broker has, from its metrics."""
    [line] = [each for each in broker.broker.metrics.render().splitlines() if each.startswith("tiered_http_consumers ")]
    return int(float(line.split()[1]))


@run_by(run, "tmp_path")
async def test_partition_without_a_leader_is_reported_and_others_are_served(three: HttpCluster) -> None:
    await three.create("t", [1], [2])
    for partition in range(2):
        await write(three[1], "t", partition, partition)
    homes = [await consumer(three, f"g{n}") for n in range(4)]
    home, path = next((home, path) for home, path in homes if home.number != 2)
    await three.end(2)
    await wait_until(lambda: three[1].broker.image.topics["t"].partitions[1].leader < 0)
    mine = {"partitions": [{"topic": "t", "partition": p} for p in range(2)]}
    assert (await home.ask("POST", f"{path}/assignments", mine, kind=V2)).status == 204
    assert [row["value"] for row in await read_all(home, path, 1)] == [0]
    assert (await three[3].get("/topics/t/partitions/0/offsets")).status == 200
    # Both wait for a new leader, as long as HTTP does.
    gone, unread = await asyncio.gather(
        three[3].get("/topics/t/partitions/1/offsets"), three[3].get("/topics/t/partitions/1/records", JSON)
    )
    assert (gone.status, gone.json["error_code"]) == (404, 40404), gone
    assert unread.json["message"] == "no broker leads t-1 now"


@run_by(run, "tmp_path")
async def test_every_broker_lists_moving_partitions(three: HttpCluster) -> None:
    await three.create("t", [1, 2], [1, 2])
    await three.end(2)
    await wait_until(lambda: three[1].broker.image.topics["t"].partitions[1].isr == (1,))
    image = three[1].broker.image.topics["t"]
    assert await three[1].broker.submit(Reassign((Move(image.topic_id, 1, (2,)),))) == (None,)
    await wait_until(lambda: three.is_known_by_all(lambda node: node.image.topics["t"].partitions[1].is_reassigning))
    for path in ("topics/-/partitions/-/reassignment", "topics/t/partitions/-/reassignment"):
        [row] = (await three.get_from_all(f"{three.url}/{path}")).json["data"]
        assert (row["partition_id"], row["adding_replicas"], row["removing_replicas"]) == (1, [], [1])
    one = (await three.get_from_all(f"{three.url}/topics/t/partitions/0/reassignment")).json
    assert (one["adding_replicas"], one["removing_replicas"]) == ([], [])


@pytest.mark.slow
def test_broker_processes_serve_for_each_other_after_a_kill(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    quick = ("-c", "broker.session.timeout.ms=1500", "-c", "broker.heartbeat.interval.ms=300")
    with ExitStack() as stack:
        three = [
            stack.enter_context(
                ServeProcess(tmp_path / f"b{n}", "--node-id", str(n), "--store", f"file://{bucket}", *quick)
            )
            for n in (1, 2, 3)
        ]
        url = f"/v3/clusters/{three[0].ask('GET', '/tiered/v1/node')[1]['cluster_id']}"
        wanted = {"topic_name": "t", "replicas_assignments": {"0": [1, 2], "1": [2, 3], "2": [3, 1]}}
        assert three[2].ask("POST", f"{url}/topics", wanted)[0] == 201
        for n, broker in enumerate(three):
            for partition in range(3):
                sent = {"records": [{"value": n}]}
                status, answer = broker.ask("POST", f"/topics/t/partitions/{partition}", sent, V2_JSON)
                assert (status, answer["offsets"][0]["offset"]) == (200, n), answer
        three[1].stop(signal.SIGKILL)
        for broker in (three[0], three[2]):
            for partition in range(3):
                status, answer = broker.ask(
                    "POST", f"/topics/t/partitions/{partition}", {"records": [{"value": 9}]}, V2_JSON
                )
                assert (status, answer["offsets"][0]["error"]) == (200, None), answer
        for partition in range(3):
            place = f"/topics/t/partitions/{partition}/records?format=json"
            [one, other] = [broker.ask("GET", place) for broker in (three[0], three[2])]
            assert one == other
            assert [each["value"] for each in one[1]["records"]] == [0, 1, 2, 9, 9]
