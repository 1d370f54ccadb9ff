"""Commits to a table by Delta's own transaction, driven from Python.

A commit opens a transaction and reads in it how far each partition is loaded, which puts these versions under Delta's
conflict detection. The commit goes on only if each partition is still where its plan starts. After a failure of unknown
outcome the table is read again before anything is reported. Keeps I27.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark_tiered.delta import table_features, table_form
from pyspark_tiered.delta.delta_log import TableSnapshot, read_held_topic, read_metadata
from pyspark_tiered.delta.snapshot import check_columns, check_table_topic
from pyspark_tiered.delta.table_form import Advance, LoadedFile
from pyspark_tiered.delta.topic_table import TopicTable
from pyspark_tiered.failures import delta_refusal, first_line
from tiered.errors import Code, Refused, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class DeltaTable(TopicTable):
    """A topic's table in a folder (`file://` or `s3a://` URL), by Spark."""

    def __init__(self, spark: SparkSession, url: str, topic: str, topic_id: str) -> None:
        super().__init__(url, topic, topic_id)
        conflict_errors()  # the import converts failures of the JVM, also the first one
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._log: Any = self._delta.DeltaLog.forTable(spark._jsparkSession, url)

    @property
    def _delta(self) -> Any:
        return self._jvm.org.apache.spark.sql.delta

    def snapshot(self) -> TableSnapshot:
        found = TableSnapshot(self._spark, self._log, self.url, self.topic_id)
        if found.version >= 0:
            check_table_topic(read_held_topic(found.handle.metadata()), self.url, self.topic, self.topic_id)
            check_columns(found.handle.metadata().schemaString(), self.url)
        return found

    def commit(self, files: Sequence[LoadedFile], advances: Sequence[Advance], **mark_fields: Any) -> bool:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            return self._commit(files, advances, mark_fields)
        except conflict_errors() as conflict:
            log.info("another loader committed first table=%s why=%s", self.url, first_line(conflict))
            return False
        except (Py4JError, PySparkException) as failure:
            try:
                return self.judge_unclear_commit(files, advances, first_line(failure))
            except Unavailable:
                self.check_refused(failure)
                raise

    def check_refused(self, failure: BaseException) -> None:
        """Raises `Refused` if Delta said no to a commit that left the table as it was: the same one will not pass."""
        if refusal := delta_refusal(failure):
            raise Refused(
                Code.INVALID_REQUEST, f"Delta refuses a change of the table at {self.url}: {refusal}"
            ) from failure

    def check_writable(self, now: TableSnapshot) -> None:
        if now.version >= 0:
            table_features.check_append(now.read_metadata(), self.url)

    def _commit(self, files: Sequence[LoadedFile], advances: Sequence[Advance], mark_fields: dict[str, Any]) -> bool:
        transaction = self._log.startTransaction()
        now_ms = time.time_ns() // 1_000_000
        lines = table_form.commit_actions(self.topic_id, files, advances, now_ms)
        if transaction.readVersion() < 0:
            lines = table_form.creation_actions(self.topic, self.topic_id, str(uuid.uuid4()), now_ms) + lines
        else:
            check_table_topic(read_held_topic(transaction.metadata()), self.url, self.topic, self.topic_id)
            check_columns(transaction.metadata().schemaString(), self.url)
            if files:
                table_features.check_append(read_metadata(transaction.metadata()), self.url)
        if not self.is_at_start(transaction, advances):
            return False
        mark = self.encode_mark(files, advances, **({"checked": self.checked_version} | mark_fields))
        self._register_metrics(transaction, files)
        transaction.commit(self.to_scala_seq(map(self.parse_action, lines)), self.write_operation(mark))
        return True

    def _register_metrics(self, transaction: Any, files: Sequence[LoadedFile]) -> None:
        """Hands Delta the numbers that the history of the table shows in `operationMetrics`."""
        counts = {
            "numFiles": len(files),
            "numOutputRows": sum(file.rows for file in files),
            "numOutputBytes": sum(file.size for file in files),
        }
        context = self._spark.sparkContext._jsc.sc()
        metrics = self._jvm.java.util.HashMap()
        for name, count in counts.items():
            metric = self._jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric(context, name)
            metric.set(count)
            metrics.put(name, metric)
        transaction.registerSQLMetrics(self._spark._jsparkSession, self._jvm.PythonUtils.toScalaMap(metrics))

    def is_at_start(self, transaction: Any, advances: Sequence[Advance]) -> bool:
        """True if each partition is where its step starts.

        From now on the transaction fails if another writer moves one of them.
        """
        found = [transaction.txnVersion(table_form.app_id(self.topic_id, step.partition)) for step in advances]
        return all(version == step.start for version, step in zip(found, advances, strict=True))

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
        delta.ConcurrentAppendException,
        delta.ConcurrentDeleteDeleteException,
        delta.ConcurrentDeleteReadException,
        delta.ConcurrentTransactionException,
        delta.ConcurrentWriteException,
        delta.DeltaConcurrentModificationException,
        delta.MetadataChangedException,
        delta.ProtocolChangedException,
    )
