"""Writes to the registry, with a line in the audit log for each that changed something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tiered.access.audit_log import DONE, UNKNOWN
from tiered.controller.change_descriptions import DescribedChange
from tiered.registry.records import RegistryRecord
from tiered.registry.state import RegistryState
from tiered.registry.subjects import GLOBAL
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.registry.schema_log import TIMED_OUT, SchemaLog

SUBJECT, EVERY_SUBJECT = "SUBJECT", "*"

T = TypeVar("T")


async def write(
    request: HttpRequest,
    operation: str,
    subject: str,
    decide: Callable[[RegistryState], tuple[Sequence[RegistryRecord], T]],
    describe: Callable[[T], str] = lambda reply: "",
) -> T:
    """Returns the reply of a decision as `SchemaLog.write` does. `describe` says what it did, for the audit log."""
    has_records = False

    def decide_and_note(state: RegistryState) -> tuple[Sequence[RegistryRecord], T]:
        nonlocal has_records
        records, reply = decide(state)
        has_records = bool(records)
        return records, reply

    audit, name = request.context.broker.audit, EVERY_SUBJECT if subject == GLOBAL else subject
    try:
        reply = await request.context.lazy_service(SchemaLog).write(decide_and_note)
    except HttpError as error:
        if error.error_code == TIMED_OUT and has_records:
            audit.record_changes(request.caller, [DescribedChange(operation, SUBJECT, name)], UNKNOWN)
        raise
    if has_records:
        audit.record_changes(request.caller, [DescribedChange(operation, SUBJECT, name, describe(reply))], DONE)
    return reply
