"""The registry: tests of a schema against the versions of a subject, without a registration."""

from __future__ import annotations

from aiohttp import web

from tiered.registry import formats
from tiered.registry.records import VersionWritten
from tiered.registry.refusals import SUBJECT_NOT_FOUND, RegistryRefused
from tiered.registry.registration import plan_check, resolve
from tiered.registry.state import LATEST, RegistryState, parse_version
from tiered.registry.subjects import parse_subject
from tiered.security.acls import Operation
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.registry import rights
from tiered_api.http.registry.bodies import query_flag, read_schema, reply
from tiered_api.http.registry.registrations import make_canonical, run_in_thread
from tiered_api.http.registry.schema_log import SchemaLog


async def check_with_version(request: HttpRequest) -> web.StreamResponse:
    """Returns whether a schema is compatible with a version of a subject, by the level of the subject."""
    return await _check(request, parse_version(request.args["version"]))


async def check_with_versions(request: HttpRequest) -> web.StreamResponse:
    """Returns whether a schema is compatible with those versions of a subject that its level names."""
    return await _check(request, None)


async def _check(request: HttpRequest, version: int | None) -> web.StreamResponse:
    subject = parse_subject(request.args["subject"])
    rights.require(request, Operation.DESCRIBE, subject)
    given = await read_schema(request)
    state = await request.context.lazy_service(SchemaLog).read()
    schema = await make_canonical(request, state, subject, given.schema, normalize=query_flag(request, "normalize"))
    made = plan_check(state, subject, _choose(state, subject, version))
    found = await run_in_thread(request, formats.check, resolve(state, subject, schema), made)
    verdict: dict[str, object] = {"is_compatible": not found}
    if query_flag(request, "verbose"):
        verdict["messages"] = found
    return reply(request, verdict)


def _choose(state: RegistryState, subject: str, version: int | None) -> list[VersionWritten]:
    """Returns the versions to compare with. Raises `RegistryRefused` for one that does not exist; a subject without
    versions has nothing to compare with."""
    if version is None:
        return state.live_versions(subject)
    try:
        return [state.find_version(subject, version)]
    except RegistryRefused as refused:
        if version == LATEST and refused.error_code == SUBJECT_NOT_FOUND:
            return []
        raise
