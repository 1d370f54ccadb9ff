"""Tests of slots against the boundary (M3): a collected slot is neither free nor read, and no slot is deleted before
the boundary."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import run_alone, run_by
from tests.unit.metadata.test_log_writer import Overtaken, controller, store, topic_created, writer
from tiered.errors import Fenced, Refused
from tiered.metadata import layout
from tiered.metadata.log_reader import load_image, load_metadata
from tiered.object_store.faulty import FaultKind, FaultRule, Faults, FaultyStore


@pytest.mark.parametrize("beyond", range(3))
@run_by(run_alone)
async def test_collected_slot_is_not_free(*, beyond: int) -> None:
    """M3: the old controller resumes after its next slot was collected, either as the last collected slot or as an
    earlier one."""
    memory, clock = store()
    old, _ = await controller(memory, clock, 1)
    new, image = await controller(memory, clock, 2)
    for number in range(beyond):
        image = image.apply(topic_created(number), await new.append(topic_created(number)))
    await new.write_snapshot(image)
    await new.write_snapshot(image.apply(topic_created(9), await new.append(topic_created(9))))
    assert (await load_metadata(memory)).boundary.collected == 1 + beyond
    with pytest.raises(Fenced, match="was collected"):
        await old.append(topic_created(10))


@run_by(run_alone)
async def test_slots_are_deleted_only_below_the_boundary() -> None:
    memory, clock = store()
    faults = Faults()
    log, image = await controller(FaultyStore(memory, faults, clock), clock)
    for number in range(4):
        image = image.apply(topic_created(number), await log.append(topic_created(number)))
        if number == 1:
            await log.write_snapshot(image)
    before = await memory.list(layout.LOG_PREFIX)
    faults.rules.append(FaultRule(FaultKind.ERROR, ("put",), key=layout.BOUNDARY_KEY))
    writing = asyncio.ensure_future(log.write_snapshot(image))
    for _ in range(50):
        await asyncio.sleep(0)
    assert await memory.list(layout.LOG_PREFIX) == before
    faults.rules.clear()
    await writing
    assert len(await memory.list(layout.LOG_PREFIX)) < len(before)
    assert await load_image(memory) == image


@run_by(run_alone)
async def test_late_put_of_an_older_snapshot_does_not_replace_a_newer_one() -> None:
    memory, clock = store()
    old, stale = await controller(memory, clock, 1)
    new, image = await controller(memory, clock, 2)
    for number in range(3):
        image = image.apply(topic_created(number), await new.append(topic_created(number)))
        await new.write_snapshot(image)
    boundary = (await load_metadata(memory)).boundary
    await old.write_snapshot(stale)
    assert (await load_metadata(memory)).boundary == boundary
    assert await load_image(memory) == image


@run_by(run_alone)
async def test_takeover_is_refused_if_the_next_slot_is_of_another_cluster() -> None:
    memory, clock = store()
    log = writer(memory, clock)
    await log.load_or_create_format()
    image = await log.load()
    others = layout.Entry(image.slot + 1, 1, "nonce", tuple(topic_created(1)), "another-cluster")
    await memory.put(layout.slot_key(others.slot), layout.encode_entry(others))
    with pytest.raises(Refused, match="another-cluster"):
        await log.take_over(image, 1, "i1")


@run_by(run_alone)
async def test_reader_whose_next_slot_was_collected_starts_over() -> None:
    memory, clock = store()
    log, image = await controller(memory, clock)

    async def overtake() -> None:
        nonlocal image
        await log.write_snapshot(image)
        image = image.apply(topic_created(0), await log.append(topic_created(0)))
        await log.write_snapshot(image)
        assert (await load_metadata(memory)).boundary.collected == 0, (
            "the first slot, which the reader is about to read"
        )

    loaded = await load_metadata(Overtaken(memory, overtake()))
    assert loaded.image == image
