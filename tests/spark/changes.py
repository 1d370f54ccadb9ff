"""Random rows, and random changes of single rows that a comparison of tables must find."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

from tests.spark import filling
from tiered.records.model import ProducerRecord

Row = dict[str, Any]
Bytes = bytes | bytearray | None


def drawn_bytes(drawn: Random) -> bytes | None:
    """NULL, empty, short and of some length; few letters, so that parts look alike."""
    return drawn.choice([None, b"", b"a", b"ab", b"abc", b"null", bytes(drawn.randbytes(drawn.randrange(40)))])


def drawn_row(drawn: Random, i: int) -> ProducerRecord:
    headers = tuple(
        (drawn.choice(["", "a", "ab", "h"]), drawn_bytes(drawn)) for _ in range(drawn.choice([0, 0, 1, 2, 3]))
    )
    return filling.BASE_MS + i, drawn_bytes(drawn), drawn_bytes(drawn), headers


def flip_bit(held: Bytes, drawn: Random) -> Bytes:
    """Flips one bit of a value; NULL and empty stay."""
    if not held:
        return held
    out = bytearray(held)
    out[drawn.randrange(len(out))] ^= 1 << drawn.randrange(8)
    return bytes(out)


def null_or_empty(held: Bytes) -> Bytes:
    return b"" if held is None else held or None


def some_header(row: Row, drawn: Random, change: Callable[[Row], list[Row]]) -> None:
    """Applies `change` to one header."""
    if headers := row["headers"]:
        at = drawn.randrange(len(headers))
        row["headers"] = [*headers[:at], *change(dict(headers[at])), *headers[at + 1 :]]


def split(header: Row) -> list[Row]:
    value = header["value"]
    if not value:
        return [header, {"key": header["key"], "value": None}]
    return [{"key": header["key"], "value": value[:1]}, {"key": "", "value": value[1:]}]


def swap_name_and_value(header: Row) -> list[Row]:
    """Swaps name and value of a header, if the value can be a name."""
    value = header["value"]
    name = value.decode("latin-1") if value is not None and max(value, default=0) < 128 else header["key"]
    return [{"key": name, "value": header["key"].encode()}]


CHANGES: dict[str, Callable[[Row, Random], Any]] = {
    "key null or empty": lambda row, _: row.update(key=null_or_empty(row["key"])),
    "value null or empty": lambda row, _: row.update(value=null_or_empty(row["value"])),
    "key and value swapped": lambda row, _: row.update(key=row["value"], value=row["key"]),
    "value moved to the key": lambda row, _: row.update(key=row["key"] or row["value"], value=None),
    "a byte moved from key to value": lambda row, _: row.update(
        key=(row["key"] or b"")[:-1], value=(row["key"] or b"")[-1:] + (row["value"] or b"")
    ),
    "a bit of the key": lambda row, drawn: row.update(key=flip_bit(row["key"], drawn)),
    "a bit of the value": lambda row, drawn: row.update(value=flip_bit(row["value"], drawn)),
    "a millisecond": lambda row, _: row.update(timestamp=row["timestamp"] + timedelta(milliseconds=1)),
    "no timestamp": lambda row, _: row.update(timestamp=None),
    "timestamp type": lambda row, _: row.update(timestamp_type=1 - row["timestamp_type"]),
    "no timestamp type": lambda row, _: row.update(timestamp_type=None),
    "no headers as an empty array": lambda row, _: row.update(headers=row["headers"] or []),
    "headers gone": lambda row, _: row.update(headers=None),
    "a header twice": lambda row, drawn: some_header(row, drawn, lambda header: [header, header]),
    "a header split": lambda row, drawn: some_header(row, drawn, split),
    "name and value of a header swapped": lambda row, drawn: some_header(row, drawn, swap_name_and_value),
    "header value null or empty": lambda row, drawn: some_header(
        row, drawn, lambda header: [header | {"value": null_or_empty(header["value"])}]
    ),
    "header name null": lambda row, drawn: some_header(row, drawn, lambda header: [header | {"key": None}]),
    "header null": lambda row, drawn: some_header(row, drawn, lambda _: [None]),  # type: ignore[list-item]
    "the value into a header": lambda row, _: row.update(
        headers=[*(row["headers"] or []), {"key": "", "value": row["value"]}], value=None
    ),
}


def change_row(row: Row, drawn: Random) -> tuple[str, Row]:
    """Draws a change that this row can have, and the row after it."""
    while True:
        name = drawn.choice(list(CHANGES))
        after = dict(row)
        CHANGES[name](after, drawn)
        if after != row:
            return name, after
