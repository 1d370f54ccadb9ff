"""SQL over the loaded topics of a warehouse. Each table has its topic's name."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark_tiered.failures import first_line
from pyspark_tiered.session import session, spark_url
from tiered.errors import Code, Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

Cell = Any
"""A value as Spark gives it to Python."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Columns and rows of a query."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def sql(warehouse: str, query: str, *, spark: SparkSession | None = None) -> QueryResult:
    """Runs one query. Names that are no plain SQL names need backticks. Raises `Refused` with Spark's message."""
    from pyspark.errors import PySparkException

    running = spark or session()
    for name, url in tables(running, warehouse).items():
        running.read.format("delta").load(url).createOrReplaceTempView(f"`{name}`")
    try:
        found = running.sql(query)
        return QueryResult(tuple(found.columns), tuple(tuple(row) for row in _collect_rows(found)))
    except PySparkException as failure:
        raise Refused(Code.INVALID_REQUEST, first_line(failure)) from failure


def _collect_rows(found: DataFrame) -> list[Row]:
    """Returns all rows.

    If a time is outside of Python's years 1 to 9999, columns with times become Spark's text for them.
    """
    from pyspark.sql import functions as f

    try:
        return found.collect()
    except (ValueError, OverflowError):
        kinds = [field.dataType.simpleString() for field in found.schema.fields]
        # By place: a query may name two columns alike.
        plain = found.toDF(*(f"c{i}" for i in range(len(kinds))))
        timed = ["timestamp" in kind or "date" in kind for kind in kinds]
        cells = [f.col(f"c{i}").cast("string") if times else f.col(f"c{i}") for i, times in enumerate(timed)]
        return plain.select(*cells).collect()


def tables(spark: SparkSession, warehouse: str) -> dict[str, str]:
    """Returns topic names and table URLs of a warehouse: its folders that hold a Delta log."""
    jvm: Any = spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(spark_url(warehouse))
    files = folder.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    if not files.exists(folder):
        raise Refused(Code.INVALID_REQUEST, f"there is no warehouse at {spark_url(warehouse)}")
    children = [status.getPath() for status in files.listStatus(folder) if status.isDirectory()]
    return {
        child.getName(): str(child.toString())
        for child in children
        if files.exists(jvm.org.apache.hadoop.fs.Path(child, "_delta_log"))
    }


def render(result: QueryResult, output_format: str = "text") -> str:
    """Formats the result as `text` (aligned columns), `json` (one object a line) or `csv`."""
    forms: dict[str, Callable[[QueryResult], str]] = {"text": _render_text, "json": _render_json, "csv": _render_csv}
    if output_format not in forms:
        raise Refused(Code.INVALID_REQUEST, f"unknown format {output_format!r}; there are {', '.join(forms)}")
    return forms[output_format](result)


def _render_text(result: QueryResult) -> str:
    lines = [result.columns, *([_cell_text(cell) for cell in row] for row in result.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(_line(line, widths) for line in [lines[0], rule, *lines[1:]])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _render_json(result: QueryResult) -> str:
    return "\n".join(json.dumps(dict(zip(result.columns, map(_json_value, row), strict=True))) for row in result.rows)


def _render_csv(result: QueryResult) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(result.columns)
    writer.writerows([_cell_text(cell) for cell in row] for row in result.rows)
    return out.getvalue().rstrip("\n")


def _cell_text(cell: Cell) -> str:
    value = _json_value(cell)
    return "NULL" if value is None else value if isinstance(value, str) else json.dumps(value)


def _json_value(cell: Cell) -> Cell:
    """Returns a value that JSON can hold: bytes as UTF-8, or in hexadecimal if they are none; times in ISO 8601."""
    if isinstance(cell, (bytes, bytearray)):
        try:
            return cell.decode()
        except UnicodeDecodeError:
            return cell.hex()
    if isinstance(cell, datetime):
        return cell.isoformat(sep=" ")
    if isinstance(cell, tuple) and hasattr(cell, "asDict"):
        return {name: _json_value(value) for name, value in cell.asDict().items()}
    if isinstance(cell, (list, tuple)):
        return [_json_value(value) for value in cell]
    if isinstance(cell, dict):
        return {str(key): _json_value(value) for key, value in cell.items()}
    return cell if isinstance(cell, (str, int, float, bool, type(None))) else str(cell)
