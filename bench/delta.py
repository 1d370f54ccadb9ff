"""A topic into Delta: our loader on the bucket beside Spark's Kafka source on Apache Kafka, with the same batches.

One warm session, `local[2]`, zstd level 1 in both, legs in the order A B B A. CPU seconds are those of the whole
process tree (this driver, its JVM, the Python workers), and for the Kafka source also of its broker.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bench.broker import BrokerProcess
from bench.cpu_meter import CpuMeter
from bench.figures import Figure, median_ratio, run_pairs
from tests.peer.kafka import Peer, tool
from tiered.records.batch import Codec, encode_batch, stamp
from tiered.records.native import walk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 5_000_000
PARTITIONS = 4
VALUE_BYTES = 100
BATCH_RECORDS = 148
"""About 16 KiB before compression."""
REQUEST_BYTES = 8 << 20
PAIRS = 4
TOPIC = "events"
STARTED_MS = int(time.time() * 1000)


def batches(partition: int) -> Iterator[bytearray]:
    """Yields a partition's records as zstd batches. All values differ; they compress to about 1 / 2.5 of their size."""
    rng = random.Random(partition)
    count = RECORDS // PARTITIONS
    for base in range(0, count, BATCH_RECORDS):
        rows = []
        for i in range(base, min(base + BATCH_RECORDS, count)):
            head = f'{{"id":{partition * count + i},"user":{rng.randrange(10**6)},"price":{rng.random():.6f},"text":"'
            rows.append(
                (STARTED_MS + i // 100, None, f"{head:a<{VALUE_BYTES - 2}}".encode()[: VALUE_BYTES - 2] + b'"}', ())
            )
        yield bytearray(encode_batch(rows, codec=Codec.ZSTD))


def fill(broker: BrokerProcess) -> None:
    """Writes our topic, all of it to the bucket."""
    broker.create_topic(TOPIC, PARTITIONS, segment_bytes=16 << 20, max_message_bytes=4 << 20)
    for partition in range(PARTITIONS):
        path, body = f"/topics/{TOPIC}/partitions/{partition}/records", bytearray()
        for batch in (*batches(partition), None):
            if body and (batch is None or len(body) + len(batch) > REQUEST_BYTES):
                status, answer = broker.request("POST", path, bytes(body), "application/octet-stream")
                if status != 200:
                    raise RuntimeError(f"raw produce: {status} {answer!r}")
                body.clear()
            body += batch or b""
    until = time.monotonic() + 300
    for partition in range(PARTITIONS):
        while (state := broker.partition(TOPIC, partition))["cold_end_offset"] < state["high_watermark"]:
            if time.monotonic() > until:
                raise RuntimeError(f"not cold after 300 s: {state}")
            time.sleep(0.2)


def fill_peer(peer: Peer) -> None:
    """Writes the same batches as Kafka's own log files. Kafka rebuilds the indexes when it starts."""
    tool("topics", "--bootstrap-server", peer.address, "--create", "--topic", TOPIC, "--partitions", str(PARTITIONS))
    peer.stop()
    (peer.logs / ".kafka_cleanshutdown").unlink(missing_ok=True)
    for partition in range(PARTITIONS):
        folder = peer.logs / f"{TOPIC}-{partition}"
        for old in folder.glob("0*"):
            old.unlink()
        offset = 0
        with (folder / f"{0:020d}.log").open("wb") as log:
            for batch in batches(partition):
                stamp(batch, 0, offset, 0)
                offset = walk(batch).batches[0].last_offset + 1
                log.write(batch)
    peer.start()


def load_ours(spark: SparkSession, store: str, warehouse: Path) -> None:
    from pyspark_tiered.load.load import load

    load(store, TOPIC, str(warehouse), spark=spark)


def load_kafka(spark: SparkSession, address: str, table: Path) -> None:
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", TOPIC)
    rows = source.option("startingOffsets", "earliest").option("endingOffsets", "latest").load()
    columns = ["partition", "offset", "timestamp", "timestampType AS timestamp_type", "key", "value"]
    rows.selectExpr(*columns).write.format("delta").save(str(table))


def table_digest(spark: SparkSession, table: Path) -> tuple[int, int]:
    """Returns (rows, sum of hashes over the columns that both tables have)."""
    rows = spark.read.format("delta").load(str(table))
    row = rows.selectExpr(
        "count(*) AS n", "sum(cast(xxhash64(partition, offset, timestamp, value) AS decimal(38))) AS h"
    ).collect()[0]
    return int(row.n), int(row.h)


class LoadRuns:
    """Counted loads of both kinds in one session, each into a fresh table."""

    def __init__(self, spark: SparkSession, store: str, peer: Peer, root: Path) -> None:
        self._spark, self._store, self._peer, self._root = spark, store, peer, root
        self._count = 0
        self.wall_seconds: dict[str, list[float]] = {"ours": [], "kafka": []}

    def run_ours(self) -> float:
        return self._rate("ours", lambda place: load_ours(self._spark, self._store, place))

    def run_kafka(self) -> float:
        return self._rate("kafka", lambda place: load_kafka(self._spark, self._peer.address, place))

    def _rate(self, kind: str, leg: Callable[[Path], None]) -> float:
        """Returns rows per CPU second of all processes that worked for the load."""
        self._count += 1
        place = self._root / f"{kind}-{self._count}"
        start = time.perf_counter()
        with CpuMeter() as meter:  # Kafka's broker is a child of this process; idle it costs 3 % of a core
            leg(place)
            self.wall_seconds[kind].append(time.perf_counter() - start)
        rows, self.last_digest = table_digest(self._spark, place / TOPIC if kind == "ours" else place)
        if rows != RECORDS:
            raise RuntimeError(f"{kind} loaded {rows} rows of {RECORDS}")
        return RECORDS / meter.seconds


def main() -> list[Figure]:
    from pyspark_tiered.session import session

    conf = {"spark.sql.parquet.compression.codec": "zstd", "spark.hadoop.parquet.compression.codec.zstd.level": "1"}
    with tempfile.TemporaryDirectory(prefix="tiered-bench-") as directory, Peer() as peer:
        root = Path(directory)
        with BrokerProcess(
            root / "data", "tiered.upload.max.lag.ms=2000", "log.retention.check.interval.ms=500"
        ) as broker:
            fill(broker)
        fill_peer(peer)
        spark = session(master="local[2]", conf=conf, profiles=("kafka",))
        runs = LoadRuns(spark, f"file://{root / 'data' / 'bucket'}", peer, root)
        runs.run_kafka()
        theirs_digest = runs.last_digest
        runs.run_ours()
        if runs.last_digest != theirs_digest:
            raise RuntimeError("the two tables differ")
        pairs = list(run_pairs(PAIRS, runs.run_ours, runs.run_kafka))
        spark.stop()
    ratio, low, high = median_ratio(pairs)
    ours = statistics.median(a for a, _ in pairs)
    theirs = statistics.median(b for _, b in pairs)
    wall = [statistics.median(runs.wall_seconds[kind][1:]) for kind in ("ours", "kafka")]
    return [
        Figure(
            "Delta load, 5 M x 100 B zstd", ours / 1e6, "M rows/CPU-s", 1.5, note=f"{wall[0]:.1f} s; CRCs checked"
        ),
        Figure(
            "Delta load / Spark's Kafka source", ratio, "x", 3.0,
            note=f"Kafka {theirs / 1e6:.2f} M, {wall[1]:.1f} s; pairs {low:.1f}-{high:.1f}",
        ),
    ]  # fmt: skip
