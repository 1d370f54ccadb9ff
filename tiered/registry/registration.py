"""Registers schemas: the version that a schema gets in its subject, and its id (I37).

A registration takes three steps, because a comparison of large schemas takes longer than one turn of the event loop.
`plan` says what has to be compared; a thread compares; `decide` makes the record, if a plan by the state of that moment
is the same. Bounds keep the state in memory small.
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.registry.compatibility import Comparison, plan_comparison
from tiered.registry.records import RegistryRecord, VersionWritten, erase_version, write_highest_ids, write_version
from tiered.registry.refusals import (
    INCOMPATIBLE,
    NOT_PERMITTED,
    RegistryRefused,
    invalid_schema,
)
from tiered.registry.rules import IMPORT, level_of, mode_of, require_writable
from tiered.registry.schema import Schema
from tiered.registry.state import LATEST, RegistryState
from tiered.registry.subjects import context_of, qualify_reference

VERSIONS_MAX = 50_000
"""Most versions of all subjects."""
BYTES_MAX = 256 << 20
"""Most bytes of all schemas, about."""
SUBJECT_VERSIONS_MAX = 1_000
COMPARED_VERSIONS_MAX, COMPARED_BYTES_MAX = 500, 4 << 20
"""Most versions that a schema is compared with, and bytes of their schemas: a thread takes up to a minute for them."""
REFERENCES_MAX = 500
"""Most schemas that one schema refers to, those of its references included."""
REFERENCE_BYTES_MAX = 16 << 20


class Resolved(NamedTuple):
    """A schema with all that it refers to, by the names of the references; each comes after those that it needs."""

    schema: Schema
    references: tuple[tuple[str, Schema], ...] = ()


class Registration(NamedTuple):
    """A schema to register. Id and version are -1 unless an import gives them."""

    subject: str
    schema: Schema
    id: int = -1
    version: int = -1


class Plan(NamedTuple):
    """The comparison before a registration. `existing` is the version that has the schema already: then nothing is to
    do."""

    existing: VersionWritten | None
    earlier: tuple[tuple[int, Resolved], ...] = ()
    comparison: Comparison = Comparison((), False, False)


class Registered(NamedTuple):
    """The version of a schema, and the records that make it; none if it exists."""

    written: VersionWritten
    records: tuple[RegistryRecord, ...] = ()


def resolve(state: RegistryState, subject: str, schema: Schema) -> Resolved:
    """Returns a schema of a subject with all that it refers to. Raises `RegistryRefused` if a reference leads nowhere
    or in a circle, or if there are too many."""
    found: dict[tuple[str, int], tuple[str, Schema]] = {}
    size = 0
    open_places: set[tuple[str, int]] = set()
    # A stack in place of recursion: a chain of references may be long.
    steps = [(subject, each, False) for each in reversed(schema.references)]
    while steps:
        referrer, reference, is_done = steps.pop()
        name = qualify_reference(reference.subject, referrer)
        target = _find_target(state, name, reference.version)
        place = (name, target.version)
        if is_done:
            open_places.discard(place)
            found[place] = (reference.name, target.schema)
            continue
        if place in found:
            continue
        if place in open_places:
            raise invalid_schema(f"subject '{name}' version {target.version} refers to itself in a circle")
        open_places.add(place)
        size += target.schema.size
        if len(found) + len(open_places) > REFERENCES_MAX or size > REFERENCE_BYTES_MAX:
            most = f"{REFERENCES_MAX} schemas and {REFERENCE_BYTES_MAX >> 20} MiB are the most"
            raise invalid_schema(f"it refers to too many schemas: {most}")
        steps.append((referrer, reference, True))
        steps += [(name, each, False) for each in reversed(target.schema.references)]
    return Resolved(schema, tuple(found.values()))


def _find_target(state: RegistryState, subject: str, version: int) -> VersionWritten:
    try:
        return state.find_version(subject, version, deleted=version != LATEST)
    except RegistryRefused:
        why = f'No schema reference found for subject "{subject}" and version {version}'
        raise invalid_schema(why) from None


def pin_references(state: RegistryState, subject: str, schema: Schema) -> Schema:
    """Returns a schema whose references to the latest version name that version."""
    pinned = tuple(
        each._replace(version=_find_target(state, qualify_reference(each.subject, subject), LATEST).version)
        if each.version == LATEST
        else each
        for each in schema.references
    )
    return schema._replace(references=pinned)


def find_registered(
    state: RegistryState, subject: str, schema: Schema, *, deleted: bool = False
) -> VersionWritten | None:
    """Returns the latest version of a subject that has exactly this schema."""
    versions = state.live_versions(subject, deleted=deleted)
    return next((each for each in reversed(versions) if each.schema == schema), None)


def plan(state: RegistryState, wanted: Registration) -> Plan:
    """Returns what has to be compared before a schema is registered. Raises `RegistryRefused` if it may not be."""
    subject = wanted.subject
    existing = find_registered(state, subject, wanted.schema)
    if existing is not None and wanted.id in (-1, existing.id) and wanted.version in (-1, existing.version):
        return Plan(existing)
    require_writable(state, subject)
    is_import = mode_of(state, subject) == IMPORT
    if is_import != (wanted.id >= 0):
        why = "is in import mode: give an id" if is_import else "is not in import mode"
        raise RegistryRefused(NOT_PERMITTED, f"Subject {subject} {why}")
    if state.versions >= VERSIONS_MAX or state.bytes + wanted.schema.size > BYTES_MAX:
        most = f"{VERSIONS_MAX} versions and {BYTES_MAX >> 20} MiB are the most"
        raise RegistryRefused(NOT_PERMITTED, f"The registry is full: {most}. Delete subjects permanently")
    if len(state.subjects.get(subject, ())) >= SUBJECT_VERSIONS_MAX:
        why = f"Subject {subject} has {SUBJECT_VERSIONS_MAX} versions, which are the most. Delete some permanently"
        raise RegistryRefused(NOT_PERMITTED, why)
    if is_import:
        return Plan(None)
    return plan_check(state, subject, state.live_versions(subject))


def plan_check(state: RegistryState, subject: str, versions: list[VersionWritten]) -> Plan:
    """Returns what the level of a subject compares, out of these versions."""
    level = level_of(state, subject)
    comparison = plan_comparison(level, len(versions))
    size = sum(versions[place].schema.size for place in comparison.places)
    if len(comparison.places) > COMPARED_VERSIONS_MAX or size > COMPARED_BYTES_MAX:
        most = f"{COMPARED_VERSIONS_MAX} versions and {COMPARED_BYTES_MAX >> 20} MiB are the most"
        why = f"Level {level} compares {len(comparison.places)} versions of {size >> 20} MiB with the schema: {most}"
        raise RegistryRefused(NOT_PERMITTED, why)
    earlier = tuple(
        (versions[place].version, resolve(state, subject, versions[place].schema)) for place in comparison.places
    )
    return Plan(None, earlier, comparison)


def decide(state: RegistryState, wanted: Registration, made: Plan, differences: list[str]) -> Registered | None:
    """Returns the version of a schema, and its records. Returns None if the state has changed so that `made` is no
    plan for it any more. Raises `RegistryRefused` if the schema is not compatible, or not permitted."""
    newest = plan(state, wanted)
    if newest.existing is not None:
        return Registered(newest.existing)
    if newest != made:
        return None
    subject, schema = wanted.subject, wanted.schema
    if differences:
        why = f'Schema being registered is incompatible with an earlier schema for subject "{subject}"'
        raise RegistryRefused(INCOMPATIBLE, f"{why}, details: [{'; '.join(differences)}]")
    version = state.next_version(subject)
    if wanted.version not in (-1, version):
        if wanted.id < 0:
            raise invalid_schema("Version is not one more than previous version")
        version = wanted.version
    context = context_of(subject)
    known = state.find_id(context, schema)
    id = wanted.id if wanted.id >= 0 else state.next_id(context) if known is None else known
    taken = state.find_schema(context, id)
    if taken is not None and taken != schema:
        raise RegistryRefused(NOT_PERMITTED, f"Overwrite new schema with id {id} is not permitted.")
    written = VersionWritten(subject, version, id, schema, False)
    records = (*_erase_same(state, subject, id, version), write_version(subject, version, id, schema))
    return Registered(written, records)


def _erase_same(state: RegistryState, subject: str, id: int, version: int) -> tuple[RegistryRecord, ...]:
    """Returns tombstones of soft-deleted versions with the same id, which the new one replaces, as at Confluent."""
    erased = tuple(
        erase_version(subject, each.version)
        for each in state.live_versions(subject, deleted=True)
        if each.is_deleted
        and each.id == id
        and each.version < version
        and not state.find_referrers(subject, each.version, deleted=True)
    )
    return (*erased, write_highest_ids(state.highest_ids())) if erased else ()
