"""JSON Schema: the canonical text of a schema, and compatibility by the rules of Confluent's registry.

The library `jsonschema` checks that a schema is one. No kept library compares two schemas, so the comparison is ours.
`old` wrote the data, `new` reads it. A reader may permit more than the writer, never less. An object without
`additionalProperties: false` is open: old data may have any property, so a new property with a type is a risk.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson
from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft7Validator, validator_for

from tiered.registry.json_documents import Document, Place, check_references, resolve
from tiered.registry.json_numbers import LIMITS, compare_limits
from tiered.registry.json_shapes import CRITERIA, Shape, name_value, only_shape, permits_all, show_shape, split_schema
from tiered.registry.json_text import load_bounded
from tiered.registry.refusals import RegistryRefused, invalid_schema

COMPARISONS_MAX = 50_000
DIFFERENCES_MAX = 20
DEPTH_MAX = 60
PATTERN_MAX, NAME_MAX = 200, 1_000
"""Most characters of a pattern of properties that is searched for, and of a name in which it is searched."""


def make_canonical(text: str, *, normalize: bool = False) -> str:
    """Returns the schema without spaces; `normalize` also sorts its names."""
    return orjson.dumps(load_bounded(text), option=orjson.OPT_SORT_KEYS if normalize else 0).decode()


def parse(text: str, references: Sequence[tuple[str, str]]) -> Document:
    """Parses a schema. Raises `RegistryRefused` if it is none, or if a reference in it leads nowhere."""
    root = load_bounded(text)
    if not isinstance(root, dict | bool):
        raise invalid_schema("a JSON schema is an object or a boolean")
    document = Document(root, {name: load_bounded(each) for name, each in references})
    try:
        validator_for(root, Draft7Validator).check_schema(root)
    except SchemaError as error:
        raise invalid_schema(f"{error.json_path}: {error.message}") from None
    except RecursionError:
        raise invalid_schema("it is nested too deep") from None
    for base in (root, *document.others.values()):
        check_references(document, base)
    return document


def list_record_names(parsed: Document) -> list[str]:
    """Returns the title, which stands for a name."""
    title = parsed.root.get("title") if isinstance(parsed.root, dict) else None
    return [title] if isinstance(title, str) and title else []


def can_read(reader: Document, writer: Document) -> list[str]:
    """Returns why a reader refuses what a writer permits; empty if it refuses nothing."""
    try:
        comparison = _Comparison(writer, reader)
        found = comparison.compare(Place(writer.root, writer.root), Place(reader.root, reader.root), "#", 0)
    except RecursionError:
        return ["they are nested too deep to be compared"]
    except RegistryRefused as refused:
        return [refused.why]
    return found[:DIFFERENCES_MAX]


class _Comparison:
    """Compares two documents. Each pair of schemas is compared once: recursive schemas come back to a pair, which then
    counts as compatible."""

    def __init__(self, old: Document, new: Document) -> None:
        self._old = old
        self._new = new
        self._calls = 0
        self._results: dict[tuple[int, int], list[str]] = {}
        self._shapes: dict[int, tuple[dict[str, Any], list[Shape]]] = {}
        self._made = list[Any]()
        """Schemas made here: their ids must not be used again."""

    def compare(self, old: Place, new: Place, path: str, depth: int) -> list[str]:
        """Returns what the new schema refuses of the data of the old one."""
        self._calls += 1
        if self._calls > COMPARISONS_MAX or depth > DEPTH_MAX:
            raise invalid_schema("they are too complex to be compared")
        old, new = resolve(self._old, old), resolve(self._new, new)
        if permits_all(new.schema) or old.schema is False:
            return []
        if new.schema is False:
            return [f"{path} permits nothing any more"]
        if permits_all(old.schema):
            return [f"{path} permitted everything"]
        pair = (id(old.schema), id(new.schema))
        found = self._results.get(pair)
        if found is not None:
            return found
        self._results[pair] = []
        self._results[pair] = found = self._compare_shapes(old, new, path, depth + 1)
        return found

    def _shape_of(self, schema: dict[str, Any]) -> Shape:
        """Returns a schema as one shape: all of its shapes, if it has several."""
        kept = self._shapes.get(id(schema))
        if kept is None:
            kept = self._shapes[id(schema)] = (schema, split_schema(schema))
            self._made.append(kept)
        shapes = kept[1]
        if len(shapes) == 1:
            return shapes[0]
        parts = [only_shape(each) for each in shapes]
        self._made.append(parts)
        self._shapes[id(schema)] = (schema, [made := Shape("allOf", schema, tuple(parts))])
        return made

    def _compare_shapes(self, old: Place, new: Place, path: str, depth: int) -> list[str]:
        if "$ref" in old.schema or "$ref" in new.schema:  # of JSON Schema itself
            return [] if old.schema == new.schema else [f"{path} has another $ref"]
        was, now = self._shape_of(old.schema), self._shape_of(new.schema)
        if was.kind in CRITERIA and now.kind in CRITERIA:
            return self._compare_combined(was, now, old.root, new.root, path, depth)
        if now.kind in CRITERIA and (len(now.parts) == 1 or now.kind != "allOf"):
            tried = [self.compare(old, Place(each, new.root), path, depth) for each in now.parts]
            if [] in tried:
                return []
        if was.kind in CRITERIA and (len(was.parts) == 1 or was.kind == "allOf"):
            tried = [self.compare(Place(each, old.root), new, path, depth) for each in was.parts]
            if [] in tried:
                return []
        if was.kind != now.kind and (was.kind, now.kind) != ("integer", "number"):
            return [f"{path} was {show_shape(was)} and is {show_shape(now)}"]
        return self._compare_kind(now.kind, Place(was.schema, old.root), Place(now.schema, new.root), path, depth)

    def _compare_kind(self, kind: str, old: Place, new: Place, path: str, depth: int) -> list[str]:
        match kind:
            case "object":
                return _ObjectComparison(self, old, new, path, depth).run()
            case "array":
                return _compare_arrays(self, old, new, path, depth)
            case "string" | "number" | "integer":
                return compare_limits(LIMITS[kind], old.schema, new.schema, path)
            case "enum":
                left = set(map(name_value, new.schema["enum"]))
                lost = next((each for each in map(name_value, old.schema["enum"]) if each not in left), None)
                return [f"{path}/enum lacks {lost.decode()[:60]}"] if lost is not None else []
            case "const":
                return [] if old.schema["const"] == new.schema["const"] else [f"{path}/const has another value"]
            case "not":
                forbidden, before = Place(new.schema["not"], new.root), Place(old.schema["not"], old.root)
                narrower = _Comparison(self._new, self._old).compare(forbidden, before, path, depth)
                return [f"{path}/not forbids more"] if narrower else []
        return []

    def _compare_combined(
        self, was: Shape, now: Shape, old_root: Any, new_root: Any, path: str, depth: int
    ) -> list[str]:
        if was.kind != now.kind:
            singles = len(was.parts) == 1, len(now.parts) == 1
            is_wider = now.kind == "anyOf" or all(singles) or (singles[0] and now.kind == "oneOf")
            if not is_wider and not (singles[1] and was.kind == "allOf"):
                return [f"{path} was {was.kind} and is {now.kind}"]
        if was.kind == now.kind == "allOf" and len(now.parts) > len(was.parts):
            return [f"{path}/allOf has more schemas"]
        if now.kind != "allOf" and was.kind != "allOf" and len(was.parts) > len(now.parts):
            return [f"{path}/{now.kind} has fewer schemas"]
        edges = [
            [
                not self.compare(Place(one, old_root), Place(other, new_root), f"{path}/{was.kind}/{n}", depth)
                for other in now.parts
            ]
            for n, one in enumerate(was.parts)
        ]
        if _count_matches(edges, len(now.parts)) < min(len(was.parts), len(now.parts)):
            return [f"{path}/{now.kind} has a schema without one that it reads"]
        return []


def _count_matches(edges: list[list[bool]], width: int) -> int:
    """Returns how many old parts can have a new part each, no new part twice."""
    owner = [-1] * width

    def place(row: int, seen: list[bool]) -> bool:
        for column in range(width):
            if edges[row][column] and not seen[column]:
                seen[column] = True
                if owner[column] < 0 or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    return sum(place(row, [False] * width) for row in range(len(edges)))


# -- objects ----------------------------------------------------------------------------------------------------------


class _ObjectComparison:
    """Compares two schemas of objects."""

    def __init__(self, outer: _Comparison, old: Place, new: Place, path: str, depth: int) -> None:
        self._outer = outer
        self._old, self._new = old, new
        self._path, self._depth = path, depth
        self._was, self._is = _mapping(old.schema, "properties"), _mapping(new.schema, "properties")
        self._required = set(_names(new.schema)) - set(_names(old.schema))
        self._found: list[str] = []

    def run(self) -> list[str]:
        """Returns all differences."""
        for name in self._was:
            if name in self._is:
                self._compare(self._was[name], self._is[name], f"properties/{name}")
            else:
                self._compare_removed(name)
        for name in self._is:
            if name not in self._was:
                self._compare_added(name)
        for name in self._required:
            if name in self._was and name in self._is:
                self._require(_has_default(self._is[name]), f"properties/{name} became required")
            elif name not in self._is:
                self._require(False, f"requires {name!r}")
        self._compare_additional()
        self._compare_dependencies()
        self._found += compare_limits(LIMITS["object"], self._old.schema, self._new.schema, self._path)
        return self._found

    def _require(self, is_right: bool, why: str) -> None:
        if not is_right:
            self._found.append(f"{self._path}/{why}")

    def _compare(self, old: Any, new: Any, step: str) -> None:
        old_place, new_place = Place(old, self._old.root), Place(new, self._new.root)
        self._found += self._outer.compare(old_place, new_place, f"{self._path}/{step}", self._depth)

    def _compare_removed(self, name: str) -> None:
        if _is_open(self._new.schema):
            return
        step, other = f"properties/{name}", _find_partial(self._new.schema, name)
        if other is not None:
            self._compare(self._was[name], other, step)
        else:
            self._require(self._was[name] is False, f"{step} was removed, and no other properties are permitted")

    def _compare_added(self, name: str) -> None:
        schema, step = self._is[name], f"properties/{name}"
        if _is_open(self._old.schema):
            self._require(permits_all(schema), f"{step} was added, where any other property was permitted")
            return
        other = _find_partial(self._old.schema, name)
        if other is not None:
            self._compare(other, schema, step)
        if name in self._required:
            self._require(_has_default(schema), f"{step} was added, is required and has no default")

    def _compare_additional(self) -> None:
        was, now = _other_properties(self._old.schema), _other_properties(self._new.schema)
        if was is not False:
            self._compare(was, now, "additionalProperties")
        patterns = _mapping(self._new.schema, "patternProperties")
        for pattern, schema in patterns.items():
            before = _mapping(self._old.schema, "patternProperties").get(pattern)
            if before is not None:
                self._compare(before, schema, f"patternProperties/{pattern}")

    def _compare_dependencies(self) -> None:
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            before = _mapping(self._old.schema, keyword)
            for name, now in _mapping(self._new.schema, keyword).items():
                was, step = before.get(name), f"{keyword}/{name}"
                if isinstance(now, list):
                    self._require(isinstance(was, list) and set(now) <= set(was), f"{step} requires more")
                elif was is None or isinstance(was, list):
                    self._require(permits_all(now), f"{step} was added")
                else:
                    self._compare(was, now, step)


def _mapping(schema: dict[str, Any], name: str) -> dict[str, Any]:
    found = schema.get(name)
    return found if isinstance(found, dict) else {}


def _names(schema: dict[str, Any]) -> list[str]:
    found = schema.get("required")
    return found if isinstance(found, list) else []


def _has_default(schema: Any) -> bool:
    return isinstance(schema, dict) and "default" in schema


def _is_open(schema: dict[str, Any]) -> bool:
    """True if any other property is permitted."""
    return permits_all(_other_properties(schema)) and not _mapping(schema, "patternProperties")


def _other_properties(schema: dict[str, Any]) -> Any:
    """Returns the schema of properties that are not named."""
    return schema.get("additionalProperties", schema.get("unevaluatedProperties", True))


def _find_partial(schema: dict[str, Any], name: str) -> Any:
    """Returns the schema of a property that is not named: by a pattern, or of all others; None if it is forbidden.
    Raises `RegistryRefused` for a pattern that may take long: nothing can end a search."""
    for pattern, each in _mapping(schema, "patternProperties").items():
        if len(pattern) > PATTERN_MAX or "(" in pattern or sum(map(pattern.count, "*+?{")) > 1:
            raise invalid_schema(f"the pattern {pattern[:60]!r} of properties is too complex to be compared")
        try:
            if re.search(pattern, name[:NAME_MAX]):
                return each
        except re.error:
            continue
    other = _other_properties(schema)
    return None if other is False else other


# -- arrays -----------------------------------------------------------------------------------------------------------


def _compare_arrays(outer: _Comparison, old: Place, new: Place, path: str, depth: int) -> list[str]:
    (was, was_rest), (now, now_rest) = _items(old.schema), _items(new.schema)
    found = compare_limits(LIMITS["array"], old.schema, new.schema, path)
    if new.schema.get("uniqueItems") is True and old.schema.get("uniqueItems") is not True:
        found.append(f"{path}/uniqueItems was added")
    for n in range(max(len(was), len(now))):
        one = was[n] if n < len(was) else was_rest
        other = now[n] if n < len(now) else now_rest
        found += outer.compare(Place(one, old.root), Place(other, new.root), f"{path}/items/{n}", depth)
    rests = Place(was_rest, old.root), Place(now_rest, new.root)
    found += outer.compare(*rests, f"{path}/items", depth)
    if "contains" in new.schema:
        before = Place(old.schema.get("contains", True), old.root)
        found += outer.compare(before, Place(new.schema["contains"], new.root), f"{path}/contains", depth)
    return found


def _items(schema: dict[str, Any]) -> tuple[list[Any], Any]:
    """Returns the schemas of the first items, and that of all others."""
    items, others = schema.get("items"), schema.get("unevaluatedItems", True)
    if isinstance(schema.get("prefixItems"), list):
        return schema["prefixItems"], others if items is None else items
    if isinstance(items, list) or items is None:
        return items or [], schema.get("additionalItems", others)
    return [], items
