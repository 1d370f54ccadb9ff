"""Tests of machines that change their number of processes: the order in which these start."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import run_by
from tests.sim.cluster import process_changes
from tests.sim.cluster.options import ClusterOptions, TopicShape
from tests.sim.cluster.process_changes import READY_SECONDS, ProcessChanges
from tests.sim.cluster.run import run as run_cluster
from tests.sim.cluster.test_cluster_world import run, wait_up
from tests.sim.cluster.world import SimHost, SimWorld
from tiered.metadata.image import Image


@run_by(run)
async def test_giver_starts_after_the_process_that_took_its_logs(world: SimWorld, host: SimHost) -> None:
    """The bucket is away for longer than any other start is waited for. The change ends once the faults have."""
    for is_awaited in (False, True):
        await host.end("kill")
        host.machine.faults.outage = True
        changes = ProcessChanges(1, world, Image, lambda machine, moves: None, is_enabled=True)
        changes._task = world.loop.create_task(changes._start(host, is_awaited=is_awaited))
        await changes.end()
        assert not host.up and changes.is_done() is not is_awaited
        await asyncio.sleep(READY_SECONDS)
        assert changes.is_done() is not is_awaited, "it is waited for, however long that takes"
        host.machine.faults.outage = False
        await wait_up(host)
        await changes._task
        assert changes.is_done()


def test_process_that_lost_its_logs_comes_back_as_its_machine_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines start without the processes that lost their disks. All partitions have all replicas again in the end."""
    monkeypatch.setattr(process_changes, "LOSS_CHANCE", 1.0)

    def adjust(drawn: ClusterOptions) -> ClusterOptions:
        return drawn.with_changes(
            topics=(TopicShape("t0", 4, 3, 2, "none"),), brokers=3, processes=2, changes_processes=True,
            troubles=("disk_lost",), troublemakers=0, worst_fault=0.0, bucket_rate=0.0, members=0, rot=False,
            joins=False, leaves=False, changes=(), chaos_seconds=15.0, rebuild=False,
        )  # fmt: skip

    counts = run_cluster(21, adjust).counts
    assert counts["processes_to_1"] and counts["processes_returned"] and counts["end_disk"]
