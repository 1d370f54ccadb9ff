"""Tests of tables typed by a schema registry, without a JVM: rows, dead letters, schemas that change, verify."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from pyspark_tiered.load.load import LoadOptions
from pyspark_tiered.schemas import registry
from pyspark_tiered.schemas.registry import RegistryChoice
from pyspark_tiered.typed.change import FieldChanger
from pyspark_tiered.typed.form import ValueRules
from pyspark_tiered.typed.replay import replay_dead
from pyspark_tiered.typed.tables import DeadLetters, TypedTable
from tests.spark.schema_server import SchemaServer, serve_schemas
from tests.spark.typed_site import Site, encode, rewrite
from tests.unit.schemas.avro_values import EVERYTHING, draw_order, frame, write
from tiered.errors import Refused, Unavailable

GUID = "8a1f3b1e-54f9-4a3c-8f4f-2d9f7a3b1c55"
ONE = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "int"}, {"name": "city", "type": "string"}]}
TWO = {
    "type": "record",
    "name": "O",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": ["null", "double"], "default": None},
        {"name": "city", "type": ["null", "string"], "default": None},
    ],
}
OTHER = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "string"}]}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def schemas() -> Iterator[SchemaServer]:
    with serve_schemas() as server:
        server.register(1, ONE, guid=GUID)
        server.register(2, TWO)
        server.register(3, OTHER)
        yield server


def framed(number: int, schema: Any, *values: Any) -> list[bytes]:
    return [frame(number, each) for each in write(schema, values)]


def avro(url: str, *, keys: str = "", waits: bool = False) -> LoadOptions:
    return LoadOptions(values=ValueRules("avro", keys=keys), registry=RegistryChoice(url, waits=waits))


def test_schemas_change_in_both_directions_and_the_rest_are_dead_letters(site: Site, schemas: SchemaServer) -> None:
    values = [
        *framed(1, ONE, {"id": 1, "city": "Berlin"}),
        *framed(2, TWO, {"id": 2**40, "price": 1.5, "city": None}),
        *framed(1, ONE, {"id": 3, "city": "Paris"}),
        None,
        *framed(3, OTHER, {"id": "five"}),
        frame(77, b"\2"),
        b'{"id": 6}',
        frame(1, b"\2"),
        *framed(2, TWO, {"id": 8, "price": None, "city": "Rome"}),
    ]
    site.write(values)
    done = site.load(avro(schemas.url))
    assert (done.rows, done.typed_rows, done.dead_letters) == (9, 5, 4)
    assert site.columns() == "id bigint, city string, price double"
    assert site.rows("id", "city", "price") == [
        (1, "Berlin", None),
        (2**40, None, 1.5),
        (3, "Paris", None),
        (None, None, None),
        (8, "Rome", None),
    ]
    assert site.letters() == {
        4: "schema 3: id is string where the column holds bigint",
        5: "the registry has no schema 77",
        6: "no frame of a schema registry",
        7: "schema 1: the value ends within a field",
    }
    site.check_offsets()
    assert site.verify().ok
    site.write(framed(1, ONE, {"id": 9, "city": "Oslo"}))
    assert site.load(LoadOptions()).typed_rows == 1, "the table remembers the registry"
    assert site.verify().ok
    ids = [path for path in schemas.asked if path.startswith("/schemas/ids/1")]
    assert len(ids) == 1, "a process asks once for a schema"


def test_every_type_is_proved_by_another_decoder(site: Site, schemas: SchemaServer) -> None:
    schemas.register(9, EVERYTHING)
    drawn = Random(5)
    site.write(framed(9, EVERYTHING, *(draw_order(drawn) for _ in range(300))))
    assert site.load(avro(schemas.url)).dead_letters == 0
    assert (site.verify().ok, site.verify().rows) == (True, 300)
    files = [Path(site.warehouse, "t_typed", add["path"]) for add in site.typed().files()]
    assert sum(pq.read_table(each).num_rows for each in files) == 300
    rewrite(site.typed(), lambda rows: [{**row, "raw": row["raw"] + b"x"} for row in rows[:2]] + rows[2:])
    assert [each[:3] for each in site.verify().faults] == [("changed", 0, 0), ("changed", 0, 1)]


def test_keys_have_schemas_too(site: Site, schemas: SchemaServer) -> None:
    schemas.register(4, '"string"')
    keys = [frame(4, b"\2a"), None, frame(4, b"\4a"), b"plain", *framed(1, ONE, {"id": 5, "city": "x"})]
    site.write(framed(1, ONE, *({"id": at, "city": "c"} for at in range(5))), keys=keys)
    assert site.load(avro(schemas.url, keys="avro")).typed_rows == 2
    assert site.rows("_typed_key", "id") == [("a", 0), (None, 1)]
    assert site.letters() == {
        2: "key: schema 4: the value ends within a field",
        3: "key: no frame of a schema registry",
        4: "key: schema 1: _typed_key is struct<id: int, city: string> where the column holds string",
    }
    assert site.verify().ok


@pytest.mark.parametrize(("values", "keys"), [("avro", "json"), ("json", "avro")])
def test_one_of_value_and_key_is_json(site: Site, schemas: SchemaServer, values: str, keys: str) -> None:
    data = [framed(1, ONE, *({"id": at, "city": "c"} for at in range(3))), encode({"k": 1}, {"k": "x"}, {"k": 3})]
    both = data if values == "avro" else data[::-1]
    site.write(both[0], keys=both[1])
    options = LoadOptions(values=ValueRules(values, keys=keys), registry=RegistryChoice(schemas.url))
    assert (site.load(options).typed_rows, site.load(options).rows) == (2, 0)
    assert list(site.letters()) == [1]
    assert "k is text where the column holds bigint" in site.letters()[1]
    assert site.verify().ok


def test_schema_in_a_header(tmp_path: Path, schemas: SchemaServer) -> None:
    headers = (("__value_schema_id", b"\1" + uuid.UUID(GUID).bytes), ("other", b"x"))
    site = Site(tmp_path)
    values = write(ONE, [{"id": 1, "city": "Berlin"}])
    site.write(values, headers=headers)
    site.write([*values, b""], headers=(("__value_schema_id", b"\7"),))
    site.write(framed(1, ONE, {"id": 2, "city": "Rome"}))
    site.load(avro(schemas.url))
    assert site.rows("id", "city") == [(1, "Berlin"), (2, "Rome")]
    assert site.letters() == dict.fromkeys((1, 2), "the header __value_schema_id names no schema")
    assert site.verify().ok


def test_schema_with_references(site: Site, schemas: SchemaServer) -> None:
    line = {"type": "record", "name": "a.Line", "fields": [{"name": "sku", "type": "string"}]}
    order = {"type": "record", "name": "b.Order", "fields": [{"name": "line", "type": "a.Line"}]}
    schemas.add_version("line", 2, line)
    schemas.register(5, order, references=[{"name": "a.Line", "subject": "line", "version": 2}])
    site.write([frame(5, b"\2x")])
    site.load(avro(schemas.url))
    assert (site.rows("line"), site.verify().ok) == ([({"sku": "x"},)], True)


def test_unknown_ids_wait_or_are_replayed(site: Site, schemas: SchemaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "UNKNOWN_SECONDS", 0.0)
    late = frame(50, b"\2")
    site.write([*framed(1, ONE, {"id": 1, "city": "a"}), late, *framed(1, ONE, {"id": 3, "city": "c"})])
    with pytest.raises(Refused, match="loaded up to offset 1: in the typed table, the registry has no schema 50, and"):
        site.load(avro(schemas.url, waits=True))
    assert (site.rows("id"), site.letters()) == ([(1,)], {})
    site.load(avro(schemas.url))
    assert (site.rows("id"), site.letters()) == ([(1,), (3,)], {1: "the registry has no schema 50"})
    schemas.register(50, {"type": "record", "name": "L", "fields": [{"name": "id", "type": "int"}]})
    assert site.verify().fitting == 1
    assert replay_dead(site.store, "t", site.warehouse).rows == 1
    assert (site.rows("id"), site.letters()) == ([(1,), (1,), (3,)], {})
    assert site.verify().ok


def test_registry_that_is_away_or_none_loses_nothing(site: Site, schemas: SchemaServer) -> None:
    site.write(framed(1, ONE, {"id": 1, "city": "a"}))
    with pytest.raises(Refused, match="no schema registry is known: the bucket names no broker"):
        site.load(avro(""))
    with pytest.raises(Unavailable):
        site.load(avro("http://127.0.0.1:1"))
    types = schemas.bodies.pop("/schemas/types")
    with pytest.raises(Refused, match="there is no schema registry at http"):
        site.load(avro(schemas.url))
    schemas.bodies["/schemas/types"] = types
    assert site.load(avro(schemas.url)).typed_rows == 1
    assert site.verify(registry=RegistryChoice(schemas.url)).ok


def test_schema_that_makes_no_columns_is_said(site: Site, schemas: SchemaServer) -> None:
    schemas.register(5, {"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]})
    schemas.register(6, 'syntax = "proto3";', "PROTOBUF")
    schemas.register(7, " " * 3_000_000)
    site.write([frame(5, b""), frame(6, b"\0"), frame(7, b""), *framed(1, ONE, {"id": 1, "city": "a"})])
    assert site.load(avro(schemas.url)).typed_rows == 1
    assert site.letters() == {
        0: "schema 5 makes no columns: the record R holds itself without end",
        1: "schema 6 makes no columns: it is PROTOBUF, and not AVRO",
        2: "schema 7 makes no columns: it has more than 2097152 characters",
    }
    assert site.verify().ok


def test_values_that_are_no_records_are_one_column(site: Site, schemas: SchemaServer) -> None:
    schemas.register(4, json.dumps(["null", "string"]))
    site.write([frame(4, b"\2\2a"), frame(4, b"\0"), None])
    site.load(avro(schemas.url))
    assert (site.columns(), site.rows("value")) == ("value string", [("a",), (None,), (None,)])
    site.write([frame(4, b"\2\2b")])
    site.load(LoadOptions())
    assert (site.verify().ok, site.verify().rows) == (True, 4)
    with pytest.raises(Refused, match="the schemas of avro are in the registry: leave out --schema"):
        Site(Path(site.warehouse, "x")).load(LoadOptions(values=ValueRules("avro", "a INT")))


class Killed(Exception):
    """Stands for a kill: nothing after it runs."""


@pytest.mark.parametrize("owner", [DeadLetters, TypedTable])
@pytest.mark.parametrize("landed", [False, True])
def test_load_that_ends_between_its_commits_goes_on(
    site: Site, schemas: SchemaServer, monkeypatch: pytest.MonkeyPatch, owner: Any, landed: bool
) -> None:
    monkeypatch.setattr(registry, "UNKNOWN_SECONDS", 0.0)
    late = frame(50, b"\2")
    site.write([*framed(1, ONE, {"id": 1, "city": "a"}), late, *framed(2, TWO, {"id": 2, "price": 1.5, "city": None})])
    with monkeypatch.context() as patch:
        real = owner.commit

        def kill(*arguments: Any, **more: Any) -> bool:
            if landed:
                real(*arguments, **more)
            raise Killed

        patch.setattr(owner, "commit", kill)
        with pytest.raises(Killed):
            site.load(avro(schemas.url))
    schemas.register(50, {"type": "record", "name": "L", "fields": [{"name": "id", "type": "int"}]})
    site.write([*framed(1, ONE, {"id": 3, "city": "c"}), b"dead too"])
    site.load(LoadOptions())
    site.check_offsets()
    was_decided = landed or owner is TypedTable
    assert sorted(site.letters()) == ([1, 4] if was_decided else [4])
    assert site.rows("id") == [(1,), (2,), (3,)] if was_decided else [(1,), (1,), (2,), (3,)]
    assert site.verify().ok


def test_loads_at_once_have_each_record_once(tmp_path: Path, schemas: SchemaServer) -> None:
    site = Site(tmp_path, partitions=3)
    for number in range(3):
        values = framed(1, ONE, *({"id": i, "city": "c"} for i in range(100)))
        values[50:50] = [frame(77, b""), *framed(2, TWO, {"id": 2**40, "price": 0.5, "city": None})]
        site.write(values, partition=number)

    def run() -> None:
        for _ in range(3):
            site.load(avro(schemas.url), split_bytes=1000)

    with ThreadPoolExecutor(3) as pool:
        for started in [pool.submit(run) for _ in range(3)]:
            started.result(120)
    site.check_offsets()
    assert (site.verify().ok, site.verify().dead) == (True, 3)


def test_only_names_of_columns_can_be_changed(site: Site, schemas: SchemaServer) -> None:
    site.write(framed(1, ONE, {"id": 1, "city": "a"}))
    site.load(avro(schemas.url))
    changer = FieldChanger(site.store, "t", site.warehouse, "city")
    for change in (changer.drop, changer.count, lambda: changer.retype("INT"), lambda: changer.move_values("x")):
        with pytest.raises(Refused, match="'city' is a field of avro: its type is that of its schemas"):
            change()
    changer.rename("town")
    site.write(framed(2, TWO, {"id": 2, "price": None, "city": "b"}))
    site.load(LoadOptions())
    assert (site.rows("town"), site.verify().ok) == ([("a",), ("b",)], True)
