"""Test of ElectLeaders over the wire: the preferred leader, and an unclean election."""

from __future__ import annotations

from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, run
from tiered.config.listeners import Endpoint
from tiered.controller.requests import (
    AlterPartitions,
    CreateTopic,
    FenceBroker,
    InSync,
    IsrWish,
    RegisterBroker,
    UnfenceBroker,
)
from tiered.errors import Code
from tiered.ids import incarnation_number
from tiered_api.kafka.client.connection import BrokerConnection, open_connection
from tiered_api.kafka.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from tiered_api.kafka.server.server import serve_kafka

TWO = "B" * 21 + "A"
PREFERRED, UNCLEAN = 0, 1
NOT_NEEDED = Code.ELECTION_NOT_NEEDED.number
Results = dict[tuple[str, int], int]


async def elect(
    link: BrokerConnection, kind: int, named: dict[str, list[int]] | None, version: int = 2
) -> tuple[int, Results]:
    """Returns the error code of the whole reply, and of each partition in it."""
    wanted = None if named is None else [TopicPartitions(*each) for each in named.items()]
    answer = await link.send(ElectLeadersRequest(kind, wanted, 5_000), ElectLeadersResponse, 10, version)
    return answer.error_code, {
        (topic.topic, each.partition_id): each.error_code
        for topic in answer.replica_election_results
        for each in topic.partition_result
    }


def leaders(site: SimBrokerRig, topic: str) -> list[int]:
    return [each.leader for each in site.node.image.topics[topic].partitions]


async def alter_isr(site: SimBrokerRig, topic: str, number: int, *members: int) -> None:
    """Sends an ISR change as the leader would, and nothing else."""
    image = site.node.image
    of, incarnations = image.topics[topic], {1: image.brokers[1].incarnation, 2: TWO}
    old = of.partitions[number]
    isr = tuple(InSync(node, incarnation_number(incarnations[node])) for node in members)
    requested = IsrWish(of.topic_id, number, old.leader_epoch, old.partition_epoch, isr)
    codes = await site.node.submit(AlterPartitions(old.leader, incarnations[old.leader], (requested,)))
    assert codes == (Code.NONE,)


def test_elections_choose_the_preferred_or_any_live_replica() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(QUICK)
        await site.node.submit(RegisterBroker(2, TWO, "d", "two:1", "", True, {"PLAINTEXT": "two:9092"}))
        await site.node.submit(CreateTopic("t", assignments=[[1, 2], [2, 1]]))
        await site.node.submit(CreateTopic("only", assignments=[[2]]))
        await site.node.submit(CreateTopic("left", assignments=[[2, 1]]))
        server = await serve_kafka(site.node, {"PLAINTEXT": Endpoint("PLAINTEXT", "0.0.0.0", 9092)})
        link = await open_connection(site.network.host("far"), "one", 9092, "far", 5)
        await alter_isr(site, "left", 0, 2)
        await site.node.submit(FenceBroker(2, TWO))
        assert (leaders(site, "t"), leaders(site, "only"), leaders(site, "left")) == ([1, 1], [-1], [-1])

        for version in range(3):
            code, results = await elect(link, PREFERRED, {"t": [0, 1, 9], "no": [0], "only": [0]}, version)
            away = Code.PREFERRED_LEADER_NOT_AVAILABLE.number
            assert code == 0 and results == {
                ("t", 0): NOT_NEEDED, ("t", 1): away, ("t", 9): 3, ("no", 0): 3, ("only", 0): away,
            }  # fmt: skip
        nobody = Code.ELIGIBLE_LEADERS_NOT_AVAILABLE.number
        assert await elect(link, UNCLEAN, None) == (0, {("only", 0): nobody, ("left", 0): 0})
        assert leaders(site, "left") == [1]

        await site.node.submit(UnfenceBroker(2, TWO))
        await alter_isr(site, "t", 1, 1, 2)
        assert leaders(site, "t") == [1, 1]
        assert await elect(link, PREFERRED, {"t": [0, 1]}) == (0, {("t", 0): NOT_NEEDED, ("t", 1): 0})
        assert leaders(site, "t") == [1, 2]
        invalid = Code.INVALID_REQUEST.number
        assert await elect(link, 7, {"t": [1]}) == (invalid, {("t", 1): invalid})
        link.close()
        await server.close()
        await site.stop()

    run(scenario)
