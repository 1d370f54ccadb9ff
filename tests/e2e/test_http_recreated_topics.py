"""Tests of HTTP with a topic that is deleted and recreated, while the broker knows of both and has acted on neither:
replies until then, and clients of the first topic afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.e2e.http_site import RAW, HttpBroker, run, wait_until
from tests.e2e.test_http_consumers import HttpConsumer, values
from tests.e2e.test_http_consumers_bad_days import parts
from tests.e2e.test_http_reads import EVENTS, events
from tests.scenario import run_by
from tests.sim.rig.broker_rig import batch
from tiered.controller.requests import CreateTopic, DeleteTopic
from tiered_api.http.exchange.limits import HttpLimits

JSON_V2 = "application/vnd.kafka.json.v2+json"
PATH = "/topics/t/partitions/0/records"
LIMITS = HttpLimits(append_ms=500, leader_lookup_seconds=0.5)


class RecreatedHttpTopic:
    """The topic `t` with three records, and the steps that recreate it."""

    def __init__(self, where: HttpBroker) -> None:
        self.where = where
        self._deletion: asyncio.Task[None]

    async def create_first(self) -> None:
        await self.where.create("t")
        await self.where.produce("t", "0", "1", "2")

    async def _delete_topic(self) -> None:
        await self.where.broker.submit(DeleteTopic("t"))

    async def recreate(self) -> None:
        """Recreates the topic; returns once the broker knows of it. Requests get replies once it has acted."""
        node = self.where.broker
        old = node.leader_replica("t", 0)
        await node.hosted_replicas._role_change_lock.acquire()
        self._deletion = asyncio.create_task(self._delete_topic())
        await wait_until(lambda: "t" not in node.image.topics)
        made = asyncio.create_task(node.submit(CreateTopic("t")))
        await wait_until(lambda: "t" in node.image.topics)
        self._creation = made
        assert node.image.topics["t"].topic_id != old.topic_id

    async def release_broker(self) -> None:
        self.where.broker.hosted_replicas._role_change_lock.release()
        await self._deletion
        await self._creation


def run_recreated(directory: Path, scenario: Callable[[RecreatedHttpTopic], Awaitable[None]]) -> None:
    async def run_all(where: HttpBroker) -> None:
        again = RecreatedHttpTopic(where)
        await again.create_first()
        await scenario(again)

    run(directory, run_all, LIMITS)


@run_by(run_recreated, "tmp_path")
async def test_http_write_is_in_the_second_topic_or_refused(again: RecreatedHttpTopic) -> None:
    where = again.where
    record = {"value": {"type": "JSON", "data": "x"}}
    one = f"{where.cluster}/topics/t/records"

    async def all_ways() -> list[int | None]:
        """Returns the offset that each kind of write reports."""
        found: list[int | None] = []
        for _ in range(3):  # the head of the first is remembered
            found.append((await where.ask("POST", one, record)).json.get("offset"))
        body = {"records": [{"value": "x"}]}
        for path in ("/topics/t", "/topics/t/partitions/0"):
            v2 = (await where.ask("POST", path, body, kind=JSON_V2)).json
            found.append(v2["offsets"][0].get("offset") if "offsets" in v2 else None)
        many = (await where.ask("POST", f"{one}:batch", {"entries": [{"id": "1", **record}]})).json
        found.append(many["successes"][0].get("offset") if many.get("successes") else None)
        raw = await where.ask("POST", PATH, bytes(batch([b"x"])), kind=RAW)
        return [*found, raw.json.get("base_offset")]

    assert await all_ways() == [3, 4, 5, 6, 7, 8, 9]
    await again.recreate()
    assert await all_ways() == [None] * 7
    await again.release_broker()
    assert await all_ways() == [0, 1, 2, 3, 4, 5, 6]


@run_by(run_recreated, "tmp_path")
async def test_record_stream_ends_with_its_topic(again: RecreatedHttpTopic) -> None:
    """The stream named its topic once, at its beginning."""
    where = again.where
    more: asyncio.Queue[int] = asyncio.Queue()

    async def lines() -> Any:
        while (number := await more.get()) >= 0:
            yield json.dumps({"value": {"type": "JSON", "data": number}}).encode()

    kind = {"Content-Type": "application/json"}
    more.put_nowait(0)
    url = f"{where.url}{where.cluster}/topics/t/records"
    async with where.session.post(url, data=lines(), headers=kind) as response:
        assert json.loads(await response.content.readline())["offset"] == 3
        await again.recreate()
        await again.release_broker()
        more.put_nowait(1)
        assert json.loads(await response.content.readline())["error_code"] >= 400
        more.put_nowait(-1)
    assert where.broker.leader_replica("t", 0).log.end_offset == 0


@run_by(run_recreated, "tmp_path")
async def test_http_read_is_of_the_second_topic_or_refused(again: RecreatedHttpTopic) -> None:
    where = again.where
    offsets = "/topics/t/partitions/0/offsets"
    state = "/tiered/v1/topics/t/partitions/0"
    paths = [(f"{PATH}?offset=0", ""), (f"{PATH}?offset=0", RAW), (f"{PATH}?offset=0", EVENTS), (offsets, "")]
    for path, accept in (paths[0], paths[1], paths[3], (state, "")):
        assert (await where.get(path, accept)).status == 200
    await again.recreate()
    for path, accept in (*paths, (state, "")):
        answer = await where.get(path, accept)
        assert answer.status >= 400 or b"error" in answer.body, (path, accept, answer)
    await again.release_broker()
    assert (await where.get(offsets)).json == {"beginning_offset": 0, "end_offset": 0}


@run_by(run_recreated, "tmp_path")
async def test_event_stream_ends_with_its_topic(again: RecreatedHttpTopic) -> None:
    where = again.where
    async with where.session.get(f"{where.url}{PATH}?offset=1", headers={"Accept": EVENTS}) as response:
        assert [event["id"] for event in await events(response, 2)] == [1, 2]
        await again.recreate()
        await again.release_broker()
        await where.produce("t", "10", "11", "12", "13", "14")
        assert (await response.read()).startswith(b"event: error")


@run_by(run_recreated, "tmp_path")
async def test_waiting_consumer_reads_the_second_topic_from_its_beginning(again: RecreatedHttpTopic) -> None:
    """One read continues until it has enough records. It has records of the first topic when the second one appears."""
    where = again.where
    one = await HttpConsumer.create(where, "g", fetch_min_bytes="120", consumer_request_timeout_ms="30000")
    await one.ask_without_reply("POST", "/assignments", parts(("t", 0)))
    old = where.broker.leader_replica("t", 0)
    reading = asyncio.create_task(one.ask("GET", "/records", accept=JSON_V2))
    await wait_until(lambda: bool(old.reads._parked))
    await again.recreate()
    await again.release_broker()
    await where.produce("t", "10", "11", "12", "13", "14")
    assert values((await reading).json) == [0, 1, 2, 10, 11, 12, 13, 14]
