"""Brokers that reply as a test defines, on any Net port: a function for each type of request makes the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from tiered.errors import Unavailable
from tiered.ports import Listener, Net, Stream
from tiered_api.kafka.protocol.apis import APIS
from tiered_api.kafka.protocol.codec import decode, encode
from tiered_api.kafka.protocol.headers import decode_request_header
from tiered_api.kafka.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from tiered_api.kafka.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tiered_api.kafka.protocol.schema import Message

HANG_UP = b"hang up"
"""Instead of a reply: the broker closes the connection."""
SILENCE = b""
"""Instead of a reply: the broker sends nothing."""


class Delayed(NamedTuple):
    """A reply that leaves after some seconds."""

    message: Message
    seconds: float


Answer = Message | bytes | Delayed
"""A message, or bytes that are sent unchanged."""


class ReceivedRequest(NamedTuple):
    """A request as it arrived."""

    message: Any
    version: int
    connection: int


class Scripted:
    """One broker. `script` maps types of requests to functions; `received` lists the requests so far."""

    def __init__(self, node_id: int = 1) -> None:
        self.node_id = node_id
        self.script: dict[type[Message], Callable[[Any, int], Answer]] = {ApiVersionsRequest: self._versions}
        self.offered = {key: (api.request_type.spec.versions.low, api.high) for key, api in APIS.items()}
        self.received: list[ReceivedRequest] = []
        self.connections: list[_Connection] = []
        self._listener: Listener | None = None

    async def start(self, net: Net, host: str, port: int = 0) -> None:
        self._listener = await net.listen(host, port, self._on_connection)
        self.host, self.port = host, self._listener.port

    def stop(self) -> None:
        """Ends all connections and refuses new ones."""
        if self._listener is not None:
            self._listener.close()
        self._listener = None
        for connection in self.connections:
            connection.close()

    def count(self, kind: type[Message]) -> int:
        """Returns how many requests of a type have arrived."""
        return sum(isinstance(each.message, kind) for each in self.received)

    def set_leaders(self, topic: str, *brokers: Scripted) -> None:
        """Answers Metadata so that these brokers are the cluster, and the n-th of them leads partition n of the
        topic."""

        def answer(request: MetadataRequest, version: int) -> MetadataResponse:
            partitions = [
                MetadataResponsePartition(
                    partition_index=number, leader_id=broker.node_id, replica_nodes=[], isr_nodes=[]
                )
                for number, broker in enumerate(brokers)
            ]
            nodes = {broker.node_id: broker for broker in (self, *brokers)}
            return MetadataResponse(
                cluster_id="cluster",
                controller_id=self.node_id,
                brokers=[
                    MetadataResponseBroker(node_id=node, host=each.host, port=each.port) for node, each in nodes.items()
                ],
                topics=[MetadataResponseTopic(name=topic, partitions=partitions)],
            )

        self.script[MetadataRequest] = answer

    def _versions(self, request: ApiVersionsRequest, version: int) -> Answer:
        keys = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in self.offered.items()]
        return ApiVersionsResponse(api_keys=keys)

    def _on_connection(self, stream: Stream) -> None:
        self.connections.append(_Connection(self, stream, len(self.connections)))


class _Connection:
    """Reads whole frames and writes replies. Replies are so small that a socket takes them at once."""

    def __init__(self, broker: Scripted, stream: Stream, number: int) -> None:
        self._broker = broker
        self._stream = stream
        self._number = number
        self._data = bytearray()
        self._out = b""
        self._is_open = True
        stream.on_readable(self._readable)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._stream.close()

    def send(self, data: bytes) -> None:
        self._out += data
        self._writable()

    def _writable(self) -> None:
        while self._out and self._is_open:
            sent = self._stream.sendmsg([self._out])
            if sent is None:
                self._stream.on_writable(self._writable)
                return
            self._out = self._out[sent:]
        if self._is_open:
            self._stream.on_writable(None)

    def _readable(self) -> None:
        buffer = memoryview(bytearray(1 << 16))
        while self._is_open:
            try:
                got = self._stream.recv_into(buffer)
            except Unavailable:
                got = 0
            if got is None:
                break
            if got == 0:
                self.close()
            self._data += buffer[:got]
        while self._is_open and len(self._data) >= 4:
            size = int.from_bytes(self._data[:4], "big")
            if len(self._data) < 4 + size:
                break
            frame = bytes(self._data[4 : 4 + size])
            del self._data[: 4 + size]
            self._answer(frame)

    def _answer(self, frame: bytes) -> None:
        header = decode_request_header(frame)
        key, version = header.key, header.version
        table = APIS[key].request_type
        message = decode(table, version, frame, header.position)
        self._broker.received.append(ReceivedRequest(message, version, self._number))
        made = self._broker.script[table](message, version)
        if made is HANG_UP:
            self.close()
        elif isinstance(made, bytes):
            self.send(made)
        elif isinstance(made, Delayed):
            frame = answer_frame(made.message, version, header.correlation_id)
            asyncio.get_running_loop().call_later(made.seconds, self.send, frame)
        else:
            self.send(answer_frame(made, version, header.correlation_id))


def answer_frame(message: Message, version: int, correlation_id: int) -> bytes:
    """Returns a reply as bytes on the wire, with its length."""
    tags = b"\0" if version in message.spec.flexible and message.spec.key != ApiVersionsRequest.spec.key else b""
    data = correlation_id.to_bytes(4, "big") + tags + encode(message, version)
    return len(data).to_bytes(4, "big") + data
