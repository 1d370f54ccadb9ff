"""Attacks on a machine of two processes, with the settings and the bound on memory of one broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kafka_site import RawClient, batch
from tests.hostile import test_bodies, test_connections, test_logins
from tests.hostile.attacks import ATTACKS, TIMEOUT_SECONDS
from tests.hostile.target import AttackedBroker, attacked_broker, scale
from tests.hostile.test_records import produce
from tests.seeds import chosen
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic

PROCESSES = 2
FLOOD_SECONDS = scale(3, 12)
RATE, VALUE_BYTES, FLOODERS = 100_000, 10_000, 6
"""The quota in bytes a second, the bytes of a record, and the connections to each process."""
WINDOW_SECONDS = 11
REPORT_SECONDS = 1.0
"""Time in which a process of a busy machine reports what clients used."""


@pytest.mark.timeout(TIMEOUT_SECONDS)
@pytest.mark.parametrize(
    "attack",
    chosen(
        [
            test_connections.test_announced_frames_do_not_take_the_memory_of_others,
            test_connections.test_idle_connections_leave_room_for_others,
            test_logins.test_handshakes_that_never_end_delay_nobody,
            test_logins.test_logins_that_fail_delay_nobody,
            test_bodies.test_gzip_bodies_of_many_members_or_empty_ones_are_refused,
            test_bodies.test_long_setting_values_are_refused,
        ],
        [test_connections.test_announced_frames_do_not_take_the_memory_of_others],
    ),
)
def test_machine_is_attacked_as_one_broker(tmp_path: Path, attack: Callable[..., None]) -> None:
    run, settings = ATTACKS[attack].run, dict[str, Any](ATTACKS[attack].settings)
    with attacked_broker(tmp_path / "data", processes=PROCESSES, **settings) as to:
        asyncio.run(run(to))


async def flood(client: RawClient, partition: int, until: float) -> int:
    """Writes to a partition until the time is over. Returns the records that the process took."""
    count, data = 0, batch([bytes(VALUE_BYTES)])
    with suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            while True:
                assert await produce(client, "t", (partition, bytearray(data))) == [0]
                count += 1
    return count


@pytest.mark.also("tests/e2e/test_machine_limits.py::test_client_of_two_processes_has_the_quota_of_one_machine")
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_client_that_floods_all_processes_gets_one_quota(tmp_path: Path) -> None:
    async def scenario(to: AttackedBroker) -> None:
        await to.create(CreatableTopic("t", PROCESSES, 1))
        ports = [to.leader_port("t", partition) for partition in range(PROCESSES)]
        assert len(set(ports)) == PROCESSES
        await to.limit("producer_byte_rate", RATE)
        async with to.attack("a flood over the quota", memory=80):
            clients = [
                (await to.client("127.0.0.2", port), at) for at, port in enumerate(ports) for _ in range(FLOODERS)
            ]
            began, until = time.monotonic(), asyncio.get_running_loop().time() + FLOOD_SECONDS
            counts = await asyncio.gather(*(flood(client, at, until) for client, at in clients))
            took = time.monotonic() - began
        used, most = sum(counts) * VALUE_BYTES, RATE * (took + WINDOW_SECONDS + REPORT_SECONDS)
        assert RATE * WINDOW_SECONDS / 2 < used <= most + 2 * len(clients) * VALUE_BYTES, (used, most)

    with attacked_broker(tmp_path / "data", processes=PROCESSES) as to:
        asyncio.run(scenario(to))
