"""Tests of the memory of an idle partition: a broker leads tens of thousands."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

from tests.counts.memory import FRAMES, measure_product
from tests.scenario import run_by
from tests.sim.rig.broker_rig import SimBrokerRig, run
from tiered.controller.requests import DeleteTopic
from tiered.hot.disk_log import DiskLog
from tiered.replication.leader_replica import LeaderReplica

PARTITIONS = 150
BYTES_MAX, BLOCKS_MAX = 5_560, 66
"""Measured: 5,524 to 5,531 bytes in 65 blocks. The state of producers has three parts (known producers, idempotency
keys, open transactions), which take 136 bytes. The leader replica has three (admission, transactions, deletion), which
take 230; a weak reference between them takes 88. It was 8,080 bytes in 82 blocks before slots and lazily made
events."""


def test_an_idle_partition_takes_little_memory() -> None:
    found: list[tuple[int, int]] = []

    async def scenario(rig: SimBrokerRig) -> None:
        await rig.start()
        for name in ("before", "after"):
            await rig.create(name, PARTITIONS)
            found.append(measure_product())

    tracemalloc.start(FRAMES)
    try:
        run(scenario)
    finally:
        tracemalloc.stop()
    (bytes_before, blocks_before), (bytes_after, blocks_after) = found
    size, blocks = (bytes_after - bytes_before) / PARTITIONS, (blocks_after - blocks_before) / PARTITIONS
    assert size <= BYTES_MAX and blocks <= BLOCKS_MAX, (size, blocks)
    assert size >= BYTES_MAX / 2, f"{size}: lower the bound, or measure all that a partition takes"


@run_by(run)
async def test_deleted_partition_leaves_memory_without_the_garbage_collector(rig: SimBrokerRig) -> None:
    """The collector looks at old objects seldom: partitions that only it can free would add up."""
    await rig.start()
    gc.collect()
    gc.disable()
    try:
        await rig.create("t", PARTITIONS)
        assert count_objects(DiskLog, LeaderReplica) == 2 * PARTITIONS
        await rig.broker.submit(DeleteTopic("t"))
        await asyncio.sleep(120.0)
        assert count_objects(DiskLog, LeaderReplica) == 0
    finally:
        gc.enable()


def count_objects(*kinds: type) -> int:
    return sum(type(each) in kinds for each in gc.get_objects())
