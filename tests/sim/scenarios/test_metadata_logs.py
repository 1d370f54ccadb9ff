"""Controllers that are only their metadata logs: they take over, write and freeze in turns, on a bucket that errs.

The model of the metadata log judges each write and each image. An entry that got a reply is in its slot (M1),
one candidate of several leads (M2), and no reader or writer takes a slot that was collected (M3).
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from tests.scenario import GIVEN, run_by
from tests.sim.cluster.model import ClusterModel
from tests.sim.cluster.observer import BrokenRules, Finding
from tests.sim.harness.clock import SimRng
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.machine import SimMachine
from tests.sim.harness.network import SimNetwork
from tests.sim.harness.store import SimBucket
from tests.sim.settings import SETTINGS
from tiered.errors import Corrupt, Fenced, Unavailable
from tiered.ids import encode_uuid
from tiered.metadata.changes import ALL_BROKERS, BrokerConfigChanged
from tiered.metadata.image import Image
from tiered.metadata.layout import LOG_PREFIX, Boundary, Entry, encode_entry, slot_key
from tiered.metadata.log_reader import load_metadata, read_boundary
from tiered.metadata.log_writer import MetadataLog
from tiered.metrics import Metrics
from tiered.object_store.faulty import FaultKind, FaultRule

NAME = "log.retention.ms"
WRITERS = 3
PUTS = (FaultKind.LOST_REPLY, FaultKind.LATE_APPLY, FaultKind.ERROR, FaultKind.CONFLICT)


class Writers:
    """The controllers of one log. `model` reads each write."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.bucket = SimBucket(loop)
        self.found: list[Finding] = []
        self.model = ClusterModel(
            self.bucket, SETTINGS, lambda rule, what: self.found.append(Finding(rule, what)), lambda: loop.now_ns
        )
        network = SimNetwork(loop, random.Random(f"{loop.seed}/net"))
        self.machines = [SimMachine(loop, f"w{number}", self.bucket, network) for number in range(WRITERS)]
        self.logs: list[MetadataLog] = []
        self.rng = random.Random(f"{loop.seed}/writers")
        self._values = 0

    async def create(self) -> None:
        for number, machine in enumerate(self.machines):
            world = machine.process()
            log = MetadataLog(world.store, world.clock, SimRng(f"{self.loop.seed}/{number}"), Metrics())
            await log.load_or_create_format()
            self.logs.append(log)

    async def take_over(self, number: int) -> Image:
        """A candidacy; returns the image of the new controller. Raises `Fenced` for one that came too late."""
        log = self.logs[number]
        image = await log.take_over(await log.load(), number + 1, encode_uuid(uuid.UUID(int=number + 1)))
        self.check(f"w{number}", image)
        return image

    async def append(self, number: int, image: Image) -> Image:
        """Writes one entry; returns the image with it."""
        self._values += 1
        change = BrokerConfigChanged(ALL_BROKERS, {NAME: str(self._values)})
        slot = await self.logs[number].append((change,))
        stored = self.model.images.get(slot)
        if stored is None or stored.broker_configs[ALL_BROKERS][NAME] != change.configs[NAME]:
            self.found.append(Finding("M1", f"w{number} got a reply for {change} in slot {slot}"))
        image = image.apply((change,), slot)
        self.check(f"w{number}", image)
        return image

    def check(self, name: str, image: Image) -> None:
        self.model.check_image(name, image)
        if self.found:
            raise BrokenRules(self.found)

    async def read(self, number: int) -> Image:
        """Loads the log as a start does: with all that was committed before."""
        least = self.model.image.slot
        image = (await load_metadata(self.machines[number].store)).image
        self.check("reader", image)
        assert image.slot >= least, f"a reader ends at {image.slot}, {least} was committed before"
        return image


def run_writers(scenario: Callable[[Writers], Awaitable[None]], seed: int = 1) -> None:
    loop = SimLoop(seed, seconds_max=100_000)

    async def run_all() -> None:
        writers = Writers(loop)
        await writers.create()
        await scenario(writers)
        if writers.found:
            raise BrokenRules(writers.found)

    loop.run(run_all())


@pytest.mark.parametrize("seed", range(10))
@run_by(run_writers, seed=GIVEN)
async def test_controllers_that_replace_each_other_write_one_log(of: Writers) -> None:
    rng = of.rng
    for machine in of.machines:
        for kind in PUTS:
            machine.faults.rules.append(FaultRule(kind, ("put",), probability=rng.random() * 0.15, seconds=0.5))
        machine.faults.rules.append(FaultRule(FaultKind.DELAY, probability=rng.random() * 0.2, seconds=0.3))
        machine.faults.reply_seconds = 0.2

    async def control(number: int) -> None:
        for _ in range(3):
            await asyncio.sleep(rng.random() * 2)
            with suppress(Fenced, Unavailable, Corrupt):
                image = await of.take_over(number)
                for _ in range(rng.randint(1, 5)):
                    image = await of.append(number, image)
                    if rng.random() < 0.4:
                        with suppress(Unavailable):
                            await of.logs[number].write_snapshot(image)
                    await asyncio.sleep(rng.random() * 0.3)

    async def read() -> None:
        for _ in range(6):
            await asyncio.sleep(rng.random())
            with suppress(Unavailable):
                await of.read(0)

    await asyncio.gather(*(control(number) for number in range(WRITERS)), read())
    for machine in of.machines:
        machine.faults.rules.clear()
    assert (await of.read(1)).slot == of.model.image.slot


@run_by(run_writers)
async def test_one_of_the_candidates_of_one_moment_leads(of: Writers) -> None:
    for _ in range(3):
        done = await asyncio.gather(*(of.take_over(number) for number in range(WRITERS)), return_exceptions=True)
        assert [type(each) for each in done].count(Image) == 1
        assert [type(each) for each in done].count(Fenced) == WRITERS - 1


@run_by(run_writers)
async def test_deposed_controller_loses_its_slot_for_good(of: Writers) -> None:
    """Its successor begins in the same slot, or has collected it already."""
    old = await of.append(0, await of.take_over(0))
    image = await of.take_over(1)
    with pytest.raises(Fenced):
        await of.append(0, old)
    old = await of.append(0, await of.take_over(0))
    image = await of.take_over(1)
    for _ in range(3):
        image = await of.append(1, image)
        await of.logs[1].write_snapshot(image)
    with pytest.raises(Fenced):
        await of.append(0, old)
    await of.read(2)


@run_by(run_writers)
async def test_slot_that_was_just_collected_is_not_free(of: Writers) -> None:
    """The boundary stands exactly at the slot that a frozen controller writes next."""
    old = await of.append(0, await of.take_over(0))
    image = await of.take_over(1)
    assert image.slot == old.slot + 1
    await of.logs[1].write_snapshot(image)
    image = await of.append(1, image)
    await of.logs[1].write_snapshot(image)
    assert (await read_boundary(of.machines[2].store))[0].collected == old.slot + 1
    with pytest.raises(Fenced):
        await of.append(0, old)
    await of.read(2)


@run_by(run_writers)
async def test_entry_whose_reply_was_lost_is_written_once(of: Writers) -> None:
    image = await of.take_over(0)
    for kind in (FaultKind.LOST_REPLY, FaultKind.CONFLICT, FaultKind.ERROR):
        of.machines[0].faults.rules[:] = [FaultRule(kind, ("put",), key=LOG_PREFIX, times=1, seconds=0.1)]
        image = await of.append(0, image)
    assert image == of.model.image


@run_by(run_writers)
async def test_candidate_knows_what_was_written_while_it_stood(of: Writers) -> None:
    image = await of.take_over(0)
    slow = of.machines[1]
    slow.faults.rules.append(FaultRule(FaultKind.DELAY, ("put",), seconds=1.0))
    standing = asyncio.ensure_future(of.take_over(1))
    for _ in range(4):
        await asyncio.sleep(0.2)
        image = await of.append(0, image)
    image = await standing
    assert image.controller == 2 and image.broker_configs[ALL_BROKERS][NAME] == "4"
    await of.append(1, image)


@run_by(run_writers)
async def test_newer_boundary_of_another_controller_stands(of: Writers) -> None:
    """The older one wrote its snapshot in time, and moves the boundary late."""
    image = await of.append(0, await of.take_over(0))
    slow = of.machines[0]
    slow.faults.rules.append(FaultRule(FaultKind.DELAY, ("put", "get"), key="boundary", seconds=2.0))
    late = asyncio.ensure_future(of.logs[0].write_snapshot(image))
    await asyncio.sleep(0.1)
    image = await of.take_over(1)
    boundaries: list[Boundary] = []
    for _ in range(3):
        image = await of.append(1, image)
        await of.logs[1].write_snapshot(image)
        boundaries.append((await read_boundary(of.machines[2].store))[0])
    slow.faults.rules.clear()
    with suppress(Unavailable, Fenced):
        await late
    now = (await read_boundary(of.machines[2].store))[0]
    assert now.collected >= boundaries[-1].collected
    assert now.snapshots[-1].slot >= boundaries[-1].snapshots[-1].slot
    await of.read(2)


@run_by(run_writers)
async def test_start_without_an_intact_snapshot_is_no_empty_cluster(of: Writers) -> None:
    """The older of two snapshots serves for a damaged one. Without both, the log cannot be read."""
    image = await of.take_over(0)
    for _ in range(3):
        image = await of.append(0, image)
        await of.logs[0].write_snapshot(image)
    image = await of.append(0, image)
    boundary = (await read_boundary(of.machines[1].store))[0]
    assert len(boundary.snapshots) == 2 and boundary.collected > 0
    for each in reversed(boundary.snapshots):
        stored = of.bucket.memory._objects[each.key]
        rotten = stored.data[:-3] + bytes([stored.data[-3] ^ 1]) + stored.data[-2:]
        of.bucket.memory._objects[each.key] = stored._replace(data=rotten)
        if each is boundary.snapshots[-1]:
            assert (await load_metadata(of.machines[1].store)).image == of.model.image
    with pytest.raises(Corrupt):
        await load_metadata(of.machines[1].store)


@run_by(run_writers)
async def test_reader_starts_over_if_the_log_is_collected_meanwhile(of: Writers) -> None:
    """An entry of a deposed controller lands in the slot that was collected, just before the reader gets there."""
    image = await of.append(0, await of.take_over(0))
    await of.logs[0].write_snapshot(image)
    slot = image.slot + 1
    of.machines[2].faults.rules.append(FaultRule(FaultKind.DELAY, ("get",), key=LOG_PREFIX, seconds=0.5))
    reading = asyncio.ensure_future(of.read(2))
    await asyncio.sleep(0.2)
    for _ in range(2):
        image = await of.append(0, image)
        await of.logs[0].write_snapshot(image)
    assert (await read_boundary(of.machines[1].store))[0].collected == slot
    late = Entry(
        slot, 1, "late", (BrokerConfigChanged(ALL_BROKERS, {"log.segment.bytes": "9"}),), of.logs[0].cluster_id
    )
    await of.bucket.memory.put(slot_key(slot), encode_entry(late), if_absent=True)
    assert (await reading) == of.model.image == image
