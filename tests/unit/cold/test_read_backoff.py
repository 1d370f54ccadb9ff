"""Tests of readers that retry a read that fails: the bucket gets few requests, and the log names the reason."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import in_rig
from tests.unit.cold.rig import PID, Broker, Rig, cold, small
from tiered.cold.manifest import Manifest
from tiered.cold.read_backoff import DAMAGED_MAX, ReadBackoff
from tiered.errors import Corrupt, TooLarge, Unavailable
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.ports import GetResult

MINUTE = 60.0


async def count_gets(broker: Broker, manifest: Manifest, offset: int, seconds: float) -> int:
    """Reads a hundred times a second for `seconds`. Returns how many gets the bucket received."""
    before = broker.store.calls["get"]
    for _ in range(int(seconds * 100)):
        with pytest.raises((Unavailable, Corrupt)):
            await broker.reader.read(PID, manifest, offset, 1)
        await asyncio.sleep(0.01)
    return broker.store.calls["get"] - before


@in_rig(Rig)
async def test_reads_of_an_unreachable_bucket_cost_a_get_every_10_seconds(
    rig: Rig, *, caplog: pytest.LogCaptureFixture
) -> None:
    small(rig)
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


@in_rig(Rig)
async def test_readers_of_an_unreachable_bucket_share_one_get(rig: Rig) -> None:
    small(rig)
    broker, manifest = await cold(rig)
    broker.fail(FaultRule(FaultKind.THROTTLE, ("get",)))
    await count_gets(broker, manifest, 5, MINUTE)
    await asyncio.sleep(10)
    before = broker.store.calls["get"]
    reads = [broker.reader.read(PID, manifest, offset, 1) for offset in range(0, 160, 10)]
    got = await asyncio.gather(*reads, return_exceptions=True)
    assert all(isinstance(each, Unavailable) for each in got)
    assert broker.store.calls["get"] - before <= 1


@in_rig(Rig)
async def test_damaged_segment_delays_no_reader_of_other_offsets(rig: Rig) -> None:
    small(rig)
    broker, manifest = await cold(rig)
    await rig.bucket.memory.delete([manifest.entries[0].key])
    assert await count_gets(broker, manifest, 5, MINUTE) <= 60
    assert await broker.reader.read(PID, manifest, 85, 1)


@in_rig(Rig)
async def test_time_lookups_wait_for_the_backoff_too(rig: Rig) -> None:
    small(rig)
    broker, manifest = await cold(rig)
    broker.fail(FaultRule(FaultKind.THROTTLE, ("get",)))
    before = broker.store.calls["get"]
    for _ in range(6000):
        with pytest.raises(Unavailable):
            await broker.reader.offset_for_timestamp(PID, 50_000, manifest=manifest)
        await asyncio.sleep(0.01)
    assert broker.store.calls["get"] - before <= 14


@in_rig(Rig)
async def test_damaged_object_is_listed_until_it_can_be_read(rig: Rig) -> None:
    small(rig)
    broker, manifest = await cold(rig)
    reader, first = broker.reader, manifest.entries[0]
    got = await rig.bucket.memory.get(first.key)
    assert isinstance(got, GetResult)
    await rig.bucket.memory.delete([first.key])
    for offset in (0, 5):
        with pytest.raises(Corrupt):
            await reader.read(PID, manifest, offset, 1)
    second = manifest.entries[1]
    await rig.bucket.memory.delete([second.key])
    with pytest.raises(Corrupt):
        await reader.read(PID, manifest, second.base_offset, 1)
    damaged, other = reader.list_damaged()
    assert (
        second.key in other.why
        and damaged.partition_id == PID
        and first.key in damaged.why
        and "missing" in damaged.why
    )
    assert "tiered_cold_damaged_objects 2" in broker.metrics.render()
    await asyncio.sleep(3 * MINUTE)
    assert reader.list_damaged()[0].age_ms >= 180_000
    await rig.bucket.memory.put(first.key, got.data)
    assert await reader.read(PID, manifest, 8, 1), "another offset of the object"
    [left] = reader.list_damaged()
    assert second.key in left.why


def test_damaged_object_that_nobody_reads_is_listed_for_an_hour() -> None:
    backoff = ReadBackoff()
    backoff.record_failure(PID, 5, Corrupt("object is missing", where="k"), 0)
    backoff.record_failure(PID, 5, Unavailable("no reply"), 1)
    backoff.record_failure(PID, 7, TooLarge("too large", where="l"), 1)
    assert [each.why for each in backoff.list_damaged(3_599_000_000_000)] == ["object is missing where=k"]
    assert backoff.list_damaged(3_600_000_000_000) == []


def test_number_of_damaged_objects_is_bounded() -> None:
    backoff = ReadBackoff()
    for number in range(DAMAGED_MAX + 2):
        backoff.record_failure(PID, number, Corrupt("object is missing", where=str(number)), number)
    assert len(backoff.list_damaged(0)) == DAMAGED_MAX and backoff.list_damaged(0)[0].why.endswith("where=2")
