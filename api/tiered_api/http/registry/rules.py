"""The registry: compatibility levels and modes, of a subject, of a context, or of all subjects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from tiered.controller.change_descriptions import ALTER_CONFIGS
from tiered.registry.records import LEVEL, MODE, RegistryRecord
from tiered.registry.rules import find_rule, remove_rule, set_level, set_mode
from tiered.registry.state import RegistryState
from tiered.registry.subjects import GLOBAL, parse_subject
from tiered.security.acls import Operation
from tiered_api.http.exchange.fields import check_fields
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.schemas import REGISTRY_LEVEL, REGISTRY_MODE, names
from tiered_api.http.registry import rights
from tiered_api.http.registry.audited_writes import write
from tiered_api.http.registry.bodies import UNPROCESSABLE, query_flag, reply
from tiered_api.http.registry.schema_log import SchemaLog


async def get_global_level(request: HttpRequest) -> web.StreamResponse:
    """Returns the compatibility level of subjects without one of their own."""
    return await _get(request, LEVEL)


async def get_subject_level(request: HttpRequest) -> web.StreamResponse:
    """Returns the compatibility level of a subject."""
    return await _get(request, LEVEL)


async def set_global_level(request: HttpRequest) -> web.StreamResponse:
    """Sets the compatibility level of subjects without one of their own."""
    return await _set_level(request)


async def set_subject_level(request: HttpRequest) -> web.StreamResponse:
    """Sets the compatibility level of a subject."""
    return await _set_level(request)


async def reset_global_level(request: HttpRequest) -> web.StreamResponse:
    """Removes the compatibility level of all subjects, and returns it."""
    return await _remove(request, LEVEL)


async def reset_subject_level(request: HttpRequest) -> web.StreamResponse:
    """Removes the compatibility level of a subject, and returns it."""
    return await _remove(request, LEVEL)


async def get_global_mode(request: HttpRequest) -> web.StreamResponse:
    """Returns the mode of subjects without one of their own."""
    return await _get(request, MODE)


async def get_subject_mode(request: HttpRequest) -> web.StreamResponse:
    """Returns the mode of a subject."""
    return await _get(request, MODE)


async def set_global_mode(request: HttpRequest) -> web.StreamResponse:
    """Sets the mode of subjects without one of their own: READWRITE, READONLY or IMPORT."""
    return await _set_mode(request)


async def set_subject_mode(request: HttpRequest) -> web.StreamResponse:
    """Sets the mode of a subject: READWRITE, READONLY or IMPORT."""
    return await _set_mode(request)


async def reset_global_mode(request: HttpRequest) -> web.StreamResponse:
    """Removes the mode of all subjects, and returns it."""
    return await _remove(request, MODE)


async def reset_subject_mode(request: HttpRequest) -> web.StreamResponse:
    """Removes the mode of a subject, and returns it."""
    return await _remove(request, MODE)


async def _set_level(request: HttpRequest) -> web.StreamResponse:
    subject = _require(request, Operation.ALTER_CONFIGS)
    body = await request.read_json_object()
    check_fields(body, names(REGISTRY_LEVEL), "the body", UNPROCESSABLE)

    def decide(state: RegistryState) -> tuple[Sequence[RegistryRecord], None]:
        rights.require(request, Operation.ALTER_CONFIGS, subject)
        return set_level(subject, body), None

    await write(request, ALTER_CONFIGS, subject, decide, lambda _: f"level={body['compatibility']}")
    return reply(request, {name: each for name, each in body.items() if each is not None})


async def _set_mode(request: HttpRequest) -> web.StreamResponse:
    subject = _require(request, Operation.ALTER_CONFIGS)
    body = await request.read_json_object()
    check_fields(body, names(REGISTRY_MODE), "the body", UNPROCESSABLE)
    force, mode = query_flag(request, "force"), body.get("mode")

    def decide(state: RegistryState) -> tuple[Sequence[RegistryRecord], None]:
        rights.require(request, Operation.ALTER_CONFIGS, subject)
        return set_mode(state, subject, mode, force=force), None

    await write(request, ALTER_CONFIGS, subject, decide, lambda _: f"mode={mode}")
    return reply(request, {"mode": mode})


async def _get(request: HttpRequest, kind: str) -> web.StreamResponse:
    subject = _require(request, Operation.DESCRIBE_CONFIGS)
    in_force = query_flag(request, "defaultToGlobal")
    state = await request.context.lazy_service(SchemaLog).read()
    return reply(request, find_rule(state, kind, subject, in_force=in_force))


async def _remove(request: HttpRequest, kind: str) -> web.StreamResponse:
    subject = _require(request, Operation.ALTER_CONFIGS)

    def decide(state: RegistryState) -> tuple[Sequence[RegistryRecord], dict[str, Any]]:
        rights.require(request, Operation.ALTER_CONFIGS, subject)
        return remove_rule(state, kind, subject)

    removed = await write(
        request, ALTER_CONFIGS, subject, decide, lambda _: f"{'level' if kind == LEVEL else 'mode'}=default"
    )
    if "compatibilityLevel" in removed:  # some clients read the one name, some the other
        removed = {"compatibility": removed["compatibilityLevel"], **removed}
    return reply(request, removed)


def _require(request: HttpRequest, operation: Operation) -> str:
    """Returns the subject of the path, `GLOBAL` without one. Raises `HttpError` 403 if the caller lacks the right."""
    named = request.args.get("subject")
    subject = GLOBAL if named is None else parse_subject(named, may_be_context=True)
    rights.require(request, operation, subject)
    return subject
