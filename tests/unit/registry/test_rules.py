"""Levels and modes: what holds for a subject, and what is refused."""

from __future__ import annotations

import pytest

from tests.unit.registry.registry import Registry
from tiered.registry.records import LEVEL, MODE, write_rule
from tiered.registry.refusals import INVALID_LEVEL, INVALID_MODE, NO_LEVEL_OF_SUBJECT, NOT_PERMITTED, RegistryRefused
from tiered.registry.rules import find_rule, level_of, mode_of, normalizes, remove_rule, set_level, set_mode


def test_level_of_a_subject_comes_before_its_context_and_all() -> None:
    registry = Registry()
    assert level_of(registry.state, "s") == "BACKWARD"
    registry.set_level("FULL")
    registry.set_level("NONE", ":.c:")
    registry.set_level("FORWARD", "s")
    levels = [level_of(registry.state, each) for each in ("s", "t", ":.c:s", ":.d:s")]
    assert levels == ["FORWARD", "FULL", "NONE", "FULL"]


def test_level_of_a_subject_is_found_or_said_to_be_missing() -> None:
    registry = Registry()
    registry.set_level("FULL")
    with pytest.raises(RegistryRefused) as refused:
        find_rule(registry.state, LEVEL, "s", in_force=False)
    assert refused.value.error_code == NO_LEVEL_OF_SUBJECT
    assert find_rule(registry.state, LEVEL, "s", in_force=True) == {"compatibilityLevel": "FULL"}
    assert find_rule(registry.state, MODE, "", in_force=False) == {"mode": "READWRITE"}


def test_level_is_set_in_any_case_and_removed() -> None:
    registry = Registry()
    registry.append(set_level("s", {"compatibility": "full_transitive", "normalize": True}))
    assert (level_of(registry.state, "s"), normalizes(registry.state, "s")) == ("FULL_TRANSITIVE", True)
    records, removed = remove_rule(registry.state, LEVEL, "s")
    registry.append(records)
    assert (removed, level_of(registry.state, "s")) == (
        {"compatibilityLevel": "FULL_TRANSITIVE", "normalize": True},
        "BACKWARD",
    )


@pytest.mark.parametrize("level", ["", "SOMETIMES", None, 3])
def test_level_that_does_not_exist_is_refused(level: object) -> None:
    with pytest.raises(RegistryRefused, match="full_transitive") as refused:
        set_level("", {"compatibility": level})
    assert refused.value.error_code == INVALID_LEVEL


@pytest.mark.parametrize(
    ("scope", "is_refused"), [("", True), ("a", True), ("b", False), (":.c:", False), (":.d:", True)]
)
def test_import_needs_a_place_without_subjects(scope: str, is_refused: bool) -> None:
    registry = Registry()
    registry.register("a", "x")
    registry.register(":.d:s", "x")
    if is_refused:
        with pytest.raises(RegistryRefused) as refused:
            set_mode(registry.state, scope, "IMPORT", force=False)
        assert refused.value.error_code == NOT_PERMITTED
    registry.append(set_mode(registry.state, scope, "IMPORT", force=is_refused))
    assert mode_of(registry.state, scope or "a") == "IMPORT"


def test_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RegistryRefused) as refused:
        set_mode(Registry().state, "", "SLEEP", force=False)
    assert refused.value.error_code == INVALID_MODE
    assert mode_of(Registry([write_rule(MODE, "", {})]).state, "s") == "READWRITE"
