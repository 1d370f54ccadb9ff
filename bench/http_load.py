"""The broker's HTTP API, per CPU second of the broker. The load comes from this process over plain sockets."""

from __future__ import annotations

import json
import select
import socket
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median

from bench.broker import BrokerProcess
from bench.figures import Figure
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.records.batch import encode_batch

SECONDS = 5.0
CONNECTIONS = 64
PAIRS = 3
"""Legs with and without an idempotency key, in turn."""
LOGINS = (
    f"authorizer.class.name={STANDARD_AUTHORIZER}", "authentication.method=BASIC", "super.users=User:admin",
)  # fmt: skip


def post(path: str, body: bytes, content_type: str = "application/json", key: str = "", login: str = "") -> bytes:
    """Encodes one complete keep-alive request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
    head += f"Authorization: {login}\r\n" if login else ""
    head += f'Idempotency-Key: "{key}"\r\n' if key else ""
    head += f"Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def response_length(buffer: bytes) -> int:
    """Returns the bytes of the first complete response in the buffer, 0 if there is none. It names its length."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return 0
    head = buffer[:end].lower()
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(f"unexpected answer: {buffer[:300]!r}")
    at = head.find(b"content-length:")
    whole = end + 4 + int(head[at + 15 : head.find(b"\r\n", at) if b"\r\n" in head[at:] else len(head)])
    return whole if len(buffer) >= whole else 0


def run_closed_loop(port: int, next_request: Callable[[], bytes], seconds: float) -> int:
    """Returns the responses in `seconds`, with one request in flight on each connection."""
    poller = select.epoll()
    connections: dict[int, socket.socket] = {}
    pending: dict[int, bytes] = {}
    for _ in range(CONNECTIONS):
        s = socket.create_connection(("127.0.0.1", port))
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poller.register(s, select.EPOLLIN)
        connections[s.fileno()], pending[s.fileno()] = s, b""
        s.sendall(next_request())
    responses, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        for fd, _ in poller.poll(1):
            buffer = pending[fd] + connections[fd].recv(65536)
            whole = response_length(buffer)
            pending[fd] = buffer[whole:]
            if whole:
                responses += 1
                connections[fd].sendall(next_request())
    poller.close()
    for s in connections.values():
        s.close()
    return responses


def stream_records(port: int, path: str, record: bytes, seconds: float) -> int:
    """Returns the records acknowledged on one chunked v3 request, written as fast as acknowledgements arrive."""
    s = socket.create_connection(("127.0.0.1", port))
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n"
    s.sendall(head.encode())
    many = record * (65536 // len(record))
    chunk = f"{len(many):x}\r\n".encode() + many + b"\r\n"
    s.setblocking(False)
    out, reports, until, closing = b"", 0, time.perf_counter() + seconds, False
    poller = select.poll()
    poller.register(s, select.POLLIN | select.POLLOUT)
    tail = b""
    while True:
        for _, event in poller.poll(1000):
            if event & select.POLLOUT:
                if not out and not closing:
                    closing = time.perf_counter() > until
                    out = b"0\r\n\r\n" if closing else chunk
                if out:
                    out = out[s.send(out) :]
                elif closing:
                    poller.modify(s, select.POLLIN)
            if event & select.POLLIN:
                data = s.recv(1 << 20)
                seen = tail + data
                reports += seen.count(b'"offset"') - tail.count(b'"offset"')
                tail = seen[-16:]
                if not data or seen.endswith(b"\r\n0\r\n\r\n"):
                    s.close()
                    return reports


def read_loop(port: int, path: Callable[[int], str], accept: str, seconds: float) -> tuple[int, int]:
    """Returns (responses, bytes) of consecutive GETs on one connection. `path` takes the number of the response."""
    s = socket.create_connection(("127.0.0.1", port))
    view = memoryview(bytearray(1 << 20))
    responses = total = 0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        s.sendall(f"GET {path(responses)} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += s.recv(65536)
        head, rest = head.split(b"\r\n\r\n", 1)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"unexpected answer: {head!r} {rest[:300]!r}")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        left = length - len(rest)
        while left > 0:
            n = s.recv_into(view, min(left, len(view)))
            if n == 0:
                raise RuntimeError("the broker closed the connection inside an answer")
            left -= n
        responses, total = responses + 1, total + length
    s.close()
    return responses, total


def fill(broker: BrokerProcess, topic: str, value_bytes: int, count: int, batches: int) -> int:
    """Writes raw batches of `count` records to partition 0. Returns the number of records written."""
    value = json.dumps({"n": 1, "text": "x" * (value_bytes - 20)}).encode()
    now = int(time.time() * 1000)
    body = encode_batch([(now, b"key", value, ()) for _ in range(count)])
    for _ in range(batches):
        status, answer = broker.request(
            "POST", f"/topics/{topic}/partitions/0/records", body, "application/octet-stream"
        )
        if status != 200:
            raise RuntimeError(f"raw produce: {status} {answer!r}")
    return count * batches


def produce_figures(broker: BrokerProcess) -> list[Figure]:
    record = {"key": {"type": "STRING", "data": "k"}, "value": {"type": "JSON", "data": {"n": 1, "text": "x" * 80}}}
    body = json.dumps(record).encode()
    path = single_path(broker)
    request = post(path, body)
    run_closed_loop(broker.port, lambda: request, 1.0)
    before = broker.cpu_seconds()
    responses = run_closed_loop(broker.port, lambda: request, SECONDS)
    single = responses / (broker.cpu_seconds() - before)
    before = broker.cpu_seconds()
    reports = stream_records(broker.port, path, body + b"\n", SECONDS)
    streamed = reports / (broker.cpu_seconds() - before)
    return [
        Figure("single-record POST (v3)", single, "records/CPU-s", 40_000, note=f"{responses / SECONDS:,.0f}/s"),
        Figure("streaming v3", streamed, "records/CPU-s", 60_000, note=f"{reports / SECONDS:,.0f}/s"),
    ]


SMALL = json.dumps({"value": {"type": "JSON", "data": {"n": 1, "text": "x" * 80}}}).encode()


def microseconds(broker: BrokerProcess, next_request: Callable[[], bytes]) -> float:
    """Returns the broker's CPU for one request, in one leg."""
    before = broker.cpu_seconds()
    responses = run_closed_loop(broker.port, next_request, SECONDS / PAIRS)
    return (broker.cpu_seconds() - before) / responses * 1e6


def single_path(broker: BrokerProcess) -> str:
    return f"/v3/clusters/{broker.json('GET', '/v3/clusters')['data'][0]['cluster_id']}/topics/single/records"


def keyed_figures(broker: BrokerProcess) -> list[Figure]:
    """Compares the CPU of whole POSTs with a new idempotency key each with that of POSTs without one."""
    path, numbers = single_path(broker), count()
    plain = post(path, SMALL)

    def with_key() -> bytes:
        return post(path, SMALL, key=f"order-{next(numbers)}")

    microseconds(broker, with_key)
    pairs = [(microseconds(broker, lambda: plain), microseconds(broker, with_key)) for _ in range(PAIRS)]
    without, keyed = median(each for each, _ in pairs), median(each for _, each in pairs)
    note = f"{without:.0f} us without, {keyed:.0f} us with"
    return [Figure("CPU of a POST with an Idempotency-Key, of one without", keyed / without, "", 1.15, True, note)]


def login_figures(open_broker: BrokerProcess, closed_broker: BrokerProcess) -> list[Figure]:
    """Compares the CPU of a POST with HTTP Basic while the authorizer is on with that of one where nobody logs in."""
    plain = post(single_path(open_broker), SMALL)
    known = post(single_path(closed_broker), SMALL, login=closed_broker.login["Authorization"])
    microseconds(closed_broker, lambda: known)
    pairs = [
        (microseconds(open_broker, lambda: plain), microseconds(closed_broker, lambda: known)) for _ in range(PAIRS)
    ]
    without, checked = median(each for each, _ in pairs), median(each for _, each in pairs)
    note = f"{without:.0f} us without, {checked:.0f} us with"
    return [Figure("CPU of a POST with login and authorizer, of one without", checked / without, "", 1.05, True, note)]


def read_figures(broker: BrokerProcess) -> list[Figure]:
    records = fill(broker, "read", 100, 8000, 64)
    raw_path = "/topics/read/partitions/0/records?offset={}&max_bytes=16777216"
    read_loop(broker.port, lambda n: raw_path.format(n % 3 * 8000), "application/octet-stream", 1.0)
    before = broker.cpu_seconds()
    _, total = read_loop(broker.port, lambda n: raw_path.format(n % 30 * 8000), "application/octet-stream", SECONDS)
    raw = total / (broker.cpu_seconds() - before)
    json_path = "/topics/read/partitions/0/records?offset={}&max_bytes=900000"
    before, start = broker.cpu_seconds(), broker.metric("tiered_http_records_read_total")
    read_loop(broker.port, lambda n: json_path.format(n * 8000 % records), "application/json", SECONDS)
    read = broker.metric("tiered_http_records_read_total") - start
    as_json = read / (broker.cpu_seconds() - before)
    return [
        Figure("raw batches read, hot", raw / 1e9, "GB/CPU-s", 2.0, note=f"{total / SECONDS / 1e9:.2f} GB/s"),
        Figure("JSON read", as_json, "records/CPU-s", 300_000),
    ]


def main() -> list[Figure]:
    with (
        tempfile.TemporaryDirectory(prefix="tiered-bench-") as directory,
        BrokerProcess(Path(directory) / "data", "tiered.producer.ids.max.per.partition=1000000") as broker,
        BrokerProcess(Path(directory) / "closed", *LOGINS, admin="admin") as closed_broker,
    ):
        broker.create_topic("single", 1)
        broker.create_topic("read", 1)
        closed_broker.create_topic("single", 1)
        return [
            *produce_figures(broker),
            *keyed_figures(broker),
            *login_figures(broker, closed_broker),
            *read_figures(broker),
        ]
