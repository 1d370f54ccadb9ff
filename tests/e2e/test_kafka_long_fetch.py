"""Tests of fetches of so many partitions that they are handled in pieces: the same replies, and other requests in
between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.kafka_site import KafkaBroker, batch, fetch, run, values_of, wait_until
from tests.scenario import run_by
from tiered.controller.requests import DeleteTopic
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tiered_api.kafka.protocol.messages.fetch import FetchResponse
from tiered_api.kafka.server.fetch import large_fetch
from tiered_api.kafka.server.handlers import fetch as handler

COUNT = 60


@pytest.fixture(autouse=True)
def use_tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "LARGE_FETCH_PARTITIONS", 2)
    monkeypatch.setattr(large_fetch, "PIECE_PARTITIONS", 1)


async def create_replicas(site: KafkaBroker, topic: str = "t") -> list[LeaderReplica]:
    await site.create(topic, COUNT)
    return [site.broker.leader_replica(topic, p) for p in range(COUNT)]


@pytest.mark.parametrize("version", [4, 11, 12, 13, 17])
@run_by(run, "tmp_path")
async def test_long_fetch_returns_what_short_ones_return(
    site: KafkaBroker, *, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    held = await create_replicas(site)
    for p in (0, 7, 8, COUNT - 1):
        await held[p].append(batch([b"v%d" % p] * 3))
    client = await site.client()
    wanted = [(each, 4 if p == 8 else 0) for p, each in enumerate(held)]  # one is out of range
    for most in (1 << 24, 100):
        answers = []
        for long in (2, 1_000):
            monkeypatch.setattr(handler, "LARGE_FETCH_PARTITIONS", long)
            for connection in site.server.connections:
                connection.fetch_rotation = 3
            await client.send(client.frame(fetch(*wanted, max_bytes=most), version))
            answers.append((await client.read_reply())[4:])
        assert answers[0] == answers[1]


@run_by(run, "tmp_path")
async def test_record_appended_between_or_after_the_pieces_is_returned(site: KafkaBroker) -> None:
    held = await create_replicas(site)
    client, fetches = await site.client(), site.server.dispatch.fetch_handler.fetches
    for late in (False, True):
        offset = held[0].high_watermark
        request = fetch((held[0], offset), *((each, 0) for each in held[1:]), wait_ms=60_000)
        await client.send(client.frame(request, 12))
        await wait_until(lambda: len(fetches.parked.fetches) == 1)
        if late:
            [poll] = fetches.parked.fetches
            assert isinstance(poll, large_fetch.LargeFetch)
            await wait_until(lambda poll=poll: poll._parking.has_deadline)  # type: ignore[misc]
        await held[0].append(batch([b"now"]))
        got = await client.receive(FetchResponse, 12)
        assert values_of(got.responses[0].partitions[0].records) == [b"now"]
        assert len(got.responses[0].partitions) == COUNT
        assert (fetches.parked.partitions, len(fetches.parked.fetches)) == (0, 0)


@run_by(run, "tmp_path")
async def test_long_fetch_ends_with_its_deadline_its_client_or_its_topic(site: KafkaBroker) -> None:
    held = await create_replicas(site)
    fetches = site.server.dispatch.fetch_handler.fetches
    client = await site.client()
    await client.send(client.frame(fetch(*((each, 0) for each in held), wait_ms=50), 12))
    got = await client.receive(FetchResponse, 12)
    assert {part.error_code for part in got.responses[0].partitions} == {0}
    gone = await site.client()
    await gone.send(gone.frame(fetch(*((each, 0) for each in held), wait_ms=60_000), 12))
    await wait_until(lambda: bool(fetches.parked.fetches))
    gone.close()
    await wait_until(lambda: not fetches.parked.fetches)
    assert fetches.parked.partitions == 0
    await client.send(client.frame(fetch(*((each, 0) for each in held), wait_ms=60_000), 12))
    await wait_until(lambda: bool(fetches.parked.fetches))
    await site.broker.submit(DeleteTopic("t"))
    got = await client.receive(FetchResponse, 12)
    assert 3 in {part.error_code for part in got.responses[0].partitions}
    assert fetches.parked.partitions == 0 and not held[5].reads._listeners


def test_other_requests_are_served_between_the_pieces_of_a_fetch(tmp_path: Path) -> None:
    async def scenario(site: KafkaBroker) -> None:
        held = await create_replicas(site)
        long, small = await site.client(), await site.client()
        fetches = site.server.dispatch.fetch_handler.fetches
        turns = site.server.context.turns
        ended, share = asyncio.Event(), next(iter(site.server.connections)).turn_share

        def lasts() -> None:
            """Keeps the event loop so busy that a turn has time for one piece only. Its pieces and those of the first
            connection alternate."""
            if not ended.is_set():
                until_then = asyncio.get_running_loop().time() + 0.011
                while asyncio.get_running_loop().time() < until_then:
                    pass
                turns.run_later(lasts, share)

        lasts()
        await long.send(long.frame(fetch(*((each, 0) for each in held)), 12))
        await wait_until(lambda: bool(fetches.parked.fetches))
        await small.ask(ApiVersionsRequest("a", "1"), 3, ApiVersionsResponse)
        assert fetches.parked.fetches, "the long one is not done yet"
        got = await long.receive(FetchResponse, 12)
        assert len(got.responses[0].partitions) == COUNT
        ended.set()

    run(tmp_path, scenario)
