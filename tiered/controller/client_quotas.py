"""Decisions about client quotas (KIP-546)."""

from __future__ import annotations

from collections import Counter

from tiered.controller.decision import ControllerResult
from tiered.controller.features import find_newer_name
from tiered.controller.requests import AlterClientQuotas, QuotaAlteration
from tiered.errors import Code, Refused
from tiered.metadata.changes import Change, ClientQuotaRemoved, ClientQuotaSet
from tiered.metadata.image import Image
from tiered.quotas.entity import QuotaEntity, entity_text, make_entity
from tiered.quotas.validation import find_entity_fault, find_value_fault

ENTITIES_MAX = 10_000
"""Most entities with quotas: every broker keeps all of them in memory."""
ALTERATIONS_MAX = 1_000
"""Most entities of one request."""


def alter_quotas(image: Image, request: AlterClientQuotas) -> ControllerResult[tuple[Refused | None, ...]]:
    """Sets and removes quotas. A refused entity keeps its quotas, and the others change."""
    if len(request.alterations) > ALTERATIONS_MAX:
        why = f"a request has {ALTERATIONS_MAX} entities at most, this one has {len(request.alterations)}"
        return ControllerResult((), (Refused(Code.POLICY_VIOLATION, why),) * len(request.alterations))
    changes = list[Change]()
    results = list[Refused | None]()
    seen, new = set[QuotaEntity](), set[QuotaEntity]()
    for each in request.alterations:
        entity = make_entity(each.entity)
        refused = _find_fault(each, entity, entity in seen) or find_newer_name(
            image, dict(each.values), Code.INVALID_REQUEST
        )
        seen.add(entity)
        if refused is None and entity not in image.quotas and any(value is not None for _, value in each.values):
            if len(image.quotas) + len(new) >= ENTITIES_MAX:
                refused = Refused(Code.POLICY_VIOLATION, f"{ENTITIES_MAX} entities have quotas already")
            else:
                new.add(entity)
        results.append(refused)
        if refused is None and not request.validate_only:
            known = image.quotas.get(entity, {})
            for key, value in each.values:
                if value is not None and known.get(key) != value:
                    changes.append(ClientQuotaSet(entity, key, value))
                elif value is None and key in known:
                    changes.append(ClientQuotaRemoved(entity, key))
    return ControllerResult(tuple(changes), tuple(results))


def _find_fault(each: QuotaAlteration, entity: QuotaEntity, is_repeated: bool) -> Refused | None:
    twice = next((key for key, times in Counter(key for key, _ in each.values).items() if times > 1), None)
    if twice is not None:
        why = f"Duplicate quota key {twice} not updating quota for this entity {entity_text(entity)}"
        return Refused(Code.INVALID_REQUEST, why)
    if is_repeated:
        return Refused(Code.INVALID_REQUEST, f"Ignoring duplicate entity {entity_text(entity)}")
    kinds = [kind for kind, _ in entity]
    faults = (find_value_fault(kinds, key, value) for key, value in each.values if value is not None)
    return find_entity_fault(each.entity) or next((fault for fault in faults if fault is not None), None)
