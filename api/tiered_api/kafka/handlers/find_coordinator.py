"""FindCoordinator (API key 10): which broker coordinates a group.

v1+ names the type of key and says an error in words, v4+ asks for many keys at once (KIP-699), v5+ and v6+ change
nothing for groups. `__consumer_offsets` is made on first need and led when this answers, so a client that comes first
does not have to ask twice, as with Kafka. Transactions and share groups are not served: their keys get an error that
ends the client's attempt instead of one that it repeats.
"""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered.metadata.image import Image
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered_api.kafka.brokers import serving
from tiered_api.kafka.groups import coordinator_code
from tiered_api.kafka.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tiered_api.kafka.site import Call, Site

GROUP, TRANSACTION, SHARE = 0, 1, 2
MANY = 4
KEYS_MAX = 10_000

_NOBODY = (-1, "", -1)


async def handle(site: Site, call: Call[FindCoordinatorRequest]) -> FindCoordinatorResponse:
    """One answer for each key."""
    request = call.request
    keys = request.coordinator_keys if call.version >= MANY else [request.key]
    found = [await _find(site, key, request.key_type, call.listener) for key in keys[:KEYS_MAX]]
    if call.version >= MANY:
        return FindCoordinatorResponse(coordinators=found)
    only = found[0]
    message = None if only.error_code == Code.NONE.number else only.error_message
    return FindCoordinatorResponse(
        error_code=only.error_code, error_message=message, node_id=only.node_id, host=only.host, port=only.port
    )


async def _find(site: Site, key: str, key_type: int, listener: str) -> Coordinator:
    if key_type != GROUP:
        return _failed(key, *_not_served(key_type))
    try:
        partition = await site.node.coordinators.partition_for(key)
    except Refused as refused:
        return _failed(key, coordinator_code(refused), refused.why)
    node_id, host, port = _leader(site.node.image, partition, listener)
    if node_id < 0:
        return _failed(key, Code.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC}-{partition} has no leader")
    return Coordinator(key=key, node_id=node_id, host=host, port=port)


def _not_served(key_type: int) -> tuple[Code, str]:
    if key_type == TRANSACTION:
        return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not served by this broker"
    if key_type == SHARE:
        return Code.INVALID_REQUEST, "share groups are not served by this broker"
    return Code.INVALID_REQUEST, f"there is no coordinator of type {key_type}"


def _leader(image: Image, partition: int, listener: str) -> tuple[int, str, int]:
    """Who leads it, and the address that clients of this listener are told."""
    topic = image.topics.get(OFFSETS_TOPIC)
    if topic is None:
        return _NOBODY
    leader = topic.partitions[partition].leader
    places = {broker.node_id: (broker.node_id, host, port) for broker, host, port in serving(image, listener)}
    return places.get(leader, _NOBODY)


def _failed(key: str, code: Code, why: str) -> Coordinator:
    node_id, host, port = _NOBODY
    return Coordinator(key=key, node_id=node_id, host=host, port=port, error_code=code.number, error_message=why)
