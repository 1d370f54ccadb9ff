"""Delta's own transaction, driven from Python: the only place that touches Delta's Scala classes.

A commit opens a transaction, reads inside it how far each partition is loaded (which puts these versions under Delta's
conflict detection) and goes on only where each still stands at its plan's start. After any failure the table is read
again before anything is said: who cannot know asks.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark_tiered import table
from pyspark_tiered.table import Advance, LoadedFile
from tiered.errors import Code, Refused, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class DeltaTable:
    """A topic's table at a folder (`file://` or `s3a://` URL)."""

    def __init__(self, spark: SparkSession, url: str, topic: str, topic_id: str) -> None:
        self.url = url
        self.topic = topic
        self.topic_id = topic_id
        self._jvm: Any = spark._jvm
        self._log: Any = self._delta.DeltaLog.forTable(spark._jsparkSession, url)

    @property
    def _delta(self) -> Any:
        return self._jvm.org.apache.spark.sql.delta

    def exists(self) -> bool:
        """Whether there is a Delta table at all; read afresh."""
        return bool(self._snapshot().version() >= 0)

    def loaded(self) -> dict[int, int]:
        """Next offset per partition; a partition never loaded is absent, a table that is not there has none.

        `Refused` when the table holds another topic, or an older one of this name.
        """
        snapshot = self._snapshot()
        if snapshot.version() < 0:
            return {}
        self._check(snapshot.metadata())
        converters = self._jvm.scala.jdk.javaapi.CollectionConverters
        return table.loaded(dict(converters.asJava(snapshot.transactions())), self.topic_id)

    def commit(self, files: Sequence[LoadedFile], advances: Sequence[Advance]) -> bool:
        """True: the files are in the table, these partitions at these ends. False: another was first, plan again.

        The first commit makes the table.
        `Unavailable` when the commit failed and the table, read again, is unchanged: the same call may be repeated.
        """
        from delta import exceptions as delta
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        lost = (
            delta.ConcurrentTransactionException,
            delta.ConcurrentWriteException,
            delta.DeltaConcurrentModificationException,
            delta.MetadataChangedException,
            delta.ProtocolChangedException,
        )
        try:
            return self._commit(files, advances)
        except lost as conflict:
            log.info("another loader was there first table=%s why=%s", self.url, first_line(conflict))
            return False
        except (Py4JError, PySparkException) as failure:
            state = self.loaded()
            log.warning("commit unclear, table read again table=%s why=%s", self.url, first_line(failure))
            if all(state.get(step.partition, -1) == step.end for step in advances):
                return self._holds(files)  # else another loader took the very same step
            if any(state.get(step.partition, -1) != step.start for step in advances):
                return False
            raise Unavailable(f"Delta could not commit to {self.url}: {first_line(failure)}") from failure

    def _commit(self, files: Sequence[LoadedFile], advances: Sequence[Advance]) -> bool:
        transaction = self._log.startTransaction()
        now_ms = time.time_ns() // 1_000_000
        lines = table.actions(self.topic_id, files, advances, now_ms)
        if transaction.readVersion() < 0:
            lines = table.creation(self.topic, self.topic_id, str(uuid.uuid4()), now_ms) + lines
        else:
            self._check(transaction.metadata())
        for step in advances:
            if transaction.txnVersion(table.app_id(self.topic_id, step.partition)) != step.start:
                return False
        parsed = [self._delta.actions.Action.fromJson(line) for line in lines]
        transaction.commit(self._seq(parsed), self._operation())
        return True

    def _holds(self, files: Sequence[LoadedFile]) -> bool:
        """Whether a commit of these files landed: all of them did or none."""
        if not files:
            return True
        return bool(self._snapshot().allFiles().where(f"path = '{files[0].path}'").count() == 1)

    def _operation(self) -> Any:
        """What the table's history shows: Delta's word for an append."""
        none = getattr(self._jvm.scala, "None$").__getattr__("MODULE$")
        append = self._jvm.org.apache.spark.sql.SaveMode.Append
        return self._delta.DeltaOperations.Write(append, none, none, none, none, none, none, none, none)

    def _snapshot(self) -> Any:
        none = getattr(self._jvm.scala, "None$").__getattr__("MODULE$")
        return self._log.update(False, none, none)

    def _check(self, metadata: Any) -> None:
        """The table is this topic's."""
        found = {key: metadata.configuration().get(key) for key in (table.TOPIC_ID, table.TOPIC_NAME)}
        identity, name = (str(value.get()) if value.isDefined() else "" for value in found.values())
        if identity != self.topic_id:
            held = f"topic {name} with id {identity}" if identity else "something else"
            raise Refused(
                Code.INVALID_REQUEST,
                f"the table at {self.url} holds {held}, not topic {self.topic} with id {self.topic_id}: "
                "load into another warehouse, or move the old table away",
            )

    def _seq(self, items: Sequence[Any]) -> Any:
        converters = self._jvm.scala.jdk.javaapi.CollectionConverters
        java = self._jvm.java.util.ArrayList()
        for item in items:
            java.add(item)
        return converters.asScala(java).toSeq()


def first_line(failure: BaseException) -> str:
    """What Java said, without its stack trace: the first line that says anything."""
    java = getattr(failure, "java_exception", None)
    text = str(java.toString()) if java is not None else str(failure)
    return text.strip().partition("\n")[0] or type(failure).__name__
