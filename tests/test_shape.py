"""Tests of the counts of what is large: what they count, and that none rises unseen."""

from __future__ import annotations

import ast

import pytest

from tests.look import Measure, Source
from tests.shape import fallen, full_folders, grown, many_methods, nameless_tests

METHODS = "\n".join(f"    def m{number}(self): ..." for number in range(31))
WIDE = Source("a/wide.py", 32, ast.parse(f"class Wide:\n{METHODS}\n\nclass Narrow:\n    def m(self): ...\n"))


def test_class_of_more_than_thirty_methods_counts() -> None:
    assert many_methods([WIDE]) == ("classes, methods over 30", 1, ["   31 a/wide.py Wide", "    1 a/wide.py Narrow"])


def test_folder_of_more_than_25_files_counts() -> None:
    found = [
        Source(f"{folder}/{n}.py", 1, ast.parse("")) for folder, many in (("a", 26), ("b", 25)) for n in range(many)
    ]
    assert full_folders(found) == ("folders, files over 25", 1, ["   26 a", "   25 b"])


@pytest.mark.parametrize(
    ("path", "is_nameless"),
    [
        ("tests/unit/quotas/test_validation.py", False),
        ("tests/unit/quotas/test_quota_validation.py", False),
        ("tests/unit/http/test_open_transactions.py", False),
        ("tests/unit/groups/test_validation.py", True),
        ("tests/unit/quotas/test_invalid.py", True),
        ("tests/unit/test_deadlines.py", False),
    ],
)
def test_unit_test_is_named_after_a_module_of_its_package(path: str, is_nameless: bool) -> None:
    known = ["tiered.quotas.validation", "tiered_api.http.transactions.open_transaction", "tiered.deadlines"]
    assert nameless_tests([path], known).worst == ([path] if is_nameless else [])


def test_count_that_rose_is_named_and_none_is_kept_higher() -> None:
    found, kept = [Measure("a", 3, ["x", "y"]), Measure("b", 1), Measure("new", 2)], {"a": 2.0, "b": 4.0, "new": 2.0}
    assert grown(found, kept) == ["3 a, 2 before: x; y"]
    assert fallen(found, kept) == {"a": 2.0, "b": 1, "new": 2}
