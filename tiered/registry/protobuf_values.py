"""Values of Protobuf: from JSON to bytes and back, by the library's JSON mapping.

The path of the message in its file stands in front of its bytes, as Confluent's serializers write it: the number of
indexes and the indexes, or a zero for the first message.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict, Parse, ParseError, SerializeToJsonError
from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message_factory import GetMessageClass

PATH_MAX = 60
_FIRST = b"\0"


class ProtobufValues:
    """The messages of one file. Values that are encoded are of its first message."""

    def __init__(self, pool: DescriptorPool, file: FileDescriptor) -> None:
        self._pool = pool
        self._messages = list(file.message_types_by_name.values())

    def encode(self, text: bytes) -> bytes:
        """Returns the bytes of JSON. Raises `ValueError` if it is not of the message."""
        if not self._messages:
            raise ValueError("the schema has no message")
        if not text.startswith(b"{"):
            raise ValueError("a message is written as an object")
        message = GetMessageClass(self._messages[0])()
        try:
            return _FIRST + bytes(Parse(text, message, descriptor_pool=self._pool).SerializeToString())
        except (ParseError, EncodeError) as error:
            raise ValueError(str(error)) from None

    def decode(self, data: bytes) -> Any:
        """Returns bytes as a value for JSON, with the names of the file. Raises `ValueError` if they are none."""
        path, at = _read_path(data)
        messages = self._messages
        descriptor = None
        for index in path:
            if not 0 <= index < len(messages):
                raise ValueError(f"its schema has no message {path}")
            descriptor = messages[index]
            messages = list(descriptor.nested_types)
        try:
            message = GetMessageClass(descriptor).FromString(data[at:])
            return MessageToDict(
                message,
                always_print_fields_with_no_presence=True,
                preserving_proto_field_name=True,
                descriptor_pool=self._pool,
            )
        except (DecodeError, SerializeToJsonError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"not of its Protobuf schema: {error}") from None


def _read_path(data: bytes) -> tuple[list[int], int]:
    """Returns the path of the message, and where its bytes begin."""
    count, at = _read_number(data, 0)
    if not 0 <= count <= PATH_MAX:
        raise ValueError("the path of its message is no path")
    path = []
    for _ in range(count):
        index, at = _read_number(data, at)
        path.append(index)
    return path or [0], at


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("the path of its message ends early")
        raw |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
