"""Tests of typed tables without a JVM: each record is a row or a dead letter, through drift, kills and races."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_tiered.delta.delta_state import commit_name
from pyspark_tiered.delta.log_folder import LOG, open_folder
from pyspark_tiered.delta.table_form import FileRun, LoadedFile
from pyspark_tiered.load.load import LoadOptions, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.typed import load as typed_load
from pyspark_tiered.typed.change import FieldChanger
from pyspark_tiered.typed.form import ValueRules, metadata_action
from pyspark_tiered.typed.tables import DeadLetters, TypedTable
from tests.spark import filling
from tests.spark.typed_site import JSON, TOPIC, Site, encode, rows_of
from tiered.errors import Corrupt, Refused


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


DRIFT: list[tuple[bytes | None, str]] = [
    (b'{"id":1,"city":"Berlin"}', ""),
    (b'{"id":2,"city":"Paris","new":true}', ""),
    (b'{"id":3}', ""),
    (b'{"id":"4"}', "id is text where the column holds bigint"),
    (b'{"id":null,"city":null}', ""),
    (b'{"id":6,"at":{"lat":52.5,"tags":["a","b"]}}', ""),
    (b'{"id":7,"at":{"lat":"north"}}', "at.lat is text where the column holds double"),
    (b'{"id":8,"items":[{"n":1},{"n":2,"m":null}]}', ""),
    (b'{"id":9,"ID":10,"Id":11}', ""),
    (b'{"id":9,"id":10}', "the name 'id' twice in one object"),
    (b'{"id":18446744073709551616}', "id is a number beyond 64 bits"),
    (b'{"id":1e999}', "id is a number beyond 64 bits"),
    (b'{"city":"\xff"}', "not UTF-8 at byte 9"),
    (b'{"city":"\\ud800"}', "city holds half of a surrogate pair"),
    (b'{"id":1', "not JSON at character 7: Expecting ',' delimiter"),
    (b"", "not JSON at character 0: Expecting value"),
    (b'\xef\xbb\xbf{"id":1}', "not JSON at character 0: Expecting value (a byte order mark is in front)"),
    (b'\xff\xfe{\0"\0', "not UTF-8 at byte 0 (UTF-16, by its byte order mark)"),
    (b'\0\0\0\0\x07{"id":1}', ""),
    (None, ""),
    (b"[1,2]", "an array, not an object"),
    (b'{"_offset":5}', ""),
    (b'{"big":"' + Random(1).randbytes(4_000_000).hex().encode() + b'"}', ""),
    (b'{"id":' + b"[" * 5000, "nested too deep"),
]


def test_drift_becomes_columns_or_dead_letters_and_blocks_nothing(site: Site) -> None:
    site.write([value for value, _ in DRIFT])
    done = site.load()
    reasons = {at: why for at, (_, why) in enumerate(DRIFT) if why}
    assert (done.rows, done.typed_rows, done.dead_letters) == (len(DRIFT), len(DRIFT) - len(reasons), len(reasons))
    assert site.letters() == reasons
    site.check_offsets()
    assert site.columns() == (
        "id bigint, city string, new boolean, at struct<lat: double, tags: array<string>>, "
        "items array<struct<n: bigint>>, ID bigint, Id bigint, _offset bigint, big string"
    )
    assert site.rows("id", "ID_2", "Id_3")[6] == (9, 10, 11)
    assert site.rows("_offset", "_offset_2")[9] == (21, 5)
    dead = rows_of(site.dead(), ("_offset", "_value", "_key", "_headers"))
    assert dead[0] == (3, b'{"id":"4"}', b"k", [{"key": "h", "value": b"x"}])


def test_later_loads_remember_values_and_add_columns(site: Site) -> None:
    site.write(encode({"a": 1}, {"a": 2}))
    site.load()
    site.write(encode({"a": 3, "b": {"c": [1.5]}}, {"a": "x"}))
    done = site.load(LoadOptions())
    assert (done.typed_rows, done.dead_letters) == (1, 1)
    assert site.columns() == "a bigint, b struct<c: array<double>>"
    assert site.rows("a", "b") == [(1, None), (2, None), (3, {"c": [1.5]})]
    site.check_offsets()
    versions = site.typed().version, site.dead().version
    assert site.load(LoadOptions()).rows == 0
    assert (site.typed().version, site.dead().version) == versions, "a load with nothing new commits"


def test_items_without_a_value_are_loaded_first_and_later(site: Site) -> None:
    for turn in range(3):
        site.write(
            encode({"b": [None, None]}, {"b": [[], [None, None]]}, {"b": [{}, None]}, {"c": {"d": [None, None]}})
        )
        site.write(encode({"n": turn}, {"b": [[None, None, None]]}))
        done = site.load()
        assert (done.typed_rows, done.dead_letters) == (6, 0), site.letters()
        site.check_offsets()
        assert site.verify().ok
    site.write(encode({"b": [0.5]}, {"b": [None, None]}, {"c": {"d": [{"e": [None, "t"]}, None, None]}}))
    assert site.load().dead_letters == 0
    assert site.columns() == "n bigint, b array<double>, c struct<d: array<struct<e: array<string>>>>"
    assert site.verify().ok, site.verify().faults


def test_typed_table_begins_at_the_start_of_the_log(site: Site) -> None:
    site.write(encode(*({"n": i} for i in range(100))))
    site.load(LoadOptions())
    assert not (Path(site.warehouse) / "t_typed").exists()
    assert site.load().typed_rows == 100


def test_columns_widen_and_older_files_with_them(site: Site) -> None:
    site.write(encode({"a": 1, "deep": {"x": [1]}}, {"b": "t"}))
    site.load()
    site.write(encode({"a": 0.5, "deep": {"x": [2.5]}}))
    assert site.load().dead_letters == 0
    assert site.columns() == "a double, deep struct<x: array<double>>, b string"
    assert site.rows("a", "b") == [(1.0, None), (None, "t"), (0.5, None)]
    for add in site.typed().files():
        assert str(pq.read_schema(Path(site.warehouse, "t_typed", add["path"])).field("a").type) == "double"
    site.check_offsets()


def test_columns_widen_after_spark_wrote_the_files_again(site: Site) -> None:
    """OPTIMIZE and UPDATE of Spark write each time as INT96, without a zone."""
    values = encode({"t": "2500-01-01T00:00:00Z", "n": 1, "deep": [{"t": "0099-12-31T23:00:00Z"}]})
    site.write(values)
    site.load(LoadOptions(values=ValueRules("json", "t TIMESTAMP, n BIGINT, deep ARRAY<STRUCT<t: TIMESTAMP>>")))
    before = site.rows("_timestamp", "t", "deep")
    (add,) = site.typed().files()
    path = Path(site.warehouse, "t_typed", add["path"])
    pq.write_table(pq.read_table(path), path, use_deprecated_int96_timestamps=True, store_schema=False)
    site.write(encode({"n": 0.5}))
    assert site.load().typed_rows == 1
    assert site.rows("_timestamp", "t", "deep")[:1] == before
    assert [row[0] for row in site.rows("n")] == [1.0, 0.5]
    assert site.verify().ok


def test_file_that_cannot_be_widened_leaves_nothing_behind(site: Site) -> None:
    site.write(encode({"n": 1}, {"n": 2}))
    site.load()
    (add,) = site.typed().files()
    path = Path(site.warehouse, "t_typed", add["path"])
    pq.write_table(pq.read_table(path), path, row_group_size=1)
    data, at = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(1).column(0).data_page_offset
    data[at : at + 8] = bytes([255] * 8)
    path.write_bytes(data)
    site.write(encode({"n": 0.5}))
    with pytest.raises(Corrupt, match="not readable Parquet") as failed:  # it holds all frames, and what they opened
        site.load()
    assert not list(path.parent.glob(".*.tmp")), failed.value


def test_integer_of_a_column_that_became_double_is_rounded_early_or_late(site: Site) -> None:
    big = (1 << 53) + 1
    site.write(encode({"a": big}))
    site.load()
    site.write(encode({"a": big}, {"a": 0.5}, {"a": big}))
    site.load()
    assert (site.columns(), site.rows("a")) == ("a double", [(2.0**53,), (2.0**53,), (0.5,), (2.0**53,)])
    site.check_offsets()


def test_declared_schema_is_pinned_and_another_one_is_refused(site: Site) -> None:
    declared = LoadOptions(values=ValueRules("json", "id INT, at TIMESTAMP, day DATE"))
    site.write([b'{"id":1,"at":"2026-11-25T13:00:00Z","day":"2026-11-25"}', b'{"id":2,"at":"noon"}'])
    site.load(declared)
    assert site.columns() == "id int, at timestamp, day date"
    assert site.letters() == {1: "at is no timestamp in ISO 8601"}
    site.load(declared)
    site.load(JSON)
    with pytest.raises(Refused, match=r"has the schema `id INT, at TIMESTAMP, day DATE` and not `id STRING`"):
        site.load(LoadOptions(values=ValueRules("json", "id STRING")))


def test_change_events_are_columns_with_and_without_their_envelope(site: Site) -> None:
    fields = [{"field": "id", "default": 0}, {"field": "name", "default": "x:y"}]
    first = {"op": "c", "before": None, "after": {"id": 1, "name": "a"}, "ts_ms": 5, "source": {"lsn": 9}}
    second = {**first, "op": "u", "before": first["after"], "after": {"id": 1, "name": "b"}}
    wrapped = [{"schema": {"fields": fields}, "payload": each} for each in (first, second)]
    site.write([*encode(first, *wrapped, second), None, b'{"schema":null,"payload":null}', *encode({"payload": 1}, 5)])
    done = site.load(LoadOptions(values=ValueRules("debezium")))
    assert (done.typed_rows, done.dead_letters) == (6, 2)
    assert site.columns() == (
        "op string, before struct<id: bigint, name: string>, after struct<id: bigint, name: string>, ts_ms bigint, "
        "source struct<lsn: bigint>"
    )
    one, two = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
    assert site.rows("op", "before", "after")[:4] == [
        ("c", None, one),
        ("c", None, one),
        ("u", one, two),
        ("u", one, two),
    ]
    assert (site.verify().ok, site.verify().rows) == (True, 6)
    with pytest.raises(Refused, match="has values of the kind `debezium` and not `json`"):
        site.load(JSON)
    site.write(encode(wrapped[0]))
    assert (site.load(LoadOptions()).typed_rows, site.verify().ok) == (1, True)
    site.check_offsets()


def test_declared_decimals_are_loaded_and_proved(site: Site) -> None:
    site.write(encode({"price": "12.50", "of": [{"n": 1}]}, {"price": 7, "of": [{"n": "0.125"}]}, {"price": "free"}))
    site.load(LoadOptions(values=ValueRules("json", "price DECIMAL(9,2), of ARRAY<STRUCT<n: DECIMAL(4,3)>>")))
    assert site.letters() == {2: "price is no decimal(9,2)"}
    assert site.rows("price", "of") == [
        (Decimal("12.50"), [{"n": Decimal("1.000")}]), (Decimal("7.00"), [{"n": Decimal("0.125")}]),
    ]  # fmt: skip
    assert (site.verify().ok, site.verify().rows) == (True, 2)
    with pytest.raises(Refused, match=r"is decimal\(9,2\), which takes numbers and text"):
        FieldChanger(site.store, "t", site.warehouse, "price").move_values("price_text")
    site.write(encode({"price": 0.1, "new": 1}))
    site.load(LoadOptions())
    assert site.columns() == "price decimal(9,2), of array<struct<n: decimal(4,3)>>, new bigint"
    assert site.verify().ok

    def raise_price(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "price": row["price"] + Decimal("0.01")} for row in rows]

    path = Path(site.warehouse, "t_typed", site.typed().files()[1]["path"])
    held = pq.read_table(path)
    pq.write_table(pa.Table.from_pylist(raise_price(held.to_pylist()), schema=held.schema), path)
    assert [each.kind for each in site.verify().faults] == ["changed"]


def test_partitions_that_contradict_each_other_agree_on_the_first(tmp_path: Path) -> None:
    site = Site(tmp_path, partitions=2)
    site.write(encode(*({"x": i} for i in range(50))), partition=0)
    site.write(encode(*({"x": f"{i}", "y": i} for i in range(50)), {"x": 5.5}), partition=1)
    site.load(split_bytes=100)
    assert site.columns() == "x double"
    site.check_offsets()
    assert len(rows_of(site.typed(), ())) == 51


class Killed(Exception):
    """Stands for a kill: nothing after it runs."""


@pytest.mark.parametrize("owner", [DeadLetters, TypedTable])
@pytest.mark.parametrize("landed", [False, True])
def test_load_that_ends_between_its_commits_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch, owner: Any, landed: bool
) -> None:
    site.write(encode({"a": 1}, {"a": "dead"}, {"a": 2}))
    with monkeypatch.context() as patch:
        real = owner.commit

        def kill(*arguments: Any, **more: Any) -> bool:
            if landed:
                real(*arguments, **more)
            raise Killed

        patch.setattr(owner, "commit", kill)
        with pytest.raises(Killed):
            site.load()
    site.write(encode({"a": 3, "b": 1}, {"a": "dead too"}))
    site.load()
    site.check_offsets()
    assert sorted(site.letters()) == [1, 4]
    assert site.rows("a", "b") == [(1, None), (2, None), (3, 1)]


def test_loads_at_once_have_each_record_once(tmp_path: Path) -> None:
    site = Site(tmp_path, partitions=3)
    for number in range(3):
        values = encode(*({"x": i if i % 7 else "t", f"f{i // 20}": number} for i in range(200)))
        site.write(values, partition=number)

    def run() -> None:
        for _ in range(3):
            site.load(split_bytes=2000)

    with ThreadPoolExecutor(3) as pool:
        for started in [pool.submit(run) for _ in range(3)]:
            started.result(120)
    site.check_offsets()


@pytest.mark.parametrize("suffix", ["_typed", "__dead"])
def test_table_of_another_program_is_refused_and_the_raw_one_is_whole(site: Site, suffix: str) -> None:
    other = open_folder(f"file:{site.warehouse}/t{suffix}")
    metadata = {"metaData": {"id": "x", "schemaString": json.dumps({"type": "struct", "fields": []})}}
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    other.create(f"{LOG}/{commit_name(0)}", f"{json.dumps(protocol)}\n{json.dumps(metadata)}\n".encode())
    site.write(encode({"x": 1}))
    with pytest.raises(Refused, match="holds something else, not topic t"):
        site.load()
    site.load(LoadOptions())
    assert NativeTable(f"file:{site.warehouse}/t", "t", TOPIC).loaded_offsets() == {0: 1}


def test_refused_typed_table_does_not_keep_rows_from_the_raw_one(site: Site) -> None:
    site.write(encode({"x": 1}))
    site.load()
    typed = site.typed()
    fields = json.loads(typed.metadata["schemaString"])["fields"]
    fields[-1]["metadata"] = {"comment": "ALTER TABLE t_typed ALTER COLUMN x COMMENT '...'"}
    open_folder(typed.url).create(
        f"{LOG}/{commit_name(typed.version + 1)}", metadata_action(typed.metadata, fields).encode()
    )
    site.write(encode({"x": 2}))
    with pytest.raises(Refused, match="with conditions"):
        site.load(LoadOptions())
    assert NativeTable(f"file:{site.warehouse}/t", "t", TOPIC).loaded_offsets() == {0: 2}


def test_load_that_makes_the_table_second_keeps_to_the_rules_of_the_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write(encode({"x": 1}))
    real = TypedTable.set_schema

    def set_schema(*arguments: Any) -> bool:
        monkeypatch.setattr(TypedTable, "set_schema", real)
        site.load(LoadOptions(values=ValueRules("json", "x BIGINT")))
        return real(*arguments)

    monkeypatch.setattr(TypedTable, "set_schema", set_schema)
    with pytest.raises(Refused, match="has the schema `x BIGINT` and not `x STRING`"):
        site.load(LoadOptions(values=ValueRules("json", "x STRING")))
    assert site.rows("x") == [(1,)]


def test_dead_letters_that_were_dropped_alone_are_missed(site: Site) -> None:
    site.write(encode({"x": 1}, {"x": "text"}))
    site.load()
    shutil.rmtree(Path(site.warehouse, "t__dead"))
    with pytest.raises(
        Refused, match=r"t__dead is behind .*t_typed: it was dropped or restored\. To make it again, drop"
    ):
        site.load()
    shutil.rmtree(Path(site.warehouse, "t_typed"))
    assert (site.load().dead_letters, site.verify().ok) == (1, True)


def test_two_late_loads_do_not_double_a_dead_letter(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write(encode({"x": 1}))
    site.load()
    letters, version = site.dead(), site.dead().version
    file = LoadedFile("a.parquet", 1, 1, (FileRun(0, 1, 0, 0, 0, 0, 0),))
    real = DeadLetters.create

    def create(self: DeadLetters, *arguments: Any) -> bool:
        monkeypatch.setattr(DeadLetters, "create", real)
        assert site.dead().commit([file], [], metadata=letters.metadata, unchanged_since=version)
        return real(self, *arguments)

    monkeypatch.setattr(DeadLetters, "create", create)
    assert not letters.commit([file], [], metadata=letters.metadata, unchanged_since=version)


def test_field_with_the_name_of_the_items_of_an_array_ends_no_load(site: Site) -> None:
    site.write(encode({"[]": 1}))
    site.load()
    site.write(encode({"[]": "text"}))
    assert site.load().dead_letters == 1
    assert site.letters() == {1: "[] is text where the column holds bigint"}


def test_raw_load_ignores_a_typed_name_that_another_topic_holds(site: Site) -> None:
    other = filling.topic_id(9)
    filling.create_topic(site.store, "t_typed", other, 1)
    load(site.store, "t_typed", site.warehouse, engine=NativeEngine())
    site.write(encode({"a": 1}))
    assert site.load(LoadOptions()).rows == 1
    with pytest.raises(Refused, match="holds topic t_typed with id"):
        site.load()


@pytest.mark.parametrize("name", ["\0key", "\0value"])
@pytest.mark.parametrize("inner", [1, None])
def test_name_that_stands_for_the_key_or_the_value_is_no_field(site: Site, name: str, inner: Any) -> None:
    site.write(encode({"x": 1}, {"x": 2, name: inner}, {"x": 3, "in": {name: inner}}), keys=[b"no JSON"] * 3)
    site.load()
    site.write(encode({"x": 4}, {"x": "text"}, {"x": 5}), keys=[b"no JSON"] * 3)
    site.load()
    assert site.rows("x") == [(1,), (4,), (5,)]
    assert {at: "has the name" in why for at, why in site.letters().items()} == {1: True, 2: True, 4: False}
    found = site.verify()
    assert (found.ok, found.rows, found.dead) == (True, 3, 3)


def test_one_notice_names_the_first_dead_letter(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.write([b"{", *encode(*({"a": "x" if i % 2 else 1} for i in range(100)))])
    site.load()
    notices = [record.getMessage() for record in caplog.records if record.name == typed_load.__name__]
    assert len(notices) == 1
    assert "table=t__dead first=partition 0, offset 0: not JSON at character 1" in notices[0]
    assert " also=partition 0, offset 2: a is text where the column holds bigint rule=tiered table change" in notices[0]
