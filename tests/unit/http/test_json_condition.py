"""Tests of a condition on a JSON value: paths, comparisons, and the words for a condition that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest

from tiered_api.http.partitions.json_condition import JsonCondition, parse_condition

ORDER = {
    "status": "failed",
    "price": 10,
    "paid": True,
    "left": None,
    "a name": {"it's": 1, "b-c": 2},
    "items": [{"sku": "A", "n": 1}, {"sku": "B", "n": [5]}, 7],
    "\u00e4": 1.5,
    "1": "digit",
}


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("$", True),
        ("$.status", True),
        (".status", True),
        ("$.left", True),
        ("$.other", False),
        ("$.status.x", False),
        ("$['status']", True),
        ('$["a name"].b-c == 2', True),
        ('$["a name"]["it\'s"]', True),
        ("$['1'] == 'digit'", True),
        ("$.\u00e4==1.5", True),
        ("$.items[0].sku == 'A'", True),
        ("$.items[-1] == 7", True),
        ("$.items[3]", False),
        ("$.items[-4]", False),
        ("$.status[0]", False),
        ('$.items[*].sku == "B"', True),
        ("$.items[*].n > 1", False),
        ("$.items[*].n[*] > 1", True),
        ("$.*.b-c", True),
        ("$.*.z", False),
        ("$.price == 10.0", True),
        ("$.price != 10", False),
        ("$.price != 11", True),
        ("$.other != 11", False),
        ("$.price >= 10", True),
        ("$.price > 10", False),
        ("$.price <= 9.5", False),
        ("$.price < 1e3", True),
        ('$.price < "9"', False),
        ('$.status < "g"', True),
        ("$.paid == true", True),
        ("$.paid == 1", False),
        ("$.paid > 0", False),
        ("$.left == null", True),
        ("$.left < 1", False),
        ("$.items > 1", False),
    ],
)
def test_condition_is_met_by_what_stands_at_its_path(text: str, is_met: bool) -> None:
    assert parse_condition(text).is_met(ORDER) is is_met


@pytest.mark.parametrize("value", [1, 1.5, "x", True, None, [], {}])
def test_path_of_another_kind_of_value_does_not_fit(value: Any) -> None:
    assert not parse_condition("$.a[0].*.b").is_met(value) and not parse_condition("$[0].b").is_met(value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("status", "'status' at character 1 is no step"),
        ("", "'' at character 1 is no step"),
        ("$..status", "'..status' at character 2"),
        ("$.items[?@.n>1]", "at character 8"),
        ("$.items[1:2]", "at character 8"),
        ("$.1", "at character 2"),
        ("$.a = 1", "' = 1' at character 4"),
        ("$.a == failed", "'failed' is no JSON value: a text stands in double quotes"),
        ("$.a == ", "is no JSON value"),
        ("$.a == [1]", "compared with a number, a text, true, false or null"),
        ("$.a == 'x' or 1", "is no JSON value"),
        ("$" + "[0]" * 33, "33 steps, 32 are the most"),
        ('$["\\x"]', "is no JSON value"),
    ],
)
def test_text_that_is_no_condition_is_refused_with_its_place(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        parse_condition(text)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("$.a == 'Failed'", (b"Failed", b"\\")),
        ("$.a[0].b[*] > 1", (b"b", b"\\")),
        ("$.a != 'x'", (b"a", b"\\")),
        ("$[0]", ()),
        ("$ == ''", ()),
    ],
)
def test_condition_names_texts_that_a_value_has(text: str, texts: tuple[bytes, ...]) -> None:
    assert parse_condition(text).texts() == texts


def test_longest_condition_of_many_places_visits_each_once() -> None:
    visited = []

    class Counted(dict[str, Any]):
        def values(self) -> Any:
            visited.append(1)
            return super().values()

    value: Any = 1
    for _ in range(6):
        value = Counted({str(n): value for n in range(3)})
    assert parse_condition("$.*.*.*.*.*.* == 2").is_met(value) is False
    assert len(visited) == 1 + 3 + 9 + 27 + 81 + 243
    assert isinstance(parse_condition("$.a"), JsonCondition)
