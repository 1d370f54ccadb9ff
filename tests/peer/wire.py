"""One blocking connection to a broker, ours or Kafka: requests and replies as messages."""

from __future__ import annotations

import select
import socket
import struct
from types import TracebackType
from typing import TypeVar

from tiered_api.kafka.protocol.apis import APIS, Api
from tiered_api.kafka.protocol.codec import decode, encode
from tiered_api.kafka.protocol.headers import encode_request_header
from tiered_api.kafka.protocol.schema import Message

R = TypeVar("R", bound=Message)
SECONDS = 120.0


class Wire:
    """A connection. A request is sent in a version; its reply may be read later."""

    def __init__(self, address: str, client_id: str = "wire") -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), SECONDS)
        self._client_id = client_id
        self._sent: list[tuple[Api, int]] = []
        self._number = 0

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, message: Message, version: int | None = None) -> None:
        """Sends a request without waiting. Uses the newest version of the API if none is given."""
        api = next(api for api in APIS.values() if api.request_type is type(message))
        version = api.high if version is None else version
        self._number += 1
        frame = encode_request_header(api, version, self._number, self._client_id) + encode(message, version)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        self._sent.append((api, version))

    def has_reply(self, seconds: float = 0.0) -> bool:
        """True if a reply has begun to arrive."""
        waiting = select.poll()  # select() refuses descriptors above 1,023
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(seconds * 1000))

    def receive(self, kind: type[R]) -> R:
        """Returns the reply to the oldest request without one."""
        api, version = self._sent.pop(0)
        assert api.response_type is kind
        (size,) = struct.unpack(">i", self._exactly(4))
        frame = self._exactly(size)
        return decode(kind, version, frame, 5 if api.is_flexible(version) else 4)

    def ask(self, message: Message, kind: type[R], version: int | None = None) -> R:
        """Sends a request and returns its reply."""
        self.send(message, version)
        return self.receive(kind)

    def _exactly(self, count: int) -> bytes:
        got = bytearray()
        while len(got) < count:
            part = self._socket.recv(count - len(got))
            if not part:
                raise ConnectionError(f"closed after {len(got)} of {count} bytes")
            got += part
        return bytes(got)
