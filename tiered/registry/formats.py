"""The formats by their names. Each needs a library of the extra `registry`, which is imported for its first schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from tiered.registry.compatibility import find_differences
from tiered.registry.refusals import invalid_schema
from tiered.registry.registration import Plan, Resolved
from tiered.registry.schema import AVRO, JSON, PROTOBUF, Schema

_MODULES = {AVRO: "avro", JSON: "json_schema", PROTOBUF: "protobuf"}


class Format(Protocol):
    """A format: functions of its module."""

    def make_canonical(self, text: str, *, normalize: bool = False) -> str: ...
    def parse(self, text: str, references: Sequence[tuple[str, str]]) -> Any: ...
    def list_record_names(self, parsed: Any, /) -> list[str]: ...
    def can_read(self, reader: Any, writer: Any, /) -> list[str]: ...


def find_format(kind: str) -> Format:
    """Returns a format. Raises `RegistryRefused` if there is none of that name, or if its library is missing."""
    module = _MODULES.get(kind)
    if module is None:
        raise invalid_schema(f"there is no schema type {kind[:40]!r}; there are {', '.join(_MODULES)}")
    try:
        return cast(Format, import_module(f"tiered.registry.{module}"))
    except ModuleNotFoundError as error:
        why = f"this broker cannot read {kind} schemas, because {error.name} is not installed"
        raise invalid_schema(f"{why}: pip install 'tiered[registry]'") from None


def make_canonical(schema: Schema, *, normalize: bool) -> Schema:
    """Returns a schema in its canonical text. Raises `RegistryRefused`."""
    return schema._replace(text=find_format(schema.kind).make_canonical(schema.text, normalize=normalize))


def check(new: Resolved, made: Plan) -> list[str]:
    """Returns why a schema is not compatible with the earlier ones of a plan. Raises `RegistryRefused` if it cannot be
    parsed."""
    kind = new.schema.kind
    found = find_format(kind)
    parsed = _parse(found, new)
    others = [version for version, each in made.earlier if each.schema.kind != kind]
    if others:
        return [f"version {others[0]} has another schema type"]
    earlier = [(version, _parse(found, each)) for version, each in made.earlier]
    can_read: Callable[[Any, Any], list[str]] = found.can_read
    return find_differences(parsed, earlier, made.comparison, can_read)


def _parse(found: Format, resolved: Resolved) -> Any:
    others = [name for name, each in resolved.references if each.kind != resolved.schema.kind]
    if others:
        raise invalid_schema(f"its reference {others[0]!r} has another schema type")
    return found.parse(resolved.schema.text, [(name, each.text) for name, each in resolved.references])


def parse(resolved: Resolved) -> Any:
    """Parses a schema with its references, in the form of its format. Raises `RegistryRefused`."""
    return _parse(find_format(resolved.schema.kind), resolved)


def list_record_names(resolved: Resolved) -> list[str]:
    """Returns the names of the records that a schema describes: of several messages in Protobuf, of one record in
    Avro, the title in JSON Schema. Raises `RegistryRefused` if it cannot be parsed."""
    found = find_format(resolved.schema.kind)
    return found.list_record_names(_parse(found, resolved))


def serialize(resolved: Resolved) -> str:
    """Returns a Protobuf schema as a serialized descriptor in base64. Raises `RegistryRefused`."""
    protobuf: Any = find_format(PROTOBUF)
    return str(protobuf.serialize(_parse(protobuf, resolved)))
