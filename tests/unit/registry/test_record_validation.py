"""The check of records against the registry: frames, subjects of the three strategies, deleted versions."""

from __future__ import annotations

import pytest

from tests.unit.registry.registry import Registry
from tiered.config.settings import SUBJECT_NAME_STRATEGIES
from tiered.registry.record_validation import (
    KEY,
    RECORD_NAME,
    TOPIC_NAME,
    TOPIC_RECORD_NAME,
    VALUE,
    SubjectRule,
    cut_frame,
    find_fault,
)

RULE = SubjectRule("t", VALUE)


def frame(id: int) -> bytes:
    return b"\0" + id.to_bytes(4, "big")


def test_settings_have_the_strategies_of_confluent() -> None:
    assert SUBJECT_NAME_STRATEGIES == (TOPIC_NAME, RECORD_NAME, TOPIC_RECORD_NAME)


def test_schema_must_have_the_subject_of_the_topic() -> None:
    registry = Registry()
    id, other = registry.register("t-value", '"int"').id, registry.register("u-value", '"long"').id
    assert find_fault(registry.state, RULE, frame(id)) == ""
    assert find_fault(registry.state, SubjectRule("t", KEY), frame(id)) == (
        "has a key with schema id 1, which is not registered under the subject 't-key'"
    )
    assert find_fault(registry.state, RULE, frame(other)) == (
        "has a value with schema id 2, which is not registered under the subject 't-value'"
    )
    assert find_fault(registry.state, RULE, frame(77)) == (
        "has a value with schema id 77, which the schema registry does not have"
    )


@pytest.mark.parametrize("data", [b"", b"\0\0\0", b'{"a": 1}', b"\1\0\0\0\1"])
def test_value_without_a_frame_is_a_fault(data: bytes) -> None:
    registry = Registry()
    registry.register("t-value", '"int"')
    assert find_fault(registry.state, RULE, cut_frame(data, None)).startswith("has a value that names no schema")


def test_header_names_the_schema_by_its_guid() -> None:
    registry = Registry()
    guid = registry.register("t-value", '"int"').schema.fingerprint
    assert find_fault(registry.state, RULE, cut_frame(b"anything", b"\1" + guid)) == ""
    unknown = find_fault(registry.state, RULE, cut_frame(b"anything", b"\1" + bytes(16)))
    assert unknown == f"has a value with schema guid {'00' * 16}, which the schema registry does not have"
    assert find_fault(registry.state, RULE, cut_frame(frame(1), b"\1" + guid + b"more")).startswith("has a value that")


def test_schema_of_another_context_is_no_schema_of_the_topic() -> None:
    registry = Registry()
    guid = registry.register(":.c:t-value", '"int"').schema.fingerprint
    assert find_fault(registry.state, RULE, frame(1)).endswith("does not have")
    assert find_fault(registry.state, RULE, b"\1" + guid).endswith("does not have")


def test_deleted_version_is_no_longer_good() -> None:
    registry = Registry()
    id = registry.register("t-value", '"int"').id
    changes = registry.state.changes
    registry.delete("t-value")
    assert registry.state.changes > changes, "verdicts before it are forgotten"
    assert "not registered" in find_fault(registry.state, RULE, frame(id))


def test_strategies_name_subjects_by_records() -> None:
    registry = Registry()
    registry.register("a.R", '"int"')
    registry.register("t-a.R", '"long"')
    by_record, by_both = SubjectRule("t", VALUE, RECORD_NAME), SubjectRule("t", VALUE, TOPIC_RECORD_NAME)
    assert find_fault(registry.state, by_record, frame(1), ["a.R"]) == ""
    assert find_fault(registry.state, by_both, frame(2), ["a.Q", "a.R"]) == ""
    assert find_fault(registry.state, by_both, frame(1), ["a.R"]).endswith("the subject 't-a.R'")
    assert find_fault(registry.state, by_record, frame(1)).endswith("the name of a record, because the schema has none")
