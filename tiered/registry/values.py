"""Keys and values of records by their schemas: JSON to framed bytes and back."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import orjson

from tiered.registry import formats
from tiered.registry.record_validation import ID_BYTES
from tiered.registry.registration import Resolved
from tiered.registry.schema import AVRO, JSON

FORM_KINDS = {"avro": AVRO, "jsonschema": JSON, "protobuf": "PROTOBUF"}
"""The formats of schemas by the names that the REST Proxy gives them."""


class Codec(Protocol):
    """The encoding of one schema."""

    def encode(self, text: bytes) -> bytes:
        """Returns the bytes of a JSON text. Raises `ValueError` if it is not of the schema."""

    def decode(self, data: bytes) -> Any:
        """Returns bytes as a value for JSON. Raises `ValueError` if they are not of the schema."""


class SchemaCodec(NamedTuple):
    """A schema by its id: its format, the names of its records, and its encoding."""

    id: int
    kind: str
    record_names: tuple[str, ...]
    codec: Codec

    def encode(self, text: bytes) -> bytes:
        """Returns a JSON text as bytes with the frame in front. Raises `ValueError`."""
        return b"\0" + self.id.to_bytes(4, "big") + self.codec.encode(text)


class _AvroCodec:
    def __init__(self, parsed: Any) -> None:
        self._schema = parsed

    def encode(self, text: bytes) -> bytes:
        from tiered.registry.avro_values import encode  # needs the library

        return encode(self._schema, orjson.loads(text))

    def decode(self, data: bytes) -> Any:
        from tiered.registry.avro_values import decode

        return decode(self._schema, data)


class _JsonCodec:
    """JSON Schema: the value is its own JSON. It is not validated, as at the REST Proxy: a schema may have patterns
    whose search never ends."""

    def encode(self, text: bytes) -> bytes:
        return text

    def decode(self, data: bytes) -> Any:
        return orjson.loads(data)


def make_codec(id: int, resolved: Resolved) -> SchemaCodec:
    """Returns the encoding of a schema. Takes as long as it is large, so a thread calls this. Raises
    `RegistryRefused`."""
    kind = resolved.schema.kind
    parsed = formats.parse(resolved)
    names = tuple(formats.find_format(kind).list_record_names(parsed))
    codec: Codec
    if kind == AVRO:
        codec = _AvroCodec(parsed)
    elif kind == JSON:
        codec = _JsonCodec()
    else:
        from tiered.registry.protobuf_values import ProtobufValues

        codec = ProtobufValues(parsed.pool, parsed.pool.FindFileByName(parsed.file.name))
    return SchemaCodec(id, kind, names, codec)


class SchemaUnread(LookupError):
    """The schema of a value is not loaded yet."""

    def __init__(self, id: int) -> None:
        super().__init__(id)
        self.id = id


def split_id(data: bytes) -> tuple[int, bytes]:
    """Returns the id in front of a value, and its own bytes. Raises `ValueError` without one."""
    if len(data) < ID_BYTES or data[0]:
        raise ValueError("no zero byte with a schema id is in front")
    return int.from_bytes(data[1:ID_BYTES], "big"), data[ID_BYTES:]


class FramedValues:
    """Shows framed values of one format as JSON, by the schemas that are `known`: a text in place of a codec says why
    there is none."""

    def __init__(self, form: str) -> None:
        self._kind = FORM_KINDS[form]
        self.known: dict[int, SchemaCodec | str] = {}

    def __call__(self, data: bytes) -> Any:
        """Returns a value for JSON. Raises `ValueError` if it cannot be shown, `SchemaUnread` if its schema is not
        loaded."""
        id, own = split_id(data)
        found = self.known.get(id)
        if found is None:
            raise SchemaUnread(id)
        if isinstance(found, str):
            raise ValueError(found)
        if found.kind != self._kind:
            raise ValueError(f"schema id {id} is of {found.kind}")
        return found.codec.decode(own)
