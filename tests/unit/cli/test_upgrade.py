"""Tests of the words of `tiered cluster upgrade`."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.network import SimNetwork
from tests.unit.kafka.scripted import Scripted
from tiered.metadata.features import HIGHEST_METADATA_VERSION, METADATA_VERSION
from tiered_api.cli.cluster import brokers, upgrade
from tiered_api.cli.cluster.upgrade import broker_rows, describe, find_level, find_supported
from tiered_api.health.view import LIVE, BrokerSummary, ClusterView
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.protocol.messages.api_versions import (
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

NEWEST = HIGHEST_METADATA_VERSION


def reply(supported: int | None, level: int = 0) -> ApiVersionsResponse:
    """Returns the reply of a broker; `supported` None is one of the program before levels."""
    found = ApiVersionsResponse()
    if supported is not None:
        found.supported_features = [SupportedFeatureKey(METADATA_VERSION, 0, supported)]
    found.finalized_features = [FinalizedFeatureKey(METADATA_VERSION, level, level)] if level else []
    return found


def view(*nodes: int) -> ClusterView:
    return ClusterView(1, {node: BrokerSummary(node, LIVE) for node in nodes}, [])


@pytest.mark.parametrize(
    ("replies", "level", "supported", "words"),
    [
        ([reply(NEWEST), reply(NEWEST)], 0, NEWEST, f"writes level 0 and could write {NEWEST}: --finalize raises it"),
        ([reply(NEWEST), reply(None)], 0, 0, "writes level 0; brokers 2 have an earlier program: replace it first"),
        ([reply(NEWEST, 1), reply(1, 1)], 1, 1, "writes level 1; brokers 2 have an earlier program"),
        ([reply(NEWEST, NEWEST), reply(NEWEST, 1)], NEWEST, NEWEST, "there is nothing to finalize"),
        ([reply(1, 1), reply(1, 1)], 1, 1, "writes level 1, as its program does; this command is of"),
    ],
    ids=["all can", "one cannot", "one is behind", "finalized", "newer command"],
)  # fmt: skip
def test_state_of_an_upgrade_says_what_comes_next(
    replies: list[ApiVersionsResponse], level: int, supported: int, words: str
) -> None:
    known = dict(enumerate(replies, start=1))
    assert (find_level(known), find_supported(known)) == (level, supported)
    assert words in describe(level, supported, view(1, 2), known)


def test_broker_that_does_not_reply_is_named() -> None:
    known = {1: reply(NEWEST)}
    assert "brokers 2, 3 did not say what they support" in describe(0, NEWEST, view(1, 2, 3), known)
    assert [row["supports"] for row in broker_rows(view(1, 2), known)] == [NEWEST, None]


@pytest.mark.parametrize("ask", [upgrade._ask, brokers._lags])
def test_broker_that_has_just_ended_is_not_waited_for(ask: Callable[[KafkaClient, int], Awaitable[object]]) -> None:
    """It counts as live until its session ends."""
    loop = SimLoop(1)
    net, clock = SimNetwork(loop, random.Random(1)).host("a"), SimClock(loop)

    async def scenario() -> None:
        first, second = Scripted(1), Scripted(2)
        for each in (first, second):
            await each.start(net, "a")
        first.set_leaders("t", first, second)
        client = KafkaClient(net, clock, [Address("a", first.port)], retry_seconds=20)
        await client.fetch_metadata([])
        second.stop()
        began_ns = clock.mono_ns()
        assert not await ask(client, 2)
        assert clock.mono_ns() - began_ns < 10**9
        await client.close()
        first.stop()

    loop.run(scenario())
