"""Sorts the values of a batch into rows and dead letters, and lets the schema grow. Pure.

Most batches fit as a whole and cost one call of Arrow. Arrow's parser has no maps and no variants: a schema with one is
for the strict parser alone. If Arrow names the first value that does not fit behind a long
run, only this value is parsed by itself. Otherwise the strict parser chooses the values of a part that fit, and Arrow
gets these. Parts are sorted so, one after the other, until one has few values that do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.typed.changes import FieldRule, add_dropped_fields, apply_changes
from pyspark_tiered.typed.evolve import Path, Unfit, Value, convert, evolve
from pyspark_tiered.typed.fast import KEYS, ParsedValues, column_type, parse_all, shape
from pyspark_tiered.typed.json_text import parse
from pyspark_tiered.typed.kinds import StructOf, is_beyond_arrow, key_part, select_columns, value_part
from pyspark_tiered.typed.names import KEY, VALUE

if TYPE_CHECKING:
    import pyarrow

RUN_MIN = 512
"""Values before the first one that does not fit, if they are to be parsed by Arrow alone."""
STRICT_MAX = 2048
"""Values that the strict parser gets before Arrow tries all that is left."""
UNFIT_SHARE = 256
"""The next part is strictly parsed too if more than one of so many values did not fit."""
PART_BYTES = 16 << 20
"""Bytes of values that are parsed at once."""


class SortedValues(NamedTuple):
    """The values of a batch. `rows` is a struct column of those that fit, of the type `select_columns(schema)`.

    `dead` are the places and reasons of the others, in order. `mistyped` is a field of one of them that has another
    type than its column; empty if there is none. `mistyped_at` is its place.
    """

    rows: pyarrow.StructArray
    dead: tuple[tuple[int, str], ...]
    schema: StructOf
    mistyped: Path = ()
    mistyped_at: int = -1


def sort_values(
    values: pyarrow.Array, schema: StructOf, changes: Sequence[FieldRule] = (), keys: pyarrow.Array | None = None
) -> SortedValues:
    """Sorts values (binary) by a schema and the rules of its table. The returned schema takes all that are rows.

    If the schema has the key, `keys` are those of the values, and a row needs both to fit.
    """
    import pyarrow as pa

    has_key = KEY in schema.places
    sorter = _Sorter(values, schema, changes, keys if has_key else None)
    for start, end in _cut([values, keys] if has_key else [values]):
        sorter.sort(start, end)
    target = select_columns(sorter.schema)
    parts = [shape(array, kind, target) for array, kind in sorter.parts]
    rows = pa.concat_arrays(parts) if parts else pa.array([], column_type(target))
    return SortedValues(rows, tuple(sorted(sorter.dead)), sorter.schema, sorter.mistyped, sorter.mistyped_at)


def _cut(columns: Sequence[pyarrow.Array]) -> list[tuple[int, int]]:
    """Returns the runs of values that are parsed at once."""
    import pyarrow.compute as pc

    values = columns[0]
    if sum(each.nbytes for each in columns) <= PART_BYTES or len(values) <= 1:
        return [(0, len(values))] if len(values) else []
    runs, start, size = [], 0, 0
    lengths = sum(pc.fill_null(pc.binary_length(each), 0).to_numpy() for each in columns)
    for at, length in enumerate(lengths.tolist()):
        if size and size + length > PART_BYTES:
            runs.append((start, at))
            start, size = at, 0
        size += length
    return [*runs, (start, len(values))]


class _Sorter:
    def __init__(
        self, values: pyarrow.Array, schema: StructOf, changes: Sequence[FieldRule], keys: pyarrow.Array | None
    ) -> None:
        self.schema = schema
        self.parts: list[tuple[pyarrow.Array, StructOf]] = []
        self.dead: list[tuple[int, str]] = []
        self.mistyped: Path = ()
        self.mistyped_at = -1
        self._values = values
        self._changes = changes
        self._keys = keys
        self._is_strict = is_beyond_arrow(add_dropped_fields(schema, changes))

    def sort(self, start: int, end: int) -> None:
        """Sorts the values `[start, end)`."""
        window = end - start
        while self._is_strict and start < end:
            stop = min(start + STRICT_MAX, end)
            self._sort_strictly(start, stop)
            start = stop
        while start < end:
            stop = min(start + window, end)
            reading = add_dropped_fields(self.schema, self._changes)
            found, bad = _parse(self._values, self._keys, start, stop, reading)
            if found is not None:
                self.parts.append((found, reading))
                start, window = stop, 2 * window
            elif bad is not None and RUN_MIN <= bad < stop - start:
                self.sort(start, start + bad)
                self._sort_strictly(start + bad, start + bad + 1)
                start, window = start + bad + 1, 4 * bad
            else:
                many = True
                while many and start < end:
                    stop = min(start + STRICT_MAX, end)
                    many = self._sort_strictly(start, stop) * UNFIT_SHARE > stop - start
                    start = stop

    def _sort_strictly(self, start: int, end: int) -> int:
        """Sorts values by the strict parser. Returns how many do not fit."""
        import numpy as np
        import pyarrow as pa

        part = self._values.slice(start, end - start)
        keys = None if self._keys is None else self._keys.slice(start, end - start)
        kept: list[Value] = []
        dead: list[tuple[int, str]] = []
        both = zip(part.to_pylist(), [None] * len(part) if keys is None else keys.to_pylist(), strict=True)
        for at, (data, key) in enumerate(both, start):
            try:
                value = _parse_value(data, VALUE in self.schema.places)
                if keys is None:
                    apply_changes(self._changes, value)
                else:
                    value = _join_key(key, value, self._changes)
                self.schema = evolve(self.schema, value)
            except Unfit as why:
                dead.append((at, str(why)))
                if why.field and not self.mistyped:
                    self.mistyped, self.mistyped_at = why.field, at
            else:
                kept.append(value)
        self.dead += dead
        if not kept:
            return len(dead)
        if self._is_strict:
            self._convert(kept)
            return len(dead)
        if dead:
            fits = np.ones(end - start, dtype=bool)
            fits[[at - start for at, _ in dead]] = False
            part = part.filter(pa.array(fits))
            keys = None if keys is None else keys.filter(pa.array(fits))
        reading = add_dropped_fields(self.schema, self._changes)
        found = _parse(part, keys, 0, len(part), reading).rows
        if found is not None:
            self.parts.append((found, reading))
        else:
            self._convert(kept)
        return len(dead)

    def _convert(self, kept: Sequence[Value]) -> None:
        import pyarrow as pa

        columns = select_columns(self.schema)
        self.parts.append((pa.array([convert(columns, value) for value in kept], column_type(columns)), columns))


def _parse(values: pyarrow.Array, keys: pyarrow.Array | None, start: int, end: int, schema: StructOf) -> ParsedValues:
    """Parses the values `[start, end)` and their keys by Arrow."""
    import pyarrow as pa

    found = parse_all(values.slice(start, end - start), value_part(schema))
    if keys is None or found.rows is None:
        return found
    key = parse_all(keys.slice(start, end - start), key_part(schema), KEYS)
    if key.rows is None:
        return key
    types = {each.name: each for each in (*key.rows.type, *found.rows.type)}
    columns = [(key.rows if name == KEY else found.rows).field(name) for name in schema.places]
    return ParsedValues(pa.StructArray.from_arrays(columns, fields=[types[name] for name in schema.places]))


def _parse_value(data: bytes | None, is_whole: bool) -> Value:
    """Returns a value. If it `is_whole`, it is the only field of an object."""
    if is_whole:
        return {VALUE: None if data is None else parse(data)}
    return {} if data is None else parse(data)


def _join_key(key: bytes | None, value: Value, changes: Sequence[FieldRule]) -> Value:
    """Returns a value with its key as one more field, both changed by the rules. Raises `Unfit`."""
    if type(value) is dict and KEY in value:
        raise Unfit(f"the name {KEY!a} stands for the key")
    apply_changes(changes, value)
    if type(value) is not dict:
        return value
    try:
        parsed = {KEY: None if key is None else parse(key)}
    except Unfit as why:
        raise Unfit(f"key: {why}") from None
    apply_changes(changes, parsed)
    if KEY in value:
        raise Unfit(f"the name {KEY!a} stands for the key")
    return {**parsed, **value}
