"""Expressions with groups: the same matches and groups as Python's `re`, in linear time."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.security.capturing_pattern import TEXT_MAX, CapturingPattern
from tiered.security.principal_mapping import map_name, parse_mapping_rules

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", "ab", "^", "$", ","])
COUNTS = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,2}?"])


def replace_parser(word: str) -> ModuleType:
    """Returns a parser that says this of each expression."""
    made = ModuleType("re._parser")
    made.parse = lambda text: [(word, None)]  # type: ignore[attr-defined]
    return made


def _wrap(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        inner.map(lambda one: f"({one})"),
        st.tuples(st.sampled_from(["a", "b", "[ab]", "(?:ab)", "(a)", "(a|b)", "."]), COUNTS).map("".join),
    )


@given(st.recursive(ATOMS, _wrap, max_leaves=8), st.text("ab,\n", max_size=8))
def test_groups_are_those_of_a_backtracking_matcher(pattern: str, text: str) -> None:
    expected = re.compile(pattern.replace("$", r"\Z")).fullmatch(text)
    found = CapturingPattern(pattern).match(text)
    assert found == (None if expected is None else (expected[0], *expected.groups()))


@pytest.mark.parametrize("pattern", ["(a*)*b", "(.*)(.*)(.*)(.*)(.*)(.*)b", "((a?){9}){9}b", "(a|a)*(a|a)*b"])
def test_time_is_linear_in_the_text(pattern: str) -> None:
    """The steps are counted: each takes place at most once for each character."""
    made = CapturingPattern(pattern)
    reached = 0
    reach = made._reach

    def count(*given: object) -> object:
        nonlocal reached
        found = reach(*given)  # type: ignore[arg-type]
        reached += len(found)
        return found

    made._reach = count  # type: ignore[method-assign,assignment]
    assert made.match("a" * 100) is None
    assert reached <= 101 * (len(made._steps) + 1)


@pytest.mark.parametrize(
    "pattern",
    ["(", "a{1001}", "((a{30}){30}){30}", r"(a)\1", "(?=a)", "(?<!a)b", r"\ba", r"\p{Alpha}", "(?>a)", "a" * 1001],
)
def test_expression_that_is_not_supported_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"^(it|of the anchors|references)"):
        CapturingPattern(pattern)


def test_case_may_be_ignored_and_a_long_text_does_not_match() -> None:
    assert CapturingPattern("(?i)cn=([a-c]+)").match("CN=aBc") == ("CN=aBc", "aBc")
    assert CapturingPattern(".*").match("a" * TEXT_MAX) is not None
    assert CapturingPattern(".*").match("a" * (TEXT_MAX + 1)) is None


@pytest.mark.parametrize("parser", [None, ModuleType("re._parser"), replace_parser("CAPTURE")], ids=str)
def test_python_with_another_parser_takes_no_expression(
    monkeypatch: pytest.MonkeyPatch, parser: ModuleType | None
) -> None:
    """Rules without an expression go on working, so that a broker without one starts."""
    monkeypatch.setitem(sys.modules, "re._parser", parser)
    with pytest.raises(ValueError, match=r"from 3\.11 to 3\.13"):
        CapturingPattern("a")
    assert map_name(parse_mapping_rules("DEFAULT"), "CN=alice") == "CN=alice"
