"""JSON Schema: a schema as its constraints, each of which holds."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

CRITERIA = ("allOf", "anyOf", "oneOf")
ANNOTATIONS = frozenset(
    {
        "$id", "id", "$schema", "$comment", "$anchor", "$vocabulary", "title", "description", "default", "examples",
        "readOnly", "writeOnly", "deprecated", "definitions", "$defs", "format", "contentMediaType", "contentEncoding",
    }
)  # fmt: skip
_KEYWORDS = {
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "dependencies", "dependentRequired",
        "dependentSchemas", "minProperties", "maxProperties", "propertyNames", "unevaluatedProperties",
    ),
    "array": (
        "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains",
        "unevaluatedItems", "minContains", "maxContains",
    ),
    "string": ("minLength", "maxLength", "pattern"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}  # fmt: skip


class Shape(NamedTuple):
    """One constraint of a schema. `kind` is a type, "enum", "const", "not", or one of `CRITERIA` with its `parts`."""

    kind: str
    schema: dict[str, Any]
    parts: tuple[Any, ...] = ()


def permits_all(schema: Any) -> bool:
    """True if a schema permits every value."""
    return schema is True or (isinstance(schema, dict) and schema.keys() <= ANNOTATIONS)


def split_schema(schema: dict[str, Any]) -> list[Shape]:
    """Returns the constraints of a schema, each of which holds."""
    shapes = [Shape(each, schema) for each in ("enum", "const", "not") if each in schema]
    shapes += [Shape(each, schema, _unique(schema[each])) for each in CRITERIA if isinstance(schema.get(each), list)]
    kinds = schema.get("type")
    if isinstance(kinds, list):
        rest = {name: each for name, each in schema.items() if name not in ("enum", "const", "not", *CRITERIA)}
        if len(kinds) == 1:
            shapes.append(Shape(kinds[0], rest))
        else:
            shapes.append(Shape("anyOf", rest, tuple({**rest, "type": each} for each in kinds)))
    elif isinstance(kinds, str):
        shapes.append(Shape(kinds, schema))
    else:
        shapes += [Shape(kind, schema) for kind, names in _KEYWORDS.items() if any(each in schema for each in names)]
    return shapes


def _unique(parts: list[Any]) -> tuple[Any, ...]:
    """Returns the schemas of a list, each once."""
    return tuple({name_value(each): each for each in parts}.values())


def name_value(value: Any) -> bytes:
    """Returns bytes that equal JSON values have in common, so that no list is searched for each value."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def only_shape(shape: Shape) -> dict[str, Any]:
    """Returns a schema with one of its constraints."""
    if shape.kind in ("enum", "const", "not"):
        return {shape.kind: shape.schema[shape.kind]}
    if shape.kind in CRITERIA:
        return {shape.kind: list(shape.parts)}
    names = _KEYWORDS.get("number" if shape.kind == "integer" else shape.kind, ())
    return {"type": shape.kind, **{name: shape.schema[name] for name in names if name in shape.schema}}


def show_shape(shape: Shape) -> str:
    """Returns a constraint as messages name it."""
    return shape.kind if shape.kind not in CRITERIA else f"{shape.kind} of {len(shape.parts)} schemas"
