"""Tests of an unreachable metadata log: requests that need it fail soon, with an error that clients retry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.group_calls import QUICK
from tests.e2e.kafka_site import TEST_SECONDS, KafkaBroker, kafka_broker, wait_until
from tests.scenario import run_by
from tiered.coordination import internal_topic, producer_ids
from tiered.errors import Code
from tiered.object_store.faulty import Faults, faulty
from tiered.ports import World
from tiered_api.kafka.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tiered_api.kafka.server.handlers import metadata

CALLERS = 60
SECONDS = 1.0

OutageScenario = Callable[[KafkaBroker, Faults], Awaitable[None]]


def run(directory: Path, monkeypatch: pytest.MonkeyPatch, scenario: OutageScenario) -> None:
    """Runs `scenario` on a broker with short deadlines."""
    monkeypatch.setattr(internal_topic, "CREATE_SECONDS", SECONDS)
    monkeypatch.setattr(producer_ids, "BLOCK_SECONDS", SECONDS)
    monkeypatch.setattr(metadata, "CREATE_SECONDS", SECONDS)
    faults = Faults(reply_seconds=SECONDS / 10)

    def ports(world: World) -> World:
        return replace(world, store=faulty(world.store, faults, world.clock))

    async def run_all() -> None:
        async with asyncio.timeout(TEST_SECONDS), kafka_broker(directory, ports, **QUICK) as site:
            try:
                await scenario(site, faults)
            finally:
                faults.outage = False

    asyncio.run(run_all())


@run_by(run, "tmp_path", "monkeypatch")
async def test_waiting_producer_id_requests_fail_at_the_same_time(
    site: KafkaBroker, faults: Faults, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.outage = True
    clients = [await site.client() for _ in range(CALLERS)]
    begun = time.monotonic()
    answers = await asyncio.gather(
        *(client.ask(InitProducerIdRequest(None, 60_000), 4, InitProducerIdResponse) for client in clients)
    )
    assert {each.error_code for each in answers} == {Code.COORDINATOR_LOAD_IN_PROGRESS.number}
    assert time.monotonic() - begun < CALLERS * SECONDS / 2
    faults.outage = False
    monkeypatch.setattr(producer_ids, "BLOCK_SECONDS", TEST_SECONDS)
    answer = await clients[0].ask(InitProducerIdRequest(None, 60_000), 4, InitProducerIdResponse)
    assert answer.error_code == 0


@run_by(run, "tmp_path", "monkeypatch")
async def test_waiting_coordinator_requests_fail_at_the_same_time(site: KafkaBroker, faults: Faults) -> None:
    faults.outage = True
    clients = [await site.client() for _ in range(CALLERS)]
    request = FindCoordinatorRequest(coordinator_keys=[f"g{number}" for number in range(CALLERS)])
    begun = time.monotonic()
    answers = await asyncio.gather(*(client.ask(request, 4, FindCoordinatorResponse) for client in clients))
    codes = [each.error_code for answer in answers for each in answer.coordinators]
    assert codes == [Code.COORDINATOR_NOT_AVAILABLE.number] * CALLERS**2
    assert time.monotonic() - begun < CALLERS * SECONDS / 2


@run_by(run, "tmp_path", "monkeypatch")
async def test_topic_that_cannot_be_created_is_unknown_and_delays_nothing(
    site: KafkaBroker, faults: Faults, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.outage = True
    client = await site.client()
    for _ in range(2):
        request = MetadataRequest([MetadataRequestTopic(name="new")], True)
        answer = await client.ask(request, 12, MetadataResponse)
        assert answer.topics[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION.number
    assert site.broker.store.outage is not None
    monkeypatch.setattr(metadata, "CREATE_SECONDS", 10 * TEST_SECONDS)
    await client.ask(MetadataRequest([MetadataRequestTopic(name="newer")], True), 12, MetadataResponse)
    faults.outage = False
    await wait_until(lambda: "new" in site.broker.image.topics)
    assert "newer" not in site.broker.image.topics, "it was not even begun"
