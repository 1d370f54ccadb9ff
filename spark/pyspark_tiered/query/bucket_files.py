"""The files of tables in a bucket, as DuckDB reads them: ranges of objects, by the same client as all other reads.

DuckDB takes file systems in the form of fsspec. Its own extension for S3 would be a download.
"""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fsspec import AbstractFileSystem

from pyspark_tiered.delta import delta_state
from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.log_folder import SharedConnection
from tiered.errors import Unavailable
from tiered.ports import GetResult, NotFound

PROTOCOL = "tiered-table"
TAIL_BYTES = 64 << 10
"""Bytes at the end of a file that are read at once: its footer is there, and most footers are smaller."""
TAILS_MAX = 64
"""Files of a table whose ends are read together when it is opened. DuckDB opens one file first, and then a few."""


class BucketFiles(AbstractFileSystem):  # type: ignore[misc]
    """Files of tables by their keys in one bucket, for reading only. DuckDB's threads share it.

    `sizes` has the files that may be opened. `failure` is the last error, which DuckDB only hands on as text.
    """

    protocol = PROTOCOL
    cachable = False

    def __init__(self, connection: SharedConnection) -> None:
        super().__init__()
        self.sizes: dict[str, int] = {}
        self._tails: dict[str, bytes] = {}
        self.failure: Unavailable | None = None
        self._connection = connection

    def note_sizes(self, root: str, state: TableState) -> None:
        """Notes the files of a table, which may be opened from now on. Reads the ends of the first new ones at once."""
        found = {_key(f"{root}/{delta_state.file_path(add, root)}"): int(add["size"]) for add in state.files.values()}
        new = [key for key in found if key not in self.sizes]
        self.sizes |= found
        self._connection.run(self._read_tails(new[:TAILS_MAX]))

    async def _read_tails(self, keys: Sequence[str]) -> None:
        """Reads the ends of files. A file that cannot be read is reported when DuckDB opens it."""
        starts = [max(self.sizes[key] - TAIL_BYTES, 0) for key in keys]
        reads = [self._connection.store.get(key, start) for key, start in zip(keys, starts, strict=True)]
        for key, got in zip(keys, await asyncio.gather(*reads, return_exceptions=True), strict=True):
            if isinstance(got, GetResult):
                self._tails[key] = bytes(got.data)

    def take_tail(self, key: str) -> bytes | None:
        """Returns the end of a file if it was read in advance, and forgets it: the opened file keeps it."""
        return self._tails.pop(key, None)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Returns bytes of a file."""
        try:
            found = self._connection.run(self._connection.store.get(key, start, length))
            if isinstance(found, NotFound):
                raise Unavailable(f"{key} is not in the bucket: a VACUUM may have removed it", final=True)
        except Unavailable as failure:
            self.failure = failure
            raise OSError(str(failure)) from failure
        return bytes(found.data)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Returns name and size of a file."""
        key = _key(path)
        if key not in self.sizes:
            raise FileNotFoundError(path)
        return {"name": key, "size": self.sizes[key], "type": "file"}

    def exists(self, path: str, **_: Any) -> bool:
        """True for the files of opened tables."""
        return _key(path) in self.sizes

    def glob(self, path: str, **_: Any) -> list[str]:
        """Returns the path itself: names of a table's files are no patterns."""
        return [path]

    def modified(self, path: str) -> datetime:
        """Returns a fixed time: a file of a table never changes."""
        return datetime(2000, 1, 1, tzinfo=UTC)

    def _open(self, path: str, mode: str = "rb", *_: Any, **__: Any) -> Any:
        if mode != "rb":
            raise PermissionError(f"{path} cannot be written")
        return _BucketFile(self, _key(path), int(self.info(path)["size"]))


def _key(path: str) -> str:
    """Returns the key of a file. No key begins with a slash, also at the root of a bucket."""
    return str(BucketFiles._strip_protocol(path)).lstrip("/")


class _BucketFile(io.RawIOBase):
    """One file. Its end is read at once and kept, because DuckDB reads a footer in several steps.

    Each thread has a position of its own: DuckDB's threads share a file, and each seeks before it reads.
    """

    def __init__(self, files: BucketFiles, key: str, size: int) -> None:
        self._files = files
        self._key = key
        self._size = size
        self._places = threading.local()
        self._tail_start = max(size - TAIL_BYTES, 0)
        self._tail = files.take_tail(key)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(getattr(self._places, "at", 0))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._places.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._size}[whence]
        return self.tell()

    def read(self, size: int = -1) -> bytes:
        start = self.tell()
        end = self._size if size < 0 else min(start + size, self._size)
        if end <= start:
            return b""
        if start >= self._tail_start:
            if self._tail is None:
                self._tail = self._files.read_range(self._key, self._tail_start, self._size - self._tail_start)
            data = self._tail[start - self._tail_start : end - self._tail_start]
        else:
            data = self._files.read_range(self._key, start, end - start)
        self._places.at = start + len(data)
        return data
