"""The registry: subjects and their versions."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from tiered.controller.change_descriptions import DELETE
from tiered.registry.deletion import Deletion, decide_subject_deletion, decide_version_deletion
from tiered.registry.records import RegistryRecord, VersionWritten
from tiered.registry.refusals import SCHEMA_NOT_FOUND, RegistryRefused, subject_not_found
from tiered.registry.registration import find_registered
from tiered.registry.state import RegistryState, parse_version
from tiered.registry.subjects import parse_subject
from tiered.security.acls import Operation
from tiered.system.turns import each_of
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.registry import rights
from tiered_api.http.registry.audited_writes import write
from tiered_api.http.registry.bodies import (
    describe_version,
    query_flag,
    read_schema,
    reply,
    reply_text,
    take_page,
    wanted_format,
)
from tiered_api.http.registry.registrations import make_canonical, register
from tiered_api.http.registry.schema_log import SchemaLog
from tiered_api.http.registry.schemas import convert_format


async def list_subjects(request: HttpRequest) -> web.StreamResponse:
    """Lists the subjects that the caller may see."""
    prefix = request.query_parameters().get("subjectPrefix", ":*:")
    deleted, only = query_flag(request, "deleted"), query_flag(request, "deletedOnly", "deleted_only")
    state = await request.context.lazy_service(SchemaLog).read()
    found = state.list_subjects(prefix, deleted=deleted, only_deleted=only)
    seen = [each async for each in each_of(found) if rights.may(request, Operation.DESCRIBE, each)]
    return reply(request, take_page(request, seen))


async def list_subject_versions(request: HttpRequest) -> web.StreamResponse:
    """Lists the versions of a subject."""
    subject = _require(request, Operation.DESCRIBE)
    only = query_flag(request, "deletedOnly", "deleted_only")
    state = await request.context.lazy_service(SchemaLog).read()
    found = state.require_versions(subject, deleted=only or query_flag(request, "deleted"))
    return reply(request, take_page(request, [each.version for each in found if each.is_deleted or not only]))


async def get_subject_version(request: HttpRequest) -> web.StreamResponse:
    """Returns a version of a subject."""
    wanted = wanted_format(request)
    found = await _find(request)
    shown = await convert_format(request, found.subject, found.schema, wanted)
    return reply(request, describe_version(found._replace(schema=shown)))


async def find_by_metadata(request: HttpRequest) -> web.StreamResponse:
    """Returns the latest version of a subject whose metadata has the properties of the query."""
    keys, values = request.take_repeated("key", "value")
    if len(keys) != len(values):
        raise HttpError(400, "each key needs one value, in the same order")
    subject, wanted = _require(request, Operation.DESCRIBE), wanted_format(request)
    deleted = query_flag(request, "deleted")
    state = await request.context.lazy_service(SchemaLog).read()
    found = state.find_latest_with(subject, dict(zip(keys, values, strict=True)), deleted=deleted)
    if found is None:
        raise RegistryRefused(SCHEMA_NOT_FOUND, "Schema not found")
    shown = await convert_format(request, found.subject, found.schema, wanted)
    return reply(request, describe_version(found._replace(schema=shown)))


async def get_version_text(request: HttpRequest) -> web.StreamResponse:
    """Returns the schema of a version alone."""
    wanted = wanted_format(request)
    found = await _find(request)
    return reply_text(request, await convert_format(request, found.subject, found.schema, wanted))


async def list_referrers(request: HttpRequest) -> web.StreamResponse:
    """Lists the ids of schemas that refer to a version."""
    found = await _find(request)
    state = request.context.lazy_service(SchemaLog).state
    ids = sorted({each.id for each in state.find_referrers(found.subject, found.version)})
    return reply(request, take_page(request, ids))


async def register_schema(request: HttpRequest) -> web.StreamResponse:
    """Registers a schema in a subject, and returns its id: that of an equal schema if there is one."""
    subject = _require(request, Operation.WRITE)
    given = await read_schema(request)
    written = await register(request, subject, given, normalize=query_flag(request, "normalize"))
    return reply(request, describe_version(written))


async def find_schema_version(request: HttpRequest) -> web.StreamResponse:
    """Returns the version of a subject that has exactly the schema of the body."""
    subject = _require(request, Operation.DESCRIBE)
    given = await read_schema(request)
    deleted = query_flag(request, "deleted")
    state = await request.context.lazy_service(SchemaLog).read()
    if not state.live_versions(subject, deleted=deleted):
        raise subject_not_found(subject)
    normalize = query_flag(request, "normalize")
    schema = await make_canonical(request, state, subject, given.schema, normalize=normalize)
    found = find_registered(state, subject, schema, deleted=deleted)
    if found is None:
        raise RegistryRefused(SCHEMA_NOT_FOUND, "Schema not found")
    return reply(request, describe_version(found))


async def delete_subject(request: HttpRequest) -> web.StreamResponse:
    """Deletes all versions of a subject; with `permanent`, those that are deleted softly, for ever."""
    subject = _require(request, Operation.DELETE)
    permanent = query_flag(request, "permanent")

    def decide(state: RegistryState) -> tuple[tuple[RegistryRecord, ...], Deletion]:
        rights.require(request, Operation.DELETE, subject)
        made = decide_subject_deletion(state, subject, permanent=permanent)
        return made.records, made

    made = await write(request, DELETE, subject, decide, partial(_describe, permanent))
    return reply(request, made.versions)


async def delete_version(request: HttpRequest) -> web.StreamResponse:
    """Deletes a version; with `permanent`, one that is deleted softly, for ever."""
    subject = _require(request, Operation.DELETE)
    version, permanent = parse_version(request.args["version"]), query_flag(request, "permanent")

    def decide(state: RegistryState) -> tuple[tuple[RegistryRecord, ...], Deletion]:
        rights.require(request, Operation.DELETE, subject)
        made = decide_version_deletion(state, subject, version, permanent=permanent)
        return made.records, made

    made = await write(request, DELETE, subject, decide, partial(_describe, permanent))
    return reply(request, made.versions[0])


def _describe(permanent: bool, made: Deletion) -> str:
    return f"versions={','.join(map(str, made.versions))} permanent={str(permanent).lower()}"


def _require(request: HttpRequest, operation: Operation) -> str:
    """Returns the subject of the path. Raises `HttpError` 403 if the caller lacks the right."""
    subject = parse_subject(request.args["subject"])
    rights.require(request, operation, subject)
    return subject


async def _find(request: HttpRequest) -> VersionWritten:
    """Returns the version that the path names."""
    subject = _require(request, Operation.DESCRIBE)
    version, deleted = parse_version(request.args["version"]), query_flag(request, "deleted")
    state = await request.context.lazy_service(SchemaLog).read()
    return state.find_version(subject, version, deleted=deleted)
