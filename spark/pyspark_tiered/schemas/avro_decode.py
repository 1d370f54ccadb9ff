"""Thousands of values of one schema of Avro to Arrow columns, field by field of all at once. Pure.

A value whose arrays are long, or that has a decimal of many bytes, is slow here. It is read by itself
(`avro_value.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_tiered.schemas.avro_plan import TIMES, AvroPlan, Entries, Items, Leaf, Node, Record, Text, Union
from pyspark_tiered.schemas.avro_value import BadValue, read_cell, read_text
from pyspark_tiered.schemas.cursors import Cursors
from pyspark_tiered.typed.fast import FIRST_DAY, LAST_DAY, column_type
from pyspark_tiered.typed.kinds import ColumnType, Scalar, StructOf, Void

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

ROUNDS_MAX = 256
"""Items of an array that are read in step with those of others. Values with longer ones are read by themselves."""
DECIMAL_BYTES = 16
DAY_US = 86_400_000_000


class Decoded(NamedTuple):
    """Values as one struct column of the type `columns`, and the reasons of those that do not fit, by row."""

    rows: pyarrow.StructArray
    bad: dict[int, str]


def decode_avro(plan: AvroPlan, data: bytes, starts: Numbers, ends: Numbers) -> Decoded:
    """Decodes values between ascending places of a buffer that ends with `PAD`. Rows in `bad` hold anything."""
    import pyarrow as pa

    cursors = Cursors(data, starts, ends)
    reader = _Reader(plan, cursors)
    found = reader.read(plan.root, cursors.rows)
    cursors.finish()
    rows = found if isinstance(plan.root, Record) else pa.StructArray.from_arrays([found], names=["value"])
    if reader.slow:
        rows = _put_slow(plan, rows, reader.slow, cursors, data, starts, ends)
    return Decoded(rows, cursors.bad)


def _put_slow(
    plan: AvroPlan,
    rows: pyarrow.StructArray,
    slow: set[int],
    cursors: Cursors,
    data: bytes,
    starts: Numbers,
    ends: Numbers,
) -> pyarrow.StructArray:
    """Returns rows with those in the place of the slow ones that are read by themselves."""
    import numpy as np
    import pyarrow as pa

    order = np.arange(len(rows))
    cells: list[Any] = []
    for row in sorted(slow):
        cursors.bad.pop(row, None)
        try:
            cell, at = read_cell(plan, plan.root, data, int(starts[row]), int(ends[row]), 0)
            if at != ends[row]:
                raise BadValue("bytes are left behind the value")
        except BadValue as why:
            cursors.bad[row] = str(why)
            continue
        order[row] = len(rows) + len(cells)
        cells.append(cell if isinstance(plan.root, Record) else {"value": cell})
    return pa.concat_arrays([rows, pa.array(cells, rows.type)]).take(pa.array(order))


class _Reader:
    def __init__(self, plan: AvroPlan, cursors: Cursors) -> None:
        self.slow: set[int] = set()
        self._plan = plan
        self._cursors = cursors

    def read(self, node: Node, rows: Numbers) -> pyarrow.Array:
        """Returns the cells of these rows, in their order."""
        match node:
            case Leaf():
                return self._read_leaf(node, rows)
            case Record(fields, kind):
                return self._read_record(fields, kind, rows)
            case Union():
                return self._read_union(node, rows)
            case Items(item):
                return self._read_items(item, rows)
            case Entries(value):
                return self._read_entries(value, rows)
            case Text():
                return self._read_text(node, rows)

    def _read_record(self, fields: tuple[Node, ...], kind: StructOf, rows: Numbers) -> pyarrow.Array:
        import pyarrow as pa

        parts = [self.read(each, rows) for each in fields]
        if not parts:
            return pa.StructArray.from_buffers(pa.struct([]), len(rows), [None])
        return pa.StructArray.from_arrays(parts, names=[field.column for field in kind.fields])

    def _read_union(self, node: Union, rows: Numbers) -> pyarrow.Array:
        import numpy as np
        import pyarrow as pa

        cursors = self._cursors
        chosen = cursors.read_zigzag(rows)
        is_wrong = (chosen < 0) | (chosen >= len(node.branches))
        if is_wrong.any():
            cursors.fail(rows[is_wrong], "a union has no such branch")
        parts: dict[int, pyarrow.Array] = {}
        for at, (branch, place) in enumerate(zip(node.branches, node.places, strict=True)):
            mine = np.flatnonzero(chosen == at)
            if place < 0 or not len(mine):
                continue
            cells = self.read(branch, rows[mine])
            kind = node.kind.fields[place].kind if node.is_struct and isinstance(node.kind, StructOf) else node.kind
            if branch.kind != kind:
                cells = cells.cast(column_type(kind))
            if len(mine) < len(rows):
                cells = _spread(cells, mine, len(rows))
            parts[place] = _coalesce(parts[place], cells) if place in parts else cells
        if not node.is_struct:
            return parts.get(0, pa.nulls(len(rows), _cells_type(node.kind)))
        assert isinstance(node.kind, StructOf)
        cells = [
            parts.get(place, pa.nulls(len(rows), _cells_type(field.kind)))
            for place, field in enumerate(node.kind.fields)
        ]
        absent = [at for at, place in enumerate(node.places) if place < 0]
        names = [field.column for field in node.kind.fields]
        return pa.StructArray.from_arrays(cells, names=names, mask=pa.array(np.isin(chosen, absent) | is_wrong))

    def _read_items(self, item: Node, rows: Numbers) -> pyarrow.Array:
        import pyarrow as pa

        counts, order, (cells,) = self._read_rounds(rows, (item,))
        return pa.ListArray.from_arrays(_bounds(counts), cells if order is None else cells.take(order))

    def _read_entries(self, value: Node, rows: Numbers) -> pyarrow.Array:
        import numpy as np
        import pyarrow as pa

        counts, order, (names, cells) = self._read_rounds(rows, (Leaf("string", Scalar("string")), value))
        if order is not None:
            names, cells = names.take(order), cells.take(order)
        if len(names):
            codes = names.dictionary_encode()
            parents = np.repeat(np.arange(len(rows)), counts)
            both = parents * max(len(codes.dictionary), 1) + codes.indices.to_numpy(zero_copy_only=False)
            first, repeats = np.unique(both, return_counts=True)
            if (repeats > 1).any():
                twice = np.unique(first[repeats > 1] // max(len(codes.dictionary), 1))
                self._cursors.fail(rows[twice], "a name twice in a map")
        return pa.MapArray.from_arrays(_bounds(counts), names, cells)

    def _read_rounds(
        self, rows: Numbers, nodes: tuple[Node, ...]
    ) -> tuple[Numbers, pyarrow.Array | None, list[pyarrow.Array]]:
        """Reads one item of each array at a time. Returns the items of each, an order that brings those of an array
        together, and the cells of all."""
        import numpy as np
        import pyarrow as pa

        left, counts = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        active = np.arange(len(rows))
        parents: list[Numbers] = []
        parts: list[list[pyarrow.Array]] = [[] for _ in nodes]
        while len(active):
            if len(ended := active[left[active] == 0]):
                left[ended] = self._read_block(rows[ended], counts[ended])
                active = active[left[active] > 0]
                if not len(active):
                    break
            for part, node in zip(parts, nodes, strict=True):
                part.append(self.read(node, rows[active]))
            parents.append(active)
            left[active] -= 1
            counts[active] += 1
        cells = [
            pa.concat_arrays(part) if part else pa.nulls(0, _cells_type(node.kind))
            for part, node in zip(parts, nodes, strict=True)
        ]
        if len(parents) < 2:
            return counts, None, cells
        return counts, pa.array(np.argsort(np.concatenate(parents), kind="stable")), cells

    def _read_block(self, rows: Numbers, before: Numbers) -> Numbers:
        """Returns the items of the next block of each array, 0 at its end."""
        import numpy as np

        cursors = self._cursors
        found = cursors.read_zigzag(rows)
        is_sized = found < 0
        if is_sized.any():
            cursors.read_zigzag(rows[is_sized])
            found = np.where(is_sized, -found, found)
        is_long = (found < 0) | (found > cursors.left(rows))
        if is_long.any():
            cursors.fail(rows[is_long], "an array has more items than bytes")
            found[is_long] = 0
        is_slow = found + before > ROUNDS_MAX
        if is_slow.any():
            self._give_up(rows[is_slow])
            found[is_slow] = 0
        return found

    def _give_up(self, rows: Numbers) -> None:
        """Leaves values to the reader of single ones."""
        fresh = [row for row in rows.tolist() if row not in self._cursors.bad]
        self.slow.update(fresh)
        self._cursors.fail(rows, "it is read by itself")

    def _read_leaf(self, node: Leaf, rows: Numbers) -> pyarrow.Array:
        import numpy as np
        import pyarrow as pa

        cursors = self._cursors
        match node.name:
            case "null":
                return pa.nulls(len(rows))
            case "boolean":
                bits = cursors.read_fixed(rows, "u1").astype(np.uint8)
                if (wrong := bits > 1).any():
                    cursors.fail(rows[wrong], "a boolean is neither 0 nor 1")
                return pa.array(bits == 1)
            case "int" | "long":
                return self._read_integer(node, rows)
            case "float" | "double":
                numbers = cursors.read_fixed(rows, "<f4" if node.name == "float" else "<f8")
                with np.errstate(invalid="ignore"):  # of a signaling NaN
                    return pa.array(numbers.astype("<f8"))
            case "enum":
                return self._read_enum(node, rows)
            case _:
                return self._read_bytes(node, rows)

    def _read_integer(self, node: Leaf, rows: Numbers) -> pyarrow.Array:
        import numpy as np
        import pyarrow as pa

        cursors = self._cursors
        found = cursors.read_zigzag(rows)
        if node.name == "int" and (wrong := found != found.astype(np.int32)).any():
            cursors.fail(rows[wrong], "an int beyond 32 bits")
            found[wrong] = 0
        if not node.logical:
            return pa.array(found.astype(np.int32) if node.name == "int" else found)
        factor = TIMES.get(node.logical, DAY_US)
        low, high = FIRST_DAY * DAY_US // factor, (LAST_DAY + 1) * DAY_US // factor
        if (wrong := (found < low) | (found >= high)).any():
            cursors.fail(rows[wrong], "a time outside of the years 1 to 9999")
            found[wrong] = 0
        if node.logical == "date":
            return pa.array(found.astype(np.int32)).view(pa.date32())
        return pa.array(found * factor).view(pa.timestamp("us", tz="UTC"))

    def _read_enum(self, node: Leaf, rows: Numbers) -> pyarrow.Array:
        import pyarrow as pa

        found = self._cursors.read_zigzag(rows)
        if (wrong := (found < 0) | (found >= len(node.symbols))).any():
            self._cursors.fail(rows[wrong], "an enum has no such symbol")
            found[wrong] = 0
        return pa.array(node.symbols, pa.string()).take(pa.array(found))

    def _read_bytes(self, node: Leaf, rows: Numbers) -> pyarrow.Array:
        import numpy as np

        cursors = self._cursors
        lengths = np.full(len(rows), node.size) if node.name == "fixed" else cursors.read_zigzag(rows)
        starts, ends = cursors.read_spans(rows, lengths)
        if node.logical == "decimal" and isinstance(node.kind, Scalar) and node.kind.decimal:
            return self._read_decimals(node, rows, starts, ends)
        if node.logical:
            return self._read_singly(node, rows, starts, ends)
        if node.name == "string":
            return cursors.take_text(rows, starts, ends)
        return cursors.take_bytes(starts, ends)

    def _read_decimals(self, node: Leaf, rows: Numbers, starts: Numbers, ends: Numbers) -> pyarrow.Array:
        """Returns signed numbers of at most 16 bytes, the highest byte first, as decimals."""
        import numpy as np
        import pyarrow as pa

        lengths = ends - starts
        if (is_slow := lengths > DECIMAL_BYTES).any():
            self._give_up(rows[is_slow])
        places = ends[:, None] - 1 - np.arange(DECIMAL_BYTES)
        is_inside = places >= starts[:, None]
        data = self._cursors.data
        signs = np.where((lengths > 0) & (data[starts] >= 0x80), 0xFF, 0).astype(np.uint8)
        numbers = np.where(is_inside, data[np.maximum(places, 0)], signs[:, None])
        numbers[is_slow] = 0
        kind = node.kind
        assert isinstance(kind, Scalar) and kind.decimal
        buffer = pa.py_buffer(np.ascontiguousarray(numbers).tobytes())
        found = pa.Array.from_buffers(pa.decimal128(*kind.decimal), len(rows), [None, buffer])
        try:
            found.validate(full=True)
        except pa.ArrowInvalid:
            digits = kind.decimal[0]
            wide = pa.Array.from_buffers(pa.decimal128(38, 0), len(rows), [None, buffer]).to_pylist()
            wrong = np.array([abs(each) >= 10**digits for each in wide])
            self._cursors.fail(rows[wrong], f"a decimal of more than {digits} digits")
            numbers[wrong] = 0
            buffer = pa.py_buffer(np.ascontiguousarray(numbers).tobytes())
            found = pa.Array.from_buffers(pa.decimal128(*kind.decimal), len(rows), [None, buffer])
        return found

    def _read_singly(self, node: Leaf, rows: Numbers, starts: Numbers, ends: Numbers) -> pyarrow.Array:
        """Returns cells that take Python's work for each one: identifiers of 16 bytes, and decimals as text."""
        import pyarrow as pa

        cells = []
        for cell in self._cursors.take_bytes(starts, ends).to_pylist():
            cells.append(read_text(node, cell))
        return pa.array(cells, pa.string())

    def _read_text(self, node: Text, rows: Numbers) -> pyarrow.Array:
        import pyarrow as pa

        cursors, cells = self._cursors, []
        for row in rows.tolist():
            at = int(cursors.at[row])
            cell = None
            if row not in cursors.bad:
                try:
                    cell, cursors.at[row] = read_cell(self._plan, node, cursors.data.data, at, cursors.end(row), 0)
                except BadValue as why:
                    cursors.at[row] = at
                    cursors.fail(_one(row), str(why))
            cells.append(cell)
        return pa.array(cells, pa.string())


def _cells_type(kind: ColumnType) -> pyarrow.DataType:
    import pyarrow as pa

    return pa.null() if isinstance(kind, Void) else column_type(kind)


def _one(row: int) -> Numbers:
    import numpy as np

    return np.array([row])


def _spread(cells: pyarrow.Array, places: Numbers, count: int) -> pyarrow.Array:
    """Returns so many cells, those given at their places, and NULL elsewhere."""
    import numpy as np
    import pyarrow as pa

    indices = np.zeros(count, dtype=np.int64)
    is_absent = np.ones(count, dtype=bool)
    indices[places] = np.arange(len(places))
    is_absent[places] = False
    return cells.take(pa.array(indices, mask=is_absent))


def _coalesce(one: pyarrow.Array, other: pyarrow.Array) -> pyarrow.Array:
    import pyarrow.compute as pc

    return pc.coalesce(one, other)


def _bounds(counts: Numbers) -> pyarrow.Array:
    import numpy as np
    import pyarrow as pa

    ends = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=ends[1:])
    return pa.array(ends)
