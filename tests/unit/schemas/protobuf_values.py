"""A schema of Protobuf with each type, and messages of it, for tests."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from pyspark_tiered.schemas.protobuf_plan import ProtobufPlan, plan_protobuf

EVERYTHING = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Tree { int32 v = 1; repeated Tree kids = 2; }
message Order {
  enum Color { RED = 0; BLUE = 3; }
  message Item { string sku = 1; repeated sint32 of = 2; }
  double d = 1; float f = 2; int32 i = 3; int64 l = 4; uint32 u = 5; uint64 ul = 6; sint32 s = 7; sint64 sl = 8;
  fixed32 f32 = 9; fixed64 f64 = 10; sfixed32 sf32 = 11; sfixed64 sf64 = 12; bool b = 13; string text = 14;
  bytes raw = 15; Color color = 16; Item item = 17; repeated Item items = 18; repeated Color colors = 19;
  map<string, double> m = 20; map<int32, Item> deep = 21; map<bool, Color> flags = 22; optional int32 opt = 23;
  oneof pay { string card = 24; Item cash = 25; int64 points = 26; }
  google.protobuf.Timestamp at = 27; repeated google.protobuf.Timestamp times = 28;
  google.protobuf.StringValue name = 29; google.protobuf.Struct any = 30; Tree tree = 31; repeated string tags = 32;
}
"""


@cache
def plan_everything() -> ProtobufPlan:
    """Returns the plan of the schema, compiled once."""
    return plan_protobuf(EVERYTHING, [])


def draw_order(drawn: Random, kind: type[Any]) -> Any:
    """Returns a message `Order`."""
    found = kind()
    for field in kind.DESCRIPTOR.fields:
        if drawn.random() < 0.4:
            continue
        if field.message_type is not None or field.is_repeated:
            continue
        match field.name:
            case "d" | "f":
                setattr(found, field.name, drawn.choice([0.5, -1e30, float("inf")]))
            case "b":
                found.b = True
            case "text" | "card":
                setattr(found, field.name, drawn.choice(["", "a", "Überraschung"]))
            case "raw":
                found.raw = drawn.randbytes(5)
            case "color":
                found.color = drawn.choice([0, 3, 77])
            case "i" | "s" | "sf32" | "opt":
                setattr(found, field.name, drawn.choice([0, -(2**31), 2**31 - 1]))
            case "u" | "f32":
                setattr(found, field.name, drawn.choice([0, 2**32 - 1]))
            case "ul" | "f64":
                setattr(found, field.name, drawn.choice([0, 2**64 - 1]))
            case _:
                setattr(found, field.name, drawn.choice([0, -(2**63), 2**63 - 1]))
    if drawn.random() < 0.5:
        found.item.sku = "x"
        found.cash.of.extend([1, -1])
    for _ in range(drawn.randrange(3)):
        found.items.add(sku="y", of=[drawn.randrange(9)])
        found.times.add(seconds=drawn.randrange(10**9), nanos=5_000)
        found.colors.append(drawn.choice([0, 3]))
        found.m[drawn.choice("abc")] = 0.5
        found.deep[drawn.randrange(5)].sku = "z"
        found.flags[drawn.random() < 0.5] = 3
        found.tags.append("t")
    if drawn.random() < 0.5:
        found.at.seconds = -5
        found.name.value = ""
        found.any.update({"a": [1, {"b": None}]})
        found.tree.kids.add(v=2).kids.add(v=3)
    return found
