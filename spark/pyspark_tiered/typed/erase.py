"""Takes erased rows out of the typed table and out of the dead letters.

The record of the erasure is there first (`erasures.py`). Each table gets one commit that replaces the files with erased
rows and counts the erasures in a property, even if no row is erased. So loads and replays that were planned before the
record fail, and their next plan reads it. A kill leaves rows that are recorded and not yet removed: the same command,
any other erasure and a repair remove them, and `verify` lists them until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from urllib.parse import urlsplit

from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.proof.comparison import may_hold_any
from pyspark_tiered.proof.erasures import Erasure, join_ranges
from pyspark_tiered.proof.rewrite import RowChooser, replace_files
from pyspark_tiered.typed import form
from pyspark_tiered.typed.tables import DeadLetters, RecordTable, TypedTable
from tiered.errors import Unavailable

ATTEMPTS = 10
"""Commits of other writers in a row that may come first."""


def read_value_bounds(url: str, topic: str, topic_id: str) -> dict[int, int]:
    """Returns up to which offset both tables beside the raw one at `url` are loaded; empty without a typed table.

    Raises `Refused` if no row of one of them may be removed.
    """
    bounds: dict[int, int] = {}
    for table in _open_tables(url, topic, topic_id):
        with closing(table):
            if table.is_there():
                table.check_removal()
                for number, end in table.loaded_offsets().items():
                    bounds[number] = max(end, bounds.get(number, end))
    return bounds


def remove_erased_values(url: str, topic: str, topic_id: str, erasures: Sequence[Erasure]) -> int:
    """Takes erased rows out of both tables beside the raw one at `url`. Returns how many.

    Raises `Unavailable` if other writers always come first.
    """
    erased = join_ranges(erasures)
    removed = 0
    for table in _open_tables(url, topic, topic_id) if erased else ():
        with closing(table):
            if table.is_there():
                removed += _remove(table, erased, len(erasures))
    return removed


def _open_tables(url: str, topic: str, topic_id: str) -> list[RecordTable]:
    if urlsplit(url).scheme not in form.TABLE_SCHEMES:
        return []
    return [
        DeadLetters(f"{url}{form.DEAD_SUFFIX}", topic, topic_id),
        TypedTable(f"{url}{form.TYPED_SUFFIX}", topic, topic_id),
    ]


def _remove(table: RecordTable, erased: Mapping[int, Sequence[Range]], count: int) -> int:
    for _ in range(ATTEMPTS):
        found = replace_files(table, table.snapshot().files(), RowChooser(erased))
        if not found and table.heeded_erasures() >= count:
            return 0
        if table.take_out(found, count, lambda add: may_hold_any(add, erased)):
            return sum(each.rows for each in found)
    raise Unavailable(
        f"{ATTEMPTS} other commits to {table.url} came first: the erasure is recorded, run the same command again"
    )
