"""An idempotent producer has several requests under way when the leader changes: those behind a refused one are refused
like it, and not as a gap in its numbers, for which clients begin new ones and lose the proof of what is there."""

from __future__ import annotations

from typing import NamedTuple

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
        """A record under each of these numbers, the next before the last one is answered; the codes of the answers."""
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


def test_what_follows_a_refused_batch_is_refused_like_it_also_by_who_leads_by_then() -> None:
    async def scenario(three: ThreeBrokers) -> None:
        old, heir = three.others()
        assignment = [[old.node_id, heir.node_id, three.controller.node_id]]
        made = await three.controller.node.submit(CreateTopic("t", assignments=assignment))
        links = [
            await open_connection(three.network.host("client"), each.name, 9092, "client", 5) for each in (old, heir)
        ]
        at_old, at_heir = (PipelinedProducer(link, made.topic_id) for link in links)
        assert await at_old.send(0, 1) == [OK, OK]
        assert await at_heir.send(2, 3) == [MOVED, MOVED]
        await old.kill()
        await three.wait_until(lambda: any(each.tp.topic == "t" for each in heir.node.leader_replicas()), 2 * SESSION)
        assert await at_heir.send(4, 3) == [MOVED, MOVED], "the client has not seen the refusal of 2 yet"
        assert await at_heir.send(2, 3, 4) == [OK, OK, OK]
        assert await at_heir.send(6) == [GAP], "5 was never sent here"
        assert await at_heir.send(5, 6) == [OK, OK]
        for link in links:
            link.close()

    run_scenario(scenario)
