"""Protobuf: descriptors of a schema, and compatibility by the rules of Confluent's registry.

A schema is a `.proto` text, which the compiler of Protobuf reads, or a serialized `FileDescriptorProto` in base64, as
most serializers register it. The library `protobuf` links descriptors; no library compares them, so that is ours.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from tiered.registry.json_text import check_length
from tiered.registry.protoc import compile_proto
from tiered.registry.refusals import invalid_schema

DEPTH_MAX = 60
TYPES_MAX = 5_000
DIFFERENCES_MAX = 20
BUILTIN: dict[str, bytes] = {
    each.DESCRIPTOR.name: each.DESCRIPTOR.serialized_pb
    for each in (
        any_pb2, source_context_pb2, type_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2,
        struct_pb2, timestamp_pb2, wrappers_pb2,
    )
}  # fmt: skip
"""The files that every compiler has."""

_Field = descriptor_pb2.FieldDescriptorProto
_GROUPS = (
    (_Field.TYPE_INT32, _Field.TYPE_INT64, _Field.TYPE_UINT32, _Field.TYPE_UINT64, _Field.TYPE_BOOL, _Field.TYPE_ENUM),
    (_Field.TYPE_SINT32, _Field.TYPE_SINT64),
    (_Field.TYPE_STRING, _Field.TYPE_BYTES),
    (_Field.TYPE_FIXED32, _Field.TYPE_SFIXED32),
    (_Field.TYPE_FIXED64, _Field.TYPE_SFIXED64),
)
_GROUP_OF = {kind: group[0] for group in _GROUPS for kind in group}
"""Types that read each other's bytes, by the first of each group."""
_WITH_LENGTH = (_Field.TYPE_STRING, _Field.TYPE_BYTES, _Field.TYPE_MESSAGE)


class Linked(NamedTuple):
    """The file of a schema, the messages of all its files by their full names, and the pool that has linked them."""

    file: Any
    messages: dict[str, Any]
    pool: Any


def make_canonical(text: str, *, normalize: bool = False) -> str:
    """Returns the text without space around it. A descriptor stays as it is; `normalize` serializes it anew."""
    check_length(text)
    descriptor = _decode(text)
    if descriptor is not None and normalize:
        return _encode(descriptor)
    return text.strip()


def parse(text: str, references: Sequence[tuple[str, str]]) -> Linked:
    """Parses a schema with the files that it imports. Raises `RegistryRefused`."""
    check_length(text)
    imports: dict[str, Any] = {}
    for name, each in references:
        imports[name] = _read(each, name, imports)
    file = _read(text, "", imports)
    pool = DescriptorPool()
    for name, data in BUILTIN.items():
        if name not in imports:
            _add(pool, data, name)
    for name, each in imports.items():
        _add(pool, each.SerializeToString(), name)
    _add(pool, file.SerializeToString(), "the schema")
    messages = {name: each for one in (*imports.values(), file) for name, each in _list_messages(one)}
    if len(messages) > TYPES_MAX:
        raise invalid_schema(f"it has more than {TYPES_MAX} messages")
    return Linked(file, messages, pool)


def list_record_names(linked: Linked) -> list[str]:
    """Returns the full names of the messages of a file: a record may be any of them."""
    return [name for name, _ in _list_messages(linked.file)]


def serialize(linked: Linked) -> str:
    """Returns the file of a schema as a serialized descriptor in base64."""
    return _encode(linked.file)


def _encode(descriptor: Any) -> str:
    return base64.b64encode(descriptor.SerializeToString(deterministic=True)).decode()


def _decode(text: str) -> Any:
    """Returns the descriptor of a base64 text; None for any other text."""
    try:
        descriptor = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, DecodeError, ValueError):
        return None
    return descriptor


def _read(text: str, name: str, imports: dict[str, Any]) -> Any:
    """Returns the descriptor of a file, under the name by which others import it."""
    descriptor = _decode(text)
    if descriptor is None:
        compiled = compile_proto(text, tuple((each, found.SerializeToString()) for each, found in imports.items()))
        descriptor = descriptor_pb2.FileDescriptorProto.FromString(compiled)
    if name:
        descriptor.name = name
    return descriptor


def _add(pool: DescriptorPool, data: bytes, what: str) -> None:
    try:
        pool.AddSerializedFile(data)
    except (TypeError, ValueError) as error:
        raise invalid_schema(f"{what}: {error}") from None


def _list_messages(file: Any) -> Iterator[tuple[str, Any]]:
    left = [(f"{file.package}." if file.package else "", each) for each in file.message_type]
    while left:
        prefix, message = left.pop()
        name = f"{prefix}{message.name}"
        yield name, message
        left += [(f"{name}.", each) for each in message.nested_type]


# -- compatibility ----------------------------------------------------------------------------------------------------


def can_read(reader: Linked, writer: Linked) -> list[str]:
    """Returns why a reader cannot read what a writer wrote; empty if it can."""
    if reader.file.package != writer.file.package:
        return [f"the package was {writer.file.package!r} and is {reader.file.package!r}"]
    return _Comparison(reader, writer).run()[:DIFFERENCES_MAX]


class _Comparison:
    def __init__(self, reader: Linked, writer: Linked) -> None:
        self._new, self._old = reader, writer
        self._found: list[str] = []
        names = (name for name, each in _list_messages(writer.file) if not each.options.map_entry)
        self._left = [(name, name) for name in names]
        self._seen = set(self._left)

    def run(self) -> list[str]:
        """Returns the differences of all messages of the writer, and of those that they use."""
        while self._left:
            was, now = self._left.pop()
            new = self._new.messages.get(now)
            if new is None:
                self._found.append(f"message {was} was removed")
            else:
                self._compare_messages(was, self._old.messages[was], new)
        return self._found

    def _compare_messages(self, name: str, old: Any, new: Any) -> None:
        before, after = ({each.number: each for each in one.field} for one in (old, new))
        for number, field in before.items():
            where = f"{name}.{field.name}"
            if number in after:
                self._compare_fields(where, field, after[number])
            elif field.label == _Field.LABEL_REQUIRED:
                self._found.append(f"{where} was required and was removed")
            elif (oneof := _oneof_of(old, field)) and any(
                _oneof_of(new, after[each.number])
                for each in old.field
                if each.number in after and _oneof_of(old, each) == oneof
            ):
                self._found.append(f"{where} was removed from oneof {oneof}")
        for number, field in after.items():
            if field.label == _Field.LABEL_REQUIRED and number not in before:
                self._found.append(f"{name}.{field.name} was added and is required")
        self._compare_oneofs(name, old, new, before)

    def _compare_oneofs(self, name: str, old: Any, new: Any, before: dict[int, Any]) -> None:
        """Finds oneofs of fields that could be set together before: a reader would keep one of them."""
        origins: dict[str, set[str]] = {}
        for field in new.field:
            oneof = _oneof_of(new, field)
            if oneof and field.number in before:
                origins.setdefault(oneof, set()).add(_oneof_of(old, before[field.number]) or f"field {field.number}")
        for oneof, each in origins.items():
            if len(each) > 1:
                self._found.append(f"oneof {oneof} of {name} has fields that could be set together")

    def _compare_fields(self, where: str, old: Any, new: Any) -> None:
        if new.label == _Field.LABEL_REQUIRED != old.label:
            self._found.append(f"{where} became required")
        was_map, is_map = self._map_entry(self._old, old), self._map_entry(self._new, new)
        if was_map is not None and is_map is not None:
            self._compare_messages(where, was_map, is_map)
            return
        if (was_map is None) != (is_map is None):
            self._found.append(f"{where} became a map, or was one")
            return
        if _GROUP_OF.get(old.type, old.type) != _GROUP_OF.get(new.type, new.type):
            self._found.append(f"{where} was {_show(old)} and is {_show(new)}")
            return
        if old.type == new.type == _Field.TYPE_MESSAGE:
            self._compare_named(where, old.type_name.lstrip("."), new.type_name.lstrip("."))
        is_repeated = [each.label == _Field.LABEL_REPEATED for each in (old, new)]
        if is_repeated[0] != is_repeated[1] and old.type not in _WITH_LENGTH:
            self._found.append(f"{where} became repeated, or was repeated")

    def _compare_named(self, where: str, was: str, now: str) -> None:
        """Compares two types of a field later. Types of one name may be in different packages."""
        if was.rpartition(".")[2] != now.rpartition(".")[2]:
            self._found.append(f"{where} was {was} and is {now}")
        elif was in self._old.messages and (was, now) not in self._seen:
            self._seen.add((was, now))
            self._left.append((was, now))

    @staticmethod
    def _map_entry(linked: Linked, field: Any) -> Any:
        found = linked.messages.get(field.type_name.lstrip(".")) if field.type == _Field.TYPE_MESSAGE else None
        return found if found is not None and found.options.map_entry else None


def _oneof_of(message: Any, field: Any) -> str:
    """Returns the name of the oneof of a field; empty for none. An optional field of proto3 is no oneof of the text."""
    if not field.HasField("oneof_index") or field.proto3_optional:
        return ""
    return str(message.oneof_decl[field.oneof_index].name)


def _show(field: Any) -> str:
    kind: str = _Field.Type.Name(field.type)
    return field.type_name.lstrip(".") or kind.removeprefix("TYPE_").lower()
