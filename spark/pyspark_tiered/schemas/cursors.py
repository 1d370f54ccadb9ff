"""Cursors in thousands of encoded values: each step reads the same field of all of them. No Python per record. Pure.

The values lie in one buffer. A step takes the rows that it is for, in ascending order, and moves the cursor of each.
A value that does not fit becomes bad, with a reason. Its cursor stays within the buffer, and its cells are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

PAD = bytes(32)
"""Bytes behind the buffer, which a step may touch before it knows that a value has ended."""
VARINT_BITS = 64


class Cursors:
    """A place in each of some values. `data` ends with `PAD`; `starts` and `ends` are places in it, in ascending order.

    `bad` has the reason for each row that does not fit.
    """

    def __init__(self, data: bytes, starts: Numbers, ends: Numbers) -> None:
        import numpy as np

        self.bad: dict[int, str] = {}
        self.data = np.frombuffer(data, dtype=np.uint8)
        self.at = starts.copy()
        self._bytes = data
        self._ends = ends

    @property
    def rows(self) -> Numbers:
        """Returns the numbers of all rows."""
        import numpy as np

        return np.arange(len(self.at))

    def left(self, rows: Numbers) -> Numbers:
        """Returns the bytes that are left of each value."""
        found: Numbers = self._ends[rows] - self.at[rows]
        return found

    def end(self, row: int) -> int:
        """Returns the place at which a value ends."""
        return int(self._ends[row])

    def fail(self, rows: Numbers, why: str) -> None:
        """Makes rows bad. Their cursors go to the ends of their values."""
        for row in rows.tolist():
            self.bad.setdefault(row, why)
        self.at[rows] = self._ends[rows]

    def finish(self) -> None:
        """Makes each value bad that has bytes left."""
        import numpy as np

        self.fail(np.flatnonzero(self.at < self._ends), "bytes are left behind the value")

    def read_varint(self, rows: Numbers) -> NDArray[np.uint64]:
        """Returns a number of seven bits a byte, the lowest first."""
        import numpy as np

        at = self.at[rows]
        byte = self.data[at]
        found = (byte & 0x7F).astype(np.uint64)
        at += 1
        more, shift = np.flatnonzero(byte >= 0x80), 7
        while len(more):
            if shift >= VARINT_BITS:
                self.fail(rows[more], "a number beyond 64 bits")
                at[more] = self.at[rows[more]]
                found[more] = 0
                break
            byte = self.data[np.minimum(at[more], len(self.data) - 1)]
            found[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[more] += 1
            more, shift = more[byte >= 0x80], shift + 7
        self._move(rows, at)
        return found

    def read_zigzag(self, rows: Numbers) -> Numbers:
        """Returns a signed number, as Avro and Protobuf write it."""
        import numpy as np

        raw = self.read_varint(rows)
        return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)

    def read_fixed(self, rows: Numbers, kind: str) -> NDArray[np.generic]:
        """Returns numbers of a fixed width; `kind` is their type in numpy."""
        import numpy as np

        width = np.dtype(kind).itemsize
        at = self.at[rows]
        is_short = at + width > self._ends[rows]
        at = np.minimum(at, len(self.data) - width)
        found: NDArray[np.generic] = self.data[at[:, None] + np.arange(width)].reshape(-1).view(kind)
        self._move(rows, np.where(is_short, self._ends[rows] + 1, at + width))
        return found

    def read_spans(self, rows: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers]:
        """Moves behind so many bytes. Returns where they begin and end; a bad row has none of them."""
        import numpy as np

        starts = self.at[rows]
        is_bad = (lengths < 0) | (lengths > self._ends[rows] - starts)
        if is_bad.any():
            self.fail(rows[is_bad], "the value ends within a field")
            starts = self.at[rows]
            lengths = np.where(is_bad, 0, lengths)
        ends = starts + lengths
        self.at[rows] = ends
        return starts, ends

    def take_bytes(self, starts: Numbers, ends: Numbers) -> pyarrow.Array:
        """Returns the bytes between ascending places as binary cells."""
        return take_bytes(self._bytes, starts, ends)

    def take_text(self, rows: Numbers, starts: Numbers, ends: Numbers) -> pyarrow.Array:
        """Returns the bytes between ascending places as text. A row without UTF-8 is bad."""
        import pyarrow as pa

        found = self.take_bytes(starts, ends)
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            return self._take_checked(rows, found.to_pylist())

    def _take_checked(self, rows: Numbers, cells: list[bytes]) -> pyarrow.Array:
        import pyarrow as pa

        texts = []
        for row, cell in zip(rows.tolist(), cells, strict=True):
            try:
                texts.append(cell.decode())
            except UnicodeDecodeError:
                self.bad.setdefault(row, "a text is not UTF-8")
                texts.append("")
        return pa.array(texts, pa.string())

    def _move(self, rows: Numbers, at: Numbers) -> None:
        ends = self._ends[rows]
        is_over = at > ends
        if is_over.any():
            self.at[rows] = at.clip(max=ends)
            self.fail(rows[is_over], "the value ends within a field")
        else:
            self.at[rows] = at


def take_bytes(data: bytes, starts: Numbers, ends: Numbers) -> pyarrow.Array:
    """Returns the bytes between ascending places of a buffer as binary cells."""
    import numpy as np
    import pyarrow as pa

    if not len(starts):
        return pa.array([], pa.binary())
    # The bytes and the gaps between them are the cells of one array, of which every second one is taken.
    places = np.empty(2 * len(starts), dtype=np.int32)
    places[0::2], places[1::2] = starts, ends
    both = pa.Array.from_buffers(pa.binary(), len(places) - 1, [None, pa.py_buffer(places), pa.py_buffer(data)])
    return both.take(pa.array(np.arange(0, len(places) - 1, 2)))
