"""IncrementalAlterConfigs (API key 44): sets single settings, resets them to their defaults, or adds and removes words
of lists (KIP-339). All edits of a resource apply, or none."""

from __future__ import annotations

from enum import IntEnum

from tiered.config.setting import split_words
from tiered.errors import Code, Refused
from tiered.metadata.changes import ListEdit
from tiered_api.kafka.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.config_resources import Edits, alter_resources


class ConfigOperation(IntEnum):
    """Edits of a setting, as Kafka numbers them."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


async def handle(context: KafkaContext, call: Call[IncrementalAlterConfigsRequest]) -> IncrementalAlterConfigsResponse:
    """Returns one result per resource, in the order of the request."""
    responses = await alter_resources(context, call, _edits, AlterConfigsResourceResponse, replace=False)
    return IncrementalAlterConfigsResponse(responses=responses)


def _edits(resource: AlterConfigsResource) -> Edits:
    edits: dict[str, str | ListEdit | None] = {}
    for config in resource.configs:
        if config.name in edits:
            raise Refused(Code.INVALID_REQUEST, f"the request names {config.name} twice")
        if config.config_operation == ConfigOperation.DELETE:
            edits[config.name] = None
            continue
        if config.value is None:
            raise Refused(Code.INVALID_REQUEST, f"{config.name}: a value is missing")
        words = split_words(config.value)
        match config.config_operation:
            case ConfigOperation.SET:
                edits[config.name] = config.value
            case ConfigOperation.APPEND:
                edits[config.name] = ListEdit(added=words)
            case ConfigOperation.SUBTRACT:
                edits[config.name] = ListEdit(removed=words)
            case _:
                raise Refused(Code.INVALID_REQUEST, f"{config.name}: unknown operation {config.config_operation}")
    return edits
