"""Parses values a second time, by orjson and by code of its own: the other side of the proof of a typed table. Pure.

A load reads values by Arrow and by Python's parser (`fast.py`, `json_text.py`, `evolve.py`). Nothing of these is used
here, so a fault of theirs shows. Only the rules of a table (`changes.py`) are applied by the same code. Values are read
column by column, so that Python's work is one short step per cell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal, localcontext
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import orjson

from pyspark_tiered.typed.changes import FieldRule, apply_changes
from pyspark_tiered.typed.evolve import Unfit
from pyspark_tiered.typed.json_text import describe_prefix
from pyspark_tiered.typed.kinds import ColumnType, Field, ListOf, MapOf, Scalar, StructOf, Variant, key_part, value_part
from pyspark_tiered.typed.names import KEY, KEY_COLUMN, VALUE

if TYPE_CHECKING:
    import pyarrow

Cells = list[Any]
Rows = Callable[[], Sequence[int]]
"""Returns the row of each cell. Only a cell that does not fit asks for it."""

PYTHON_TYPES: Mapping[str, frozenset[type]] = {
    "boolean": frozenset({bool}),
    "int": frozenset({int}),
    "long": frozenset({int}),
    "double": frozenset({int, float}),
    "string": frozenset({str}),
    "date": frozenset({str}),
    "timestamp": frozenset({str}),
}
DECIMAL_TYPES = frozenset({int, float, str})
BITS = {"int": 31, "long": 63}
DAY_US = 86_400_000_000
EPOCH = date(1970, 1, 1).toordinal()
FIRST_US, END_US = (1 - EPOCH) * DAY_US, (date.max.toordinal() + 1 - EPOCH) * DAY_US
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?(?:Z|([+-])(\d\d):?(\d\d))?)?", re.ASCII
)


class ReparsedValues(NamedTuple):
    """Columns of the fields of a schema, in its order. `unfit` are the rows whose values do not fit, and why.

    A cell that does not fit is NULL, and so is each cell of a NULL value. A value without a leaf (a boolean, a number
    or text) fits every column, and is NULL in one of another form.
    """

    columns: list[pyarrow.Array]
    unfit: dict[int, str]


def reparse(
    values: Sequence[bytes | None],
    schema: StructOf,
    changes: Sequence[FieldRule] = (),
    keys: Sequence[bytes | None] | None = None,
) -> ReparsedValues:
    """Parses values by the columns and rules that a table has, and `keys` if they are typed. No column is added."""
    found = _reparse(values, value_part(schema), changes)
    if keys is None:
        return found
    key = _reparse(keys, key_part(schema), changes, is_key=True)
    return ReparsedValues([*key.columns, *found.columns], {**key.unfit, **found.unfit})


def _reparse(
    values: Sequence[bytes | None], schema: StructOf, changes: Sequence[FieldRule], is_key: bool = False
) -> ReparsedValues:
    reader = _Reader()
    around = KEY if is_key else VALUE if VALUE in schema.places else ""
    objects = _load_wrapped(values, around, reader.unfit) if around else _load_objects(values, reader.unfit)
    changed = _change_objects(objects, changes, reader.unfit) if changes else set()
    columns = reader.read_fields(objects, schema, lambda: range(len(values)))
    # A name twice in an object is once in what orjson returns. Then the text has more colons than names and strings.
    # An escaped colon would hide that, and a rule changes the colons of its value.
    plain = values if not changed else [data for row, data in enumerate(values) if row not in changed]
    text = b"".join(filter(None, plain))
    wanted = reader.colons - sum(_count_all_colons(objects[row]) for row in changed)
    wrapped = len(values) - len(changed) if around else 0
    if b"\\u003" in text or text.count(b":") + wrapped != wanted:
        changed = set(range(len(values)))
    for row in changed:
        data = values[row]
        if data is not None and row not in reader.unfit and _has_name_twice(data):
            reader.unfit[row] = "a name twice in one object"
    return ReparsedValues(columns, reader.unfit)


def _load_objects(values: Sequence[bytes | None], unfit: dict[int, str]) -> Cells:
    """Returns a dict for each value, an empty one for NULL and for what is no object."""
    try:
        texts = (
            [b"{}" if data is None else data for data in values] if None in values else cast(Sequence[bytes], values)
        )
        found = list(map(orjson.loads, texts))
        if set(map(type, found)) <= {dict}:
            return found
    except orjson.JSONDecodeError:
        pass
    found = []
    for row, data in enumerate(values):
        value: Any = {}
        try:
            value = {} if data is None else orjson.loads(data)
        except orjson.JSONDecodeError as fault:
            unfit[row] = f"not JSON: {fault}{describe_prefix(data or b'')}"
        if type(value) is not dict:
            unfit[row], value = "not an object", {}
        found.append(value)
    return found


def _load_wrapped(values: Sequence[bytes | None], name: str, unfit: dict[int, str]) -> Cells:
    """Returns a dict for each value, with the value as its only field of this name."""
    found = []
    for row, data in enumerate(values):
        value = None
        try:
            value = None if data is None else orjson.loads(data)
        except orjson.JSONDecodeError as fault:
            front = describe_prefix(data or b"")
            unfit[row] = f"{'key: ' if name == KEY else ''}not JSON: {fault}{front}"
        found.append({name: value})
    return found


def _change_objects(objects: Cells, changes: Sequence[FieldRule], unfit: dict[int, str]) -> set[int]:
    """Changes objects by the rules of the table. Returns the rows that were changed."""
    changed = set()
    for row, each in enumerate(objects):
        try:
            if apply_changes(changes, each):
                changed.add(row)
        except Unfit as fault:
            changed.add(row)
            unfit[row] = str(fault)
    return changed


def _has_name_twice(data: bytes) -> bool:
    class Twice(Exception):
        """Ends the parsing."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len({name for name, _ in pairs}) != len(pairs):
            raise Twice

    try:
        json.loads(data, object_pairs_hook=check, parse_int=len)
    except Twice:
        return True
    except (ValueError, RecursionError):
        return False  # orjson has taken it
    return False


class _Reader:
    def __init__(self) -> None:
        self.unfit: dict[int, str] = {}
        self.colons = 0
        """Colons that the texts of these values have if no name is twice in an object."""

    def read_fields(self, cells: Cells, kind: StructOf, rows: Rows) -> list[pyarrow.Array]:
        """Returns the columns of objects. A cell that is None is no object."""
        there = [cell for cell in cells if cell]
        self.colons += sum(map(len, there))
        seen: set[str] = set().union(*there)
        for name in seen:
            if ":" in name:
                self.colons += name.count(":") * sum(name in cell for cell in there)
        if unknown := seen.difference(kind.places):
            self._check_unknown(cells, unknown, rows)
        return [self._read_field(cells, field, rows) for field in kind.fields]

    def _read_field(self, cells: Cells, field: Field, rows: Rows) -> pyarrow.Array:
        name = field.json_name
        try:
            parts = list(map(itemgetter(name), cells))
        except (KeyError, TypeError):  # without this field in each object, or no object
            parts = [cell.get(name) if cell else None for cell in cells]
        return self._read(parts, field.kind, rows)

    def _read(self, cells: Cells, kind: ColumnType, rows: Rows) -> pyarrow.Array:
        import pyarrow as pa

        match kind:
            case StructOf():
                cells = self._keep_types(cells, frozenset({dict}), rows)
                parts = self.read_fields(cells, kind, rows)
                mask = pa.array([cell is None for cell in cells], pa.bool_())
                return pa.StructArray.from_arrays(parts, names=[field.column for field in kind.fields], mask=mask)
            case ListOf(element):
                return self._read_lists(self._keep_types(cells, frozenset({list}), rows), element, rows)
            case MapOf(value):
                return self._read_maps(self._keep_types(cells, frozenset({dict}), rows), value, rows)
            case Variant():
                return self._read_variants(cells, rows)
            case Scalar(name):
                wanted = PYTHON_TYPES.get(name, DECIMAL_TYPES)
                return self._read_scalars(self._keep_types(cells, wanted, rows), name, rows)
            case _:
                raise AssertionError("a column of a table has a type")

    def _read_lists(self, cells: Cells, element: ColumnType, rows: Rows) -> pyarrow.Array:
        import pyarrow as pa

        items = [item for cell in cells if cell for item in cell]
        inner = self._read(items, element, lambda: _rows_of_items(cells, rows))
        return pa.ListArray.from_arrays(
            _ends(cells), inner, mask=pa.array([cell is None for cell in cells], pa.bool_())
        )

    def _read_maps(self, cells: Cells, value: ColumnType, rows: Rows) -> pyarrow.Array:
        import pyarrow as pa

        names = [name for cell in cells if cell for name in cell]
        self.colons += len(names) + "".join(names).count(":")
        items = [item for cell in cells if cell for item in cell.values()]
        inner = self._read(items, value, lambda: _rows_of_items(cells, rows))
        mask = pa.array([cell is None for cell in cells], pa.bool_())
        return pa.MapArray.from_arrays(_ends(cells), pa.array(names, pa.string()), inner, mask=mask)

    def _read_variants(self, cells: Cells, rows: Rows) -> pyarrow.Array:
        """Returns each value in the form that `canonical_json` gives a variant of the table."""
        import pyarrow as pa

        self.colons += sum(map(_count_all_colons, cells))
        found = [None if cell is None else canonical_json(cell) for cell in cells]
        self._note(cells, found, "no variant", rows)
        return pa.array(found, pa.binary())

    def _read_scalars(self, cells: Cells, name: str, rows: Rows) -> pyarrow.Array:
        import pyarrow as pa

        if name in ("string", "date", "timestamp"):
            self.colons += "".join(filter(None, cells)).count(":")
        match name:
            case "boolean":
                return pa.array(cells, pa.bool_())
            case "int" | "long":
                if name == "long":
                    try:
                        return pa.array(cells, pa.int64())
                    except OverflowError:
                        pass
                most = (1 << BITS[name]) - 1
                cells = self._keep(cells, lambda cell: -most - 1 <= cell <= most, f"no {BITS[name] + 1} bits", rows)
                return pa.array(cells, pa.int64())
            case "double" if int not in set(map(type, cells)):
                return pa.array(cells, pa.float64())
            case "double":
                return pa.array([None if cell is None else float(cell) for cell in cells], pa.float64())
            case "date":
                days = [None if cell is None else _days(cell) for cell in cells]
                self._note(cells, days, "no date", rows)
                return pa.array(days, pa.int32()).view(pa.date32())
            case "timestamp":
                times = [None if cell is None else _microseconds(cell) for cell in cells]
                self._note(cells, times, "no timestamp", rows)
                return pa.array(times, pa.int64()).view(pa.timestamp("us", tz="UTC"))
            case "string":
                return pa.array(cells, pa.string())
            case _:
                digits, behind = map(int, name.removeprefix("decimal(").removesuffix(")").split(","))
                numbers = [None if cell is None else _decimal(cell, digits, behind) for cell in cells]
                self._note(cells, numbers, f"no {name}", rows)
                return pa.array(numbers, pa.decimal128(digits, behind))

    def _keep_types(self, cells: Cells, wanted: frozenset[type], rows: Rows) -> Cells:
        if set(map(type, cells)) <= wanted | {type(None)}:
            return cells
        return self._keep(cells, lambda cell: type(cell) in wanted, "another type", rows)

    def _keep(self, cells: Cells, fits: Callable[[Any], bool], why: str, rows: Rows) -> Cells:
        found = [cell if cell is None or fits(cell) else None for cell in cells]
        self._note(cells, found, why, rows)
        return found

    def _note(self, cells: Cells, found: Cells, why: str, rows: Rows) -> None:
        """Notes the rows of cells that became None."""
        if cells.count(None) != found.count(None):
            for row, before, after in zip(rows(), cells, found, strict=True):
                if after is None and before is not None:
                    if _is_empty(before):
                        self.colons += _count_colons(before)
                    else:
                        self.unfit.setdefault(row, f"{str(before)[:40]!a} is {why}")

    def _check_unknown(self, cells: Cells, unknown: set[str], rows: Rows) -> None:
        """Notes values with a field that has no column: only a field without a leaf has none."""
        for row, cell in zip(rows(), cells, strict=True):
            for name in unknown.intersection(cell or ()):
                if _is_empty(cell[name]):
                    self.colons += _count_colons(cell[name])
                else:
                    named = KEY_COLUMN if name == KEY else name
                    self.unfit.setdefault(row, f"{named[:40]!a} has no column")


def canonical_json(value: Any) -> bytes | None:
    """Returns the one form of a value that a variant holds, None if there is no such variant."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS) if _has_64_bits(value) else None
    except (orjson.JSONEncodeError, RecursionError):
        return None


def _has_64_bits(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_has_64_bits, value.values()))
    if isinstance(value, list):
        return all(map(_has_64_bits, value))
    return not isinstance(value, int) or -(1 << 63) <= value < 1 << 63


def _ends(cells: Cells) -> pyarrow.Array:
    """Returns the ends of lists or maps one behind the other, and a zero before them."""
    import numpy as np
    import pyarrow as pa

    ends = np.zeros(len(cells) + 1, dtype=np.int32)
    np.cumsum([len(cell) if cell else 0 for cell in cells], out=ends[1:])
    return pa.array(ends)


def _rows_of_items(cells: Cells, rows: Rows) -> list[int]:
    return [row for row, cell in zip(rows(), cells, strict=True) if cell for _ in cell]


def _is_empty(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_empty, value.values()))
    return value is None or (isinstance(value, list) and all(map(_is_empty, value)))


def _count_colons(value: Any) -> int:
    if isinstance(value, dict):
        return sum(1 + name.count(":") + _count_colons(inner) for name, inner in value.items())
    return sum(map(_count_colons, value)) if isinstance(value, list) else 0


def _count_all_colons(value: Any) -> int:
    """Returns the colons of a value in JSON."""
    match value:
        case str():
            return value.count(":")
        case dict():
            return sum(1 + name.count(":") + _count_all_colons(inner) for name, inner in value.items())
        case list():
            return sum(map(_count_all_colons, value))
        case _:
            return 0


def _decimal(cell: str | float, digits: int, behind: int) -> Decimal | None:
    """Returns a number of so many digits that text or a number of JSON is; None if it is none."""
    if isinstance(cell, str):
        before, _, after = cell.removeprefix("-").partition(".")
        is_plain = before.isdecimal() and before.isascii() and (before == "0" or before[0] != "0")
        if not is_plain or ("." in cell and not (after.isdecimal() and after.isascii())) or len(after) > behind:
            return None
        found = Decimal(cell)
    elif -(2**63) <= cell < 2**63:
        found = Decimal(repr(cell))
    else:
        return None
    with localcontext(prec=400):
        scaled = found.scaleb(behind)
        is_whole = scaled == scaled.to_integral_value()
    return found if is_whole and abs(scaled) < 10**digits else None


def _days(text: str) -> int | None:
    """Returns the days since 1970."""
    found = _microseconds(text) if len(text) == 10 else None
    return None if found is None else found // DAY_US


def _microseconds(text: str) -> int | None:
    """Returns the microseconds since 1970. Text without a zone is UTC."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, zone_hours, zone_minutes = found.groups(default="0")
    clock = int(hour), int(minute), int(second), int(zone_hours), int(zone_minutes)
    if any(number > most for number, most in zip(clock, (23, 59, 59, 23, 59), strict=True)):
        return None
    try:
        days = date(int(year), int(month), int(day)).toordinal() - EPOCH
    except ValueError:
        return None
    shift = (clock[3] * 60 + clock[4]) * (-60 if sign == "+" else 60)
    seconds = clock[0] * 3600 + clock[1] * 60 + clock[2] + shift
    us = days * DAY_US + seconds * 1_000_000 + int(fraction.ljust(6, "0"))
    return us if FIRST_US <= us < END_US else None
