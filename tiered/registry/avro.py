"""Avro: the canonical text of a schema, and compatibility by the rules of schema resolution.

Parsing and resolution belong to the library `avro` of Apache Avro. The canonical text is what Avro's Java library
prints: no spaces, attributes in one order, namespaces only where they change. So equal schemas get one id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.errors import AvroException
from avro.name import Names
from avro.schema import Schema as AvroSchema
from avro.schema import make_avsc_object

from tiered.registry.json_text import load_bounded
from tiered.registry.refusals import invalid_schema

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "error", "enum", "fixed"})
BRANCHES_MAX = 200
"""Most branches of a union: each of one is compared with each of another."""
_ORDER = ("type", "name", "namespace", "doc", "fields", "symbols", "items", "values", "size", "default", "order")
_FIELD_ORDER = ("name", "type", "doc", "default", "order", "aliases")


def make_canonical(text: str, *, normalize: bool = False) -> str:
    """Returns the canonical text of a schema. `normalize` also sorts attributes that Avro does not know."""
    canonical = _Canonical(normalize=normalize).convert(load_bounded(text), "")
    return orjson.dumps(canonical).decode()


def parse(text: str, references: Sequence[tuple[str, str]]) -> AvroSchema:
    """Parses a schema after those that it refers to. Raises `RegistryRefused`."""
    names = Names(validate_names=True)
    try:
        for _, each in references:
            make_avsc_object(_Canonical(logical=False).convert(load_bounded(each), ""), names)
        return make_avsc_object(_Canonical(logical=False).convert(load_bounded(text), ""), names)
    except (AvroException, AttributeError, KeyError, TypeError, ValueError) as error:  # of hostile JSON in the library
        raise invalid_schema(str(error) or type(error).__name__) from None
    except RecursionError:
        raise invalid_schema("it is nested too deep") from None


def list_record_names(parsed: AvroSchema) -> list[str]:
    """Returns the full name of a named type."""
    name = getattr(parsed, "fullname", "")
    return [name] if parsed.type in NAMED else []


def can_read(reader: AvroSchema, writer: AvroSchema) -> list[str]:
    """Returns why a reader cannot read what a writer wrote; empty if it can."""
    try:
        checker: Any = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
        result = checker.get_compatibility(reader, writer)
    except (AvroException, RecursionError) as error:
        return [f"they cannot be compared: {str(error) or 'they are nested too deep'}"]
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    kinds = sorted({each.value for each in result.incompatibilities})
    return [f"{', '.join(kinds)} at {', '.join(sorted(result.locations))}: {', '.join(sorted(result.messages))}"]


class _Canonical:
    """Converts parsed JSON. `logical` keeps logical types: the library warns about those that it does not know, and
    they have no part in schema resolution."""

    def __init__(self, *, logical: bool = True, normalize: bool = False) -> None:
        self._logical = logical
        self._normalize = normalize

    def convert(self, value: Any, space: str) -> Any:
        """Returns a schema in the namespace `space`."""
        if isinstance(value, str):
            return _shorten(value, space)
        if isinstance(value, list):
            if len(value) > BRANCHES_MAX:
                raise invalid_schema(f"a union has more than {BRANCHES_MAX} branches")
            return [self.convert(each, space) for each in value]
        if not isinstance(value, dict):
            return value
        found = dict(value)
        kind = found.get("type")
        if isinstance(kind, dict | list) and found.keys() == {"type"}:
            return self.convert(kind, space)
        if isinstance(kind, str) and kind not in PRIMITIVES | NAMED | {"array", "map"}:
            found["type"] = _shorten(kind, space)
        if kind in NAMED and isinstance(found.get("name"), str):
            space = _name(found, space)
        for inner in ("items", "values"):
            if inner in found:
                found[inner] = self.convert(found[inner], space)
        if isinstance(found.get("fields"), list):
            found["fields"] = [self._field(each, space) for each in found["fields"]]
        if not self._logical:
            found.pop("logicalType", None)
        if found.keys() == {"type"} and kind in PRIMITIVES:
            return kind
        return self._arrange(found, _ORDER)

    def _field(self, field: Any, space: str) -> Any:
        if not isinstance(field, dict):
            return field
        found = dict(field)
        if "type" in found:
            found["type"] = self.convert(found["type"], space)
        return self._arrange(found, _FIELD_ORDER)

    def _arrange(self, found: dict[str, Any], order: tuple[str, ...]) -> dict[str, Any]:
        known = [name for name in order if name in found]
        others = [name for name in found if name not in order]
        return {name: found[name] for name in (*known, *(sorted(others) if self._normalize else others))}


def _name(found: dict[str, Any], space: str) -> str:
    """Splits the name of a type, and drops its namespace if that is the one around it. Returns the namespace inside."""
    name, own = found["name"], found.get("namespace")
    if "." in name:
        own, _, found["name"] = name.rpartition(".")
    inside = own if isinstance(own, str) else space
    found.pop("namespace", None)
    if inside != space:
        found["namespace"] = inside
    return inside


def _shorten(name: str, space: str) -> str:
    """Returns the name of a type as its namespace writes it."""
    outer, _, last = name.rpartition(".")
    return last if outer and outer == space and last not in PRIMITIVES else name
