"""Registers schemas. Threads parse and compare them, because that takes as long as a schema is large."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from tiered.controller.change_descriptions import CREATE
from tiered.registry import formats
from tiered.registry.records import RegistryRecord, VersionWritten
from tiered.registry.registration import Registration, decide, pin_references, plan, resolve
from tiered.registry.rules import normalizes
from tiered.registry.schema import Schema
from tiered.registry.state import RegistryState
from tiered.registry.subjects import qualify_reference
from tiered.security.acls import Operation
from tiered_api.http.exchange.context import INLINE_BYTES
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.registry import rights
from tiered_api.http.registry.audited_writes import write
from tiered_api.http.registry.bodies import Given
from tiered_api.http.registry.schema_log import SchemaLog

PLANS_MAX = 20
"""Most comparisons of one registration, each after another registration in the same subject."""

P = ParamSpec("P")
T = TypeVar("T")


async def run_in_thread(request: HttpRequest, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Returns `function(...)`, computed in a thread: even a short schema may take long, or import a library."""
    return await request.run_job(INLINE_BYTES + 1, lambda: function(*args, **kwargs))


async def make_canonical(
    request: HttpRequest, state: RegistryState, subject: str, schema: Schema, *, normalize: bool
) -> Schema:
    """Returns a schema in its canonical text, with the versions that its references name. Raises `HttpError` 403 if the
    caller may not read one of these."""
    for each in schema.references:
        rights.require(request, Operation.DESCRIBE, qualify_reference(each.subject, subject))
    pinned = pin_references(state, subject, schema)
    is_normal = normalize or normalizes(state, subject)
    return await run_in_thread(request, formats.make_canonical, pinned, normalize=is_normal)


async def register(request: HttpRequest, subject: str, given: Given, *, normalize: bool) -> VersionWritten:
    """Registers a schema, and returns its version once it is committed. Raises `HttpError` and `RegistryRefused`."""
    log = request.context.lazy_service(SchemaLog)
    state = await log.read()
    schema = await make_canonical(request, state, subject, given.schema, normalize=normalize)
    wanted = Registration(subject, schema, given.id, given.version)
    for _ in range(PLANS_MAX):
        made = plan(state, wanted)
        if made.existing is not None:
            return made.existing
        differences = await run_in_thread(request, formats.check, resolve(state, subject, schema), made)

        def decide_now(
            newest: RegistryState, made: object = made, differences: list[str] = differences
        ) -> tuple[Sequence[RegistryRecord], VersionWritten | None]:
            rights.require(request, Operation.WRITE, subject)
            found = decide(newest, wanted, made, differences)  # type: ignore[arg-type]
            return (found.records, found.written) if found is not None else ((), None)

        written = await write(request, CREATE, subject, decide_now, _describe)
        if written is not None:
            return written
        state = log.state
    raise HttpError(409, f"Subject '{subject}' changes too often; try again")


def _describe(written: VersionWritten | None) -> str:
    return "" if written is None else f"version={written.version} id={written.id}"
