"""The form of a typed table and of its dead letters, and the Delta actions of their commits. Pure.

Both are plain Delta tables beside the raw one. Their first columns are those of the record, with an underscore. A typed
table then has the columns of the values; its properties say how values become columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyspark_tiered.delta import table_form
from pyspark_tiered.typed.ddl import parse_ddl, parse_key_ddl
from pyspark_tiered.typed.kinds import (
    JSON_NAME,
    KEY_MARK,
    VALUE_MARK,
    VOID,
    StructOf,
    from_delta,
    has_variant,
    key_field,
    key_part,
    to_delta,
    value_field,
    value_part,
)
from pyspark_tiered.typed.names import RECORD_COLUMNS
from tiered.errors import Code, Refused

Json = dict[str, Any]

TYPED_SUFFIX, DEAD_SUFFIX = "_typed", "__dead"
TABLE_SCHEMES = ("file", "s3", "s3a")
"""Places of warehouses that may have typed tables."""
VALUES = "tiered.values"
"""Property of a typed table: how values become columns."""
DECLARED = "tiered.values.schema"
"""Property of a typed table: the schema that a user declared."""
KEYS = "tiered.keys"
"""Property of a typed table: how keys become a column. Without it they do not."""
DECLARED_KEY = "tiered.keys.schema"
"""Property of a typed table: the type of the key that a user declared."""
CHANGES = "tiered.values.changes"
"""Property of a typed table: the rules for the values of fields (`changes.py`)."""
REGISTRY = "tiered.registry"
"""Property of a typed table: the URL of the schema registry that a user named. Without it, the brokers have one."""
ERASURES = "tiered.erasures"
"""Property of both tables: how many erasures of the topic they heed. A commit changes it so that older plans fail."""
DEAD_OF = "tiered.dead.letters"
"""Property of a table of dead letters."""
DEAD_COLUMNS = ("_partition", "_offset", "_timestamp", "_key", "_value", "_headers", "_error")
_RAW_TYPES = {field["name"]: field["type"] for field in table_form.SCHEMA["fields"]}
_TYPES: dict[str, str | Json] = {name: _RAW_TYPES.get(name[1:], "string") for name in DEAD_COLUMNS}
RAW_COLUMNS = {f"_{name}" for name in table_form.COLUMNS}
"""Columns of a typed table or of dead letters that are those of a raw table, behind an underscore."""
FIELD_IDS = {name: number for number, name in enumerate(_TYPES, 1)}
"""Ids of the record's columns in Parquet files."""
HEADER_IDS = {name: number for name, number in table_form.FIELD_IDS.items() if name.startswith("headers.")}
"""Ids of the parts of headers, the same as in a raw table."""
RECORD_FIELD_IDS = FIELD_IDS | {f"_{name}": number for name, number in HEADER_IDS.items()}


REGISTERED = ("avro", "protobuf", "json-schema")
"""Kinds of values and keys that have schemas of a registry."""
VARIANT_KIND = "variant"
VARIANT_FEATURE = "variantType"
"""Delta's name for tables with variants."""
VARIANT_PROTOCOL: Json = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": [VARIANT_FEATURE],
    "writerFeatures": ["appendOnly", "invariants", VARIANT_FEATURE],
}


class ValueRules(NamedTuple):
    """How the values of a topic become columns. `declared` is DDL, empty if all columns are inferred.

    Kinds: json; debezium, which are change events in JSON, with or without the envelope of Kafka Connect; variant,
    which is any JSON in one column; avro, protobuf and json-schema, with schemas of a registry. `keys` is the kind of
    the keys, empty if they have no column; `declared_key` is their type as DDL.
    """

    kind: str = "json"
    declared: str = ""
    keys: str = ""
    declared_key: str = ""

    @property
    def are_registered(self) -> bool:
        """True if values or keys have schemas of a registry."""
        return self.kind in REGISTERED or self.keys in REGISTERED


def typed_fields(schema: StructOf) -> list[Json]:
    """Returns the fields of a typed table."""
    return [*_fields(RECORD_COLUMNS), *to_delta(schema)]


def dead_fields() -> list[Json]:
    """Returns the fields of a table of dead letters."""
    return _fields(DEAD_COLUMNS)


def _fields(names: Sequence[str]) -> list[Json]:
    return [{"name": name, "type": _TYPES[name], "nullable": True, "metadata": {}} for name in names]


def read_schema(metadata: Mapping[str, Any]) -> StructOf:
    """Returns the columns of the values of a typed table, and before them the key if keys are typed."""
    fields = json.loads(str(metadata["schemaString"]))["fields"]
    found = from_delta([field for field in fields if field["name"] not in RECORD_COLUMNS])
    if KEYS not in (metadata.get("configuration") or {}):
        return found
    return StructOf((*(key_part(found).fields or [key_field()]), *value_part(found).fields))


def declared_schema(rules: ValueRules) -> StructOf:
    """Returns the columns that a table begins with. Raises `Refused` with the place of a fault in a schema."""
    options = ((rules.kind, rules.declared, "--schema"), (rules.keys, rules.declared_key, "--key-schema"))
    for name, declared, option in options:
        if name in REGISTERED and declared:
            raise Refused(Code.INVALID_REQUEST, f"the schemas of {name} are in the registry: leave out {option}")
    fields = parse_ddl(rules.declared, has_key=bool(rules.keys)).fields if rules.declared else ()
    if rules.kind == VARIANT_KIND:
        if fields:
            raise Refused(Code.INVALID_REQUEST, "values of the kind variant are one column: leave out --schema")
        fields = (value_field(),)
    if not rules.keys:
        return StructOf(fields)
    kind = parse_key_ddl(rules.declared_key) if rules.declared_key else VOID
    return StructOf((key_field(kind), *fields))


def read_rules(properties: Mapping[str, str]) -> ValueRules | None:
    """Returns the rules of a typed table, None for any other table."""
    kind = properties.get(VALUES)
    names = (DECLARED, KEYS, DECLARED_KEY)
    return None if kind is None else ValueRules(kind, *(properties.get(name, "") for name in names))


def typed_properties(rules: ValueRules, registry: str = "") -> dict[str, str]:
    """Returns the properties by which a typed table remembers its rules, and the registry that a user named."""
    named = zip((VALUES, DECLARED, KEYS, DECLARED_KEY, REGISTRY), (*rules, registry), strict=True)
    return {name: value for name, value in named if value}


def describe_other_columns(metadata: Mapping[str, Any], wanted: Sequence[str]) -> str:
    """Describes why rows do not fit into a table whose columns of the record are `wanted`; empty if they do."""
    fields = {
        str(field["name"]): field for field in json.loads(str(metadata.get("schemaString", "{}"))).get("fields", ())
    }
    for name in wanted:
        found = fields.get(name)
        if found is None or found["type"] != _TYPES[name]:
            return f"another column {name}"
    for name, found in fields.items():
        if not found.get("nullable", True) or set(found.get("metadata") or {}) - {JSON_NAME, KEY_MARK, VALUE_MARK}:
            return f"a column {name} with conditions"
        if wanted == RECORD_COLUMNS and name not in wanted:
            try:
                from_delta([found])
            except ValueError:
                return f"a column {name} of a type that no JSON value becomes"
    return ""


def schema_of(fields: Sequence[Json]) -> Json:
    """Returns these fields as Delta's schema."""
    return {"type": "struct", "fields": list(fields)}


def metadata_action(metadata: Json, fields: Sequence[Json]) -> str:
    """Returns the action that gives a table other columns."""
    return json.dumps({"metaData": with_fields(metadata, fields)})


def with_fields(metadata: Json, fields: Sequence[Json]) -> Json:
    """Returns Delta's metadata with other columns."""
    return {**metadata, "schemaString": json.dumps(schema_of(fields))}


def property_action(metadata: Json, name: str, value: str) -> str:
    """Returns the action that sets a property of a table."""
    return json.dumps({"metaData": with_property(metadata, name, value)})


def with_property(metadata: Json, name: str, value: str) -> Json:
    """Returns Delta's metadata with a property of the table."""
    held = metadata.get("configuration") or {}
    return {**metadata, "configuration": {**held, name: value}}


def heeded_erasures(properties: Mapping[str, str]) -> int:
    """Returns how many erasures a table heeds."""
    found = properties.get(ERASURES, "")
    return int(found) if found.isdecimal() else 0


def protocol_of(fields: Sequence[Json]) -> Json:
    """Returns Delta's protocol of a new table with these columns."""
    has_variants = has_variant(from_delta([field for field in fields if field["name"] not in _TYPES]))
    return VARIANT_PROTOCOL if has_variants else table_form.PROTOCOL


def replay_id(topic_id: str) -> str:
    """Returns the transaction identifier that counts the replays of dead letters."""
    return f"replay/{topic_id}"


def replay_action(topic_id: str, count: int, now_ms: int) -> str:
    """Returns the action that counts a replay."""
    return json.dumps({"txn": {"appId": replay_id(topic_id), "version": count, "lastUpdated": now_ms}})
