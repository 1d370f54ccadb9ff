"""JSON Schema: compatibility by the cases that Confluent documents, references, and schemas without end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tiered.registry import json_schema
from tiered.registry.json_schema import can_read, make_canonical, parse
from tiered.registry.refusals import RegistryRefused


def differences(new: Any, old: Any) -> list[str]:
    return can_read(parse(json.dumps(new), []), parse(json.dumps(old), []))


def thing(*, closed: bool = False, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if closed:
        found["additionalProperties"] = False
    return found | ({"required": list(required)} if required else {})


TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
LIST = {"type": "array"}
PARTIAL = {"type": "object", "additionalProperties": TEXT}
PATTERN = {"type": "object", "additionalProperties": False, "patternProperties": {"^x": TEXT}}

CASES: list[tuple[str, Any, Any, bool]] = [
    # name, new, old, the new schema reads the data of the old one
    ("anything becomes everything", {}, thing(a=TEXT), True),
    ("everything becomes something", TEXT, {}, False),
    ("nothing becomes something", TEXT, False, True),
    ("something becomes nothing", False, TEXT, False),
    ("title and default change", {**TEXT, "title": "b", "default": "x"}, {**TEXT, "title": "a"}, True),
    ("type changes", TEXT, NUMBER, False),
    ("integer becomes number", NUMBER, WHOLE, True),
    ("number becomes integer", WHOLE, NUMBER, False),
    ("type gets an alternative", {"type": ["string", "null"]}, TEXT, True),
    ("type loses an alternative", TEXT, {"type": ["string", "null"]}, False),
    ("longest text grows", {**TEXT, "maxLength": 9}, {**TEXT, "maxLength": 5}, True),
    ("longest text shrinks", {**TEXT, "maxLength": 4}, {**TEXT, "maxLength": 5}, False),
    ("shortest text grows", {**TEXT, "minLength": 6}, {**TEXT, "minLength": 5}, False),
    ("limit is added", {**TEXT, "maxLength": 5}, TEXT, False),
    ("limit is removed", TEXT, {**TEXT, "maxLength": 5}, True),
    ("pattern is added", {**TEXT, "pattern": "a"}, TEXT, False),
    ("pattern changes", {**TEXT, "pattern": "a"}, {**TEXT, "pattern": "b"}, False),
    ("maximum grows", {**NUMBER, "maximum": 9.5}, {**NUMBER, "maximum": 9}, True),
    ("minimum grows", {**NUMBER, "minimum": 9}, {**NUMBER, "minimum": 8}, False),
    ("exclusive minimum shrinks", {**NUMBER, "exclusiveMinimum": 1}, {**NUMBER, "exclusiveMinimum": 2}, True),
    ("multiple becomes a part", {**NUMBER, "multipleOf": 5}, {**NUMBER, "multipleOf": 10}, True),
    ("multiple becomes a multiple", {**NUMBER, "multipleOf": 20}, {**NUMBER, "multipleOf": 10}, False),
    ("multiple becomes a fraction", {**NUMBER, "multipleOf": 0.1}, {**NUMBER, "multipleOf": 0.5}, True),
    ("value is added to an enum", {"enum": ["a", "b"]}, {"enum": ["a"]}, True),
    ("value is removed from an enum", {"enum": ["a"]}, {"enum": ["a", "b"]}, False),
    ("enum of a type grows", {**TEXT, "enum": ["a", "b"]}, {**TEXT, "enum": ["a"]}, True),
    ("constant changes", {"const": 1}, {"const": 2}, False),
    ("constant stays", {"const": 1}, {"const": 1}, True),
    ("less is forbidden", {"not": {"type": "integer"}}, {"not": NUMBER}, True),
    ("more is forbidden", {"not": NUMBER}, {"not": {"type": "integer"}}, False),
    ("property changes inside", thing(a=thing(b=TEXT)), thing(a=thing(b=NUMBER)), False),
    ("property is added to an open object", thing(a=TEXT, b=TEXT), thing(a=TEXT), False),
    ("property of any type is added to an open object", thing(a=TEXT, b={}), thing(a=TEXT), True),
    ("property is removed from an open object", thing(a=TEXT), thing(a=TEXT, b=TEXT), True),
    ("property is added to a closed object", thing(closed=True, a=TEXT, b=TEXT), thing(closed=True, a=TEXT), True),
    ("property is removed from a closed object", thing(closed=True, a=TEXT), thing(closed=True, a=TEXT, b=TEXT), False),
    (
        "forbidden property is removed from a closed object",
        thing(closed=True, a=TEXT), thing(closed=True, a=TEXT, b=False), True,
    ),
    (
        "required property is added to a closed object",
        thing(closed=True, required=("b",), b=TEXT), thing(closed=True), False,
    ),
    (
        "required property with a default is added to a closed object",
        thing(closed=True, required=("b",), b={**TEXT, "default": ""}), thing(closed=True), True,
    ),
    ("property is added as the others were", {**PARTIAL, "properties": {"b": TEXT}}, PARTIAL, True),
    ("property is added unlike the others", {**PARTIAL, "properties": {"b": NUMBER}}, PARTIAL, False),
    ("property is added as its pattern says", {**PATTERN, "properties": {"xb": TEXT}}, PATTERN, True),
    ("property is added unlike its pattern", {**PATTERN, "properties": {"xb": NUMBER}}, PATTERN, False),
    ("property becomes one of the others", PARTIAL, {**PARTIAL, "properties": {"b": TEXT}}, True),
    ("property becomes unlike the others", PARTIAL, {**PARTIAL, "properties": {"b": NUMBER}}, False),
    ("property becomes required", thing(required=("a",), a=TEXT), thing(a=TEXT), False),
    (
        "property with a default becomes required",
        thing(required=("a",), a={**TEXT, "default": ""}), thing(a=TEXT), True,
    ),
    ("property is required no more", thing(a=TEXT), thing(required=("a",), a=TEXT), True),
    ("unknown property becomes required", {"type": "object", "required": ["z"]}, {"type": "object"}, False),
    ("object is closed", thing(closed=True, a=TEXT), thing(a=TEXT), False),
    ("object is opened", thing(a=TEXT), thing(closed=True, a=TEXT), True),
    ("others get a type", PARTIAL, {"type": "object"}, False),
    ("dependency is added", {"type": "object", "dependencies": {"a": ["b"]}}, {"type": "object"}, False),
    (
        "dependency is narrowed",
        {"type": "object", "dependencies": {"a": ["b"]}}, {"type": "object", "dependencies": {"a": ["b", "c"]}}, True,
    ),
    (
        "dependent schema changes",
        {"type": "object", "dependentSchemas": {"a": thing(b=TEXT)}},
        {"type": "object", "dependentSchemas": {"a": thing(b=NUMBER)}}, False,
    ),
    ("most properties shrink", {"type": "object", "maxProperties": 1}, {"type": "object", "maxProperties": 2}, False),
    ("items change", {**LIST, "items": TEXT}, {**LIST, "items": NUMBER}, False),
    ("items get a type", {**LIST, "items": TEXT}, LIST, False),
    ("items lose their type", LIST, {**LIST, "items": TEXT}, True),
    ("items have to be unique", {**LIST, "uniqueItems": True}, LIST, False),
    ("fewest items shrink", {**LIST, "minItems": 1}, {**LIST, "minItems": 2}, True),
    ("item is added to an open tuple", {**LIST, "items": [TEXT, TEXT]}, {**LIST, "items": [TEXT]}, False),
    (
        "item is added to a closed tuple",
        {**LIST, "items": [TEXT, TEXT], "additionalItems": False},
        {**LIST, "items": [TEXT], "additionalItems": False}, True,
    ),
    ("items of a tuple of 2020-12 change", {**LIST, "prefixItems": [TEXT]}, {**LIST, "prefixItems": [NUMBER]}, False),
    ("alternative is added", {"oneOf": [TEXT, NUMBER]}, {"oneOf": [TEXT]}, True),
    ("alternative is removed", {"oneOf": [TEXT]}, {"oneOf": [TEXT, NUMBER]}, False),
    ("alternatives change their order", {"anyOf": [NUMBER, TEXT]}, {"anyOf": [TEXT, NUMBER]}, True),
    ("one alternative changes", {"anyOf": [TEXT, LIST]}, {"anyOf": [TEXT, NUMBER]}, False),
    ("type becomes an alternative", {"oneOf": [NUMBER, TEXT]}, TEXT, True),
    ("one of becomes any of", {"anyOf": [TEXT, NUMBER]}, {"oneOf": [TEXT, NUMBER]}, True),
    ("any of becomes one of", {"oneOf": [TEXT, NUMBER]}, {"anyOf": [TEXT, NUMBER]}, False),
    ("condition is added", {"allOf": [TEXT, {"minLength": 1}]}, {"allOf": [TEXT]}, False),
    ("condition is removed", {"allOf": [TEXT]}, {"allOf": [TEXT, {"minLength": 1}]}, True),
]  # fmt: skip


@pytest.mark.parametrize(("new", "old", "is_right"), [each[1:] for each in CASES], ids=[each[0] for each in CASES])
def test_new_schema_may_permit_more_and_never_less(new: Any, old: Any, is_right: bool) -> None:
    assert (not differences(new, old)) == is_right
    assert not differences(new, new) and not differences(old, old), "a schema reads its own data"


TREE = {"$defs": {"node": thing(closed=True, next={"$ref": "#/$defs/node"}, v=TEXT)}, "$ref": "#/$defs/node"}


def test_recursive_schemas_are_compared_once_around() -> None:
    other = json.loads(json.dumps(TREE).replace('"string"', '"integer"'))
    assert differences(TREE, TREE) == []
    assert differences(other, TREE) == ["#/properties/v was string and is integer"]


def test_references_lead_to_definitions_and_to_other_schemas() -> None:
    text = json.dumps(thing(a={"$ref": "other.json#/$defs/t"}, b={"$ref": "#/$defs/u"}) | {"$defs": {"u": TEXT}})
    old = parse(text, [("other.json", json.dumps({"$defs": {"t": TEXT}}))])
    new = parse(text, [("other.json", json.dumps({"$defs": {"t": NUMBER}}))])
    assert can_read(old, old) == []
    assert can_read(new, old) == ["#/properties/a was string and is number"]
    for name in ("absent.json", "#/$defs/absent", "#nosuch"):
        with pytest.raises(RegistryRefused, match="leads nowhere"):
            parse(json.dumps({"$ref": name}), [])


def test_reference_in_a_circle_is_refused() -> None:
    with pytest.raises(RegistryRefused, match="circle"):
        parse(json.dumps({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), [])


def test_schemas_with_too_many_pairs_are_said_to_be_too_complex(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_schema, "COMPARISONS_MAX", 50)
    many = {"anyOf": [{**TEXT, "maxLength": n} for n in range(20)]}
    assert differences(many, many) == ["Invalid schema: they are too complex to be compared"]


@pytest.mark.parametrize("pattern", ["(a+)+$", "a*a*b", "a" * 201])
def test_pattern_that_may_take_long_is_not_searched_for(pattern: str) -> None:
    old = {"type": "object", "additionalProperties": False, "patternProperties": {pattern: TEXT}}
    new = {**old, "properties": {"a" * 50: TEXT}}
    [why] = differences(new, old)
    assert "too complex to be compared" in why
    assert differences(old, old) == [], "it is not needed"


def test_many_alternatives_that_permit_all_end_at_the_bound() -> None:
    many = {"anyOf": [{"title": str(n)} for n in range(2_000)]}
    assert differences(many, {**many, "description": "old"}) == ["Invalid schema: they are too complex to be compared"]


@pytest.mark.parametrize(
    "text", ["", "[]", '"x"', '{"type":"nosuch"}', '{"properties":3}', '{"minLength":"a"}', "[" * 2000, "{" * 70]
)
def test_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(RegistryRefused, match="Invalid schema"):
        parse(make_canonical(text), [])


def test_canonical_text_keeps_order_and_normal_form_sorts() -> None:
    text = '{ "type": "object",\n "properties": {"b": {}, "a": {}} }'
    assert make_canonical(text) == '{"type":"object","properties":{"b":{},"a":{}}}'
    assert make_canonical(text, normalize=True) == '{"properties":{"a":{},"b":{}},"type":"object"}'
