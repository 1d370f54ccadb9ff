"""Delta's log of one table, read without a JVM: the state of a version, and single commits. It writes nothing.

Memory grows with the number of files in the table, and not with its rows.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark_tiered.delta import delta_state, log_cleanup
from pyspark_tiered.delta.checkpoint import decode_checkpoint
from pyspark_tiered.delta.delta_state import IN_COMMIT_TIMES, TableState
from pyspark_tiered.delta.log_folder import LOG, TableFolder
from tiered.errors import Code, Corrupt, Refused, Unavailable

RECENT_COMMITS = 20
"""Commits whose lines are kept: the check before a load reads those since the last mark, mostly one."""
LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"
IN_COMMIT_SINCE = "delta.inCommitTimestampEnablementVersion", "delta.inCommitTimestampEnablementTimestamp"
"""Properties of the first version that has its time in its commit."""


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
        self._hinted = 0
        """Version that the hint named at the last full read; 0 without a hint."""
        self.times_forgotten = 0
        self.was_read = False
        """False if the last read was refused or failed, so that nobody knows what the table holds."""

    @property
    def url(self) -> str:
        """Returns the URL of the table."""
        return self.folder.url

    def read(self) -> TableState:
        """Returns the newest version; version -1 if there is no table. The next read may change the state.

        Raises `Corrupt`, `Unavailable`, and `Refused` without permission.
        """
        self.was_read = False
        with explain_access(self.url):
            known = self.state.version
            held: Mapping[str, bytes] = {}
            if known > 0:
                files = self.folder.list_versions(LOG, delta_state.commit_name(known - 1))
            else:
                files, held = self._list_first()
            if known >= 0 and (
                files.get(delta_state.commit_name(known)) != self._newest or _missing_commit(files, known) is not None
            ):
                # A log cleanup has deleted the commit, and a checkpoint holds what it did; or the table was made anew.
                self.forget()
                files, held = self._list_first()
            names = list(files)
            if self.state.version < 0:
                self.state = self._read_checkpoint(names, held)
                self._newest = files.get(delta_state.commit_name(self.state.version), "")
            for version, text in self._new_commits(names, self.state.version):
                self.apply(version, text, files[delta_state.commit_name(version)])
            delta_state.check_log_features(self.state, self.url)
            if self.state.version < 0 and self._hinted:
                raise Corrupt(
                    f"the log has neither a commit nor a checkpoint, and its `_last_checkpoint` names version "
                    f"{self._hinted}: move the folder of the table away, and load again",
                    where=f"{self.url}/{LOG}",
                )
        self.was_read = True
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
            delta_state.check_log_features(state, self.url)
            return state

    def versions(self) -> list[int]:
        """Returns the versions whose commits the log still has, in order."""
        with explain_access(self.url):
            return delta_state.commit_versions(self._names(""))

    def find_version(self, at_ms: int) -> int:
        """Returns the newest version whose commit is not later than a time, as Delta does.

        The time of a commit is that of its file. A time that is not after the one before is made to grow. Commits of a
        table with in-commit timestamps have these. Raises `Refused` if the log does not reach back so far.
        """
        properties = self.read().properties()
        with explain_access(self.url):
            times = log_cleanup.growing_times(self.folder.list_files(LOG))
        if properties.get(IN_COMMIT_TIMES, "").lower() == "true":
            first, since_ms = (int(properties.get(name, 0)) for name in IN_COMMIT_SINCE)
            times = [each for each in times if (each[0] >= first) == (at_ms >= since_ms)]
            if at_ms >= since_ms:
                return self._find_in_commit_time([version for version, _ in times], at_ms)
        found = [version for version, time_ms in times if time_ms <= at_ms]
        if not found:
            raise self._too_early()
        return found[-1]

    def _find_in_commit_time(self, versions: Sequence[int], at_ms: int) -> int:
        """Returns the newest version with a time in its commit that is not later. Such times grow: it reads a few."""
        count = bisect_right(versions, at_ms, key=self._in_commit_time)
        if count == 0:
            raise self._too_early()
        return versions[count - 1]

    def _in_commit_time(self, version: int) -> int:
        text = self.read_commit(version) or ""
        actions = delta_state.parse_actions(text, f"{self.url} version {version}")
        return next(
            (int(each["commitInfo"].get("inCommitTimestamp", 0)) for each in actions if "commitInfo" in each), 0
        )

    def _too_early(self) -> Refused:
        return Refused(Code.INVALID_REQUEST, f"the log of the table at {self.url} does not reach back to that time")

    def read_commit(self, version: int) -> str | None:
        """Returns the lines of a commit; None if its file is not there."""
        if version in self.recent:
            return self.recent[version]
        with explain_access(self.url):
            data = self.folder.read(f"{LOG}/{delta_state.commit_name(version)}")
        return None if data is None else self._decode(version, data)

    def _names(self, after: str) -> list[str]:
        return self.folder.list_names(LOG, after)

    def _new_commits(self, names: Sequence[str], known: int) -> Iterator[tuple[int, str]]:
        """Yields version and lines of each commit above a known version. Raises `Corrupt` if one is missing."""
        if (missing := _missing_commit(names, known)) is not None:
            raise Corrupt(f"commit {missing} of the table is missing", where=f"{self.url}/{LOG}")
        numbers = [number for number in delta_state.commit_versions(names) if number > known]
        found = self.folder.read_each([f"{LOG}/{delta_state.commit_name(number)}" for number in numbers])
        for number, data in zip(numbers, found, strict=True):
            if data is None:
                raise Unavailable(f"commit {number} of {self.url} was deleted while it was read")
            yield number, self._decode(number, data)

    def _decode(self, version: int, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as fault:
            where = f"{self.url}/{LOG}/{delta_state.commit_name(version)}"
            raise Corrupt(f"commit of a table is no text: {fault.reason}", where=where, position=fault.start) from None

    def _read_checkpoint(self, names: Sequence[str], held: Mapping[str, bytes] | None = None) -> TableState:
        """Returns the table at its newest checkpoint; version -1 if there is none. `held` has files that were read."""
        state = TableState()
        checkpoint, parts = delta_state.newest_checkpoint(names)
        if (version := delta_state.newest_v2_checkpoint(names)) >= max(checkpoint, 0):
            raise delta_state.refuse_log(
                self.url, delta_state.V2_CHECKPOINT, f", with a checkpoint of version {version}"
            )
        for name in parts:
            data = (held or {}).get(name) or self._read_part(name)
            state.apply(checkpoint, decode_checkpoint(data, f"{self.url}/{LOG}/{name}"))
        delta_state.check_log_features(state, self.url)  # a checkpoint may name the files of a table elsewhere
        return state

    def _read_part(self, name: str) -> bytes:
        data = self.folder.read(f"{LOG}/{name}")
        if data is None:
            raise Unavailable(f"checkpoint {name} of {self.url} was deleted while it was read")
        return data

    def _list_first(self) -> tuple[dict[str, str], dict[str, bytes]]:
        """Returns the files of the log from a recent checkpoint on, so that the list is short. Without one, all files.

        A hint that names no checkpoint of the log is ignored. Also returns the bytes of that checkpoint, if they came
        with the list.
        """
        self._hinted = version = _hinted_version(self.folder.read(LAST_CHECKPOINT))
        if version:
            name = delta_state.checkpoint_name(version)
            files, found = self.folder.list_and_read(LOG, delta_state.commit_name(version - 1), name)
            if max(delta_state.newest_checkpoint(files)[0], delta_state.newest_v2_checkpoint(files)) >= 0:
                return files, {} if found is None else {name: found}
        return self.folder.list_versions(LOG), {}


def _hinted_version(data: bytes | None) -> int:
    """Returns the version of the newest checkpoint by the log's own hint; 0 without a hint that can be read."""
    try:
        return 0 if data is None else max(int(json.loads(data)["version"]), 0)
    except (ValueError, KeyError, TypeError, OverflowError):
        return 0


def _missing_commit(names: Iterable[str], known: int) -> int | None:
    """Returns the first commit above a known version that is missing below a later one; None if none is."""
    numbers = [number for number in delta_state.commit_versions(names) if number > known]
    return next((want for want, number in enumerate(numbers, known + 1) if want != number), None)


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
