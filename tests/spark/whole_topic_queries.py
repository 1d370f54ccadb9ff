"""Queries of a whole topic while producers, loaders, maintenance and retention run, by Spark or by `tiered sql`.

Each query has to count a prefix of the acknowledged log: no gap, no double, everything that was acknowledged before.

python -m tests.spark.whole_topic_queries [QUERIES [spark|native [MINUTES]]]     1,000 queries, or those of 60 minutes
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import confluent_kafka
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pyspark_tiered import table
from pyspark_tiered.load.load import load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.log.log_tail import BrokerTail
from pyspark_tiered.query.engine import SqlSession
from pyspark_tiered.session import session
from tests.e2e.serving import INTERNAL_CONFIGS, ServeProcess
from tests.spark.driver import FAST_START
from tiered.errors import Refused, Unavailable

TOPIC = "live"
PARTITIONS = 2
RECORDS = 20
"""Records that are produced to each partition at once."""
PAUSE_SECONDS = 0.2
LOADS = 0.3
"""Seconds between two loads without a JVM."""
SPARK_LOAD_EVERY, OPTIMIZE_EVERY = 25, 40
"""Queries after which Spark loads, or joins the files."""
CONFIGS = {"internal.segment.bytes": "8192", "local.retention.bytes": "16384", "retention.bytes": "131072"}


Counted = dict[int, tuple[int, ...]]
"""Partition -> its first offset, number of rows, number of distinct offsets, and end."""


class Site:
    """A broker with a topic, and the ends of what was sent and acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.broker = ServeProcess(folder / "data", *INTERNAL_CONFIGS, "-c", "log.retention.check.interval.ms=200")
        self.store, self.warehouse = f"file://{folder}/data/bucket", str(folder / "tables")
        self.sent, self.acknowledged = [0] * PARTITIONS, [0] * PARTITIONS
        self.loads = Counter[str]()
        self._running: list[Future[None]] = []
        self.has_loaded = threading.Event()
        self._stop = threading.Event()
        cluster = self.broker.ask("GET", "/tiered/v1/node")[1]["cluster_id"]
        settings = [{"name": name, "value": value} for name, value in CONFIGS.items()]
        body = {"topic_name": TOPIC, "partitions_count": PARTITIONS, "configs": settings}
        status, answer = self.broker.ask("POST", f"/v3/clusters/{cluster}/topics", body)
        assert status == 201, answer

    @contextmanager
    def running(self) -> Iterator[None]:
        """Produces and loads in threads."""
        with ThreadPoolExecutor(2) as pool:
            self._running = [pool.submit(self._produce), pool.submit(self._load)]
            try:
                yield
            finally:
                self._stop.set()
            self.check_running()

    def check_running(self) -> None:
        """Raises what ended a thread."""
        for each in self._running:
            if each.done():
                each.result()

    def _produce(self) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.broker.kafka, "acks": "all", "enable.idempotence": True}
        )

        def acknowledge(error: object, message: confluent_kafka.Message) -> None:
            assert error is None, error
            number, offset = message.partition(), message.offset()
            assert number is not None and offset is not None
            self.acknowledged[number] = max(self.acknowledged[number], offset + 1)

        while not self._stop.wait(PAUSE_SECONDS):
            for number in range(PARTITIONS):
                self.sent[number] += RECORDS
                for i in range(self.sent[number] - RECORDS, self.sent[number]):
                    producer.produce(TOPIC, f"{i:08d}" * 12, partition=number, on_delivery=acknowledge)
            producer.flush(60)

    def _load(self) -> None:
        engine = NativeEngine()
        while not self._stop.wait(LOADS):
            self.load(engine)

    def load(self, engine: NativeEngine | None = None, spark: SparkSession | None = None) -> None:
        name = "native" if spark is None else "spark"
        try:
            done = load(self.store, TOPIC, self.warehouse, engine=engine, spark=spark)
        except Unavailable:
            self.loads[f"{name} gave way"] += 1
            return
        if done.files:
            self.loads[name] += 1
            self.has_loaded.set()


def count_by_spark(spark: SparkSession, site: Site) -> Counted:
    frame = table(spark, TOPIC, warehouse=site.warehouse, bootstrap=site.broker.url)
    bounds = (f.min("offset"), f.count("*"), f.countDistinct("offset"), f.max("offset") + 1)
    return {row[0]: tuple(row[1:]) for row in frame.groupBy("partition").agg(*bounds).collect()}


def count_by_sql(sql: SqlSession) -> Counted:
    query = (
        f"SELECT partition, min(offset), count(*), count(DISTINCT offset), max(offset) + 1 FROM {TOPIC} GROUP BY ALL"
    )
    return {row[0]: tuple(row[1:]) for row in sql.run(query).collect().rows}


def check_query(count: Callable[[], Counted], site: Site) -> bool:
    """Counts the topic. Returns false if records expired between the look and the read, which is refused."""
    low = list(site.acknowledged)
    try:
        rows = count()
    except (Refused, PySparkException) as refused:
        if any(words in str(refused) for words in ("expired", "are not all in the log", " is not in ")):
            return False
        raise
    high = list(site.sent)
    for number in range(PARTITIONS):
        first, held, places, end = rows.get(number, (0, 0, 0, 0))
        assert (first, held, places) == (0, end, end), f"partition {number}: {rows}"
        assert low[number] <= end <= high[number], f"partition {number}: {low} {rows} {high}"
    return True


def optimize(spark: SparkSession, site: Site) -> bool:
    """Joins the table's files by Spark. Returns false if the other engine joined some of them first."""
    try:
        spark.sql(f"OPTIMIZE delta.`{site.warehouse}/{TOPIC}`")
    except PySparkException as conflict:
        if "CONCURRENT" not in str(conflict).upper():
            raise
        return False
    return True


def run_queries(spark: SparkSession | None, folder: Path, queries: int, minutes: float = 60) -> Counter[str]:
    """Returns how many queries and loads there were, after a check of each query. Without Spark, DuckDB counts.

    There are so many queries, or those of so many minutes if these are fewer.
    """
    site, until = Site(folder), time.monotonic() + 60 * minutes
    found = Counter[str]()
    with site.broker:
        with site.running(), ExitStack() as stack:
            assert site.has_loaded.wait(120)
            sql = stack.enter_context(SqlSession(site.warehouse, BrokerTail(site.broker.url)))
            count = partial(count_by_sql, sql) if spark is None else partial(count_by_spark, spark, site)
            while found["queries"] < queries and time.monotonic() < until:
                site.check_running()
                found["queries" if check_query(count, site) else "refused"] += 1
                if spark is not None and found["queries"] % SPARK_LOAD_EVERY == 0:
                    site.load(spark=spark)
                if spark is not None and found["queries"] % OPTIMIZE_EVERY == 0:
                    found["joined by Spark"] += optimize(spark, site)
        partition = site.broker.ask("GET", f"/tiered/v1/topics/{TOPIC}/partitions/0")[1]
        found["log start of partition 0"] = partition["log_start_offset"]
        found["end of partition 0"] = site.acknowledged[0]
    return found + site.loads


def main() -> None:
    queries = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    minutes = float(sys.argv[3]) if len(sys.argv) > 3 else 60
    with tempfile.TemporaryDirectory(prefix="tiered-queries-") as folder:
        spark = session(master="local[2]", conf=FAST_START) if sys.argv[2:3] != ["native"] else None
        found = run_queries(spark, Path(folder), queries, minutes)
        if spark is not None:
            spark.stop()
    print(f"{dict(found)}: each count is a prefix of the acknowledged log", flush=True)


if __name__ == "__main__":
    main()
