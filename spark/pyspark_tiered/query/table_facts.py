"""The facts of a table in a warehouse: its size, its offsets, its times, its dead letters and its last verify."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.warehouse import Warehouse
from pyspark_tiered.proof.last_verify import LastVerify, read_last_verify
from pyspark_tiered.query.table_report import TableSummary, count_rows, summarize
from pyspark_tiered.typed.form import DEAD_OF, DEAD_SUFFIX
from tiered.errors import Corrupt, Refused


class TableFacts(NamedTuple):
    """The summary of a table's newest version, and what is beside its log."""

    summary: TableSummary
    verified: LastVerify | None


def read_facts(warehouse: Warehouse, name: str) -> TableFacts:
    """Reads a table. Raises `Refused` if there is none or its log is not for this package, and `Corrupt`."""
    summary = summarize(name, warehouse.read(name))
    return TableFacts(summary, read_last_verify(warehouse.log(name).folder))


def letters_name(summary: TableSummary) -> str:
    """Returns the name of the table with the dead letters of a topic."""
    return f"{summary.topic}{DEAD_SUFFIX}"


def find_letters(warehouse: Warehouse, summary: TableSummary) -> TableState | None:
    """Returns the dead letters of a table's topic; None if it has none, or their table cannot be read.

    A table of that name may be another topic's: its properties say whose letters it has.
    """
    if summary.kind not in ("raw", "typed"):
        return None
    try:
        letters = warehouse.find(letters_name(summary))
    except (Refused, Corrupt):
        return None  # the list has a row for it, with the reason
    if letters is None or letters.properties().get(DEAD_OF) != summary.topic:
        return None
    return letters if letters.held_topic()[0] == summary.topic_id else None


def count_letters(warehouse: Warehouse, summary: TableSummary) -> int | None:
    """Returns the number of dead letters of a table's topic; None if it has none, or nobody knows."""
    letters = find_letters(warehouse, summary)
    return None if letters is None else count_rows(letters)
