"""Deletion: soft before permanent, never of what others refer to, and no id twice (I37)."""

from __future__ import annotations

import pytest

from tests.unit.registry.registry import Registry
from tiered.registry.refusals import (
    REFERENCE_EXISTS,
    SUBJECT_NOT_FOUND,
    SUBJECT_NOT_SOFT_DELETED,
    SUBJECT_SOFT_DELETED,
    VERSION_NOT_FOUND,
    VERSION_NOT_SOFT_DELETED,
    VERSION_SOFT_DELETED,
    RegistryRefused,
)
from tiered.registry.schema import Reference


def refusal(registry: Registry, subject: str, version: int | None = None, *, permanent: bool = False) -> int:
    with pytest.raises(RegistryRefused) as refused:
        registry.delete(subject, version, permanent=permanent)
    return refused.value.error_code


def test_subject_is_deleted_softly_and_then_for_ever() -> None:
    registry = Registry()
    registry.register("a", "x")
    registry.register("a", "y")
    assert refusal(registry, "a", permanent=True) == SUBJECT_NOT_SOFT_DELETED
    assert registry.delete("a") == [1, 2]
    assert registry.state.list_subjects(":*:") == []
    assert registry.state.list_subjects(":*:", only_deleted=True) == ["a"]
    assert registry.state.find_schema(".", 2) is not None, "records with the id can still be read"
    assert refusal(registry, "a") == SUBJECT_SOFT_DELETED
    assert registry.delete("a", permanent=True) == [1, 2]
    assert registry.state.find_schema(".", 2) is None
    assert refusal(registry, "a", permanent=True) == SUBJECT_NOT_FOUND


def test_version_is_deleted_softly_and_then_for_ever() -> None:
    registry = Registry()
    registry.register("a", "x")
    registry.register("a", "y")
    assert refusal(registry, "a", 1, permanent=True) == VERSION_NOT_SOFT_DELETED
    assert registry.delete("a", 1) == [1]
    assert [each.version for each in registry.state.live_versions("a")] == [2]
    assert refusal(registry, "a", 1) == VERSION_SOFT_DELETED
    assert registry.delete("a", 1, permanent=True) == [1]
    assert refusal(registry, "a", 1) == VERSION_NOT_FOUND


def test_version_with_referrers_is_not_deleted() -> None:
    registry = Registry()
    registry.register("base", "b")
    registry.register("top", "t", Reference("b", "base", 1))
    assert refusal(registry, "base") == REFERENCE_EXISTS
    assert refusal(registry, "base", 1) == REFERENCE_EXISTS
    registry.delete("top")
    registry.delete("base", 1)
    assert refusal(registry, "base", 1, permanent=True) == REFERENCE_EXISTS, "the referrer may come back"
    registry.delete("top", permanent=True)
    assert registry.delete("base", 1, permanent=True) == [1]


def test_no_id_is_given_twice_after_a_deletion_and_compaction() -> None:
    registry = Registry()
    registry.register("a", "x")
    registry.register(":.c:a", "x")
    registry.register("a", "y")
    for subject in ("a", ":.c:a"):
        registry.delete(subject)
        registry.delete(subject, permanent=True)
    again = registry.compact()
    assert again.state.subjects == {}
    assert again.register("a", "z").id == 3
    assert again.register(":.c:a", "z").id == 2
