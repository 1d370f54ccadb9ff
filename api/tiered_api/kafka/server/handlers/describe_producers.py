"""DescribeProducers (API key 61): the state of the idempotent producers of partitions (KIP-664)."""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered.hot.producer_state import ProducerStateEntry
from tiered.metadata.topic_names import check_name
from tiered_api.kafka.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from tiered_api.kafka.server.exchange.context import Call, KafkaContext
from tiered_api.kafka.server.exchange.led_partitions import find_leader_replica

BETWEEN_TURNS = 500
"""Partitions between two pauses in which other requests run."""


async def handle(context: KafkaContext, call: Call[DescribeProducersRequest]) -> DescribeProducersResponse:
    """Returns one result per distinct partition."""
    wanted: dict[str, dict[int, None]] = {}
    for topic in call.request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics: list[TopicResponse] = []
    described = 0
    for name, numbers in wanted.items():
        topics.append(TopicResponse(name, []))
        for number in numbers:
            topics[-1].partitions.append(_partition(context, name, number))
            described += 1
            if described % BETWEEN_TURNS == 0:
                await context.turns.wait_turn()
    return DescribeProducersResponse(topics=topics)


def _partition(context: KafkaContext, topic: str, number: int) -> PartitionResponse:
    try:
        check_name(topic)
        producers = find_leader_replica(context, topic, number).log.producers
    except Refused as refused:
        return PartitionResponse(number, refused.code.number, refused.why)
    return PartitionResponse(number, Code.NONE.number, None, [_state(each) for each in producers.list_producers()])


def _state(producer: ProducerStateEntry) -> ProducerState:
    return ProducerState(
        producer.producer_id,
        producer.epoch,
        producer.batches[-1].last_sequence if producer.batches else -1,
        producer.timestamp,
        producer.coordinator_epoch,
        producer.txn_first_offset,
    )
