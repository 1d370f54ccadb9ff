"""One driver of a race. The test itself is one; as a program this file is the other, which gets its orders as lines of
JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pyspark_tiered.delta.table_form import Advance, FileRun, LoadedFile
from pyspark_tiered.load.load import load
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.proof.erase import erase
from pyspark_tiered.proof.repair import repair
from pyspark_tiered.session import session
from pyspark_tiered.stream import append_once
from tests.spark.driver import FAST_START

LOG_STORES = {
    "delta's own on s3": "io.delta.storage.S3SingleDriverLogStore",
    "ours on s3": "tiered.delta.ConditionalS3LogStore",
    "delta's own in a directory": "io.delta.storage.LocalLogStore",
    "ours in a directory": "tiered.delta.LinkedFileLogStore",
}


def create(spark: SparkSession, driver: str, log_store: str, path: str) -> bool:
    """Creates one commit file; returns true if the log store reports that this driver created it."""
    jvm: Any = spark._jvm
    line = json.dumps({"commitInfo": {"txnId": driver}}, separators=(",", ":"))
    store = _log_store(spark, log_store)
    try:
        store.write(_path(spark, path), jvm.java.util.List.of(line).iterator(), False, _conf(spark))
    except Py4JJavaError as failure:
        if not failure.java_exception.getClass().getSimpleName().startswith("FileAlreadyExists"):
            raise
        return False
    return True


def owner(spark: SparkSession, log_store: str, path: str) -> str:
    """Returns the owner of a commit file; "nobody" if two drivers wrote it at once, so that its checksum is that of
    neither."""
    lines = _log_store(spark, log_store).read(_path(spark, path), _conf(spark))
    try:
        line = lines.next()
    except Py4JJavaError as failure:
        if "ChecksumException" not in str(failure):
            raise
        return "nobody"
    finally:
        lines.close()
    return str(json.loads(line)["commitInfo"]["txnId"])


def commits(spark: SparkSession, driver: str, table: str, partition: int, count: int) -> int:
    """Moves a partition forward by ten offsets until `count` commits were acknowledged."""
    told = 0
    with closing(NativeTable(table, "race", "race")) as delta:
        while told < count:
            start = delta.loaded_offsets().get(partition, -1)
            end = max(start, 0) + 10
            run = FileRun(partition, 10, end - 10, end - 1, 0, 0)
            file = LoadedFile(f"{driver}-{partition}-{end}.parquet", 1, 0, (run,))
            told += delta.commit([file], [Advance(partition, start, end)])
    return told


def load_all(spark: SparkSession, driver: str, store: str, warehouse: str, split_bytes: int) -> int:
    """Loads the topic of the tests; returns how many rows were reported to this driver as loaded."""
    return load(store, "flights", warehouse, spark=spark, split_bytes=split_bytes).rows


def repair_all(spark: SparkSession, driver: str, store: str, warehouse: str) -> int:
    """Repairs the table of the tests; returns how many rows this driver restored."""
    return repair(store, "flights", warehouse, spark=spark).rows


def erase_some(spark: SparkSession, driver: str, store: str, warehouse: str, where: str) -> int:
    """Erases rows from the table of the tests; returns how many were in the table."""
    return erase(store, "flights", warehouse, where, "asked for", spark=spark).removed


def stream(spark: SparkSession, driver: str, store: str, folder: str, rows: int, until: str) -> int:
    """Appends the topic of the tests to the Delta table `sink` of a folder, so many rows in a batch. Goes on for ever
    unless `until` is "end"."""
    source = spark.readStream.format("tiered").option("store", store).option("topic", "flights")
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(rows))
    writer = source.load().writeStream.foreachBatch(append_once(f"{folder}/sink", "kills"))
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    query = (writer.trigger(availableNow=True) if until == "end" else writer).start()
    query.awaitTermination()
    return len(query.recentProgress)


def make_folder(spark: SparkSession, folder: str) -> None:
    """Creates the table's log folder, as Delta does before it writes there."""
    path = _path(spark, folder)
    path.getFileSystem(_conf(spark)).mkdirs(path)


def _log_store(spark: SparkSession, name: str) -> Any:
    found: Any = spark._jvm
    for part in LOG_STORES[name].split("."):
        found = getattr(found, part)
    return found(_conf(spark))


def _conf(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.hadoopConfiguration()


def _path(spark: SparkSession, path: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(path)


def main() -> None:
    """Replies to each line `[race, arguments...]` with a line of its result."""
    races: dict[str, Callable[..., Any]] = {
        "create": create,
        "commits": commits,
        "load": load_all,
        "repair": repair_all,
        "erase": erase_some,
        "stream": stream,
    }
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Spark prints where it likes
    spark = session(master="local[1]", conf=FAST_START)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        race, *arguments = json.loads(line)
        print(json.dumps(races[race](spark, "other", *arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main()
