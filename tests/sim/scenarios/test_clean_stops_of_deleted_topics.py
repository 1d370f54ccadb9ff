"""A clean stop proves who the last writer of a partition was. It proves nothing of a topic that gets the name later."""

from __future__ import annotations

import pytest

from tests.scenario import run_by
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.test_reassignments import is_leading, move, partition_image
from tests.sim.scenarios.three import ThreeBrokers, run_scenario
from tiered.controller.requests import CreateTopic, DeleteTopic


@pytest.mark.parametrize(("first", "is_deleted"), [("t", True), ("another", True), ("another", False)])
@run_by(run_scenario)
async def test_moved_leader_takes_the_manifest_over_after_any_clean_stop(
    three: ThreeBrokers, *, first: str, is_deleted: bool
) -> None:
    """The clean stop was under leader epoch 0 of the first topic, and the move makes epoch 1 of the second."""
    here, other = (each for each in three.others() if each.node_id in (2, 3))
    await three.controller.node.submit(CreateTopic(first, assignments=[[here.node_id]]))
    await three.wait_until(lambda: bool(here.node.leader_replicas()), 10)
    await here.stop()
    await here.start()
    await three.wait_until(three.is_everyone_known, 10)
    if is_deleted:
        await three.controller.node.submit(DeleteTopic(first))
    await three.controller.node.submit(CreateTopic("t", assignments=[[other.node_id]]))
    await three.wait_until(lambda: is_leading(other), 10)
    before = other.node.leader_replica("t", 0)
    await before.append(batch([b"one"]))
    before.roll()
    await three.wait_until(lambda: before.cold_end_offset == 1, 60)
    assert await move(three, here.node_id) is None
    await three.wait_until(lambda: partition_image(three).leader == here.node_id and is_leading(here), 30)
    moved = here.node.leader_replica("t", 0)
    assert moved.manifest is not None
    assert moved.takeover_pending or moved.manifest.leader_epoch == moved.leader_epoch


@run_by(run_scenario)
async def test_clean_stop_of_a_replica_proves_nothing_of_later_leaders(three: ThreeBrokers) -> None:
    """Another broker led meanwhile, and may still write the manifest when it is replaced uncleanly."""
    here, other = three.others()
    configs = {"unclean.leader.election.enable": "true"}
    await three.controller.node.submit(CreateTopic("t", assignments=[[here.node_id, other.node_id]], configs=configs))
    await three.wait_until(lambda: is_leading(here) and len(partition_image(three).isr) == 2, 10)
    await here.stop()
    await three.wait_until(lambda: is_leading(other), 10)
    last = other.node.leader_replica("t", 0)
    await last.append(batch([b"one"]), acks=1)
    last.roll()
    await three.wait_until(lambda: last.cold_end_offset == 1, 60)
    three.network.cut(here.name, other.name)
    three.network.cut(other.name, here.name)
    await here.start()
    await other.kill()
    await three.wait_until(lambda: is_leading(here), 60)
    moved = here.node.leader_replica("t", 0)
    assert moved.manifest is not None
    assert moved.takeover_pending or moved.manifest.leader_epoch == moved.leader_epoch
