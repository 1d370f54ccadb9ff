"""Features of Delta that bind a writer, and that this package does not keep: named, so that a table is refused. Pure.

Rows of loads go into Parquet files that no engine of Delta writes. So nobody checks constraints, computes columns or
fills in defaults there. A table that asks for it is refused before anything is written.

The writer keeps domain metadata, clustering, deletion vectors and type widening as they are. A table with another
feature, such as row tracking or in-commit timestamps, is refused by its name (`delta_state.check_writer`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark_tiered.delta import table_form
from tiered.errors import Code, Refused

Json = Mapping[str, Any]

APPEND_ONLY = "delta.appendOnly"
CHANGE_FEED = "delta.enableChangeDataFeed"
CONSTRAINT = "delta.constraints."
MAPPING = "delta.columnMapping.mode"
ICEBERG = ("delta.enableIcebergCompatV1", "delta.enableIcebergCompatV2", "delta.enableIcebergCompatV3")
"""Properties by which files need the ids of Iceberg, which differ from those of a load."""
COMPUTED = {
    "delta.invariants": "an invariant on column {}",
    "delta.generationExpression": "the generated column {}",
    "delta.identity.start": "the identity column {}",
    "delta.identity.step": "the identity column {}",
}
"""Keys in the metadata of a column that ask a writer for more than the values of records."""
DEFAULT = "CURRENT_DEFAULT"
TYPE_CHANGES = "delta.typeChanges"
PHYSICAL_NAME = "delta.columnMapping.physicalName"

KNOWN = (
    "changeDataFeed",
    "checkConstraints",
    "clustering",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "generatedColumns",
    "identityColumns",
    "allowColumnDefaults",
    "inCommitTimestamp",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "vacuumProtocolCheck",
    "variantType",
    "variantType-preview",
)
"""Features that ask nothing of a writer of raw tables, or that `check_append` and `check_removal` find in use."""
READABLE = (
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "vacuumProtocolCheck",
    "variantType",
    "variantType-preview",
)
"""Features of readers that are known, or that change nothing for the columns of a load."""
FEATURES_OF_VERSION = {
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
"""Features that a writer version asks for, beside those of the versions below."""


def features_of(protocol: Json) -> list[str]:
    """Returns the features that a table asks of its writers, beyond writer version 2."""
    version = int(protocol.get("minWriterVersion", 0))
    if version >= 7:
        return sorted(set(protocol.get("writerFeatures") or ()) - {"appendOnly", "invariants"})
    return [name for each, names in FEATURES_OF_VERSION.items() if each <= version for name in names]


def check_append(metadata: Json, url: str) -> None:
    """Raises `Refused` if a load into this raw table would not keep what the table asks of its writers."""
    if found := _describe_unkept(metadata):
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {url} has {found}, which no load keeps: take it off, or load into another warehouse",
        )


def check_removal(properties: Mapping[str, str], url: str) -> None:
    """Raises `Refused` if no row of the table may be removed or changed."""
    if is_true(properties, APPEND_ONLY):
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {url} is append-only ({APPEND_ONLY}), no row of it may be removed or changed: "
            f"ALTER TABLE ... UNSET TBLPROPERTIES ('{APPEND_ONLY}') allows it",
        )
    if is_true(properties, CHANGE_FEED):
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {url} has a change data feed ({CHANGE_FEED}), and this command writes no change of a row "
            f"there: ALTER TABLE ... UNSET TBLPROPERTIES ('{CHANGE_FEED}') allows it",
        )


def is_true(properties: Mapping[str, str], name: str) -> bool:
    """True if a property of a table is switched on."""
    return properties.get(name, "").strip().lower() == "true"


def _describe_unkept(metadata: Json) -> str:
    """Returns what a load does not keep; empty if there is nothing."""
    properties: Mapping[str, str] = metadata.get("configuration") or {}
    for name, condition in sorted(properties.items()):
        if name.startswith(CONSTRAINT):
            return f"the constraint {name.removeprefix(CONSTRAINT)}: CHECK ({condition})"
    for name in ICEBERG:
        if is_true(properties, name):
            return f"the property {name}"
    if properties.get(MAPPING, "none") == "id":
        return "column mapping by id"
    if metadata.get("partitionColumns"):
        return f"partition columns {', '.join(metadata['partitionColumns'])}"
    fields = json.loads(str(metadata.get("schemaString", "{}"))).get("fields", ())
    return next(filter(None, map(_describe_field, fields)), "")


def _describe_field(field: Json) -> str:
    """Returns what a column asks for and a load does not keep; empty if there is nothing."""
    name = str(field["name"])
    wanted = next((each for each in table_form.SCHEMA["fields"] if each["name"] == name), None)
    conditions = field.get("metadata") or {}
    if not field.get("nullable", True):
        return f"the column {name} NOT NULL"
    if wanted is None and DEFAULT in conditions:
        return f"a default of column {name}"
    if wanted is not None and TYPE_CHANGES not in conditions and _bare(field["type"]) != wanted["type"]:
        return f"another type of column {name}"
    for path, each in _columns(field, name):
        more = each.get("metadata") or {}
        for key, words in COMPUTED.items():
            if key in more:
                return words.format(path)
        if wanted is not None and more.get(PHYSICAL_NAME, each["name"]) != each["name"]:
            return f"a column {path} that was dropped and added again (its files have another name for it)"
    return ""


def _columns(field: Json, path: str) -> Iterator[tuple[str, Json]]:
    """Yields a column and the fields in it, with their paths."""
    yield path, field
    kind = field["type"]
    while isinstance(kind, dict) and kind.get("type") == "array":
        kind = kind["elementType"]
    for each in kind.get("fields", ()) if isinstance(kind, dict) else ():
        yield from _columns(each, f"{path}.{each['name']}")


def _bare(kind: Any) -> Any:
    """Returns a type without the metadata of its fields."""
    if not isinstance(kind, dict):
        return kind
    found = {
        key: _bare(value) if key in ("elementType", "keyType", "valueType") else value for key, value in kind.items()
    }
    if "fields" in found:
        found["fields"] = [{**each, "type": _bare(each["type"]), "metadata": {}} for each in found["fields"]]
    return found
