"""Tests of the decoder of Protobuf: columns and cells, by a second reader of the wire, and no bytes that break it."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass

from pyspark_tiered.schemas.avro_reparse import NoCell
from pyspark_tiered.schemas.protobuf_decode import decode_messages
from pyspark_tiered.schemas.protobuf_plan import MessagePlan, plan_protobuf, split_indexes
from pyspark_tiered.schemas.protobuf_reparse import read_message
from pyspark_tiered.schemas.unreadable import UnreadableSchema
from pyspark_tiered.typed.fast import column_type, shape
from pyspark_tiered.typed.kinds import describe_columns, select_columns
from tests.unit.schemas.protobuf_values import draw_order, plan_everything


def order() -> MessagePlan:
    return plan_everything().message((1,))


def decode(plan: MessagePlan, payloads: list[bytes]) -> tuple[list[Any], dict[int, str]]:
    found = decode_messages(plan, payloads)
    return shape(found.rows, plan.kind, select_columns(plan.kind)).to_pylist(), found.bad


def read_again(plan: MessagePlan, data: bytes) -> Any:
    columns = select_columns(plan.kind)
    return pa.array([read_message(plan, data, columns)], column_type(columns)).to_pylist()[0]


def test_each_type_has_a_column() -> None:
    assert describe_columns(select_columns(order().kind)) == (
        "d double, f double, i int, l bigint, u bigint, ul decimal(20,0), s int, sl bigint, f32 bigint, "
        "f64 decimal(20,0), sf32 int, sf64 bigint, b boolean, text string, raw binary, color string, "
        "item struct<sku: string, of: array<int>>, items array<struct<sku: string, of: array<int>>>, "
        "colors array<string>, m map<string, double>, deep map<string, struct<sku: string, of: array<int>>>, "
        "flags map<string, string>, opt int, card string, cash struct<sku: string, of: array<int>>, points bigint, "
        "at timestamp, times array<timestamp>, name string, any string, tree struct<v: int, kids: array<string>>, "
        "tags array<string>"
    )


def test_cells_are_those_that_another_reader_gives() -> None:
    drawn, plan = Random(1), order()
    kind = GetMessageClass(plan.descriptor)
    values = [draw_order(drawn, kind).SerializeToString() for _ in range(300)]
    rows, bad = decode(plan, values)
    assert bad == {}
    assert rows == [read_again(plan, each) for each in values]


def test_parts_of_a_message_merge_and_the_last_of_a_oneof_stays() -> None:
    plan = order()
    kind = GetMessageClass(plan.descriptor)
    parts = [kind(item={"sku": "a", "of": [1]}, card="x", i=1), kind(item={"of": [2]}, points=5, i=2)]
    (row,), _ = decode(plan, [b"".join(each.SerializeToString() for each in parts)])
    assert (row["item"], row["card"], row["points"], row["i"]) == ({"sku": "a", "of": [1, 2]}, None, 5, 2)
    assert row == read_again(plan, b"".join(each.SerializeToString() for each in parts))


@pytest.mark.parametrize("seed", range(3))
def test_damaged_messages_are_bad_and_leave_the_others_alone(seed: int) -> None:
    drawn, plan = Random(seed), order()
    kind = GetMessageClass(plan.descriptor)
    values = [draw_order(drawn, kind).SerializeToString() for _ in range(100)]
    whole, _ = decode(plan, values)
    damaged = list(values)
    for at in drawn.sample(range(len(values)), 50):
        changed = bytearray(values[at] or b"\0")
        changed[drawn.randrange(len(changed))] = drawn.choice([0, 1, 0x7F, 0x80, 0xFF, drawn.randrange(256)])
        damaged[at] = bytes(changed[: drawn.choice([len(changed), drawn.randrange(len(changed))])])
    rows, bad = decode(plan, damaged)
    for at, (before, data) in enumerate(zip(values, damaged, strict=True)):
        if data == before:
            assert (at in bad, rows[at]) == (False, whole[at])
            continue
        try:
            again = read_again(plan, data)
        except NoCell as why:
            assert at in bad, why
        else:
            assert at not in bad, bad.get(at)
            assert repr(rows[at]) == repr(again)


def test_indexes_of_a_frame_name_a_message() -> None:
    assert split_indexes(b"\0rest") == ((0,), 1)
    assert split_indexes(b"\4\2\0rest") == ((1, 0), 3)
    assert plan_everything().message((1, 0)).descriptor.full_name == "shop.Order.Item"
    for data in (b"", b"\x80", b"\xff\xff\xff\xff\x0f", b"\1"):
        with pytest.raises(UnreadableSchema):
            split_indexes(data)
    for indexes in ((9,), (1, 7), (-1,)):
        with pytest.raises(UnreadableSchema, match="it has no message"):
            plan_everything().message(indexes)


def test_imports_and_a_schema_that_is_none() -> None:
    item = 'syntax = "proto3"; package a; message Item { string sku = 1; }'
    text = 'syntax = "proto3"; import "item.proto"; message O { a.Item item = 1; }'
    plan = plan_protobuf(text, [("item.proto", item)]).message((0,))
    assert describe_columns(plan.kind) == "item struct<sku: string>"
    with pytest.raises(UnreadableSchema):
        plan_protobuf("message {", [])
