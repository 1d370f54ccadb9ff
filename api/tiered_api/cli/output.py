"""The output of commands: a table for people, one JSON value a line for programs."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from tiered_api.cli.text.visible import visible

Row = Mapping[str, Any]

WIDE = 40
"""A column up to this width fits all of its cells."""


def print_rows(rows: Sequence[Row], form: str, names: Sequence[str] = ()) -> None:
    """Prints rows with the same keys: aligned columns under a heading, or one JSON object a line. Without rows it
    prints the heading of `names`, if they are given."""
    if form == "json":
        for row in rows:
            print_json(row)
        return
    for line in format_rows(rows, names):
        print(line, flush=not rows)


def format_rows(rows: Sequence[Row], names: Sequence[str] = ()) -> list[str]:
    """Returns the lines of a table."""
    heading = [name.upper().replace("_", "-") for name in (rows[0] if rows else names)]
    if not rows:
        return ["  ".join(heading)] if heading else []
    cells = [[_cell(value) for value in row.values()] for row in rows]
    widths = [_width([len(cell) for cell in column]) for column in zip(heading, *cells, strict=True)]
    columns = zip(*(row.values() for row in rows), strict=True)
    numeric = [all(value is None or isinstance(value, int) for value in column) for column in columns]
    lines = []
    for line in (heading, *cells):
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    return lines


def print_json(value: Any) -> None:
    """Prints one JSON value on one line."""
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")


def discard_output() -> None:
    """Drops the buffered output of a closed file, so that the interpreter does not fail at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def text_or_base64(data: bytes | None) -> str | None:
    """Returns bytes as text, or with the prefix `base64:` if they are not UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(data).decode()


def format_size(count: float) -> str:
    """Returns a number of bytes in a form for people: 12.3 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines for people at once."""
    for line in lines:
        print(visible(line), flush=True)


def print_error(why: str) -> None:
    """Prints one line on the error stream."""
    print(f"tiered: {visible(why)}", file=sys.stderr)


def _width(sizes: Sequence[int]) -> int:
    """Returns the width of a column by its heading and its cells. A cell that is twice as wide as most of them only
    shifts its own row, and does not widen all rows."""
    usual = sorted(sizes[1:])[(len(sizes) - 2) // 2]
    return max(size for size in sizes if size <= max(WIDE, sizes[0], 2 * usual))


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return visible(",".join(map(str, value)))
    return "-" if value is None else visible(str(value))
