"""State and history of a table from Delta's log. Only this file and `delta_commit` touch Delta's Scala classes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_tiered.delta import table_form
from pyspark_tiered.delta.history import FileExtent
from pyspark_tiered.delta.snapshot import UNACCOUNTED_MAX, Snapshot, UnaccountedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


NUMBER_TYPES = {"partition": "int", "offset": "bigint", "timestamp_type": "tinyint"}


class TableFile(NamedTuple):
    """A file of a table, with its path as the table has it: relative to the folder, and quoted as a URL."""

    path: str
    size: int


class TableSnapshot(Snapshot):
    """A table at one version, by Spark."""

    def __init__(self, spark: SparkSession, log: Any, url: str, topic_id: str) -> None:
        super().__init__(url, topic_id)
        jvm: Any = spark._jvm
        none = getattr(jvm.scala, "None$").__getattr__("MODULE$")
        self.handle = log.update(False, none, none)
        self.version = int(self.handle.version())
        self._spark = spark
        self._log = log

    def loaded_offsets(self) -> dict[int, int]:
        if self.version < 0:
            return {}
        jvm: Any = self._spark._jvm
        transactions = dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(self.handle.transactions()))
        return table_form.loaded_offsets(transactions, self.topic_id)

    def read_metadata(self) -> dict[str, Any]:
        """Returns Delta's metadata of the table."""
        return read_metadata(self.handle.metadata())

    def properties(self) -> dict[str, str]:
        """Returns the table's properties."""
        return dict(self.read_metadata().get("configuration") or {})

    def rows(self) -> DataFrame:
        """Returns the table's rows, in the columns and types that a load writes. Columns of a user are left out."""
        return with_load_columns(self.all_columns())

    def all_columns(self) -> DataFrame:
        """Returns the table's rows with all columns."""
        return self._spark.read.format("delta").option("versionAsOf", self.version).load(self.url)

    def files(self) -> tuple[list[TableFile], list[TableFile]]:
        """Returns the files whose rows are all rows of the table, and those that only Spark can read.

        The second ones have a deletion vector, values of partition columns, or mapped names of columns.
        """
        from pyspark.sql import DataFrame

        columns = ["path", "size", "deletionVector IS NOT NULL AS has_vector", "partitionValues"]
        listed = DataFrame(self.handle.allFiles().toDF(), self._spark).selectExpr(*columns).collect()
        mode = self.handle.metadata().configuration().get("delta.columnMapping.mode")
        is_mapped = bool(mode.isDefined() and mode.get() != "none")
        plain, others = list[TableFile](), list[TableFile]()
        for path, size, has_vector, partition_values in listed:
            target = others if is_mapped or has_vector or partition_values else plain
            target.append(TableFile(path, size))
        return plain, others

    def rows_in(self, files: Sequence[TableFile]) -> DataFrame:
        """Returns the rows in some of the table's files, in the columns that a load writes."""
        paths = {file.path for file in files}
        jvm: Any = self._spark._jvm
        converters = jvm.scala.jdk.javaapi.CollectionConverters
        chosen = jvm.java.util.ArrayList()
        for file in self.handle.allFiles().collect():
            if str(file.path()) in paths:
                chosen.add(file)
        return with_load_columns(self.rows_of(converters.asScala(chosen).toSeq()))

    def rows_of(self, files: Any) -> DataFrame:
        """Returns the rows in these files (a Scala Seq of add actions), with all columns."""
        from pyspark.sql import DataFrame

        jvm: Any = self._spark._jvm
        none = getattr(jvm.scala, "None$").__getattr__("MODULE$")
        return DataFrame(self._log.createDataFrame(self.handle, files, False, none), self._spark)

    def extents(self) -> list[FileExtent]:
        """Returns the bounds of the table's files: one entry for each range of partitions.

        They come from the statistics of a file, or from its tag if it holds runs of several partitions.
        """
        from pyspark.sql import DataFrame
        from pyspark.sql import functions as f

        files = DataFrame(self.handle.allFiles().toDF(), self._spark)
        number = "CAST(get_json_object(stats, '$.{0}Values.{1}') AS BIGINT) AS {2}"
        runs = f"tags['{table_form.RUNS_TAG}']"
        spans = files.where(f"{runs} IS NULL").selectExpr(
            number.format("min", "partition", "first"),
            number.format("max", "partition", "last"),
            number.format("max", "offset", "offset"),
        )
        exploded = files.selectExpr(f"explode(from_json({runs}, 'array<array<bigint>>')) AS run")
        spans = spans.unionByName(exploded.selectExpr("run[0] AS first", "run[0] AS last", "run[2] AS offset"))
        # A file without statistics takes them from its whole group.
        most = f.when(f.max(f.col("offset").isNull()), None).otherwise(f.max("offset"))
        found = spans.groupBy("first", "last").agg(most.alias("offset")).collect()
        return [FileExtent(row["first"], row["last"], row["offset"]) for row in found]

    def find_unaccounted_rows(self, loaded: Mapping[int, int]) -> list[UnaccountedRows]:
        from pyspark.sql import functions as f

        beyond_bounds = " OR ".join(
            f"(partition = {number} AND offset >= {end})" for number, end in sorted(loaded.items())
        )
        known = ", ".join(map(str, sorted(loaded))) or "-1"
        condition = f"partition IS NULL OR offset IS NULL OR partition NOT IN ({known}) OR {beyond_bounds or 'false'}"
        spans = self.all_columns().where(condition).groupBy("partition")
        found = spans.agg(f.min("offset").alias("first"), f.max("offset").alias("last"))
        return [UnaccountedRows(*row) for row in found.orderBy("partition").limit(UNACCOUNTED_MAX).collect()]

    def has_file(self, path: str) -> bool:
        return bool(self.handle.allFiles().where(f"path = '{path}'").count() == 1)

    def read_commit(self, version: int) -> str | None:
        from py4j.protocol import Py4JJavaError

        jvm: Any = self._spark._jvm
        path = jvm.org.apache.spark.sql.delta.util.FileNames.unsafeDeltaFile(self._log.logPath(), version)
        try:
            return str(self._log.store().read(path, self._log.newDeltaHadoopConf()).mkString("\n"))
        except Py4JJavaError as failure:
            if "NotFound" not in str(failure.java_exception.getClass().getSimpleName()):
                raise
            return None


def with_load_columns(rows: DataFrame) -> DataFrame:
    """Returns the columns that a load writes, in its types: ALTER TABLE may have widened the numbers."""
    found = dict(rows.dtypes)
    widened = {name: kind for name, kind in NUMBER_TYPES.items() if found[name] != kind}
    return rows.selectExpr(
        *(f"try_cast({name} AS {widened[name]}) AS {name}" if name in widened else name for name in table_form.COLUMNS)
    )


def read_metadata(metadata: Any) -> dict[str, Any]:
    """Returns Delta's metadata (a Scala object) as it is in the log."""
    found: dict[str, Any] = json.loads(metadata.json())["metaData"]
    return found


def read_held_topic(metadata: Any) -> tuple[str, str]:
    """Returns id and name of the topic that a table holds, from its properties; empty texts if it holds none."""
    identity, name = (metadata.configuration().get(key) for key in (table_form.TOPIC_ID, table_form.TOPIC_NAME))
    return tuple(str(value.get()) if value.isDefined() else "" for value in (identity, name))  # type: ignore[return-value]
