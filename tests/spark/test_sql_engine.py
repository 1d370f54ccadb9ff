"""Tests of queries without a JVM, over tables of real loads: answers, time travel, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.table_log import TableLog
from pyspark_tiered.load.load import LoadOptions, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.log.log_tail import BucketTail
from pyspark_tiered.query.engine import SqlSession
from pyspark_tiered.query.output import render
from pyspark_tiered.typed.form import ValueRules
from tests.spark import filling
from tests.unit.delta.test_deletion_vectors import SMALL, SMALL_PLACE, SMALL_TEXT
from tiered.errors import Refused, Unavailable
from tiered.ids import PartitionId, TopicId

TOPIC = filling.topic_id(1)
VALUES = [
    b'{"city": "Rome", "n": 2.5, "tags": ["a", "b"]}',
    b'{"city": "Oslo", "n": 10}',
    b"\xff",
    None,
    b'{"city": "Oslo", "n": "none"}',
]
"""Values of partition 0; the last one is loaded after the others."""


def write(
    store: str,
    partition: int,
    first: int,
    values: Sequence[bytes | None],
    topic: str = "orders.eu",
    topic_id: TopicId = TOPIC,
) -> None:
    rows = [(filling.BASE_MS + i, b"k%d" % i, value, (("h", b"x"),)) for i, value in enumerate(values, first)]
    segments = list(filling.segments(rows, base_offset=first))
    filling.upload(store, topic, PartitionId(topic_id, partition), segments)


@pytest.fixture(scope="module", params=["directory", pytest.param("s3", marks=pytest.mark.also("stores"))])
def warehouse(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns a warehouse with the tables of the topic orders.eu, in two versions and more."""
    folder = tmp_path_factory.mktemp("sql")
    is_local = request.param == "directory"
    root = f"file://{folder}" if is_local else f"s3://{request.getfixturevalue('bucket')}/{folder.name}"
    store, tables = f"{root}/store", f"{root}/tables"
    options = LoadOptions(values=ValueRules("json"))
    filling.create_topic(store, "orders.eu", TOPIC, 2)
    write(store, 0, 0, VALUES[:4])
    load(store, "orders.eu", tables, engine=NativeEngine(), options=options)
    write(store, 0, 4, VALUES[4:])
    write(store, 1, 0, [b'{"city": "Bonn", "zip": 53111}'])
    load(store, "orders.eu", tables, engine=NativeEngine(), options=options)
    return tables


@pytest.fixture(scope="module")
def session(warehouse: str) -> Iterator[SqlSession]:
    """Yields a session over these tables."""
    with SqlSession(warehouse) as opened:
        yield opened


def rows(session: SqlSession, query: str) -> list[tuple[Any, ...]]:
    return list(session.run(query).rows)


def test_keys_and_values_are_text_and_their_bytes_can_be_had(session: SqlSession) -> None:
    query = "SELECT key, value, headers[1].value FROM {} WHERE partition = 0 AND offset BETWEEN 1 AND 3 ORDER BY offset"
    shown = rows(session, query.format('"orders.eu"'))
    assert shown == [("k1", '{"city": "Oslo", "n": 10}', "x"), ("k2", "base64:/w==", "x"), ("k3", None, "x")]
    stored = rows(session, query.format("raw.`orders.eu`"))
    assert stored == [(b"k1", VALUES[1], b"x"), (b"k2", b"\xff", b"x"), (b"k3", None, b"x")]


def test_fields_of_json_are_columns(session: SqlSession) -> None:
    found = session.run("SELECT t.value.city, sum(value.n) FROM `orders.eu` t GROUP BY ALL ORDER BY 1")
    assert found.columns == ("city", "sum(value.n)")
    assert list(found.rows) == [("Bonn", None), ("Oslo", 10.0), ("Rome", 2.5), (None, None)]
    assert rows(session, "SELECT value.tags[2] FROM `orders.eu` WHERE value.n > 2 AND value.n < 3") == [("b",)]
    with pytest.raises(Refused, match=r"value\.n::DOUBLE"):
        session.run("SELECT round(value.n) FROM `orders.eu`")


def test_tables_are_listed_and_described(session: SqlSession) -> None:
    assert rows(session, "show tables;") == [("orders.eu",), ("orders.eu__dead",), ("orders.eu_typed",)]
    described = rows(session, "DESCRIBE `orders.eu_typed`")
    assert {"_offset", "city", "n", "zip"} <= {each[0] for each in described}
    with pytest.raises(Refused, match="only SHOW TABLES"):
        session.run("SHOW DATABASES")


def test_typed_table_and_dead_letters_join(session: SqlSession) -> None:
    query = "SELECT _partition, _offset, city, zip FROM `orders.eu_typed` WHERE zip IS NULL ORDER BY ALL"
    assert rows(session, query) == [(0, 0, "Rome", None), (0, 1, "Oslo", None), (0, 3, None, None)]
    letters = 'SELECT d._offset, r.value FROM "orders.eu__dead" d JOIN "orders.eu" r ON d._offset = r.offset '
    assert rows(session, letters + "AND d._partition = r.partition ORDER BY 1") == [
        (2, "base64:/w=="),
        (4, '{"city": "Oslo", "n": "none"}'),
    ]


def test_earlier_versions_are_read_by_number_and_time(session: SqlSession) -> None:
    old = rows(
        session, "SELECT count(*), max(offset) FROM `orders.eu` VERSION AS OF 0 WHERE `orders.eu`.partition >= 0"
    )
    assert old == [(4, 3)]
    query = "SELECT (SELECT count(*) FROM `orders.eu`) - (SELECT count(*) FROM raw.`orders.eu` VERSION AS OF 0)"
    assert rows(session, query) == [(2,)]
    assert rows(session, "SELECT count(*) FROM `orders.eu` TIMESTAMP AS OF '2999-01-01'") == [(6,)]
    for moment, why in (
        ("VERSION AS OF 99", "the newest one is"),
        ("TIMESTAMP AS OF '2000-01-01'", "does not reach back"),
    ):
        with pytest.raises(Refused, match=why):
            session.run(f"SELECT * FROM `orders.eu` {moment}")
    assert rows(session, "SELECT count(*) FROM `orders.eu`") == [(6,)]


def test_page_shows_how_to_go_back_in_the_table_and_in_the_log(tmp_path: Path) -> None:
    store, tables = f"file://{tmp_path}/store", f"{tmp_path}/tables"
    page = (Path(__file__).parents[2] / "docs" / "reference" / "spark.md").read_text()
    (example,) = re.findall(r"```sql\n(.*?)```", page.partition("\n## SQL\n")[2], re.DOTALL)
    at_ms = int(datetime(2026, 11, 25, 15, tzinfo=UTC).timestamp() * 1000)
    filling.create_topic(store, "flights", TOPIC, 2)
    for partition, times in enumerate(([at_ms - 1] * 1200, [at_ms - 1] * 5 + [at_ms] * 2)):
        segments = filling.segments([(at, b"k", b"v", ()) for at in times])
        filling.upload(store, "flights", PartitionId(TOPIC, partition), list(segments))
        load(store, "flights", tables, engine=NativeEngine())
        path = tmp_path / "tables" / "flights" / "_delta_log" / f"{partition:020d}.json"
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        commit(path.parents[1], partition, *(each for each in actions if "commitInfo" not in each))
        os.utime(path, ns=(0, (at_ms + partition) * 1_000_000))
    with SqlSession(tables) as session:
        table_at, below_offset, before_time = (rows(session, line) for line in example.splitlines())
    assert (table_at, below_offset, before_time) == ([(1200,)], [(1000,)], [(1205,)])


def test_query_that_was_not_read_to_its_end_makes_room_for_the_next(session: SqlSession) -> None:
    for _ in range(2):
        assert next(session.run("SELECT range FROM range(1000000)").rows) == (0,)
    assert rows(session, "SELECT count(*) FROM `orders.eu`") == [(6,)]


def test_only_named_tables_are_opened(session: SqlSession, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = TableLog.read

    def note(log: TableLog) -> TableState:
        read.append(log.url.rpartition("/")[2])
        return real(log)

    monkeypatch.setattr(TableLog, "read", note)
    assert rows(session, "SELECT count(*) FROM `orders.eu__dead`") == [(2,)]
    assert set(read) == {"orders.eu__dead"}


@pytest.mark.parametrize(
    "query, why",
    [
        ("SELECT * FROM order", "syntax"),
        ('SELECT * FROM "orders.us"', "there is orders.eu"),
        ('SELECT * FROM "ORDERS.EU"', "there is no table ORDERS.EU in .*; there is orders.eu"),
        ("SELECT date_format(timestamp, 'y') FROM `orders.eu`", "SQL of DuckDB.*--engine spark"),
        ("SELECT collect_list(value) FROM `orders.eu`", "collect_list.*--engine spark"),
        ("SELECT * FROM orders.eu", 'with a dot into quotes, "orders.eu"'),
        ('SELECT * FROM "../store"', "the name of a table is that of a topic"),
        ("SELECT * FROM '/etc/passwd'", "the name of a table"),
        ("SELECT * FROM read_csv('/etc/passwd')", "reads tables of the warehouse only"),
        ("COPY `orders.eu` TO '/tmp/out'", "can only read"),
        ("SELECT * FROM (SELECT * FROM `orders.eu`) VERSION AS OF 0", "right behind the name of a table"),
        ("SELECT nothing FROM `orders.eu`", "nothing"),
        ("  ", "there is no query"),
    ],
)
def test_query_that_cannot_run_is_refused_in_words(session: SqlSession, query: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        session.run(query)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "COPY (SELECT 1) TO '/tmp/tiered-test-out'",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
        "ATTACH '/tmp/tiered-test.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
    ],
)
def test_engine_below_the_check_is_locked(session: SqlSession, statement: str) -> None:
    """A statement that slipped through the check meets DuckDB's own locks."""
    import duckdb

    with pytest.raises(duckdb.Error, match=r"disabled|locked|Cannot"):
        session._connection.execute(statement)


def test_query_is_cancelled_from_another_thread(session: SqlSession) -> None:
    timer = threading.Timer(0.2, session.interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        rows(session, "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b")
    timer.join()
    assert rows(session, "SELECT 1") == [(1,)]


def test_ctrl_c_cancels_the_query_of_its_process(session: SqlSession) -> None:
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        rows(session, "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b")
    timer.join()
    assert rows(session, "SELECT 1") == [(1,)]


def test_newer_records_of_the_log_end_a_table_once(tmp_path: Path) -> None:
    store, tables = f"file://{tmp_path}/store", f"{tmp_path}/tables"
    filling.create_topic(store, "orders.eu", TOPIC, 2)
    write(store, 0, 0, VALUES[:2])
    load(store, "orders.eu", tables, engine=NativeEngine(), options=LoadOptions(values=ValueRules("json")))
    query = "SELECT partition, offset, key, value.city, timestamp_type, len(headers) FROM `orders.eu` ORDER BY ALL"
    with SqlSession(tables, BucketTail(store)) as session:
        assert [each[:2] for each in rows(session, query)] == [(0, 0), (0, 1)]
        write(store, 0, 2, VALUES[2:])
        write(store, 1, 0, [b'{"city": "Bonn"}'])
        found = rows(session, query)
        assert [each[:2] for each in found] == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0)]
        assert found[4:] == [(0, 4, "k4", "Oslo", 0, 1), (1, 0, "k0", "Bonn", 0, 1)]
        both = "SELECT (SELECT count(*) FROM `orders.eu`), (SELECT max(value) FROM raw.`orders.eu` WHERE partition = 1)"
        assert rows(session, both) == [(6, b'{"city": "Bonn"}')]
        load(store, "orders.eu", tables, engine=NativeEngine())
        assert rows(session, query) == found
        assert rows(session, "SELECT count(*) FROM `orders.eu` VERSION AS OF 0") == [(2,)]
        noted = session.run("SELECT count(*) FROM `orders.eu_typed`")
        assert noted.notes == ("orders.eu_typed has loaded records only; the newer ones are in the raw table",)
        assert session.run("SELECT count(*) FROM `orders.eu`").notes == ()


def test_newer_records_of_topics_that_differ_by_case_stay_apart(tmp_path: Path) -> None:
    store, tables = f"file://{tmp_path}/store", f"{tmp_path}/tables"
    for name, count in (("t", 1), ("T", 2)):
        topic_id = filling.topic_id(count)
        filling.create_topic(store, name, topic_id, 1)
        write(store, 0, 0, [b"loaded"], name, topic_id)
        load(store, name, tables, engine=NativeEngine())
        write(store, 0, 1, [name.encode()] * count, name, topic_id)
    query = """SELECT (SELECT max(value) || count(*) FROM t), (SELECT decode(max(value)) || count(*) FROM raw."T")"""
    with SqlSession(tables, BucketTail(store)) as session:
        assert rows(session, "SELECT max(value), count(*) FROM t") == [("t", 2)]
        assert rows(session, query) == [("t2", "loaded3")]
        assert rows(session, "SELECT min(value), count(*) FROM T") == [("T", 3)]
        assert rows(session, query) == [("t2", "loaded3")]


def change_columns(table: Path, fields: list[dict[str, Any]]) -> None:
    """Commits a schema with these columns."""
    log = table / "_delta_log"
    actions = map(json.loads, (log / f"{0:020d}.json").read_text().splitlines())
    metadata = next(each["metaData"] for each in actions if "metaData" in each)
    schema = json.loads(metadata["schemaString"])
    schema["fields"] = fields + [each for each in schema["fields"] if each["name"] not in {f["name"] for f in fields}]
    commit(table, len(list(log.glob("*.json"))), {"metaData": metadata | {"schemaString": json.dumps(schema)}})


def test_newer_records_follow_the_columns_of_their_table(tmp_path: Path) -> None:
    store, tables = f"file://{tmp_path}/store", f"{tmp_path}/tables"
    filling.create_topic(store, "orders.eu", TOPIC, 1)
    write(store, 0, 0, [b"loaded"])
    load(store, "orders.eu", tables, engine=NativeEngine())
    write(store, 0, 1, [b"newer"])
    query = "SELECT key, value FROM `orders.eu` ORDER BY ALL"
    key: dict[str, Any] = {"name": "key", "type": "binary", "nullable": True, "metadata": {}}
    with SqlSession(tables, BucketTail(store)) as session:
        found = rows(session, query)
        assert found == [("k0", "loaded"), ("k1", "newer")]
        change_columns(tmp_path / "tables" / "orders.eu", [key | {"name": "more", "type": "string"}])
        assert rows(session, query.replace("value", "value, more")) == [(*each, None) for each in found]
        change_columns(tmp_path / "tables" / "orders.eu", [key | {"name": "value"}, key])
        assert rows(session, query) == found


def test_each_count_is_a_prefix_of_the_log_while_loads_go_on(tmp_path: Path) -> None:
    store, tables = f"file://{tmp_path}/store", f"{tmp_path}/tables"
    filling.create_topic(store, "orders.eu", TOPIC, 2)
    write(store, 0, 0, [b"first"])
    load(store, "orders.eu", tables, engine=NativeEngine())
    acknowledged = {0: 1, 1: 0}

    def fill() -> None:
        for step in range(16):
            number = step % 2
            write(store, number, acknowledged[number], [b"a", b"b"])
            acknowledged[number] += 2
            if step % 3 == 2:
                load(store, "orders.eu", tables, engine=NativeEngine())

    query = "SELECT partition, count(*), count(DISTINCT offset), max(offset) + 1 FROM `orders.eu` GROUP BY partition"
    with SqlSession(tables, BucketTail(store)) as session, ThreadPoolExecutor(1) as pool:
        filling_log = pool.submit(fill)
        is_last = False
        while not is_last:
            is_last, least = filling_log.done(), dict(acknowledged)
            found = {number: (count, different, end) for number, count, different, end in rows(session, query)}
            for number, (count, different, end) in found.items():
                assert count == different == end >= least[number]
        filling_log.result()
    assert {number: count for number, (count, _, _) in found.items()} == acknowledged == {0: 17, 1: 16}


def test_newer_records_that_do_not_follow_the_table_are_refused(tmp_path: Path) -> None:
    store, tables = f"file://{tmp_path}/store", f"{tmp_path}/tables"
    filling.create_topic(store, "orders.eu", TOPIC, 1)
    write(store, 0, 0, VALUES[:2])
    load(store, "orders.eu", tables, engine=NativeEngine())
    filling.delete_topic(store, TOPIC)
    filling.create_topic(store, "orders.eu", filling.topic_id(2), 1)
    with SqlSession(tables, BucketTail(store)) as session, pytest.raises(Refused, match="another topic of that name"):
        session.run("SELECT * FROM `orders.eu`")


def change_first_commit(table: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Replaces each action of a table's only commit, None for an action that is left out."""
    path = table / "_delta_log" / f"{0:020d}.json"
    found = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(each) + "\n" for each in found if each is not None))


def test_clone_of_a_table_is_not_counted_twice(tmp_path: Path) -> None:
    """A clone has the properties and rows of the table, and no transaction identifiers."""
    store, tables = f"file://{tmp_path}/store", f"{tmp_path}/tables"
    filling.create_topic(store, "orders.eu", TOPIC, 1)
    write(store, 0, 0, VALUES[:2])
    load(store, "orders.eu", tables, engine=NativeEngine())
    change_first_commit(tmp_path / "tables" / "orders.eu", lambda action: None if "txn" in action else action)
    query = "SELECT count(*) FROM `orders.eu`"
    with SqlSession(tables, BucketTail(store)) as session:
        for _ in range(2):
            with pytest.raises(
                Refused, match=r"no transaction identifier of it: a query with newer records could.*--repair"
            ):
                rows(session, query)
    with SqlSession(tables) as session:
        assert rows(session, query) == [(2,)]


def test_files_that_mix_partitions_of_uneven_ends_are_read(tmp_path: Path) -> None:
    """OPTIMIZE by Spark makes such files: their statistics have only the greatest offset."""
    store, tables = f"file://{tmp_path}/store", f"{tmp_path}/tables"
    filling.create_topic(store, "orders.eu", TOPIC, 2)
    write(store, 0, 0, VALUES[:3])
    write(store, 1, 0, VALUES[:1])
    load(store, "orders.eu", tables, engine=NativeEngine())

    def mix(action: dict[str, Any]) -> dict[str, Any]:
        action.get("add", {}).pop("tags", None)
        action.get("commitInfo", {}).pop("userMetadata", None)
        return action

    change_first_commit(tmp_path / "tables" / "orders.eu", mix)
    write(store, 1, 1, VALUES[:1])
    with SqlSession(tables, BucketTail(store)) as session:
        found = rows(session, "SELECT partition, count(*) FROM `orders.eu` GROUP BY ALL ORDER BY ALL")
        assert found == [(0, 3), (1, 2)]


def test_table_that_was_made_again_is_read_anew(tmp_path: Path) -> None:
    store, tables = f"file://{tmp_path}/store", f"{tmp_path}/tables"
    filling.create_topic(store, "orders.eu", TOPIC, 1)
    write(store, 0, 0, VALUES[:2])
    load(store, "orders.eu", tables, engine=NativeEngine())
    with SqlSession(tables) as session:
        assert rows(session, "SELECT count(*) FROM `orders.eu`") == [(2,)]
        shutil.rmtree(f"{tables}/orders.eu")
        write(store, 0, 2, VALUES[2:])
        load(store, "orders.eu", tables, engine=NativeEngine())
        assert rows(session, "SELECT count(*) FROM `orders.eu`") == [(len(VALUES),)]


def foreign_table(root: Path, **changes: Any) -> str:
    """Makes a table of another program, without files. Returns its warehouse."""
    schema = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]}
    metadata = {
        "id": "x",
        "format": {"provider": "parquet"},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2} | changes.pop("protocol", {})
    actions = [{"protocol": protocol}, {"metaData": metadata | {"configuration": {}} | changes.pop("metadata", {})}]
    actions += changes.pop("more", [])
    (root / "x" / "_delta_log").mkdir(parents=True)
    commit(root / "x", 0, *actions)
    return str(root)


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    """Writes a commit as another program might."""
    text = "".join(json.dumps(each) + "\n" for each in actions)
    (table / "_delta_log" / f"{version:020d}.json").write_text(text)


VECTOR = {"storageType": "p", "pathOrInlineDv": "/x", "offset": 1, "sizeInBytes": 36, "cardinality": 2}
ADD = {"path": "f.parquet", "size": 1, "partitionValues": {}, "dataChange": True, "modificationTime": 0}
VARIANT = {"type": "struct", "fields": [{"name": "v", "type": "variant", "nullable": True, "metadata": {}}]}


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"metadata": {"partitionColumns": ["a"]}}, "partition columns a"),
        ({"metadata": {"configuration": {"delta.columnMapping.mode": "name"}}}, "column mapping by name"),
        ({"protocol": {"minReaderVersion": 3, "readerFeatures": ["v2Checkpoint"]}}, "v2Checkpoint"),
        ({"more": [{"add": ADD | {"deletionVector": VECTOR}}]}, "a deletion vector elsewhere"),
        ({"more": [{"add": ADD | {"path": "/etc/passwd"}}]}, "a file elsewhere"),
        ({"more": [{"add": ADD | {"path": "a*.parquet"}}]}, "characters"),
        ({"metadata": {"schemaString": json.dumps(VARIANT)}}, "type variant"),
    ],
)
def test_table_that_needs_more_of_its_readers_is_refused_by_name(tmp_path: Path, changes: Any, why: str) -> None:
    with SqlSession(foreign_table(tmp_path, **changes)) as session, pytest.raises(Refused, match=why):
        session.run("SELECT * FROM x")


def test_plain_table_of_another_program_is_read(tmp_path: Path) -> None:
    with SqlSession(foreign_table(tmp_path)) as session:
        assert render(session.run("SELECT * FROM x").collect(), "csv") == "a"


def test_rows_of_a_deletion_vector_are_gone(tmp_path: Path) -> None:
    vector = {"storageType": "u", "pathOrInlineDv": SMALL_TEXT, "offset": 1, "sizeInBytes": 36}
    plain, marked = ADD | {"path": "plain.parquet"}, ADD | {"deletionVector": vector | {"cardinality": 2}}
    root = foreign_table(tmp_path, more=[{"add": plain}, {"add": marked}])
    for first, name in ((0, "f.parquet"), (10, "plain.parquet")):
        pq.write_table(pa.table({"a": pa.array(range(first, first + 10), pa.int64())}), tmp_path / "x" / name)
    with SqlSession(root) as session:
        with pytest.raises(Unavailable, match="a VACUUM may have removed it"):
            session.run("SELECT * FROM x")
        (tmp_path / "x" / SMALL_PLACE.path).write_bytes(SMALL)
        assert rows(session, "SELECT a FROM x ORDER BY a") == [(n,) for n in range(20) if n not in (1, 3)]
        assert rows(session, "SELECT count(*) FROM raw.x WHERE a < 5") == [(3,)]


def test_deleted_rows_stay_away_after_a_version_that_cannot_be_read(tmp_path: Path) -> None:
    held = {"storageType": "u", "pathOrInlineDv": SMALL_TEXT, "offset": 1, "sizeInBytes": 36, "cardinality": 2}
    vacuumed = held | {"pathOrInlineDv": f"gone{SMALL_TEXT}"}
    root = foreign_table(tmp_path, more=[{"add": ADD | {"deletionVector": held}}])
    removed = {"remove": {"path": ADD["path"], "deletionVector": held}}
    commit(tmp_path / "x", 1, removed, {"add": ADD | {"deletionVector": vacuumed}})
    pq.write_table(pa.table({"a": pa.array(range(10), pa.int64())}), tmp_path / "x" / "f.parquet")
    (tmp_path / "x" / SMALL_PLACE.path).write_bytes(SMALL)
    with SqlSession(root) as session:
        for _ in range(2):
            assert rows(session, "SELECT count(*) FROM x VERSION AS OF 0") == [(8,)]
            with pytest.raises(Unavailable, match="a VACUUM may have removed it"):
                session.run("SELECT count(*) FROM x VERSION AS OF 1")


def test_warehouse_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no warehouse"):
        SqlSession(str(tmp_path / "none"))
