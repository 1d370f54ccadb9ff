"""Compatibility levels and modes: of a subject, else of its context, else of all subjects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiered.registry.records import LEVEL, MODE, RegistryRecord, write_rule
from tiered.registry.refusals import (
    INVALID_LEVEL,
    INVALID_MODE,
    NO_LEVEL_OF_SUBJECT,
    NO_MODE_OF_SUBJECT,
    NOT_PERMITTED,
    RegistryRefused,
)
from tiered.registry.state import RegistryState
from tiered.registry.subjects import GLOBAL, has_prefix, scopes_of

LEVELS = (
    "NONE", "BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE",
)  # fmt: skip
DEFAULT_LEVEL = "BACKWARD"
READWRITE, READONLY, IMPORT = "READWRITE", "READONLY", "IMPORT"
MODES = (READWRITE, READONLY, IMPORT)

_NAMES = {LEVEL: "compatibilityLevel", MODE: "mode"}
_DEFAULTS = {LEVEL: DEFAULT_LEVEL, MODE: READWRITE}
_NOT_FOUND = {
    LEVEL: (NO_LEVEL_OF_SUBJECT, "Subject '%s' does not have subject-level compatibility configured"),
    MODE: (NO_MODE_OF_SUBJECT, "Subject '%s' does not have subject-level mode configured"),
}


def level_of(state: RegistryState, subject: str) -> str:
    """Returns the level in force for a subject."""
    return str(state.find_rule(LEVEL, scopes_of(subject)).get(_NAMES[LEVEL]) or DEFAULT_LEVEL)


def mode_of(state: RegistryState, subject: str) -> str:
    """Returns the mode in force for a subject."""
    return str(state.find_rule(MODE, scopes_of(subject)).get(_NAMES[MODE]) or READWRITE)


def normalizes(state: RegistryState, subject: str) -> bool:
    """True if schemas of the subject are compared in their normal form."""
    return state.find_rule(LEVEL, scopes_of(subject)).get("normalize") is True


def find_rule(state: RegistryState, kind: str, subject: str, *, in_force: bool) -> dict[str, Any]:
    """Returns the level or mode of exactly this subject; with `in_force`, the one that holds for it.

    Raises `RegistryRefused` if the subject has none of its own.
    """
    scopes = scopes_of(subject) if in_force and subject != GLOBAL else (subject,)
    found = state.find_rule(kind, scopes)
    if not found and subject != GLOBAL and not in_force:
        code, why = _NOT_FOUND[kind]
        raise RegistryRefused(code, why % subject)
    return {_NAMES[kind]: _DEFAULTS[kind], **{name: each for name, each in found.items() if name != "subject"}}


def set_level(subject: str, given: Mapping[str, Any]) -> tuple[RegistryRecord, ...]:
    """Returns the record of a level. Raises `RegistryRefused` for a level that does not exist."""
    named = given.get("compatibility")
    level = named.upper() if isinstance(named, str) else ""
    if level not in LEVELS:
        valid = ", ".join(each.lower() for each in LEVELS)
        raise RegistryRefused(INVALID_LEVEL, f"Invalid compatibility level. Valid values are {valid}")
    value: dict[str, Any] = {_NAMES[LEVEL]: level}
    normalize = given.get("normalize")
    if not isinstance(normalize, bool | None):
        raise RegistryRefused(INVALID_LEVEL, "normalize has to be true or false")
    if normalize is not None:
        value["normalize"] = normalize
    return (write_rule(LEVEL, subject, value),)


def set_mode(state: RegistryState, subject: str, mode: object, *, force: bool) -> tuple[RegistryRecord, ...]:
    """Returns the record of a mode. Raises `RegistryRefused` for a mode that does not exist, and for an import where
    subjects exist: the ids of the import may be theirs. `force` permits it."""
    if mode not in MODES:
        raise RegistryRefused(INVALID_MODE, f"Invalid mode. Valid values are {', '.join(MODES)}")
    prefix = ":*:" if subject == GLOBAL else subject
    if mode == IMPORT and not force and mode_of(state, subject) != IMPORT:
        exists = any(
            has_prefix(each, prefix) and (prefix == ":*:" or _covers(subject, each)) for each in state.subjects
        )
        if exists:
            raise RegistryRefused(NOT_PERMITTED, "Cannot import since found existing subjects")
    return (write_rule(MODE, subject, {_NAMES[MODE]: mode}),)


def _covers(scope: str, subject: str) -> bool:
    """True if a scope is the subject, or its context."""
    return scope in scopes_of(subject)


def remove_rule(state: RegistryState, kind: str, subject: str) -> tuple[tuple[RegistryRecord, ...], dict[str, Any]]:
    """Returns the record that removes a level or mode, and what was removed. Raises `RegistryRefused` for none."""
    removed = find_rule(state, kind, subject, in_force=False)
    return (write_rule(kind, subject, None),), removed


def require_writable(state: RegistryState, subject: str) -> None:
    """Raises `RegistryRefused` if the subject is read-only."""
    if mode_of(state, subject) == READONLY:
        raise RegistryRefused(NOT_PERMITTED, f"Subject {subject} is in read-only mode")
