"""A topic's table as a load sees it: the check that it is sound, the mark of a commit, the rule for unclear outcomes.

Spark's table and the native one share this code, and differ in how they read and write Delta's log.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark_tiered.delta import history
from pyspark_tiered.delta.history import FileExtent, RowRemoval, TableCommit
from pyspark_tiered.delta.snapshot import Snapshot, UnaccountedRows
from pyspark_tiered.delta.table_form import Advance, LoadedFile
from tiered.errors import Code, Refused, Unavailable

log = logging.getLogger(__name__)

NAMED_MAX = 3
"""Partitions that an error names at most."""


class TopicTable(ABC):
    """A topic's table in a folder (`file:` or `s3a://` URL)."""

    repaired_by = "`tiered load --repair` compares the table with the log and repairs both"
    """The way out if the table has rows that no identifier covers."""
    restored_by = "`tiered load --repair` puts back what the log still holds"
    """The way out if others removed rows."""

    def __init__(self, url: str, topic: str, topic_id: str) -> None:
        self.url = url
        self.topic = topic
        self.topic_id = topic_id
        # The version up to which this process found the table sound, and the identifiers that it then had.
        self.checked_version: int | None = None
        self._checked_offsets: dict[int, int] = {}
        self.newest_mark: Mapping[str, Any] = {}
        """Mark of the newest commit at the last check, if a loader made it."""
        self.orphans_looked_for_ms: int | None = None
        """Time of the last look for orphans here, or else of the newest commit at the first check."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Returns the table as it is now. Raises `Refused` if it holds another topic, or an older one of this name."""

    @abstractmethod
    def commit(self, files: Sequence[LoadedFile], advances: Sequence[Advance], **mark_fields: Any) -> bool:
        """Commits files and advances. Returns false if another writer committed first: then plan again.

        The first commit creates the table. `mark_fields` go into the mark. Raises `Unavailable` if the commit failed
        and the table, read again, is unchanged: the same call may be repeated.
        """

    @property
    def was_found(self) -> bool:
        """True if there was a Delta table at the last check."""
        return self.checked_version is not None and self.checked_version >= 0

    def join_small_files(self, is_idle: bool = False) -> int:
        """Joins small files if they are many. Returns how many were joined. Spark's tables have OPTIMIZE for it.

        `is_idle` says that the load found nothing new: then few are joined too.
        """
        return 0

    def remove_orphans(self) -> int:
        """Removes files that loads left behind, once a day. Returns their number. Spark's tables have VACUUM for it."""
        return 0

    def close(self) -> None:
        """Ends the use of the table."""
        return

    def count_requests(self) -> dict[str, int]:
        """Returns the number of requests for this table so far by verb, as far as they can be counted."""
        return {}

    def check_writable(self, now: Any) -> None:
        """Raises `Refused` if the table asks of its writers what a load does not keep. Native snapshots are checked."""
        return

    def forget_checks(self) -> None:
        """Drops what this process found out about the table: the next check begins anew."""
        self.checked_version, self._checked_offsets, self.newest_mark = None, {}, {}

    def loaded_offsets(self) -> dict[int, int]:
        """Returns the next offset per partition. Partitions that were never loaded are absent, all without a table."""
        return self.snapshot().loaded_offsets()

    def check_sound(self, accept_deletes: bool = False) -> dict[int, int]:
        """Returns the loaded offsets after a check that the next load will neither duplicate nor lose rows.

        Each row has to lie below the bound of its partition, and nobody may have removed rows since the last load.
        Otherwise raises `Refused` with the way out. `accept_deletes`: rows that others removed stay removed, and the
        table records so.
        """
        now = self.snapshot()
        self.check_writable(now)
        loaded = now.loaded_offsets()
        if now.version < 0:
            self.checked_version = now.version  # no commit yet, so there is nothing to check
        if now.version == self.checked_version:
            return loaded
        commits, is_complete = now.commits(self.checked_version)
        if not is_complete:
            oldest = commits[0].version if commits else now.version
            log.warning(
                "table history is gone, run `tiered verify` to check the rows before_version=%d table=%s",
                oldest,
                self.url,
            )
        self._check_bounds(now, commits, loaded)
        self._check_row_removals(commits, now, loaded, accept_deletes)
        self.newest_mark = (commits[-1].mark if commits else None) or {}
        if self.orphans_looked_for_ms is None and commits:
            self.orphans_looked_for_ms = commits[-1].time_ms
        self.checked_version, self._checked_offsets = now.version, loaded
        return loaded

    def mark_sound(self, at: Snapshot, loaded: Mapping[int, int], **mark_fields: Any) -> bool:
        """Commits, without any row, that the table is sound up to this version, and sets missing identifiers.

        Returns false if another writer committed first.
        """
        known = at.loaded_offsets()
        moved = [
            Advance(number, known.get(number, -1), end)
            for number, end in loaded.items()
            if known.get(number, -1) != end
        ]
        kept = [Advance(number, end, end) for number, end in known.items() if loaded.get(number) == end]
        steps = moved or kept[:1]
        return not steps or self.commit(
            [], steps, checked=at.version, identifiers=len(known.keys() | loaded.keys()), **mark_fields
        )

    def encode_mark(self, files: Sequence[LoadedFile], advances: Sequence[Advance], **mark_fields: Any) -> str:
        """Returns the `userMetadata` of a commit."""
        known = {"identifiers": len(self._checked_offsets.keys() | {step.partition for step in advances})}
        return history.encode_mark(self.topic, files, advances, **(known | mark_fields))

    def judge_unclear_commit(self, files: Sequence[LoadedFile], advances: Sequence[Advance], why: str) -> bool:
        """Returns true if a commit of unknown outcome landed, false if another writer committed first.

        Reads the table again. Raises `Unavailable` if the table is unchanged.
        """
        now = self.snapshot()
        state = now.loaded_offsets()
        log.warning("commit has an unknown outcome, table read again table=%s why=%s", self.url, why)
        if all(state.get(step.partition, -1) == step.end for step in advances):
            # Either all files of the commit are in the table, or none: another loader committed the same step.
            return not files or now.has_file(files[0].path)
        if any(state.get(step.partition, -1) != step.start for step in advances):
            return False
        raise Unavailable(f"Delta could not commit to {self.url}: {why}")

    def _check_bounds(self, now: Snapshot, commits: Sequence[TableCommit], loaded: dict[int, int]) -> None:
        """Raises `Refused` if the table has rows that no identifier covers: the next load would repeat them."""
        if self.checked_version is None:
            extents = now.extents()
        else:
            extents = [
                change.extent for each in commits if not each.by_loader for change in each.added if change.changes_data
            ]
            extents += [FileExtent(lost, lost, 0) for lost in self._checked_offsets.keys() - loaded.keys()]
        if found := _find_unaccounted(now, commits, extents, loaded):
            raise Refused(
                Code.INVALID_REQUEST,
                f"the table at {self.url} {_describe_unaccounted(found, loaded, 'load')}. {self.repaired_by}",
            )

    def _check_row_removals(
        self, commits: Sequence[TableCommit], now: Snapshot, loaded: dict[int, int], accept_deletes: bool
    ) -> None:
        found = history.find_row_removals(commits)
        if not found:
            return
        if accept_deletes:
            self.mark_sound(now, loaded, accepted=[removal.description for removal in found])
            return
        wholesale = [removal for removal in found if not removal.is_selective]
        if wholesale:
            raise Refused(
                Code.INVALID_REQUEST,
                f"the table at {self.url} lacks loaded rows: {_describe_removals(wholesale, now, loaded)}. "
                f"{self.restored_by}, `tiered load --accept-deletes` goes on without them",
            )
        for removal in found:
            log.warning(
                "rows were removed from the table since the last load, loading goes on table=%s by=%s",
                self.url,
                removal.description,
            )


def check_accounted(now: Snapshot) -> None:
    """Raises `Refused` if the table has rows that no identifier covers: a query that adds the newer records of the log
    could count them twice."""
    loaded, extents = now.loaded_offsets(), now.extents()
    if not history.may_hold_unaccounted(extents, loaded, None):
        return
    commits, _ = now.commits()
    if found := _find_unaccounted(now, commits, extents, loaded):
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {now.url} {_describe_unaccounted(found, loaded, 'query with newer records')}. "
            f"{TopicTable.repaired_by}. Or query the table alone, without store and bootstrap",
        )


def _find_unaccounted(
    now: Snapshot, commits: Sequence[TableCommit], extents: Sequence[FileExtent], loaded: Mapping[int, int]
) -> list[UnaccountedRows]:
    """Returns rows that no identifier covers. Reads rows only if statistics leave it open. `commits` are those since
    the last mark."""
    marks = [each.mark for each in commits if each.mark is not None]
    trusted = int(marks[-1].get("identifiers", len(loaded))) if marks and "checked" in marks[-1] else None
    has_foreign_rows = any(change.changes_data for each in commits if not each.by_loader for change in each.added)
    if not history.may_hold_unaccounted(extents, loaded, None if has_foreign_rows else trusted):
        return []
    return now.find_unaccounted_rows(loaded)


def _describe_unaccounted(found: Sequence[UnaccountedRows], loaded: Mapping[int, int], reader: str) -> str:
    """Describes rows that no identifier covers, and that this reader could count twice."""
    parts = []
    for partition, first, last in found[:NAMED_MAX]:
        if partition is None:
            parts.append("rows without a partition or an offset")
        elif partition in loaded:
            parts.append(
                f"rows of partition {partition} from offset {first} to {last}, loaded only up to {loaded[partition]}"
            )
        else:
            parts.append(f"rows of partition {partition} up to offset {last} and no transaction identifier of it")
    more = f" and of {len(found) - NAMED_MAX} more partitions" if len(found) > NAMED_MAX else ""
    return (
        f"holds {'; '.join(parts)}{more}: a {reader} could duplicate them (the identifiers expired by "
        "delta.setTransactionRetentionDuration, the table's log was rewritten, or others wrote these rows)"
    )


def _describe_removals(wholesale: Sequence[RowRemoval], now: Snapshot, loaded: Mapping[int, int]) -> str:
    """Describes the commits that removed rows, and what is left."""
    by = ", ".join(removal.description for removal in wholesale[-NAMED_MAX:])
    extents = now.extents()
    table_ends = {first: offset + 1 for first, last, offset, _ in extents if first == last and offset is not None}
    has_separate_files = all(first is not None and first == last for first, last, _, _ in extents)
    short = [
        (number, table_ends.get(number, 0), end)
        for number, end in sorted(loaded.items())
        if has_separate_files and table_ends.get(number, 0) < end
    ]
    parts = [
        f"partition {number} now ends at offset {there} and was loaded up to {end}" for number, there, end in short
    ]
    rest = f", and {len(parts) - NAMED_MAX} more" if len(parts) > NAMED_MAX else ""
    where = f" ({'; '.join(parts[:NAMED_MAX])}{rest})" if parts else ""
    return f"{by} removed them{where}"
