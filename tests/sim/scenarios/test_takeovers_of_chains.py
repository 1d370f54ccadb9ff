"""Tests of takeovers of write-ahead chains: partitions that need no chain wait for none."""

from __future__ import annotations

from tests.scenario import run_by
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.test_cut_off import create_topic, wait_all_writable
from tests.sim.scenarios.three import ThreeBrokers, run_scenario
from tiered.controller.requests import CreateTopic
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.wal.layout import WAL

ALONE = 6


@run_by(run_scenario, seed=1)
async def test_partitions_with_replicas_are_led_while_a_chain_is_read(three: ThreeBrokers) -> None:
    """A broker dies that led partitions of both kinds. Its chain takes 20 s a request to read."""
    await create_topic(three)
    alone = {"flush": "bucket", "min.insync.replicas": "1"}
    await three.controller.node.submit(CreateTopic("alone", ALONE, 1, configs=alone))
    await three.wait_until(lambda: all("alone" in each.node.image.topics for each in three.brokers.values()), 10)
    dead = three.others()[0]
    led = [part.leader for part in three.newest_image().topics["alone"].partitions]
    assert led.count(dead.node_id) == ALONE // 3
    for number, leader in enumerate(led):
        await three.brokers[leader].node.leader_replica("alone", number).append(batch([b"v"]), timeout_ms=5_000)
    rest = [each for each in three.brokers.values() if each is not dead]
    for each in rest:
        each.machine.faults.rules.append(FaultRule(FaultKind.DELAY, ("get", "list"), key=WAL, seconds=20.0))
    await dead.kill()
    await wait_all_writable(three, rest[0], 8)
    for each in rest:
        each.machine.faults.rules.clear()

    def is_led() -> bool:
        image = rest[0].node.image
        return all(
            part.leader in three.brokers and part.leader != dead.node_id for part in image.topics["alone"].partitions
        )

    await three.wait_until(is_led, 60)
