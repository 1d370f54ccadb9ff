"""Values with every trouble that JSON brings, for tests of both parsers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import strategies as st

from pyspark_tiered.delta.table_form import table_schema
from pyspark_tiered.proof.row_form import TypedRows
from pyspark_tiered.typed.ddl import parse_ddl
from pyspark_tiered.typed.kinds import StructOf

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SECRET = bytes(range(16))

SCHEMA = parse_ddl(
    "a BIGINT, b DOUBLE, c ARRAY<STRUCT<d: STRING>>, e TIMESTAMP, f DATE, g BOOLEAN, h INT, i STRING, j DECIMAL(6,2)"
)

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.floats(), st.text(max_size=8),
    st.just("2026-11-25"), st.datetimes().map(lambda at: at.isoformat()),
    st.sampled_from(["2026-11-25T13:00:00Z", "2026-11-25 13:00+02:00", "2026-11-25T24:00:00Z", "0000-01-01"]),
    st.just("é\ud800"), st.decimals(-20000, 20000, places=2).map(str), st.sampled_from([0.5, 1e16, 12.25, -0.0]),
    st.sampled_from(["-0", "0.1", "00.1", "1e2", "9999.99", "10000", "5.", ".5", "+1", "1.234", " 1", "\u0661"]),
)  # fmt: skip
NAMES = st.sampled_from(list("abcdefghij"))
OBJECTS = st.dictionaries(
    NAMES,
    st.one_of(SCALARS, st.lists(st.one_of(SCALARS, st.dictionaries(st.just("d"), SCALARS)), max_size=3)),
    max_size=6,
).map(lambda value: json.dumps(value).encode())
BROKEN = st.sampled_from(
    [
        b"", b" ", b"null", b"5", b"[]", b"{", b"}", b'{"a":1', b'{"a":1}}', b'{"a":1}{"a":2}', b'{"a":', b'1}',
        b'{"a":1,"a":2}',
        b'{"a":NaN}', b'{"b":NaN}', b'{"b":-Infinity}', b'{"b":1e999}', b'{"i":"\xff"}', b'{"\xff":1}',
        b'{"i":"\x00"}', b'{"i":"\\u0000"}', b'{"i":"x\ny"}', b'{\n"a":1}', b'\xef\xbb\xbf{}', b'{"a":1},"w":2',
        b'{"a":1},"v":{"a":2}', b'{"a":01}', b'{"a":-0}', b'{"a":1.0}', b'{"i":"\\ud83d\\ude00"}', b'{"i":"\\udc00"}',
        b"{'a':1}", b'{"a":1,}', b'{"a":1}//', b"{}\x00", b'{"c":[[]]}', b'{"c":{}}', b'{"z":null}', b'{"c":[{"z":1}]}',
    ]
)  # fmt: skip


def hash_rows(
    cells: Sequence[pa.Array | None], schema: StructOf, count: int, *, first: int | None = None, in_full: bool = False
) -> NDArray[np.uint64]:
    """Returns the hash of typed rows with these cells, at offsets from `first` on, or at none."""
    wanted, at = table_schema(), pa.nulls(count, pa.int64())
    if first is not None:
        at = pa.array(range(first, first + count), pa.int64())
    arrays = [
        at.cast(each.type) if each.name in ("partition", "offset") else pa.nulls(count, each.type) for each in wanted
    ]
    records = pa.RecordBatch.from_arrays(arrays, schema=wanted)
    return TypedRows(schema, (), False, {}).hash(records, cells, SECRET, in_full=in_full)
