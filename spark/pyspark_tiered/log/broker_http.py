"""GET requests to the brokers of a cluster: TLS, the login, redirects to a leader, waits for a broker that is busy.

The login goes to the broker that the user named. It follows a redirect only by the same scheme to the same path, and
only to a broker that shows the same cluster id to a request without a login.
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import closing
from typing import NamedTuple
from urllib.parse import urlsplit

from pyspark_tiered.log.login import HttpLogin
from tiered.errors import Code, Refused, Unavailable

log = logging.getLogger(__name__)

DEFAULT_PORT = 8082
TIMEOUT_SECONDS = 60.0
"""Time of one request, up to the last byte of its reply."""
RETRY_SECONDS = 60.0
"""Time of all tries while a broker starts again, a leader is elected, or too much is in flight."""
THROTTLE_SECONDS = 600.0
"""Time of all tries while a quota makes this client wait."""
PAUSE_SECONDS = 0.5
"""Pause between two tries, if the broker names none."""
SHOWN_PAUSE_SECONDS = 5.0
"""A longer pause is logged."""
REDIRECTS_MAX = 3
READ_BYTES = 1 << 20
NODE = "/tiered/v1/node"
JSON = "application/json"
THROTTLED = 429
TEMPORARY = (40404, 50003, 502, 503, 504, 50302)
"""Codes of a broker, and of a proxy before it, that another try may not get."""
_CODES = {
    401: Code.SASL_AUTHENTICATION_FAILED,
    404: Code.UNKNOWN_TOPIC_OR_PARTITION,
    416: Code.OFFSET_OUT_OF_RANGE,
    40301: Code.TOPIC_AUTHORIZATION_FAILED,
}


class HttpReply(NamedTuple):
    """A reply of a broker."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


class _Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class _TryLater(Exception):
    """`error` is raised if no later try succeeds in time. `told` are the seconds that a quota makes this client wait,
    or that a busy broker names."""

    def __init__(self, error: Unavailable, told: float | None = None, *, is_throttled: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.pause = PAUSE_SECONDS if told is None else told
        self.limit = THROTTLE_SECONDS if is_throttled else RETRY_SECONDS


class BrokerHttp:
    """Requests by the broker at `HOST:PORT`, `http://HOST:PORT` or `https://HOST:PORT`. Plain, blocking code.

    `is_patient`: a broker was there before, so tries go on if nothing replies. Otherwise the first request without a
    reply fails at once: the address may be wrong.
    """

    def __init__(self, bootstrap: str, login: HttpLogin, *, is_patient: bool) -> None:
        parts = urlsplit(bootstrap if "://" in bootstrap else f"//{bootstrap}")
        try:
            self._bootstrap = _Address(parts.hostname or "", parts.port or DEFAULT_PORT)
        except ValueError:
            self._bootstrap = _Address("", 0)
        if parts.scheme not in ("", "http", "https") or not self._bootstrap.host or parts.username is not None:
            raise Refused(Code.INVALID_REQUEST, "bootstrap must be HOST:PORT of a broker's HTTP, or its URL")
        self._login = login
        self._is_patient = is_patient
        self._context = None
        if login.uses_tls(parts.scheme):
            self._context = login.context or ssl.create_default_context()
        self._members = {self._bootstrap}
        self._cluster_id = ""

    def __str__(self) -> str:
        return str(self._bootstrap)

    def get(self, path: str, accept: str) -> HttpReply:
        """Returns a reply with status 200. Raises `Refused`, and `Unavailable` if no try succeeds in time."""
        begin = time.monotonic()
        while True:
            try:
                return self._try(path, accept)
            except _TryLater as later:
                if time.monotonic() + later.pause > begin + later.limit:
                    raise later.error from None
                if later.pause >= SHOWN_PAUSE_SECONDS:
                    log.warning("waiting for a broker seconds=%g why=%s", later.pause, later.error)
                time.sleep(later.pause)

    def _try(self, path: str, accept: str) -> HttpReply:
        address = self._bootstrap
        for _ in range(REDIRECTS_MAX + 1):
            reply = self._request(address, path, accept, self._login.make_headers())
            if reply.status == http.client.OK:
                return reply
            if reply.status != http.client.TEMPORARY_REDIRECT:
                raise _to_error(reply)
            address = self._check_redirect(reply.headers.get("Location", ""), path)
        raise _TryLater(Unavailable(f"more than {REDIRECTS_MAX} redirects of {path}, the last one to {address}"))

    def _check_redirect(self, location: str, path: str) -> _Address:
        """Returns the address that a redirect of a path names. Raises `Refused` if the login must not go there."""
        scheme = "http" if self._context is None else "https"
        parts = urlsplit(location)
        try:
            default = http.client.HTTP_PORT if self._context is None else http.client.HTTPS_PORT
            address = _Address(parts.hostname or "", parts.port or default)
        except ValueError:
            address = _Address("", 0)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        if parts.scheme != scheme or not address.host or parts.username is not None or target != path:
            raise _refuse(
                f"the broker at {self} redirects to {location[:200]!r}: {scheme} and the same path are needed"
            )
        if address not in self._members:
            self._cluster_id = self._cluster_id or self._read_cluster_id(self._bootstrap)
            if self._read_cluster_id(address) != self._cluster_id:
                raise _refuse(f"the broker at {self} redirects to {address}, which is of another cluster")
            self._members.add(address)
        return address

    def _read_cluster_id(self, address: _Address) -> str:
        """Returns the id of a broker's cluster. Sends no login."""
        reply = self._request(address, NODE, JSON, {})
        if reply.status != http.client.OK:
            raise _to_error(reply)
        try:
            return str(json.loads(reply.body)["cluster_id"])
        except (ValueError, KeyError, TypeError):
            raise _refuse(f"{address} is no broker of a cluster") from None

    def _request(self, address: _Address, path: str, accept: str, login: Mapping[str, str]) -> HttpReply:
        end = time.monotonic() + TIMEOUT_SECONDS
        connection = self._connect(address)
        try:
            connection.request("GET", path, headers={"Accept": accept, **login})
            open_socket = connection.sock  # the connection forgets it if the reply ends it
            with closing(connection.getresponse()) as response:
                body = _read_body(response, open_socket, end)
        except (OSError, http.client.HTTPException) as error:
            failure = Unavailable(f"no broker replies at {address}: {error!r}")
            if isinstance(error, ssl.SSLCertVerificationError) or not self._is_patient:
                raise failure from None
            raise _TryLater(failure) from None
        finally:
            connection.close()
        self._is_patient = True
        return HttpReply(response.status, response.headers, body)

    def _connect(self, address: _Address) -> http.client.HTTPConnection:
        host, port = address
        if self._context is None:
            return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=self._context)


def _read_body(response: http.client.HTTPResponse, open_socket: socket.socket, end: float) -> bytes:
    """Returns the whole body. Raises `TimeoutError` if it has not come by `end`."""
    pieces = []
    while True:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no whole reply within {TIMEOUT_SECONDS:g} s")
        open_socket.settimeout(left)
        piece = response.read1(READ_BYTES)
        if not piece:
            break
        pieces.append(piece)
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(pieces)


def _to_error(reply: HttpReply) -> Refused | Unavailable | _TryLater:
    """Returns the error in the broker's own words."""
    status, code = reply.status, reply.status
    try:
        found = json.loads(reply.body)
        why, code = str(found["message"]), int(found["error_code"])
    except (ValueError, KeyError, TypeError):
        why = f"status {status}"
    if status == THROTTLED or code in TEMPORARY or status in TEMPORARY:
        named = reply.headers.get("Retry-After", "")
        told = float(named) if named.isdecimal() else None
        if told is not None:
            why = f"{why}; another try is allowed in {told:g} s"
        return _TryLater(Unavailable(why), told, is_throttled=status == THROTTLED)
    if status >= 500:
        return Unavailable(why)
    return Refused(_CODES.get(code, _CODES.get(status, Code.INVALID_REQUEST)), why)


def _refuse(why: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, why)
