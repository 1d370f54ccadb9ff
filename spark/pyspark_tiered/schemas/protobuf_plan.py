"""Columns for a message of Protobuf. Pure.

A field that knows if it was set is NULL if it was not; others have their default. The fields of a oneof are columns of
their own. A message within itself becomes JSON, because no column can hold it, and so do `google.protobuf.Struct` and
its like.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark_tiered.schemas.avro_plan import BINARY, make_struct
from pyspark_tiered.schemas.unreadable import UnreadableSchema
from pyspark_tiered.typed.evolve import DEPTH_MAX, FIELDS_MAX
from pyspark_tiered.typed.kinds import (
    BOOLEAN,
    DOUBLE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    ColumnType,
    ListOf,
    MapOf,
    Scalar,
    StructOf,
    count_fields,
)

UNSIGNED = Scalar("decimal(20,0)")
TIMESTAMP_NAME = "google.protobuf.Timestamp"
JSON_NAMES = frozenset(f"google.protobuf.{name}" for name in ("Any", "Struct", "Value", "ListValue", "FieldMask"))
"""Messages whose fields say nothing by themselves."""
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
INDEXES_MAX = 32
"""Messages inside each other that a frame may name."""
_SCALARS = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), INT),
    **dict.fromkeys(("uint32", "fixed32", "int64", "sint64", "sfixed64"), LONG),
    **dict.fromkeys(("uint64", "fixed64"), UNSIGNED),
    **dict.fromkeys(("float", "double"), DOUBLE),
    "bool": BOOLEAN,
    "string": STRING,
    "bytes": BINARY,
    "enum": STRING,
}
_TYPE_NAMES = (
    *("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message"),
    *("bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)
"""Names of the types of fields by their numbers in descriptors."""


@dataclass(frozen=True)
class MessagePlan:
    """The columns of a message. `descriptor` is that of the library, and `fields` are in the order of the columns."""

    descriptor: Any
    fields: tuple[FieldPlan, ...]
    kind: StructOf


@dataclass(frozen=True)
class FieldPlan:
    """A field of a message. `item` is the plan of its messages, None for scalars and for text.

    `form`: plain, repeated or map. `value`: scalar, message, wrapper, timestamp or text, of the items or values.
    """

    name: str
    number: int
    form: str
    value: str
    type_name: str
    has_presence: bool
    kind: ColumnType
    descriptor: Any
    item: MessagePlan | None = None


@dataclass(frozen=True)
class ProtobufPlan:
    """The messages of a schema. `messages` are planned when the first value names them."""

    file: Any
    messages: dict[tuple[int, ...], MessagePlan] = field(default_factory=dict)

    def message(self, indexes: tuple[int, ...]) -> MessagePlan:
        """Returns the message at a path of indexes: the first one is that of a message of the file. Raises
        `UnreadableSchema`."""
        if indexes not in self.messages:
            found, inside = None, list(self.file.message_types_by_name.values())
            for at in indexes:
                if not 0 <= at < len(inside):
                    raise UnreadableSchema(f"it has no message {list(indexes)}")
                found, inside = inside[at], inside[at].nested_types
            if found is None:
                raise UnreadableSchema("a frame names no message")
            plan = _Planner().plan(found, 0, ())
            if count_fields(plan.kind) > FIELDS_MAX:
                raise UnreadableSchema(f"it has more than {FIELDS_MAX} fields")
            self.messages[indexes] = plan
        return self.messages[indexes]


def plan_protobuf(text: str, references: Sequence[tuple[str, str]]) -> ProtobufPlan:
    """Returns the messages of a schema: a descriptor in base64, or a text, which is compiled. `references` are the
    names and texts of the files that it imports. Raises `UnreadableSchema`."""
    from google.protobuf.descriptor_pool import DescriptorPool

    from tiered.registry.protobuf import BUILTIN, parse
    from tiered.registry.refusals import RegistryRefused

    pool = DescriptorPool()
    imports: list[tuple[str, str]] = []
    try:
        for name, each in references:
            linked = parse(each, imports)
            linked.file.name = name
            imports.append((name, base64.b64encode(linked.file.SerializeToString()).decode()))
        linked = parse(text, imports)
        names = {name for name, _ in imports}
        for name, data in BUILTIN.items():
            if name not in names:
                pool.AddSerializedFile(data)
        for _, each in imports:
            pool.AddSerializedFile(base64.b64decode(each))
        linked.file.name = linked.file.name or "schema.proto"
        pool.AddSerializedFile(linked.file.SerializeToString())
        return ProtobufPlan(pool.FindFileByName(linked.file.name))
    except RegistryRefused as why:
        raise UnreadableSchema(str(why)[:200]) from None
    except (TypeError, ValueError, KeyError, binascii.Error) as fault:
        raise UnreadableSchema(str(fault)[:200]) from None


class _Planner:
    def __init__(self) -> None:
        self._left = 4 * FIELDS_MAX

    def plan(self, message: Any, depth: int, around: tuple[str, ...]) -> MessagePlan:
        """Returns the plan of a message inside so many others."""
        inside = (*around, message.full_name)
        fields = tuple(self._plan_field(each, depth + 1, inside) for each in message.fields)
        return MessagePlan(message, fields, make_struct([(each.name, each.kind) for each in fields]))

    def _plan_field(self, each: Any, depth: int, around: tuple[str, ...]) -> FieldPlan:
        self._left -= 1
        if self._left < 0:
            raise UnreadableSchema(f"it has more than {FIELDS_MAX} fields")
        is_map = each.message_type is not None and each.message_type.GetOptions().map_entry
        of = each.message_type.fields_by_name["value"] if is_map else each
        value, kind, item = self._plan_value(of, depth, around)
        form = "map" if is_map else "repeated" if each.is_repeated else "plain"
        whole: ColumnType = MapOf(kind) if is_map else ListOf(kind) if form == "repeated" else kind
        type_name = _TYPE_NAMES[of.type]
        return FieldPlan(each.name, each.number, form, value, type_name, each.has_presence, whole, each, item)

    def _plan_value(self, of: Any, depth: int, around: tuple[str, ...]) -> tuple[str, ColumnType, MessagePlan | None]:
        if of.message_type is None:
            return "scalar", _SCALARS[_TYPE_NAMES[of.type]], None
        name = of.message_type.full_name
        if name == TIMESTAMP_NAME:
            return "timestamp", TIMESTAMP, None
        if name in WRAPPERS:
            inner = of.message_type.fields_by_name["value"]
            return "wrapper", _SCALARS[_TYPE_NAMES[inner.type]], None
        if name in JSON_NAMES or name in around or depth >= DEPTH_MAX:
            return "text", STRING, None
        plan = self.plan(of.message_type, depth, around)
        return "message", plan.kind, plan


def split_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Returns the indexes in front of a message, and where it begins. Raises `UnreadableSchema`."""
    count, at = _read_zigzag(data, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= INDEXES_MAX:
        raise UnreadableSchema("the frame names no message")
    found = []
    for _ in range(count):
        index, at = _read_zigzag(data, at)
        found.append(index)
    return tuple(found), at


def _read_zigzag(data: bytes, at: int) -> tuple[int, int]:
    raw = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        raw |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
    raise UnreadableSchema("the frame names no message")
