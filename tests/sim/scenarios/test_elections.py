"""Test of ElectLeaders over the wire: the preferred leader, and an unclean election."""

from __future__ import annotations

from dataclasses import replace

from tests.scenario import run_by
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, run
from tiered.config.listeners import Endpoint
from tiered.controller.requests import (
    AlterPartitions,
    CreateTopic,
    FenceBroker,
    InSync,
    IsrChange,
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


def leaders(rig: SimBrokerRig, topic: str) -> list[int]:
    return [each.leader for each in rig.broker.image.topics[topic].partitions]


async def alter_isr(rig: SimBrokerRig, topic: str, number: int, *members: int) -> None:
    """Sends an ISR change as the leader would, and nothing else."""
    image = rig.broker.image
    of, incarnations = image.topics[topic], {1: image.brokers[1].incarnation, 2: TWO}
    old = of.partitions[number]
    isr = tuple(InSync(node, incarnation_number(incarnations[node])) for node in members)
    requested = IsrChange(of.topic_id, number, old.leader_epoch, old.partition_epoch, isr)
    codes = await rig.broker.submit(AlterPartitions(old.leader, incarnations[old.leader], (requested,)))
    assert codes == (Code.NONE,)


@run_by(run)
async def test_elections_choose_the_preferred_or_any_live_replica(rig: SimBrokerRig) -> None:
    await rig.start(replace(QUICK, tiered_broker_suspect_timeout_ms=QUICK.broker_session_timeout_ms))
    await rig.broker.submit(RegisterBroker(2, TWO, "d", "two:1", "", True, {"PLAINTEXT": "two:9092"}))
    await rig.broker.submit(CreateTopic("t", assignments=[[1, 2], [2, 1]]))
    await rig.broker.submit(CreateTopic("only", assignments=[[2]]))
    await rig.broker.submit(CreateTopic("left", assignments=[[2, 1]]))
    server = await serve_kafka(rig.broker, {"PLAINTEXT": Endpoint("PLAINTEXT", "0.0.0.0", 9092)})
    link = await open_connection(rig.network.host("far"), "one", 9092, "far", 5)
    await alter_isr(rig, "left", 0, 2)
    await rig.broker.submit(FenceBroker(2, TWO))
    assert (leaders(rig, "t"), leaders(rig, "only"), leaders(rig, "left")) == ([1, 1], [-1], [-1])

    for version in range(3):
        code, results = await elect(link, PREFERRED, {"t": [0, 1, 9], "no": [0], "only": [0]}, version)
        away = Code.PREFERRED_LEADER_NOT_AVAILABLE.number
        assert code == 0 and results == {
            ("t", 0): NOT_NEEDED, ("t", 1): away, ("t", 9): 3, ("no", 0): 3, ("only", 0): away,
        }  # fmt: skip
    nobody = Code.ELIGIBLE_LEADERS_NOT_AVAILABLE.number
    assert await elect(link, UNCLEAN, None) == (0, {("only", 0): nobody, ("left", 0): 0})
    assert leaders(rig, "left") == [1]

    await rig.broker.submit(UnfenceBroker(2, TWO))
    await alter_isr(rig, "t", 1, 1, 2)
    assert leaders(rig, "t") == [1, 1]
    assert await elect(link, PREFERRED, {"t": [0, 1]}) == (0, {("t", 0): NOT_NEEDED, ("t", 1): 0})
    assert leaders(rig, "t") == [1, 2]
    invalid = Code.INVALID_REQUEST.number
    assert await elect(link, 7, {"t": [1]}) == (invalid, {("t", 1): invalid})
    link.close()
    await server.close()
