"""The rows of a query as aligned text, JSON lines or CSV, line by line: memory does not grow with their number."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import chain
from typing import Any, TypeVar

from tiered.errors import Code, Refused

Cell = Any
"""A value as an engine gives it to Python."""

FIT_ROWS = 1000
"""Rows of text that decide how wide the columns are."""
FIT_BYTES = 8 << 20
"""Bytes of these rows: with larger ones, fewer decide."""
WIDE = 60
"""A column is never wider, except for its name: a longer cell shifts its own row only."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Columns and rows of a query."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def row_bytes(row: Cell) -> int:
    """Returns about the bytes of the texts in a row, or in a cell or rows: nested ones too."""
    if isinstance(row, (str, bytes, bytearray)):
        return len(row)
    if isinstance(row, dict):
        return sum(row_bytes(key) + row_bytes(value) for key, value in row.items())
    return sum(map(row_bytes, row)) if isinstance(row, (list, tuple)) else 8


Row = TypeVar("Row", bound=Sequence[Cell])


def take_rows(rows: Iterator[Row], most: int, most_bytes: int) -> list[Row]:
    """Returns the next rows: `most` at most, and none after so many bytes."""
    found: list[Row] = []
    held = 0
    while len(found) < most and held < most_bytes and (row := next(rows, None)) is not None:
        found.append(row)
        held += row_bytes(row)
    return found


def render(result: QueryResult, output_format: str = "text") -> str:
    """Formats a whole result."""
    return "\n".join(render_lines(result.columns, result.rows, output_format))


def render_lines(columns: Sequence[str], rows: Iterable[Sequence[Cell]], output_format: str = "text") -> Iterator[str]:
    """Yields the lines of a result: `text` (aligned columns), `json` (one object a line) or `csv`."""
    forms: dict[str, Callable[[Sequence[str], Iterable[Sequence[Cell]]], Iterator[str]]] = {
        "text": _render_text,
        "json": _render_json,
        "csv": _render_csv,
    }
    if output_format not in forms:
        raise Refused(Code.INVALID_REQUEST, f"unknown format {output_format!r}; there are {', '.join(forms)}")
    return forms[output_format](columns, rows)


def _render_text(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    lines = (render_cells(row) for row in rows)
    first = take_rows(lines, FIT_ROWS, FIT_BYTES)
    heading = [_visible(name) for name in columns]
    widths = [
        max(len(column[0]), *(min(len(cell), WIDE) for cell in column)) for column in zip(heading, *first, strict=True)
    ]
    yield _line(heading, widths)
    yield _line(["-" * width for width in widths], widths)
    for line in chain(first, lines):
        yield _line(line, widths)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _render_json(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    names = _unique(columns)
    for row in rows:
        yield json.dumps(dict(zip(names, map(_json_value, row), strict=True)))


def _unique(names: Sequence[str]) -> list[str]:
    """Returns the names, with a number behind one that was there before: an object has each name once."""
    found: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def _render_csv(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    for row in chain([columns], ([_cell_text(cell) for cell in row] for row in rows)):
        out = io.StringIO()
        csv.writer(out, lineterminator="").writerow(row)
        yield out.getvalue()


def render_cells(row: Sequence[Cell]) -> list[str]:
    """Returns the text of each cell of a row."""
    return [_visible(_cell_text(cell)) for cell in row]


def _cell_text(cell: Cell) -> str:
    value = str(cell) if isinstance(cell, Decimal) else _json_value(cell)
    return "NULL" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _visible(text: str) -> str:
    """Returns text with each unprintable character escaped: a value must not move the cursor of a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _json_value(cell: Cell) -> Cell:
    """Returns a value that JSON can hold: bytes as UTF-8, or in hexadecimal if they are none; times in ISO 8601."""
    if isinstance(cell, (bytes, bytearray)):
        try:
            return cell.decode()
        except UnicodeDecodeError:
            return cell.hex()
    if isinstance(cell, datetime):
        return cell.replace(tzinfo=None).isoformat(sep=" ")
    if isinstance(cell, float) and not math.isfinite(cell):
        return str(cell)
    if isinstance(cell, Decimal):
        return _exact_number(cell)
    if isinstance(cell, tuple) and hasattr(cell, "asDict"):
        return {name: _json_value(value) for name, value in cell.asDict().items()}
    if isinstance(cell, (list, tuple)):
        return [_json_value(value) for value in cell]
    if isinstance(cell, dict):
        return {str(key): _json_value(value) for key, value in cell.items()}
    return cell if isinstance(cell, (str, int, float, bool, type(None))) else str(cell)


def _exact_number(number: Decimal) -> int | float | str:
    """Returns a number of JSON with the same value; text if there is none."""
    if number == number.to_integral_value():
        return int(number)
    near = float(number)
    return near if Decimal(repr(near)) == number else str(number)
