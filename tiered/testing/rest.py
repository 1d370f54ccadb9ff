"""Requests to a broker over HTTP, by the standard library: a test suite needs no client for them."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

JSON = "application/json"
SECONDS = 30.0


class RequestFailed(AssertionError):
    """A broker refused a request of a test, with a status of HTTP."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def ask(url: str, method: str, path: str, body: Any = None, kind: str = JSON) -> Any:
    """Returns the reply of a broker: JSON as values, text as it is, other bodies as bytes, and None for none. Raises
    `RequestFailed` with the sentence of a broker that refuses."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=SECONDS)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": kind} if data is not None else {})
        reply = connection.getresponse()
        answer = _parse(reply.headers.get_content_type(), reply.read())
    finally:
        connection.close()
    if reply.status >= 300:
        why = answer["message"] if isinstance(answer, dict) and "message" in answer else answer
        raise RequestFailed(f"{method} {path}: {reply.status}, {why}", reply.status)
    return answer


def _parse(kind: str, body: bytes) -> Any:
    if not body:
        return None
    if kind.endswith("json"):
        return json.loads(body)
    return body.decode() if kind.startswith("text/") else body
