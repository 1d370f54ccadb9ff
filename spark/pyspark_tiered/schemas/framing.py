"""The frames of Confluent's serializers: which schema a value has, and where its own bytes begin. Pure.

A zero byte and the id of a schema stand in front of a value. Newer serializers leave the value as it is, and write the
schema's guid into a header of the record.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

VALUE_HEADER, KEY_HEADER = "__value_schema_id", "__key_schema_id"
"""Headers with the schema of a value, and with that of a key."""
ID_BYTES, GUID_BYTES = 5, 17
"""Bytes of a frame: a zero and an id of 32 bits, or a one and a guid."""
MISSING = "no frame of a schema registry"

Reference = int | str
"""A schema's id, or its guid."""


class Frames(NamedTuple):
    """The values of each schema: the numbers of their rows. `payloads` are all values without frames in front.

    `headers` are the frames that stood in headers, by row. `unframed` are the rows without a frame, and why.
    """

    rows: Mapping[Reference, Numbers]
    payloads: tuple[bytes, Numbers, Numbers]
    headers: Mapping[int, bytes]
    unframed: Mapping[int, str]


def split_frames(values: pyarrow.Array, headers: pyarrow.Array | None, name: str) -> Frames:
    """Finds the schema of each value (binary) that is not NULL. `name` is that of the header."""
    import numpy as np

    count = len(values)
    data, starts, ends = _find_places(values)
    rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False)) if values.null_count else np.arange(count)
    groups: dict[Reference, Numbers] = {}
    unframed: dict[int, str] = {}
    framed = {} if headers is None else _find_headers(headers, name, rows)
    for row, frame in framed.items():
        reference = read_header(frame)
        if reference is None:
            unframed[row] = f"the header {name} names no schema"
        else:
            groups[reference] = np.append(groups.get(reference, np.zeros(0, dtype=np.int64)), row)
    if framed:
        rows = rows[~np.isin(rows, np.fromiter(framed, dtype=np.int64))]
    at = starts[rows]
    is_framed = (ends[rows] - at >= ID_BYTES) & (np.frombuffer(data, np.uint8)[np.minimum(at, len(data) - 1)] == 0)
    for row in rows[~is_framed].tolist():
        unframed[row] = MISSING
    rows = rows[is_framed]
    if len(rows):
        at = starts[rows]
        places = np.frombuffer(data, np.uint8)[at[:, None] + np.arange(1, ID_BYTES)]
        ids = places.reshape(-1).view(">u4")
        starts[rows] += ID_BYTES
        for each in np.unique(ids).tolist():
            mine = rows[ids == each]
            groups[each] = np.sort(np.append(groups[each], mine)) if each in groups else mine
    return Frames(groups, (data, starts, ends), framed, unframed)


def split_frame(value: bytes, frame: bytes | None) -> tuple[Reference | None, bytes]:
    """Returns the schema of one value, None without one, and its own bytes; `frame` is that of a header."""
    if frame is not None:
        return read_header(frame), value
    if len(value) < ID_BYTES or value[0]:
        return None, value
    return int.from_bytes(value[1:ID_BYTES]), value[ID_BYTES:]


def skip_frame(value: bytes | None) -> bytes | None:
    """Returns a value in JSON without a frame in front."""
    return value if value is None or value[:1] != b"\0" or len(value) <= ID_BYTES else value[ID_BYTES:]


def skip_frames(cells: pyarrow.Array) -> tuple[pyarrow.Array, bool]:
    """Returns values in JSON without frames in front, and true if there were any. No JSON begins with a zero byte."""
    import numpy as np

    data, starts, ends = _find_places(cells)
    is_framed = (ends - starts > ID_BYTES) & (np.frombuffer(data, np.uint8)[np.minimum(starts, len(data) - 1)] == 0)
    if not is_framed.any():
        return cells, False
    return cut_values(cells, data, np.where(is_framed, starts + ID_BYTES, starts), ends), True


def cut_values(cells: pyarrow.Array, data: bytes, starts: Numbers, ends: Numbers) -> pyarrow.Array:
    """Returns the bytes between places, NULL where the cells are NULL."""
    import numpy as np
    import pyarrow as pa

    from pyspark_tiered.schemas.cursors import take_bytes

    found = take_bytes(data, starts, ends)
    if not cells.null_count:
        return found
    valid = cells.is_valid().to_numpy(zero_copy_only=False)
    return found.take(pa.array(np.arange(len(cells)), mask=~valid))


def read_header(frame: bytes) -> Reference | None:
    """Returns the schema that a header names."""
    if frame[:1] == b"\1" and len(frame) >= GUID_BYTES:
        return str(uuid.UUID(bytes=bytes(frame[1:GUID_BYTES])))
    if frame[:1] == b"\0" and len(frame) >= ID_BYTES:
        return int.from_bytes(frame[1:ID_BYTES])
    return None


def header_tail(frame: bytes) -> bytes:
    """Returns the bytes of a header behind the schema."""
    return frame[GUID_BYTES if frame[:1] == b"\1" else ID_BYTES :]


def _find_places(values: pyarrow.Array) -> tuple[bytes, Numbers, Numbers]:
    """Returns the bytes of all values, and where each begins and ends in them."""
    import numpy as np

    from pyspark_tiered.schemas.cursors import PAD

    _, bounds, data = values.buffers()
    count = len(values)
    if not count:
        return PAD, np.zeros(0, np.int64), np.zeros(0, np.int64)
    width = np.int64 if str(values.type).startswith("large") else np.int32
    ends = np.frombuffer(bounds, width)[values.offset : values.offset + count + 1].astype(np.int64)
    first, last = int(ends[0]), int(ends[-1])
    whole = b"" if data is None else memoryview(data)[first:last]
    ends -= first
    return b"".join((whole, PAD)), ends[:-1].copy(), ends[1:].copy()


def _find_headers(headers: pyarrow.Array, name: str, rows: Numbers) -> dict[int, bytes]:
    """Returns the last header of this name in each of some rows that has one. Most topics have none."""
    import numpy as np
    import pyarrow.compute as pc

    entries = headers.flatten()
    if not len(entries):
        return {}
    places = np.flatnonzero(pc.equal(entries.field("key"), name).fill_null(False).to_numpy(zero_copy_only=False))
    if not len(places):
        return {}
    parents = pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)[places]
    frames = entries.field("value").take(places).to_pylist()
    wanted = set(rows.tolist())
    return {row: frame or b"" for row, frame in zip(parents.tolist(), frames, strict=True) if row in wanted}
