"""Tests of REST consumers with very many partitions, and of requests that name them again and again."""

from __future__ import annotations

import asyncio

from tests.e2e.http_bodies import V2
from tests.hostile.attacks import attack
from tests.hostile.target import AttackedBroker, rounds, scale
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic

PARTITIONS = scale(300, 2_900)
ROWS = scale(1_000, 14_000)


@attack()
async def test_rest_consumers_that_name_many_partitions_delay_nobody(to: AttackedBroker) -> None:
    await to.create(CreatableTopic(to.name("t"), PARTITIONS, 1))
    rows = [{"topic": to.name("t"), "partition": PARTITIONS - 1 - at % 9, "offset": 0} for at in range(ROWS)]
    named = [{"topic": to.name("t"), "partition": at} for at in range(PARTITIONS)]
    seen = [{"topic": each["topic"], "partition": each["partition"]} for each in rows]
    asked = (
        ("POST", "/assignments", {"partitions": named}),
        ("POST", "/positions", {"offsets": rows}),
        ("POST", "/positions/end", {"partitions": seen}),
        ("POST", "/offsets", {"offsets": rows}),
        ("GET", "/offsets", {"partitions": seen}),
        ("GET", "/records?timeout=10", None),
    )

    async def consume(number: int) -> set[int]:
        group = f"/consumers/{to.name('g')}{number}"
        made, answer = await asyncio.to_thread(to.ask, "POST", group, {"auto.commit.enable": "false"}, V2)
        found = {made}
        for _ in rounds(1, 10):
            for method, path, body in asked:
                place = f"{group}/instances/{answer['instance_id']}{path}"
                found.add((await asyncio.to_thread(to.ask, method, place, body, V2))[0])
        return found

    async with to.attack("REST consumers of many partitions", memory=120):
        found = await asyncio.gather(*map(consume, range(scale(2, 4))))
        assert set().union(*found) <= {200, 204, 429}
