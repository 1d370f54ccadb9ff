"""A table's state and history as Delta's log has them: with `delta_commit`, all that touches Delta's Scala classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_tiered import history, table
from pyspark_tiered.history import FileExtent, TableCommit
from tiered.errors import Code, Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMITS_MAX = 1000
"""Of a log without any mark no more commits are looked at: one that a loader of today wrote to has few since."""
UNACCOUNTED_MAX = 1000
"""Partitions with rows that no identifier accounts for; no more are asked for."""


class UnaccountedRows(NamedTuple):
    """Rows of a partition that no identifier accounts for. No partition: rows without partition or offset."""

    partition: int | None
    first: int | None
    last: int | None


class TableSnapshot:
    """A table at one version. `version` -1: there is none."""

    def __init__(self, spark: SparkSession, log: Any, url: str, topic_id: str) -> None:
        jvm: Any = spark._jvm
        none = getattr(jvm.scala, "None$").__getattr__("MODULE$")
        self.handle = log.update(False, none, none)
        self.version = int(self.handle.version())
        self.url = url
        self._spark = spark
        self._log = log
        self._topic_id = topic_id

    def loaded_offsets(self) -> dict[int, int]:
        """Next offset per partition, by the transaction identifiers."""
        if self.version < 0:
            return {}
        jvm: Any = self._spark._jvm
        transactions = dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(self.handle.transactions()))
        return table.loaded_offsets(transactions, self._topic_id)

    def rows(self) -> DataFrame:
        """The table's rows, in the columns that a load writes; whatever else a user added stays out."""
        return self.all_columns().select(*table.COLUMNS)

    def all_columns(self) -> DataFrame:
        """The table's rows as they are."""
        return self._spark.read.format("delta").option("versionAsOf", self.version).load(self.url)

    def rows_of(self, files: Any) -> DataFrame:
        """All columns of the rows in these files, a Scala Seq of add actions."""
        from pyspark.sql import DataFrame

        jvm: Any = self._spark._jvm
        none = getattr(jvm.scala, "None$").__getattr__("MODULE$")
        return DataFrame(self._log.createDataFrame(self.handle, files, False, none), self._spark)

    def extents(self) -> list[FileExtent]:
        """What its files span, by their statistics: one for each span of partitions."""
        from pyspark.sql import DataFrame
        from pyspark.sql import functions as f

        files = DataFrame(self.handle.allFiles().toDF(), self._spark)
        number = "CAST(get_json_object(stats, '$.{0}Values.{1}') AS BIGINT) AS {2}"
        spans = files.selectExpr(
            number.format("min", "partition", "first"),
            number.format("max", "partition", "last"),
            number.format("max", "offset", "offset"),
        )
        # A file without statistics makes its whole group one without.
        most = f.when(f.max(f.col("offset").isNull()), None).otherwise(f.max("offset"))
        found = spans.groupBy("first", "last").agg(most.alias("offset")).collect()
        return [FileExtent(row["first"], row["last"], row["offset"]) for row in found]

    def find_unaccounted_rows(self, loaded: Mapping[int, int]) -> list[UnaccountedRows]:
        """Rows of partitions without an identifier, or at or above its bound; other files are not read."""
        from pyspark.sql import functions as f

        beyond_bounds = " OR ".join(
            f"(partition = {number} AND offset >= {end})" for number, end in sorted(loaded.items())
        )
        known = ", ".join(map(str, sorted(loaded))) or "-1"
        condition = f"partition IS NULL OR offset IS NULL OR partition NOT IN ({known}) OR {beyond_bounds or 'false'}"
        spans = self.all_columns().where(condition).groupBy("partition")
        found = spans.agg(f.min("offset").alias("first"), f.max("offset").alias("last"))
        return [UnaccountedRows(*row) for row in found.orderBy("partition").limit(UNACCOUNTED_MAX).collect()]

    def commits(self, above: int | None = None, past_marks: bool = False) -> tuple[list[TableCommit], bool]:
        """The commits of this version and before, in order: those after `above`, or after what the newest mark vouches
        for, or (`past_marks`) as many as the log still has. False with it: the log does not reach back so far."""
        found: list[TableCommit] = []
        floor = -1 if above is None else above
        version = self.version
        while version > floor and len(found) < COMMITS_MAX:
            text = self._commit_file(version)
            if text is None:
                break
            each = history.parse_commit(version, text, self._topic_id)
            found.append(each)
            if each.mark is not None and "checked" in each.mark and not past_marks:
                floor = max(floor, int(each.mark["checked"]))
                past_marks = True
            version -= 1
        return found[::-1], version <= floor

    def _commit_file(self, version: int) -> str | None:
        """A commit's lines; None when Delta has cleaned them away."""
        from py4j.protocol import Py4JJavaError

        jvm: Any = self._spark._jvm
        path = jvm.org.apache.spark.sql.delta.util.FileNames.unsafeDeltaFile(self._log.logPath(), version)
        try:
            return str(self._log.store().read(path, self._log.newDeltaHadoopConf()).mkString("\n"))
        except Py4JJavaError as failure:
            if "NotFound" not in str(failure.java_exception.getClass().getSimpleName()):
                raise
            return None


def check_table_topic(metadata: Any, url: str, topic: str, topic_id: str) -> None:
    """The table is this topic's, or `Refused`."""
    found = {key: metadata.configuration().get(key) for key in (table.TOPIC_ID, table.TOPIC_NAME)}
    identity, name = (str(value.get()) if value.isDefined() else "" for value in found.values())
    if identity != topic_id:
        held = f"topic {name} with id {identity}" if identity else "something else"
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {url} holds {held}, not topic {topic} with id {topic_id}: "
            "load into another warehouse, or move the old table away",
        )
