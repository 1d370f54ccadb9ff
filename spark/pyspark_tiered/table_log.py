"""Delta's log of one table, read without a JVM: the state of a version, and single commits. It writes nothing.

Memory grows with the number of files in the table, and not with its rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark_tiered import delta_state
from pyspark_tiered.checkpoint import decode_checkpoint
from pyspark_tiered.delta_state import TableState
from pyspark_tiered.log_folder import LOG, TableFolder
from tiered.errors import Code, Corrupt, Refused, Unavailable

RECENT_COMMITS = 20
"""Commits whose lines are kept: the check before a load reads those since the last mark, mostly one."""
LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"


class TableLog:
    """The log of the table in a folder. A later read of the newest version gets only commits that are new."""

    def __init__(self, folder: TableFolder) -> None:
        self.folder = folder
        self.state = TableState()
        """The newest version that was read."""
        self.recent: dict[int, str] = {}
        """Version -> lines of the commits that were read last."""
        self._newest = ""
        """Version of the file of the newest commit that is known."""
        self.times_forgotten = 0

    @property
    def url(self) -> str:
        """Returns the URL of the table."""
        return self.folder.url

    def read(self) -> TableState:
        """Returns the newest version; version -1 if there is no table. The next read may change the state.

        Raises `Corrupt`, `Unavailable`, and `Refused` without permission.
        """
        with explain_access(self.url):
            known = self.state.version
            held: Mapping[str, bytes] = {}
            if known > 0:
                files = self.folder.list_versions(LOG, delta_state.commit_name(known - 1))
            else:
                files, held = self._list_first()
            if known >= 0 and files.get(delta_state.commit_name(known)) != self._newest:
                # Delta has deleted the commit, and a checkpoint holds what it did; or the table was made anew.
                self.forget()
                files, held = self._list_first()
            names = list(files)
            if self.state.version < 0:
                self.state = self._read_checkpoint(names, held)
                self._newest = files.get(delta_state.commit_name(self.state.version), "")
            for version, text in self._new_commits(names, self.state.version):
                self.apply(version, text, files[delta_state.commit_name(version)])
        return self.state

    def apply(self, version: int, text: str, file_version: str) -> None:
        """Applies the lines of the next commit, which are in a file of that version. Raises `Corrupt`."""
        path = f"{self.url}/{LOG}/{delta_state.commit_name(version)}"
        self.state.apply(version, delta_state.parse_actions(text, path))
        self._newest = file_version
        self.recent[version] = text
        self.recent.pop(version - RECENT_COMMITS, None)

    def forget(self) -> None:
        """Drops what was read: the next read begins anew."""
        self.state, self.recent, self._newest = TableState(), {}, ""
        self.times_forgotten += 1

    def read_version(self, version: int) -> TableState:
        """Returns the table at a version. Raises `Refused` if the log does not have it, or no longer."""
        with explain_access(self.url):
            names = self._names("")
            there = delta_state.commit_versions(names)
            newest = max([*there, delta_state.newest_checkpoint(names)[0]])
            if version > newest:
                raise Refused(
                    Code.INVALID_REQUEST,
                    f"the table at {self.url} has no version {version}: the newest one is {newest}",
                )
            checkpoint, _ = delta_state.newest_checkpoint(_up_to(names, version))
            start = checkpoint if checkpoint >= 0 else -1
            if any(number not in there for number in range(start + 1, version + 1)):
                raise Refused(
                    Code.INVALID_REQUEST,
                    f"version {version} of the table at {self.url} is gone: Delta's log cleanup removed its commits",
                )
            state = self._read_checkpoint(_up_to(names, version))
            for number, text in self._new_commits(_up_to(names, version), state.version):
                state.apply(number, delta_state.parse_actions(text, f"{self.url} version {number}"))
            return state

    def versions(self) -> list[int]:
        """Returns the versions whose commits the log still has, in order."""
        with explain_access(self.url):
            return delta_state.commit_versions(self._names(""))

    def find_version(self, at_ms: int) -> int:
        """Returns the newest version whose commit is not later than a time. Reads a few commits: their times grow.

        A commit without a time has that of its file. Raises `Refused` if the log does not reach back so far.
        """
        versions = self.versions()
        low, high = 0, len(versions)
        while low < high:
            middle = (low + high) // 2
            if self._commit_time(versions[middle]) <= at_ms:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            raise Refused(Code.INVALID_REQUEST, f"the log of the table at {self.url} does not reach back to that time")
        return versions[low - 1]

    def _commit_time(self, version: int) -> int:
        text = self.read_commit(version) or ""
        for action in delta_state.parse_actions(text, f"{self.url} version {version}"):
            if (at := (action.get("commitInfo") or {}).get("timestamp")) is not None:
                return int(at)
        with explain_access(self.url):
            return self.folder.modified_ms(f"{LOG}/{delta_state.commit_name(version)}") or 0

    def read_commit(self, version: int) -> str | None:
        """Returns the lines of a commit; None if its file is not there."""
        if version in self.recent:
            return self.recent[version]
        with explain_access(self.url):
            data = self.folder.read(f"{LOG}/{delta_state.commit_name(version)}")
        return None if data is None else data.decode()

    def _names(self, after: str) -> list[str]:
        return self.folder.list_names(LOG, after)

    def _new_commits(self, names: Sequence[str], known: int) -> Iterator[tuple[int, str]]:
        """Yields version and lines of each commit above a known version. Raises `Corrupt` if one is missing."""
        numbers = [number for number in delta_state.commit_versions(names) if number > known]
        found = self.folder.read_each([f"{LOG}/{delta_state.commit_name(number)}" for number in numbers])
        for number, data in zip(numbers, found, strict=True):
            known += 1
            if number != known or data is None:
                raise Corrupt(f"commit {known} of the table is missing", where=f"{self.url}/{LOG}")
            yield number, data.decode()

    def _read_checkpoint(self, names: Sequence[str], held: Mapping[str, bytes] | None = None) -> TableState:
        """Returns the table at its newest checkpoint; version -1 if there is none. `held` has files that were read."""
        state = TableState()
        checkpoint, parts = delta_state.newest_checkpoint(names)
        for name in parts:
            data = (held or {}).get(name) or self._read_part(name)
            state.apply(checkpoint, decode_checkpoint(data, f"{self.url}/{LOG}/{name}"))
        return state

    def _read_part(self, name: str) -> bytes:
        data = self.folder.read(f"{LOG}/{name}")
        if data is None:
            raise Unavailable(f"checkpoint {name} of {self.url} was deleted while it was read")
        return data

    def _list_first(self) -> tuple[dict[str, str], dict[str, bytes]]:
        """Returns the files of the log from a recent checkpoint on, so that the list is short. Without one, all files.

        Also returns the bytes of that checkpoint, if they came with the list.
        """
        data = self.folder.read(LAST_CHECKPOINT)
        try:
            version = 0 if data is None else int(json.loads(data)["version"])
        except (ValueError, KeyError, TypeError):
            version = 0
        if not version:
            return self.folder.list_versions(LOG), {}
        name = delta_state.checkpoint_name(version)
        files, found = self.folder.list_and_read(LOG, delta_state.commit_name(version - 1), name)
        return files, {} if found is None else {name: found}


@contextmanager
def explain_access(url: str) -> Iterator[None]:
    """Turns errors of the file system into words. Raises `Refused` without permission, else `Unavailable`."""
    try:
        yield
    except PermissionError as failure:
        raise Refused(Code.INVALID_REQUEST, f"no permission to read {failure.filename or url}") from None
    except OSError as failure:
        raise Unavailable(f"{failure.filename or url} cannot be read: {failure.strerror or failure}") from None


def _up_to(names: Sequence[str], version: int) -> list[str]:
    """Returns the names of commits and checkpoints up to a version."""
    return [name for name in names if name[:20].isdecimal() and int(name[:20]) <= version]
