"""Patterns of topics mean what they mean to Python's `re`, and take a time that grows with the name only."""

from __future__ import annotations

import random
import re

import pytest

from tests.seeds import first_seeds
from tests.steps import count_steps
from tiered_api.http.consumers.topic_patterns import NAME_CHARACTERS, TopicPattern

PIECES = ("a", "b", "1", ".", r"\.", "-", "_", "[ab]", "[^a]", "[a-c1]", r"\d", r"\w", r"\W", r"[^\d-]", "A", r"\-")
AFTER = ("", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "+?", "??", "{,2}")


def made(rng: random.Random, depth: int) -> str:
    """Draws an expression."""
    parts = []
    for _ in range(rng.randrange(1, 4)):
        kind = rng.randrange(6) if depth else 0
        inside = rng.choice(PIECES) if kind < 3 else f"({rng.choice(('', '?:', '?i:'))}{made(rng, depth - 1)})"
        parts.append(inside + rng.choice(AFTER))
    text = "".join(parts)
    return f"{text}|{made(rng, depth - 1)}" if depth and rng.random() < 0.2 else text


@pytest.mark.parametrize("seed", first_seeds(3, of=40))
def test_pattern_matches_the_names_that_re_matches(seed: int) -> None:
    rng = random.Random(seed)
    matched = 0
    for _ in range(60):
        text = rng.choice(("", "", "", "^", "(?i)")) + made(rng, 2)
        text += rng.choice(("", "", "$")) if not text.endswith("|") else ""
        names = ["".join(rng.choices("aabbc1.-_A", k=rng.randrange(0, 7))) for _ in range(30)]
        expected = [name for name in names if re.fullmatch(text, name)]
        try:
            pattern = TopicPattern(text)
        except ValueError as error:
            assert "^ is taken" in str(error), text
            continue
        assert pattern.filter_names(names) == expected, text
        matched += len(expected)
    assert matched > 50


@pytest.mark.parametrize(
    "text",
    [".*.*.*.*.*x", "(a+)+b", "(a|a)*b", "(a*)*b", "(.*a){9}", "(a|aa)+$", "(a?){100}a{100}", ".*a.{100}", "(x+x+)+y"],
)
def test_pattern_with_many_ways_to_match_takes_few_steps(text: str) -> None:
    pattern = TopicPattern(text)
    names = [f"{'a' * (NAME_CHARACTERS - 3)}{number:03}" for number in range(10)]
    steps = count_steps(lambda: pattern.filter_names(names))
    characters = NAME_CHARACTERS * len(names)
    assert steps < 5 * characters + 4 * NAME_CHARACTERS * pattern.steps_per_char, "the next positions are found once"


@pytest.mark.parametrize(
    "text",
    [
        "(",
        "a" * 250,
        r"(a)\1",
        "(?=a)b",
        "(?<!a)b",
        "(?>a*)b",
        "a*+b",
        r"\bt",
        "(a{99}){99}",
        "a^b",
        "a$b",
        "a{999}",
        "(){9999999}",
        "(((a{0}){99}){99}){99}",
        "((.?){99}){99}",
    ],
)
def test_invalid_pattern_or_one_with_backreferences_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^it |taken"):
        TopicPattern(text)


@pytest.mark.parametrize(("text", "name"), [("[[a]", "a"), ("[a||b]", "b"), ("[a&&b]", "b")])
def test_ambiguous_pattern_prints_no_warning(text: str, name: str) -> None:
    """Warnings are errors in these tests; a broker would print them."""
    assert TopicPattern(text).matches(name)


def test_deeply_nested_pattern_is_accepted_or_refused_by_name() -> None:
    assert TopicPattern("(" * 120 + "a" + ")" * 120).matches("a")
