"""Tests of a connection that breaks under a request before the client can notice it."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from tests.scenario import run_alone, run_by
from tests.unit.kafka.scripted import answer_frame
from tiered.errors import Unavailable
from tiered.system.network import SocketNet
from tiered_api.kafka.client.connection import open_connection
from tiered_api.kafka.protocol.apis import APIS
from tiered_api.kafka.protocol.headers import decode_request_header
from tiered_api.kafka.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataResponse

SECONDS = 120.0
RESET = struct.pack("ii", 1, 0)
"""Socket option: a socket without linger time ends with a reset."""


class Breaking:
    """A broker that replies to ApiVersions, and resets the connection on request."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._break = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def end(self) -> None:
        """Returns when the connection is reset."""
        self._break.set()
        self._thread.join(SECONDS)

    def _serve(self) -> None:
        with self._socket, self._socket.accept()[0] as client:
            header = decode_request_header(memoryview(client.recv(4096))[4:])
            known = [ApiVersion(key, api.low, api.high) for key, api in APIS.items()]
            client.sendall(answer_frame(ApiVersionsResponse(api_keys=known), header.version, header.correlation_id))
            self._break.wait(SECONDS)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


@run_by(run_alone)
async def test_request_on_a_broken_connection_is_unavailable() -> None:
    broker = Breaking()
    link = await open_connection(SocketNet(), "127.0.0.1", broker.port, "test", SECONDS)
    broker.end()  # the loop does not run meanwhile: nobody has read that the connection is gone
    with pytest.raises(Unavailable):
        await link.send(MetadataRequest([]), MetadataResponse, SECONDS)
    assert link.closed is not None
