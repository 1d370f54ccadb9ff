"""Protobuf: texts and descriptors, references, and compatibility by the cases that Confluent documents."""

from __future__ import annotations

import base64

import pytest
from google.protobuf import descriptor_pb2

from tiered.registry import protoc
from tiered.registry.protobuf import Linked, can_read, make_canonical, parse, serialize
from tiered.registry.refusals import RegistryRefused

Field = descriptor_pb2.FieldDescriptorProto
TYPES = {
    "int32": Field.TYPE_INT32, "uint64": Field.TYPE_UINT64, "sint32": Field.TYPE_SINT32, "string": Field.TYPE_STRING,
    "bytes": Field.TYPE_BYTES, "bool": Field.TYPE_BOOL, "fixed32": Field.TYPE_FIXED32, "double": Field.TYPE_DOUBLE,
}  # fmt: skip
LABELS = {"repeated": Field.LABEL_REPEATED, "required": Field.LABEL_REQUIRED}


def message(*fields: str, package: str = "") -> str:
    """Returns a descriptor of a message M in base64, without the compiler: `[LABEL] TYPE NAME NUMBER [ONEOF]`. A type
    that begins with a capital is a message of the same file."""
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package=package)
    made = file.message_type.add(name="M")
    for line in fields:
        words = line.split()
        label = LABELS[words.pop(0)] if words[0] in LABELS else Field.LABEL_OPTIONAL
        kind, name, number, *oneof = words
        field = made.field.add(name=name, number=int(number), label=label)
        if kind[0].isupper():
            field.type, field.type_name = Field.TYPE_MESSAGE, f".{package}.{kind}" if package else f".{kind}"
            if kind != "M" and kind not in {each.name for each in file.message_type}:
                file.message_type.add(name=kind)
        else:
            field.type = TYPES[kind]
        if oneof:
            names = [each.name for each in made.oneof_decl]
            if oneof[0] not in names:
                made.oneof_decl.add(name=oneof[0])
                names.append(oneof[0])
            field.oneof_index = names.index(oneof[0])
    return base64.b64encode(file.SerializeToString()).decode()


CASES: list[tuple[str, tuple[str, ...], tuple[str, ...], bool]] = [
    # name, new, old, the new schema reads the data of the old one
    ("field is added", ("int32 a 1", "string b 2"), ("int32 a 1",), True),
    ("field is removed", (), ("int32 a 1",), True),
    ("field is renamed", ("int32 b 1",), ("int32 a 1",), True),
    ("field gets another number", ("int32 a 2",), ("int32 a 1",), True),
    ("int32 becomes uint64", ("uint64 a 1",), ("int32 a 1",), True),
    ("int32 becomes bool", ("bool a 1",), ("int32 a 1",), True),
    ("int32 becomes sint32", ("sint32 a 1",), ("int32 a 1",), False),
    ("int32 becomes fixed32", ("fixed32 a 1",), ("int32 a 1",), False),
    ("int32 becomes string", ("string a 1",), ("int32 a 1",), False),
    ("string becomes bytes", ("bytes a 1",), ("string a 1",), True),
    ("string becomes repeated", ("repeated string a 1",), ("string a 1",), True),
    ("int32 becomes repeated", ("repeated int32 a 1",), ("int32 a 1",), False),
    ("required field is added", ("int32 a 1", "required int32 b 2"), ("int32 a 1",), False),
    ("required field is removed", ("int32 a 1",), ("int32 a 1", "required int32 b 2"), False),
    ("field becomes required", ("required int32 a 1",), ("int32 a 1",), False),
    ("message of a field changes", ("A f 1", "B g 2"), ("B f 1", "A g 2"), False),
    ("message is removed", ("int32 a 1",), ("int32 a 1", "A f 2"), False),
    ("message uses itself", ("M m 1", "int32 a 2"), ("M m 1",), True),
    ("field moves to a new oneof", ("int32 a 1 o", "int32 b 2"), ("int32 a 1", "int32 b 2"), True),
    ("two fields move to a oneof", ("int32 a 1 o", "int32 b 2 o"), ("int32 a 1", "int32 b 2"), False),
    ("field moves to an old oneof", ("int32 a 1 o", "int32 b 2 o"), ("int32 a 1 o", "int32 b 2"), False),
    ("two oneofs become one", ("int32 a 1 o", "int32 b 2 o"), ("int32 a 1 o", "int32 b 2 p"), False),
    ("field is added to a oneof", ("int32 a 1 o", "int32 b 2 o"), ("int32 a 1 o",), True),
    ("field is removed from a oneof", ("int32 a 1 o",), ("int32 a 1 o", "int32 b 2 o"), False),
    ("oneof is renamed", ("int32 a 1 p",), ("int32 a 1 o",), True),
    ("oneof is removed", ("int32 c 3",), ("int32 a 1 o", "int32 b 2 o"), True),
]


def read(text: str, *references: tuple[str, str]) -> Linked:
    return parse(text, references)


@pytest.mark.parametrize(("new", "old", "is_right"), [each[1:] for each in CASES], ids=[each[0] for each in CASES])
def test_reader_reads_by_field_numbers_and_wire_types(
    new: tuple[str, ...], old: tuple[str, ...], is_right: bool
) -> None:
    assert (not can_read(read(message(*new)), read(message(*old)))) == is_right


def test_package_has_to_stay() -> None:
    found = can_read(read(message("int32 a 1", package="b")), read(message("int32 a 1", package="a")))
    assert found == ["the package was 'a' and is 'b'"]


TEXT = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "other/money.proto";
message Order {
  google.protobuf.Timestamp at = 1;
  map<string, Money> prices = 2;
  optional int32 count = 3;
}
"""
MONEY = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'


def test_text_with_imports_is_compiled_and_compared() -> None:
    """One text and its descriptor are one schema; a reference is a text or a descriptor."""
    linked = read(TEXT, ("other/money.proto", MONEY))
    assert sorted(linked.messages) == ["shop.Money", "shop.Order", "shop.Order.PricesEntry"]
    money = serialize(read(MONEY))
    again = read(serialize(linked), ("other/money.proto", money))
    assert again.file == linked.file and can_read(again, linked) == []
    changed = read(TEXT, ("other/money.proto", MONEY.replace("int64", "string")))
    assert can_read(changed, linked) == ["shop.Money.cents was int64 and is string"]


def test_compiler_says_where_a_text_is_wrong() -> None:
    for text, why in (
        ('syntax = "proto3"; message {', "Expected message name"),
        ('syntax = "proto3"; import "absent.proto";', "absent.proto: File not found"),
        ("not a schema at all", "Expected top-level statement"),
        ('syntax = "proto3"; import "/etc/passwd";', "File not found"),
    ):
        with pytest.raises(RegistryRefused, match=why) as refused:
            parse(text, [])
        assert "/tmp" not in refused.value.why


def test_name_of_a_reference_is_no_way_out_of_its_folder() -> None:
    for name in ("../m.proto", "/m.proto", "a//b.proto", "schema.proto", "a\nb.proto", ""):
        with pytest.raises(RegistryRefused, match="no name of a"):
            protoc.compile_proto('syntax = "proto3";', ((name, b""),))


def test_descriptor_that_does_not_link_is_refused() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="m.proto")
    file.message_type.add(name="M").field.add(
        name="f", number=1, label=Field.LABEL_OPTIONAL, type=Field.TYPE_MESSAGE, type_name=".Absent"
    )
    with pytest.raises(RegistryRefused, match="Invalid schema"):
        parse(base64.b64encode(file.SerializeToString()).decode(), [])


def test_canonical_text_is_the_given_one() -> None:
    text = message("int32 a 1")
    assert make_canonical(f" {text}\n") == text == make_canonical(text, normalize=True)
    assert make_canonical(f"\n{MONEY} ") == MONEY
