"""Columns for a JSON Schema. Pure.

A schema says less than a column needs, so only what it says plainly is declared: types, formats of dates, properties,
items, and objects whose names are data. All else is inferred from the values, as in a table of plain JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from pyspark_tiered.schemas.avro_plan import make_struct
from pyspark_tiered.schemas.unreadable import SCHEMA_BYTES_MAX, UnreadableSchema
from pyspark_tiered.typed.evolve import DEPTH_MAX, FIELDS_MAX
from pyspark_tiered.typed.kinds import (
    BOOLEAN,
    DATE,
    DOUBLE,
    LONG,
    STRING,
    TIMESTAMP,
    VOID,
    ColumnType,
    ListOf,
    MapOf,
    StructOf,
    count_fields,
)
from pyspark_tiered.typed.names import NAME_BYTES_MAX, RESERVED

Json = Any
_SCALARS: Mapping[str, ColumnType] = {"boolean": BOOLEAN, "integer": LONG, "number": DOUBLE, "string": STRING}
_FORMATS: Mapping[str, ColumnType] = {"date": DATE, "date-time": TIMESTAMP}
REFERENCES_MAX = 50
"""References from one to the next."""


class JsonPlan(NamedTuple):
    """The type of values, whose fields with no column yet are left out."""

    kind: ColumnType


def plan_json_schema(text: str, references: Sequence[tuple[str, str]]) -> ColumnType:
    """Returns the type of values; `references` are the names and texts of schemas that it refers to. Fields that have
    no column yet are left out. Raises `UnreadableSchema`."""
    if len(text) + sum(len(each) for _, each in references) > SCHEMA_BYTES_MAX:
        raise UnreadableSchema(f"it has more than {SCHEMA_BYTES_MAX} characters")
    try:
        documents = {name: json.loads(each) for name, each in references}
        found = _Planner(json.loads(text), documents).plan("", 0)
    except RecursionError:
        raise UnreadableSchema("it is nested too deep") from None
    except (AttributeError, LookupError, TypeError, ValueError) as fault:  # of hostile JSON
        raise UnreadableSchema(f"it is no JSON Schema: {fault}"[:200]) from None
    if count_fields(found) > FIELDS_MAX:
        raise UnreadableSchema(f"it has more than {FIELDS_MAX} fields")
    return found


class _Planner:
    def __init__(self, root: Json, documents: Mapping[str, Json]) -> None:
        self._documents = {**documents, "": root}
        self._left = 4 * FIELDS_MAX

    def plan(self, name: str, depth: int) -> ColumnType:
        """Returns the type of the values of a document."""
        return self._plan(self._documents[name], name, depth)

    def _plan(self, schema: Json, document: str, depth: int) -> ColumnType:
        self._left -= 1
        if self._left < 0:
            raise UnreadableSchema(f"it has more than {FIELDS_MAX} fields")
        if depth > DEPTH_MAX:
            return VOID
        schema, document = self._resolve(schema, document)
        if not isinstance(schema, dict):
            return VOID
        for union in ("oneOf", "anyOf"):
            if isinstance(schema.get(union), list):
                branches = [each for each in schema[union] if not _is_null(each)]
                if len(branches) != 1 or len(schema[union]) != 2:
                    return VOID
                return self._plan(branches[0], document, depth)
        if "allOf" in schema or "not" in schema or "if" in schema:
            return VOID
        kinds = schema.get("type")
        named = [kinds] if isinstance(kinds, str) else [each for each in kinds or () if each != "null"]
        if len(named) != 1:
            return VOID
        match named[0]:
            case "object":
                return self._plan_object(schema, document, depth)
            case "array":
                items = schema.get("items")
                return ListOf(self._plan(items, document, depth + 1)) if isinstance(items, dict) else VOID
            case "string":
                return _FORMATS.get(str(schema.get("format")), STRING)
            case name:
                return _SCALARS.get(name, VOID)

    def _plan_object(self, schema: Mapping[str, Json], document: str, depth: int) -> ColumnType:
        properties = schema.get("properties") or {}
        others = schema.get("additionalProperties")
        if not properties and isinstance(others, dict):
            value = self._plan(others, document, depth + 1)
            return MapOf(value)
        named = []
        for name, each in properties.items():
            if name not in RESERVED and len(name.encode(errors="replace")) <= NAME_BYTES_MAX:
                named.append((name, self._plan(each, document, depth + 1)))
        return make_struct(named)

    def _resolve(self, schema: Json, document: str) -> tuple[Json, str]:
        """Follows references. One that names nothing here is any value."""
        for _ in range(REFERENCES_MAX):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema, document
            address, fragment = urldefrag(str(schema["$ref"]))
            if address:
                known = (address, urljoin(document, address), address.rpartition("/")[2])
                document = next((each for each in known if each in self._documents), "?")
                if document == "?":
                    return None, ""
            schema = self._documents[document]
            for part in unquote(fragment).strip("/").split("/") if fragment.strip("/") else ():
                part = part.replace("~1", "/").replace("~0", "~")
                schema = schema[int(part)] if isinstance(schema, list) else schema[part]
        return None, ""


def _is_null(schema: Json) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def columns_of(kind: ColumnType) -> StructOf:
    """Returns the columns of values of a type: none but the fields of an object are known."""
    return kind if isinstance(kind, StructOf) else StructOf()
