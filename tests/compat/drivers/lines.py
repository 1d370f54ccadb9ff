"""Shared code of the drivers in Python: requests are lines of JSON on stdin, replies and events lines on stdout.

    {"id": 1, "do": "send", ...}    ->    {"id": 1, "value": ...}  or  {"id": 1, "error": "TopicExists: ..."}
    events come between replies:          {"records": [...]}, {"assigned": [[topic, partition], ...]}, {"revoked": ...}

A record is `{t, p, o, ts, k, v, h}`: topic, partition, offset, timestamp; key, value and headers in base64 or null.
"""

from __future__ import annotations

import base64
import json
import queue
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

Headers = Iterable[tuple[str, bytes | None]]
TOKEN_SECONDS = 30
FAILED = (Exception,)
"""Errors that a driver passes on to the test, which judges them: every error of its client."""


def read_login() -> dict[str, str] | None:
    """Returns the login of the client from the second argument: `user`, `password`, `mechanism`, and `authority`, the
    file with the broker's authority; `token_url` for OAUTHBEARER. None without a login."""
    return json.loads(sys.argv[2]) if len(sys.argv) > 2 else None


def fetch_token(login: dict[str, str]) -> str:
    """Returns a new token of the token server."""
    credentials = base64.b64encode(f"{login['user']}:{login['password']}".encode()).decode()
    request = urllib.request.Request(
        login["token_url"], b"grant_type=client_credentials", {"Authorization": f"Basic {credentials}"}
    )
    with urllib.request.urlopen(request, timeout=TOKEN_SECONDS) as reply:
        token: str = json.load(reply)["access_token"]
    return token


def pack(data: bytes | bytearray | None) -> str | None:
    """Returns bytes as JSON carries them."""
    return None if data is None else base64.b64encode(data).decode()


def unpack(text: str | None) -> bytes | None:
    """Returns the bytes of a value that `pack` made."""
    return None if text is None else base64.b64decode(text)


def record(
    topic: str,
    partition: int,
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None,
) -> dict[str, Any]:
    """Returns a record that was read."""
    return {
        "t": topic,
        "p": partition,
        "o": offset,
        "ts": timestamp,
        "k": pack(key),
        "v": pack(value),
        "h": [[name, pack(data)] for name, data in headers or ()],
    }


def headers_of(sent: dict[str, Any]) -> list[tuple[str, bytes | None]]:
    """Returns the headers of a record to send."""
    return [(name, unpack(data)) for name, data in sent.get("h") or ()]


def say(**what: Any) -> None:
    """Writes one line to the test."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def requests() -> queue.Queue[dict[str, Any] | None]:
    """Yields the requests of the test as they come; None when it is gone."""
    lines: queue.Queue[dict[str, Any] | None] = queue.Queue(10_000)

    def read() -> None:
        for line in sys.stdin:
            lines.put(json.loads(line))
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def serve(driver: Any, poll: Callable[[], bool]) -> None:
    """Serves requests with the methods `do_<name>` of a driver; between them `poll` consumes. If it returns false, it
    has nothing to consume, and is called again only after the next request."""
    lines = requests()
    polled = False
    while True:
        try:
            request = lines.get(block=not polled)
        except queue.Empty:
            polled = poll()
            continue
        if request is None:
            return
        number, do = request.pop("id"), request.pop("do")
        try:
            say(id=number, value=getattr(driver, f"do_{do}")(**request))
        except FAILED as error:
            say(id=number, error=f"{type(error).__name__}: {error}")
        polled = poll()
