"""Iceberg's metadata beside a table: their share of the CPU of a load by the native engine, in this process.

The CPU inside of the export is measured, and not the difference of two loads: that is smaller than their noise. There
are as many rounds before as a metadata file names versions, so that a commit costs what every later one costs.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

from bench.figures import Figure
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.iceberg.export import IcebergExport
from pyspark_tiered.iceberg.metadata import SNAPSHOTS_MAX
from pyspark_tiered.load.load import LoadOptions, TopicLoader
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.log.bucket import ColdTopicReader
from tests.spark import filling
from tiered.ids import PartitionId

TOPIC, TOPIC_ID = "events", filling.topic_id(1)
PARTITIONS = 4
SMALL_ROUND, LARGE_ROUND = 100, 50_000
"""Records of a round in each partition."""
LARGE_ROUNDS = 10


class Rounds:
    """A topic that grows, and a loader that follows it."""

    def __init__(self, root: Path) -> None:
        self._store = f"file://{root}/store"
        self._end = 0
        filling.create_topic(self._store, TOPIC, TOPIC_ID, PARTITIONS)
        url, reader = spark_url(f"{root}/tables/{TOPIC}"), ColdTopicReader(self._store)
        options = LoadOptions(iceberg=True)
        self.loader = TopicLoader(NativeEngine(), reader, self._store, TOPIC, url, lambda _: None, None, options)

    def run(self, records: int) -> tuple[float, float]:
        """Adds records to each partition, and loads them. Returns CPU milliseconds: of the export, and of the rest."""
        self._grow(records)
        inside = 0.0
        catch_up = IcebergExport.catch_up

        def measured(export: IcebergExport) -> None:
            nonlocal inside
            begun = time.process_time()
            catch_up(export)
            inside += time.process_time() - begun

        IcebergExport.catch_up = measured  # type: ignore[assignment, method-assign]
        begun = time.process_time()
        try:
            self.loader.run()
        finally:
            IcebergExport.catch_up = catch_up  # type: ignore[method-assign]
        return inside * 1e3, (time.process_time() - begun - inside) * 1e3

    def _grow(self, records: int) -> None:
        for number in range(PARTITIONS):
            rows = [
                (filling.BASE_MS + at, b"k%d" % at, os.urandom(40).hex().encode(), ())
                for at in range(self._end, self._end + records)
            ]
            upload = list(filling.segments(rows, base_offset=self._end))
            filling.upload(self._store, TOPIC, PartitionId(TOPIC_ID, number), upload)
        self._end += records


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="tiered-bench-") as directory:
        rounds = Rounds(Path(directory))
        with closing(rounds.loader):
            small = [rounds.run(SMALL_ROUND) for _ in range(SNAPSHOTS_MAX + 30)][SNAPSHOTS_MAX:]
            large = [rounds.run(LARGE_ROUND) for _ in range(LARGE_ROUNDS)]
    ratio = 1 + sum(inside for inside, _ in large) / sum(rest for _, rest in large)
    name = f"load of {PARTITIONS * LARGE_ROUND:,} records with Iceberg's metadata / without"
    inside, rest = (statistics.median(each[at] for each in small) for at in (0, 1))
    return [
        Figure(name, ratio, "x", 1.03, True),
        Figure("Iceberg's metadata of one commit", inside, "CPU-ms", note=f"the rest of a small load {rest:.0f}"),
    ]
