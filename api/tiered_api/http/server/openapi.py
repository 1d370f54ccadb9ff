"""The OpenAPI 3.0 document, from the table of routes. This file adds the schemas of bodies, which the table lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tiered_api.http.exchange import media_types
from tiered_api.http.server.router import Route

Schema = dict[str, Any]

API_VERSION = "1"

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer", "format": "int64"}
BOOLEAN: Schema = {"type": "boolean"}
TEXT_OR_NULL: Schema = {"type": "string", "nullable": True}
ANY: Schema = {}


def _object(required: str = "", /, **properties: Schema) -> Schema:
    shape: Schema = {"type": "object", "properties": properties}
    return shape | {"required": required.split()} if required else shape


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


FIELD_V3 = _object("type", type={"type": "string", "enum": ["BINARY", "JSON", "STRING"]}, data=ANY)
HEADER = _object("name", name=STRING, value={"type": "string", "format": "byte", "nullable": True})
RECORD_V3 = {
    "partition_id": INTEGER,
    "headers": _array(HEADER),
    "key": FIELD_V3,
    "value": FIELD_V3,
    "timestamp": {"description": "ISO 8601 with offset, or milliseconds since 1970"},
}
POSITIONS = (
    "leader_epoch",
    "log_start_offset",
    "local_start_offset",
    "cold_end_offset",
    "last_stable_offset",
    "high_watermark",
    "local_bytes",
    "cold_bytes",
    "local_segments",
    "cold_segments",
)

AT_V2 = {"topic": STRING, "partition": INTEGER}
PARTITION_V2 = _object("topic partition", **AT_V2)
OFFSET_V2 = _object("topic partition offset", **AT_V2, offset=INTEGER, metadata=STRING)

OFFSET_V3 = {"topic_name": STRING, "partition_id": INTEGER, "offset": INTEGER}

SCHEMAS: dict[str, Schema] = {
    "Error": _object("error_code message", error_code=INTEGER, message=STRING),
    "Object": {"type": "object"},
    "Array": _array(ANY),
    "Names": _array(STRING),
    "List": _object("kind metadata data", kind=STRING, metadata={"type": "object"}, data=_array({"type": "object"})),
    "Health": _object("ok problems", ok=BOOLEAN, problems=_array(STRING), details={"type": "object"}),
    "Node": _object("", cluster_id=STRING, node_id=INTEGER, incarnation_sha256=STRING),
    "PartitionState": _object("", leader=INTEGER, **dict.fromkeys(POSITIONS, INTEGER)),
    "Record": _object(
        "offset timestamp leader_epoch key value headers",
        offset=INTEGER,
        timestamp=INTEGER,
        leader_epoch=INTEGER,
        key=ANY,
        value=ANY,
        key_base64=STRING,
        value_base64=STRING,
        headers=_array(HEADER),
    ),
    "Records": _object(
        "records next_offset",
        topic=STRING,
        partition=INTEGER,
        log_start_offset=INTEGER,
        high_watermark=INTEGER,
        last_stable_offset=INTEGER,
        next_offset=INTEGER,
        records=_array(_ref("Record")),
    ),
    "Appended": _object(
        "base_offset last_offset",
        topic=STRING,
        partition=INTEGER,
        base_offset=INTEGER,
        last_offset=INTEGER,
        timestamp={**INTEGER, "nullable": True},
        duplicate=BOOLEAN,
    ),
    "Transaction": _object(
        "",
        records=_array(_object("topic_name", topic_name=STRING, **RECORD_V3)),
        consumer_group=_object(
            "consumer_group_id offsets",
            consumer_group_id=STRING,
            generation_id=INTEGER,
            member_id=STRING,
            instance_id=STRING,
            offsets=_array(_object("topic_name partition_id offset", **OFFSET_V3, metadata=STRING)),
        ),
    ),
    "CommittedTransaction": _object(
        "records offsets",
        records=_array(_object("topic_name partition_id offset timestamp", **OFFSET_V3, timestamp=STRING)),
        offsets=_array(_object("topic_name partition_id offset", **OFFSET_V3)),
    ),
    "ProduceV2": _object("records", records=_array(_object("", key=ANY, value=ANY, partition=INTEGER))),
    "OffsetsV2": _object(
        "offsets",
        offsets=_array(
            _object("", partition=INTEGER, offset=INTEGER, error_code={**INTEGER, "nullable": True}, error=TEXT_OR_NULL)
        ),
    ),
    "ConsumerV2": _object(
        "",
        name=STRING,
        format={"type": "string", "enum": ["binary", "json"]},
        **{
            "auto.offset.reset": {"type": "string", "enum": ["earliest", "latest", "none"]},
            "auto.commit.enable": {"type": "string", "enum": ["true", "false"]},
            "fetch.min.bytes": INTEGER,
            "consumer.request.timeout.ms": INTEGER,
        },
    ),
    "SubscriptionV2": _object("", topics=_array(STRING), topic_pattern=STRING),
    "PartitionsV2": _object("partitions", partitions=_array(PARTITION_V2)),
    "OffsetsToCommitV2": _object("", offsets=_array(OFFSET_V2)),
    "PositionsV2": _object(
        "",
        offsets=_array(OFFSET_V2),
        timestamps=_array(_object("topic partition timestamp", **AT_V2, timestamp=STRING)),
    ),
    "RecordV3": _object("", **RECORD_V3),
    "ReportV3": _object(
        "error_code",
        error_code=INTEGER,
        message=STRING,
        cluster_id=STRING,
        topic_name=STRING,
        partition_id=INTEGER,
        offset=INTEGER,
        timestamp=STRING,
    ),
    "BatchV3": _object("entries", entries=_array(_object("id", id=STRING, **RECORD_V3))),
    "BatchReportV3": _object("successes failures", successes=_array(ANY), failures=_array(ANY)),
    "TopicCreation": _object(
        "topic_name",
        topic_name=STRING,
        partitions_count=INTEGER,
        replication_factor=INTEGER,
        replicas_assignments={"type": "object", "additionalProperties": _array(INTEGER)},
        configs=_array(_object("name", name=STRING, value=TEXT_OR_NULL)),
        validate_only=BOOLEAN,
    ),
    "TopicGrowth": _object("partitions_count", partitions_count=INTEGER, validate_only=BOOLEAN),
    "Config": _object("name", name=STRING, value=TEXT_OR_NULL, is_default=BOOLEAN, source=STRING),
    "ConfigValue": _object("value", value=TEXT_OR_NULL),
    "ConfigChanges": _object(
        "data",
        data=_array(
            _object("name", name=STRING, value=TEXT_OR_NULL, operation={"type": "string", "enum": ["SET", "DELETE"]})
        ),
        validate_only=BOOLEAN,
    ),
}


def openapi_document(routes: Iterable[Route]) -> dict[str, Any]:
    """Returns the whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
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
        "summary": (route.handler.__doc__ or "").strip().partition("\n")[0],
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
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    return inside + [
        {"name": query.name, "in": "query", "description": query.description, "schema": {"type": query.kind}}
        for query in route.query
    ]
