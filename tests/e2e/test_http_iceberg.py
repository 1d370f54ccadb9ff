"""Tests of the Iceberg catalogue over HTTP: its tables and rights, its errors, and PyIceberg as a client."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.table_form import Advance
from pyspark_tiered.iceberg.metadata import FOLDER
from pyspark_tiered.load.native_table import NativeTable
from tests.e2e.http_site import HttpBroker
from tests.e2e.test_http_rights import SETTINGS, ask, grant, start
from tests.e2e.test_http_tables import add_table, run_with_tables
from tests.scenario import run_by
from tiered_api.http.overview import warehouse

TABLES = "/iceberg/v1/namespaces/tiered/tables"


def add_iceberg(tables: Path, name: str, topic: str, topic_id: object) -> None:
    """Adds a table without rows, and its metadata of Iceberg."""
    table = NativeTable(spark_url(str(tables / name)), topic, str(topic_id))
    table.iceberg.ask()
    assert table.commit([], [Advance(0, -1, 5)])


def error_of(reply: Any) -> tuple[int, str]:
    body = reply.json["error"]
    assert body["code"] == reply.status and body["message"]
    return reply.status, body["type"]


@run_by(run_with_tables, "tmp_path")
async def test_catalogue_has_the_tables_with_metadata_of_iceberg(site: HttpBroker, *, tmp_path: Path) -> None:
    await site.create("t")
    tables, topic_id = tmp_path / "tables", site.broker.image.topics["t"].topic_id
    add_iceberg(tables, "t", "t", topic_id)
    add_table(tables, "plain", "t", topic_id, {0: 3})
    config = (await site.get("/iceberg/v1/config?warehouse=x")).json
    assert config["overrides"] == {} and all(each.startswith(("GET", "HEAD")) for each in config["endpoints"])
    assert (await site.get("/iceberg/v1/namespaces")).json["namespaces"] == [["tiered"]]
    assert (await site.get("/iceberg/v1/namespaces?parent=tiered")).json["namespaces"] == []
    assert (await site.get("/iceberg/v1/namespaces/tiered")).json["namespace"] == ["tiered"]
    assert (await site.get(TABLES)).json["identifiers"] == [{"namespace": ["tiered"], "name": "t"}]
    found = (await site.get(f"{TABLES}/t?snapshots=refs")).json
    path = tables / "t" / FOLDER / "v1.metadata.json"
    assert found["metadata-location"] == f"file://{path}"
    assert found["metadata"] == json.loads(path.read_text()) and found["config"] == {}


@run_by(run_with_tables, "tmp_path")
async def test_errors_of_the_catalogue_have_the_form_of_iceberg(site: HttpBroker, *, tmp_path: Path) -> None:
    add_table(tmp_path / "tables", "plain", "t", "T", {0: 3})
    for path in (f"{TABLES}/absent", f"{TABLES}/plain", f"{TABLES}/{'x' * 400}"):
        assert error_of(await site.get(path)) == (404, "NoSuchTableException")
    for path in ("/iceberg/v1/namespaces/other", "/iceberg/v1/namespaces/other/tables/t"):
        assert error_of(await site.get(path)) == (404, "NoSuchNamespaceException")
    assert error_of(await site.get("/iceberg/v1/nothing")) == (404, "NotFoundException")
    for method, path in (("POST", TABLES), ("DELETE", f"{TABLES}/t"), ("POST", "/iceberg/v1/namespaces")):
        reply = await site.ask(method, path, {})
        assert error_of(reply) == (405, "UnsupportedOperationException")
        assert "read-only" in reply.json["error"]["message"]
    folder = tmp_path / "tables" / "strange" / FOLDER
    folder.mkdir(parents=True)
    (folder / "version-hint.text").write_text("1")
    (folder / "v1.metadata.json").write_text("{}")
    assert error_of(await site.get(f"{TABLES}/strange")) == (503, "ServiceUnavailableException")
    assert "error_code" in (await site.get("/tiered/v1/tables/absent")).json, "other addresses have their own form"


@run_by(run_with_tables, "tmp_path", **SETTINGS)
async def test_catalogue_hides_the_tables_of_topics_without_rights(site: HttpBroker, *, tmp_path: Path) -> None:
    await start(site, "t", "hidden")
    for topic in ("t", "hidden"):
        add_iceberg(tmp_path / "tables", topic, topic, site.broker.image.topics[topic].topic_id)
    await grant(site, "alice", ("TOPIC", "t", "READ"))
    listed = (await ask(site, "alice", "GET", TABLES)).json["identifiers"]
    assert [each["name"] for each in listed] == ["t"]
    assert (await ask(site, "alice", "GET", f"{TABLES}/t")).status == 200
    hidden, absent = [await ask(site, "alice", "GET", f"{TABLES}/{name}") for name in ("hidden", "absent")]
    assert hidden.status == absent.status == 404
    assert hidden.body.replace(b"hidden", b"absent") == absent.body


@run_by(run_with_tables, "tmp_path")
async def test_broker_without_a_warehouse_has_no_catalogue(
    site: HttpBroker, *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warehouse.WarehouseReports, "warehouse", "")
    assert (await site.get("/iceberg/v1/namespaces")).json["namespaces"] == []
    for path in (TABLES, f"{TABLES}/t"):
        reply = await site.get(path)
        assert error_of(reply) == (404, "NoSuchNamespaceException")
        assert warehouse.SETTING in reply.json["error"]["message"]


@run_by(run_with_tables, "tmp_path")
async def test_pyiceberg_reads_a_table_through_the_catalogue(site: HttpBroker, *, tmp_path: Path) -> None:
    rest = pytest.importorskip("pyiceberg.catalog.rest", reason="pyiceberg is not installed")
    await site.create("t")
    add_iceberg(tmp_path / "tables", "t", "t", site.broker.image.topics["t"].topic_id)

    def read() -> None:
        catalog = rest.RestCatalog("t", uri=f"{site.url}/iceberg")
        assert catalog.list_tables("tiered") == [("tiered", "t")]
        table = catalog.load_table("tiered.t")
        assert table.current_snapshot().snapshot_id == 1 and table.scan().to_arrow().num_rows == 0
        assert not catalog.table_exists("tiered.absent")

    await asyncio.to_thread(read)
