"""Deletion vectors as bytes, and the file of those of one commit. Pure: row numbers in, bytes out.

The form is that of `deletion_vectors.py`. A bitmap is written without runs, which each reader of Roaring takes.
"""

from __future__ import annotations

import base64
import uuid
import zlib
from collections.abc import Sequence
from struct import Struct, pack
from typing import TYPE_CHECKING, Any

from pyspark_tiered.delta.deletion_vectors import ARRAY_MAX, B85, MAGIC, NO_RUNS, Z85

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FILE_VERSION = b"\x01"
_PLACE = Struct(">i")
_FROM_B85 = str.maketrans(B85, Z85)


def encode_vector(rows: NDArray[np.int64]) -> bytes:
    """Returns the vector of these rows, which are in order."""
    import numpy as np

    uppers, starts = np.unique(rows >> 32, return_index=True)
    parts = [pack("<iq", MAGIC, len(uppers))]
    for upper, low in zip(uppers.tolist(), np.split(rows, starts[1:]), strict=True):
        parts += [pack("<I", upper), _encode_bitmap(low & 0xFFFFFFFF)]
    return b"".join(parts)


def _encode_bitmap(rows: NDArray[np.int64]) -> bytes:
    import numpy as np

    uppers, starts, counts = np.unique(rows >> 16, return_index=True, return_counts=True)
    heads = np.stack([uppers, counts - 1], axis=1).astype("<u2").tobytes()
    containers = [_encode_container(low & 0xFFFF) for low in np.split(rows, starts[1:])]
    first = 8 + 8 * len(containers)
    sizes = np.array([len(each) for each in containers], np.int64)
    places = (first + np.cumsum(sizes) - sizes).astype("<u4").tobytes()
    return b"".join([pack("<II", NO_RUNS, len(containers)), heads, places, *containers])


def _encode_container(low: NDArray[np.int64]) -> bytes:
    import numpy as np

    if len(low) <= ARRAY_MAX:
        return low.astype("<u2").tobytes()
    bits = np.zeros(1 << 16, dtype=np.uint8)
    bits[low] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def encode_vector_file(vectors: Sequence[NDArray[np.int64]]) -> tuple[str, bytes, list[dict[str, Any]]]:
    """Returns the name of a new file of vectors, its bytes, and for each vector what its add action says of it."""
    import numpy as np

    unique = uuid.uuid4()
    text = base64.b85encode(unique.bytes).decode().translate(_FROM_B85)
    parts, size, named = [FILE_VERSION], len(FILE_VERSION), []
    for each in vectors:
        rows = np.sort(each)
        data = encode_vector(rows)
        named.append(
            {
                "storageType": "u",
                "pathOrInlineDv": text,
                "offset": size,
                "sizeInBytes": len(data),
                "cardinality": len(rows),
            }
        )
        parts += [_PLACE.pack(len(data)), data, pack(">I", zlib.crc32(data))]
        size += 2 * _PLACE.size + len(data)
    return f"deletion_vector_{unique}.bin", b"".join(parts), named
