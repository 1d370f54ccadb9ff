"""FindCoordinator (API key 10): the broker that coordinates a group or a transactional id.

v1+ has the type of the key and an error message, v4+ many keys (KIP-699). v5 and v6 change nothing here. The broker
creates `__consumer_offsets` or `__transaction_state` when the first client needs it, and replies once its partitions
have leaders. So the first client need not repeat its request, as it must with Kafka. Share groups are not served. Their
keys get an error that ends the client's attempt, instead of one that the client retries.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.coordinator.routing import partition_of
from tiered.errors import Code, Refused
from tiered.metadata.image import Image
from tiered.metadata.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tiered_api.kafka.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tiered_api.kafka.server.context.advertised_brokers import advertised_brokers
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import coordinator_code

GROUP, TRANSACTION, SHARE = 0, 1, 2
MANY_KEYS_FROM = 4
KEYS_MAX = 10_000
TOPICS = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC}
"""The internal topic whose partitions coordinate the keys of each type."""

_NO_COORDINATOR = (-1, "", -1)


async def handle(context: KafkaContext, call: Call[FindCoordinatorRequest]) -> FindCoordinatorResponse:
    """Returns one result per key."""
    request = call.request
    keys = (request.coordinator_keys if call.version >= MANY_KEYS_FROM else [request.key])[:KEYS_MAX]
    failed = await _check_key_type(context, request.key_type)
    if failed is None:
        await context.broker.suspected_brokers.wait_resolved()
        topic = TOPICS[request.key_type]
        places = _find_partition_leaders(context.broker.image, topic, call.listener)
        found = [_find_coordinator(key, topic, places) for key in keys]
    else:
        found = [_make_error(key, *failed) for key in keys]
    if call.version >= MANY_KEYS_FROM:
        return FindCoordinatorResponse(coordinators=found)
    only = found[0]
    message = None if only.error_code == Code.NONE.number else only.error_message
    return FindCoordinatorResponse(
        error_code=only.error_code, error_message=message, node_id=only.node_id, host=only.host, port=only.port
    )


async def _check_key_type(context: KafkaContext, key_type: int) -> tuple[Code, str] | None:
    """Returns why no key of this type has a coordinator, None if keys of the type have one. Called once for all keys,
    because it may wait."""
    if key_type == SHARE:
        return Code.INVALID_REQUEST, "share groups are not served by this broker"
    if key_type not in TOPICS:
        return Code.INVALID_REQUEST, f"there is no coordinator of type {key_type}"
    try:
        broker = context.broker
        await (broker.group_coordinators if key_type == GROUP else broker.transaction_coordinators).ensure_topic()
    except Refused as refused:
        return coordinator_code(refused), refused.why
    return None


def _find_partition_leaders(image: Image, topic: str, listener: str) -> list[tuple[int, str, int]]:
    """Returns the leader of each partition of an internal topic, and its address on the listener of the client."""
    brokers = {
        broker.node_id: (broker.node_id, host, port) for broker, host, port in advertised_brokers(image, listener)
    }
    return [brokers.get(partition.leader, _NO_COORDINATOR) for partition in image.topics[topic].partitions]


def _find_coordinator(key: str, topic: str, leaders: Sequence[tuple[int, str, int]]) -> Coordinator:
    partition = partition_of(key, len(leaders))
    node_id, host, port = leaders[partition]
    if node_id < 0:
        return _make_error(key, Code.COORDINATOR_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
    return Coordinator(key=key, node_id=node_id, host=host, port=port)


def _make_error(key: str, code: Code, why: str) -> Coordinator:
    node_id, host, port = _NO_COORDINATOR
    return Coordinator(key=key, node_id=node_id, host=host, port=port, error_code=code.number, error_message=why)
