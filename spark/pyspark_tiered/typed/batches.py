"""Sorts the values of a batch into rows and dead letters, and lets the schema grow. Pure.

Most batches fit as a whole and cost one call of Arrow. If Arrow names the first value that does not fit, only this
value is parsed by itself. Otherwise the head of the batch is parsed value by value, which teaches new names, and what
still does not fit is halved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.typed.evolve import Unfit, Value, convert, evolve
from pyspark_tiered.typed.fast import column_type, parse_all, shape
from pyspark_tiered.typed.json_text import parse
from pyspark_tiered.typed.kinds import StructOf, select_columns

if TYPE_CHECKING:
    import pyarrow

SINGLY_MAX = 128
"""Values of a part that is parsed one by one and no longer halved."""
CLOSE, CLOSE_MAX = 16, 3
"""Values between two that do not fit, and how often they may be so few before a part is parsed one by one."""
PART_BYTES = 16 << 20
"""Bytes of values that are parsed at once."""


class SortedValues(NamedTuple):
    """The values of a batch. `rows` is a struct column of those that fit, of the type `select_columns(schema)`.

    `dead` are the places and reasons of the others, in order.
    """

    rows: pyarrow.StructArray
    dead: tuple[tuple[int, str], ...]
    schema: StructOf


def sort_values(values: pyarrow.Array, schema: StructOf) -> SortedValues:
    """Sorts values (binary) by a schema. The returned schema takes all values that are rows."""
    import pyarrow as pa

    sorter = _Sorter(values, schema)
    for start, end in _cut(values):
        sorter.sort(start, end)
    target = select_columns(sorter.schema)
    parts = [shape(array, kind, target) for array, kind in sorter.parts]
    rows = pa.concat_arrays(parts) if parts else pa.array([], column_type(target))
    return SortedValues(rows, tuple(sorted(sorter.dead)), sorter.schema)


def _cut(values: pyarrow.Array) -> list[tuple[int, int]]:
    """Returns the runs of values that are parsed at once."""
    import pyarrow.compute as pc

    if values.nbytes <= PART_BYTES or len(values) <= 1:
        return [(0, len(values))] if len(values) else []
    runs, start, size = [], 0, 0
    for at, length in enumerate(pc.fill_null(pc.binary_length(values), 0).to_pylist()):
        if size and size + length > PART_BYTES:
            runs.append((start, at))
            start, size = at, 0
        size += length
    return [*runs, (start, len(values))]


class _Sorter:
    def __init__(self, values: pyarrow.Array, schema: StructOf) -> None:
        self.schema = schema
        self.parts: list[tuple[pyarrow.Array, StructOf]] = []
        self.dead: list[tuple[int, str]] = []
        self._values = values

    def sort(self, start: int, end: int) -> None:
        """Sorts the values `[start, end)`."""
        window, has_learned, close = end - start, False, 0
        while start < end:
            stop = min(start + window, end)
            schema = self.schema
            found, bad = parse_all(self._values.slice(start, stop - start), schema)
            if found is not None:
                self.parts.append((found, schema))
                start, window = stop, 2 * window
            elif bad is not None and bad < stop - start and close < CLOSE_MAX:
                close = close + 1 if bad < CLOSE else 0
                self.sort(start, start + bad)
                self._sort_singly(start + bad, start + bad + 1)
                start, window = start + bad + 1, max(2 * bad, SINGLY_MAX)
            elif close == CLOSE_MAX:
                stop, close = min(start + SINGLY_MAX, end), 0
                self._sort_singly(start, stop)
                start = stop
            elif stop - start <= SINGLY_MAX:
                self._sort_singly(start, stop)
                start, window = stop, 2 * window
            elif not has_learned:
                self._sort_singly(start, start + SINGLY_MAX)
                start, has_learned = start + SINGLY_MAX, True
            else:
                window = (stop - start) // 2

    def _sort_singly(self, start: int, end: int) -> None:
        import pyarrow as pa

        kept: list[Value] = []
        for at, data in enumerate(self._values.slice(start, end - start).to_pylist(), start):
            try:
                value = {} if data is None else parse(data)
                self.schema = evolve(self.schema, value)
            except Unfit as why:
                self.dead.append((at, str(why)))
            else:
                kept.append(value)
        if kept:
            columns = select_columns(self.schema)
            self.parts.append((pa.array([convert(columns, value) for value in kept], column_type(columns)), columns))


def sort_singly(values: Sequence[bytes | None], schema: StructOf) -> list[Value | Unfit]:
    """Returns, for each value, its columns as Python values, or why it does not fit. The schema does not grow."""
    found: list[Value | Unfit] = []
    for data in values:
        try:
            value = {} if data is None else parse(data)
            if evolve(schema, value) is not schema:
                raise Unfit("the schema does not take it")
        except Unfit as why:
            found.append(why)
        else:
            found.append(convert(schema, value))
    return found
