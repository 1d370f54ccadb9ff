"""Tests of well-formed requests with any values: each gets a reply. Other requests end their own connection and nothing
else.

The tests cover every API in every version, with values at their bounds. A handler that fails ends its connection for
the reason `fault`: none may.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from tests.e2e.kafka_site import KafkaBroker, RawClient, run
from tests.fuzz.mutations import mutate
from tests.scenario import run_by
from tests.unit.kafka.values import Drawn
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.protocol import apis
from tiered_api.kafka.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tiered_api.kafka.protocol.schema import FieldSpec, FieldType, Message

REQUESTS = 5
"""Requests of each version."""

BROKERS = 4
"""Number of brokers that share the APIs."""

SOUND_VALUES = {
    "acks": (-1, 0, 1, 7),
    "count": (-1, 0, 2, 3),
    "generation_id": (-1, 0, 1),
    "index": (0, 1, 2, -1),
    "max_wait_ms": (0, 10, -1),
    "num_partitions": (-1, 0, 1, 3),
    "partition": (0, 1, 2, -1),
    "partition_index": (0, 1, 2, -1),
    "partition_indexes": (0, 1, 2, -1),
    "rebalance_timeout_ms": (0, 50, -1),
    "replication_factor": (-1, 0, 1, 2),
    "session_timeout_ms": (6000, 5999, -1, 2**31 - 1),
    "timeout_ms": (0, 50, -1),
}
"""Values that are frequent because they matter, and because no valid wait takes long with them."""

ODD_CHANCE = 0.1
"""Chance of any other value."""
ALWAYS_SOUND = ("count", "max_wait_ms", "num_partitions", "rebalance_timeout_ms", "timeout_ms")


class PlausibleRequests(Drawn):
    """Requests that mostly name an existing topic and an existing group."""

    def __init__(self, seed: int, replica: LeaderReplica) -> None:
        super().__init__(seed)
        self._topic, self._topic_id = replica.topic, replica.topic_id

    def value(self, row: FieldSpec, version: int) -> Any:
        if row.name in SOUND_VALUES and (row.name in ALWAYS_SOUND or self.random.random() > ODD_CHANCE):
            return self.random.choice(SOUND_VALUES[row.name])
        if row.kind is FieldType.UUID and self.random.random() > ODD_CHANCE:
            return self._topic_id
        if row.kind is FieldType.STRING and self.random.random() < 0.5:
            return self.random.choice((self._topic, "readers"))
        return super().value(row, version)


async def is_answered(client: RawClient, api: apis.Api, version: int, message: Message) -> bool:
    """Sends a request and reads its reply; False if the connection ends instead."""
    if api.key == 0 and getattr(message, "acks", 1) == 0:
        await client.send(client.frame(message, version))
        return True
    try:
        await client.ask(message, version, api.response_type)
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    return True


@pytest.mark.parametrize("start", range(BROKERS))
@run_by(run, "tmp_path")
async def test_well_formed_request_gets_a_reply(site: KafkaBroker, *, start: int) -> None:
    for api in list(apis.APIS.values())[start::BROKERS]:
        replica = await site.create(f"orders-{api.key}", 2)
        for version in api.served_versions:
            for seed in range(REQUESTS):
                message = PlausibleRequests(seed * 100 + version, replica).message(api.request_type, version)
                client = await site.client()
                assert await is_answered(client, api, version, message) or api.key == 0, (version, message)
                assert not site.count_refusals("fault"), (version, message)
                client.close()


@run_by(run, "tmp_path")
async def test_mutated_request_harms_only_its_own_connection(site: KafkaBroker) -> None:
    """The mutated request may get a late reply or none; a request on the next connection gets one."""
    replica = await site.create("orders", 2)
    rng = Random(5)
    for api in apis.APIS.values():
        for version in api.served_versions:
            client = await site.client()
            frame = client.frame(PlausibleRequests(version, replica).message(api.request_type, version), version)[4:]
            kept = rng.choice((0, 8, len(frame) // 2))
            hostile = frame[:kept] + mutate(rng, frame[kept:])
            await client.send(len(hostile).to_bytes(4, "big") + hostile)
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.reader.read(1)
            client.close()
            assert not site.count_refusals("fault"), (api.name, version, hostile.hex())
        client = await site.client()
        assert (await client.ask(ApiVersionsRequest("a", "1"), 3, ApiVersionsResponse)).error_code == 0
        client.close()
