"""Test of a coordinator without controller contact: it sends no reply about its groups, because another broker may
coordinate them."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import run_by
from tests.sim.scenarios.test_cut_off import isolate
from tests.sim.scenarios.three import SESSION, ThreeBrokers, run_scenario
from tiered.errors import Code, Refused
from tiered.groups.requests import FetchOffsets
from tiered.metadata.topic_names import OFFSETS_TOPIC


@run_by(run_scenario)
async def test_coordinator_that_is_cut_off_is_silent_after_a_session(three: ThreeBrokers) -> None:
    number = await three.controller.node.group_coordinators.host.partition_for("g")
    known = three.controller.node.image.topics[OFFSETS_TOPIC].partitions[number]
    assert len(known.replicas) == 3
    keeper = three.brokers[known.leader]
    if keeper is three.controller:
        await keeper.node.hand_over()
        await three.wait_until(lambda: _leader(three, number) != keeper.node_id, 5)
        keeper = three.brokers[_leader(three, number)]
    ask = FetchOffsets("g", None)
    await three.wait_until(lambda: OFFSETS_TOPIC in keeper.node.image.topics, 5)
    await asyncio.sleep(1)
    await keeper.node.group_coordinators.submit("g", ask)
    isolate(three, keeper)
    await asyncio.sleep(SESSION + 0.5)
    with pytest.raises(Refused) as refused:
        await keeper.node.group_coordinators.submit("g", ask)
    assert refused.value.code in (Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR), "it may have read of the next"
    three.network.heal()


def _leader(three: ThreeBrokers, number: int) -> int:
    return three.controller.node.image.topics[OFFSETS_TOPIC].partitions[number].leader
