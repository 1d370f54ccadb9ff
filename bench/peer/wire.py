"""Hand-written requests that must not wait for a client's own timers: a first response, a repeated frame."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable
from typing import TypeVar

from tiered.records.batch import encode_batch
from tiered_api.kafka.protocol import codec
from tiered_api.kafka.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from tiered_api.kafka.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tiered_api.kafka.protocol.primitives import varint
from tiered_api.kafka.protocol.schema import Message

T = TypeVar("T", bound=Message)

TIMEOUT_SECONDS = 10.0
CLIENT = b"bench"
PRODUCE_VERSION = 9
CREATE_TOPICS_VERSION = 7
CREATE_ACLS_VERSION = 3
ALTER_CLIENT_QUOTAS_VERSION = 1
ACKS_LEADER = 1


def _short(text: bytes) -> bytes:
    """Encodes a compact string of fewer than 127 bytes."""
    assert len(text) < 127
    return bytes([len(text) + 1]) + text


def _frame(key: int, version: int, body: bytes, *, flexible: bool) -> bytes:
    header = struct.pack(">hhih", key, version, 1, len(CLIENT)) + CLIENT + (b"\0" if flexible else b"")
    return struct.pack(">i", len(header) + len(body)) + header + body


def api_versions_request() -> bytes:
    """Encodes ApiVersions v0, which every broker answers."""
    return _frame(18, 0, b"", flexible=False)


def produce_request(topic: str, partition: int, value: bytes) -> bytes:
    """Encodes a Produce request of one record, acks=1."""
    return produce_batch_request(topic, partition, encode_batch([(int(time.time() * 1000), None, value, ())]))


def produce_batch_request(topic: str, partition: int, batch: bytes) -> bytes:
    """Encodes a Produce request of one batch, acks=1."""
    body = b"\0" + struct.pack(">hi", ACKS_LEADER, 30_000)
    body += b"\x02" + _short(topic.encode()) + b"\x02" + struct.pack(">i", partition)
    body += varint(len(batch) + 1) + batch + b"\0\0\0"
    return _frame(0, PRODUCE_VERSION, body, flexible=True)


def produce_error_offset(topic: str) -> int:
    """Returns the position of the error code in the whole response to `produce_request`."""
    return 4 + 4 + 1 + 1 + len(_short(topic.encode())) + 1 + 4


def send_request(port: int, frame: bytes, timeout: float = TIMEOUT_SECONDS) -> bytes:
    """Sends one request on a new connection. Returns the whole response; raises OSError if there is none."""
    with socket.create_connection(("127.0.0.1", port), timeout) as connection:
        return exchange(connection, frame)


def exchange(connection: socket.socket, frame: bytes) -> bytes:
    """Sends one request on a connection. Returns the whole response; raises OSError if there is none."""
    connection.sendall(frame)
    answer = b""
    while len(answer) < 4 or len(answer) < 4 + struct.unpack_from(">i", answer)[0]:
        data = connection.recv(65536)
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        answer += data
    return answer


def is_acknowledged(port: int, frame: bytes, error_offset: int) -> bool:
    """True if the broker acknowledges this produce request now."""
    try:
        answer = send_request(port, frame)
    except OSError:
        return False
    code: int = struct.unpack_from(">h", answer, error_offset)[0]
    return code == 0


def create_topic(port: int, name: str, replicas: int, timeout: float) -> bool:
    """Creates a topic of one partition by a request to any broker. Returns true if it was created."""
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=replicas)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=int(timeout * 1000))
    try:
        response = call(port, request, CREATE_TOPICS_VERSION, CreateTopicsResponse, timeout)
    except OSError:
        return False
    return response.topics[0].error_code == 0


def call(port: int, request: Message, version: int, response: type[T], timeout: float = TIMEOUT_SECONDS) -> T:
    """Sends one request of a flexible version on a new connection. Raises OSError if there is no response."""
    body = bytes(codec.encode(request, version))
    answer = send_request(port, _frame(type(request).spec.key, version, body, flexible=True), timeout)
    return codec.decode(response, version, memoryview(answer)[9:])


def create_acls(port: int, *rules: AclCreation) -> None:
    """Creates rules. Raises RuntimeError if the broker refuses one."""
    done = call(port, CreateAclsRequest(list(rules)), CREATE_ACLS_VERSION, CreateAclsResponse)
    _check(each.error_message or each.error_code for each in done.results)


def set_quotas(port: int, kind: str, name: str, **quotas: float) -> None:
    """Sets quotas of a user or of a client id. Raises RuntimeError if the broker refuses them."""
    entity, values = [EntityData(kind, name)], [OpData(key, value) for key, value in quotas.items()]
    request = AlterClientQuotasRequest([EntryData(entity, values)])
    done = call(port, request, ALTER_CLIENT_QUOTAS_VERSION, AlterClientQuotasResponse)
    _check(each.error_message or each.error_code for each in done.entries)


def _check(errors: Iterable[object]) -> None:
    found = [each for each in errors if each]
    if found:
        raise RuntimeError(f"the broker refuses it: {found[0]}")
