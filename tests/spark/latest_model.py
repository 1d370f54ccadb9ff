"""A topic with keys, its table in mode latest, and loads of it that are killed, or come in between each other's steps.

The model is a fold of the log: the last value of each key of a partition, below the offsets that a version has loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq

from pyspark_tiered.delta.data_files import read_form
from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.log_folder import DirectoryFolder
from pyspark_tiered.delta.table_form import loaded_offsets
from pyspark_tiered.delta.table_log import TableLog
from pyspark_tiered.latest.lookup import read_live_rows
from pyspark_tiered.latest.table import LatestTable
from pyspark_tiered.latest.target import RAW_FORM, LatestTarget
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.load.table_loader import TableLoader
from pyspark_tiered.log.bucket import ColdTopicReader
from tests.spark.typed_site import TOPIC, Site

Place = tuple[int, bytes]
Row = tuple[int, bytes]
"""Offset and value."""
State = dict[Place, Row]


class Killed(BaseException):
    """The end of a load's process."""


class InterruptedFolder(DirectoryFolder):
    """A folder of a table that calls a function before and after each file of a commit."""

    def __init__(self, url: str, step: Callable[[], None]) -> None:
        super().__init__(url)
        self._step = step

    def create(self, path: str, data: bytes) -> str | None:
        self._step()
        found = super().create(path, data)
        self._step()
        return found

    def replace(self, path: str, data: bytes) -> None:
        self._step()
        super().replace(path, data)
        self._step()


class LatestModel:
    """The topic, its log, and the table."""

    def __init__(self, root: Path, seed: int, partitions: int = 2) -> None:
        self.rng = Random(seed)
        self.site = Site(root, partitions)
        self.url = f"file:{self.site.warehouse}/t"
        self._partitions = partitions
        self._log: list[list[tuple[bytes, bytes | None]]] = [[] for _ in range(partitions)]
        self._keys = [b"%d" % each for each in range(self.rng.choice([3, 12]))]

    def write(self) -> None:
        """Writes a segment to some partitions."""
        for number in range(self._partitions):
            if self.rng.random() < 0.7:
                self.put(number, *(self._record() for _ in range(self.rng.randrange(1, 12))))

    def put(self, number: int, *records: tuple[bytes, bytes | None]) -> None:
        """Writes a segment to a partition."""
        keys, values = zip(*records, strict=True)
        self.site.write(values, number, keys)
        self._log[number] += records

    def _record(self) -> tuple[bytes, bytes | None]:
        value = None if self.rng.random() < 0.3 else b"v%d" % self.rng.randrange(1000)
        return self.rng.choice(self._keys), value

    def fold(self, ends: Mapping[int, int]) -> State:
        """Returns the fold of the log below these offsets."""
        found: State = {}
        for number, records in enumerate(self._log):
            for offset, (key, value) in enumerate(records[: ends.get(number, 0)]):
                found.pop((number, key), None)
                if value is not None:
                    found[number, key] = offset, value
        return found

    @contextmanager
    def loader(self, step: Callable[[], None] = lambda: None) -> Iterator[tuple[LatestTable, TableLoader]]:
        """Yields the table and the rounds of a load, as a new process has them."""
        with closing(ColdTopicReader(self.site.store)) as reader, closing(NativeEngine()) as engine:
            table = LatestTable(self.url, "t", TOPIC)
            table.folder = table._log.folder = InterruptedFolder(self.url, step)
            with closing(table):
                target = LatestTarget(table, self.site.store, False, False)
                yield table, TableLoader(target, engine, reader, "t", self.rng.choice([None, 100]), 1)

    def check_versions(self) -> int:
        """Checks each version, and its changes, against the fold of the log. Returns how many versions there are."""
        folder = DirectoryFolder(self.url)
        log = TableLog(folder)
        before: State = {}
        versions = log.versions()
        for version in versions:
            state = log.read_version(version)
            ends = loaded_offsets(state.versions(), TOPIC)
            wanted = self.fold(ends)
            assert self._read(folder, state) == wanted, version
            text = log.read_commit(version)
            assert text is not None
            assert self._apply_changes(before, text) == wanted, version
            before = wanted
        assert ends == {number: len(each) for number, each in enumerate(self._log) if each}
        return len(versions)

    def _read(self, folder: DirectoryFolder, state: TableState) -> State:
        found: State = {}
        for add in state.files.values():
            for row in read_live_rows(folder, add, read_form(state.metadata)).to_pylist():
                place = row["partition"], row["key"]
                assert place not in found, "a key has two rows"
                found[place] = row["offset"], row["value"]
        return found

    def _apply_changes(self, before: State, text: str) -> State:
        """Returns a version's rows by what its change data feed says of those before it."""
        actions = [json.loads(line) for line in text.splitlines()]
        named = [each["cdc"]["path"] for each in actions if "cdc" in each]
        root = Path(self.url.removeprefix("file:"))
        rows: list[dict[str, Any]] = []
        if named:
            rows = [row for path in named for row in pq.read_table(root / path).to_pylist()]
        else:
            adds = [each["add"] for each in actions if each.get("add", {}).get("dataChange")]
            for add in adds:
                rows += read_live_rows(DirectoryFolder(self.url), add, RAW_FORM).to_pylist()
            assert not any(each.get("remove", {}).get("dataChange") for each in actions)
        after = dict(before)
        for row in rows:
            if row.get("_change_type", "insert") in ("delete", "update_preimage"):
                assert after.pop((row["partition"], row["key"])) == (row["offset"], row["value"])
        for row in rows:
            if row.get("_change_type", "insert") in ("insert", "update_postimage"):
                assert (row["partition"], row["key"]) not in after
                is_update = (row["partition"], row["key"]) in before
                assert row.get("_change_type", "insert") == ("update_postimage" if is_update else "insert")
                after[row["partition"], row["key"]] = row["offset"], row["value"]
        return after
