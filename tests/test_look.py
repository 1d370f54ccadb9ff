"""Tests of the report on the sources: each count counts what its name says."""

from __future__ import annotations

import ast

import pytest

from tests import look

SOURCE = '''
"""What stands here."""

class Reader:
    """Reads."""

    def __init__(self, a, b, c, d, e, f, g, h, *, i):
        """Until it ends, a twin hears of it."""

    def told(self): ...
    def is_led(self): ...
    def seed(self): ...

LIMIT = 1
"""As many as there are. A Whole sentence: What counts is the beginning."""
'''
FOUND = [look.Source("a/one.py", 401, ast.parse(SOURCE)), look.Source("a/two.py", 400, ast.parse("class Reader: ..."))]


def test_files_above_the_limit_are_counted_and_the_largest_come_first() -> None:
    assert look.long_files(FOUND) == ("files, lines over 400", 1, ["  401 a/one.py", "  400 a/two.py"])


def test_arguments_count_without_self() -> None:
    assert look.wide_constructors(FOUND) == ("constructors, arguments over 8", 1, ["    9 a/one.py Reader"])


def test_class_of_two_files_stands_twice() -> None:
    assert look.classes_twice(FOUND).worst == ["Reader: a/one.py, a/two.py"]


def test_one_word_that_is_a_participle_names_a_function() -> None:
    assert look.participles(FOUND).worst == ["    1 told"]


def test_docstrings_count_by_their_first_word() -> None:
    assert look.openings(FOUND).total == 3
    assert {"    1 What", "    1 Until", "    1 As", "    0 Who"} <= {*look.openings(FOUND).worst}


def test_metaphors_count_in_docstrings_by_stem() -> None:
    assert look.metaphors(FOUND).total == 2
    assert {"    1 twin", "    1 hear"} <= {*look.metaphors(FOUND).worst}


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [["a", "b", "c"]]),
        ({"a": {"b"}, "b": {"a"}, "c": {"d", "e"}, "d": {"c"}, "e": {"c"}}, [["c", "d", "e"], ["a", "b"]]),
    ],
)
def test_circles_are_groups_that_reach_themselves(graph: dict[str, set[str]], found: list[list[str]]) -> None:
    assert look.circles(graph) == found


def test_report_shows_earlier_counts() -> None:
    told = look.report([look.Measure("files", 3, ["one"]), look.Measure("new", 1)], {"files": 5})
    assert told == "3 files (before: 5)\n    one\n1 new"
