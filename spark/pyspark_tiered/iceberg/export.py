"""Writes Iceberg's metadata of each version of a Delta table, in the folder of the table.

Files are created at most once, the metadata file of a version after all that it names, and the hint to the newest
version last. A writer that was killed is continued by the next one from what is there. If two write the same version,
the second goes on from the file of the first.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from pyspark_tiered.delta import delta_state, table_features
from pyspark_tiered.delta.data_files import read_vector
from pyspark_tiered.delta.log_folder import TableFolder, UnclearOutcome
from pyspark_tiered.delta.table_log import TableLog
from pyspark_tiered.iceberg import version as versions
from pyspark_tiered.iceberg.manifest import DELETED, Entry, ManifestFile, decode_list, decode_manifest
from pyspark_tiered.iceberg.metadata import (
    ENABLED,
    FOLDER,
    HINT,
    SNAPSHOTS_MAX,
    decode_metadata,
    locate,
    metadata_name,
    table_uuid,
)
from pyspark_tiered.iceberg.unneeded import EVERY, choose_unneeded
from pyspark_tiered.iceberg.version import Commit, IcebergVersion
from tiered.errors import Code, Corrupt, Refused, Unavailable

log = logging.getLogger(__name__)

HELD_ENTRIES_MAX = 50_000
"""Entries of manifests that are kept for the next commits: joins of small files remove what loads added just before."""


class _Newest(NamedTuple):
    """A version that is there. Its metadata are kept as bytes: a process may follow thousands of tables."""

    version: int
    identity: str
    data: bytes
    manifests: tuple[ManifestFile, ...]

    def open(self) -> IcebergVersion:
        """Returns the version."""
        return IcebergVersion(self.version, decode_metadata(self.data, self.version, ""), self.manifests, {}, {})


class IcebergExport:
    """The metadata of Iceberg of one table. Plain, blocking code."""

    def __init__(self, table: TableLog) -> None:
        self._table = table
        self._folder = table.folder
        self._location = locate(table.url)
        self._newest: _Newest | None = None
        """The newest version that is known to be there."""
        self._held: OrderedDict[str, Sequence[Entry]] = OrderedDict()
        self._was_told = ""
        self.is_asked = False
        """True if the table is to have metadata of Iceberg from now on, whatever its property says."""

    def ask(self) -> None:
        """Asks for metadata of Iceberg from now on."""
        self.is_asked = True

    @property
    def version(self) -> int:
        """Returns the newest version of the Delta table that is known to have metadata of Iceberg; -1 for none."""
        return -1 if self._newest is None else self._newest.version

    def catch_up(self) -> None:
        """Writes the metadata of all versions that lack them, if the table is to have any. A failure is a warning: the
        Delta table is whole without, and the next commit tries again."""
        try:
            self.write()
        except (Refused, Corrupt, Unavailable, OSError, UnclearOutcome) as failure:
            if str(failure) != self._was_told:
                log.warning("metadata of Iceberg are behind table=%s why=%s", self._table.url, failure)
            self._was_told = str(failure)
        else:
            self._was_told = ""

    def write(self) -> None:
        """Writes the metadata of all versions that lack them. Raises `Refused` if Iceberg cannot have the table,
        `Corrupt` if another program wrote to it, and `Unavailable`."""
        state = self._table.state
        if state.version < 0 or not table_features.is_true(state.properties(), ENABLED):
            return
        check_package()
        identity = table_uuid(state.metadata)
        if self._newest is not None and self._newest.identity != identity:
            self._newest = None
        if self.version >= state.version:
            return
        if self._newest is None:
            self._newest = self._find_newest(state.version, identity)
        if self._newest is None or state.version - self._newest.version > SNAPSHOTS_MAX:
            self._create(self._begin(state))
        while self.version < state.version:
            self._create(self._next(state))
        self._write_hint()

    def check(self) -> None:
        """Raises `Refused` if Iceberg cannot have the table as it was read last."""
        check_package()
        if self._table.state.version >= 0:
            versions.begin(self._table.state, 0, self._location, {})

    def _next(self, state: delta_state.TableState) -> IcebergVersion:
        """Returns the next version. If Delta's log no longer has its commit, or Iceberg cannot have it, the history
        begins anew with the newest version."""
        commit = self._read_commit(self.version + 1)
        if commit is None:
            return self._begin(state)
        try:
            return self._follow(commit)
        except Refused:
            return self._begin(state)

    def _begin(self, state: delta_state.TableState) -> IcebergVersion:
        commit = self._read_commit(state.version)
        time_ms = 0 if commit is None else commit.time_ms
        return versions.begin(state, time_ms, self._location, self._read_vectors(state.files.values()))

    def _read_vectors(self, adds: Iterable[Mapping[str, Any]]) -> dict[str, Sequence[int]]:
        """Returns the numbers of deleted rows of files with deletion vectors."""
        found: dict[str, Sequence[int]] = {}
        for add in adds:
            if (numbers := read_vector(self._folder, add)) is not None:
                found[f"{self._location}/{delta_state.file_path(add, self._location)}"] = numbers
        return found

    def _read_commit(self, number: int) -> Commit | None:
        text = self._table.read_commit(number)
        where = f"{self._table.url} version {number}"
        return None if text is None else versions.parse_commit(number, delta_state.parse_actions(text, where))

    def _follow(self, commit: Commit) -> IcebergVersion:
        assert self._newest is not None
        before = self._newest.open()
        held = {each.path: self._entries(each) for each in versions.choose_joined(before.manifests)}
        for has_deletes in (False, True):
            wanted = versions.replaced_paths(commit, self._location)
            for each in reversed(before.manifests):
                if not wanted:
                    break
                if each.has_deletes != has_deletes:
                    continue
                entries = self._entries(each)
                found = {entry.file.data_path for entry in entries if entry.status != DELETED} & wanted
                if found:
                    held[each.path] = entries
                    wanted -= found
        return versions.follow(before, commit, held, self._location, self._read_vectors(commit.adds))

    def _entries(self, manifest: ManifestFile) -> Sequence[Entry]:
        if manifest.path not in self._held:
            path = self._relative(manifest.path)
            self._hold(manifest.path, decode_manifest(self._read(path), manifest.path))
        self._held.move_to_end(manifest.path)
        return self._held[manifest.path]

    def _hold(self, path: str, entries: Sequence[Entry]) -> None:
        self._held[path] = entries
        while len(self._held) > 1 and sum(map(len, self._held.values())) > HELD_ENTRIES_MAX:
            self._held.popitem(last=False)

    def _create(self, made: IcebergVersion) -> None:
        """Creates the files of a version. If another writer was first, its version is taken."""
        *others, last = made.files
        path = f"{FOLDER}/{last}"
        self._folder.create_each({f"{FOLDER}/{name}": made.files[name] for name in others})
        if self._folder.create(path, made.files[last]) is not None:
            self._newest = _Newest(made.version, made.metadata["table-uuid"], made.files[last], made.manifests)
            for each, entries in made.entries.items():
                self._hold(each, entries)
        else:
            self._newest = self._load(made.version, made.metadata["table-uuid"])
            if self._newest is None:
                raise Unavailable(f"{path} of {self._table.url} was there, and is gone")
        if made.version % EVERY == 0:
            self._delete_unneeded(self._newest.open().metadata["snapshots"][0])

    def _find_newest(self, newest: int, identity: str) -> _Newest | None:
        """Returns the newest version that is there, at most `newest`: by the hint, or else by a list."""
        number = read_hint(self._folder)
        found = self._load(min(number - 1, newest), identity) if number else None
        if found is None:
            there = set(self._folder.list_names(FOLDER))
            last = next((each for each in range(newest, -1, -1) if metadata_name(each) in there), None)
            found = None if last is None else self._load(last, identity)
        while found is not None and found.version < newest:
            later = self._load(found.version + 1, identity)
            if later is None:
                break
            found = later
        return found

    def _load(self, number: int, identity: str) -> _Newest | None:
        """Returns a version that is there; None if it is not. Raises `Corrupt` for one of another table or writer."""
        path = f"{FOLDER}/{metadata_name(number)}"
        data = self._folder.read(path)
        if data is None:
            return None
        where = f"{self._table.url}/{path}"
        metadata = decode_metadata(data, number, where)
        if metadata["table-uuid"] != identity:
            raise Corrupt(
                "this metadata file of Iceberg is that of an older table of this name: move the folder _iceberg away",
                where=where,
            )
        listed = str(metadata["snapshots"][-1]["manifest-list"])
        manifests = decode_list(self._read(self._relative(listed)), listed)
        return _Newest(number, identity, data, manifests)

    def _write_hint(self) -> None:
        """Writes the hint. A slower writer may put an older one in its place: so each looks once more, and repairs."""
        number = self.version
        while True:
            self._folder.replace(HINT, str(number + 1).encode())
            if self._folder.modified_ms(f"{FOLDER}/{metadata_name(number + 1)}") is None:
                return
            number += 1

    def _delete_unneeded(self, oldest: dict[str, Any]) -> None:
        """Deletes the files that no version from the snapshot `oldest` on names."""
        listed = self._relative(str(oldest["manifest-list"]))
        needed = {listed}
        for each in decode_list(self._read(listed), listed):
            needed.add(self._relative(each.path))
            if each.has_deletes:
                entries = decode_manifest(self._read(self._relative(each.path)), each.path)
                needed |= {self._relative(entry.file.path) for entry in entries if entry.status != DELETED}
        names = [each.rpartition("/")[2] for each in needed]
        unneeded = choose_unneeded(self._folder.list_names(FOLDER), oldest["snapshot-id"], names)
        self._delete([f"{FOLDER}/{name}" for name in unneeded])

    def _delete(self, paths: Sequence[str]) -> None:
        if paths:
            self._folder.delete(paths)
            log.info("old metadata of Iceberg were deleted table=%s files=%d", self._table.url, len(paths))

    def _relative(self, path: str) -> str:
        """Returns a path in the table's folder. Raises `Corrupt` for one elsewhere."""
        inside = f"{self._location}/{FOLDER}/"
        name = path.removeprefix(inside)
        if name == path or "/" in name:
            raise Corrupt(
                "metadata of Iceberg name a file elsewhere: the table was moved. Move the folder _iceberg away: the "
                "next load makes it anew",
                where=path,
            )
        return f"{FOLDER}/{name}"

    def _read(self, path: str) -> bytes:
        data = self._folder.read(path)
        if data is None:
            raise Corrupt(
                "a file of Iceberg's metadata is gone: move the folder _iceberg away, the next load makes it anew",
                where=f"{self._table.url}/{path}",
            )
        return data


def check_package() -> None:
    """Raises `Refused` without the package that writes Avro files."""
    if find_spec("fastavro") is None:
        why = "metadata of Iceberg need the Python package fastavro: pip install '.[iceberg]' in tiered's source folder"
        raise Refused(Code.INVALID_REQUEST, why)


def read_hint(folder: TableFolder) -> int:
    """Returns the number in the hint; 0 without one."""
    hint = folder.read(HINT)
    return int(hint) if hint is not None and hint.strip().isdigit() else 0


def read_newest(folder: TableFolder) -> tuple[str, dict[str, Any]] | None:
    """Returns the newest metadata by the hint, with their path in the folder of the table; None if there are none.

    Raises `Corrupt` for metadata of another program.
    """
    number = read_hint(folder)
    path = f"{FOLDER}/{metadata_name(number - 1)}"
    data = folder.read(path) if number else None
    return None if data is None else (path, decode_metadata(data, number - 1, f"{folder.url}/{path}"))
