"""Regular expressions of consumer groups over the names of topics."""

from __future__ import annotations

import pytest

from tiered.coordination import topic_regexes
from tiered.coordination.topic_regexes import make_matcher
from tiered.errors import Code, Refused

NAMES = ("orders", "orders-eu", "payments", "__consumer_offsets")


@pytest.mark.parametrize(
    ("regex", "found"),
    [
        ("orders", {"orders"}),
        ("orders.*", {"orders", "orders-eu"}),
        ("^(?i)PAY.*$", {"payments"}),
        ("(a*)*b", set()),
        (".*", set(NAMES)),
    ],
)
def test_expression_matches_whole_names(regex: str, found: set[str]) -> None:
    match = make_matcher(lambda: NAMES)
    assert match is not None
    assert match(regex) == found


@pytest.mark.parametrize("regex", ["(", "a{2000}", "(?=a)", "((a{100}){100}){100}", "\\p{Klingon}"])
def test_text_that_is_no_expression_is_refused(regex: str) -> None:
    match = make_matcher(lambda: NAMES)
    assert match is not None
    with pytest.raises(Refused, match="is not a valid regular expression") as refused:
        match(regex)
    assert refused.value.code is Code.INVALID_REGULAR_EXPRESSION


def test_there_is_no_matcher_without_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_regexes, "ENGINE", "no_engine_of_this_name")
    assert make_matcher(lambda: NAMES) is None
