"""AlterClientQuotas (API key 49): sets and removes quotas, each entity with its own error (KIP-546). v1 is flexible."""

from __future__ import annotations

import math

from tiered.controller.requests import AlterClientQuotas, QuotaAlteration
from tiered.errors import Code, Refused
from tiered_api.kafka.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResult,
    EntryData,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import DEFAULT_TIMEOUT_MS
from tiered_api.kafka.server.context.mutation_charges import MutationCharges


async def handle(context: KafkaContext, call: Call[AlterClientQuotasRequest]) -> AlterClientQuotasResponse:
    """Returns once the quotas are in force."""
    entries = call.request.entries
    results = list(map(_find_endless, entries))
    finite = [at for at, fault in enumerate(results) if fault is None]
    try:
        alteration = AlterClientQuotas(tuple(_read_entry(entries[at]) for at in finite), call.request.validate_only)
        decided = await context.broker.submit(alteration, DEFAULT_TIMEOUT_MS / 1000, by=MutationCharges(context, call))
    except Refused as refused:
        decided = (refused,) * len(finite)
    for at, result in zip(finite, decided, strict=True):
        results[at] = result
    return AlterClientQuotasResponse(entries=list(map(_to_result, entries, results)))


def _find_endless(entry: EntryData) -> Refused | None:
    """Returns the refusal of a value that requests between brokers cannot have, or None."""
    endless = next((each.key for each in entry.ops if not each.remove and not math.isfinite(each.value)), None)
    return None if endless is None else Refused(Code.INVALID_REQUEST, f"Quota {endless} must be finite")


def _read_entry(entry: EntryData) -> QuotaAlteration:
    return QuotaAlteration(
        tuple((part.entity_type, part.entity_name) for part in entry.entity),
        tuple((each.key, None if each.remove else each.value) for each in entry.ops),
    )


def _to_result(entry: EntryData, refused: Refused | None) -> AlterClientQuotasResult:
    if refused is None:
        return AlterClientQuotasResult(Code.NONE.number, None, entry.entity)
    return AlterClientQuotasResult(refused.code.number, refused.why, entry.entity)
