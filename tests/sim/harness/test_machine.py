"""Tests of a simulated machine: a dead process can do nothing more, and some of its state outlives it."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.sim.harness.loop import SimLoop
from tests.sim.harness.machine import SimMachine
from tests.sim.harness.network import SimNetwork
from tests.sim.harness.store import SimBucket, draw_faults
from tiered.errors import Unavailable
from tiered.object_store.faulty import FaultKind
from tiered.ports import GetResult, NotFound, World


def machine(loop: SimLoop) -> SimMachine:
    return SimMachine(loop, "m", SimBucket(loop), SimNetwork(loop, random.Random(loop.seed)))


async def write_until_killed(world: World, host: SimMachine, how: str) -> None:
    """Writes to disk and bucket every second and tidies up when it is cancelled; dies in the fifth second."""

    async def work() -> None:
        file = world.disk.open("f", create=True)
        await world.disk.sync_dir(".")
        try:
            for second in range(100):
                file.append([b"%d" % (second % 10)])
                await world.store.put(f"k/{second:03d}", b"x")
                await world.clock.sleep(1)
        finally:
            await file.sync()

    task = asyncio.get_running_loop().create_task(work())
    await world.clock.sleep(4.5)
    getattr(host, how)()
    task.cancel()
    with pytest.raises(Unavailable):
        await task
    with pytest.raises(Unavailable):
        world.disk.open("f")


@pytest.mark.parametrize(("how", "names"), [("kill", ["f"]), ("power_cut", ["f"]), ("lose_disk", [])])
def test_crash_is_no_cancel(how: str, names: list[str]) -> None:
    loop = SimLoop(1)
    host = machine(loop)

    async def main() -> World:
        await write_until_killed(host.process(), host, how)
        return host.process()

    world = loop.run(main())
    assert world.disk.list(".") == names
    if how == "kill":
        assert world.disk.open("f").pread(0, 99) == b"01234"

    async def look() -> list[str]:
        return [entry.key for entry in await world.store.list("")]

    assert SimLoop(2).run(look()) == [f"k/{second:03d}" for second in range(5)]


@pytest.mark.parametrize(("how", "told"), [("kill", True), ("power_cut", False), ("lose_disk", False)])
def test_peers_notice_a_dead_process_and_no_dead_machine(how: str, told: bool) -> None:
    """Peers of a dead machine learn of its death when it is back: the new process listens nowhere yet."""
    loop = SimLoop(1)
    network = SimNetwork(loop, random.Random(1))
    host = SimMachine(loop, "m", SimBucket(loop), network)

    async def main() -> None:
        await host.process().net.listen("", 9092, lambda stream: None)
        stream = await network.host("peer").connect("m", 9092, 5)
        getattr(host, how)()
        if told:
            with pytest.raises(Unavailable, match="reset"):
                stream.sendmsg([b"x"])
        else:
            stream.sendmsg([b"x"])
        with pytest.raises(Unavailable, match="refused" if told else "timeout"):
            await network.host("peer").connect("m", 9092, 5)
        host.process()
        with pytest.raises(Unavailable, match="refused"):
            await network.host("peer").connect("m", 9092, 5)

    loop.run(main())


def test_power_cut_takes_unsynced_bytes() -> None:
    sizes = set()
    for seed in range(30):
        loop = SimLoop(seed)
        host = machine(loop)
        loop.run(write_until_killed(host.process(), host, "power_cut"))
        sizes.add(host.disk.open("f").size())
    assert 0 in sizes and 5 in sizes


def test_random_streams_differ_by_process_and_repeat_by_seed() -> None:
    def draws() -> list[float]:
        host = machine(SimLoop(7))
        return [host.process().rng.stream("nonce").random() for _ in range(3)]

    assert draws() == draws() and len(set(draws())) == 3


def test_each_seed_draws_another_subset_of_faults() -> None:
    subsets = {tuple(rule.kind for rule in draw_faults(random.Random(seed)).rules) for seed in range(50)}
    assert len(subsets) > 20
    assert {kind for subset in subsets for kind in subset} == set(FaultKind) - {FaultKind.THROTTLE}


def test_bucket_history_has_the_order_in_which_writes_took_effect() -> None:
    loop = SimLoop(1)
    bucket = SimBucket(loop)
    host = SimMachine(loop, "m", bucket, SimNetwork(loop, random.Random(1)))

    async def main() -> None:
        store = host.process().store
        await store.put("a", b"1")
        await store.put("a", b"2", if_absent=True)
        await store.put("b", b"3")
        await store.delete(["a"])
        assert await store.get("a") == NotFound()
        assert isinstance(await store.get("b"), GetResult)

    loop.run(main())
    assert bucket.written == [("a", b"1"), ("b", b"3")]
