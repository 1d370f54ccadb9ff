"""Commits to a table by Delta's own transaction, driven from Python, and checks before that the table is sound.

A commit opens a transaction and reads in it how far each partition is loaded, which puts these versions under Delta's
conflict detection. The commit goes on only if each partition is still where its plan starts. After a failure of unknown
outcome it reads the table again before it reports anything.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark_tiered import history, table
from pyspark_tiered.delta_log import TableSnapshot, UnaccountedRows, check_table_topic
from pyspark_tiered.failures import first_line
from pyspark_tiered.history import FileExtent, RowRemoval, TableCommit
from pyspark_tiered.table import Advance, LoadedFile
from tiered.errors import Code, Refused, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

NAMED_MAX = 3
"""Partitions that an error names at most."""


class DeltaTable:
    """A topic's table in a folder (`file://` or `s3a://` URL)."""

    def __init__(self, spark: SparkSession, url: str, topic: str, topic_id: str) -> None:
        self.url = url
        self.topic = topic
        self.topic_id = topic_id
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._log: Any = self._delta.DeltaLog.forTable(spark._jsparkSession, url)
        # The version up to which this process found the table sound, and the identifiers that it then had.
        self._checked_version: int | None = None
        self._checked_offsets: dict[int, int] = {}

    @property
    def _delta(self) -> Any:
        return self._jvm.org.apache.spark.sql.delta

    def exists(self) -> bool:
        """True if there is a Delta table. Reads the log again."""
        return self.snapshot().version >= 0

    def snapshot(self) -> TableSnapshot:
        """Returns the table as it is now. Raises `Refused` if it holds another topic, or an older one of this name."""
        found = TableSnapshot(self._spark, self._log, self.url, self.topic_id)
        if found.version >= 0:
            check_table_topic(found.handle.metadata(), self.url, self.topic, self.topic_id)
        return found

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
        loaded = now.loaded_offsets()
        if now.version < 0:
            self._checked_version = now.version  # no commit yet, so there is nothing to check
        if now.version == self._checked_version:
            return loaded
        commits, is_complete = now.commits(self._checked_version)
        if not is_complete:
            oldest = commits[0].version if commits else now.version
            log.warning(
                "table history is gone, run `tiered verify` to check the rows before_version=%d table=%s",
                oldest,
                self.url,
            )
        self._check_bounds(now, commits, loaded)
        self._check_row_removals(commits, now, loaded, accept_deletes)
        self._checked_version, self._checked_offsets = now.version, loaded
        return loaded

    def _check_bounds(self, now: TableSnapshot, commits: Sequence[TableCommit], loaded: dict[int, int]) -> None:
        """Raises `Refused` if the table has rows that no identifier covers: the next load would repeat them."""
        marks = [each.mark for each in commits if each.mark is not None]
        trusted = int(marks[-1].get("identifiers", len(loaded))) if marks and "checked" in marks[-1] else None
        if self._checked_version is None:
            extents = now.extents()
        else:
            extents = [
                change.extent for each in commits if not each.by_loader for change in each.added if change.changes_data
            ]
            extents += [FileExtent(lost, lost, 0) for lost in self._checked_offsets.keys() - loaded.keys()]
        has_foreign_rows = any(change.changes_data for each in commits if not each.by_loader for change in each.added)
        if history.may_hold_unaccounted(extents, loaded, None if has_foreign_rows else trusted) and (
            found := now.find_unaccounted_rows(loaded)
        ):
            raise Refused(Code.INVALID_REQUEST, f"the table at {self.url} {_describe_unaccounted(found, loaded)}")

    def _check_row_removals(
        self, commits: Sequence[TableCommit], now: TableSnapshot, loaded: dict[int, int], accept_deletes: bool
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
                f"the table at {self.url} lacks loaded rows: {_describe_removals(wholesale, now, loaded)}",
            )
        for removal in found:
            log.warning(
                "rows were removed from the table since the last load, loading goes on table=%s by=%s",
                self.url,
                removal.description,
            )

    def mark_sound(self, at: TableSnapshot, loaded: dict[int, int], **mark_fields: Any) -> bool:
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

    def commit(self, files: Sequence[LoadedFile], advances: Sequence[Advance], **mark_fields: Any) -> bool:
        """Commits files and advances. Returns false if another writer committed first: then plan again.

        The first commit creates the table. `mark_fields` go into the mark. Raises `Unavailable` if the commit failed
        and the table, read again, is unchanged: the same call may be repeated.
        """
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            return self._commit(files, advances, mark_fields)
        except conflict_errors() as conflict:
            log.info("another loader committed first table=%s why=%s", self.url, first_line(conflict))
            return False
        except (Py4JError, PySparkException) as failure:
            state = self.loaded_offsets()
            log.warning(
                "commit has an unknown outcome, table read again table=%s why=%s", self.url, first_line(failure)
            )
            if all(state.get(step.partition, -1) == step.end for step in advances):
                return self._has_landed(files)  # else another loader committed the same step
            if any(state.get(step.partition, -1) != step.start for step in advances):
                return False
            raise Unavailable(f"Delta could not commit to {self.url}: {first_line(failure)}") from failure

    def _commit(self, files: Sequence[LoadedFile], advances: Sequence[Advance], mark_fields: dict[str, Any]) -> bool:
        transaction = self._log.startTransaction()
        now_ms = time.time_ns() // 1_000_000
        lines = table.commit_actions(self.topic_id, files, advances, now_ms)
        if transaction.readVersion() < 0:
            lines = table.creation_actions(self.topic, self.topic_id, str(uuid.uuid4()), now_ms) + lines
        else:
            check_table_topic(transaction.metadata(), self.url, self.topic, self.topic_id)
        if not self.is_at_start(transaction, advances):
            return False
        mark = self.encode_mark(files, advances, **({"checked": self._checked_version} | mark_fields))
        transaction.commit(self.to_scala_seq(map(self.parse_action, lines)), self.write_operation(mark))
        return True

    def is_at_start(self, transaction: Any, advances: Sequence[Advance]) -> bool:
        """True if each partition is where its step starts.

        From now on the transaction fails if another writer moves one of them.
        """
        found = [transaction.txnVersion(table.app_id(self.topic_id, step.partition)) for step in advances]
        return all(version == step.start for version, step in zip(found, advances, strict=True))

    def encode_mark(self, files: Sequence[LoadedFile], advances: Sequence[Advance], **mark_fields: Any) -> str:
        """Returns the `userMetadata` of a commit."""
        known = {"identifiers": len(self._checked_offsets.keys() | {step.partition for step in advances})}
        return history.encode_mark(self.topic, files, advances, **(known | mark_fields))

    def _has_landed(self, files: Sequence[LoadedFile]) -> bool:
        """True if a commit with these files landed: either all of them are in the table, or none."""
        if not files:
            return True
        return bool(self.snapshot().handle.allFiles().where(f"path = '{files[0].path}'").count() == 1)

    def begin_transaction(self, at: TableSnapshot) -> Any:
        """Returns a transaction that starts at this version, regardless of later commits."""
        none = getattr(self._jvm.scala, "None$").__getattr__("MODULE$")
        return self._log.startTransaction(none, self._jvm.scala.Option.apply(at.handle))

    def write_operation(self, mark: str) -> Any:
        """Returns the entry of the table's history: Delta's word for an append, and the mark."""
        none = getattr(self._jvm.scala, "None$").__getattr__("MODULE$")
        append = self._jvm.org.apache.spark.sql.SaveMode.Append
        user_metadata = self._jvm.scala.Option.apply(mark)
        return self._delta.DeltaOperations.Write(append, none, none, user_metadata, none, none, none, none, none)

    def parse_action(self, line: str) -> Any:
        """Returns one of Delta's actions from its JSON."""
        return self._delta.actions.Action.fromJson(line)

    def to_scala_seq(self, items: Iterable[Any]) -> Any:
        """Returns a Scala Seq."""
        converters = self._jvm.scala.jdk.javaapi.CollectionConverters
        java = self._jvm.java.util.ArrayList()
        for item in items:
            java.add(item)
        return converters.asScala(java).toSeq()


def conflict_errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions that Delta raises if another writer committed first."""
    from delta import exceptions as delta

    return (
        delta.ConcurrentTransactionException,
        delta.ConcurrentWriteException,
        delta.DeltaConcurrentModificationException,
        delta.MetadataChangedException,
        delta.ProtocolChangedException,
    )


def _describe_unaccounted(found: Sequence[UnaccountedRows], loaded: Mapping[int, int]) -> str:
    """Describes rows that no identifier covers, and the way out."""
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
        f"holds {'; '.join(parts)}{more}: a load could duplicate them (the identifiers expired by "
        "delta.setTransactionRetentionDuration, the table's log was rewritten, or others wrote these rows). "
        "`tiered load --repair` compares the table with the log and repairs both"
    )


def _describe_removals(wholesale: Sequence[RowRemoval], now: TableSnapshot, loaded: Mapping[int, int]) -> str:
    """Describes the commits that removed rows, what is left, and the way out."""
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
    return (
        f"{by} removed them{where}. `tiered load --repair` puts back what the log still holds, "
        "`tiered load --accept-deletes` goes on without them"
    )
