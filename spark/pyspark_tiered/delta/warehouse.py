"""The tables of a warehouse, for readers without a JVM. A table is opened when it is named, and not before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.folder_url import bucket_prefix, spark_url
from pyspark_tiered.delta.log_folder import LOG, SharedConnection, open_folder
from pyspark_tiered.delta.table_log import TableLog, explain_access
from tiered.errors import Code, Refused

AFTER_FOLDER = "/\U0010fffd"
"""A key that ends with it follows all keys in a folder, and no key of another one, in every order of lists."""


class Warehouse:
    """A folder of tables, in a directory or a bucket."""

    def __init__(self, place: str) -> None:
        self.url = spark_url(place)
        self._logs: dict[str, TableLog] = {}
        scheme = urlsplit(self.url).scheme
        self.connection: SharedConnection | None = None
        """The connection to the bucket; None for a directory."""
        self.prefix = ""
        """The prefix of the tables' keys in the bucket."""
        if scheme == "file":
            if not Path(self.url.removeprefix("file:")).is_dir():
                raise Refused(Code.INVALID_REQUEST, f"there is no warehouse at {self.url}")
        elif scheme in ("s3", "s3a"):
            bucket, self.prefix = bucket_prefix(self.url)
            self.connection = SharedConnection(f"s3a://{bucket}")
        else:
            raise Refused(Code.INVALID_REQUEST, f"a warehouse is a directory or an s3:// URL, not {place}")

    def close(self) -> None:
        """Ends the use of the warehouse."""
        self._logs = {}
        if self.connection is not None:
            self.connection.close()

    def names(self) -> Iterator[str]:
        """Yields the names of the tables, in order: the folders that hold a Delta log. Opens none of them."""
        with explain_access(self.url):
            if self.connection is None:
                root = Path(self.url.removeprefix("file:"))
                yield from (name for name in sorted(os.listdir(root)) if (root / name / LOG).is_dir())
                return
            after = self.prefix
            while found := self.connection.run(self.connection.store.list(self.prefix, after, 1)):
                name, slash, _ = found[0].key.removeprefix(self.prefix).partition("/")
                if slash and self._has_log(name):
                    yield name
                after = f"{self.prefix}{name}{AFTER_FOLDER}" if slash else found[0].key

    def log(self, name: str) -> TableLog:
        """Returns the log of a table. Raises `Refused` for a name that no table can have."""
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise Refused(Code.INVALID_REQUEST, f"there is no table {name!r}: the name of a table is that of a topic")
        if name not in self._logs:
            self._logs[name] = TableLog(open_folder(f"{self.url}/{name}", self.connection))
        return self._logs[name]

    def forget(self, name: str) -> None:
        """Drops what is known of a table, which may have very many files."""
        self._logs.pop(name, None)

    def read(self, name: str, version: int | None = None) -> TableState:
        """Returns a table at its newest version, or at the given one. Raises `Refused` if there is none."""
        log = self.log(name)
        state = log.read() if version is None else log.read_version(version)
        if state.version < 0:
            raise Refused(Code.INVALID_REQUEST, f"there is no table {name} in {self.url}")
        return state

    def find(self, name: str) -> TableState | None:
        """Returns a table at its newest version; None if there is none."""
        state = self.log(name).read()
        return None if state.version < 0 else state

    def _has_log(self, name: str) -> bool:
        assert self.connection is not None
        return bool(self.connection.run(self.connection.store.list(f"{self.prefix}{name}/{LOG}/", "", 1)))
