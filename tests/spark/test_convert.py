"""Tests of the conversion of a split into a file: it has all rows of the split and no other, however the log is cut.

Spark is not needed: the tests run the code of its tasks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from pyspark_tiered.delta.table_form import FIELD_IDS, Advance
from pyspark_tiered.load.convert import ConversionTask, RawForm, convert
from pyspark_tiered.load.file_writer import new_file, upload
from pyspark_tiered.load.rounds import ConversionResult, next_round, select_committable
from pyspark_tiered.log.plan import Split, splits
from pyspark_tiered.proof.comparison import read_cold_topic
from pyspark_tiered.proof.repair import plan_missing_splits
from tests.spark import filling
from tiered.errors import Refused
from tiered.ids import PartitionId
from tiered.records.pieces import RECORD_BYTES_MAX

TOPIC = filling.topic_id(5)
BATCH = 100


@dataclass(frozen=True)
class Log:
    """A topic of one partition, 3,000 records in batches of 100 and segments of 1,000, and a folder for files."""

    store: str
    folder: Path

    def cut(self, size: int) -> list[Split]:
        cold = read_cold_topic(self.store, "t")
        return splits(cold, {0: (0, 3000)}, 1, size)

    def convert(self, *parts: Split, null_timestamps: bool = False) -> ConversionResult:
        return convert(ConversionTask(self.store, parts, RawForm(f"file:{self.folder}"), null_timestamps))

    def offsets(self, result: ConversionResult) -> list[int]:
        if not result.files:
            return []
        (file,) = result.files
        found: list[int] = pq.read_table(self.folder / file.path)["offset"].to_pylist()
        return found

    def damage(self, segment: int, at: int) -> Path:
        """Flips a bit of a segment's log."""
        path = sorted(Path(self.store.removeprefix("file://")).rglob("*.seg"))[segment]
        held = bytearray(path.read_bytes())
        held[at] ^= 1
        path.write_bytes(held)
        return path


@pytest.fixture
def log(tmp_path: Path) -> Log:
    store = f"file://{tmp_path}/store"
    filling.create_topic(store, "t", TOPIC, 1)
    drawn = Random(7)
    rows = [(filling.BASE_MS + i, b"k", drawn.randbytes(drawn.randrange(20)), ()) for i in range(3000)]
    filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows)))
    return Log(store, tmp_path / "table")


@pytest.mark.parametrize("size", [8000, 3000, 1700])
def test_splits_of_any_size_hold_each_record_once(log: Log, size: int) -> None:
    plan = log.cut(size)
    found = [log.offsets(log.convert(split)) for split in plan]
    assert found == [list(range(split.start, split.end)) for split in plan]
    if size < 8000:
        assert any(split.start % BATCH and split.end % BATCH for split in plan), "no split is cut inside a batch"


@pytest.mark.parametrize("size", [8000, 1700])
def test_file_ends_before_a_damaged_batch(log: Log, size: int) -> None:
    damaged = log.damage(1, 4000)
    plan = log.cut(size)
    results = [log.convert(split) for split in plan]
    stopped = next(result for result in results if result.outcomes[0].stop is not None)
    (first,) = stopped.outcomes
    assert first.stop is not None
    assert first.stop.damaged and damaged.name in first.stop.why and "position=" in first.stop.why
    assert first.start <= first.end < 2000 and first.end % BATCH == 0
    assert log.offsets(stopped) == list(range(first.start, first.end))
    taken = select_committable(next_round(read_cold_topic(log.store, "t"), {}, 1000, size), results)
    assert [step.end for step in taken.advances] == [first.end]
    assert sum(file.rows for file in taken.files) == first.end


def test_file_ends_before_a_missing_segment(log: Log) -> None:
    gone = sorted(Path(log.store.removeprefix("file://")).rglob("*.seg"))[1]
    gone.unlink()
    (split,) = log.cut(10**6)
    result = log.convert(split)
    (outcome,) = result.outcomes
    assert outcome.stop is not None
    assert (outcome.end, outcome.stop.damaged) == (1000, True)
    assert gone.name in outcome.stop.why
    assert log.offsets(result) == list(range(1000))


def test_record_too_large_to_load_stops_its_partition_without_damage(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    filling.create_topic(store, "t", TOPIC, 1)
    small = [(i, b"k", b"v", ()) for i in range(BATCH)]
    rows = [*small, (BATCH, b"k", bytes(RECORD_BYTES_MAX), ()), *small[1:]]
    filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows)))
    log = Log(store, tmp_path / "table")
    (split,) = splits(read_cold_topic(store, "t"), {0: (0, len(rows))}, 1)
    result = log.convert(split)
    (outcome,) = result.outcomes
    assert outcome.stop is not None and not outcome.stop.damaged
    assert outcome.end == outcome.stop.offset == BATCH
    assert f"no more than {RECORD_BYTES_MAX} are opened at once" in outcome.stop.why
    assert log.offsets(result) == list(range(BATCH))


BEYOND_MS = -(1 << 62)


@pytest.fixture
def log_with_bad_timestamps(tmp_path: Path) -> Log:
    """Offsets 0 to 199; the timestamps of 150 and 151 are beyond what microseconds hold."""
    store = f"file://{tmp_path}/store"
    filling.create_topic(store, "t", TOPIC, 1)
    rows = [(BEYOND_MS if i in (150, 151) else i, b"k", b"v", ()) for i in range(200)]
    filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows)))
    return Log(store, tmp_path / "table")


def test_timestamp_beyond_sparks_range_stops_the_partition_by_name(log_with_bad_timestamps: Log) -> None:
    cold = read_cold_topic(log_with_bad_timestamps.store, "t")
    (split,) = splits(cold, {0: (0, 200)}, 1)
    result = log_with_bad_timestamps.convert(split)
    (outcome,) = result.outcomes
    assert outcome.stop is not None and not outcome.stop.damaged
    assert (outcome.end, outcome.stop.offset) == (150, 150)
    assert f"offset 150 is {BEYOND_MS} ms" in outcome.stop.why and "--timestamps null" in outcome.stop.why
    assert log_with_bad_timestamps.offsets(result) == list(range(150))


def test_timestamp_beyond_sparks_range_becomes_null_on_request(log_with_bad_timestamps: Log) -> None:
    cold = read_cold_topic(log_with_bad_timestamps.store, "t")
    (split,) = splits(cold, {0: (0, 200)}, 1)
    (file,), (outcome,), *_ = log_with_bad_timestamps.convert(split, null_timestamps=True)
    assert (outcome.stop, outcome.end, outcome.out_of_range_timestamps) == (
        None,
        200,
        ((150, BEYOND_MS), (151, BEYOND_MS)),
    )
    held = pq.read_table(log_with_bad_timestamps.folder / file.path)
    assert [i for i, at in enumerate(held["timestamp"].cast("int64").to_pylist()) if at is None] == [150, 151]
    assert file.runs[0][4:] == (0, 199_000, 2)


def test_load_leaves_out_aborted_records_and_stops_at_an_open_transaction(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    filling.create_topic(store, "t", TOPIC, 1)
    written = filling.TransactionalLog()
    written.write(1, 2)
    committed = written.write(2, 3)
    written.end(1, commit=False)
    written.end(2, commit=True)
    open_from = written.write(1, 1)[0]
    written.write(-1, 1, transactional=False)
    filling.upload(store, "t", PartitionId(TOPIC, 0), [written.roll()])
    cold = read_cold_topic(store, "t")
    plan = next_round(cold, {}, 1)
    (split,) = plan.splits
    assert plan.advances == (Advance(0, -1, open_from),)
    log = Log(store, tmp_path / "table")
    result = log.convert(split)
    (outcome,) = result.outcomes
    assert (outcome.stop, outcome.end, log.offsets(result)) == (None, open_from, committed)
    assert next_round(cold, {0: open_from}, 1).splits == ()
    with pytest.raises(Refused, match=f"open from offset {open_from} on"):
        splits(cold, {0: (0, open_from + 1)}, 1)


@pytest.mark.parametrize("size", [None, 1700])
def test_repair_converts_exactly_the_missing_offsets(log: Log, size: int | None) -> None:
    cold = read_cold_topic(log.store, "t")
    lacking = [(5, 6), (150, 250), (2050, 2051), (2999, 3000)]
    plan = plan_missing_splits(cold, cold.partitions[0], lacking, 2, size)
    assert {entry.base_offset for split, _ in plan for entry in split.entries} == {0, 2000}
    tasks = [ConversionTask(log.store, (split,), RawForm(f"file:{log.folder}", only)) for split, only in plan]
    found = [log.offsets(convert(task)) for task in tasks]
    assert sorted(offset for part in found for offset in part) == [5, *range(150, 250), 2050, 2999]


def test_partitions_that_share_a_file_have_a_row_group_each(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    filling.create_topic(store, "t", TOPIC, 3)
    for number in (0, 2):
        rows = [(filling.BASE_MS + i, None, b"v", (("h", b"x"),)) for i in range(5 + number)]
        filling.upload(store, "t", PartitionId(TOPIC, number), list(filling.segments(rows)))
    plan = next_round(read_cold_topic(store, "t"), {}, 2)
    assert [len(file) for file in plan.files] == [2]
    log = Log(store, tmp_path / "table")
    (file,), outcomes, *_ = log.convert(*plan.files[0])
    assert [(outcome.partition, outcome.end, outcome.stop) for outcome in outcomes] == [(0, 5, None), (2, 7, None)]
    assert [run[:4] for run in file.runs] == [(0, 5, 0, 4), (2, 7, 0, 6)]
    held = pq.ParquetFile(log.folder / file.path)
    groups = [held.read_row_group(i, ["partition", "offset"]).to_pydict() for i in range(held.num_row_groups)]
    assert groups == [
        {"partition": [number] * count, "offset": list(range(count))} for number, count in ((0, 5), (2, 7))
    ]
    low = held.metadata.row_group(1).column(0).statistics
    assert (low.min, low.max) == (2, 2)


def test_columns_of_a_file_have_ids(log: Log) -> None:
    (split,) = log.cut(10**6)
    (file,) = log.convert(split).files
    schema = pq.read_schema(log.folder / file.path)
    found = {field.name: field for field in schema}
    element = found["headers"].type.value_field
    found |= {"headers.element": element, **{f"headers.{part.name}": part for part in element.type}}
    assert {name: int(field.metadata[b"PARQUET:field_id"]) for name, field in found.items()} == FIELD_IDS


def test_false_transaction_index_takes_its_rows_out_of_a_shared_file(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    filling.create_topic(store, "t", TOPIC, 2)
    written = filling.TransactionalLog()
    written.write(1, 2)
    written.end(1, commit=False)
    segment = written.roll()._replace(txn_index=b"")
    filling.upload(store, "t", PartitionId(TOPIC, 0), [segment])
    filling.upload(store, "t", PartitionId(TOPIC, 1), list(filling.segments([(filling.BASE_MS, None, b"v", ())])))
    plan = next_round(read_cold_topic(store, "t"), {}, 1)
    log = Log(store, tmp_path / "table")
    result = log.convert(*plan.files[0])
    assert [outcome.end for outcome in result.outcomes] == [0, 1]
    assert result.outcomes[0].stop is not None and result.outcomes[0].stop.damaged
    (file,) = result.files
    assert [run.partition for run in file.runs] == [1]
    assert pq.read_table(log.folder / file.path)["partition"].to_pylist() == [1]
    assert select_committable(plan, [result]).advances == (Advance(1, -1, 1),)


def test_file_and_folder_are_synced_around_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, str]] = []
    sync, rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        done.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def move(source: Path, target: Path) -> None:
        done.append(("rename", str(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", move)
    folder = tmp_path / "t"
    with new_file(f"file:{folder}", "a.parquet", upload) as path:
        path.write_bytes(b"rows")
    assert done == [("fsync", str(path)), ("rename", f"{folder}/a.parquet"), ("fsync", str(folder))]
    assert (folder / "a.parquet").read_bytes() == b"rows"
