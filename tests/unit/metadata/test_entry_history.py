"""Tests of the metadata log for people: pages from memory and the bucket, and the controllers of the last slots."""

from __future__ import annotations

import pytest

from tests.scenario import run_alone, run_by
from tests.unit.metadata.test_log_writer import controller, store, topic_created
from tiered.metadata import layout
from tiered.metadata.entry_history import find_elections, read_page
from tiered.metadata.recent_entries import RecentEntries
from tiered.object_store.memory import MemoryStore
from tiered.ports import GetResult


async def fill(entries: int) -> tuple[MemoryStore, int]:
    """Returns a store with a log of two controllers, and its last slot."""
    memory, clock = store()
    await controller(memory, clock, 1)
    log, _ = await controller(memory, clock, 2)
    slots = [await log.append(topic_created(number)) for number in range(entries)]
    return memory, slots[-1]


async def remember(memory: MemoryStore, first: int, last: int) -> RecentEntries:
    """Returns the entries of these slots as a broker has them in memory."""
    recent = RecentEntries()
    recent.restart_at(first)
    for slot in range(first, last + 1):
        got = await memory.get(layout.slot_key(slot))
        assert isinstance(got, GetResult)
        recent.add(slot, got.data)
    return recent


@pytest.mark.parametrize("kept", [0, 3, 100])
@run_by(run_alone)
async def test_pages_have_each_entry_once_with_its_time(*, kept: int) -> None:
    memory, end = await fill(9)
    recent = await remember(memory, max(0, end - kept + 1), end)
    slots = list[int]()
    to: int | None = end
    while to is not None:
        page, to = await read_page(memory, recent, to, 4)
        slots += [each.entry.slot for each in page]
        assert all(each.size > 0 and each.written_ms >= 0 for each in page) and len(page) <= 4
    assert slots == list(range(end, -1, -1))


@run_by(run_alone)
async def test_collected_entries_end_the_pages() -> None:
    memory, end = await fill(6)
    await memory.delete([layout.slot_key(slot) for slot in range(3)])
    page, older = await read_page(memory, await remember(memory, end + 1, end), end, 100)
    assert [each.entry.slot for each in page] == list(range(end, 2, -1)) and older is None


@pytest.mark.parametrize("kept", [0, 3, 100])
@run_by(run_alone)
async def test_controllers_are_found_in_memory_and_in_the_bucket(*, kept: int) -> None:
    memory, end = await fill(9)
    recent = await remember(memory, max(0, end - kept + 1), end)
    found, since = await find_elections(memory, recent, end, 50)
    assert [each.entry.epoch for each in found] == [2, 1] and since == 0
    few, since = await find_elections(memory, recent, end, 2)
    assert since == min(end - 1, max(0, end - kept + 1)) and len(few) == (2 if kept == 100 else 0)
