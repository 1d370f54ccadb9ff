"""A tenant within its quota: it writes a record every few ms on one connection, and prints its latencies when asked.

python -m tests.hostile.tenant HOST:PORT TOPIC   prints {"count", "p50", "p99", "worst"}, in milliseconds, for each line
of its input, and begins anew

A latency counts from the time at which the record was due, so that a reply that comes late does not hide later ones.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

from tests.hostile.probe import ask
from tiered.records.batch import encode_batch
from tiered_api.kafka.protocol.apis import ALL_APIS
from tiered_api.kafka.protocol.codec import encode
from tiered_api.kafka.protocol.headers import encode_request_header
from tiered_api.kafka.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

CLIENT_ID = "tenant"
ADDRESS = "127.0.0.78"
PAUSE_SECONDS = 0.005
VALUE_BYTES = 1024
VERSION = 9


def make_request(topic: str) -> bytes:
    """Returns a whole Produce request of one record."""
    records = encode_batch([(int(time.time() * 1000), None, bytes(VALUE_BYTES), ())])
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])]
    body = encode(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), VERSION)
    head = encode_request_header(ALL_APIS[0], VERSION, 1, CLIENT_ID)
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


def main(address: str, topic: str) -> None:
    host, port = address.rsplit(":", 1)
    request = make_request(topic)
    with socket.create_connection((host, int(port)), 60, (ADDRESS, 0)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waits: list[float] = []
        due = time.perf_counter()
        while True:
            due += PAUSE_SECONDS
            if select.select([sys.stdin], [], [], max(0.0, due - time.perf_counter()))[0]:
                if not sys.stdin.readline():
                    return
                waits.sort()
                at = {"p50": len(waits) // 2, "p99": len(waits) * 99 // 100, "worst": -1} if waits else {}
                shown = {name: round(waits[place], 2) for name, place in at.items()}
                print(json.dumps({"count": len(waits), **shown}), flush=True)
                waits.clear()
                due = time.perf_counter()
                continue
            ask(connection, request)
            waits.append((time.perf_counter() - due) * 1e3)


if __name__ == "__main__":
    main(*sys.argv[1:])
