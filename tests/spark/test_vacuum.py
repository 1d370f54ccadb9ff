"""Tests of `tiered table vacuum`: each version within the retention keeps its files, and the others go."""

from __future__ import annotations

import json
import os
import time
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from pyspark_tiered.delta.delta_state import RETENTION, TableState
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.log_folder import LOG, open_folder
from pyspark_tiered.delta.orphans import HOUR_MS, ORPHAN_MS, StoredFile
from pyspark_tiered.delta.table_form import Advance
from pyspark_tiered.delta.table_log import TableLog
from pyspark_tiered.delta.vacuum import PATH, VacuumResult, vacuum
from pyspark_tiered.delta.vacuum_plan import CHANGES, choose_changes, choose_unneeded, needed_files, retention_ms
from pyspark_tiered.latest.table import LatestTable
from pyspark_tiered.load.load import LoadOptions, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.typed.form import ValueRules
from tests.spark import filling
from tests.spark.latest_model import LatestModel
from tests.spark.test_log_cleanup import age
from tests.spark.typed_site import TOPIC, Site, encode
from tiered.errors import Refused
from tiered.ids import PartitionId
from tiered_api.cli.main import main

WEEK_MS = 7 * 24 * HOUR_MS
NOW_MS = 1_800_000_000_000
SINCE_MS = NOW_MS - WEEK_MS
URL = "file:/tables/t"
VECTOR = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 1, "sizeInBytes": 36}
"""The example of Delta's protocol, whose file has this name."""
VECTOR_FILE = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def state_of(*actions: dict[str, object]) -> TableState:
    state = TableState()
    state.apply(0, actions)
    return state


def test_versions_within_the_retention_need_files_and_vectors() -> None:
    state = state_of(
        {"add": {"path": "part-1%20a.parquet", "deletionVector": VECTOR}},
        {"add": {"path": "file:/tables/t/part-2.parquet"}},
        {"remove": {"path": "part-3.parquet", "deletionTimestamp": SINCE_MS}},
        {"remove": {"path": "part-4.parquet", "deletionTimestamp": SINCE_MS - 1}},
        {"remove": {"path": "part-5.parquet"}},
    )
    needed = needed_files(state, URL, SINCE_MS)
    assert {"part-1 a.parquet", VECTOR_FILE, "part-2.parquet", "part-3.parquet"} <= needed
    assert not needed & {"part-4.parquet", "part-5.parquet"}


@pytest.mark.parametrize(
    ("name", "goes"),
    [
        ("part-00000-9-c000.snappy.parquet", True),
        (f"part-shared-00001-{uuid.UUID(int=1)}.zstd.parquet", True),
        (f"deletion_vector_{uuid.UUID(int=1)}.bin", True),
        (".part-00000-9.zstd.parquet.tmp", True),
        ("part-00000-9.txt", False),
        ("deletion_vector_notes.bin", False),
        ("notes.parquet", False),
    ],
)
def test_old_files_that_no_version_needs_go(name: str, goes: bool) -> None:
    old, young = StoredFile(name, SINCE_MS - 1), StoredFile(name, SINCE_MS)
    assert choose_unneeded([old], set(), SINCE_MS) == ([old] if goes else [])
    assert choose_unneeded([young], set(), SINCE_MS) == []
    if not name.startswith("."):
        assert choose_unneeded([old], {name}, SINCE_MS) == []


def test_files_of_changes_go_by_their_age() -> None:
    old, young, other = (
        StoredFile(name, at) for name, at in (("cdc-1.parquet", 1), ("cdc-2.parquet", SINCE_MS), ("x.txt", 1))
    )
    assert choose_changes([old, young, other], SINCE_MS) == [old]


def test_retention_is_that_of_the_table_and_two_days_at_least() -> None:
    assert retention_ms({}) == WEEK_MS
    assert retention_ms({RETENTION: "interval 30 days"}) == 30 * 24 * HOUR_MS
    assert retention_ms({RETENTION: "interval 1 hour"}) == ORPHAN_MS, "a load may still commit a file of one day"
    with pytest.raises(Refused, match="no interval such as"):
        retention_ms({RETENTION: "a while"})


def test_table_with_features_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "t" / LOG).mkdir(parents=True)
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": ["rowTracking"]}
    lines = [{"protocol": protocol}, {"metaData": {"configuration": {}, "schemaString": "{}"}}]
    (tmp_path / "t" / LOG / f"{0:020d}.json").write_text("\n".join(map(json.dumps, lines)))
    with closing(open_folder(f"file:{tmp_path}/t")) as folder, pytest.raises(Refused, match="rowTracking"):
        vacuum(TableLog(folder))
    with closing(open_folder(f"file:{tmp_path}/none")) as folder, pytest.raises(Refused, match="there is no table"):
        vacuum(TableLog(folder))


def run_vacuum(url: str, *, dry_run: bool = False) -> VacuumResult:
    with closing(open_folder(url)) as folder:
        return vacuum(TableLog(folder), dry_run=dry_run)


def make_old(root: Path, days: int = 40) -> None:
    """Makes a table old: its files, and the times at which files were removed."""
    at = time.time() - days * 24 * 3600
    for path in root.rglob("*.json"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if "remove" in line:
                line["remove"]["deletionTimestamp"] = int(at * 1000)
        path.write_text("\n".join(map(json.dumps, lines)))
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (at, at))


def test_latest_table_loses_old_files_and_no_row(tmp_path: Path) -> None:
    model = LatestModel(tmp_path, 0)
    root = Path(model.site.warehouse, "t")
    for value in range(6):
        model.put(0, *((b"%d" % key, b"%d" % value) for key in range(2 if value else 8)), (b"gone", None))
        with model.loader() as (_, rounds):
            assert rounds.run_round()
    with model.loader() as (table, _):
        assert table.join_small_files(is_idle=True) > 1
    assert list(root.glob("part-*")) and list(root.glob("deletion_vector_*")) and list((root / CHANGES).iterdir())
    assert run_vacuum(model.url)[:2] == (0, 0), "versions of this week need all files"
    make_old(root)
    before = sorted(path for path in root.rglob("*") if path.suffix in (".parquet", ".bin") and LOG not in path.parts)
    dry = run_vacuum(model.url, dry_run=True)
    assert dry.files == len(before) - 1 and dry.bytes == sum(each.stat().st_size for each in before) - _live(model)
    assert all(path.exists() for path in before)
    assert run_vacuum(model.url) == dry
    assert sum(path.exists() for path in before) == 1
    with closing(LatestTable(model.url, "t", TOPIC)) as table:
        assert table.check_sound() == {0: model.site._ends[0]}
        assert set(table.read().files) and run_vacuum(model.url)[:2] == (0, 0)
    model.put(0, (b"1", b"new"))
    with model.loader() as (_, rounds):
        assert rounds.run_round()


def _live(model: LatestModel) -> int:
    with closing(LatestTable(model.url, "t", TOPIC)) as table:
        return sum(int(add["size"]) for add in table.read().files.values())


@pytest.mark.parametrize("where", ["directory", pytest.param("s3", marks=pytest.mark.also("stores"))])
def test_command_says_how_much_goes_and_removes_it(
    tmp_path: Path, bucket: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    root = f"file://{tmp_path}" if where == "directory" else f"s3://{bucket}/{tmp_path.name}"
    store, warehouse = f"{root}/store", f"{root}/tables"
    filling.create_topic(store, "t", TOPIC, 1)
    rows = [(filling.BASE_MS, b"k", b"v", ())]
    filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows)))
    load(store, "t", warehouse, engine=NativeEngine())
    with closing(open_folder(f"{spark_url(warehouse)}/t")) as folder:
        (kept,) = folder.list_data_files()
        for name in (f"part-{uuid.uuid4()}.parquet", f"deletion_vector_{uuid.uuid4()}.bin", f"{CHANGES}/cdc-1.parquet"):
            folder.replace(name, b"12345")
        assert len(list(folder.list_files("", "part-"))) == 2
    line = ("table", "vacuum", "t", "--warehouse", warehouse, "--format", "json")
    assert main([*line]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 0
    if where == "directory":
        make_old(tmp_path / "tables/t")
        expected = {"table": "t", "files": 3, "bytes": 15, "log_files": 0}
        for more in (["--dry-run"], [], ["--dry-run"]):
            assert main([*line, *more]) == 0
            assert json.loads(capsys.readouterr().out) == expected | {"dry_run": bool(more)}
            expected |= {"files": 0, "bytes": 0} if not more else {}
        assert (tmp_path / "tables/t" / kept.name).exists()


def test_clock_of_this_process_that_is_ahead_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    site.write(encode({"id": 0}))
    site.load()
    orphan = Path(site.warehouse, "t", f"part-{uuid.uuid4()}.parquet")
    orphan.touch()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 50 * 24 * 3600 * 10**9)
    assert run_vacuum(f"file:{site.warehouse}/t").files == 0 and orphan.exists()


def test_log_is_cleaned_by_its_retention(tmp_path: Path) -> None:
    root = tmp_path / "t"
    with closing(NativeTable(f"file:{root}", "t", TOPIC)) as table:
        for end in range(12):
            assert table.commit([], [Advance(0, end - 1, end)])
    age(root)
    dry = run_vacuum(f"file:{root}", dry_run=True)
    assert dry.log_files == 10 and len(list((root / LOG).glob("*.json"))) == 12
    assert run_vacuum(f"file:{root}").log_files == 10
    assert sorted(path.name for path in (root / LOG).glob("0*.json")) == [f"{number:020d}.json" for number in (10, 11)]
    with closing(open_folder(f"file:{root}")) as folder:
        assert TableLog(folder).read().version == 11


def test_load_removes_files_of_its_tables_once_a_day(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write([*encode({"id": 0}), b"no JSON"])
    options = LoadOptions(values=ValueRules("json"))
    site.load(options)
    roots = [Path(site.warehouse, name) for name in ("t", "t_typed", "t__dead")]

    def add_old_files() -> list[Path]:
        made = [root / f"part-{uuid.uuid4()}.parquet" for root in roots]
        for path in made:
            path.touch()
            os.utime(path, (1, 1))
        return made

    first = add_old_files()
    site.load(options)
    assert all(path.exists() for path in first), "nobody asked"
    site.load(options._replace(vacuum=True))
    assert not any(path.exists() for path in first)
    second = add_old_files()
    site.load(options._replace(vacuum=True))
    assert all(path.exists() for path in second), "once a day is enough"
    for root in roots:
        os.utime(root / PATH, (1, 1))
    site.load(options._replace(vacuum=True))
    assert not any(path.exists() for path in second)
    assert site.verify().ok
