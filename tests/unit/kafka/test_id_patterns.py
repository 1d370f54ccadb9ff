"""Tests of patterns of transactional ids: the same matches as Python's `re`, in linear time."""

from __future__ import annotations

import re
from contextlib import suppress
from random import Random

import pytest

from tests.refusal import refuses
from tiered.errors import Code, Refused
from tiered_api.kafka.server.requests.id_patterns import STATES_MAX, IdPattern

PATTERNS = (
    "a", "", "a.*", ".*b", "a|b", "(a|b)*", "(?:ab)+", "a?b?", "[a-c]+", "[^a-c]+", r"\d+", r"\w*", r"a\.b", "^a$",
    "a{2}", "a{1,}", "a{0,2}b", "[-a]+", "[]a]+", "a|", "(a|ab)(c|bcd)", "x*?y", r"[\d_]+", r"\D+", "(a*)*b",
)  # fmt: skip
TEXTS = ("", "a", "b", "ab", "abc", "abcd", "aa", "aaa", "aab", "a.b", "a-", "]", "12", "1_2", "xxy", "é", "ba")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_pattern_matches_what_re_matches(pattern: str) -> None:
    compiled = IdPattern(pattern)
    assert [compiled.matches(text) for text in TEXTS] == [bool(re.fullmatch(pattern, text, re.ASCII)) for text in TEXTS]


def test_drawn_patterns_match_what_re_matches() -> None:
    rng, checked = Random(1), 0
    for _ in range(3_000):
        pattern = "".join(rng.choice(("a", "b", ".", "(", ")", "|", "*", "+", "?", "[ab]", "a")) for _ in range(6))
        with suppress(Refused, re.error):
            compiled, expected = IdPattern(pattern), re.compile(pattern)
            checked += 1
            for text in ("", "a", "b", "ab", "aab", "abab"):
                assert compiled.matches(text) is bool(expected.fullmatch(text)), (pattern, text)
    assert checked > 200


@pytest.mark.parametrize(
    "pattern",
    [
        "[",
        "(",
        ")",
        "*",
        "a**",
        "a(",
        "(?=a)",
        r"\p",
        "\\",
        "[b-a]",
        "a{2,1}",
        "a{300}",
        "(" * 40 + ")" * 40,
        "((((){99}){99}){99}){99}",
    ],
)
def test_pattern_that_cannot_be_used_is_refused(pattern: str) -> None:
    with refuses(Code.INVALID_REGULAR_EXPRESSION):
        IdPattern(pattern)


def test_pattern_that_is_exponential_for_others_takes_few_steps() -> None:
    assert not IdPattern("(a*)*" * 8 + "b").matches("a" * 4_096)
    assert IdPattern("a" * (STATES_MAX - 1)).matches("a" * (STATES_MAX - 1))
