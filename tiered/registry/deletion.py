"""Deletes versions and subjects: first softly, then for ever. Soft deletion keeps ids readable.

A version that another one refers to is not deleted. Permanent deletion writes the highest ids that were given, so that
no id is ever given twice (I37).
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.registry.records import (
    RegistryRecord,
    VersionWritten,
    delete_subject,
    erase_version,
    write_highest_ids,
    write_version,
)
from tiered.registry.refusals import (
    REFERENCE_EXISTS,
    SUBJECT_NOT_SOFT_DELETED,
    SUBJECT_SOFT_DELETED,
    VERSION_NOT_SOFT_DELETED,
    VERSION_SOFT_DELETED,
    RegistryRefused,
)
from tiered.registry.rules import require_writable
from tiered.registry.state import RegistryState


class Deletion(NamedTuple):
    """The versions that are deleted, and the records for it."""

    versions: list[int]
    records: tuple[RegistryRecord, ...]


def decide_subject_deletion(state: RegistryState, subject: str, *, permanent: bool) -> Deletion:
    """Deletes all versions of a subject. Raises `RegistryRefused` if the subject may not be deleted so."""
    require_writable(state, subject)
    versions = state.require_versions(subject, deleted=True)
    live = [each for each in versions if not each.is_deleted]
    if permanent and live:
        why = f"Subject '{subject}' was not deleted first before being permanently deleted"
        raise RegistryRefused(SUBJECT_NOT_SOFT_DELETED, why)
    if not permanent and not live:
        why = f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently"
        raise RegistryRefused(SUBJECT_SOFT_DELETED, why)
    deleted = versions if permanent else live
    for each in deleted:
        _require_unreferenced(state, each, permanent=permanent)
    numbers = [each.version for each in deleted]
    if permanent:
        return Deletion(numbers, _erase(state, deleted))
    return Deletion(numbers, (delete_subject(subject, numbers[-1]),))


def decide_version_deletion(state: RegistryState, subject: str, version: int, *, permanent: bool) -> Deletion:
    """Deletes one version. Raises `RegistryRefused` if it may not be deleted so."""
    require_writable(state, subject)
    found = state.find_version(subject, version, deleted=True)
    what = f"Subject '{subject}' Version {found.version}"
    if permanent and not found.is_deleted:
        why = f"{what} was not deleted first before being permanently deleted"
        raise RegistryRefused(VERSION_NOT_SOFT_DELETED, why)
    if not permanent and found.is_deleted:
        raise RegistryRefused(VERSION_SOFT_DELETED, f"{what} was soft deleted.Set permanent=true to delete permanently")
    _require_unreferenced(state, found, permanent=permanent)
    if permanent:
        return Deletion([found.version], _erase(state, [found]))
    record = write_version(subject, found.version, found.id, found.schema, is_deleted=True)
    return Deletion([found.version], (record,))


def _erase(state: RegistryState, versions: list[VersionWritten]) -> tuple[RegistryRecord, ...]:
    tombstones = [erase_version(each.subject, each.version) for each in versions]
    return (write_highest_ids(state.highest_ids()), *tombstones)


def _require_unreferenced(state: RegistryState, found: VersionWritten, *, permanent: bool) -> None:
    """Raises `RegistryRefused` if another version refers to this one; a soft-deleted one counts for a permanent
    deletion."""
    referrers = state.find_referrers(found.subject, found.version, deleted=permanent)
    if referrers:
        first = referrers[0]
        why = f"One or more references exist to the schema of subject '{found.subject}' version {found.version}"
        raise RegistryRefused(REFERENCE_EXISTS, f"{why}: subject '{first.subject}' version {first.version}")
