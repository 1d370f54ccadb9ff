"""DescribeProducers (API key 61): the state of the producers of partitions (KIP-664).

Every replica describes the producers of its own log, as in Kafka: `kafka-transactions.sh find-hanging --broker-id` asks
brokers that follow.
"""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import check_name
from tiered.producers.entry import ProducerStateEntry
from tiered_api.kafka.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.led_partitions import find_leader_replica


async def handle(context: KafkaContext, call: Call[DescribeProducersRequest]) -> DescribeProducersResponse:
    """Returns one result per distinct partition."""
    wanted: dict[str, dict[int, None]] = {}
    async for topic in context.turns.each_of(call.request.topics):
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = {name: TopicResponse(name, []) for name in wanted}
    partitions = ((name, number) for name, numbers in wanted.items() for number in numbers)
    async for name, number in context.turns.each_of(partitions):
        topics[name].partitions.append(_partition(context, name, number))
    return DescribeProducersResponse(topics=list(topics.values()))


def _partition(context: KafkaContext, topic: str, number: int) -> PartitionResponse:
    try:
        check_name(topic)
        follower = context.broker.hosted_replicas.find_follower(TopicPartition(topic, number))
        log = follower.log if follower is not None else find_leader_replica(context, topic, number).log
    except Refused as refused:
        return PartitionResponse(number, refused.code.number, refused.why)
    return PartitionResponse(number, Code.NONE.number, None, [_state(each) for each in log.producers.list_producers()])


def _state(producer: ProducerStateEntry) -> ProducerState:
    return ProducerState(
        producer.producer_id,
        producer.epoch,
        producer.batches[-1].last_sequence if producer.batches else -1,
        producer.timestamp,
        producer.coordinator_epoch,
        producer.txn_first_offset,
    )
