"""The OpenAPI 3.0 document, from the table of routes. This file adds the schemas of responses,
which the table lacks; `schemas` has those of requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.schemas import (
    ANY,
    BODIES,
    BOOLEAN,
    INTEGER,
    STRING,
    TEXT_OR_NULL,
    Schema,
    array,
    object_schema,
)
from tiered_api.http.server.overview_schemas import INTEGER_OR_NULL, OVERVIEW, POSITIONS
from tiered_api.http.server.router import Route

API_VERSION = "1"


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


HEADER = object_schema("name", name=STRING, value={"type": "string", "format": "byte", "nullable": True})
OFFSET_V3 = {"topic_name": STRING, "partition_id": INTEGER, "offset": INTEGER}

SCHEMAS: dict[str, Schema] = {
    **BODIES,
    **OVERVIEW,
    "Error": object_schema("error_code message", error_code=INTEGER, message=STRING),
    "Object": {"type": "object"},
    "Array": array(ANY),
    "Names": array(STRING),
    "List": object_schema(
        "kind metadata data", kind=STRING, metadata={"type": "object"}, data=array({"type": "object"})
    ),
    "Health": object_schema("ok problems", ok=BOOLEAN, problems=array(STRING), details={"type": "object"}),
    "Node": object_schema("", cluster_id=STRING, node_id=INTEGER, incarnation_sha256=STRING),
    "PartitionState": object_schema("", leader=INTEGER, **dict.fromkeys(POSITIONS, INTEGER)),
    "Transactions": object_schema(
        "transactions left_out partial",
        transactions=array({"type": "object"}),
        left_out=INTEGER,
        partial=BOOLEAN,
    ),
    "OpenTransactions": object_schema(
        "topic transactions", topic=STRING, transactions=array({"type": "object"}), partitions_missing=INTEGER
    ),
    "Users": object_schema("users", users=array({"type": "object"})),
    "Quotas": object_schema("quotas", quotas=array({"type": "object"})),
    "TopicAct": object_schema(
        "topic validate_only partitions",
        topic=STRING,
        validate_only=BOOLEAN,
        partitions=array(object_schema("partition error", partition=INTEGER, error=TEXT_OR_NULL)),
    ),
    "ResetOffsets": object_schema(
        "group again skipped partitions",
        group=STRING,
        state=STRING,
        validate_only=BOOLEAN,
        again=INTEGER,
        skipped=INTEGER,
        partitions=array(
            object_schema(
                "topic partition current_offset new_offset again skipped",
                topic=STRING,
                partition=INTEGER,
                current_offset=INTEGER_OR_NULL,
                new_offset=INTEGER,
                log_start_offset=INTEGER,
                log_end_offset=INTEGER,
                again=INTEGER,
                skipped=INTEGER,
                error=TEXT_OR_NULL,
            )
        ),
    ),
    "Console": object_schema(
        "principal read_only",
        principal=STRING,
        node_id=INTEGER,
        read_only=BOOLEAN,
        messages=BOOLEAN,
        has_warehouse=BOOLEAN,
        has_authorizer=BOOLEAN,
        takes_passwords=BOOLEAN,
        audit_topic=TEXT_OR_NULL,
    ),
    "Record": object_schema(
        "offset timestamp leader_epoch key value headers",
        offset=INTEGER,
        timestamp=INTEGER,
        leader_epoch=INTEGER,
        key=ANY,
        value=ANY,
        key_base64=STRING,
        value_base64=STRING,
        headers=array(HEADER),
        control={**STRING, "enum": ["commit", "abort"]},
        producer_id=INTEGER,
        producer_epoch=INTEGER,
        coordinator_epoch=INTEGER,
    ),
    "Records": object_schema(
        "records",
        topic=STRING,
        partition=INTEGER,
        log_start_offset=INTEGER,
        high_watermark=INTEGER,
        last_stable_offset=INTEGER,
        next_offset=INTEGER,
        next_before=INTEGER,
        scanned=INTEGER,
        records=array(_ref("Record")),
    ),
    "Appended": object_schema(
        "base_offset last_offset",
        topic=STRING,
        partition=INTEGER,
        base_offset=INTEGER,
        last_offset=INTEGER,
        timestamp={**INTEGER, "nullable": True},
        duplicate=BOOLEAN,
    ),
    "CommittedTransaction": object_schema(
        "records offsets",
        records=array(object_schema("topic_name partition_id offset timestamp", **OFFSET_V3, timestamp=STRING)),
        offsets=array(object_schema("topic_name partition_id offset", **OFFSET_V3)),
    ),
    "OffsetsV2": object_schema(
        "offsets",
        offsets=array(
            object_schema(
                "", partition=INTEGER, offset=INTEGER, error_code={**INTEGER, "nullable": True}, error=TEXT_OR_NULL
            )
        ),
    ),
    "ReportV3": object_schema(
        "error_code",
        error_code=INTEGER,
        message=STRING,
        cluster_id=STRING,
        topic_name=STRING,
        partition_id=INTEGER,
        offset=INTEGER,
        timestamp=STRING,
    ),
    "BatchReportV3": object_schema("successes failures", successes=array(ANY), failures=array(ANY)),
    "Config": object_schema("name", name=STRING, value=TEXT_OR_NULL, is_default=BOOLEAN, source=STRING),
}


def openapi_document(routes: Iterable[Route]) -> dict[str, Any]:
    """Returns the whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path.replace("...}", "}"), {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "tiered",
            "version": API_VERSION,
            "description": "Produce, read and administer. Every error is an Error object, whatever Accept says.",
        },
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": (route.handle.__doc__ or "").strip().partition("\n")[0],
        "responses": {
            str(route.status): _response(route),
            "default": {"description": "Error", "content": {media_types.JSON: {"schema": _ref("Error")}}},
        },
    }
    if parameters := _parameters(route):
        operation["parameters"] = parameters
    if route.request_types:
        schema = _ref(route.request_schema) if route.request_schema else {"type": "string", "format": "binary"}
        operation["requestBody"] = {
            "required": True,
            "content": {kind: {"schema": schema} for kind in route.request_types},
        }
    return operation


def _response(route: Route) -> dict[str, Any]:
    if route.status == 204:
        return {"description": "Done"}
    json, other = (_ref(route.response_schema) if route.response_schema else ANY), {"type": "string"}
    return {
        "description": "Success",
        "content": {
            kind: {"schema": json if kind == media_types.JSON else ANY if "json" in kind else other}
            for kind in route.response_types
        },
    }


def _parameters(route: Route) -> list[dict[str, Any]]:
    numbers = ("partition", "broker")
    inside: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": INTEGER if name in numbers else STRING}
        for name in re.findall(r"{(\w+)", route.path)
    ]
    return inside + [
        {"name": query.name, "in": "query", "description": query.description, "schema": {"type": query.kind}}
        for query in route.query
    ]
