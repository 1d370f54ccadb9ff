"""Tests of the condition of an erasure: it chooses rows by their own columns, and reaches nothing else."""

from __future__ import annotations

from contextlib import closing

import pyarrow as pa
import pytest

from pyspark_tiered.delta.table_form import table_schema
from pyspark_tiered.proof.condition import Condition
from tiered.errors import Refused

ROWS = [
    {"partition": partition, "offset": offset, "timestamp": offset, "key": b"k", "value": b"value %d" % offset}
    for partition in (0, 1)
    for offset in range(4)
]


def chosen(text: str) -> list[tuple[int, int]]:
    nowhere = [{"partition": None, "offset": 1, "value": b"value 1"}, {"partition": 0, "offset": None}]
    rows = pa.Table.from_pylist([*ROWS, *nowhere], table_schema())
    with closing(Condition(text)) as condition:
        partitions, offsets = condition.choose(rows)
    return list(zip(partitions.tolist(), offsets.tolist(), strict=True))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("partition = 1 AND offset < 2", [(1, 0), (1, 1)]),
        ("value = CAST('value 3' AS binary) -- asked for", [(0, 3), (1, 3)]),
        ("decode(value) IN ('value 0') OR `offset` BETWEEN 3 AND 4", [(0, 0), (0, 3), (1, 0), (1, 3)]),
        ("timestamp < '1970-01-01 00:00:00.000001' and (partition = 0)", [(0, 0)]),
        ("offset = 17 or true = false", []),
    ],
)
def test_condition_chooses_the_rows_for_which_it_is_true(text: str, found: list[tuple[int, int]]) -> None:
    assert chosen(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "nothing = 1",
        "offset =",
        "offset",
        "NULL",
        "",
        "offset = 1; DROP TABLE topic_rows",
        "offset = 1) UNION (SELECT partition, offset FROM topic_rows",
        "offset = 1)) OR ((true",
        "offset = 1) OR (true",
        "offset = (SELECT max(offset) FROM topic_rows)",
        "offset IN (SELECT 1)",
        "EXISTS (FROM read_text('/etc/hostname'))",
        "getenv('HOME') = 'x'",
        "max(offset) = 1",
    ],
)
def test_text_that_is_no_condition_on_the_row_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="--where: "):
        Condition(text)
