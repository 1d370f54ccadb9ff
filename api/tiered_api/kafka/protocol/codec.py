"""Decodes and encodes messages with functions that are compiled from the message tables at first use.

A field that a version lacks gets its default on decoding, and is skipped on encoding. So a handler fills in both names
and ids, and each version carries the ones that it has. Kafka raises an error for some such fields; here the caller must
choose a version that carries all that matters.
"""

from __future__ import annotations

import struct
from typing import TypeVar

from tiered_api.kafka.protocol.decoder import Decoder, compile_decoder
from tiered_api.kafka.protocol.encoder import Encoder, compile_encoder
from tiered_api.kafka.protocol.primitives import Malformed
from tiered_api.kafka.protocol.schema import FieldType, Message, field_specs

__all__ = ["Malformed", "decode", "encode"]

T = TypeVar("T", bound=Message)

_decoders: dict[tuple[type[Message], int], Decoder] = {}
_encoders: dict[tuple[type[Message], int], Encoder] = {}
_keeps_views: dict[type[Message], bool] = {}


def decode(table: type[T], version: int, frame: memoryview | bytes, position: int = 0) -> T:
    """Returns the message that fills `frame` from `position` to its end. Raises `Malformed` if the bytes are no such
    message.

    Records are views of `frame`; all else is copied.
    """
    read = _decoders.get((table, version)) or _new_decoder(table, version)
    # Decoding from bytes is twice as fast as from a memoryview. It is worth a copy, unless records must stay in
    # place.
    data = memoryview(frame) if _keeps_views[table] else bytes(frame)
    try:
        made: T = read(data, position, len(data))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"{table.__name__} version {version}: {error}") from None
    return made


def encode(message: Message, version: int) -> bytes:
    """Returns the bytes of a message. Raises `Malformed` if a value has no encoding: a null, an invalid id, a number
    too large."""
    table = type(message)
    write = _encoders.get((table, version)) or _new_encoder(table, version)
    try:
        return write(message)
    except Malformed:
        raise
    except (struct.error, TypeError, AttributeError, ValueError) as error:
        raise Malformed(f"{table.__name__} version {version}: {error}") from error


def _new_decoder(table: type[Message], version: int) -> Decoder:
    _check_version(table, version)
    _keeps_views[table] = _has_records(table)
    made = _decoders[table, version] = compile_decoder(table, version)
    return made


def _new_encoder(table: type[Message], version: int) -> Encoder:
    _check_version(table, version)
    made = _encoders[table, version] = compile_encoder(table, version)
    return made


def _check_version(table: type[Message], version: int) -> None:
    if version not in table.spec.versions:
        raise Malformed(f"{table.__name__} has no version {version}")


def _has_records(table: type) -> bool:
    return any(
        row.kind is FieldType.RECORDS or (row.of is not None and _has_records(row.of)) for row in field_specs(table)
    )
