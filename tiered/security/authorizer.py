"""The operations that the ACLs of a cluster allow to a caller, by the rules of Kafka's StandardAuthorizer. Keeps I29.

An ACL that denies wins over every ACL that allows. Without any ACL for a resource the setting
`allow.everyone.if.no.acl.found` decides. Super users and brokers may do everything.

A decision about a resource gives all operations at once, as a mask. Masks stand in tables by name and by prefix, and
below by principal and host. Therefore a decision costs a few look-ups, however many ACLs there are.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from itertools import product

from tiered.security.acls import (
    ANY_USER,
    EVERYTHING,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    normal_host,
)
from tiered.security.principal import BROKER, Caller

REMEMBERED_MAX = 10_000
"""Most decisions that are remembered; with more, all are forgotten."""
REMEMBERED_NAME_MAX = 250
"""Longest name whose decision is remembered. A topic's name is shorter, but a request may name anything."""
NO_NAME = "\0"
"""The end of a name that no literal ACL names: no resource has it."""

Masks = dict[tuple[str, str], tuple[int, int]]
"""Denied and allowed operations by principal and host."""


class Authorizer:
    """The rights of all callers under one set of ACLs. The set never changes; the authorizer remembers decisions."""

    def __init__(self, acls: Collection[Acl], super_users: Collection[str] = (), *, is_open: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._default = EVERYTHING if is_open else 0
        self._literal: dict[tuple[ResourceType, str], Masks] = {}
        self._prefixed: dict[tuple[ResourceType, str], Masks] = {}
        self._by_identity: dict[tuple[str, str], list[Acl]] = {}
        lengths: dict[ResourceType, set[int]] = {}
        for acl in acls:
            key = acl.resource_type, acl.resource_name
            self._by_identity.setdefault(_identity(acl), []).append(acl)
            if acl.pattern_type is PatternType.PREFIXED:
                lengths.setdefault(acl.resource_type, set()).add(len(acl.resource_name))
                _add_acl(self._prefixed.setdefault(key, {}), acl)
            else:
                _add_acl(self._literal.setdefault(key, {}), acl)
        self._lengths = {kind: sorted(each) for kind, each in lengths.items()}
        self._remembered: dict[tuple[Caller, ResourceType, str], int] = {}
        self._remembered_any: dict[tuple[Caller, Operation, ResourceType], bool] = {}
        self._remembered_everywhere: dict[tuple[Caller, Operation, ResourceType], bool] = {}

    def is_super(self, caller: Caller) -> bool:
        """True if no ACL can refuse anything to the caller."""
        return caller.principal.kind == BROKER or str(caller.principal) in self._super_users

    def is_allowed(self, caller: Caller, operation: Operation, kind: ResourceType, name: str) -> bool:
        """True if the caller may carry out an operation on a resource."""
        return bool(self.allowed_operations(caller, kind, name) >> operation & 1)

    def allowed_operations(self, caller: Caller, kind: ResourceType, name: str) -> int:
        """Returns the mask of all operations that the caller may carry out on a resource."""
        key = caller, kind, name
        mask = self._remembered.get(key)
        if mask is None:
            mask = EVERYTHING if self.is_super(caller) else self._decide(caller, kind, name)
            if len(name) <= REMEMBERED_NAME_MAX:
                if len(self._remembered) >= REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[key] = mask
        return mask

    def is_allowed_anywhere(self, caller: Caller, operation: Operation, kind: ResourceType) -> bool:
        """True if there may be a resource of a type on which the caller may carry out an operation.

        An ACL that allows counts unless ACLs that deny cover all resources that it names.
        """
        key = caller, operation, kind
        known = self._remembered_any.get(key)
        if known is None:
            if len(self._remembered_any) >= REMEMBERED_MAX:
                self._remembered_any.clear()
            known = self._remembered_any[key] = self._decide_anywhere(caller, operation, kind)
        return known

    def is_allowed_everywhere(self, caller: Caller, operation: Operation, kind: ResourceType) -> bool:
        """True if the caller may carry out an operation on each resource of a type, whatever its name is."""
        key = caller, operation, kind
        known = self._remembered_everywhere.get(key)
        if known is None:
            if len(self._remembered_everywhere) >= REMEMBERED_MAX:
                self._remembered_everywhere.clear()
            known = self.is_super(caller) or self._decide_everywhere(caller, operation, kind)
            self._remembered_everywhere[key] = known
        return known

    def _decide(self, caller: Caller, kind: ResourceType, name: str) -> int:
        found = [self._literal.get((kind, name)), self._literal.get((kind, WILDCARD))]
        for length in self._lengths.get(kind, ()):
            if length > len(name):
                break
            found.append(self._prefixed.get((kind, name[:length])))
        identities = _identities(caller)
        denied = allowed = 0
        has_acls = False
        for masks in found:
            if masks is None:
                continue
            has_acls = True
            for identity in identities:
                deny, allow = masks.get(identity, (0, 0))
                denied |= deny
                allowed |= allow
        return allowed & ~denied if has_acls else self._default

    def _decide_anywhere(self, caller: Caller, operation: Operation, kind: ResourceType) -> bool:
        if self.is_allowed(caller, operation, kind, "hardcode"):  # the name that Kafka tries
            return True
        mine = [
            acl
            for identity in _identities(caller)
            for acl in self._by_identity.get(identity, ())
            if acl.resource_type is kind and (acl.allowed_mask() | acl.denied_mask()) >> operation & 1
        ]
        denies = {(acl.pattern_type, acl.resource_name) for acl in mine if acl.permission is Permission.DENY}
        if (PatternType.LITERAL, WILDCARD) in denies:
            return False
        lengths = self._lengths.get(kind, ())
        return any(
            acl.permission is Permission.ALLOW
            and (acl.pattern_type, acl.resource_name) not in denies
            and not any((PatternType.PREFIXED, acl.resource_name[:length]) in denies for length in lengths)
            for acl in mine
        )

    def _decide_everywhere(self, caller: Caller, operation: Operation, kind: ResourceType) -> bool:
        """Decides one name of each group of names to which the same ACLs apply."""
        if not self._decide(caller, kind, NO_NAME) >> operation & 1:
            return False
        names = [name for each, name in self._literal if each is kind and name != WILDCARD]
        names += [prefix + NO_NAME for each, prefix in self._prefixed if each is kind]
        return all(self._decide(caller, kind, name) >> operation & 1 for name in names)


def _add_acl(masks: Masks, acl: Acl) -> None:
    deny, allow = masks.get(_identity(acl), (0, 0))
    masks[_identity(acl)] = deny | acl.denied_mask(), allow | acl.allowed_mask()


def _identity(acl: Acl) -> tuple[str, str]:
    return acl.principal, acl.host if acl.host == WILDCARD else normal_host(acl.host) or acl.host


@lru_cache(maxsize=1024)
def _identities(caller: Caller) -> tuple[tuple[str, str], ...]:
    """Returns the principals and hosts of the ACLs that apply to a caller."""
    host = normal_host(caller.host) or caller.host
    return tuple(product((str(caller.principal), ANY_USER), (host, WILDCARD)))
