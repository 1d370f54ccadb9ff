"""Test of AlterPartitionReassignments and ListPartitionReassignments over the wire."""

from __future__ import annotations

from tests.scenario import run_by
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, run
from tests.sim.scenarios.test_elections import TWO
from tiered.config.listeners import Endpoint
from tiered.controller.requests import CreateTopic, FenceBroker, RegisterBroker
from tiered.errors import Code
from tiered_api.kafka.client.connection import BrokerConnection, open_connection
from tiered_api.kafka.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tiered_api.kafka.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from tiered_api.kafka.server.server import serve_kafka

Wanted = dict[str, dict[int, list[int] | None]]
Moving = dict[tuple[str, int], tuple[list[int], list[int], list[int]]]


async def alter_reassignments(
    link: BrokerConnection, wanted: Wanted, *, version: int = 1, other_counts: bool = True
) -> dict[tuple[str, int], int]:
    """Returns the error code of each partition."""
    topics = [
        ReassignableTopic(name, [ReassignablePartition(*each) for each in rows.items()])
        for name, rows in wanted.items()
    ]
    request = AlterPartitionReassignmentsRequest(5_000, other_counts, topics)
    answer = await link.send(request, AlterPartitionReassignmentsResponse, 10, version)
    assert (answer.error_code, answer.allow_replication_factor_change) == (0, other_counts)
    for topic in answer.responses:
        for each in topic.partitions:
            assert (each.error_message is None) == (each.error_code == 0)
    return {
        (topic.name, each.partition_index): each.error_code for topic in answer.responses for each in topic.partitions
    }


async def list_reassignments(link: BrokerConnection, named: dict[str, list[int]] | None = None) -> Moving:
    topics = None if named is None else [ListPartitionReassignmentsTopics(*each) for each in named.items()]
    answer = await link.send(
        ListPartitionReassignmentsRequest(5_000, topics), ListPartitionReassignmentsResponse, 10, 0
    )
    return {
        (topic.name, each.partition_index): (each.replicas, each.adding_replicas, each.removing_replicas)
        for topic in answer.topics
        for each in topic.partitions
    }


@run_by(run)
async def test_reassignments_are_started_listed_and_cancelled(rig: SimBrokerRig) -> None:
    await rig.start(QUICK)
    await rig.broker.submit(RegisterBroker(2, TWO, "d", "two:1", "", True, {"PLAINTEXT": "two:9092"}))
    await rig.broker.submit(CreateTopic("t", assignments=[[1], [1], [1]]))
    server = await serve_kafka(rig.broker, {"PLAINTEXT": Endpoint("PLAINTEXT", "0.0.0.0", 9092)})
    link = await open_connection(rig.network.host("far"), "one", 9092, "far", 5)
    invalid, unknown = Code.INVALID_REPLICA_ASSIGNMENT.number, Code.UNKNOWN_TOPIC_OR_PARTITION.number
    for version in range(2):
        wanted: Wanted = {"t": {0: [1, 2], 1: [9], 2: [], 7: [1]}, "no": {0: [1]}}
        assert await alter_reassignments(link, wanted, version=version) == {
            ("t", 0): 0, ("t", 1): invalid, ("t", 2): invalid, ("t", 7): unknown, ("no", 0): unknown,
        }  # fmt: skip
    assert await alter_reassignments(link, {"t": {1: [2]}}) == {("t", 1): 0}
    both = {("t", 0): ([1, 2], [2], []), ("t", 1): ([2, 1], [2], [1])}
    assert await list_reassignments(link) == both
    assert await list_reassignments(link, {"t": [1, 2, 9], "no": [0]}) == {("t", 1): both["t", 1]}
    fewer = Code.INVALID_REPLICATION_FACTOR.number
    assert await alter_reassignments(link, {"t": {2: [1, 2]}}, other_counts=False) == {("t", 2): fewer}
    none = Code.NO_REASSIGNMENT_IN_PROGRESS.number
    assert await alter_reassignments(link, {"t": {0: None, 1: None, 2: None}}) == {
        ("t", 0): 0,
        ("t", 1): 0,
        ("t", 2): none,
    }
    assert await list_reassignments(link) == {}
    assert {each.replicas for each in rig.broker.image.topics["t"].partitions} == {(1,)}
    await rig.broker.submit(FenceBroker(2, TWO))
    assert await alter_reassignments(link, {"t": {0: [1, 2]}}) == {("t", 0): invalid}
    assert await alter_reassignments(link, {}) == {}
    link.close()
    await server.close()
