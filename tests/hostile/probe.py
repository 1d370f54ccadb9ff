"""Another client: it sends a small request repeatedly on one connection until its input ends, and prints its latencies.

python -m tests.hostile.probe HOST:PORT [heartbeat]   prints {"count", "p50", "p99", "worst"}, times in milliseconds

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


def ask(to: socket.socket, request: bytes) -> None:
    to.sendall(request)
    left = int.from_bytes(to.recv(4, socket.MSG_WAITALL), "big")
    while left:
        got = len(to.recv(min(left, 65536)))
        if not got:
            raise ConnectionError("the broker has closed the connection")
        left -= got


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
        ended = False
        while not ended:
            ended = bool(select.select([sys.stdin], [], [], pause)[0])
            begun = time.perf_counter()
            ask(connection, request)
            waits.append((time.perf_counter() - begun) * 1e3)
    waits.sort()
    at = {"p50": len(waits) // 2, "p99": len(waits) * 99 // 100, "worst": -1}
    print(json.dumps({"count": len(waits), **{name: round(waits[p], 1) for name, p in at.items()}}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
