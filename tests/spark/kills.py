"""Kills of repairs, erasures and streams at random moments. Each kill ends a process with its JVM, and is followed by a
check of what the process left.

python -m tests.spark.kills repair|erase|stream [KILLS]     20 kills of a repair or an erasure, 50 of a stream
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from pyspark_tiered.delta.delta_state import TableState, parse_actions
from pyspark_tiered.delta.log_folder import LOG
from pyspark_tiered.load.load import load
from pyspark_tiered.proof.erase import erase
from pyspark_tiered.proof.repair import repair
from pyspark_tiered.proof.verify import verify
from pyspark_tiered.session import session
from tests.spark import filling
from tests.spark.driver import FAST_START, other_driver
from tiered.ids import PartitionId

TOPIC = filling.topic_id(1)
PARTITIONS = 2
RECORDS = 3000
HARM = (
    "DELETE FROM {t} WHERE offset BETWEEN 100 AND 140",
    "UPDATE {t} SET value = key, key = value WHERE offset BETWEEN 700 AND 705",
    "INSERT INTO {t} SELECT * FROM {t} WHERE (offset = 5 OR offset = 2999)",
)
ERASED_AT_ONCE = 50
"""Offsets of each partition that one erasure removes."""
STREAMED = 300
"""New records of each partition before each kill of a stream."""
ROWS_PER_BATCH = 50
ROWS_PER_LAST_BATCH = 10_000
"""The last run takes what the kills left in a few batches. Only the batch that was begun has its old bounds."""

Faults = Mapping[int, frozenset[tuple[str, int]]]
"""Partition -> kind and offset of each fault."""


def fill(store: str, first: int, count: int) -> None:
    for number in range(PARTITIONS):
        rows = [(filling.BASE_MS + i, b"k%d" % i, b"%d:%d" % (number, i), ()) for i in range(first, first + count)]
        filling.upload(store, "flights", PartitionId(TOPIC, number), list(filling.segments(rows, base_offset=first)))


def run_whole(what: str, *order: str | int) -> float:
    """Runs an order in a driver of its own. Returns the seconds that it took after the start of the driver."""
    with other_driver() as driver:
        began = time.monotonic()
        driver.start(what, *order)
        driver.result()
        return time.monotonic() - began


def run_killed(seconds: float, what: str, *order: str | int) -> bool:
    """Runs an order and kills its driver after so many seconds. Returns true if the order was done before that."""
    with other_driver() as driver:
        driver.start(what, *order)
        return driver.kill_after(seconds)


def note(found: Counter[str], moment: str) -> None:
    """Counts the moment of a kill whose effects were checked."""
    found[moment] += 1
    print(f"kill {found.total()}: {moment}", flush=True)


class LoadedTopic:
    """A topic of two partitions with 3,000 records each, and its table."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self.spark = spark
        self.store, self.warehouse = f"file://{folder}/store", f"{folder}/tables"
        filling.create_topic(self.store, "flights", TOPIC, PARTITIONS)
        fill(self.store, 0, RECORDS)
        load(self.store, "flights", self.warehouse, spark=spark)

    def harm(self) -> None:
        for statement in HARM:
            self.spark.sql(statement.format(t=f"delta.`{self.warehouse}/flights`"))

    def check(self) -> tuple[Faults, int]:
        """Returns the faults, and how many rows were erased lawfully."""
        found = verify(self.store, "flights", self.warehouse, spark=self.spark)
        faults: dict[int, set[tuple[str, int]]] = {}
        for fault in found.faults:
            faults.setdefault(fault.partition, set()).add((fault.kind, fault.offset))
        return {number: frozenset(each) for number, each in faults.items()}, found.erased

    def count(self) -> tuple[int, int]:
        """Returns the number of rows, and of distinct places."""
        table = self.spark.read.format("delta").load(f"{self.warehouse}/flights")
        (found,) = table.selectExpr("count(*)", "count(DISTINCT partition, offset)").collect()
        return found[0], found[1]


def kill_repairs(topic: LoadedTopic, kills: int, drawn: random.Random) -> Counter[str]:
    """After each kill a partition is whole or as harmed as before, and a second repair makes the table whole."""
    topic.harm()
    seconds = run_whole("repair", topic.store, topic.warehouse)
    found = Counter[str]()
    for _ in range(kills):
        topic.harm()
        before, _ = topic.check()
        assert len(before) == PARTITIONS, before
        done = run_killed(drawn.uniform(0, seconds), "repair", topic.store, topic.warehouse)
        after, _ = topic.check()
        assert all(faults == before[number] for number, faults in after.items()), (before, after)
        repair(topic.store, "flights", topic.warehouse, spark=topic.spark)
        assert topic.check()[0] == {}
        assert topic.count() == (RECORDS * PARTITIONS,) * 2
        note(found, "after the end" if done else "within" if after != before else "before its first commit")
    return found


def kill_erasures(topic: LoadedTopic, kills: int, drawn: random.Random) -> Counter[str]:
    """After each kill the rows of the erasure are all in the table, or recorded; the same command completes it."""
    condition = f"offset BETWEEN {{0}} AND {{0}} + {ERASED_AT_ONCE - 1}"
    seconds = run_whole("erase", topic.store, topic.warehouse, condition.format(0))
    found = Counter[str]()
    for each in range(1, kills + 1):
        before = each * ERASED_AT_ONCE * PARTITIONS
        where = condition.format(each * ERASED_AT_ONCE)
        done = run_killed(drawn.uniform(0, seconds), "erase", topic.store, topic.warehouse, where)
        faults, erased = topic.check()
        assert {kind for each_fault in faults.values() for kind, _ in each_fault} <= {"erased"}, faults
        recorded = erased - before
        assert recorded in (0, ERASED_AT_ONCE * PARTITIONS)
        assert recorded or not faults
        erase(topic.store, "flights", topic.warehouse, where, "asked for", spark=topic.spark)
        assert topic.check() == ({}, before + ERASED_AT_ONCE * PARTITIONS)
        assert topic.count() == (RECORDS * PARTITIONS - before - ERASED_AT_ONCE * PARTITIONS,) * 2
        note(found, "after the end" if done else "within" if recorded else "before its record")
    return found


def kill_streams(folder: str, kills: int, drawn: random.Random) -> Counter[str]:
    """After each kill the sink has a prefix of the log; the last run ends with all of it."""
    store = f"file://{folder}/store"
    filling.create_topic(store, "flights", TOPIC, PARTITIONS)
    order = ("stream", store, folder)
    fill(store, 0, STREAMED)
    seconds = run_whole(*order, ROWS_PER_BATCH, "end")
    found = Counter[str]()
    count, held = STREAMED, STREAMED * PARTITIONS
    for _ in range(kills):
        fill(store, count, STREAMED)
        count += STREAMED
        run_killed(drawn.uniform(0, 2 * seconds), *order, ROWS_PER_BATCH, "killed")
        rows = read_sink(Path(folder, "sink"))
        assert all(rows[number] == values(number, len(rows[number])) for number in range(PARTITIONS))
        now = sum(map(len, rows.values()))
        note(
            found, "before its first commit" if now == held else "within" if now < count * PARTITIONS else "at the end"
        )
        held = now
    run_whole(*order, ROWS_PER_LAST_BATCH, "end")
    assert read_sink(Path(folder, "sink")) == {number: values(number, count) for number in range(PARTITIONS)}
    found["rows"] = count * PARTITIONS
    return found


def values(number: int, count: int) -> list[tuple[int, bytes]]:
    """Returns offset and value of the first records of a partition."""
    return [(i, b"%d:%d" % (number, i)) for i in range(count)]


def read_sink(table: Path) -> dict[int, list[tuple[int, bytes]]]:
    """Returns offset and value of each row of a table without a checkpoint of its own reader, sorted, by partition."""
    state = TableState()
    for version, path in enumerate(sorted((table / LOG).glob("*[0-9].json"))):
        assert path.stem == f"{version:020d}"
        state.apply(version, parse_actions(path.read_text(), str(path)))
    found: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(PARTITIONS)}
    for add in state.files.values():
        rows = pq.read_table(table / add["path"], columns=["partition", "offset", "value"]).to_pydict()
        for number, offset, value in zip(rows["partition"], rows["offset"], rows["value"], strict=True):
            found[number].append((offset, value))
    return {number: sorted(each) for number, each in found.items()}


def main() -> None:
    what = sys.argv[1]
    kills = int(sys.argv[2]) if len(sys.argv) > 2 else 50 if what == "stream" else 20
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tiered-kills-") as folder:
        if what == "stream":
            found = kill_streams(folder, kills, random.Random(seed))
        else:
            checks: dict[str, Callable[[Any, int, random.Random], Counter[str]]]
            checks = {"repair": kill_repairs, "erase": kill_erasures}
            spark = session(master="local[2]", conf=FAST_START)
            found = checks[what](LoadedTopic(spark, folder), kills, random.Random(seed))
            spark.stop()
    print(f"{what}: {kills} kills, {dict(found)}, nothing lost or duplicate", flush=True)


if __name__ == "__main__":
    main()
