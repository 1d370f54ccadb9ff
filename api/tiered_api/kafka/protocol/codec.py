"""Decodes and encodes messages with functions that are compiled from the message tables at first use.

A field that a version lacks gets its default on decoding, and is skipped on encoding. So a handler fills in both names
and ids, and each version carries the ones that it has. Kafka raises an error for some such fields; here the caller must
choose a version that carries all that matters.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Any, TypeVar

from tiered_api.kafka.protocol.decoder import Decoder, PieceDecoder, compile_decoder, compile_piece_decoder
from tiered_api.kafka.protocol.encoder import Encoder, PieceEncoder, compile_encoder, compile_piece_encoder
from tiered_api.kafka.protocol.primitives import PIECE_ELEMENTS, Malformed
from tiered_api.kafka.protocol.schema import FieldType, Message, field_specs

__all__ = ["Malformed", "decode", "decode_in_pieces", "encode", "encode_in_pieces", "has_pieces"]

T = TypeVar("T", bound=Message)

_decoders: dict[tuple[type[Message], int], Decoder] = {}
_encoders: dict[tuple[type[Message], int], Encoder] = {}
_piece_decoders: dict[tuple[type[Message], int], PieceDecoder] = {}
_piece_encoders: dict[tuple[type[Message], int], PieceEncoder] = {}
_keeps_views: dict[type[Message], bool] = {}
_arrays: dict[type, tuple[tuple[str, bool], ...]] = {}


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


def decode_in_pieces(table: type[T], version: int, data: bytes, position: int = 0) -> Generator[None, None, T]:
    """Does the same as `decode`, and stops after each piece of many elements. The message is the generator's result."""
    read = _piece_decoders.get((table, version))
    if read is None:
        _check_version(table, version)
        read = _piece_decoders[table, version] = compile_piece_decoder(table, version)
    try:
        made: T = yield from read(data, position, len(data))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"{table.__name__} version {version}: {error}") from None
    return made


def encode_in_pieces(message: Message, version: int) -> Generator[None, None, bytes]:
    """Does the same as `encode`, and stops after each piece of many elements. The bytes are the generator's result."""
    table = type(message)
    write = _piece_encoders.get((table, version))
    if write is None:
        _check_version(table, version)
        write = _piece_encoders[table, version] = compile_piece_encoder(table, version)
    try:
        return (yield from write(message))
    except (struct.error, TypeError, AttributeError, ValueError) as error:
        raise Malformed(f"{table.__name__} version {version}: {error}") from error


def has_pieces(message: Message) -> bool:
    """True if the arrays of a message have more elements than one piece."""
    return _count_elements(message, PIECE_ELEMENTS) > PIECE_ELEMENTS


def _count_elements(item: Any, most: int) -> int:
    """Returns the number of elements below a struct, or a number above `most`."""
    count = 0
    for name, has_structs in _arrays_of(type(item)):
        elements = getattr(item, name) or ()
        count += len(elements)
        if has_structs:
            for each in elements:
                if count > most:
                    break
                count += _count_elements(each, most - count)
    return count


def _arrays_of(table: type) -> tuple[tuple[str, bool], ...]:
    """Returns the names of a struct's arrays that are no plain numbers, and if each has structs with such arrays."""
    found = _arrays.get(table)
    if found is None:
        found = _arrays[table] = tuple(
            (row.name, row.of is not None and bool(_arrays_of(row.of)))
            for row in field_specs(table)
            if row.is_array and row.kind in (FieldType.STRUCT, FieldType.STRING)
        )
    return found


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
