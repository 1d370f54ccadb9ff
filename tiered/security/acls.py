"""Access control lists (ACLs) as values: which operations a principal may carry out on which resources. Keeps I29.

Numbers and words are Kafka's, as in its protocol and its tools.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from functools import reduce
from ipaddress import ip_address
from operator import or_
from typing import NamedTuple

from tiered.errors import Code, Refused

WILDCARD = "*"
"""Name of a literal resource that stands for all resources of its type, and host that stands for all hosts."""
ANY_USER = "User:*"
"""Principal of ACLs that hold for everybody."""
CLUSTER_NAME = "kafka-cluster"
"""Name of the only resource of type CLUSTER."""
TEXT_MAX = 1024
"""Most characters of each text of an ACL."""


class ResourceType(IntEnum):
    """Kinds of things that ACLs are about."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Ways in which the name in an ACL names resources. ANY and MATCH occur in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Actions of requests on a resource. The number is the bit in masks of operations."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """The effect of an ACL."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


def to_mask(operations: Iterable[Operation]) -> int:
    """Returns operations as a mask."""
    return reduce(or_, (1 << each for each in operations), 0)


_CONFIGS = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
SUPPORTED: dict[ResourceType, frozenset[Operation]] = {
    ResourceType.TOPIC: frozenset(
        (
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            *_CONFIGS,
        )
    ),
    ResourceType.GROUP: frozenset((Operation.READ, Operation.DELETE, Operation.DESCRIBE, *_CONFIGS)),
    ResourceType.CLUSTER: frozenset(
        (
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.CLUSTER_ACTION,
            Operation.IDEMPOTENT_WRITE,
            *_CONFIGS,
        )
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset((Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT)),
    ResourceType.DELEGATION_TOKEN: frozenset((Operation.DESCRIBE,)),
    ResourceType.USER: frozenset((Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS)),
}
"""Operations that exist on each type of resource. ALL stands for all of them."""
SUPPORTED_MASKS = {kind: to_mask(operations) for kind, operations in SUPPORTED.items()}
FIRST_OPERATION = Operation.READ
EVERYTHING = to_mask(each for each in Operation if each >= FIRST_OPERATION)
"""Mask of all operations that a request can need."""
_IMPLYING_DESCRIBE = (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)


class Acl(NamedTuple):
    """One ACL: `permission` for `operation` on the resources named, to `principal` from `host`."""

    resource_type: ResourceType
    pattern_type: PatternType
    resource_name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def allowed_mask(self) -> int:
        """Returns the operations that it allows, with those that they imply; 0 if it denies."""
        if self.permission is not Permission.ALLOW:
            return 0
        if self.operation is Operation.ALL:
            return EVERYTHING
        mask = 1 << self.operation
        if self.operation in _IMPLYING_DESCRIBE:
            mask |= 1 << Operation.DESCRIBE
        elif self.operation is Operation.ALTER_CONFIGS:
            mask |= 1 << Operation.DESCRIBE_CONFIGS
        return mask

    def denied_mask(self) -> int:
        """Returns the operations that it denies; 0 if it allows. To deny an operation denies nothing else."""
        if self.permission is not Permission.DENY:
            return 0
        return EVERYTHING if self.operation is Operation.ALL else 1 << self.operation

    def to_texts(self) -> tuple[str, str, str, str, str, str, str]:
        """Returns its fields as texts, for `acl_from_texts`."""
        return (
            self.resource_type.name, self.pattern_type.name, self.resource_name, self.principal, self.host,
            self.operation.name, self.permission.name,
        )  # fmt: skip


def acl_from_texts(
    resource_type: str,
    pattern_type: str,
    resource_name: str,
    principal: str,
    host: str,
    operation: str,
    permission: str,
) -> Acl:
    """Returns the ACL with these fields. Raises KeyError for a word that does not exist."""
    return Acl(
        ResourceType[resource_type], PatternType[pattern_type], resource_name, principal, host, Operation[operation],
        Permission[permission],
    )  # fmt: skip


class AclFilter(NamedTuple):
    """A choice of ACLs: None and ANY stand for everything.

    The pattern type MATCH chooses the ACLs that apply to the resource `resource_name`.
    """

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    resource_name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        """True if it chooses the ACL."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return self.resource_name == acl.resource_name
        if acl.pattern_type is PatternType.PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name in (self.resource_name, WILDCARD)

    def find_fault(self) -> Refused | None:
        """Returns the reason to refuse it: a word that this version does not know."""
        if 0 in (self.resource_type, self.pattern_type):
            return Refused(Code.INVALID_REQUEST, "Unknown patternFilter.")
        if 0 in (self.operation, self.permission):
            return Refused(Code.INVALID_REQUEST, "Unknown entryFilter.")
        return None


def find_acl_fault(acl: Acl) -> Refused | None:
    """Returns the reason to refuse a new ACL, or None. An ACL that could never apply is refused too."""
    why = _find_bad_word(acl) or _find_bad_text(acl)
    return None if why is None else Refused(Code.INVALID_REQUEST, why)


def _find_bad_word(acl: Acl) -> str | None:
    operations = SUPPORTED.get(acl.resource_type)
    if operations is None:
        return f"Invalid resourceType {acl.resource_type.name}"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {acl.pattern_type.name}"
    if acl.operation < Operation.ALL:
        return f"Invalid operation {acl.operation.name}"
    if acl.permission not in (Permission.ALLOW, Permission.DENY):
        return f"Invalid permissionType {acl.permission.name}"
    if acl.operation is not Operation.ALL and acl.operation not in operations:
        known = ", ".join(each.name for each in sorted(operations))
        return f"a resource of type {acl.resource_type.name} has no operation {acl.operation.name}: it has {known}, ALL"
    return None


def _find_bad_text(acl: Acl) -> str | None:
    if not acl.resource_name:
        return "Invalid empty resource name"
    if acl.resource_type is ResourceType.CLUSTER and (acl.resource_name, acl.pattern_type) != (
        CLUSTER_NAME,
        PatternType.LITERAL,
    ):
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if max(map(len, (acl.resource_name, acl.principal, acl.host))) > TEXT_MAX:
        return f"no text of an ACL may have more than {TEXT_MAX} characters"
    kind, _, name = acl.principal.partition(":")
    if not kind or not name:
        return f"the principal {acl.principal[:60]!r} must have the form User:name"
    if acl.host != WILDCARD and normal_host(acl.host) is None:
        return f"the host {acl.host[:60]!r} must be an IP address, or * for all hosts"
    return None


def normal_host(host: str) -> str | None:
    """Returns the shortest form of an IP address, or None if it is none. Brackets and the zone of IPv6 are left out."""
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
