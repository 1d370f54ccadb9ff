"""Names of subjects: contexts, and the topic whose rights hold."""

from __future__ import annotations

import pytest

from tiered.registry.refusals import INVALID_SUBJECT, RegistryRefused
from tiered.registry.subjects import parse_subject, qualify_reference, scopes_of, split_subject, topic_of


def test_default_context_is_not_written() -> None:
    assert parse_subject(":.:orders-value") == parse_subject("orders-value") == "orders-value"
    assert split_subject(":.c:a:b") == (".c", "a:b")
    assert parse_subject(":.c:", may_be_context=True) == ":.c:"
    assert scopes_of(":.c:s") == (":.c:s", ":.c:", "")


@pytest.mark.parametrize("text", ["", " ", ":.c:", "a\nb", "a\0", "x" * 1_001, "__GLOBAL", ":.c:__EMPTY"])
def test_name_that_no_subject_may_have_is_refused(text: str) -> None:
    with pytest.raises(RegistryRefused) as refused:
        parse_subject(text)
    assert refused.value.error_code == INVALID_SUBJECT


@pytest.mark.parametrize(
    ("subject", "topic"),
    [
        ("orders-value", "orders"),
        ("orders-key", "orders"),
        ("a-value-key", "a-value"),
        ("com.shop.Order", ""),
        (":.c:orders-value", ""),
        ("-value", ""),
    ],
)
def test_rights_of_a_topic_hold_for_its_two_subjects(subject: str, topic: str) -> None:
    assert topic_of(subject) == topic


def test_reference_is_qualified_by_its_referrer() -> None:
    assert qualify_reference("base", ":.c:top") == ":.c:base"
    assert qualify_reference(":.d:base", ":.c:top") == ":.d:base"
    assert qualify_reference(":.:base", ":.c:top") == "base"
