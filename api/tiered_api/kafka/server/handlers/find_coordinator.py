"""FindCoordinator (API key 10): which broker coordinates a group.

v1+ names the type of key and says an error in words, v4+ asks for many keys at once (KIP-699), v5+ and v6+ change
nothing for groups. `__consumer_offsets` is made on first need and led when this answers, so a client that comes first
does not have to ask twice, as with Kafka. Transactions and share groups are not served: their keys get an error that
ends the client's attempt instead of one that it repeats.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.broker.group_coordinators import partition_of
from tiered.errors import Code, Refused
from tiered.metadata.image import Image
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered_api.kafka.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tiered_api.kafka.server.advertised_brokers import serving
from tiered_api.kafka.server.context import Call, Site
from tiered_api.kafka.server.group_requests import coordinator_code

GROUP, TRANSACTION, SHARE = 0, 1, 2
MANY = 4
KEYS_MAX = 10_000

_NOBODY = (-1, "", -1)


async def handle(site: Site, call: Call[FindCoordinatorRequest]) -> FindCoordinatorResponse:
    """One answer for each key."""
    request = call.request
    keys = (request.coordinator_keys if call.version >= MANY else [request.key])[:KEYS_MAX]
    failed = await _not_served(site, request.key_type)
    if failed is None:
        await site.node.doubts.settled()
        places = _places(site.node.image, call.listener)
        found = [_find(key, places) for key in keys]
    else:
        found = [_failed(key, *failed) for key in keys]
    if call.version >= MANY:
        return FindCoordinatorResponse(coordinators=found)
    only = found[0]
    message = None if only.error_code == Code.NONE.number else only.error_message
    return FindCoordinatorResponse(
        error_code=only.error_code, error_message=message, node_id=only.node_id, host=only.host, port=only.port
    )


async def _not_served(site: Site, key_type: int) -> tuple[Code, str] | None:
    """Why no key of this type has a coordinator, if none has. Asked once for all keys: it may take its time."""
    if key_type == TRANSACTION:
        return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not served by this broker"
    if key_type == SHARE:
        return Code.INVALID_REQUEST, "share groups are not served by this broker"
    if key_type != GROUP:
        return Code.INVALID_REQUEST, f"there is no coordinator of type {key_type}"
    try:
        await site.node.coordinators.ensure_topic()
    except Refused as refused:
        return coordinator_code(refused), refused.why
    return None


def _places(image: Image, listener: str) -> list[tuple[int, str, int]]:
    """Who leads each partition of groups, and the address that clients of this listener are told."""
    brokers = {broker.node_id: (broker.node_id, host, port) for broker, host, port in serving(image, listener)}
    return [brokers.get(partition.leader, _NOBODY) for partition in image.topics[OFFSETS_TOPIC].partitions]


def _find(key: str, places: Sequence[tuple[int, str, int]]) -> Coordinator:
    partition = partition_of(key, len(places))
    node_id, host, port = places[partition]
    if node_id < 0:
        return _failed(key, Code.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC}-{partition} has no leader")
    return Coordinator(key=key, node_id=node_id, host=host, port=port)


def _failed(key: str, code: Code, why: str) -> Coordinator:
    node_id, host, port = _NOBODY
    return Coordinator(key=key, node_id=node_id, host=host, port=port, error_code=code.number, error_message=why)
