"""Test of a cluster that began with one broker: topics from then get replicas on all brokers soon after others join."""

from __future__ import annotations

from tests.sim.harness.loop import SimLoop
from tests.sim.scenarios.test_reassignments import is_leading, read_log, write
from tests.sim.scenarios.three import ThreeBrokers
from tiered.controller.requests import CreateTopic
from tiered.metadata.topic_names import OFFSETS_TOPIC


def test_topics_of_a_single_broker_gain_replicas_as_brokers_join() -> None:
    loop = SimLoop(1, seconds_max=1_000)

    async def scenario() -> None:
        three = ThreeBrokers(loop)
        for each in three.brokers.values():
            each.overrides |= {"default_replication_factor": 3}
        await three.brokers[1].start()
        node = three.brokers[1].node
        await node.submit(CreateTopic("t"))
        await node.submit(CreateTopic("alone", 1, 1))
        await node.submit(CreateTopic(OFFSETS_TOPIC, 2, 1))
        acked = await write(three, 10)
        await three.brokers[2].start()

        def in_sync(topic: str) -> set[tuple[int, ...]]:
            return {tuple(sorted(each.isr)) for each in node.image.topics[topic].partitions}

        await three.wait_until(lambda: in_sync("t") == in_sync(OFFSETS_TOPIC) == {(1, 2)}, 30)
        await three.brokers[3].start()
        await three.wait_until(lambda: in_sync("t") == in_sync(OFFSETS_TOPIC) == {(1, 2, 3)}, 30)
        assert in_sync("alone") == {(1,)}
        await three.brokers[1].kill()
        await three.wait_until(lambda: any(is_leading(three.brokers[other]) for other in (2, 3)), 10)
        (leader,) = (three.brokers[other] for other in (2, 3) if is_leading(three.brokers[other]))
        assert all(value in read_log(leader) for value in acked)
        for each in three.brokers.values():
            if each.node_id != 1:
                await each.stop()

    loop.run(scenario())
