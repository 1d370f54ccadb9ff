"""ListConfigResources (API key 74): the resources that have settings, by type (v1+; KIP-1142). v0 requests client
metrics subscriptions, and there are none."""

from __future__ import annotations

from tiered.errors import Code
from tiered_api.kafka.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.config_resources import ConfigResourceType


async def handle(context: KafkaContext, call: Call[ListConfigResourcesRequest]) -> ListConfigResourcesResponse:
    """Returns every topic and broker, and each group with settings of its own, or those of the requested types."""
    if call.version == 0:
        return ListConfigResourcesResponse()
    kinds = set(call.request.resource_types) or set(ConfigResourceType)
    if not kinds <= set(ConfigResourceType):
        return ListConfigResourcesResponse(error_code=Code.UNSUPPORTED_VERSION.number)
    image = context.broker.image
    found: list[ConfigResource] = []
    for kind in (ConfigResourceType.BROKER_LOGGER, ConfigResourceType.BROKER):
        if kind in kinds:
            found += [ConfigResource(str(node_id), kind) for node_id, each in image.brokers.items() if each.live]
    if ConfigResourceType.TOPIC in kinds:
        found += [ConfigResource(name, ConfigResourceType.TOPIC) for name in image.topics]
    if ConfigResourceType.GROUP in kinds:
        found += [ConfigResource(group, ConfigResourceType.GROUP) for group in image.group_configs]
    return ListConfigResourcesResponse(config_resources=found)
