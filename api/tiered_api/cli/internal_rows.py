"""Rows of internal topics, folded into a line for each topic: every table of partitions has fifty rows of
`__consumer_offsets`, which few users need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tiered_api.cli.output import Row, print_lines, print_rows

T = TypeVar("T")

PREFIX = "__"
"""Prefix of the names of Kafka's internal topics."""


def is_internal(name: str) -> bool:
    """True for a topic of the brokers' own, and for a partition of one by its name."""
    return name.startswith(PREFIX)


def fold_rows(rows: Iterable[T], fold_key: Callable[[T], str]) -> tuple[list[T], list[str]]:
    """Splits rows by their fold key. Returns the rows without a key, and a sentence for each key with the number of its
    rows."""
    counts = Counter[str]()
    kept: list[T] = []
    for row in rows:
        into = fold_key(row)
        if into:
            counts[into] += 1
        else:
            kept.append(row)
    return kept, [f"{count} of {into}" for into, count in counts.items()]


def print_folded(rows: Sequence[Row], form: str, fold_key: Callable[[Row], str], *, internal: bool) -> None:
    """Prints rows as `print_rows` does; in text, without `internal`, some are folded."""
    if form != "text" or internal:
        print_rows(rows, form)
        return
    kept, lines = fold_rows(rows, fold_key)
    print_rows(kept, form)
    print_lines(f"{line} (-i shows them)" for line in lines)
