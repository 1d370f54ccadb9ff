"""Tests of tables of Protobuf and of JSON Schema, and of frames in tables of plain JSON, without a JVM."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from google.protobuf.message_factory import GetMessageClass

from pyspark_tiered.load.load import LoadOptions
from pyspark_tiered.schemas.registry import RegistryChoice
from pyspark_tiered.typed.form import ValueRules
from tests.spark.schema_server import SchemaServer, serve_schemas
from tests.spark.typed_site import Site, encode, rewrite
from tests.unit.schemas.avro_values import frame
from tests.unit.schemas.protobuf_values import draw_order, plan_everything

GUID = "8a1f3b1e-54f9-4a3c-8f4f-2d9f7a3b1c55"
ORDER = {"type": "object", "properties": {"id": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}}}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def schemas() -> Iterator[SchemaServer]:
    with serve_schemas() as server:
        file = base64.b64encode(plan_everything().file.serialized_pb).decode()
        server.register(1, file, "PROTOBUF", guid=GUID)
        server.register(2, ORDER, "JSON")
        server.register(3, {"type": "object", "properties": {"id": {"type": "string"}}}, "JSON")
        yield server


def options(url: str, values: str, keys: str = "") -> LoadOptions:
    return LoadOptions(values=ValueRules(values, keys=keys), registry=RegistryChoice(url))


def test_messages_are_rows_and_proved_by_another_reader(site: Site, schemas: SchemaServer) -> None:
    plan = plan_everything()
    kind, drawn = GetMessageClass(plan.message((1,)).descriptor), Random(3)
    orders = [frame(1, b"\2\2" + draw_order(drawn, kind).SerializeToString()) for _ in range(100)]
    tree = GetMessageClass(plan.message((0,)).descriptor)(v=7)
    others = [
        frame(1, b"\0" + tree.SerializeToString()),
        None,
        frame(1, b"\2\x12"),
        frame(1, b"\2\2\x1a\xff"),
        frame(2, b"\0"),
        b"plain",
        frame(9, b"\0"),
    ]
    site.write([*orders, *others])
    site.write([tree.SerializeToString()], headers=(("__value_schema_id", b"\1" + uuid.UUID(GUID).bytes + b"\0"),))
    done = site.load(options(schemas.url, "protobuf"))
    assert (done.typed_rows, done.dead_letters) == (103, 5)
    assert [why.split(":")[0] for why in site.letters().values()] == [
        "schema 1 makes no columns",
        "schema 1",
        "schema 2 makes no columns",
        "no frame of a schema registry",
        "the registry has no schema 9",
    ]
    assert [row for row in site.rows("_offset", "v") if row[1] is not None] == [(100, 7), (107, 7)]
    site.check_offsets()
    assert (site.verify().ok, site.verify().rows, site.verify().dead, site.verify().fitting) == (True, 103, 5, 0)
    rewrite(site.typed(), lambda rows: [{**rows[0], "text": "other"}, *rows[1:]])
    assert [each[:3] for each in site.verify().faults] == [("changed", 0, 0)]


def test_json_with_schemas_has_their_columns(site: Site, schemas: SchemaServer) -> None:
    values = [
        frame(2, b'{"id":1,"at":"2026-11-30T12:00:00Z"}'),
        frame(2, b'{"id":2,"more":[1]}'),
        frame(2, b'{"id":"x"}'),
        frame(3, b'{"id":"3"}'),
        frame(9, b'{"id":4}'),
        b'{"id":5}',
        None,
        frame(2, b'{"id":7'),
    ]
    site.write(values)
    done = site.load(options(schemas.url, "json-schema"))
    assert (done.typed_rows, done.dead_letters) == (3, 5)
    assert site.columns() == "id bigint, at timestamp, more array<bigint>"
    assert site.letters() == {
        2: "id is text where the column holds bigint",
        3: "schema 3: id is string where the column holds bigint",
        4: "the registry has no schema 9",
        5: "no frame of a schema registry",
        7: "not JSON at character 7: Expecting ',' delimiter",
    }
    assert (site.verify().ok, site.verify().fitting) == (True, 0)


def test_json_keys_with_schemas_beside_messages(site: Site, schemas: SchemaServer) -> None:
    site.write([frame(1, b"\0\x08\2"), None], keys=[frame(2, b'{"id":1}'), frame(2, b'{"id":"x"}')])
    site.load(options(schemas.url, "protobuf", "json-schema"))
    assert site.rows("_typed_key", "v") == [({"id": 1, "at": None}, 2)]
    assert site.letters() == {1: "_typed_key.id is text where the column holds bigint"}
    assert site.verify().ok


def test_frames_in_plain_json_are_skipped_with_one_notice(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    (plain,) = encode({"id": 1})
    site.write([plain, frame(7, json.dumps({"id": 2}).encode()), frame(7, b"{"), b"\0\0", None])
    site.load(LoadOptions(values=ValueRules("json")))
    assert site.rows("id") == [(1,), (2,), (None,)]
    assert sorted(site.letters()) == [2, 3]
    assert caplog.text.count("values have frames of a schema registry, which are skipped topic=t") == 1
    assert (site.verify().ok, site.verify().fitting) == (True, 0)
