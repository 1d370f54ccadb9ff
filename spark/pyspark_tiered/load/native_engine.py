"""Loads without a JVM: this process converts, and the package's own writer of Delta's log commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from pyspark_tiered.delta.folder_url import bucket_prefix
from pyspark_tiered.delta.log_folder import BucketConnection, upload_file
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.load.recent_rows import RecentRows
from pyspark_tiered.load.rounds import ConversionResult
from pyspark_tiered.log.bucket import BatchReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_tiered.load.convert import ConversionTask
    from pyspark_tiered.spark_engine import SparkEngine

T = TypeVar("T")
R = TypeVar("R")

OnTask = Callable[[int, int], None]
"""Takes how many tasks are done, of how many."""


class NativeEngine:
    """An engine of loads in this process, one file after the other. Its connections are open until it is closed."""

    tasks = 1

    def __init__(self, on_task: OnTask = lambda *_: None) -> None:
        self._on_task = on_task
        self._connections: dict[str, BucketConnection] = {}
        self._readers: dict[str, BatchReader] = {}
        self._recent = RecentRows()

    def close(self) -> None:
        """Closes all connections."""
        for reader in self._readers.values():
            reader.close()
        for connection in self._connections.values():
            connection.close()
        self._readers, self._connections = {}, {}

    def open_table(self, url: str, topic: str, topic_id: str) -> NativeTable:
        """Opens a topic's table."""
        return NativeTable(url, topic, topic_id, self.connect(url), self._recent)

    def convert(self, what: str, tasks: Sequence[ConversionTask]) -> list[ConversionResult]:
        """Runs each task. Raises `Unavailable` for failures that are not in the log."""
        from pyspark_tiered.load.convert import convert_with  # imported late: a load with nothing new decodes nothing

        return [convert_with(self._reader(task.store), task, self._upload, self._recent) for task in tasks]

    def _reader(self, store: str) -> BatchReader:
        if store not in self._readers:
            self._readers[store] = BatchReader(store)
        return self._readers[store]

    def connect(self, url: str) -> BucketConnection | None:
        """Returns the connection to the bucket of a table; None for a table in a directory."""
        if urlsplit(url).scheme not in ("s3", "s3a"):
            return None
        root = f"s3a://{bucket_prefix(url)[0]}"
        if root not in self._connections:
            self._connections[root] = BucketConnection(root)
        return self._connections[root]

    def _upload(self, table_url: str, scratch: str, name: str) -> None:
        connection = self.connect(table_url)
        assert connection is not None
        connection.run(upload_file(connection.store, bucket_prefix(table_url)[1], scratch, name))

    def run_tasks(self, what: str, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Runs tasks one after the other, and returns their results."""
        results = []
        for done, task in enumerate(tasks):
            self._on_task(done, len(tasks))
            results.append(work(task))
        self._on_task(len(tasks), len(tasks))
        return results


def open_engine(spark: SparkSession | None, on_task: OnTask = lambda *_: None) -> NativeEngine | SparkEngine:
    """Returns the engine that runs tasks in a session; without one they run in this process, which calls `on_task`
    after each."""
    if spark is None:
        return NativeEngine(on_task)
    from pyspark_tiered.spark_engine import SparkEngine

    return SparkEngine(spark)
