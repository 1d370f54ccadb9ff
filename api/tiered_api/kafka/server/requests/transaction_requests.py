"""Requests to the transaction coordinator of this broker, with errors as codes that clients know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.metadata.image import Image
from tiered.metadata.topic_names import TRANSACTIONS_TOPIC
from tiered.transactions.requests import Request
from tiered_api.kafka.server.context.context import KafkaContext
from tiered_api.kafka.server.requests.group_requests import coordinator_code, has_partition

R = TypeVar("R")

TRANSACTIONAL_ID_BYTES_MAX = 4_096
"""Largest transactional id in bytes. Each of them stays in memory until it expires."""


async def call_coordinator(
    context: KafkaContext, transactional_id: str, request: Request, reply_type: type[R]
) -> R | Code:
    """Returns the coordinator's reply, or the error code."""
    if len(transactional_id.encode(errors="surrogatepass")) > TRANSACTIONAL_ID_BYTES_MAX:
        return Code.INVALID_REQUEST
    try:
        reply: Any = await context.broker.transaction_coordinators.submit(transactional_id, request)
    except Refused as refused:
        return coordinator_code(refused)
    assert isinstance(reply, reply_type)
    return reply


def call_coordinator_now(
    context: KafkaContext, transactional_id: str, request: Request, reply_type: type[R]
) -> R | Code | None:
    """Does the same if the coordinator replies without a wait. Returns None, without effect, if it does not."""
    if len(transactional_id.encode(errors="surrogatepass")) > TRANSACTIONAL_ID_BYTES_MAX:
        return Code.INVALID_REQUEST
    try:
        reply: Any = context.broker.transaction_coordinators.submit_now(transactional_id, request)
    except Refused as refused:
        return coordinator_code(refused)
    assert reply is None or isinstance(reply, reply_type)
    return reply


def fenced_code(code: Code, version: int, fenced_from: int) -> Code:
    """Returns the code for a client of this version: before `fenced_from`, clients do not know PRODUCER_FENCED."""
    return Code.INVALID_PRODUCER_EPOCH if code is Code.PRODUCER_FENCED and version < fenced_from else code


def find_refused_partitions(image: Image, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Code]:
    """Returns the partitions that no transaction can have, with the code of each."""
    refused = {}
    for tp in partitions:
        if tp.topic == TRANSACTIONS_TOPIC:
            refused[tp] = Code.TOPIC_AUTHORIZATION_FAILED
        elif not has_partition(image, *tp):
            refused[tp] = Code.UNKNOWN_TOPIC_OR_PARTITION
    return refused
