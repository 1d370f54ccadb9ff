"""Tests of the machines of a simulated cluster: how a broker's process starts and ends, and the faults in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.scenario import run_by
from tests.sim.cluster.options import ClusterOptions
from tests.sim.cluster.world import SimHost, SimWorld
from tests.sim.harness.loop import SimLoop
from tiered.errors import Unavailable
from tiered_api.kafka.protocol.messages.metadata import MetadataResponse

HostScenario = Callable[[SimWorld, SimHost], Coroutine[Any, Any, None]]


def run(scenario: HostScenario) -> None:
    loop = SimLoop(1, seconds_max=600)
    options = ClusterOptions.for_seed(1, 1)

    async def main() -> None:
        world = SimWorld(loop, options.settings(), fan=4, slots=20)
        host = world.hosts[1]
        host.power_on()
        await wait_up(host)
        try:
            await scenario(world, host)
        finally:
            await world.shut_down()

    loop.run(main())


async def wait_up(host: SimHost) -> None:
    while not host.up:
        await asyncio.sleep(0.1)


async def fetch_metadata(world: SimWorld, name: str) -> MetadataResponse:
    client = world.client(name)
    try:
        return await client.fetch_metadata(None)
    finally:
        await client.close()


@run_by(run)
async def test_killed_broker_no_longer_answers_over_the_network(world: SimWorld, host: SimHost) -> None:
    got = await fetch_metadata(world, "c1")
    assert [(broker.node_id, broker.host, broker.port) for broker in got.brokers] == [(1, "b1", 9092)]
    process = host.process
    await host.end("kill")
    assert not host.up and not world.loop.tasks_of(process)
    try:
        await fetch_metadata(world, "c2")
    except Unavailable as gone:
        assert "refused" in str(gone)
    else:
        raise AssertionError("a dead broker answers")
    host.power_on()
    await wait_up(host)
    assert host.lives == 2 and (await fetch_metadata(world, "c3")).brokers


@run_by(run)
async def test_each_end_is_reported_before_the_next_start(world: SimWorld, host: SimHost) -> None:
    ends: list[tuple[str, int]] = []
    host.on_end = lambda each, how: ends.append((how, each.lives))
    for how in ("kill", "power", "disk"):
        await host.end(how)
        host.power_on()
        await wait_up(host)
    assert await host.stop()
    assert ends == [("kill", 1), ("power", 2), ("disk", 3), ("stop", 4)]


@run_by(run)
async def test_stop_that_takes_too_long_becomes_a_kill(world: SimWorld, host: SimHost) -> None:
    ends: list[str] = []
    host.on_end = lambda each, how: ends.append(how)
    host.machine.disk.sync_seconds = lambda: 10.0
    assert not await host.stop(0.5)
    assert ends == ["kill"]


@run_by(run)
async def test_frozen_broker_answers_when_it_resumes(world: SimWorld, host: SimHost) -> None:
    host.freeze()
    asking = asyncio.get_running_loop().create_task(fetch_metadata(world, "c1"))
    await asyncio.sleep(2)
    assert host.frozen and host.up and not asking.done()
    host.resume()
    assert (await asking).brokers


@run_by(run)
async def test_broker_with_a_failed_disk_is_started_again(world: SimWorld, host: SimHost) -> None:
    assert host.node is not None
    ends: list[str] = []
    host.on_end = lambda each, how: ends.append(how)
    host.machine.disk._failed = "sync failed"
    host.node._fail("the disk is gone")
    await asyncio.sleep(0.2)
    await wait_up(host)
    assert host.lives == 2 and ends == ["failed"]


@run_by(run)
async def test_broker_that_ends_without_a_reason_is_a_finding(world: SimWorld, host: SimHost) -> None:
    assert host.node is not None and host.failure() is None
    host.node._fail("a bug")
    await asyncio.sleep(0.2)
    assert "ended by itself" in str(host.failure())
