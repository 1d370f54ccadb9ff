"""Tests of sub-manifests: each is in the bucket before a manifest names it, and is no garbage until then."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import in_rig
from tests.unit.cold.rig import PID, TOPIC, Rig
from tests.unit.cold.test_manifest_store import add
from tiered.cold.layout import manifest_key
from tiered.cold.manifest_store import ObjectMissing
from tiered.errors import Unavailable
from tiered.object_store.faulty import FaultKind, FaultRule


@in_rig(Rig)
async def test_sub_manifest_that_was_not_stored_is_not_named(rig: Rig) -> None:
    broker = rig.broker(fan=2)
    for base in (0, 10, 20):
        await add(broker, base)
    broker.fail(FaultRule(FaultKind.ERROR, ("put",), key=".sub"))
    with pytest.raises(Unavailable, match="was not stored"):
        await add(broker, 30)
    broker.fail()
    there = await broker.manifests.load(PID)
    assert there is not None and there.cold_end_offset == 30 and not there.submanifests
    assert (await add(broker, 30)).submanifests


@in_rig(Rig)
async def test_sub_manifest_of_a_pending_change_is_no_garbage(rig: Rig) -> None:
    """A sweep lists objects while records are deleted, or while a segment is added. The manifest is written after the
    sub-manifest."""
    broker = rig.broker(fan=2)
    for base in (0, 10, 20):
        await add(broker, base)
    broker.fail(
        FaultRule(FaultKind.DELAY, ("list",), times=1, seconds=1.0),
        FaultRule(FaultKind.DELAY, ("put",), key=manifest_key(PID), seconds=10.0),
    )
    sweeping = asyncio.ensure_future(broker.collector.sweep(PID, TOPIC, 1))
    await rig.clock.sleep(0.5)
    adding = asyncio.ensure_future(add(broker, 30))
    await sweeping
    assert not adding.done() and [key for key in await rig.keys() if key.endswith(".sub")]
    await rig.clock.sleep(5)
    await broker.collector.delete_expired()
    written = await adding
    reader = rig.broker("reader")
    assert written.submanifests and await reader.manifests.find_segment(written, 0) is not None


@in_rig(Rig)
async def test_sub_manifest_that_the_newest_manifest_names_and_is_lost_is_damage(rig: Rig) -> None:
    broker = rig.broker(fan=2)
    for base in (0, 10, 20, 30):
        written = await add(broker, base)
    (lost,) = (each.key for each in written.submanifests)
    await broker.store.delete([lost])
    reader = rig.broker("reader").reader
    with pytest.raises(ObjectMissing, match="sub-manifest is missing") as raised:
        await reader.read(PID, written, 0, 1000)
    assert raised.value.where == lost
    with pytest.raises(ObjectMissing, match="sub-manifest is missing"):
        [piece async for piece in reader.iterate(PID, 0, manifest=written)]
