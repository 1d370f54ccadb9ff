"""The transaction that holds the last stable offset of a partition, as its coordinator knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tiered.errors import Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.security.acls import Operation, ResourceType
from tiered_api.explanation.transaction import HeldPartition, HoldingTransaction
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.overview.segments import ask_broker
from tiered_api.kafka.client.transactions import read_held_partitions
from tiered_api.kafka.protocol.messages.describe_log_dirs import ReportedLeader
from tiered_api.kafka.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tiered_api.kafka.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

LIST, DESCRIBE = 2, 0
HELD_MAX = 5
"""Most partitions of one explanation whose transactions are looked up."""


async def describe_held(request: HttpRequest, tp: TopicPartition, leader: ReportedLeader) -> HeldPartition:
    """Returns a partition with the transaction that holds it, if one does."""
    if leader.producer_id < 0 or leader.last_stable >= leader.high_watermark:
        return HeldPartition(tp, leader)
    return HeldPartition(tp, leader, await _find_holding(request, tp, leader.producer_id))


async def fetch_held(request: HttpRequest, partitions: Sequence[TopicPartition]) -> list[HeldPartition]:
    """Returns the first `HELD_MAX` of partitions whose last stable offset is below the high watermark, each with its
    transaction. One whose leader does not reply is missing."""

    async def fetch(tp: TopicPartition) -> HeldPartition | None:
        topic = request.context.broker.image.topics.get(tp.topic)
        if topic is None or tp.partition >= len(topic.partitions):
            return None
        leader = topic.partitions[tp.partition].leader
        if leader < 0:
            return None
        place = await ask_broker(request, topic, tp.partition, leader, 0, 0, with_leader=True)
        return None if isinstance(place, str) or not place.leader else await describe_held(request, tp, place.leader[0])

    return [each for each in await asyncio.gather(*map(fetch, partitions[:HELD_MAX])) if each is not None]


async def _find_holding(request: HttpRequest, tp: TopicPartition, producer_id: int) -> HoldingTransaction | None:
    """Returns the transaction of a producer id in a partition. It hangs if no broker coordinates it; None if a broker
    does not reply, so that nobody knows. This broker asks in its own name, and shows a transactional id only to those
    who may describe it."""
    send, image = request.context.remote_brokers.send_request, request.context.broker.image
    for broker in sorted(each.node_id for each in image.brokers.values() if each.live):
        try:
            listed = await send(broker, ListTransactionsRequest([], [producer_id]), ListTransactionsResponse, LIST)
            ids = [each.transactional_id for each in listed.transaction_states]
            reply = await send(broker, DescribeTransactionsRequest(ids), DescribeTransactionsResponse, DESCRIBE)
        except (Unavailable, Refused):
            return None
        if listed.error_code:
            return None
        if (producer_id, tp) in read_held_partitions(reply):
            each = next(each for each in reply.transaction_states if each.producer_id == producer_id)
            name = each.transactional_id
            is_shown = request.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)
            return HoldingTransaction(name if is_shown else "", each.transaction_state, each.transaction_timeout_ms)
    return HoldingTransaction(is_hanging=True)
