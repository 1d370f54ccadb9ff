"""The entities that quotas belong to: users, client ids, both together, and addresses; each named or the default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from tiered.errors import Code, Refused

USER, CLIENT_ID, IP = "user", "client-id", "ip"
"""Types of entities, as in Kafka."""
TYPES = (USER, CLIENT_ID, IP)

QuotaEntity = tuple[tuple[str, str | None], ...]
"""Types with their names, in order of the types. The name None is the default of its type."""


def make_entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Returns the entity of these parts, in whatever order they come."""
    return tuple(sorted(parts, key=lambda part: part[0]))


def entity_text(entity: QuotaEntity) -> str:
    """Returns an entity as text for people."""
    return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in entity)


class Match(IntEnum):
    """Kinds of filters, with their numbers in DescribeClientQuotas."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class EntityFilter(NamedTuple):
    """A condition on one type of entity."""

    kind: str
    match: int
    name: str | None = None


class QuotaFilter:
    """Chooses entities by conditions that all hold. A strict filter chooses no entity with further types.

    Raises `Refused` for conditions that Kafka refuses, in its words.
    """

    def __init__(self, filters: Iterable[EntityFilter], *, strict: bool) -> None:
        self._names: dict[str, str | None] = {}
        self._kinds: set[str] = set()
        self._strict = strict
        for each in filters:
            self._add(each)
        kinds = self._names.keys() | self._kinds
        if IP in kinds and len(kinds) > 1:
            raise Refused(
                Code.INVALID_REQUEST,
                "Invalid entity filter component combination. "
                "IP filter component should not be used with user or clientId filter component.",
            )

    def _add(self, each: EntityFilter) -> None:
        if not each.kind:
            raise Refused(Code.INVALID_REQUEST, "Invalid empty entity type.")
        if each.kind in self._names or each.kind in self._kinds:
            raise Refused(Code.INVALID_REQUEST, f"Entity type {each.kind} cannot appear more than once in the filter.")
        if each.kind not in TYPES:
            raise Refused(Code.UNSUPPORTED_VERSION, f"Unsupported entity type {each.kind}")
        if each.match not in tuple(Match):
            raise Refused(Code.INVALID_REQUEST, f"Unknown match type {each.match}")
        match = Match(each.match)
        if match is Match.EXACT and each.name is None:
            raise Refused(Code.INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if match is not Match.EXACT and each.name is not None:
            why = f"Request specified MATCH_TYPE_{match.name}, but also specified a match string."
            raise Refused(Code.INVALID_REQUEST, why)
        if match is Match.SPECIFIED:
            self._kinds.add(each.kind)
        else:
            self._names[each.kind] = each.name

    def chooses(self, entity: QuotaEntity) -> bool:
        """True if the conditions hold for an entity."""
        parts: Mapping[str, str | None] = dict(entity)
        if self._strict and len(parts) != len(self._names) + len(self._kinds):
            return False
        return self._kinds <= parts.keys() and all(
            kind in parts and parts[kind] == name for kind, name in self._names.items()
        )
