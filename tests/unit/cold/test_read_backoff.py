"""Tests of readers that retry a read that fails: the bucket gets few requests, and the log names the reason."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.cold.rig import PID, Broker, Rig, cold, small
from tiered.cold.manifest import Manifest
from tiered.errors import Corrupt, Unavailable
from tiered.object_store.faulty import FaultKind, FaultRule

MINUTE = 60.0


async def count_gets(broker: Broker, manifest: Manifest, offset: int, seconds: float) -> int:
    """Reads a hundred times a second for `seconds`. Returns how many gets the bucket received."""
    before = broker.store.calls["get"]
    for _ in range(int(seconds * 100)):
        with pytest.raises((Unavailable, Corrupt)):
            await broker.reader.read(PID, manifest, offset, 1)
        await asyncio.sleep(0.01)
    return broker.store.calls["get"] - before


def test_reads_of_an_unreachable_bucket_cost_a_get_every_10_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    small(rig)

    async def scenario() -> None:
        broker, manifest = await cold(rig)
        broker.fail(FaultRule(FaultKind.THROTTLE, ("get",)))
        assert await count_gets(broker, manifest, 5, MINUTE) <= 14
        assert await count_gets(broker, manifest, 85, MINUTE) <= 8, "another offset of the same partition"
        said = [each for each in caplog.messages if "cold read failed" in each]
        assert said and "SlowDown" in said[0] and len(said) <= 16
        broker.fail()
        await asyncio.sleep(10)
        assert await broker.reader.read(PID, manifest, 5, 1)
        broker.fail(FaultRule(FaultKind.THROTTLE, ("get",), times=1))
        with pytest.raises(Unavailable):
            await broker.reader.read(PID, manifest, 85, 1)
        await asyncio.sleep(0.3)
        assert await broker.reader.read(PID, manifest, 85, 1), "the pause is short again"

    rig.run(scenario)


def test_readers_of_an_unreachable_bucket_share_one_get() -> None:
    rig = Rig()
    small(rig)

    async def scenario() -> None:
        broker, manifest = await cold(rig)
        broker.fail(FaultRule(FaultKind.THROTTLE, ("get",)))
        await count_gets(broker, manifest, 5, MINUTE)
        await asyncio.sleep(10)
        before = broker.store.calls["get"]
        reads = [broker.reader.read(PID, manifest, offset, 1) for offset in range(0, 160, 10)]
        got = await asyncio.gather(*reads, return_exceptions=True)
        assert all(isinstance(each, Unavailable) for each in got)
        assert broker.store.calls["get"] - before <= 1

    rig.run(scenario)


def test_damaged_segment_delays_no_reader_of_other_offsets() -> None:
    rig = Rig()
    small(rig)

    async def scenario() -> None:
        broker, manifest = await cold(rig)
        await rig.bucket.memory.delete([manifest.entries[0].key])
        assert await count_gets(broker, manifest, 5, MINUTE) <= 60
        assert await broker.reader.read(PID, manifest, 85, 1)

    rig.run(scenario)


def test_time_lookups_wait_for_the_backoff_too() -> None:
    rig = Rig()
    small(rig)

    async def scenario() -> None:
        broker, manifest = await cold(rig)
        broker.fail(FaultRule(FaultKind.THROTTLE, ("get",)))
        before = broker.store.calls["get"]
        for _ in range(6000):
            with pytest.raises(Unavailable):
                await broker.reader.offset_for_timestamp(PID, 50_000, manifest=manifest)
            await asyncio.sleep(0.01)
        assert broker.store.calls["get"] - before <= 14

    rig.run(scenario)
