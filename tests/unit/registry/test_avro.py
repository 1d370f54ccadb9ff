"""Avro: canonical texts, and compatibility by the table of schema resolution in the Avro specification."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tiered.registry.avro import can_read, make_canonical, parse
from tiered.registry.refusals import SCHEMA_TOO_LARGE, RegistryRefused


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F") -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def reads(reader: Any, writer: Any) -> bool:
    return not can_read(parse(json.dumps(reader), []), parse(json.dumps(writer), []))


PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}


@pytest.mark.parametrize("writer", PRIMITIVES)
def test_primitives_are_read_by_themselves_and_their_promotions(writer: str) -> None:
    readers = {reader for reader in PRIMITIVES if reads(reader, writer)}
    assert readers == {writer} | PROMOTIONS.get(writer, set())


TREE = record(field("left", ["null", "R"]), field("v", "int"))
CASES = [
    ("field with a default is added", record(field("a", "int"), field("b", "int", default=1)), "a", True),
    ("field without a default is added", record(field("a", "int"), field("b", "int")), "a", False),
    ("field is removed", record(), "a", True),
    ("field is promoted", record(field("a", "long")), "a", True),
    ("field is narrowed", record(field("a", "boolean")), "a", False),
    ("field becomes optional", record(field("a", ["null", "int"])), "a", True),
    ("field is renamed with an alias", record(field("b", "int", aliases=["a"])), "a", True),
    ("field is renamed", record(field("b", "int")), "a", False),
    ("record is renamed", record(field("a", "int"), name="S"), "a", False),
    ("record is renamed with an alias", record(field("a", "int"), name="S", aliases=["R"]), "a", True),
    ("symbol is added", enum("A", "B", "C"), enum("A", "B"), True),
    ("symbol is removed", enum("A"), enum("A", "B"), False),
    ("symbol is removed with a default", enum("A", default="A"), enum("A", "B"), True),
    ("size of fixed changes", fixed(4), fixed(8), False),
    ("fixed stays", fixed(4), fixed(4), True),
    ("items are promoted", {"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
    ("items are narrowed", {"type": "array", "items": "int"}, {"type": "array", "items": "long"}, False),
    ("values are promoted", {"type": "map", "values": "double"}, {"type": "map", "values": "int"}, True),
    ("array becomes map", {"type": "map", "values": "int"}, {"type": "array", "items": "int"}, False),
    ("branch is added", ["null", "int", "string"], ["null", "int"], True),
    ("branch is removed", ["null", "int"], ["null", "int", "string"], False),
    ("union becomes one of its types", "int", ["null", "int"], False),
    ("type becomes a union with it", ["null", "int"], "int", True),
    ("logical type is unknown", {"type": "int", "logicalType": "parsec"}, "int", True),
    ("recursive record stays", TREE, TREE, True),
    ("recursive record changes inside", record(field("left", ["null", "R"]), field("v", "string")), TREE, False),
]


@pytest.mark.parametrize(
    ("reader", "writer", "is_right"), [each[1:] for each in CASES], ids=[each[0] for each in CASES]
)
def test_reader_reads_by_the_rules_of_schema_resolution(reader: Any, writer: Any, is_right: bool) -> None:
    assert reads(reader, record(field("a", "int")) if writer == "a" else writer) == is_right


def test_difference_names_the_place() -> None:
    [why] = can_read(parse(json.dumps(record(field("a", "int"))), []), parse(json.dumps(record()), []))
    assert why == "reader_field_missing_default_value at /fields/0: a"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (' { "type" : "string" } ', '"string"'),
        ('{"fields":[],"name":"R","type":"record"}', '{"type":"record","name":"R","fields":[]}'),
        ('{"type":"fixed","name":"a.b.F","size":4}', '{"type":"fixed","name":"F","namespace":"a.b","size":4}'),
        (
            '{"type":"record","name":"R","namespace":"a","fields":[{"type":{"type":"enum","name":"a.E","symbols":["X"]},'
            '"name":"e"},{"name":"f","type":"a.E"},{"name":"g","type":{"type":"int","logicalType":"date"}}]}',
            '{"type":"record","name":"R","namespace":"a","fields":[{"name":"e","type":{"type":"enum","name":"E","symbols":'
            '["X"]}},{"name":"f","type":"E"},{"name":"g","type":{"type":"int","logicalType":"date"}}]}',
        ),
    ],
)
def test_canonical_text_is_the_same_for_equal_schemas(text: str, canonical: str) -> None:
    assert make_canonical(text) == canonical == make_canonical(canonical)


def test_normal_form_sorts_attributes_that_avro_does_not_know() -> None:
    one, other = '{"type":"int","b":1,"a":2}', '{"a":2,"b":1,"type":"int"}'
    assert make_canonical(one) != make_canonical(other)
    assert make_canonical(one, normalize=True) == make_canonical(other, normalize=True)


def test_schema_uses_types_of_its_references() -> None:
    found = parse(json.dumps(record(field("f", "F"))), [("F", json.dumps(fixed(4)))])
    assert "fixed" in str(found)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "3", "[", '"nosuch"', '{"type":"record","name":"R"}', '{"type":"record","name":"3R","fields":[]}',
        '{"type":"enum","name":"E","symbols":["A","A"]}', '{"type":"array"}', '["int","int"]', "{}", "null",
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
        '{"type":"record","name":"R","fields":[3]}', '{"type":"record","name":7,"fields":[]}', '{"type":{"a":[1]}}',
        '{"type":"record","name":"R","fields":[{"name":"f","type":"Other"}]}', '{"type":"fixed","name":"F","size":"x"}',
    ],
)  # fmt: skip
def test_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(RegistryRefused, match="Invalid schema"):
        make_canonical(text)
        parse(text, [])


def test_schema_without_end_is_refused() -> None:
    deep = '{"type":"array","items":' * 100 + '"int"' + "}" * 100
    wide = json.dumps(record(*(field(f"f{n}", "int") for n in range(10_000))))
    union = json.dumps([fixed(1, f"F{n}") for n in range(201)])
    for text in (deep, wide):
        with pytest.raises(RegistryRefused, match="Invalid schema: it "):
            make_canonical(text)
    with pytest.raises(RegistryRefused, match="more than 200 branches"):
        make_canonical(union)
    with pytest.raises(RegistryRefused) as refused:
        make_canonical('"' + "x" * (5 << 20) + '"')
    assert refused.value.error_code == SCHEMA_TOO_LARGE


def test_long_chain_of_types_is_compared_or_said_to_be_too_deep() -> None:
    """Each type of the union uses the one before: the comparison goes as deep as the union is long."""
    rest = (record(field("f", f"L{n - 1}"), name=f"L{n}") for n in range(1, 600))
    chain = [record(field("f", "int"), name="L0"), *rest]
    wide = record(*(field(f"f{n}", each) for n, each in enumerate(chain)))
    parsed = parse(json.dumps(wide), [])
    found = can_read(parsed, parsed)
    assert found == [] or "nested too deep" in found[0]
