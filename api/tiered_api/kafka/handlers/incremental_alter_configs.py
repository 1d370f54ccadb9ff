"""IncrementalAlterConfigs (API key 44): single settings are set, returned to their defaults, or, where they are lists,
joined and left by words (KIP-339). Each resource is changed as a whole or not at all."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from functools import partial

from tiered.errors import Code, Refused
from tiered.metadata.requests import ListEdit
from tiered_api.kafka.config_resources import Edits, Outcome, alter
from tiered_api.kafka.faults import ALTER_MS, MANY
from tiered_api.kafka.in_time import in_time
from tiered_api.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tiered_api.kafka.site import Call, Site


class Operation(IntEnum):
    """What to do with a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


async def handle(site: Site, call: Call[IncrementalAlterConfigsRequest]) -> IncrementalAlterConfigsResponse:
    """One result per resource, in their order."""
    request = call.request
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    works = [
        partial(_alter, site, each, times[each.resource_type, each.resource_name] > 1, request.validate_only)
        for each in request.resources
    ]
    late = Outcome(Code.REQUEST_TIMED_OUT, "it is not done yet; it may be")
    outcomes = await in_time(works, ALTER_MS, lambda _: late, at_once=MANY)
    return IncrementalAlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(outcome.code.number, outcome.why, each.resource_type, each.resource_name)
            for each, outcome in zip(request.resources, outcomes, strict=True)
        ]
    )


async def _alter(site: Site, resource: AlterConfigsResource, doubled: bool, validate_only: bool) -> Outcome:
    if doubled:
        return Outcome(Code.INVALID_REQUEST, "each resource may be there once")
    try:
        edits = _edits(resource.configs)
    except Refused as refused:
        return Outcome(refused.code, refused.why)
    return await alter(
        site, resource.resource_type, resource.resource_name, edits,
        validate_only=validate_only, replace=False, timeout=ALTER_MS / 1000,
    )  # fmt: skip


def _edits(configs: list[AlterableConfig]) -> Edits:
    edits: dict[str, str | ListEdit | None] = {}
    for config in configs:
        if config.name in edits:
            raise Refused(Code.INVALID_REQUEST, f"{config.name} is there twice")
        if config.config_operation == Operation.DELETE:
            edits[config.name] = None
            continue
        if config.value is None:
            raise Refused(Code.INVALID_REQUEST, f"{config.name}: a value is missing")
        words = tuple(word.strip() for word in config.value.split(",") if word.strip())
        match config.config_operation:
            case Operation.SET:
                edits[config.name] = config.value
            case Operation.APPEND:
                edits[config.name] = ListEdit(added=words)
            case Operation.SUBTRACT:
                edits[config.name] = ListEdit(removed=words)
            case _:
                raise Refused(Code.INVALID_REQUEST, f"{config.name}: unknown operation {config.config_operation}")
    return edits
