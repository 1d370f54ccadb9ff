"""Tests of one greedy holder of each pot that all clients share, over the wire: other clients do not wait.

`tests/e2e/test_greedy_holders.py` shows what remains for others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from http.client import HTTPResponse

from tests.e2e.http_bodies import V2
from tests.hostile.attacks import ATTACKS, attack
from tests.hostile.target import FULL, AttackedBroker, scale
from tests.hostile.test_bodies import ask
from tests.hostile.test_groups import test_member_metadata_is_bounded_over_all_groups as metadata_of_members
from tests.hostile.test_json_bodies import test_bodies_just_below_the_limits_delay_nobody as large_bodies
from tests.hostile.test_many import test_invented_producers_are_bounded as invented_producers
from tests.hostile.test_many import test_partitions_are_bounded_and_many_empty_ones_stop_soon as empty_partitions
from tests.hostile.test_segments import test_fetches_that_wait_for_nothing_read_the_bucket_for_a_reply as cold_fetches
from tests.hostile.test_transactions import test_transactional_ids_are_bounded_in_memory as transactional_ids
from tiered.errors import Code
from tiered.quotas.shares import POTS
from tiered.records.batch import encode_batch
from tiered_api.http.consumers.instances import INSTANCES_MAX
from tiered_api.http.exchange import media_types
from tiered_api.kafka.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic

WORKERS = scale(4, 16)
STREAMS = scale(60, 400)
KEYED = scale(40, 1_000)
"""Producer ids of a partition: half of them may be idempotency keys."""


async def ask_often(count: int, ask_once: Callable[[int], int]) -> Counter[int]:
    """Sends requests from several threads, each with its number. Returns how often there was which status."""
    found = Counter[int]()

    def ask_some(first: int) -> None:
        found.update([ask_once(number) for number in range(first, count, WORKERS)])

    await asyncio.gather(*(asyncio.to_thread(ask_some, first) for first in range(WORKERS)))
    return found


@attack()
async def test_rest_consumers_of_one_holder_delay_nobody(to: AttackedBroker) -> None:
    async with to.attack("a pot of REST consumers", memory=80):
        found = await ask_often(
            scale(40, INSTANCES_MAX),
            lambda number: ask(to, "POST", f"/consumers/{to.name('g')}{number}", b"{}", Content_Type=V2),
        )
        assert found.keys() <= {200, 429} and found[200] <= INSTANCES_MAX * 3 // 4 + 1
        assert (429 in found) is FULL


@attack(tiered_http_connections_max=STREAMS)
async def test_event_streams_of_one_holder_delay_nobody(to: AttackedBroker) -> None:
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    held = list[HTTPResponse]()
    path = f"/topics/{to.name('t')}/partitions/0/records"

    def open_streams(worker: int) -> None:
        for number in range(worker, STREAMS - 5, WORKERS):
            connection = to.http(own=f"127.0.0.{2 + number % 40}")
            connection.request("GET", path, headers={"Accept": media_types.EVENTS})
            held.append(connection.getresponse())

    try:
        async with to.attack("a pot of event streams", memory=80):
            await asyncio.gather(*(asyncio.to_thread(open_streams, worker) for worker in range(WORKERS)))
            assert {each.status for each in held} == {200, 429}
            assert to.ask("GET", "/healthz")[0] == 200
    finally:
        for each in held:
            each.close()


@attack()
async def test_http_transactions_of_one_holder_delay_nobody(to: AttackedBroker) -> None:
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    record = {"topic_name": to.name("t"), "value": {"type": "STRING", "data": "v"}}
    async with to.attack("a pot of HTTP transactions", memory=80):
        found = await ask_often(
            scale(20, 2_000), lambda _: to.ask("POST", "/tiered/v1/transactions", {"records": [record]})[0]
        )
        assert found.keys() <= {200, 429, 503} and found[200]


@attack(tiered_producer_ids_max_per_partition=KEYED)
async def test_idempotency_keys_of_one_holder_delay_nobody(to: AttackedBroker) -> None:
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    path, body = f"/topics/{to.name('t')}/partitions/0/records", encode_batch([(0, None, b"v", ())])

    def write(number: int) -> int:
        return ask(to, "POST", path, body, Content_Type=media_types.BINARY, Idempotency_Key=f"key-{number}")

    async with to.attack("a pot of idempotency keys", memory=80):
        found = await ask_often(KEYED, write)
        assert found.keys() == {200, 429} and found[200] <= KEYED * 3 // 8 + 1


@attack(delegation_token_secret_key="key-of-tokens")
async def test_delegation_tokens_of_one_holder_delay_nobody(to: AttackedBroker) -> None:
    clients = [await to.logged_in(f"127.0.0.{2 + number}") for number in range(WORKERS)]
    codes = Counter[int]()
    async with to.attack("a pot of delegation tokens", memory=80):

        async def create(first: int) -> None:
            for _ in range(first, scale(40, 8_000), WORKERS):
                made = await clients[first].ask(
                    CreateDelegationTokenRequest(None, None, [], -1), 3, CreateDelegationTokenResponse
                )
                codes[made.error_code] += 1

        await asyncio.gather(*map(create, range(WORKERS)))
        refusals = {
            Code.THROTTLING_QUOTA_EXCEEDED.number,
            Code.POLICY_VIOLATION.number,
        }  # the latter at 1,000 of one user
        assert codes.keys() <= {0, *refusals} and codes[0]


TAKEN_BY = {
    "cold-reads": cold_fetches,
    "cold-read-bytes": cold_fetches,
    "partitions": empty_partitions,
    "broker-replicas": empty_partitions,
    "transaction-bytes": transactional_ids,
    "delegation-tokens": test_delegation_tokens_of_one_holder_delay_nobody,
    "event-streams": test_event_streams_of_one_holder_delay_nobody,
    "group-bytes": metadata_of_members,
    "producer-ids": invented_producers,
    "partition-producer-ids": invented_producers,
    "idempotency-keys": test_idempotency_keys_of_one_holder_delay_nobody,
    "http-memory": large_bodies,
    "http-transactions": test_http_transactions_of_one_holder_delay_nobody,
    "rest-consumers": test_rest_consumers_of_one_holder_delay_nobody,
}
"""The attack that takes of each pot, over the wire."""


def test_each_pot_has_an_attack_over_the_wire() -> None:
    assert TAKEN_BY.keys() == POTS.keys()
    assert set(TAKEN_BY.values()) <= ATTACKS.keys()
