"""The Delta tables of topics in the warehouse of the console: rows, times, offsets, dead letters and versions.

A caller who may READ a topic may see its tables. Tables of other programs are for operators, who may DESCRIBE the
cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from tiered.ids import TopicPartition
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import TopicImage
from tiered.security.acls import CLUSTER_NAME, Operation, ResourceType
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.groups import fetch_end_offsets
from tiered_api.http.overview.warehouse import SETTING, Asked, Report, Table, WarehouseReports
from tiered_api.http.partitions.produce import find_topic

VERSIONS, VERSIONS_MAX = 20, 100
NAME_CHARACTERS = 300
ENDS_MAX = 2_000
"""Partitions of a list whose ends are looked up. The lag of tables with more is not known."""
SUFFIXES = ("", "_typed", "__dead")
"""The names of a topic's tables end so."""
LETTERS = "dead letters"
FACTS = ("topic", "topic_id", "version", "rows", "files", "bytes", "committed_ms", "loaded_ms", "newest_ms", "verified")
DETAILS = ("columns", "versions", "reasons", "reasons_of", "reasons_problem")
NOTHING = Report({}, None, 0)

Ends = Mapping[TopicPartition, int]
Letters = Mapping[tuple[str, str], int | None]
"""Dead letters by name and id of their topic."""


async def list_tables(request: HttpRequest) -> web.StreamResponse:
    """Lists the Delta tables of topics in the warehouse: rows, times, dead letters, and how far each is behind."""
    reports = request.context.service(WarehouseReports)
    if not reports.warehouse:
        return json_response(_head(request, NOTHING) | {"tables": [], "partial": False})
    report = await reports.read(Asked(), request.caller.holder)
    request.recheck()
    shown = [each for each in report.tables.values() if may_see(request, each)]
    image, ends = request.context.broker.image, await _fetch_ends(request, shown)
    letters = {(each["topic"], each["topic_id"]): each["rows"] for each in shown if each.get("kind") == LETTERS}
    rows = [summarize_table(each, image, ends, letters) for each in shown]
    return json_response(_head(request, report) | {"tables": rows, "partial": not _is_operator(request)})


async def get_table(request: HttpRequest) -> web.StreamResponse:
    """Returns a table with its offsets by partition, its columns and versions, and the reasons of its dead letters."""
    versions = request.query_integer("versions", VERSIONS, 1, VERSIONS_MAX)
    report, table = await read_table(request, request.args["table"], versions)
    if table is None:
        raise refuse_table(request.args["table"])
    image, ends = request.context.broker.image, await _fetch_ends(request, [table])
    letters = {(table.get("topic", ""), table.get("topic_id", "")): table.get("dead_letters")}
    return json_response(
        _head(request, report)
        | summarize_table(table, image, ends, letters)
        | {key: table.get(key) for key in DETAILS}
        | {"partitions": list_partitions(table, image, ends)}
    )


async def read_table(request: HttpRequest, name: str, versions: int) -> tuple[Report, Table | None]:
    """Returns the report on a table, and the table if the warehouse has it. Raises `HttpError` 404 without a warehouse
    or for a table that the caller may not see, 503 if it is not read."""
    reports = request.context.service(WarehouseReports)
    if not reports.warehouse:
        raise HttpError(404, f"no warehouse is set ({SETTING})")
    if len(name) > NAME_CHARACTERS or not may_read_something(request):
        raise refuse_table(name)
    report = await reports.read(Asked(name, versions), request.caller.holder)
    request.recheck()
    table = report.tables.get(name)
    if table is None and report.problem is not None:
        raise HttpError(503, report.problem)
    if table is not None and not may_see(request, table):
        raise refuse_table(name)
    return report, table


def refuse_table(name: str) -> HttpError:
    """Returns the error for a table that is not there, and for one that the caller may not see."""
    return HttpError(404, f"there is no table {name[:249]!r} that you may see")


async def get_topic_table(request: HttpRequest) -> web.StreamResponse:
    """Returns the offset up to which each partition of a topic is loaded into its table."""
    topic = find_topic(request.context, request.args["topic"])
    reports = request.context.service(WarehouseReports)
    found: dict[str, Any] = {"topic": topic.name, "topic_id": str(topic.topic_id), "table": None, "offsets": {}}
    if not reports.warehouse:
        return json_response(_head(request, NOTHING) | found)
    report = await reports.read(Asked(topic.name), request.caller.holder)
    request.recheck()
    table = report.tables.get(topic.name, {})
    found |= _head(request, report)
    if table.get("problem"):
        found["problem"] = table["problem"]
    elif (table.get("topic"), table.get("topic_id")) == (topic.name, str(topic.topic_id)):
        found |= {"table": topic.name, "offsets": table["offsets"]}
    return json_response(found)


def _head(request: HttpRequest, report: Report) -> dict[str, Any]:
    """Returns what each reply begins with. The place of the warehouse is a setting of the broker, for who may see
    these."""
    warehouse = request.context.service(WarehouseReports).warehouse
    shows_place = request.may(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    return {
        "is_set": bool(warehouse),
        "warehouse": warehouse if warehouse and shows_place else None,
        "problem": report.problem,
        "read_ms": report.read_ms or None,
    }


def may_read_something(request: HttpRequest) -> bool:
    authorization = request.context.broker.authorization
    return not request.lacks_login and (
        authorization.is_allowed_anywhere(request.caller, Operation.READ, ResourceType.TOPIC) or _is_operator(request)
    )


def _is_operator(request: HttpRequest) -> bool:
    return request.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)


def may_see(request: HttpRequest, table: Table) -> bool:
    """True for a table of a topic that the caller may read. The name says whose it is if it cannot be read."""
    if _is_operator(request):
        return True
    topics = topics_by_name(table["table"]) if "problem" in table else [table["topic"]]
    return any(topic and request.may(Operation.READ, ResourceType.TOPIC, topic) for topic in topics)


def topics_by_name(table: str) -> list[str]:
    """Returns the names of the topics that may have a table of this name. Pure."""
    return [table.removesuffix(suffix) for suffix in SUFFIXES if table.endswith(suffix)]


def find_live_topic(table: Table, image: Image) -> TopicImage | None:
    """Returns the topic of a table if it is still there, and was not made anew."""
    topic = image.topics.get(table.get("topic", ""))
    return topic if topic is not None and str(topic.topic_id) == table.get("topic_id") else None


async def _fetch_ends(request: HttpRequest, tables: Iterable[Table]) -> Ends:
    wanted: dict[TopicPartition, None] = {}
    for table in tables:
        topic = find_live_topic(table, request.context.broker.image)
        if topic is not None and len(wanted) + len(topic.partitions) <= ENDS_MAX:
            wanted |= {TopicPartition(topic.name, number): None for number in range(len(topic.partitions))}
    return await fetch_end_offsets(request.context, wanted)


def list_partitions(table: Table, image: Image, ends: Ends) -> list[dict[str, Any]]:
    """Returns how far each partition of a table's topic is loaded, and how many offsets the log has more. Pure."""
    topic, offsets = find_live_topic(table, image), table.get("offsets") or {}
    numbers = {int(number) for number in offsets} | set(range(len(topic.partitions) if topic is not None else 0))
    rows = []
    for number in sorted(numbers):
        loaded, end = (
            offsets.get(str(number), 0),
            None if topic is None else ends.get(TopicPartition(topic.name, number)),
        )
        lag = None if end is None else max(end - loaded, 0)
        rows.append({"partition": number, "next_offset": loaded, "log_end_offset": end, "lag": lag})
    return rows


def summarize_table(table: Table, image: Image, ends: Ends, letters: Letters) -> dict[str, Any]:
    """Returns the row of a table. The lag is null if it is not known of each partition. Pure."""
    kind = "unreadable" if "problem" in table else table["kind"]
    has_lag = kind in ("raw", "latest", "typed") and find_live_topic(table, image) is not None
    lags = [each["lag"] for each in list_partitions(table, image, ends)] if has_lag else [None]
    return {
        "table": table["table"],
        "kind": kind,
        **{name: table.get(name) for name in FACTS},
        "is_topic_there": find_live_topic(table, image) is not None,
        "lag": None if None in lags else sum(lags),
        "dead_letters": None if kind == LETTERS else letters.get((table.get("topic", ""), table.get("topic_id", ""))),
        "problem": table.get("problem"),
    }
