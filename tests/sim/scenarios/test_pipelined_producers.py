"""Test of an idempotent producer with several requests in flight when the leader changes. The requests behind a refused
one get the same error, and no sequence gap: after a gap clients begin new sequences, and lose the proof of earlier
records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from tests.scenario import run_by
from tests.sim.scenarios.three import SESSION, ThreeBrokers, run_scenario
from tiered.controller.requests import CreateTopic
from tiered.errors import Code
from tiered.ids import TopicId
from tiered.records.batch import encode_batch
from tiered_api.kafka.client.connection import BrokerConnection, open_connection
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

VERSION = 11


class PipelinedProducer(NamedTuple):
    """A connection to one broker."""

    link: BrokerConnection
    topic_id: TopicId

    async def send(self, *sequences: int, producer: int = 7, epoch: int = 0) -> list[Code]:
        """Sends a record under each of these sequences, each before the reply to the last one; returns the error
        codes."""
        codes = []
        for sequence in sequences:
            data = encode_batch(
                [(1000, b"k", b"v", ())], producer_id=producer, producer_epoch=epoch, base_sequence=sequence
            )
            topic = TopicProduceData("t", self.topic_id, [PartitionProduceData(0, bytes(data))])
            asked = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic])
            answer = await self.link.send(asked, ProduceResponse, 10, VERSION)
            number = answer.responses[0].partition_responses[0].error_code
            codes.append(next(code for code in Code if code.number == number))
        return codes


OK, MOVED, GAP = Code.NONE, Code.NOT_LEADER_OR_FOLLOWER, Code.OUT_OF_ORDER_SEQUENCE_NUMBER


class ChangeOfLeader(NamedTuple):
    """One producer's connections to two brokers: the second one leads after the first one."""

    at_old: PipelinedProducer
    at_next: PipelinedProducer
    next_leads: Callable[[], Awaitable[None]]


@asynccontextmanager
async def change_of_leader(three: ThreeBrokers) -> AsyncIterator[ChangeOfLeader]:
    old, successor = three.others()
    assignment = [[old.node_id, successor.node_id, three.controller.node_id]]
    made = await three.controller.node.submit(CreateTopic("t", assignments=assignment))
    links = [
        await open_connection(three.network.host("client"), each.name, 9092, "client", 5) for each in (old, successor)
    ]

    async def next_leads() -> None:
        await old.kill()
        await three.wait_until(
            lambda: any(each.tp.topic == "t" for each in successor.node.leader_replicas()), 2 * SESSION
        )

    at_old, at_next = (PipelinedProducer(link, made.topic_id) for link in links)
    yield ChangeOfLeader(at_old, at_next, next_leads)
    for link in links:
        link.close()


@run_by(run_scenario)
async def test_batches_behind_a_refused_one_get_its_error_at_the_next_leader(three: ThreeBrokers) -> None:
    async with change_of_leader(three) as change:
        assert await change.at_old.send(0, 1) == [OK, OK]
        assert await change.at_next.send(2, 3) == [MOVED, MOVED]
        await change.next_leads()
        assert await change.at_next.send(4, 3) == [MOVED, MOVED], "the client has not seen the refusal of 2 yet"
        assert await change.at_next.send(2, 3, 4) == [OK, OK, OK]
        assert await change.at_next.send(6) == [GAP], "5 was never sent here"
        assert await change.at_next.send(5, 6) == [OK, OK]


@run_by(run_scenario)
async def test_batch_that_overtakes_another_to_a_new_leader_is_retried(three: ThreeBrokers) -> None:
    """librdkafka sometimes sends a later batch to the new leader first, when a batch was refused by the old one."""
    async with change_of_leader(three) as change:
        assert await change.at_old.send(0, 1) == [OK, OK]
        await change.next_leads()
        assert await change.at_next.send(3, 4) == [MOVED, MOVED], "2 is on its way"
        assert await change.at_next.send(2, 3, 4) == [OK, OK, OK]
        assert await change.at_next.send(6) == [GAP], "this leader has batches of the producer"


@run_by(run_scenario)
async def test_gap_at_a_new_leader_is_named_when_its_batch_comes_again(three: ThreeBrokers) -> None:
    async with change_of_leader(three) as change:
        assert await change.at_old.send(0, 1) == [OK, OK]
        await change.next_leads()
        assert await change.at_next.send(3, 4) == [MOVED, MOVED]
        assert await change.at_next.send(3, 4) == [GAP, GAP], "a client that lost 2 has to know it"
