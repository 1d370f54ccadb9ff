"""Two other codecs of the same protocol behind one interface: they decode bytes and encode the result again.

An oracle returns plain values in wire order (lists, texts, numbers), so that its field names do not matter. kio aborts
the process on hostile lengths: it gets only bytes that our codec wrote.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.consumer.metadata
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import kio.index
import kio.serial
from kafka.protocol.data_container import DataContainer
from kio.static.constants import EntityType

from tiered.ids import encode_uuid
from tiered_api.kafka.protocol.schema import FIRST_PRIVATE_TAG, ZERO_ID, FieldSpec, Message, field_specs

Answer = tuple[Any, bytes]
"""The plain value that an oracle read, and the bytes that it wrote for that value."""


def plain(value: Any, version: int) -> Any:
    """Returns one of our messages as plain values, without the fields that the version lacks."""
    if isinstance(value, list):
        return [plain(each, version) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return [plain(getattr(value, row.name), version) for row in _rows(type(value), version)]
    return value


def _rows(table: type[Any], version: int) -> list[FieldSpec]:
    known = (row for row in field_specs(table) if row.tag < FIRST_PRIVATE_TAG)
    return [row for row in known if version in row.versions or version in row.tagged]


def decode_with_kio(table: type[Message], version: int, body: bytes) -> Answer:
    """Returns the values and bytes of kio."""
    read, write = _kio(table, version)
    made, size = read(body, 0)
    assert size == len(body)
    out = io.BytesIO()
    write(out, made)
    return _kio_plain(made), out.getvalue()


def _kio(table: type[Message], version: int) -> tuple[Callable[..., Any], Callable[..., None]]:
    name, _, word = re.sub(r"(Request|Response)?$", r" \1", table.__name__, count=1).partition(" ")
    kind: Any = {"Request": EntityType.request, "Response": EntityType.response, "": EntityType.data}[word.strip()]
    entity = kio.index.load_entity_schema(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(), version, kind)
    return kio.serial.entity_reader(entity), kio.serial.entity_writer(entity)


KIO_NONE = {"uuid": ZERO_ID, "datetime_i64": -1}
"""Values that kio calls None though the wire has a value for them."""


def _kio_plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_kio_plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        held = [(getattr(value, each.name), each.metadata.get("kafka_type", "")) for each in fields(value)]
        return [KIO_NONE[kind] if each is None and kind in KIO_NONE else _kio_plain(each) for each, kind in held]
    if isinstance(value, UUID):
        return encode_uuid(value)
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return value.value if isinstance(value, Enum) else value


KAFKA_PYTHON = (
    kafka.protocol.admin,
    kafka.protocol.consumer,
    kafka.protocol.consumer.metadata,
    kafka.protocol.metadata,
    kafka.protocol.producer,
    kafka.protocol.sasl,
)


def decode_with_kafka_python(table: type[Message], version: int, body: bytes) -> Answer:
    """Returns the values and bytes of kafka-python."""
    other = next(getattr(module, table.__name__) for module in KAFKA_PYTHON if hasattr(module, table.__name__))
    # It has what members of groups tell each other begin with the version, which is not in the tables.
    prefix = b"" if table.spec.key >= 0 else version.to_bytes(2, "big")
    made = other.decode(prefix + body, version=version)
    made._header = None
    written = bytes(made.encode(version=version))
    assert written.startswith(prefix)
    values = _kafka_python_plain(made, table, version)
    return values, written[len(prefix) :]


def _kafka_python_plain(value: Any, table: type[Any] | None, version: int) -> Any:
    if isinstance(value, list | tuple):
        return [_kafka_python_plain(each, table, version) for each in value]
    if isinstance(value, DataContainer) and table is not None:
        there = [each for each in value._struct._fields if each.for_version_q(version)]
        ours = _rows(table, version)
        assert len([each for each in there if each.name != "version"]) == len(ours), (there, ours)
        values = [getattr(value, each.name) for each in there if each.name != "version"]
        return [
            # For it what is not there under its tag is None, and so is the default set of operations.
            absent(row, version)
            if each is None and version not in row.nullable
            else _kafka_python_plain(each, row.of, version)
            for each, row in zip(values, ours, strict=True)
        ]
    if isinstance(value, set):
        return _operations_number(sum(1 << bit for bit in value))
    return encode_uuid(value) if isinstance(value, UUID) else value


def _operations_number(bits: int) -> int:
    """Returns the number of 32 bits for a set of operations, which kafka-python decodes to a set."""
    return bits - (1 << 32) if bits >> 31 else bits


def absent(row: FieldSpec, version: int) -> Any:
    """Returns the plain default of a field."""
    return plain(row.of(), version) if row.of and not row.is_array else row.default
