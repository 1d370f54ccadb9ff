"""The columns of a Delta table as Iceberg's schema. Pure.

The id of a column is the one that loads write into Parquet files: a fixed number for the columns of the record, and a
hash of the path for all others. So the same column has the same id in every file and in every version, and nobody has
to remember ids. Files without ids, such as those of Spark, are read by the names in `name_mapping`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pyspark_tiered.delta import table_features, table_form
from pyspark_tiered.typed import form
from pyspark_tiered.typed.evolve import MAP_VALUES
from pyspark_tiered.typed.kinds import JSON_NAME, KEY_MARK, MAP_KEYS, VALUE_MARK, field_id
from pyspark_tiered.typed.names import KEY, VALUE
from tiered.errors import Code, Refused

Json = dict[str, Any]

ID_MAX = (1 << 31) - 201
"""Iceberg keeps the ids above for columns of its own."""
PRIMITIVES = {
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
"""Delta's types, and Iceberg's."""
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


class SchemaBuilder:
    """Builds the schema of one table, and collects the ids that it gave."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        properties: Mapping[str, str] = metadata.get("configuration") or {}
        is_raw = form.VALUES not in properties and form.DEAD_OF not in properties
        self._fixed = table_form.FIELD_IDS if is_raw else form.RECORD_FIELD_IDS
        self._names: dict[int, str] = {}
        """The column of each id."""

    def build(self, fields: Iterable[Mapping[str, Any]]) -> Json:
        """Returns the schema of these columns, without its number. Raises `Refused` for a type that Iceberg lacks."""
        return {"type": "struct", "fields": [self._field(each, _Place()) for each in fields]}

    def _field(self, field: Mapping[str, Any], above: _Place) -> Json:
        name, more = str(field["name"]), field.get("metadata") or {}
        json_name = KEY if more.get(KEY_MARK) else VALUE if more.get(VALUE_MARK) else str(more.get(JSON_NAME, name))
        place = above.inside(json_name, name)
        return {"id": self._give_id(place), "name": name, "required": False, "type": self._type(field["type"], place)}

    def _type(self, kind: Any, place: _Place) -> Any:
        if isinstance(kind, str):
            if found := PRIMITIVES.get(kind):
                return found
            if decimal := _DECIMAL.fullmatch(kind):
                return f"decimal({decimal[1]}, {decimal[2]})"
        elif kind.get("type") == "struct":
            return {"type": "struct", "fields": [self._field(each, place) for each in kind["fields"]]}
        elif kind.get("type") == "array":
            element = place.inside("[]", "element")
            return {
                "type": "list",
                "element-id": self._give_id(element),
                "element": self._type(kind["elementType"], element),
                "element-required": False,
            }
        elif kind.get("type") == "map":
            key, value = place.inside(MAP_KEYS, "key"), place.inside(MAP_VALUES, "value")
            return {
                "type": "map",
                "key-id": self._give_id(key),
                "key": self._type(kind["keyType"], key),
                "value-id": self._give_id(value),
                "value": self._type(kind["valueType"], value),
                "value-required": False,
            }
        raise refuse(f"the column {place.shown()} has the type {kind}, which Iceberg's version 2 lacks")

    def _give_id(self, place: _Place) -> int:
        number = self._fixed.get(place.fixed_name(), 0) or field_id(place.path)
        if number > ID_MAX or number in self._names:
            other = self._names.get(number, "a column of Iceberg itself")
            raise refuse(f"{place.shown()} and {other} have the same id in Parquet files: rename one of them")
        self._names[number] = place.shown()
        return number


class _Place(NamedTuple):
    """The place of a column: the names in JSON by which files number it, and the names of columns."""

    path: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def inside(self, json_name: str, column: str) -> _Place:
        return _Place((*self.path, json_name), (*self.columns, column))

    def shown(self) -> str:
        return ".".join(self.columns)

    def fixed_name(self) -> str:
        """Returns the name by which the place may have a fixed id. Fields of an element have no level for it."""
        match self.columns:
            case (name,) if "." not in name:
                return name
            case (name, "element"):
                return f"{name}.element"
            case (name, "element", part):
                return f"{name}.{part}"
            case _:
                return ""


def build_schema(metadata: Mapping[str, Any]) -> Json:
    """Returns Iceberg's schema from Delta's metadata. Raises `Refused` if Iceberg cannot have such a table."""
    properties: Mapping[str, str] = metadata.get("configuration") or {}
    if (mapping := properties.get(table_features.MAPPING, "none")) != "none":
        raise refuse(f"its columns have other names in the files ({table_features.MAPPING} is {mapping})")
    if columns := metadata.get("partitionColumns"):
        raise refuse(f"it has partition columns ({', '.join(columns)}), whose values are in no file")
    return SchemaBuilder(metadata).build(json.loads(str(metadata["schemaString"]))["fields"])


def refuse(why: str) -> Refused:
    """Returns the error for a table that cannot be read as an Iceberg table."""
    return Refused(Code.INVALID_REQUEST, f"no metadata of Iceberg: {why}")


def name_mapping(schema: Mapping[str, Any]) -> list[Json]:
    """Returns the ids by the names of columns, for files without ids."""
    return [_mapped(each["name"], each["id"], each["type"]) for each in schema["fields"]]


def _mapped(name: str, number: int, kind: Any) -> Json:
    found: Json = {"field-id": number, "names": [name]}
    if not isinstance(kind, dict):
        return found
    if kind["type"] == "struct":
        parts = name_mapping(kind)
    elif kind["type"] == "list":
        parts = [_mapped("element", kind["element-id"], kind["element"])]
    else:
        parts = [_mapped("key", kind["key-id"], kind["key"]), _mapped("value", kind["value-id"], kind["value"])]
    return {**found, "fields": parts}


def ids(schema: Mapping[str, Any]) -> Iterator[int]:
    """Yields the ids of all columns and their parts."""

    def walk(mapped: Iterable[Json]) -> Iterator[int]:
        for each in mapped:
            yield each["field-id"]
            yield from walk(each.get("fields", ()))

    yield from walk(name_mapping(schema))
