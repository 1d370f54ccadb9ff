"""Tests of the pace of cold reads of fetches."""

from __future__ import annotations

import asyncio

from tests.scenario import in_rig
from tests.unit.cold.rig import PID, Rig, large
from tiered.cold.chunks import MIB
from tiered.cold.fetch_throttle import FetchThrottle
from tiered.cold.reader import ColdReader
from tiered.records.native import walk


@in_rig(Rig)
async def test_gets_keep_to_the_rate_in_the_order_in_which_they_came(rig: Rig) -> None:
    throttle, ended = FetchThrottle(rig.clock, lambda: 100.0), []

    async def get(number: int) -> None:
        await throttle.admit(200, "r")
        ended.append((number, round(rig.clock.mono_ns() / 1e9)))

    await asyncio.gather(*(get(number) for number in range(4)))
    assert ended == [(0, 0), (1, 2), (2, 4), (3, 6)]


@in_rig(Rig)
async def test_first_get_of_a_reader_waits_for_one_of_each_other(rig: Rig) -> None:
    """One reader is far ahead of what it has returned."""
    throttle, ended = FetchThrottle(rig.clock, lambda: 100.0), []

    async def get(reader: str) -> None:
        await throttle.admit(200, reader)
        ended.append(reader)

    ahead = [asyncio.ensure_future(get("ahead")) for _ in range(12)]
    await rig.clock.sleep(1)
    await asyncio.gather(get("new"), get("third"))
    assert ended == ["ahead", "ahead", "ahead", "new", "third"], "the second one was under way"
    for each in ahead:
        each.cancel()


@in_rig(Rig)
async def test_higher_rate_holds_for_a_get_that_waits(rig: Rig) -> None:
    rate = 1.0
    throttle = FetchThrottle(rig.clock, lambda: rate)
    await throttle.admit(1_000_000, "r")
    waiting = asyncio.ensure_future(throttle.admit(1, "r"))
    await rig.clock.sleep(100)
    assert not waiting.done()
    rate = 1e9
    await asyncio.wait_for(waiting, 2)


@in_rig(Rig)
async def test_get_that_is_cancelled_takes_nothing(rig: Rig) -> None:
    throttle = FetchThrottle(rig.clock, lambda: 1.0)
    await throttle.admit(10, "r")
    waiting = asyncio.ensure_future(throttle.admit(1_000_000, "r"))
    await rig.clock.sleep(5)
    waiting.cancel()
    await asyncio.wait_for(throttle.admit(1, "r"), 7)


@in_rig(Rig)
async def test_fetches_have_the_rate_and_loads_of_the_broker_have_not(rig: Rig) -> None:
    large(rig, batches=16)
    broker = rig.broker("a")
    manifest = await broker.upload_all(rig.log, 1)
    reader = ColdReader(
        broker.store, broker.manifests, broker.cache, broker.metrics, rig.clock,
        fetch_throttle=FetchThrottle(rig.clock, lambda: float(MIB)),
    )  # fmt: skip
    began_ns, offset, size = rig.clock.mono_ns(), 0, 0
    while offset < manifest.cold_end_offset:
        data = await reader.read(PID, manifest, offset, 4 * MIB)
        offset, size = walk(data).batches[-1].last_offset + 1, size + len(data)
    seconds = (rig.clock.mono_ns() - began_ns) / 1e9
    assert 0.3 * size / MIB <= seconds <= size / MIB + 1
    reader.close()
    other = rig.broker("b")
    unhurried = ColdReader(
        other.store, other.manifests, other.cache, other.metrics, rig.clock,
        fetch_throttle=FetchThrottle(rig.clock, lambda: 1.0),
    )  # fmt: skip
    began_ns = rig.clock.mono_ns()
    assert sum([len(piece.data) async for piece in unhurried.iterate(PID, 0)]) == size
    assert (rig.clock.mono_ns() - began_ns) / 1e9 < 60
