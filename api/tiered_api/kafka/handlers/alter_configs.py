"""AlterConfigs (API key 33): the settings of a resource become those of the request; what is not named goes back to its
default. Clients of today send IncrementalAlterConfigs."""

from __future__ import annotations

from collections import Counter
from functools import partial

from tiered.errors import Code
from tiered_api.kafka.config_resources import Outcome, alter
from tiered_api.kafka.faults import ALTER_MS, MANY
from tiered_api.kafka.in_time import in_time
from tiered_api.kafka.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from tiered_api.kafka.site import Call, Site


async def handle(site: Site, call: Call[AlterConfigsRequest]) -> AlterConfigsResponse:
    """One result per resource, in their order."""
    request = call.request
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    works = [
        partial(_alter, site, each, times[each.resource_type, each.resource_name] > 1, request.validate_only)
        for each in request.resources
    ]
    late = Outcome(Code.REQUEST_TIMED_OUT, "it is not done yet; it may be")
    outcomes = await in_time(works, ALTER_MS, lambda _: late, at_once=MANY)
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(outcome.code.number, outcome.why, each.resource_type, each.resource_name)
            for each, outcome in zip(request.resources, outcomes, strict=True)
        ]
    )


async def _alter(site: Site, resource: AlterConfigsResource, doubled: bool, validate_only: bool) -> Outcome:
    if doubled:
        return Outcome(Code.INVALID_REQUEST, "each resource may be there once")
    edits = {config.name: config.value for config in resource.configs}
    if len(edits) < len(resource.configs):
        return Outcome(Code.INVALID_REQUEST, "a setting is there twice")
    if None in edits.values():
        return Outcome(Code.INVALID_REQUEST, "a value is missing")
    return await alter(
        site, resource.resource_type, resource.resource_name, edits,
        validate_only=validate_only, replace=True, timeout=ALTER_MS / 1000,
    )  # fmt: skip
