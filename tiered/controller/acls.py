"""Decisions about ACLs: each ACL of a request, and each filter, is judged on its own."""

from __future__ import annotations

from typing import Any

from tiered.config.settings import Settings
from tiered.controller.decision import ControllerResult
from tiered.controller.requests import AclChoice, CreateAcls, DeleteAcls
from tiered.errors import Code, Refused
from tiered.metadata.changes import ALL_BROKERS, AclAdded, AclRemoved
from tiered.metadata.effective_config import broker_settings
from tiered.metadata.image import Image
from tiered.security.acls import Acl, AclFilter, acl_from_texts, find_acl_fault

CLUSTER_MAX = "tiered.acls.max"
FILTERS_MAX = 100
"""Most filters of one request. Each filter is compared with all ACLs of the cluster."""


def create_acls(image: Image, settings: Settings, request: CreateAcls) -> ControllerResult[tuple[Refused | None, ...]]:
    """Adds ACLs. An ACL that is there already is granted and changes nothing."""
    most = broker_settings(image, settings, ALL_BROKERS).tiered_acls_max
    added: dict[Acl, AclAdded] = {}
    results: list[Refused | None] = []
    for each in request.acls:
        try:
            acl = acl_from_texts(*_fields_of(each))
        except KeyError as error:
            results.append(_refuse_word(error))
            continue
        refused = find_acl_fault(acl)
        if refused is None and acl not in image.acls and acl not in added:
            if len(image.acls) + len(added) >= most:
                refused = Refused(Code.POLICY_VIOLATION, f"the cluster has {most} ACLs, which is its {CLUSTER_MAX}")
            else:
                added[acl] = each
        results.append(refused)
    return ControllerResult(tuple(added.values()), tuple(results))


def delete_acls(image: Image, request: DeleteAcls) -> ControllerResult[tuple[tuple[AclRemoved, ...] | Refused, ...]]:
    """Removes the ACLs that the filters choose. Two filters may choose the same ACL."""
    if len(request.filters) > FILTERS_MAX:
        why = f"a request has {FILTERS_MAX} filters at most, this one has {len(request.filters)}"
        return ControllerResult((), (Refused(Code.POLICY_VIOLATION, why),) * len(request.filters))
    removed: dict[Acl, AclRemoved] = {}
    results: list[tuple[AclRemoved, ...] | Refused] = []
    acls = sorted(image.acls)
    for each in request.filters:
        try:
            chosen = AclFilter(*acl_from_texts(*_fields_of(each)))
        except KeyError as error:
            results.append(_refuse_word(error))
            continue
        refused = chosen.find_fault()
        if refused is not None:
            results.append(refused)
            continue
        found = [acl for acl in acls if chosen.matches(acl)]
        removed.update((acl, AclRemoved(*acl.to_texts())) for acl in found if acl not in removed)
        results.append(tuple([removed[acl] for acl in found]))
    return ControllerResult(tuple(removed.values()), tuple(results))


def _fields_of(each: AclAdded | AclChoice) -> tuple[Any, ...]:
    return tuple(getattr(each, name) for name in Acl._fields)


def _refuse_word(error: KeyError) -> Refused:
    return Refused(Code.INVALID_REQUEST, f"an ACL has the unknown word {error}")
