"""JSON into typed Delta tables: our load beside Spark's reader of JSON on plain files, with the same values and schema.

One warm session, `local[2]`, zstd level 1 in both, legs in the order A B B A. A load writes the raw table and the typed
one; Spark writes one table. CPU seconds are those of the whole process tree.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cpu_meter import CpuMeter
from bench.figures import Figure, median_ratio, run_pairs
from tests.spark import filling
from tiered.ids import PartitionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTS = {100: 800_000, 1024: 120_000}
"""Values of each size, and how many of them."""
PARTITIONS = 4
SEGMENT_RECORDS = 50_000
PAIRS = 2
TOPIC, TOPIC_ID = "events", filling.topic_id(1)
CITIES = ("Berlin", "Paris", "Oslo", "Rome", "Lima", "Accra")
SMALL = "id BIGINT, user BIGINT, price DOUBLE, city STRING, text STRING"
LARGE = f"{SMALL}, at TIMESTAMP, tags ARRAY<STRING>, place STRUCT<lat: DOUBLE, lon: DOUBLE>, notes ARRAY<STRING>"


def values(size: int, partition: int, count: int) -> Iterator[bytes]:
    """Yields values of about this many bytes, all of them different."""
    rng = random.Random(size * PARTITIONS + partition)
    for i in range(count):
        value: dict[str, object] = {
            "id": partition * count + i,
            "user": rng.randrange(10**6),
            "price": round(rng.random(), 6),
            "city": rng.choice(CITIES),
            "text": rng.randbytes(8).hex(),
        }
        if size > 100:
            value |= {
                "at": f"2026-11-{1 + i % 28:02d}T{i % 24:02d}:00:00Z",
                "tags": [rng.choice(CITIES) for _ in range(4)],
                "place": {"lat": rng.random(), "lon": rng.random()},
                "notes": [rng.randbytes(32).hex() for _ in range(10)],
            }
        yield json.dumps(value, separators=(",", ":")).encode()


class TypedRuns:
    """Counted loads of both kinds in one session, each into fresh tables."""

    def __init__(self, spark: SparkSession, root: Path, size: int) -> None:
        self._spark, self._root = spark, root
        self._schema = LARGE if size > 100 else SMALL
        self._records = COUNTS[size]
        self._count = 0
        self.bytes: dict[str, int] = {}
        self.value_bytes = self._fill(size) / self._records

    def _fill(self, size: int) -> int:
        """Writes the values to a bucket and to plain files. Returns their bytes."""
        store, files = f"file://{self._root}/store", self._root / "files"
        files.mkdir()
        filling.create_topic(store, TOPIC, TOPIC_ID, PARTITIONS)
        total = 0
        for number in range(PARTITIONS):
            made = list(values(size, number, self._records // PARTITIONS))
            total += sum(map(len, made))
            (files / f"{number}.json").write_bytes(b"\n".join(made) + b"\n")
            for first in range(0, len(made), SEGMENT_RECORDS):
                part = made[first : first + SEGMENT_RECORDS]
                rows = [(filling.BASE_MS + first + i, None, value, ()) for i, value in enumerate(part)]
                segments = list(filling.segments(rows, base_offset=first, batches_per_segment=SEGMENT_RECORDS // 100))
                filling.upload(store, TOPIC, PartitionId(TOPIC_ID, number), segments)
        return total

    def run_ours(self) -> float:
        return self._measure("ours", self._load)

    def run_plain(self) -> float:
        return self._measure("plain", self._load_plain)

    def _load(self, place: Path) -> Path:
        from pyspark_tiered.load.load import LoadOptions, load
        from pyspark_tiered.typed.form import ValueRules

        rules = ValueRules("json", self._schema)
        load(f"file://{self._root}/store", TOPIC, str(place), spark=self._spark, options=LoadOptions(values=rules))
        return place / f"{TOPIC}_typed"

    def _load_plain(self, place: Path) -> Path:
        rows = self._spark.read.schema(self._schema).json(str(self._root / "files"))
        rows.write.format("delta").save(str(place))
        return place

    def _measure(self, kind: str, leg: Callable[[Path], Path]) -> float:
        """Returns CPU seconds per million values."""
        self._count += 1
        with CpuMeter() as meter:
            table = leg(self._root / f"{kind}-{self._count}")
        held = self._spark.read.format("delta").load(str(table)).selectExpr("count(id)", "sum(id)").collect()[0]
        if tuple(held) != (self._records, self._records * (self._records - 1) // 2):
            raise RuntimeError(f"{kind} loaded {tuple(held)} of {self._records} values")
        self.bytes[kind] = sum(path.stat().st_size for path in table.glob("*.parquet"))
        return meter.seconds / self._records * 1e6


def main() -> list[Figure]:
    from pyspark_tiered.session import session

    conf = {"spark.sql.parquet.compression.codec": "zstd", "spark.hadoop.parquet.compression.codec.zstd.level": "1"}
    spark = session(master="local[2]", conf=conf)
    figures = []
    for size in COUNTS:
        with tempfile.TemporaryDirectory(prefix="tiered-bench-") as directory:
            runs = TypedRuns(spark, Path(directory), size)
            runs.run_plain()
            runs.run_ours()
            pairs = list(run_pairs(PAIRS, runs.run_ours, runs.run_plain))
        ratio, low, high = median_ratio(pairs)
        ours, plain = (statistics.median(each[at] for each in pairs) for at in (0, 1))
        name = f"typed load of {runs.value_bytes:.0f} B"
        figures += [
            Figure(name, ours, "CPU-s/M", note=f"with the raw table; Spark from plain files {plain:.1f}"),
            Figure(f"{name} / Spark from plain files", ratio, "x", 1.15, True, f"pairs {low:.2f}-{high:.2f}"),
            Figure(
                f"bytes of the typed table, {runs.value_bytes:.0f} B",
                runs.bytes["ours"] / runs.bytes["plain"],
                "x",
                1.1,
                True,
            ),
        ]
    spark.stop()
    return figures
