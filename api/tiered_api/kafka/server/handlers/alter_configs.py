"""AlterConfigs (API key 33): the settings of a resource become those of the request. A setting that the request leaves
out returns to its default. Current clients send IncrementalAlterConfigs instead."""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered_api.kafka.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.config_resources import Edits, alter_resources


async def handle(context: KafkaContext, call: Call[AlterConfigsRequest]) -> AlterConfigsResponse:
    """Returns one result per resource, in the order of the request."""
    responses = await alter_resources(context, call, _edits, AlterConfigsResourceResponse, replace=True)
    return AlterConfigsResponse(responses=responses)


def _edits(resource: AlterConfigsResource) -> Edits:
    edits = {config.name: config.value for config in resource.configs}
    if len(edits) < len(resource.configs):
        raise Refused(Code.INVALID_REQUEST, "the request names a setting twice")
    if None in edits.values():
        raise Refused(Code.INVALID_REQUEST, "a value is missing")
    return edits
