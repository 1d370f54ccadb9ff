"""A new secret of the brokers while the cluster works: nobody is refused meanwhile, and the old secret ends."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import run_by
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.test_cut_off import isolate
from tests.sim.scenarios.test_unregister import operator_client
from tests.sim.scenarios.three import SESSION, ThreeBrokers, run_scenario
from tiered.controller.requests import CreateTopic
from tiered.errors import Refused
from tiered.replication.leader_replica import ACKS_ALL
from tiered_api.cli.cluster.secrets import rotate
from tiered_api.kafka.client.peers import KafkaPeers

WAIT = 5.0


async def create_topic(three: ThreeBrokers) -> None:
    """Creates a topic on all brokers, led by the controller, whose records all of them confirm."""
    order = [three.controller.node_id, *(each.node_id for each in three.others())]
    await three.controller.node.submit(CreateTopic("t", assignments=[order], configs={"min.insync.replicas": "3"}))


async def write(three: ThreeBrokers) -> None:
    replica = three.controller.node.leader_replica("t", 0)
    await replica.append(batch([b"r"]), acks=ACKS_ALL, timeout_ms=5_000)


def count_refused(three: ThreeBrokers) -> int:
    return sum(each.server.context.refusals.count("stranger") for each in three.brokers.values())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cluster_works_through_two_rotations(seed: int) -> None:
    async def scenario(three: ThreeBrokers) -> None:
        await create_topic(three)
        await three.wait_until(lambda: len(three.controller.node.image.topics["t"].partitions[0].isr) == 3, 10)
        done = asyncio.Event()
        written = 0

        async def keep_writing() -> None:
            nonlocal written
            while not done.is_set():
                await write(three)
                written += 1

        writing = asyncio.create_task(keep_writing())
        old = three.controller.node.credential
        async with operator_client(three) as client:
            for _ in range(2):
                before = written
                rows = await rotate(client, WAIT)
                assert [row["broker"] for row in rows] == [1, 2, 3]
                await three.wait_until(lambda before=before: written > before, 5)  # type: ignore[misc]
        done.set()
        await writing
        assert count_refused(three) == 0
        assert {each.node.secrets.versions for each in three.brokers.values()} == {(4, 5, 6)}
        outdated = KafkaPeers(three.network.host("far"), cluster_id=three.controller.node.cluster_id, credential=old)
        with pytest.raises(Refused):
            await outdated.get_controller_view(three.controller.advertised, 5)
        await outdated.close()

    run_scenario(scenario, seed)


@run_by(run_scenario, tiered_broker_suspect_timeout_ms=round(SESSION * 1000))
async def test_broker_that_was_away_learns_the_secret_from_the_bucket(three: ThreeBrokers) -> None:
    """One broker is stopped during a rotation, and another one has lost its network. Both come back."""
    stopped, lost = three.others()
    await stopped.stop()
    isolate(three, lost)
    one = three.controller.node
    await three.wait_until(lambda: one.image.live_ids() == {three.controller.node_id}, 5 * SESSION)
    async with operator_client(three) as client:
        await rotate(client, WAIT)
    three.network.heal()
    await stopped.start()
    await three.wait_until(lambda: len(one.image.live_ids()) == 3, 10 * SESSION)
    assert stopped.node.secrets == lost.node.secrets == one.secrets
    await create_topic(three)
    await three.wait_until(lambda: len(one.image.topics["t"].partitions[0].isr) == 3, 10)
    await write(three)
