"""The next version of an Iceberg table: a function of the version before and of one commit of Delta's log. Pure.

The first version has all files that the Delta table then has. Each later one adds a manifest with the files that the
commit added. Manifests with files that the commit removed are written again. Small manifests are joined when they are
many, so that a table has few manifests, and a file stands in few that were ever written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark_tiered.delta.delta_state import TableState, file_path
from pyspark_tiered.iceberg import manifest
from pyspark_tiered.iceberg.data_file import DataFile, describe_file
from pyspark_tiered.iceberg.manifest import ADDED, DELETED, EXISTING, Entry, ManifestFile
from pyspark_tiered.iceberg.metadata import (
    FOLDER,
    Change,
    current_schema,
    encode_metadata,
    metadata_name,
    new_metadata,
    snapshot_of,
    with_columns,
    with_snapshot,
)
from pyspark_tiered.iceberg.position_deletes import describe_deletes, encode_deletes

Json = Mapping[str, Any]
Vectors = Mapping[str, Sequence[int]]
"""The numbers of deleted rows by the path of their data file, of all files of a commit that have deletion vectors."""

FULL = 10_000
"""Files from which a manifest is not joined with others."""
SMALL_MAX = 100
"""Manifests that may be smaller."""
ENGINE = "tiered"
"""Name of this package in the commits that it makes: their files are always new ones."""


class Commit(NamedTuple):
    """A commit of Delta's log, as far as it changes an Iceberg table."""

    version: int
    time_ms: int
    adds: tuple[Json, ...]
    removes: tuple[Json, ...]
    metadata: Json | None
    is_ours: bool


class IcebergVersion(NamedTuple):
    """A version of the table: its metadata and manifests, and the files that make it, in the order to create them.

    Files are by their names in the folder of Iceberg's metadata. The metadata file is the last. `entries` are those of
    the manifests among them, by their paths.
    """

    version: int
    metadata: dict[str, Any]
    manifests: tuple[ManifestFile, ...]
    files: dict[str, bytes]
    entries: Mapping[str, Sequence[Entry]]


def parse_commit(version: int, actions: Iterable[Json]) -> Commit:
    """Returns a commit from the actions of its file."""
    adds, removes, metadata = [], [], None
    info: Json = {}
    for action in actions:
        if add := action.get("add"):
            adds.append(add)
        elif remove := action.get("remove"):
            removes.append(remove)
        elif found := action.get("metaData"):
            metadata = found
        elif found := action.get("commitInfo"):
            info = found
    time_ms = info.get("timestamp")
    is_ours = info.get("engineInfo") == ENGINE
    return Commit(version, time_ms if isinstance(time_ms, int) else 0, tuple(adds), tuple(removes), metadata, is_ours)


def begin(state: TableState, time_ms: int, location: str, vectors: Vectors) -> IcebergVersion:
    """Returns the first version: all files of the Delta table as it is now. Raises `Refused`."""
    draft = _Draft(state.version, location, new_metadata(state.metadata, location), vectors)
    return draft.finish(time_ms, [], [add for _, add in sorted(state.files.items())], [])


def replaced_paths(commit: Commit, location: str) -> set[str]:
    """Returns the paths of files that the version before may have, and that this commit removes or describes anew."""
    again = () if commit.is_ours else commit.adds
    return {f"{location}/{file_path(each, location)}" for each in (*commit.removes, *again)}


def choose_joined(manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
    """Returns the small manifests of data files if they are too many, and those of deletes alike."""
    found: list[ManifestFile] = []
    for has_deletes in (False, True):
        small = [each for each in manifests if 0 < each.live < FULL and each.has_deletes == has_deletes]
        found += small if len(small) > SMALL_MAX else []
    return found


def follow(
    before: IcebergVersion, commit: Commit, held: Mapping[str, Sequence[Entry]], location: str, vectors: Vectors
) -> IcebergVersion:
    """Returns the version after a commit. Raises `Refused`.

    `held` are the entries of the manifests that are joined, and of those that have a replaced file, by their paths.
    """
    metadata = before.metadata if commit.metadata is None else with_columns(before.metadata, commit.metadata)
    draft = _Draft(commit.version, location, metadata, vectors)
    replaced, joined = replaced_paths(commit, location), {each.path for each in choose_joined(before.manifests)}
    kept: list[ManifestFile] = []
    pools: dict[bool, list[Entry]] = {False: [], True: []}
    gone: list[Entry] = []
    for each in before.manifests:
        if each.path not in held:
            kept += [each] if each.live else []
            continue
        live = [entry._replace(status=EXISTING) for entry in held[each.path] if entry.status != DELETED]
        removed = [entry for entry in live if entry.file.data_path in replaced]
        stay = [entry for entry in live if entry.file.data_path not in replaced]
        deleted = [entry._replace(status=DELETED, snapshot=draft.snapshot) for entry in removed]
        gone += deleted
        if each.path in joined:
            pools[each.has_deletes] += [*stay, *deleted]
        elif removed:
            kept.append(draft.write([*stay, *deleted]))
        else:
            kept.append(each)
    joins = [pool[at : at + FULL] for pool in pools.values() for at in range(0, len(pool), FULL)]
    kept = [*map(draft.write, joins), *kept]
    return draft.finish(commit.time_ms, kept, commit.adds, gone, changes_rows=_changes_rows(commit))


def _changes_rows(commit: Commit) -> bool:
    return any(each.get("dataChange", True) for each in (*commit.adds, *commit.removes))


class _Draft:
    """A version in the making: its number, and the files that it needs so far."""

    def __init__(self, version: int, location: str, metadata: dict[str, Any], vectors: Vectors) -> None:
        self._location = location
        self._vectors = vectors
        self.metadata = metadata
        self.snapshot = snapshot_of(version)
        self._version = version
        self._folder = f"{location}/{FOLDER}"
        self._files: dict[str, bytes] = {}
        self._entries: dict[str, Sequence[Entry]] = {}

    def write(self, entries: Sequence[Entry]) -> ManifestFile:
        """Adds a manifest to the files. Returns its line in the list of manifests."""
        data = manifest.encode_manifest(entries, current_schema(self.metadata))
        path = self._add(f"m-{self.snapshot}-{len(self._files)}-{manifest.hash_name(data)}.avro", data)
        self._entries[path] = entries
        return manifest.summarize(path, len(data), entries, self.snapshot)

    def finish(
        self,
        time_ms: int,
        kept: Sequence[ManifestFile],
        adds: Sequence[Json],
        gone: Sequence[Entry],
        *,
        changes_rows: bool = True,
    ) -> IcebergVersion:
        """Returns the version with manifests that stay, and more for the files of add actions and for their deletes."""
        schema = current_schema(self.metadata)
        added = [self._entry(describe_file(add, schema, self._location)) for add in adds]
        deletes = [self._delete(each.file.path) for each in added if each.file.path in self._vectors]
        new = [self.write(part[at : at + FULL]) for part in (added, deletes) for at in range(0, len(part), FULL)]
        manifests = (*kept, *new)
        last = self.metadata["snapshots"][-1:]
        parent = last[0]["snapshot-id"] if last else None
        data = manifest.encode_list(manifests, self.snapshot, parent)
        path = self._add(f"snap-{self.snapshot}-{manifest.hash_name(data)}.avro", data)
        removed = [each for each in gone if not each.file.of]
        undone = [each for each in gone if each.file.of]
        operation = _operation(added, gone, changes_rows)
        change = Change(operation, _count(added), _count(removed), _count(deletes), _count(undone))
        metadata = with_snapshot(self.metadata, self._version, time_ms, change, path)
        self._files[metadata_name(self._version)] = encode_metadata(metadata)
        return IcebergVersion(self._version, metadata, manifests, self._files, self._entries)

    def _entry(self, file: DataFile) -> Entry:
        return Entry(ADDED, self.snapshot, self.snapshot, file)

    def _delete(self, data_path: str) -> Entry:
        """Adds the file with the deleted rows of a data file."""
        positions = self._vectors[data_path]
        data = encode_deletes(data_path, positions)
        path = self._add(f"d-{self.snapshot}-{len(self._files)}-{manifest.hash_name(data)}.parquet", data)
        return self._entry(describe_deletes(path, len(data), data_path, len(positions)))

    def _add(self, name: str, data: bytes) -> str:
        self._files[name] = data
        return f"{self._folder}/{name}"


def _operation(added: Sequence[Entry], gone: Sequence[Entry], changes_rows: bool) -> str:
    """Returns Iceberg's word for a change."""
    if not gone:
        return "append"
    if not changes_rows:
        return "replace"
    return "overwrite" if added else "delete"


def _count(entries: Sequence[Entry]) -> tuple[int, int, int]:
    return len(entries), sum(each.file.rows for each in entries), sum(each.file.size for each in entries)
