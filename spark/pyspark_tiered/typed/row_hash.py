"""The hash of each row of a typed table, from Arrow columns: what verify compares. No Python per record. Pure.

Each cell has two words of 64 bits: a number and a word that says that it is there, or else a hash. The words of an
array's items, one behind the other, are the bytes of the array; those of an object's fields, in the order of the
schema, are the bytes of the object. So each hash covers what is NULL, each length, and which field a value stands in.
The hash of the whole value then takes the place of a value in the hash of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark_tiered.row_hash import hash_columns
from pyspark_tiered.typed.kinds import STRING, ColumnType, Field, ListOf, MapOf, Scalar, StructOf, Variant
from pyspark_tiered.typed.reparse import canonical_json
from pyspark_tiered.typed.variant import decode_variant
from tiered.records.native import hash_rows
from tiered.records.pure_hash import HASH_BYTES

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray


def hash_typed_rows(
    record: Sequence[pyarrow.Array], values: Sequence[pyarrow.Array | None], schema: StructOf, rows: int, secret: bytes
) -> NDArray[np.uint64]:
    """Returns two numbers of 64 bits for each row.

    `record` are partition, offset, timestamp, key and headers; `values` the columns of the schema's fields, None for a
    column that a file lacks. Raises `pyarrow.ArrowInvalid` for a column that is not of its field's type.
    """
    import pyarrow as pa

    fields = [_hash(array, field.kind, rows, secret) for array, field in zip(values, schema.fields, strict=True)]
    whole = _hash_parts(fields, None, rows, secret)
    ends = pa.py_buffer(_even_ends(rows, HASH_BYTES))
    value = pa.Array.from_buffers(pa.binary(), rows, [None, ends, pa.py_buffer(whole)])
    return hash_letters([*record[:4], value, record[4]], rows, secret)


def hash_letters(columns: Sequence[pyarrow.Array], rows: int, secret: bytes) -> NDArray[np.uint64]:
    """Returns two numbers of 64 bits for each dead letter: partition, offset, timestamp, key, value and headers."""
    import pyarrow as pa

    partition, offset, timestamp, key, value, headers = columns
    return hash_columns([partition, offset, timestamp, pa.nulls(rows, pa.int8()), key, value, headers], rows, secret)


def _hash(array: pyarrow.Array | None, kind: ColumnType, rows: int, secret: bytes) -> NDArray[np.uint64]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if array is None:
        return _absent(kind, rows, secret)
    valid = _bits(array, rows) if array.null_count else None
    match kind:
        case StructOf(fields):
            parts = [_find_part(array, field.column) for field in fields]
            found = [_hash(part, field.kind, rows, secret) for part, field in zip(parts, fields, strict=True)]
            return _hash_parts(found, valid, rows, secret)
        case ListOf(element):
            items = array.flatten()
            ends = np.zeros(rows + 1, dtype=np.int32)
            lengths = pc.fill_null(pc.list_value_length(array), 0)
            np.cumsum(lengths.to_numpy(zero_copy_only=False) * HASH_BYTES, out=ends[1:])
            return _hash_cells(valid, ends, _hash(items, element, len(items), secret), rows, secret)
        case MapOf(value):
            entry = StructOf((Field("key", "key", STRING), Field("value", "value", value)))
            held = array.type
            entries = pa.list_(pa.struct([("key", held.key_type), ("value", held.item_type)]))
            return _hash(array.cast(entries), ListOf(entry), rows, secret)
        case Variant():
            texts = array if pa.types.is_binary(array.type) else _read_variants(array)
            return _hash(texts.view(pa.string()), STRING, rows, secret)
        case Scalar("string"):
            texts = array.cast(pa.string()) if array.type != pa.string() else array
            start, (_, own_ends, data) = texts.offset, texts.buffers()
            ends = np.frombuffer(own_ends, dtype=np.int32)[start : start + rows + 1] if rows else np.zeros(1, np.int32)
            return _hash_cells(valid, ends, data, rows, secret)
        case Scalar() if kind.decimal:
            digits = array.cast(pa.decimal128(*kind.decimal)).cast(pa.string())
            return _hash(digits, Scalar("string"), rows, secret)
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

    if isinstance(kind, Scalar) and kind.name != "string" and not kind.decimal:
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
