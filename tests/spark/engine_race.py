"""Races of both engines on one table: each loads the same new records at once, round after round.

python -m tests.spark.engine_race [ROUNDS]     on a directory and on S3, 200 rounds each
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.load.load import LoadProgress, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.load.table_loader import LoadEngine
from pyspark_tiered.proof.verify import verify
from pyspark_tiered.session import session
from pyspark_tiered.spark_engine import SparkEngine
from tests.fakes3 import s3_moto
from tests.spark import filling
from tests.spark.driver import FAST_START
from tiered.ids import PartitionId

TOPIC = filling.topic_id(9)
RECORDS = 30
"""New records of each partition in a round."""
PARTITIONS = 2
WAIT_SECONDS = 120.0


def race(spark: SparkSession, store: str, warehouse: str, rounds: int) -> Counter[str]:
    """Returns the rows that each engine loaded, after a check that they are the records, once each."""
    filling.create_topic(store, "race", TOPIC, PARTITIONS)
    engines: dict[str, LoadEngine] = {"spark": SparkEngine(spark), "native": NativeEngine()}
    won = Counter[str]()

    def run(name: str, converted: threading.Event, awaited: threading.Event) -> int:
        def report(progress: LoadProgress) -> None:
            if progress.step in ("converted", "done"):
                converted.set()

        awaited.wait(WAIT_SECONDS)
        return load(store, "race", warehouse, progress=report, engine=engines[name], split_bytes=1 << 20).rows

    for each in range(rounds):
        for number in range(PARTITIONS):
            first = each * RECORDS
            rows = [(filling.BASE_MS + i, b"k", b"%d" % i, ()) for i in range(first, first + RECORDS)]
            parts = list(filling.segments(rows, base_offset=first))
            filling.upload(store, "race", PartitionId(TOPIC, number), parts)
        with ThreadPoolExecutor(1) as pool:
            at_once, converted = threading.Event(), threading.Event()
            at_once.set()
            # Spark is slower, so in every second race the other one begins when Spark is about to commit.
            other = pool.submit(run, "native", threading.Event(), converted if each % 2 else at_once)
            won["spark"] += run("spark", converted, at_once)  # in the thread whose session is Delta's active one
            won["native"] += other.result()
    table = NativeTable(f"{spark_url(warehouse)}/race", "race", TOPIC)
    held = read_offsets(table)
    table.close()
    assert held == {number: list(range(rounds * RECORDS)) for number in range(PARTITIONS)}
    assert sum(won.values()) == rounds * RECORDS * PARTITIONS
    return won


def read_offsets(table: NativeTable) -> dict[int, list[int]]:
    """Returns the offsets in the table's files by partition, sorted."""
    found: dict[int, list[int]] = {}
    for add in table.snapshot().state.files.values():
        with table.folder.local(add["path"]) as path:
            held = pq.read_table(path, columns=["partition", "offset"]).to_pydict()
        for number, offset in zip(held["partition"], held["offset"], strict=True):
            found.setdefault(number, []).append(offset)
    return {number: sorted(offsets) for number, offsets in sorted(found.items())}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with s3_moto() as server, tempfile.TemporaryDirectory(prefix="tiered-race-") as folder:
        os.environ.update(server.environment)
        spark = session(master="local[2]", conf=FAST_START)
        for place in (f"file://{folder}", "s3://bucket/race"):
            won = race(spark, f"{place}/store", f"{place}/tables", rounds)
            found = verify(f"{place}/store", "race", f"{place}/tables", spark=spark)
            assert (found.ok, found.rows, found.gaps) == (True, rounds * RECORDS * PARTITIONS, ()), found
            print(f"{place}: {rounds} races, rows by engine: {dict(won)}, nothing lost or duplicate", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
