"""One request to the HTTP server of somebody else, with bounds. Blocking code: an event loop runs it in a thread.

No redirect is followed.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import SplitResult

CHUNK_BYTES = 64 << 10


class HttpReply(NamedTuple):
    """The status and the whole body of a reply."""

    status: int
    body: bytes


def send_request(
    method: str,
    url: SplitResult,
    headers: Mapping[str, str],
    body: str | None = None,
    *,
    tls: Callable[[], ssl.SSLContext],
    bytes_max: int,
    seconds: float,
) -> HttpReply:
    """Returns the reply to one request, at most `bytes_max` of body. `tls` makes the context for an https URL.

    `seconds` is the deadline of each step: to connect, to get the head, and to get the body. Raises `OSError` if there
    is no such reply.
    """
    connection = _connect(url, tls, seconds)
    try:
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request(method, target, body, dict(headers))
        with connection.getresponse() as response:
            return HttpReply(response.status, read_whole(response.read1, bytes_max, seconds))
    except http.client.HTTPException as error:
        raise OSError(f"the reply is not HTTP: {type(error).__name__}") from None
    finally:
        connection.close()


def _connect(url: SplitResult, tls: Callable[[], ssl.SSLContext], seconds: float) -> http.client.HTTPConnection:
    if url.scheme == "http":
        return http.client.HTTPConnection(url.hostname or "", url.port, timeout=seconds)
    return http.client.HTTPSConnection(url.hostname or "", url.port, timeout=seconds, context=tls())


def read_whole(read: Callable[[int], bytes], bytes_max: int, seconds: float) -> bytes:
    """Returns all bytes that `read` gives. Raises `OSError` if they are too many, or do not come in time."""
    end, whole = time.monotonic() + seconds, b""
    while piece := read(CHUNK_BYTES):
        whole += piece
        if len(whole) > bytes_max:
            raise OSError(f"there are more than {bytes_max} bytes")
        if time.monotonic() > end:
            raise OSError(f"the bytes did not come within {seconds:g} s")
    return whole
