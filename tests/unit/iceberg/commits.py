"""Commits of a Delta table as these tests need them, and the files that a version of an Iceberg table has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark_tiered.delta import table_form
from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.iceberg import version as versions
from pyspark_tiered.iceberg.manifest import DELETED, Entry, decode_list, decode_manifest
from pyspark_tiered.iceberg.metadata import FOLDER, metadata_name
from pyspark_tiered.iceberg.version import IcebergVersion

Json = dict[str, Any]

LOCATION = "file:///w/t"
METADATA: Json = {
    "id": "0e2b7a1c-3a0e-4ff5-9d0c-6f6f0c1d5c11",
    "schemaString": json.dumps(table_form.SCHEMA),
    "partitionColumns": [],
    "configuration": {table_form.TOPIC_ID: "T", table_form.TOPIC_NAME: "t", "tiered.iceberg": "true"},
}


def add(path: str, rows: int = 2, **more: Any) -> Json:
    """Returns the action that adds a file of partition 0."""
    stats = {
        "numRecords": rows,
        "minValues": {"partition": 0, "offset": 5, "timestamp": "2024-01-01T00:00:00.000Z"},
        "maxValues": {"partition": 0, "offset": 5 + rows - 1, "timestamp": "2024-01-01T00:00:00.001Z"},
        "nullCount": {"partition": 0, "offset": 0, "timestamp": 0},
    }
    action = {"path": path, "size": 100, "dataChange": True, "stats": json.dumps(stats), "partitionValues": {}}
    return {"add": {**action, **more}}


def remove(path: str, **more: Any) -> Json:
    """Returns the action that removes a file."""
    return {"remove": {"path": path, "dataChange": True, **more}}


def info(time_ms: int = 1_000, engine: str = "tiered") -> Json:
    """Returns the first line of a commit."""
    return {"commitInfo": {"timestamp": time_ms, "engineInfo": engine}}


class Table:
    """A Delta table and its Iceberg table, commit by commit. All files of metadata are kept in memory."""

    def __init__(self) -> None:
        self.state = TableState()
        self.files: dict[str, bytes] = {}
        self.versions: list[IcebergVersion] = []
        self.manifests_read = 0

    def commit(self, *actions: Mapping[str, Any], time_ms: int | None = None, engine: str = "tiered") -> IcebergVersion:
        """Applies a commit to both tables. Returns the version of the Iceberg table."""
        number = self.state.version + 1
        lines = [info(number * 1_000 if time_ms is None else time_ms, engine), *map(dict, actions)]
        self.state.apply(number, lines)
        commit = versions.parse_commit(number, lines)
        if not self.versions:
            made = versions.begin(self.state, commit.time_ms, LOCATION, vectors_of(self.state.files.values()))
        else:
            before = self.versions[-1]
            wanted = versions.replaced_paths(commit, LOCATION)
            held = {each.path: self._read(each.path) for each in versions.choose_joined(before.manifests)}
            for each in before.manifests:
                if wanted and wanted & {entry.file.data_path for entry in self._read(each.path)}:
                    held[each.path] = self._read(each.path)
            made = versions.follow(before, commit, held, LOCATION, vectors_of(commit.adds))
        self.files |= made.files
        self.versions.append(made)
        return made

    def _read(self, path: str) -> list[Entry]:
        self.manifests_read += 1
        return decode_manifest(self.files[path.removeprefix(f"{LOCATION}/{FOLDER}/")], path)

    def entries(self, number: int = -1) -> list[Entry]:
        """Returns all entries of a version, read from its metadata file on."""
        version = self.versions[number].version
        metadata = json.loads(self.files[metadata_name(version)])
        listed = metadata["snapshots"][-1]["manifest-list"].removeprefix(f"{LOCATION}/{FOLDER}/")
        return [entry for each in decode_list(self.files[listed], listed) for entry in self._read(each.path)]

    def live(self, number: int = -1) -> list[str]:
        """Returns the names of the files of a version, in order."""
        return live_names(self.entries(number))


def live_names(entries: Sequence[Entry]) -> list[str]:
    """Returns the names of data files that entries say are in the table."""
    live = (each.file for each in entries if each.status != DELETED)
    return sorted(file.path.removeprefix(f"{LOCATION}/") for file in live if not file.of)


def vectors_of(adds: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Returns the deleted rows of files: an inline vector of these tests has their numbers as text."""
    return {
        f"{LOCATION}/{add['path']}": [int(each) for each in vector["pathOrInlineDv"].split()]
        for add in adds
        if (vector := add.get("deletionVector"))
    }


def with_vector(path: str, *numbers: int, rows: int = 2) -> tuple[Json, Json]:
    """Returns the deletion vector of a file with these numbers, and the action that adds the file with it."""
    vector = {"storageType": "i", "pathOrInlineDv": " ".join(map(str, numbers)), "cardinality": len(numbers)}
    return vector, add(path, rows, deletionVector=vector)
