"""The registry: schemas by their ids."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from aiohttp import web

from tiered.registry import formats
from tiered.registry.records import VersionWritten, describe_schema
from tiered.registry.refusals import SCHEMA_NOT_FOUND, RegistryRefused
from tiered.registry.registration import resolve
from tiered.registry.schema import KINDS, PROTOBUF, Schema
from tiered.registry.state import RegistryState
from tiered.registry.subjects import ALL_CONTEXTS, context_of
from tiered.security.acls import Operation
from tiered.system.turns import each_of
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.registry import rights
from tiered_api.http.registry.bodies import (
    INTEGER_MAX,
    SERIALIZED,
    describe_version,
    query_flag,
    reply,
    reply_text,
    take_page,
    wanted_format,
)
from tiered_api.http.registry.registrations import run_in_thread
from tiered_api.http.registry.schema_log import SchemaLog

VERSIONS_MAX, BYTES_MAX = 1_000, 8 << 20
"""Most versions of one list, and bytes of their schemas."""


async def list_schema_types(request: HttpRequest) -> web.StreamResponse:
    """Lists the formats of schemas."""
    return reply(request, list(KINDS))


async def list_contexts(request: HttpRequest) -> web.StreamResponse:
    """Lists the contexts with subjects that the caller may see."""
    state = await request.context.lazy_service(SchemaLog).read()
    seen = {
        context_of(each)
        async for each in each_of(list(state.subjects))
        if rights.may(request, Operation.DESCRIBE, each)
    }
    return reply(request, take_page(request, sorted({".", *seen})))


async def list_schemas(request: HttpRequest) -> web.StreamResponse:
    """Lists all versions of all subjects that the caller may see."""
    prefix = request.query_parameters().get("subjectPrefix", ALL_CONTEXTS)
    deleted, latest = query_flag(request, "deleted"), query_flag(request, "latestOnly")
    state = await request.context.lazy_service(SchemaLog).read()
    found: list[VersionWritten] = []
    async for subject in each_of(state.list_subjects(prefix, deleted=deleted)):
        if rights.may(request, Operation.DESCRIBE, subject):
            versions = state.live_versions(subject, deleted=deleted)
            found += versions[-1:] if latest else versions
    shown, size = list[dict[str, Any]](), 0
    for each in take_page(request, found)[:VERSIONS_MAX]:
        size += each.schema.size
        if shown and size > BYTES_MAX:
            break
        shown.append(describe_version(each))
    return reply(request, shown)


async def get_schema(request: HttpRequest) -> web.StreamResponse:
    """Returns the schema of an id. An id means a schema of the context of `subject`."""
    wanted = wanted_format(request)
    id, context, state = await _find(request)
    schema = _visible_schema(request, state, context, id)
    uses = state.find_uses(context, id, deleted=True)
    shown = describe_schema(await convert_format(request, uses[0][0], schema, wanted))
    if query_flag(request, "fetchMaxId"):
        shown["maxId"] = state.highest_id(context)
    return reply(request, {**shown, "guid": schema.guid})


async def get_schema_by_guid(request: HttpRequest) -> web.StreamResponse:
    """Returns the schema of a guid, which serializers may write into headers in place of an id."""
    wanted, text = wanted_format(request), request.args["guid"]
    try:
        fingerprint = UUID(text).bytes
    except ValueError:
        raise _not_found(text) from None
    state = await request.context.lazy_service(SchemaLog).read()
    for context, id in state.find_by_fingerprint(fingerprint):
        uses = state.find_uses(context, id, deleted=True)
        if any(rights.may(request, Operation.DESCRIBE, subject) for subject, _ in uses):
            schema = _visible_schema(request, state, context, id)
            shown = describe_schema(await convert_format(request, uses[0][0], schema, wanted))
            return reply(request, {**shown, "guid": schema.guid})
    raise _not_found(text)


async def get_schema_text(request: HttpRequest) -> web.StreamResponse:
    """Returns the schema of an id alone."""
    wanted = wanted_format(request)
    id, context, state = await _find(request)
    schema = _visible_schema(request, state, context, id)
    uses = state.find_uses(context, id, deleted=True)
    return reply_text(request, await convert_format(request, uses[0][0], schema, wanted))


async def list_schema_subjects(request: HttpRequest) -> web.StreamResponse:
    """Lists the subjects that have the schema of an id."""
    found = await _list_uses(request)
    return reply(request, take_page(request, sorted({subject for subject, _ in found})))


async def list_schema_versions(request: HttpRequest) -> web.StreamResponse:
    """Lists the versions that have the schema of an id."""
    found = [{"subject": subject, "version": version} for subject, version in await _list_uses(request)]
    return reply(request, take_page(request, found))


async def _list_uses(request: HttpRequest) -> list[tuple[str, int]]:
    id, context, state = await _find(request)
    _visible_schema(request, state, context, id)
    found = state.find_uses(context, id, deleted=query_flag(request, "deleted"))
    return [each for each in found if rights.may(request, Operation.DESCRIBE, each[0])]


async def _find(request: HttpRequest) -> tuple[int, str, RegistryState]:
    """Returns the id of the path, its context, and a state. A known id needs no look at the end of the log: what an id
    stands for never changes."""
    text = request.args["id"]
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= INTEGER_MAX):
        raise _not_found(text)
    id, log = int(text), request.context.lazy_service(SchemaLog)
    context = context_of(request.query_parameters().get("subject", ""))
    known = log.state.find_schema(context, id) is not None
    return id, context, log.state if known else await log.read()


def _visible_schema(request: HttpRequest, state: RegistryState, context: str, id: int) -> Schema:
    """Returns the schema of an id. Raises `RegistryRefused` if there is none, or none that the caller may see: with a
    right on one of its subjects, it may."""
    schema = state.find_schema(context, id)
    request.require_login()
    uses = state.find_uses(context, id, deleted=True)
    if schema is None or not any(rights.may(request, Operation.DESCRIBE, subject) for subject, _ in uses):
        raise _not_found(str(id))
    return schema


def _not_found(id: str) -> RegistryRefused:
    return RegistryRefused(SCHEMA_NOT_FOUND, f"Schema {id[:40]} not found")


async def convert_format(request: HttpRequest, subject: str, schema: Schema, wanted: str) -> Schema:
    """Returns a schema in the format of the query: Protobuf also as a serialized descriptor."""
    if wanted != SERIALIZED or schema.kind != PROTOBUF:
        return schema
    resolved = resolve(request.context.lazy_service(SchemaLog).state, subject, schema)
    return schema._replace(text=await run_in_thread(request, formats.serialize, resolved))
