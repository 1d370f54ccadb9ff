"""Clients of a broker on a `HeldLoop`: plain blocking sockets, which are no part of what is counted."""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import fields, is_dataclass
from typing import Any

from bench.http_load import response_length
from tiered.errors import Code
from tiered_api.kafka.client.client import code_from_number
from tiered_api.kafka.protocol.apis import ALL_APIS
from tiered_api.kafka.protocol.codec import decode, encode
from tiered_api.kafka.protocol.headers import decode_response_header, encode_request_header
from tiered_api.kafka.protocol.schema import Message


class Connection:
    """One connection to a broker."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._received = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, request: bytes) -> None:
        assert self._socket.send(request) == len(request)

    def close(self) -> None:
        self._socket.close()

    def _receive(self) -> bytes:
        """Returns all bytes that came and were not taken."""
        try:
            while some := self._socket.recv(1 << 20):
                self._received += some
        except BlockingIOError:
            pass
        return self._received


class HttpConnection(Connection):
    def take_reply(self) -> bool:
        """True if a whole reply came: it is taken."""
        received = self._receive()
        size = response_length(received)
        self._received = received[size:]
        return size > 0


class KafkaConnection(Connection):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._expected: deque[tuple[type[Message], int]] = deque()
        self.reply: Any = None
        """The last reply."""

    def frame(self, request: Message, reply: type[Message], version: int) -> bytes:
        """Returns a whole request, and expects its reply."""
        head = encode_request_header(ALL_APIS[type(request).spec.key], version, 0, "counts")
        body = encode(request, version)
        self._expected.append((reply, version))
        return (len(head) + len(body)).to_bytes(4, "big") + head + body

    def take_reply(self) -> bool:
        """True if a whole reply came: it is taken and decoded."""
        received = self._receive()
        size = 4 + int.from_bytes(received[:4], "big")
        if len(received) < max(size, 5):
            return False
        table, version = self._expected.popleft()
        frame, self._received = received[4:size], received[size:]
        _, position = decode_response_header(ALL_APIS[table.spec.key], version, frame)
        self.reply = decode(table, version, frame, position)
        return True


def codes(value: Any) -> set[Code]:
    """Returns the error codes of a reply and of all that is in it."""
    found: set[Code] = set()
    if is_dataclass(value):
        for field in fields(value):
            inner = getattr(value, field.name)
            found |= {code_from_number(inner)} if field.name.endswith("error_code") else codes(inner)
    elif isinstance(value, list):
        for each in value:
            found |= codes(each)
    return found - {Code.NONE}
