"""Tests of verify, repair and erase without a JVM, on files that others wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pyspark_tiered.delta import delta_state, table_form
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.log_folder import LOG
from pyspark_tiered.load.load import load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.proof import comparison
from pyspark_tiered.proof.erase import erase
from pyspark_tiered.proof.gaps import Gap
from pyspark_tiered.proof.repair import RepairProgress, repair
from pyspark_tiered.proof.verify import RowFault, verify
from tests.spark import filling
from tiered.errors import Corrupt, Refused
from tiered.ids import PartitionId
from tiered_api.cli.exits import Exit

TOPIC = filling.topic_id(3)
COUNT = 300


class Lake:
    """A topic of two partitions with 300 records each, loaded into a table without a JVM."""

    def __init__(self, root: Path) -> None:
        self.store, self.warehouse = f"file://{root}/store", str(root / "tables")
        self.folder = root / "tables" / "t"
        filling.create_topic(self.store, "t", TOPIC, 2)
        for partition in (0, 1):
            rows = [(filling.BASE_MS + i, b"k", b"value %d" % i, ()) for i in range(COUNT)]
            filling.upload(self.store, "t", PartitionId(TOPIC, partition), list(filling.segments(rows)))
        load(self.store, "t", self.warehouse, engine=NativeEngine())

    def add_column(self) -> None:
        """Adds the column `note` to the table, as ALTER TABLE does."""
        with closing(self.table()) as table:
            held = table.snapshot().state
            schema = json.loads(held.metadata["schemaString"])
            schema["fields"].append({"name": "note", "type": "string", "nullable": True, "metadata": {}})
            self.commit(held.version, {"metaData": {**held.metadata, "schemaString": json.dumps(schema)}})

    def change(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Writes all rows to one file, after a change, as another writer's UPDATE or INSERT does."""
        with closing(self.table()) as table:
            held = table.snapshot().state
            rows = pa.concat_tables(
                [pq.read_table(self.folder / add["path"]) for add in held.files.values()], promote_options="default"
            )
            name = f"other-{held.version}.parquet"
            pq.write_table(change(rows), self.folder / name, use_deprecated_int96_timestamps=True)
            add = {"path": name, "partitionValues": {}, "size": (self.folder / name).stat().st_size,
                   "modificationTime": 1, "dataChange": True}  # fmt: skip
            removed = [json.loads(table_form.remove_action(each, 1, True)) for each in held.files.values()]
            self.commit(held.version, *removed, {"add": add})

    def commit(self, version: int, *actions: dict[str, Any]) -> None:
        lines = [json.dumps(each) + "\n" for each in ({"commitInfo": {"operation": "MERGE"}}, *actions)]
        (self.folder / LOG / delta_state.commit_name(version + 1)).write_text("".join(lines))

    def table(self) -> NativeTable:
        return NativeTable(f"file:{self.folder}", "t", TOPIC)

    def rows(self) -> list[dict[str, Any]]:
        with closing(self.table()) as table:
            files = [pq.read_table(self.folder / add["path"]) for add in table.snapshot().state.files.values()]
        found = pa.concat_tables(files, promote_options="default").to_pylist()
        return sorted(found, key=lambda row: (row["partition"], row["offset"]))

    def faults(self) -> list[tuple[str, int, int]]:
        return [fault[:3] for fault in verify(self.store, "t", self.warehouse).faults]


def harm(rows: pa.Table) -> pa.Table:
    """Returns rows of which some are gone, changed, doubled, beyond the end, of another partition and of none."""
    kept = [row for row in rows.to_pylist() if row["partition"] != 0 or not 20 <= row["offset"] < 30]
    places = {(row["partition"], row["offset"]): row for row in kept}
    places[1, 7]["value"] = None
    whole = places[0, 50]
    kept += [whole, whole | {"offset": COUNT + 5}, whole | {"partition": 4}, whole | {"partition": None}]
    return pa.Table.from_pylist(kept, rows.schema)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_each_kind_of_fault_is_named_and_repaired_without_a_jvm(lake: Lake) -> None:
    assert verify(lake.store, "t", lake.warehouse).rows == 2 * COUNT
    before = lake.rows()
    lake.add_column()
    lake.change(lambda rows: harm(rows.append_column("note", pa.array(["mine"] * len(rows)))))
    assert sorted(lake.faults()) == sorted(
        [*(("missing", 0, at) for at in range(20, 30)), ("changed", 1, 7), ("duplicate", 0, 50),
         ("extra", 0, COUNT + 5), ("extra", 4, 50), ("extra", -1, -1)]
    )  # fmt: skip
    steps: list[RepairProgress] = []
    done = repair(lake.store, "t", lake.warehouse, steps.append)
    assert [each.step for each in steps].count("compared") == 2
    assert (done.rows, done.taken_out) == (10 + 1 + 1, 1 + 1 + 1 + 1 + 1)
    assert verify(lake.store, "t", lake.warehouse).ok
    held = lake.rows()
    assert [{name: row[name] for name in before[0]} for row in held] == before
    assert sum(row["note"] == "mine" for row in held) == 2 * COUNT - 12, "right rows keep what others wrote beside them"
    assert load(lake.store, "t", lake.warehouse, engine=NativeEngine()).rows == 0


def test_commands_start_no_jvm(lake: Lake, tmp_path: Path) -> None:
    lake.change(harm)
    place = ["--store", lake.store, "--topic", "t", "--warehouse", lake.warehouse]
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = str(tmp_path / "nothing")

    def run(*arguments: str) -> int:
        command = [sys.executable, "-m", "tiered_api.cli.main", *arguments, *place]
        return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, timeout=280).returncode

    assert run("verify") == Exit.FAILED
    assert run("load", "--engine", "native", "--repair") == Exit.OK
    assert run("verify") == Exit.OK


def test_repair_gives_up_what_it_planned_on_files_that_are_gone(lake: Lake) -> None:
    lake.change(harm)
    steps: list[str] = []

    def report(progress: RepairProgress) -> None:
        steps.append(progress.step)
        if len(steps) == 1:
            lake.change(lambda rows: rows)  # the same rows in another file

    repair(lake.store, "t", lake.warehouse, report)
    assert steps[:2] == ["compared", "compared"], "nothing of the first plan was committed"
    assert [(row["partition"], row["offset"]) for row in lake.rows()] == [(p, o) for p in (0, 1) for o in range(COUNT)]


def test_rows_that_differ_are_compared_in_windows(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "COMPARED_AT_ONCE", 64)
    lake.change(harm)
    names = [fault[0] for fault in lake.faults()]
    assert sorted(set(names)) == ["changed", "duplicate", "extra", "missing"] and len(names) == 15


def test_holes_are_read_from_the_files_of_a_table_with_many_runs(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.change(lambda rows: rows.filter(pc.not_equal(pc.bit_wise_and(rows["offset"], 1), 1)))
    with closing(lake.table()) as table:
        at = table.pin()
    monkeypatch.setattr(comparison, "PLACES_AT_ONCE", 7)
    found = comparison.read_holes([at], {0: COUNT, 1: 4}, 1000)
    assert found == [(0, at, at + 1) for at in range(1, COUNT, 2)] + [(1, 1, 2), (1, 3, 4)]
    assert comparison.read_ends(at, {0, 1}) == {0: COUNT - 1, 1: COUNT - 1}


def test_erased_rows_stay_away_without_a_jvm(lake: Lake) -> None:
    done = erase(lake.store, "t", lake.warehouse, "offset = 5 OR decode(value) = 'value 9'", "asked for")
    assert (done.rows, done.removed) == (4, 4)
    found = verify(lake.store, "t", lake.warehouse)
    assert (found.ok, found.erased, found.rows) == (True, 4, 2 * COUNT - 4)
    assert Gap(0, 5, 6, "erased") in found.gaps
    assert repair(lake.store, "t", lake.warehouse).rows == 0
    lake.change(lambda rows: pa.concat_tables([rows, rows.slice(0, 1).set_column(
        rows.schema.get_field_index("offset"), "offset", pa.array([9], pa.int64()))]))  # fmt: skip
    assert verify(lake.store, "t", lake.warehouse).faults == (RowFault("erased", 0, 9),)
    assert repair(lake.store, "t", lake.warehouse).taken_out == 1
    assert verify(lake.store, "t", lake.warehouse).ok


class Killed(BaseException):
    """Ends a command at once, as a kill does: no handler catches it."""


def test_repair_that_an_erasure_overtakes_brings_no_erased_row_back(lake: Lake) -> None:
    """The repair has planned before the record of the erasure, which finds no row and commits all the same."""
    lake.change(lambda rows: rows.filter(pc.not_equal(rows["offset"], 5)))
    steps: list[str] = []

    def report(progress: RepairProgress) -> None:
        steps.append(progress.step)
        if len(steps) == 1:
            assert erase(lake.store, "t", lake.warehouse, "offset = 5", "asked for").rows == 2
        if progress.step == "mended":
            raise Killed

    assert repair(lake.store, "t", lake.warehouse, report).rows == 0
    assert (steps, lake.faults()) == (["compared", "compared", "done"], [])


def lose_file(lake: Lake) -> str:
    """Deletes the oldest data file of the table behind its back."""
    with closing(lake.table()) as table:
        path = str(table.pin().files()[0].add["path"])
    (lake.folder / path).unlink()
    return path


def test_rows_of_a_file_that_is_gone_come_back_from_the_log(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    before = lake.rows()
    path = lose_file(lake)
    with pytest.raises(Corrupt, match="the table names this file, and it is not there"):
        lake.faults()
    done = repair(lake.store, "t", lake.warehouse)
    assert (done.rows, done.gaps) == (2 * COUNT, ())
    assert f"a data file is gone, its rows come from the log again table=file:{lake.folder} file={path}" in caplog.text
    assert lake.rows() == before
    assert (lake.faults(), load(lake.store, "t", lake.warehouse, engine=NativeEngine()).rows) == ([], 0)


def test_rows_of_an_object_that_is_gone_come_back_from_the_log(bucket: str, tmp_path: Path) -> None:
    root = f"s3://{bucket}/{tmp_path.name}"
    filling.create_topic(f"{root}/store", "t", TOPIC, 1)
    rows = [(filling.BASE_MS + i, b"k", b"value %d" % i, ()) for i in range(COUNT)]
    filling.upload(f"{root}/store", "t", PartitionId(TOPIC, 0), list(filling.segments(rows)))
    load(f"{root}/store", "t", f"{root}/tables", engine=NativeEngine())
    with closing(NativeTable(spark_url(f"{root}/tables/t"), "t", TOPIC)) as table:
        table.folder.delete([str(file.add["path"]) for file in table.pin().files()])
    assert repair(f"{root}/store", "t", f"{root}/tables").rows == COUNT
    assert verify(f"{root}/store", "t", f"{root}/tables").ok


def test_repair_of_a_file_that_is_gone_leaves_all_or_nothing_behind(lake: Lake) -> None:
    """The table cannot be read, or is whole: it never lacks rows without a word."""
    lose_file(lake)

    def report(progress: RepairProgress) -> None:
        if progress.step == "mended":
            raise Killed

    with pytest.raises(Killed):
        repair(lake.store, "t", lake.warehouse, report)
    assert lake.faults() == []


def test_rows_of_a_file_that_is_gone_and_that_expired_are_named(lake: Lake) -> None:
    lose_file(lake)
    filling.expire(lake.store, "t", PartitionId(TOPIC, 0), 100)
    done = repair(lake.store, "t", lake.warehouse)
    start = done.gaps[0].end
    assert (done.rows, done.gaps) == (2 * COUNT - start, (Gap(0, 0, start, "expired before it was loaded"),))
    assert 0 < start <= 100 and lake.faults() == []


def test_erased_rows_of_a_file_that_is_gone_stay_away(lake: Lake) -> None:
    erase(lake.store, "t", lake.warehouse, '"offset" < 5', "asked for")
    lose_file(lake)
    assert repair(lake.store, "t", lake.warehouse).rows == 2 * (COUNT - 5)
    assert lake.faults() == []


def test_file_that_is_gone_stays_named_in_an_append_only_table(lake: Lake) -> None:
    with closing(lake.table()) as table:
        held = table.snapshot().state
        properties = {**held.properties(), "delta.appendOnly": "true"}
        lake.commit(held.version, {"metaData": {**held.metadata, "configuration": properties}})
    lose_file(lake)
    with pytest.raises(Refused, match="append-only"):
        repair(lake.store, "t", lake.warehouse)
