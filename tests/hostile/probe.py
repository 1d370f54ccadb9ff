"""Another client: it sends a small request repeatedly on one connection until its input ends.

python -m tests.hostile.probe HOST:PORT [heartbeat]   prints {"count", "p50", "p99", "worst"} in milliseconds for each
line of its input, and begins anew

The request is ApiVersions, every 2 ms. With `heartbeat` it is Heartbeat, every 20 ms, from the attackers' address.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

REQUEST = bytes.fromhex("0000000d 0012 0000 00000007 0003") + b"abc"
PAUSE_SECONDS = 0.002
HEARTBEAT = bytes.fromhex("00000017 000c 0000 00000007 0003") + b"abc" + bytes.fromhex("0001 67 00000001 0001 6d")
HEARTBEAT_PAUSE_SECONDS = 0.02


def ask(to: socket.socket, request: bytes) -> bytes:
    """Sends a request. Returns its reply without the length."""
    to.sendall(request)
    return receive(to, int.from_bytes(receive(to, 4), "big"))


def receive(to: socket.socket, size: int) -> bytes:
    """Returns exactly so many bytes."""
    parts = list[bytes]()
    while size:
        parts.append(to.recv(min(size, 65536)))
        if not parts[-1]:
            raise ConnectionError("the broker has closed the connection")
        size -= len(parts[-1])
    return b"".join(parts)


def summarize(waits: list[float]) -> dict[str, float]:
    """Returns the number of latencies, and what 50 and 99 of 100 of them do not exceed, and all."""
    waits = sorted(waits)
    at = {"p50": len(waits) // 2, "p99": len(waits) * 99 // 100, "worst": -1} if waits else {}
    return {"count": len(waits), **{name: round(waits[place], 2) for name, place in at.items()}}


def main(address: str, kind: str = "") -> None:
    host, port = address.rsplit(":", 1)
    waits: list[float] = []
    request, pause, own = (
        (HEARTBEAT, HEARTBEAT_PAUSE_SECONDS, "127.0.0.1") if kind else (REQUEST, PAUSE_SECONDS, "127.0.0.77")
    )
    with socket.create_connection((host, int(port)), 60, (own, 0)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask(connection, request)
        print("ready", flush=True)
        while True:
            is_asked = bool(select.select([sys.stdin], [], [], pause)[0])
            if is_asked and not sys.stdin.readline():
                return
            begun = time.perf_counter()
            ask(connection, request)
            waits.append((time.perf_counter() - begun) * 1e3)
            if is_asked:
                print(json.dumps(summarize(waits)), flush=True)
                waits.clear()


if __name__ == "__main__":
    main(*sys.argv[1:])
