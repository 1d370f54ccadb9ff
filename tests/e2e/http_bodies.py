"""A valid body of each route that takes JSON, and bodies with one fault each, made from it by the route's schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

JSON = "application/json"
V2 = "application/vnd.kafka.v2+json"
V2_JSON = "application/vnd.kafka.json.v2+json"
TYPO = "vaule"
DEEP: Any = json.loads("[" * 60 + "]" * 60)
ARGUMENTS = {
    "topic": "t", "partition": "0", "broker": "1", "config": "retention.ms", "group": "g", "instance": "one",
    "user": "carol", "transactional_id": "nobody", "subject": "t-value", "version": "1",
}  # fmt: skip
SHAPES: dict[str, tuple[Any, ...]] = {
    "null": (None,),
    "boolean": (True, False),
    "integer": (0, 7),
    "number": (1.5,),
    "string": ("", "seven"),
    "array": ([], DEEP),
    "object": ({}, {"seven": 7}),
}
"""Values of each kind. Some are false in Python: a parser must not take them for missing ones."""

Schema = dict[str, Any]


class Body(NamedTuple):
    """A valid body of a route, with all of its fields. `code` is that of a refusal for an unknown field, and
    `twice_code` for one that is there twice, if that is another one."""

    method: str
    route: str
    body: dict[str, Any]
    code: int
    kind: str = JSON
    twice_code: int = 0
    own_refusal: str = ""
    arguments: dict[str, str] = {}  # noqa: RUF012

    def path(self, cluster_id: str) -> str:
        """Returns the path of the route, for the objects of `ARGUMENTS`."""
        return self.route.format_map({"cluster": cluster_id, **ARGUMENTS, **self.arguments})


CLUSTER = "/v3/clusters/{cluster}"
TOPIC = f"{CLUSTER}/topics/{{topic}}"
INSTANCE = "/consumers/{group}/instances/{instance}"
ACTS = "/tiered/v1/topics/{topic}"
ELECTION = {"election_type": "PREFERRED", "partitions": [0], "validate_only": False}
ABORT = {"start_offset": 0, "force": False}
PASSWORD = {"mechanism": "SCRAM-SHA-512", "password": "not shown", "iterations": 4096}
QUOTAS = {
    "owner": {"user": "u", "client_id": None},
    "set": {"producer_byte_rate": 1e6},
    "remove": ["consumer_byte_rate"],
    "validate_only": False,
}
ACL = {
    "resource_type": "TOPIC",
    "resource_name": "t",
    "pattern_type": "LITERAL",
    "principal": "User:alice",
    "host": "*",
    "operation": "READ",
    "permission": "ALLOW",
}
LOG_RETENTION = {"config": "log.retention.ms"}
RECORD = {
    "partition_id": 0,
    "key": {"type": "STRING", "data": "k"},
    "value": {"type": "JSON", "data": {"n": 1}},
    "headers": [{"name": "h", "value": "eA=="}],
    "timestamp": 1,
}
RECORD_V2 = {"key": "k", "value": {"n": 1}, "partition": 0}
ONE = {"topic": "t", "partition": 0}
OFFSET = {**ONE, "offset": 0, "metadata": ""}
GROUP = {
    "consumer_group_id": "other",
    "generation_id": 3,
    "member_id": "m",
    "instance_id": "i",
    "offsets": [{"topic_name": "t", "partition_id": 0, "offset": 0, "metadata": ""}],
}
FREE_GROUP = {name: GROUP[name] for name in ("consumer_group_id", "offsets")}
CONSUMER = {
    "name": "two",
    "format": "json",
    "auto.offset.reset": "earliest",
    "auto.commit.enable": "false",
    "isolation.level": "read_committed",
    "fetch.min.bytes": 1,
    "consumer.request.timeout.ms": 1000,
}
CHECK = "/compatibility/subjects/{subject}"
SCHEMA = {"schema": "{}", "schemaType": "JSON", "metadata": {"owner": "o"}, "ruleSet": {}}
IMPORTED = {**SCHEMA, "references": [{"name": "n", "subject": "s", "version": 1}], "id": 7, "version": 1}
CREATION = {
    "topic_name": "new",
    "partitions_count": 1,
    "replication_factor": 1,
    "configs": [{"name": "retention.ms", "value": "1"}],
    "validate_only": False,
}


def _changes(name: str) -> dict[str, Any]:
    return {"data": [{"name": name, "value": "1", "operation": "SET"}], "validate_only": False}


BODIES = (
    Body("POST", "/topics/{topic}", {"records": [RECORD_V2]}, 422, V2_JSON),
    Body("POST", "/topics/{topic}/partitions/{partition}", {"records": [RECORD_V2]}, 422, V2_JSON),
    Body("POST", f"{TOPIC}/records", RECORD, 40002),
    Body("POST", f"{TOPIC}/records:batch", {"entries": [{"id": "a", **RECORD}]}, 40002),
    Body("POST", f"{CLUSTER}/topics", CREATION, 40002),
    Body("POST", f"{CLUSTER}/topics", {"topic_name": "placed", "replicas_assignments": {"0": [1]}}, 40002),
    Body("PATCH", TOPIC, {"partitions_count": 2, "validate_only": False}, 40002),
    Body("POST", f"{TOPIC}/configs:alter", _changes("retention.ms"), 40002),
    Body("POST", f"{CLUSTER}/brokers/{{broker}}/configs:alter", _changes("log.retention.ms"), 40002),
    Body("POST", f"{CLUSTER}/broker-configs:alter", _changes("log.retention.ms"), 40002),
    Body("PUT", f"{TOPIC}/configs/{{config}}", {"value": "1"}, 40002),
    Body("PUT", f"{CLUSTER}/brokers/{{broker}}/configs/{{config}}", {"value": "1"}, 40002, arguments=LOG_RETENTION),
    Body("PUT", f"{CLUSTER}/broker-configs/{{config}}", {"value": "1"}, 40002, arguments=LOG_RETENTION),
    Body("POST", f"{CLUSTER}/acls", ACL, 40002, own_refusal="SECURITY_DISABLED"),
    Body("PUT", "/tiered/v1/users/{user}", PASSWORD, 40002),
    Body("POST", "/tiered/v1/quotas", QUOTAS, 40002),
    Body("POST", "/tiered/v1/quotas", {"owner": {"ip": "127.0.0.1"}, "set": {"connection_creation_rate": 9}}, 40002),
    Body("POST", "/tiered/v1/transactions/{transactional_id}/abort", {}, 40002, own_refusal="not found"),
    Body(
        "POST", f"{ACTS}/partitions/{{partition}}/transactions:abort", ABORT, 40002, own_refusal="no open transaction"
    ),
    Body("POST", f"{ACTS}/records:delete", {"offsets": [{"partition": 0, "offset": 1}], "validate_only": False}, 40002),
    Body("POST", f"{ACTS}/records:delete", {"before_timestamp": 1}, 40002),
    Body("POST", f"{ACTS}/compaction", {"validate_only": False}, 40002),
    Body("POST", f"{ACTS}/elections", ELECTION, 40002),
    Body("POST", f"{ACTS}/reassignments", {"partitions": [{"partition": 0, "replicas": [1]}]}, 40002),
    Body(
        "POST",
        f"{ACTS}/reassignments",
        {"partitions": [{"partition": 0, "replicas": None}], "validate_only": True},
        40002,
    ),
    Body("POST", "/tiered/v1/groups/{group}/offsets", {"to": "latest", "topics": ["t"], "validate_only": False}, 40002),
    Body("POST", "/tiered/v1/groups/{group}/offsets", {"to": "timestamp", "timestamp": 1}, 40002),
    Body("POST", "/tiered/v1/groups/{group}/offsets", {"offsets": [{**ONE, "offset": 0}]}, 40002),
    Body("POST", "/tiered/v1/transactions", {"records": [{"topic_name": "t", **RECORD}]}, 422),
    Body("POST", "/tiered/v1/transactions", {"consumer_group": GROUP}, 422, own_refusal="ILLEGAL_GENERATION"),
    Body("POST", "/tiered/v1/transactions", {"consumer_group": FREE_GROUP}, 422),
    Body("POST", "/consumers/{group}", CONSUMER, 42204, V2, 422),
    Body("POST", f"{INSTANCE}/subscription", {"topics": ["t"]}, 422, V2, arguments={"instance": "free"}),
    Body("POST", f"{INSTANCE}/subscription", {"topic_pattern": "t.*"}, 422, V2, arguments={"instance": "free"}),
    Body("POST", f"{INSTANCE}/assignments", {"partitions": [ONE]}, 422, V2),
    Body("POST", f"{INSTANCE}/offsets", {"offsets": [OFFSET]}, 422, V2),
    Body("GET", f"{INSTANCE}/offsets", {"partitions": [ONE]}, 422, V2),
    Body("POST", f"{INSTANCE}/positions", {"offsets": [OFFSET]}, 422, V2),
    Body("POST", f"{INSTANCE}/positions", {"timestamps": [{**ONE, "timestamp": "2026-01-01T00:00:00Z"}]}, 422, V2),
    Body("POST", f"{INSTANCE}/positions/beginning", {"partitions": [ONE]}, 422, V2),
    Body("POST", f"{INSTANCE}/positions/end", {"partitions": [ONE]}, 422, V2),
    Body("POST", "/subjects/{subject}/versions", SCHEMA, 422, twice_code=40002),
    Body("POST", "/subjects/{subject}/versions", IMPORTED, 422, twice_code=40002, own_refusal="not in import mode"),
    Body("POST", "/subjects/{subject}", SCHEMA, 422, twice_code=40002, own_refusal="not found"),
    Body("POST", f"{CHECK}/versions", SCHEMA, 422, twice_code=40002),
    Body("POST", f"{CHECK}/versions/{{version}}", SCHEMA, 422, twice_code=40002, own_refusal="not found"),
    *(
        body
        for scope in ("", "/{subject}")
        for body in (
            Body("PUT", f"/config{scope}", {"compatibility": "FULL", "normalize": True}, 422, twice_code=40002),
            Body("PUT", f"/mode{scope}", {"mode": "READWRITE"}, 422, twice_code=40002),
        )
    ),
)

Edit = Callable[[dict[str, Any], Schema], Iterator[Any]]


def _edit(value: Any, schema: Schema, edit: Edit) -> Iterator[Any]:
    """Yields the value with one edit each, in each of its objects whose names are not a client's choice."""
    if isinstance(value, list):
        for at, each in enumerate(value):
            for changed in _edit(each, schema.get("items", {}), edit):
                yield [*value[:at], changed, *value[at + 1 :]]
    elif isinstance(value, dict) and schema:
        yield from edit(value, schema)
        for name, each in value.items():
            for changed in _edit(each, schema.get("properties", {}).get(name, {}), edit):
                yield {**value, name: changed}


def _add_unknown(value: dict[str, Any], schema: Schema) -> Iterator[Any]:
    if schema.get("additionalProperties") is False:
        yield {**value, TYPO: 1}


def _drop_required(value: dict[str, Any], schema: Schema) -> Iterator[Any]:
    for name in schema.get("required", ()):
        yield {each: value[each] for each in value if each != name}


def _change_shape(value: dict[str, Any], schema: Schema) -> Iterator[Any]:
    for name, each in schema.get("properties", {}).items():
        if name in value:
            yield from ({**value, name: wrong} for wrong in wrong_values(each))


def _repeat(value: dict[str, Any], _: Schema) -> Iterator[Any]:
    yield from ({**value, f"{name}\0": each} for name, each in value.items())


def with_unknown_field(body: Any, schema: Schema) -> list[bytes]:
    """Returns the body with one more field, once for each of its objects."""
    return [json.dumps(each).encode() for each in _edit(body, schema, _add_unknown)]


def without_required_field(body: Any, schema: Schema) -> list[bytes]:
    """Returns the body without each required field of each object."""
    return [json.dumps(each).encode() for each in _edit(body, schema, _drop_required)]


def with_wrong_shape(body: Any, schema: Schema) -> list[bytes]:
    """Returns the body with each value of each other kind in each field, and whole bodies of other kinds."""
    others = [each for kind, values in SHAPES.items() if kind != "object" for each in values]
    return [json.dumps(each).encode() for each in (*others, *_edit(body, schema, _change_shape))]


def with_repeated_field(body: Any, schema: Schema) -> list[bytes]:
    """Returns the body with each field of each object twice."""
    return [json.dumps(each).replace("\\u0000", "").encode() for each in _edit(body, schema, _repeat)]


def wrong_values(schema: Schema) -> Iterator[Any]:
    """Yields values that a schema excludes."""
    allowed = kinds(schema)
    for kind, values in SHAPES.items():
        if kind not in allowed:
            yield from values
    if "enum" in schema:
        yield "nosuch"
    if schema.get("type") == "array":
        yield from ([each] for each in wrong_values(schema["items"]))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from ({"0": each} for each in wrong_values(schema["additionalProperties"]))


def kinds(schema: Schema) -> set[str]:
    """Returns the kinds of JSON values that a schema allows."""
    if "oneOf" in schema:
        return set().union(*map(kinds, schema["oneOf"]))
    if "type" not in schema:
        return set(SHAPES)
    more = {"number": {"integer"}}.get(schema["type"], set())
    return {schema["type"], *more, *(["null"] if schema.get("nullable") else [])}
