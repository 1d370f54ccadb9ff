"""The rows of a topic for which an SQL condition is true, by DuckDB: the SQL of `tiered sql`, on columns as stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark_tiered.delta.table_form import table_schema
from pyspark_tiered.query.statement import check_query, walk
from pyspark_tiered.query.text import prepare, tokens
from tiered.errors import Code, Refused

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

ROWS = "topic_rows"
"""Name of the rows for DuckDB."""


class Condition:
    """A condition on rows. It may read nothing but the row: no table, no file and no setting."""

    def __init__(self, text: str) -> None:
        """Raises `Refused` for text that is no condition."""
        import duckdb

        self._connection = duckdb.connect(
            config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        )
        for setting in ("TimeZone = 'UTC'", "python_enable_replacements = false", "enable_progress_bar = false",
                        "enable_external_access = false", "lock_configuration = true"):  # fmt: skip
            self._connection.execute(f"SET {setting}")
        _check_parentheses(text)
        condition = prepare(f"SELECT ((\n{text}\n)) AS chosen FROM {ROWS}").text
        found = self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [condition]).fetchall()
        self._connection.abort()
        try:
            parsed = check_query(str(found[0][0]), [])
        except Refused as refused:
            raise _refuse(refused.why) from None
        reads = [ref.name for ref in parsed.tables]
        if reads != [ROWS] or any(node.get("class") == "SUBQUERY" for node in walk(parsed.tree)):
            raise _refuse("a condition names columns of the row only")
        placed = 'partition IS NOT NULL AND "offset" IS NOT NULL'
        self._query = prepare(f"SELECT partition, offset FROM {ROWS} WHERE {placed} AND (\n{text}\n)").text
        self._check_kind(condition)
        self.choose(table_schema().empty_table())

    def _check_kind(self, condition: str) -> None:
        """Raises `Refused` if the text is an expression of another type: DuckDB takes numbers for conditions."""
        kind = str(self._run(condition, table_schema().empty_table(), lambda: self._connection.description)[0][1])
        if kind.upper() not in ("BOOLEAN", "BOOL"):
            raise _refuse(f"a condition is true or false, and this is {kind.lower()}")

    def choose(self, rows: pyarrow.Table) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns partitions and offsets of the rows for which the condition is true. Raises `Refused`."""
        found = self._run(self._query, rows, self._connection.fetchnumpy)
        return found["partition"], found["offset"]

    def _run(self, query: str, rows: pyarrow.Table, read: Callable[[], Any]) -> Any:
        import duckdb

        self._connection.register(ROWS, rows)
        try:
            self._connection.execute(query)
            return read()
        except duckdb.Error as failure:
            raise _refuse(str(failure).strip().splitlines()[0]) from None
        finally:
            self._connection.abort()
            self._connection.unregister(ROWS)

    def close(self) -> None:
        """Ends DuckDB."""
        self._connection.close()


def _check_parentheses(text: str) -> None:
    """Raises `Refused` for text that closes a parenthesis of the query around it."""
    depth = 0
    for token in tokens(text):
        if token.kind == "other":
            depth += (token.text == "(") - (token.text == ")")
        if depth < 0:
            raise _refuse("a parenthesis is closed that was not opened")


def _refuse(why: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, f"--where: {why} (this is the SQL of DuckDB, as in `tiered sql`)")
