"""Test of the scripts that Kafka answers like our coordinator in memory: a whole broker does too, over its wire."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.kafka_site import KafkaBroker, run
from tests.peer.group_scripts import SCRIPTS
from tests.peer.group_worlds import InMemory, OverWire, Recorded, Script
from tests.unit.groups.rig import Rig
from tiered.groups.limits import GroupSettings


def play_scenario(scenario: Script, address: str) -> list[str]:
    """Returns the replies of a broker to a script, in a thread beside the broker's."""
    over = OverWire(address)
    recorded = Recorded(over)
    try:
        scenario(recorded)
    finally:
        over.close()
    return recorded.lines


@pytest.mark.parametrize("name", SCRIPTS)
def test_broker_replies_to_a_script_as_its_coordinator(tmp_path: Path, name: str) -> None:
    ours = Recorded(InMemory(Rig(GroupSettings(initial_rebalance_delay_ms=300, size_max=3))))
    SCRIPTS[name](ours)

    async def scenario(site: KafkaBroker) -> None:
        for topic in "tuv":
            await site.create(topic, 8)
        found = await asyncio.to_thread(play_scenario, SCRIPTS[name], site.address)
        assert len(found) == len(ours.lines)
        for line, expected in zip(found, ours.lines, strict=True):
            assert line == expected

    run(tmp_path, scenario, group_initial_rebalance_delay_ms=300, group_max_size=3, offsets_topic_num_partitions=4)
