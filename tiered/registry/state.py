"""The state of the registry: a fold of the committed records of `_schemas`, in the order of the log.

Keeps I37: equal schemas of a context have one id, and an id stands for one schema for ever. Every broker folds the same
log, so all have the same state at the same offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiered.registry.records import (
    Fact,
    HighestIds,
    RuleSet,
    SubjectDeleted,
    VersionErased,
    VersionWritten,
)
from tiered.registry.refusals import (
    INVALID_VERSION,
    RegistryRefused,
    subject_not_found,
    version_not_found,
)
from tiered.registry.schema import Schema
from tiered.registry.subjects import context_of, has_prefix, qualify_reference

LATEST = -1
VERSIONS_MAX = (1 << 31) - 1


@dataclass
class _Context:
    """The ids of one context."""

    schemas: dict[int, Schema] = field(default_factory=dict)
    ids: dict[bytes, int] = field(default_factory=dict)
    """Ids by fingerprint."""
    uses: dict[int, set[tuple[str, int]]] = field(default_factory=dict)
    """Subjects and versions of an id, soft-deleted ones too."""
    highest: int = 0


class RegistryState:
    """Subjects, versions, ids, levels and modes. `apply` alone changes it."""

    def __init__(self) -> None:
        self.subjects: dict[str, dict[int, VersionWritten]] = {}
        self.rules: dict[tuple[str, str], Mapping[str, Any]] = {}
        """Levels and modes by their kind and subject."""
        self.versions = 0
        self.bytes = 0
        """Bytes of all schemas, each counted once, about."""
        self.changes = 0
        """Facts that were applied: a verdict by this state holds until the next one."""
        self._contexts: dict[str, _Context] = {}
        self._referrers: dict[tuple[str, int], set[tuple[str, int]]] = {}

    # -- the fold -----------------------------------------------------------------------------------------------------

    def apply(self, fact: Fact) -> None:
        """Applies what a record says."""
        self.changes += 1
        match fact:
            case VersionWritten():
                self._erase(fact.subject, fact.version)
                self._write(fact)
            case VersionErased(subject, version):
                self._erase(subject, version)
            case SubjectDeleted(subject, version):
                for number, each in self.subjects.get(subject, {}).items():
                    if number <= version and not each.is_deleted:
                        self.subjects[subject][number] = each._replace(is_deleted=True)
            case RuleSet(kind, subject, value):
                if value is None:
                    self.rules.pop((kind, subject), None)
                else:
                    self.rules[kind, subject] = value
            case HighestIds(ids):
                for context, highest in ids.items():
                    found = self._contexts.setdefault(context, _Context())
                    found.highest = max(found.highest, highest)

    def _write(self, fact: VersionWritten) -> None:
        context = self._contexts.setdefault(context_of(fact.subject), _Context())
        schema = context.schemas.get(fact.id)
        if schema is None or schema != fact.schema:
            self.bytes += fact.schema.size
            if schema is not None:  # two records gave one id: the later one counts, as at Confluent
                self.bytes -= schema.size
                _forget(context, schema, fact.id)
            schema = context.schemas[fact.id] = fact.schema
            context.ids.setdefault(schema.fingerprint, fact.id)
        context.highest = max(context.highest, fact.id)
        context.uses.setdefault(fact.id, set()).add((fact.subject, fact.version))
        self.subjects.setdefault(fact.subject, {})[fact.version] = fact._replace(schema=schema)
        self.versions += 1
        for each in schema.references:
            self._referrers.setdefault(_place(each.subject, each.version, fact.subject), set()).add(
                (fact.subject, fact.version)
            )

    def _erase(self, subject: str, version: int) -> None:
        found = self.subjects.get(subject, {}).pop(version, None)
        if found is None:
            return
        if not self.subjects[subject]:
            del self.subjects[subject]
        self.versions -= 1
        for each in found.schema.references:
            place = _place(each.subject, each.version, subject)
            self._referrers.get(place, set()).discard((subject, version))
            if not self._referrers.get(place):
                self._referrers.pop(place, None)
        context = self._contexts[context_of(subject)]
        uses = context.uses[found.id]
        uses.discard((subject, version))
        if not uses:
            del context.uses[found.id]
            schema = context.schemas.pop(found.id)
            self.bytes -= schema.size
            _forget(context, schema, found.id)

    # -- look-ups -----------------------------------------------------------------------------------------------------

    def list_subjects(self, prefix: str, *, deleted: bool = False, only_deleted: bool = False) -> list[str]:
        """Returns subjects by name: those with a version that is not deleted, unless a flag says otherwise."""
        found = []
        for subject, versions in self.subjects.items():
            is_live = any(not each.is_deleted for each in versions.values())
            if has_prefix(subject, prefix) and (not is_live if only_deleted else is_live or deleted):
                found.append(subject)
        return sorted(found)

    def live_versions(self, subject: str, *, deleted: bool = False) -> list[VersionWritten]:
        """Returns the versions of a subject in their order; with `deleted`, soft-deleted ones too."""
        found = self.subjects.get(subject, {})
        return [found[number] for number in sorted(found) if deleted or not found[number].is_deleted]

    def require_versions(self, subject: str, *, deleted: bool = False) -> list[VersionWritten]:
        """Returns the same. Raises `RegistryRefused` if there is none."""
        found = self.live_versions(subject, deleted=deleted)
        if not found:
            raise subject_not_found(subject)
        return found

    def find_version(self, subject: str, version: int, *, deleted: bool = False) -> VersionWritten:
        """Returns a version, or the latest one. Raises `RegistryRefused` if there is none."""
        found = self.require_versions(subject, deleted=deleted)
        if version == LATEST:
            return found[-1]
        for each in found:
            if each.version == version:
                return each
        raise version_not_found(version)

    def find_latest_with(
        self, subject: str, properties: Mapping[str, str], *, deleted: bool = False
    ) -> VersionWritten | None:
        """Returns the latest version whose metadata has these properties. Raises `RegistryRefused` without a version
        of the subject."""
        for each in reversed(self.require_versions(subject, deleted=deleted)):
            if properties.items() <= each.schema.properties.items():
                return each
        return None

    def next_version(self, subject: str) -> int:
        """Returns the version that a new schema gets."""
        return max(self.subjects.get(subject, {}), default=0) + 1

    def next_id(self, context: str) -> int:
        """Returns an id that was never given."""
        return self.highest_id(context) + 1

    def highest_id(self, context: str) -> int:
        """Returns the highest id that was ever given in a context; 0 for none."""
        return self._contexts[context].highest if context in self._contexts else 0

    def highest_ids(self) -> dict[str, int]:
        """Returns the highest ids of all contexts."""
        return {name: each.highest for name, each in self._contexts.items() if each.highest}

    def find_id(self, context: str, schema: Schema) -> int | None:
        """Returns the id of a schema in a context."""
        found = self._contexts.get(context)
        return found.ids.get(schema.fingerprint) if found is not None else None

    def find_schema(self, context: str, id: int) -> Schema | None:
        """Returns the schema of an id in a context."""
        found = self._contexts.get(context)
        return found.schemas.get(id) if found is not None else None

    def find_by_fingerprint(self, fingerprint: bytes) -> list[tuple[str, int]]:
        """Returns the contexts that have a schema with this fingerprint, and its id there."""
        return [(name, each.ids[fingerprint]) for name, each in self._contexts.items() if fingerprint in each.ids]

    def find_uses(self, context: str, id: int, *, deleted: bool = False) -> list[tuple[str, int]]:
        """Returns subjects and versions of an id."""
        found = self._contexts.get(context)
        uses = found.uses.get(id, set()) if found is not None else set()
        return sorted(each for each in uses if deleted or not self.subjects[each[0]][each[1]].is_deleted)

    def find_referrers(self, subject: str, version: int, *, deleted: bool = False) -> list[VersionWritten]:
        """Returns the versions that refer to a version."""
        found = (self.subjects[name][number] for name, number in self._referrers.get((subject, version), ()))
        return sorted((each for each in found if deleted or not each.is_deleted), key=lambda each: each[:2])

    def contexts(self) -> list[str]:
        """Returns the contexts that have subjects, and the default one."""
        return sorted({".", *map(context_of, self.subjects)})

    def find_rule(self, kind: str, scopes: tuple[str, ...]) -> Mapping[str, Any]:
        """Returns the level or mode of the first of these scopes that has one; empty if none has."""
        return next((self.rules[kind, scope] for scope in scopes if (kind, scope) in self.rules), {})

    def each_version(self, prefix: str) -> Iterator[VersionWritten]:
        """Yields all versions of subjects with a prefix, soft-deleted ones too, in their order."""
        for subject in self.list_subjects(prefix, deleted=True):
            yield from self.live_versions(subject, deleted=True)


def _forget(context: _Context, schema: Schema, id: int) -> None:
    """Removes the fingerprint of a schema, or gives it to another id of the same schema: an import may have one."""
    fingerprint = schema.fingerprint
    if context.ids.get(fingerprint) == id:
        del context.ids[fingerprint]
        other = next((each for each, found in context.schemas.items() if each != id and found == schema), None)
        if other is not None:
            context.ids[fingerprint] = other


def _place(name: str, version: int, referrer: str) -> tuple[str, int]:
    return qualify_reference(name, referrer), version


def parse_version(text: str) -> int:
    """Returns a version of a path; `LATEST` for "latest". Raises `RegistryRefused`."""
    if text in ("latest", "-1"):
        return LATEST
    if text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= VERSIONS_MAX:
        return int(text)
    why = f"The specified version '{text[:40]}' is not a valid version id."
    allowed = 'Allowed values are between [1, 2^31-1] and the string "latest"'
    raise RegistryRefused(INVALID_VERSION, f"{why} {allowed}")
