"""A digest of the cells of each row of a typed table, from Arrow columns. No Python per record. Pure.

Each cell has two words of 64 bits: a number and a word that says that it is there, or else a hash. The words of an
array's items, one behind the other, are the bytes of the array; those of an object's fields, in the order of the
schema, are the bytes of the object. So each hash covers what is NULL, each length, and which field a value stands in.
The digest is the hash of the whole value.

A leaf is a value that is no array and no object, and not NULL. A variant and an entry of a map count as leaves. A field
that holds an array or an object without a leaf is blank. A second digest takes blank fields for NULL: a row that came
before the column of such a field has NULL there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.typed.kinds import STRING, ColumnType, Field, ListOf, MapOf, Scalar, StructOf, Variant
from pyspark_tiered.typed.reparse import canonical_json
from pyspark_tiered.typed.variant import decode_variant
from tiered.records.native import hash_rows
from tiered.records.pure_hash import HASH_BYTES

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray


def digest_cells(
    cells: Sequence[pyarrow.Array | None], schema: StructOf, rows: int, secret: bytes, *, by_leaves: bool = False
) -> pyarrow.Array:
    """Returns 16 bytes for each row. `by_leaves`: blank fields count as NULL.

    `cells` are the columns of the schema's fields, None for a column that a file lacks. Raises `pyarrow.ArrowInvalid`
    for a column that is not of its field's type.
    """
    import pyarrow as pa

    how = _How(secret, by_leaves)
    fields = [_hash_field(array, field.kind, rows, how) for array, field in zip(cells, schema.fields, strict=True)]
    ends, whole = _even_ends(rows, HASH_BYTES), _hash_parts(fields, None, rows, secret)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(whole)])


def count_blanks(cells: Sequence[pyarrow.Array | None], schema: StructOf, rows: int) -> NDArray[np.int64]:
    """Returns the number of blank fields of each row."""
    import numpy as np

    blanks = np.zeros(rows, dtype=np.int64)
    for array, field in zip(cells, schema.fields, strict=True):
        blanks += _count_field_blanks(array, field.kind, rows)
    return blanks


class _How(NamedTuple):
    secret: bytes
    by_leaves: bool


def _hash_field(array: pyarrow.Array | None, kind: ColumnType, rows: int, how: _How) -> NDArray[np.uint64]:
    """Returns the words of a field's cells."""
    import numpy as np

    found = _hash(array, kind, rows, how)
    if array is None or not how.by_leaves or not isinstance(kind, StructOf | ListOf | MapOf):
        return found
    return np.where(_find_leaves(array, kind, rows)[:, None], found, _absent(kind, rows, how.secret))


def _hash(array: pyarrow.Array | None, kind: ColumnType, rows: int, how: _How) -> NDArray[np.uint64]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    secret = how.secret
    if array is None:
        return _absent(kind, rows, secret)
    valid = _bits(array, rows) if array.null_count else None
    match kind:
        case StructOf(fields):
            parts = [_find_part(array, field.column) for field in fields]
            found = [_hash_field(part, field.kind, rows, how) for part, field in zip(parts, fields, strict=True)]
            return _hash_parts(found, valid, rows, secret)
        case ListOf(element):
            items = array.flatten()
            ends = (_find_ends(array, rows) * HASH_BYTES).astype(np.int32)
            return _hash_cells(valid, ends, _hash(items, element, len(items), how), rows, secret)
        case MapOf():
            return _hash(*_list_entries(array, kind), rows, how)
        case Variant():
            texts = array if pa.types.is_binary(array.type) else _read_variants(array)
            return _hash(texts.view(pa.string()), STRING, rows, how)
        case Scalar("string" | "binary" as name):
            own = pa.string() if name == "string" else pa.binary()
            texts = array.cast(own) if array.type != own else array
            start, (_, own_ends, data) = texts.offset, texts.buffers()
            ends = np.frombuffer(own_ends, dtype=np.int32)[start : start + rows + 1] if rows else np.zeros(1, np.int32)
            return _hash_cells(valid, ends, data, rows, secret)
        case Scalar() if kind.decimal:
            digits = array.cast(pa.decimal128(*kind.decimal)).cast(pa.string())
            return _hash(digits, Scalar("string"), rows, how)
        case Scalar(name):
            numbers = array
            for step in _steps(name):
                numbers = numbers.cast(step)
            plain = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
            if name == "double":
                plain = plain + 0.0  # parsers differ on the sign of a zero
            words = np.ones((rows, 2), dtype=np.uint64)
            if array.null_count:
                words[:, 0] = array.is_valid().to_numpy(zero_copy_only=False)
            words[:, 1] = plain.view(np.uint64)
            return words
        case _:
            raise AssertionError("a column of a table has a type")


def _list_entries(array: pyarrow.MapArray, kind: MapOf) -> tuple[pyarrow.ListArray, ListOf]:
    """Returns maps as lists of their entries."""
    import pyarrow as pa

    held = array.type
    entries = pa.list_(pa.struct([("key", held.key_type), ("value", held.item_type)]))
    entry = StructOf((Field("key", "key", STRING), Field("value", "value", kind.value)))
    return array.cast(entries), ListOf(entry)


def _find_ends(array: pyarrow.ListArray, rows: int) -> NDArray[np.int64]:
    """Returns the ends of lists among the items that they have together, and a zero before them."""
    import numpy as np
    import pyarrow.compute as pc

    ends = np.zeros(rows + 1, dtype=np.int64)
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    np.cumsum(lengths.to_numpy(zero_copy_only=False), out=ends[1:])
    return ends


def _sum_items(numbers: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the sum of the numbers of each list's items."""
    import numpy as np

    totals = np.concatenate(([0], np.cumsum(numbers)))
    found: NDArray[np.int64] = totals[ends[1:]] - totals[ends[:-1]]
    return found


def _find_leaves(array: pyarrow.Array | None, kind: ColumnType, rows: int) -> NDArray[np.bool_]:
    """Returns true for each cell that holds a leaf."""
    import numpy as np

    found: NDArray[np.bool_] = np.zeros(rows, dtype=np.bool_)
    if array is None:
        return found
    match kind:
        case StructOf(fields):
            for field in fields:
                found |= _find_leaves(_find_part(array, field.column), field.kind, rows)
            return found & _find_valid(array)
        case ListOf(element):
            items = array.flatten()
            return _sum_items(_find_leaves(items, element, len(items)).astype(np.int64), _find_ends(array, rows)) > 0
        case MapOf():
            return np.diff(_find_ends(_list_entries(array, kind)[0], rows)) > 0
        case _:
            return _find_valid(array)


def _count_field_blanks(array: pyarrow.Array | None, kind: ColumnType, rows: int) -> NDArray[np.int64]:
    """Returns the number of blank fields in each cell of a field, the field itself included."""
    import numpy as np

    if array is None or not isinstance(kind, StructOf | ListOf | MapOf):
        return np.zeros(rows, dtype=np.int64)
    return _count_blanks(array, kind, rows) + (_find_valid(array) & ~_find_leaves(array, kind, rows))


def _count_blanks(array: pyarrow.Array, kind: ColumnType, rows: int) -> NDArray[np.int64]:
    import numpy as np

    found: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
    match kind:
        case StructOf(fields):
            for field in fields:
                found += _count_field_blanks(_find_part(array, field.column), field.kind, rows)
            return found * _find_valid(array)
        case ListOf(element):
            items = array.flatten()
            return _sum_items(_count_blanks(items, element, len(items)), _find_ends(array, rows))
        case MapOf():
            return _count_blanks(*_list_entries(array, kind), rows)
        case _:
            return found


def _find_valid(array: pyarrow.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return found


def _read_variants(array: pyarrow.StructArray) -> pyarrow.Array:
    """Returns the variants of a file as `reparse` returns values. Damaged ones are bytes that no value has."""
    import pyarrow as pa

    found: list[bytes | None] = []
    for each in array.to_pylist():
        try:
            found.append(None if each is None else canonical_json(decode_variant(each["value"], each["metadata"])))
        except (ValueError, KeyError, TypeError):
            found.append(b"damaged")
    return pa.array(found, pa.binary())


def _absent(kind: ColumnType, rows: int, secret: bytes) -> NDArray[np.uint64]:
    """Returns what `_hash` returns for NULLs."""
    import numpy as np

    if isinstance(kind, Scalar) and kind.name not in ("string", "binary") and not kind.decimal:
        return np.zeros((rows, 2), dtype=np.uint64)
    return _hash_cells(_bits(None, rows), None, None, rows, secret)


def _find_part(array: pyarrow.StructArray, name: str) -> pyarrow.Array | None:
    at = array.type.get_field_index(name)
    return None if at < 0 else array.field(at)


def _steps(name: str) -> list[pyarrow.DataType]:
    """Returns the types by which a number becomes one of 64 bits. The first is its own: other times are refused."""
    import pyarrow as pa

    return {
        "double": [pa.float64()],
        "date": [pa.date32(), pa.int32(), pa.int64()],
        "timestamp": [pa.timestamp("us", tz="UTC"), pa.int64()],
    }.get(name, [pa.int64()])


def _hash_parts(
    parts: Sequence[NDArray[np.uint64]], valid: bytes | None, rows: int, secret: bytes
) -> NDArray[np.uint64]:
    """Returns the hashes of rows whose parts have these words."""
    import numpy as np

    data = np.hstack(parts) if parts else np.zeros(0, dtype=np.uint64)
    return _hash_cells(valid, _even_ends(rows, HASH_BYTES * len(parts)), np.ascontiguousarray(data), rows, secret)


def _hash_cells(
    valid: bytes | None, ends: NDArray[np.int32] | None, data: object, rows: int, secret: bytes
) -> NDArray[np.uint64]:
    import numpy as np

    absent = 0, _bits(None, rows), None, None
    bounds = None if ends is None else np.ascontiguousarray(ends).view(np.uint8)
    content = data.reshape(-1).view(np.uint8) if isinstance(data, np.ndarray) else data
    cell = 0, valid, bounds, b"" if content is None else content
    found = hash_rows(secret, rows, (*[absent] * 5, cell, *[absent] * 4))  # type: ignore[arg-type]
    return np.frombuffer(found, dtype="<u8").reshape(rows, HASH_BYTES // 8)


def _even_ends(rows: int, size: int) -> NDArray[np.int32]:
    import numpy as np

    return np.arange(0, (rows + 1) * size, size, dtype=np.int32) if size else np.zeros(rows + 1, dtype=np.int32)


def _bits(array: pyarrow.Array | None, rows: int) -> bytes:
    """Returns the bits of what is not NULL; without an array all is NULL."""
    import numpy as np

    if array is None:
        return bytes((rows + 7) // 8)
    return np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little").tobytes()
