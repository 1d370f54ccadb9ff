"""Cold reads with a cache on disk: a restarted broker needs no get, and no damage on the disk reaches a reader."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import in_rig
from tests.seeds import chosen
from tests.sim.harness.clock import SimRng
from tests.sim.harness.disk import SimDisk
from tests.unit.cold.rig import MIB, Broker, Rig, large, small
from tiered.cold.disk_cache import FOLDER
from tiered.object_store.faulty import FaultKind, FaultRule

AWAY = FaultRule(FaultKind.ERROR, ("get",), key=".seg")


async def read(rig: Rig, disk: SimDisk, *faults: FaultRule) -> Broker:
    """Reads the whole log by a new process with this disk. Returns it once it has kept what it read."""
    reader = rig.broker("reader", disk=disk)
    reader.fail(*faults)
    assert reader.disk_cache is not None
    running = asyncio.ensure_future(reader.disk_cache.run())
    await asyncio.sleep(1.0)
    assert await reader.read_all() == rig.log.all_bytes
    await asyncio.sleep(60.0)
    running.cancel()
    return reader


def files(disk: SimDisk) -> list[str]:
    return [f"{FOLDER}/{name}" for name in disk.list(FOLDER)]


@in_rig(Rig)
async def test_process_that_starts_again_needs_no_get(rig: Rig) -> None:
    large(rig, batches=8)
    await rig.broker("writer").upload_all(rig.log, 1)
    disk = SimDisk(SimRng(1).stream("disk"))
    await read(rig, disk)
    assert files(disk)
    await read(rig, disk.after_kill(), AWAY)


@pytest.mark.parametrize("place", chosen([0, 3, 8, 12, 16, 17, 30, 61, 70, MIB // 2, -1], [8, 16, MIB // 2, -1]))
@in_rig(Rig)
async def test_damage_on_the_disk_is_mended_from_the_bucket(rig: Rig, *, place: int) -> None:
    """A byte of each file is damaged: in a batch, in an index, or in the trailer."""
    large(rig, segments=1, batches=12)
    await rig.broker("writer").upload_all(rig.log, 1)
    disk = SimDisk(SimRng(1).stream("disk"))
    await read(rig, disk)
    damaged = files(disk)
    for name in damaged:
        size = disk.open(name).size()
        disk.flip_bit(name, 8 * ((place if place >= 0 else size + place) % size))
    disk = disk.after_kill()
    await read(rig, disk)
    assert not set(damaged) & set(files(disk))
    await read(rig, disk.after_kill(), AWAY)


@in_rig(Rig)
async def test_disk_that_fails_stops_no_reader(rig: Rig) -> None:
    small(rig)
    await rig.broker("writer").upload_all(rig.log, 1)
    disk = SimDisk(SimRng(1).stream("disk"))
    await read(rig, disk)
    for name in files(disk):
        disk.remove(name)
    disk = disk.after_kill()
    await read(rig, disk)
    disk.capacity = 1
    await read(rig, disk.after_kill())
