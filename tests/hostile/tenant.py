"""A tenant within its quota: it has a record to write every few ms, and prints the latencies of them when asked.

python -m tests.hostile.tenant HOST:PORT TOPIC [USER PASSWORD]   prints {"count", "p50", "p99", "worst", "failed"}, in
milliseconds, for each line of its input, and begins anew. With a user, it logs in over TLS.

It works as Kafka's producer does: up to five requests are on their way, and records that are due meanwhile go together
in the next one. A latency counts from the time at which the record was due, so that a reply that comes late does not
hide later ones. `failed` counts the requests that the broker did not take.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import sys
import time
from collections import deque
from functools import cache
from math import floor
from time import perf_counter as now
from typing import TypeVar

from tests.hostile.probe import ask, receive, summarize
from tiered.records.batch import encode_batch
from tiered.security.scram import ScramClient, ScramMechanism
from tiered_api.kafka.protocol.apis import ALL_APIS
from tiered_api.kafka.protocol.codec import decode, encode
from tiered_api.kafka.protocol.headers import decode_response_header, encode_request_header
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tiered_api.kafka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tiered_api.kafka.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tiered_api.kafka.protocol.schema import Message

T = TypeVar("T", bound=Message)
CLIENT_ID = "tenant"
ADDRESS = "127.0.0.78"
PAUSE_SECONDS = 0.005
IN_FLIGHT, BATCH_MAX = 5, 500
VALUE_BYTES = 1024
VERSION = 9


def make_frame(message: Message, version: int) -> bytes:
    """Returns a whole request."""
    body = encode(message, version)
    head = encode_request_header(ALL_APIS[type(message).spec.key], version, 1, CLIENT_ID)
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


def read_reply(table: type[T], version: int, reply: bytes) -> T:
    _, position = decode_response_header(ALL_APIS[table.spec.key], version, reply)
    return decode(table, version, reply, position)


@cache
def make_request(topic: str, count: int) -> bytes:
    """Returns a whole Produce request of a batch of so many records."""
    records = encode_batch([(int(time.time() * 1000), None, bytes(VALUE_BYTES), ())] * count)
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])]
    return make_frame(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), VERSION)


def log_in(connection: socket.socket, user: str, password: str) -> None:
    """Logs in by SCRAM-SHA-512."""
    hello = ask(connection, make_frame(SaslHandshakeRequest("SCRAM-SHA-512"), 1))
    assert read_reply(SaslHandshakeResponse, 1, hello).error_code == 0
    machine = ScramClient(ScramMechanism.SHA_512, user, password, "nonce-of-the-tenant")
    message = machine.make_first()
    for _ in range(2):
        reply = read_reply(
            SaslAuthenticateResponse, 2, ask(connection, make_frame(SaslAuthenticateRequest(message), 2))
        )
        assert reply.error_code == 0, reply.error_message
        message = machine.step(reply.auth_bytes)


def main(address: str, topic: str, *login: str) -> None:
    host, port = address.rsplit(":", 1)
    plain = socket.create_connection((host, int(port)), 60, (ADDRESS, 0))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with trusting().wrap_socket(plain) if login else plain as connection:
        if login:
            log_in(connection, *login)
        waits: list[float] = []
        failed, sent = 0, deque[tuple[float, int]]()
        due = now() + PAUSE_SECONDS
        while True:
            is_full = len(sent) == IN_FLIGHT
            found = select.select([sys.stdin, connection], [], [], None if is_full else max(0.0, due - now()))[0]
            has_reply = connection in found
            while has_reply:
                reply = receive(connection, int.from_bytes(receive(connection, 4), "big"))
                first, count = sent.popleft()
                waits += ((now() - first - number * PAUSE_SECONDS) * 1e3 for number in range(count))
                parsed = read_reply(ProduceResponse, VERSION, reply)
                failed += parsed.responses[0].partition_responses[0].error_code != 0
                has_reply = isinstance(connection, ssl.SSLSocket) and connection.pending() > 0
            if sys.stdin in found:
                if not sys.stdin.readline():
                    return
                print(json.dumps({**summarize(waits), "failed": failed}), flush=True)
                waits.clear()
                failed, due = 0, now()
            count = min(floor((now() - due) / PAUSE_SECONDS) + 1, BATCH_MAX)
            if count > 0 and len(sent) < IN_FLIGHT:
                connection.sendall(make_request(topic, count))
                sent.append((due, count))
                due += count * PAUSE_SECONDS


@cache
def trusting() -> ssl.SSLContext:
    """Returns a context that accepts any certificate."""
    found = ssl.create_default_context()
    found.check_hostname, found.verify_mode = False, ssl.CERT_NONE
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
