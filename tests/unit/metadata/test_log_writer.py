"""Tests of the metadata log in a store (M1, M2, M3): lost replies, late writes, rivals and collected slots."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from tests.refusal import refuses
from tests.scenario import run_alone, run_by
from tiered.errors import Code, Corrupt, Fenced, Refused
from tiered.ids import TopicId
from tiered.metadata import layout
from tiered.metadata.changes import Change, TopicCreated
from tiered.metadata.image import Image
from tiered.metadata.layout import Format
from tiered.metadata.log_reader import load_image, load_metadata
from tiered.metadata.log_writer import MetadataLog
from tiered.metrics import Metrics
from tiered.object_store.faulty import FaultKind, FaultRule, Faults, FaultyStore
from tiered.object_store.memory import MemoryStore
from tiered.ports import GetResult, NotFound, ObjectStore


class InstantClock:
    """A clock whose waits end at once; its time is the sum of the waits."""

    def __init__(self) -> None:
        self.now_ns = 0

    def mono_ns(self) -> int:
        return self.now_ns

    def cpu_ns(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return self.now_ns // 1_000_000

    async def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)
        await asyncio.sleep(0)


class SeededRng:
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")


def store() -> tuple[MemoryStore, InstantClock]:
    clock = InstantClock()
    return MemoryStore(clock), clock


def writer(at: ObjectStore, clock: InstantClock, seed: int = 1) -> MetadataLog:
    return MetadataLog(at, clock, SeededRng(seed), Metrics())


async def controller(at: ObjectStore, clock: InstantClock, seed: int = 1) -> tuple[MetadataLog, Image]:
    log = writer(at, clock, seed)
    await log.load_or_create_format()
    return log, await log.take_over(await log.load(), seed, f"i{seed}")


def topic_created(number: int) -> list[Change]:
    return [TopicCreated(f"t{number}", TopicId(f"id{number}"), ((1,),), {}, number)]


@run_by(run_alone)
async def test_appended_changes_are_loaded_in_order() -> None:
    memory, clock = store()
    log, image = await controller(memory, clock)
    for number in range(40):
        image = image.apply(topic_created(number), await log.append(topic_created(number)))
    assert await load_image(memory) == image
    assert list(image.topics) == [f"t{number}" for number in range(40)]
    assert image.slot == 40


@run_by(run_alone)
async def test_empty_store_has_no_cluster() -> None:
    memory, _ = store()
    with pytest.raises(Refused, match="no cluster"):
        await load_image(memory)


@run_by(run_alone)
async def test_format_is_written_once_and_a_newer_one_is_refused() -> None:
    memory, clock = store()
    first, wrote = await writer(memory, clock, 1).load_or_create_format()
    assert wrote
    assert await writer(memory, clock, 2).load_or_create_format() == (first, False)
    await memory.put(layout.FORMAT_KEY, layout.encode_format(Format(2, "c", "n")))
    with refuses(Code.UNSUPPORTED_VERSION):
        await writer(memory, clock).load_or_create_format()


def test_credential_is_the_same_for_all_readers_of_the_format_only() -> None:
    """The credential stays the same for every later version, and in stores from before there was one."""
    held = b'{"crc":"beee9a62","body":{"version":1,"cluster_id":"c","nonce":"00000000000000ff"}}'
    assert layout.encode_format(Format(1, "c", "00000000000000ff")) == held
    credential = layout.decode_format(held).credential
    assert credential.hex() == "82399195b9acc1f104603487b662b27a"
    for other in (Format(1, "c", "00000000000000fe"), Format(1, "d", "00000000000000ff"), Format(1, "c", "")):
        assert other.credential != credential


@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.LOST_REPLY, FaultKind.CONFLICT, FaultKind.LATE_APPLY])
@pytest.mark.parametrize("seed", range(8))
@run_by(run_alone)
async def test_entry_is_in_the_log_exactly_once_after_any_put_outcome(*, kind: FaultKind, seed: int) -> None:
    memory, clock = store()
    rules = [
        FaultRule(kind, ("put",), probability=0.4, seconds=0.5),
        FaultRule(FaultKind.ERROR, ("get",), probability=0.2),
    ]
    bad = FaultyStore(memory, Faults(rules, random.Random(seed)), clock)
    log = writer(bad, clock, seed)
    await writer(memory, clock).load_or_create_format()
    image = await log.take_over(Image(), 1, "i1")
    for number in range(30):
        image = image.apply(topic_created(number), await log.append(topic_created(number)))
    assert bad.hits[kind] > 0
    await clock.sleep(10)
    await memory.list("")
    loaded = await load_image(memory)
    assert loaded == image
    assert len(await memory.list(layout.LOG_PREFIX)) == 31


@run_by(run_alone)
async def test_new_controller_fences_the_old_one() -> None:
    memory, clock = store()
    old, _ = await controller(memory, clock, 1)
    await old.append(topic_created(1))
    new, image = await controller(memory, clock, 2)
    assert (image.controller_epoch, image.controller) == (2, 2)
    with pytest.raises(Fenced):
        await old.append(topic_created(2))
    await new.append(topic_created(3))
    assert list((await load_image(memory)).topics) == ["t1", "t3"]


@run_by(run_alone)
async def test_candidate_reads_last_entries_of_the_old_controller() -> None:
    memory, clock = store()
    old, _ = await controller(memory, clock, 1)
    candidate = writer(memory, clock, 2)
    seen = await candidate.load()
    await old.append(topic_created(1))
    await old.append(topic_created(2))
    image = await candidate.take_over(seen, 2, "i2")
    assert list(image.topics) == ["t1", "t2"]
    assert image == await load_image(memory)


@run_by(run_alone)
async def test_one_of_two_candidates_becomes_controller() -> None:
    memory, clock = store()
    await controller(memory, clock, 1)
    logs = [writer(memory, clock, seed) for seed in (2, 3, 4)]
    images = [await log.load() for log in logs]
    found = await asyncio.gather(
        *(log.take_over(image, seed, "i") for seed, (log, image) in enumerate(zip(logs, images, strict=True), 2)),
        return_exceptions=True,
    )
    assert sorted(type(each).__name__ for each in found) == ["Fenced", "Fenced", "Image"]


@run_by(run_alone)
async def test_nobody_becomes_controller_behind_a_slot_that_is_gone() -> None:
    memory, clock = store()
    old, _ = await controller(memory, clock, 1)
    candidate = writer(memory, clock, 2)
    await candidate.load_or_create_format()
    await candidate.load()
    gone = await old.append(topic_created(1))
    await old.append(topic_created(2))
    image = await load_image(memory)
    await memory.delete([layout.slot_key(gone)])
    with pytest.raises(Refused, match=f"{layout.slot_key(gone)} of the metadata log is gone, and later ones"):
        await candidate.take_over(image, 2, "i2")
    assert len(await memory.list(layout.LOG_PREFIX)) == 2, "nothing was written"


@run_by(run_alone)
async def test_damaged_last_slot_keeps_nobody_from_becoming_controller() -> None:
    memory, clock = store()
    old, image = await controller(memory, clock, 1)
    slot = await old.append(topic_created(1))
    image = await load_image(memory)
    await memory.put(layout.slot_key(slot), b"rot")
    assert (await writer(memory, clock, 2).take_over(image, 2, "i2")).slot == slot + 1


@run_by(run_alone)
async def test_nobody_becomes_controller_in_an_empty_store() -> None:
    """It may be a directory that is not mounted any more."""
    memory, clock = store()
    _, image = await controller(memory, clock, 1)
    candidate = writer(MemoryStore(clock), clock, 2)
    standing = asyncio.ensure_future(candidate.take_over(image, 2, "i2"))
    while not candidate.last_error:
        await asyncio.sleep(0)
    assert layout.FORMAT_KEY in candidate.last_error
    standing.cancel()
    await asyncio.wait([standing])


@run_by(run_alone)
async def test_last_slots_that_are_gone_are_an_older_state_of_the_bucket() -> None:
    memory, clock = store()
    log, _ = await controller(memory, clock, 1)
    await log.append(topic_created(1))
    gone = await log.append(topic_created(2))
    await memory.delete([layout.slot_key(gone)])
    with pytest.raises(Refused, match=f"older state: slot {gone} .*{layout.slot_key(gone)} is gone"):
        for _ in range(4):
            await log.check_superseded()


@run_by(run_alone)
async def test_controller_that_writes_on_notices_a_hole_in_its_log() -> None:
    memory, clock = store()
    log, _ = await controller(memory, clock, 1)
    gone = await log.append(topic_created(1))
    await memory.delete([layout.slot_key(gone)])
    await log.append(topic_created(2))
    words = f"{layout.slot_key(gone)} of the metadata log is gone, and later ones .* went back to an older state"
    with pytest.raises(Refused, match=words):
        for _ in range(4):
            await log.check_superseded()


@pytest.mark.parametrize("stale_lists", [False, True])
@run_by(run_alone)
async def test_controller_takes_no_collected_slot_for_a_hole(*, stale_lists: bool) -> None:
    memory, clock = store()
    faults = Faults([], random.Random(1))
    log, image = await controller(FaultyStore(memory, faults, clock), clock, 1)
    if stale_lists:
        faults.rules.append(FaultRule(FaultKind.STALE_LIST))
    for number in range(40):
        changes = topic_created(number)
        image = image.apply(changes, await log.append(changes))
        if number % 7 == 0:
            await log.write_snapshot(image)
        await log.check_superseded()
    await log.take_over(image, 1, "i1")


class StoreOfAFrozenBroker(MemoryStore):
    """Calls `meanwhile` once before the first look at the object `key`: other brokers go on."""

    key = ""
    meanwhile: Callable[[], Awaitable[None]]

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        if key == self.key:
            self.key = ""
            await self.meanwhile()
        return await super().get(key, start, length)


@run_by(run_alone)
async def test_slot_collected_while_the_controller_is_frozen_is_no_hole() -> None:
    clock = InstantClock()
    memory = StoreOfAFrozenBroker(clock)
    log, image = await controller(FaultyStore(memory, faults := Faults([], random.Random(1)), clock), clock, 1)
    slot = image.slot
    faults.rules.append(FaultRule(FaultKind.STALE_LIST, seconds=1000))

    async def others_go_on() -> None:
        other, image = await controller(memory, clock, 2)
        for number in range(2, 12):
            image = image.apply(topic_created(number), await other.append(topic_created(number)))
            await other.write_snapshot(image)
        assert isinstance(await memory.get(layout.slot_key(slot)), NotFound)

    memory.key, memory.meanwhile = layout.slot_key(slot), others_go_on
    with pytest.raises(Fenced):
        for _ in range(8):
            await log.check_superseded()
    assert not memory.key


@pytest.mark.parametrize("calls", range(4))
@run_by(run_alone)
async def test_controller_that_was_frozen_confirms_nothing(*, calls: int) -> None:
    """However many looks were made before: those in turn find it in the fourth at the latest."""
    memory, clock = store()
    log, _ = await controller(memory, clock, 1)
    for _ in range(calls):
        await log.check_superseded()
    await log.confirm_newest()
    await controller(memory, clock, 2)
    for _ in range(4):
        with pytest.raises(Fenced):
            await log.confirm_newest()


@run_by(run_alone)
async def test_abandoned_candidacy_ends_at_once() -> None:
    memory, clock = store()
    faults = Faults([], random.Random(1))
    log = writer(FaultyStore(memory, faults, clock), clock)
    await log.load_or_create_format()
    image = await log.load()
    faults.rules.append(FaultRule(FaultKind.ERROR))
    standing = asyncio.ensure_future(log.take_over(image, 1, "i1"))
    while not log.stall_reason:
        await asyncio.sleep(0)
    assert "meta/log/" in log.stall_reason
    standing.cancel()
    await asyncio.wait([standing])
    assert not log.stall_reason
    faults.rules.clear()
    await log.take_over(image, 1, "i1")
    assert not log.stall_reason and not log.last_error


@run_by(run_alone)
async def test_snapshots_shorten_the_log_and_keep_the_image() -> None:
    memory, clock = store()
    log, image = await controller(memory, clock)
    for number in range(60):
        image = image.apply(topic_created(number), await log.append(topic_created(number)))
        if number % 10 == 9:
            await log.write_snapshot(image)
    assert await load_image(memory) == image
    slots = [layout.slot_of(each.key) for each in await memory.list(layout.LOG_PREFIX)]
    assert slots == list(range(51, 61))
    assert len(await memory.list(layout.SNAPSHOT_PREFIX)) == 2


@run_by(run_alone)
async def test_stalled_controller_cannot_fill_a_collected_slot() -> None:
    memory, clock = store()
    stalled, _ = await controller(memory, clock, 1)
    new, image = await controller(memory, clock, 2)
    for number in range(30):
        image = image.apply(topic_created(number), await new.append(topic_created(number)))
        if number in (19, 29):
            await new.write_snapshot(image)
    assert await memory.list(layout.slot_key(stalled.next_slot)) == []
    with pytest.raises(Fenced, match="collected"):
        await stalled.append(topic_created(99))
    assert await load_image(memory) == image


class Overtaken:
    """A store whose log is collected right after the reader's first read of the boundary."""

    def __init__(self, inner: ObjectStore, then: Coroutine[Any, Any, None]) -> None:
        self.inner = inner
        self.url = inner.url
        self.then: Coroutine[Any, Any, None] | None = then

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Any:
        got = await self.inner.get(key, start, length)
        if key == layout.BOUNDARY_KEY and self.then is not None:
            then, self.then = self.then, None
            await then
        return got

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@run_by(run_alone)
async def test_reader_overtaken_by_collection_starts_over() -> None:
    memory, clock = store()
    log, image = await controller(memory, clock)

    async def overtake() -> None:
        nonlocal image
        for number in range(30):
            image = image.apply(topic_created(number), await log.append(topic_created(number)))
            if number in (10, 20):
                await log.write_snapshot(image)

    loaded = await load_metadata(Overtaken(memory, overtake()))
    assert loaded.image == image


@pytest.mark.parametrize("seed", range(6))
@run_by(run_alone)
async def test_boundary_only_grows_also_after_lost_or_late_puts(*, seed: int) -> None:
    memory, clock = store()
    rules = [
        FaultRule(FaultKind.LOST_REPLY, ("put",), key="boundary", probability=0.4),
        FaultRule(FaultKind.LATE_APPLY, ("put",), key="boundary", probability=0.4, seconds=3),
    ]
    bad = FaultyStore(memory, Faults(rules, random.Random(seed)), clock)
    log, image = await controller(bad, clock)
    collected = -1
    for number in range(20):
        image = image.apply(topic_created(number), await log.append(topic_created(number)))
        await log.write_snapshot(image)
        boundary = (await load_metadata(memory)).boundary
        assert boundary.collected >= collected
        collected = boundary.collected
    assert await load_image(memory) == image


@run_by(run_alone)
async def test_long_replay_makes_a_snapshot_due() -> None:
    memory, clock = store()
    log, image = await controller(memory, clock)
    number = 0
    while not log.is_snapshot_due:
        number += 1
        image = image.apply(topic_created(number), await log.append(topic_created(number)))
    assert number > 100
    await log.write_snapshot(image)
    assert not log.is_snapshot_due


@run_by(run_alone)
async def test_garbled_entry_stops_the_reader() -> None:
    memory, clock = store()
    log, _ = await controller(memory, clock)
    slot = await log.append(topic_created(1))
    got = await memory.get(layout.slot_key(slot))
    assert isinstance(got, GetResult)
    await memory.put(layout.slot_key(slot), got.data[:-9] + b"x" + got.data[-8:])
    with pytest.raises(Corrupt, match=layout.slot_key(slot)):
        await load_image(memory)


@pytest.mark.parametrize("snapshots", [1, 2, 3])
@pytest.mark.parametrize("gone", [True, False])
@run_by(run_alone)
async def test_lost_or_garbled_snapshot_is_replaced_by_the_one_before(*, snapshots: int, gone: bool) -> None:
    memory, clock = store()
    log, image = await controller(memory, clock)
    for number in range(10 * snapshots + 3):
        image = image.apply(topic_created(number), await log.append(topic_created(number)))
        if number % 10 == 9:
            await log.write_snapshot(image)
    keys = [item.key for item in await memory.list(layout.SNAPSHOT_PREFIX)]
    assert len(keys) == min(snapshots, 2)

    async def spoil(key: str) -> None:
        if gone:
            await memory.delete([key])
        else:
            await memory.put(key, b"{}")

    await spoil(keys[-1])
    assert await load_image(memory) == image
    await spoil(keys[0])
    if snapshots == 1:
        assert await load_image(memory) == image
        return
    with pytest.raises(Corrupt) as corrupt:
        await load_image(memory)
    assert corrupt.value.where == keys[-1]
