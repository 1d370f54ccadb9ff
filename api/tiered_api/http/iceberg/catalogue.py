"""The REST catalogue of Iceberg over the tables in the warehouse of the console. It changes nothing.

There is one namespace. A caller sees the tables of topics that it may READ, as on the pages of tables: the metadata say
where the files are and what the offsets and times of their rows are. The files are read by the client, with its own
rights on the bucket.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tiered_api.http.exchange.errors import NAMESPACE_NOT_FOUND, TABLE_NOT_FOUND, HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.overview.tables import NAME_CHARACTERS, may_read_something, may_see, refuse_table
from tiered_api.http.overview.warehouse import SETTING, Asked, WarehouseReports

NAMESPACE = "tiered"
ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
)
"""The operations that a client may use, in the words of Iceberg's specification."""


async def get_catalog_config(request: HttpRequest) -> web.StreamResponse:
    """Returns what Iceberg's clients ask a REST catalogue for first: its settings, and that it is read-only."""
    return json_response({"defaults": {}, "overrides": {}, "endpoints": ENDPOINTS})


async def list_namespaces(request: HttpRequest) -> web.StreamResponse:
    """Lists the namespaces of the Iceberg catalogue: there is one if a warehouse is set."""
    parent = request.query_parameters().get("parent")
    if parent is not None:
        _find_namespace(request, parent)
    has_any = parent is None and bool(request.context.service(WarehouseReports).warehouse)
    return json_response({"namespaces": [[NAMESPACE]] if has_any else [], "next-page-token": None})


async def get_namespace(request: HttpRequest) -> web.StreamResponse:
    """Returns the namespace of the Iceberg catalogue."""
    _find_namespace(request, request.args["namespace"])
    return json_response({"namespace": [NAMESPACE], "properties": {}})


async def list_iceberg_tables(request: HttpRequest) -> web.StreamResponse:
    """Lists the tables of the warehouse that have metadata of Iceberg."""
    reports = _find_namespace(request, request.args["namespace"])
    report = await reports.read(Asked(), request.caller.holder)
    request.recheck()
    if report.problem is not None and not report.tables:
        raise HttpError(503, report.problem)
    shown = [name for name, each in report.tables.items() if each.get("has_iceberg") and may_see(request, each)]
    identifiers = [{"namespace": [NAMESPACE], "name": name} for name in shown]
    return json_response({"identifiers": identifiers, "next-page-token": None})


async def load_iceberg_table(request: HttpRequest) -> web.StreamResponse:
    """Returns the newest metadata of an Iceberg table, and where they are."""
    name, reports = request.args["table"], _find_namespace(request, request.args["namespace"])
    if len(name) > NAME_CHARACTERS or not may_read_something(request):
        raise _no_table(name)
    report = await reports.read(Asked(name, iceberg=True), request.caller.holder)
    request.recheck()
    table = report.tables.get(name)
    if table is None and report.problem is not None:
        raise HttpError(503, report.problem)
    if table is None or not may_see(request, table):
        raise _no_table(name)
    if "problem" in table:
        raise HttpError(503, f"the metadata of {name} cannot be read: {table['problem']}")
    found: dict[str, Any] = table["iceberg"]
    return json_response({"metadata-location": found["location"], "metadata": found["metadata"], "config": {}})


def _find_namespace(request: HttpRequest, name: str) -> WarehouseReports:
    """Returns the reports on the tables of the namespace. Raises `HttpError` if there is none of this name."""
    reports = request.context.service(WarehouseReports)
    if not reports.warehouse:
        raise HttpError(NAMESPACE_NOT_FOUND, f"there is no namespace, for no warehouse is set ({SETTING})")
    if name != NAMESPACE:
        raise HttpError(NAMESPACE_NOT_FOUND, f"there is no namespace {name[:NAME_CHARACTERS]!r}: it is {NAMESPACE!r}")
    return reports


def _no_table(name: str) -> HttpError:
    return HttpError(TABLE_NOT_FOUND, refuse_table(name).message)
