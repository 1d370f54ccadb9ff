"""`%load_ext pyspark_tiered` in IPython or Jupyter, then a cell that begins with `%%tiered`.

    %%tiered --warehouse s3://bucket/tables
    SELECT value.city, count(*) FROM flights GROUP BY ALL

The warehouse is remembered for the next cells. The result is also the variable `_`.
"""

from __future__ import annotations

import atexit
import html
import shlex
from collections.abc import Sequence
from typing import Any

from pyspark_tiered.query.engine import SqlSession
from pyspark_tiered.query.output import QueryResult, render, render_cells, take_rows
from tiered.errors import Code, Corrupt, Refused, Unavailable

ROWS_MAX = 10_000
"""Rows of a cell's result. Memory of a notebook is not for whole tables."""
BYTES_MAX = 128 << 20
SHOWN_MAX = 100
WAREHOUSE = "./tiered-warehouse"


class NotebookResult:
    """Columns and rows of a cell. `is_whole` is false if the query had more of them."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], is_whole: bool) -> None:
        self.columns = list(columns)
        self.rows = [tuple(row) for row in rows]
        self.is_whole = is_whole

    def to_pandas(self) -> Any:
        """Returns the rows as a DataFrame of pandas."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=self.columns)

    def __repr__(self) -> str:
        text = render(QueryResult(tuple(self.columns), tuple(self.rows[:SHOWN_MAX])))
        return f"{text}\n{self._describe()}"

    def _repr_html_(self) -> str:
        heading = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in render_cells(row))}</tr>"
            for row in self.rows[:SHOWN_MAX]
        )
        return f"<table><tr>{heading}</tr>{body}</table><p>{html.escape(self._describe())}</p>"

    def _describe(self) -> str:
        shown = f", the first {SHOWN_MAX} are shown" if len(self.rows) > SHOWN_MAX else ""
        return f"{len(self.rows):,} rows{'' if self.is_whole else ' and more'}{shown}"


class TieredMagic:
    """The magic: it keeps one session, for the warehouse that was named last."""

    def __init__(self) -> None:
        self._session: SqlSession | None = None
        self._warehouse = ""

    def run(self, line: str, cell: str | None = None) -> NotebookResult:
        """Runs a query: the cell, or the rest of the line. Raises `Refused` in words."""
        warehouse, query = _parse_line(line)
        query = f"{query}\n{cell or ''}"
        session = self._open(warehouse or self._warehouse or WAREHOUSE)
        running = session.run(query)
        rows = take_rows(running.rows, ROWS_MAX, BYTES_MAX)
        return NotebookResult(running.columns, rows, next(running.rows, None) is None)

    def close(self) -> None:
        """Ends the session."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _open(self, warehouse: str) -> SqlSession:
        if self._session is None or warehouse != self._warehouse:
            self.close()
            self._session, self._warehouse = SqlSession(warehouse), warehouse
        return self._session


def _parse_line(line: str) -> tuple[str, str]:
    """Returns the warehouse that a line names, and the rest of the line."""
    text = line.strip()
    if not text.startswith("--warehouse"):
        return "", text
    try:
        words = shlex.split(text)
    except ValueError as fault:
        raise Refused(Code.INVALID_REQUEST, f"the line of %%tiered cannot be parsed: {fault}") from None
    if words[0].startswith("--warehouse="):
        return words[0].removeprefix("--warehouse="), " ".join(words[1:])
    if len(words) < 2:
        raise Refused(Code.INVALID_REQUEST, "--warehouse needs a folder or an s3:// URL")
    return words[1], " ".join(words[2:])


def load_ipython_extension(shell: Any) -> None:
    """Registers the magic in a shell of IPython."""
    magic = TieredMagic()
    atexit.register(magic.close)

    def tiered(line: str, cell: str | None = None) -> NotebookResult | None:
        try:
            return magic.run(line, cell)
        except (Refused, Unavailable, Corrupt) as failure:
            print(f"tiered: {failure}")
            return None

    shell.register_magic_function(tiered, magic_kind="line_cell", magic_name="tiered")
