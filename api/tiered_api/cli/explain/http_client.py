"""GET requests to the HTTP of brokers, with the TLS and the login of the command. Blocking code with deadlines.

Each request is made once. A broker other than the one that the user named gets the login only if it shows the same
cluster id to a request without one.
"""

from __future__ import annotations

import asyncio
import ssl
from argparse import Namespace
from typing import Any
from urllib.parse import urlsplit

import orjson

from tiered.errors import Code, Refused, Unavailable
from tiered.system.http_request import HttpReply, send_request
from tiered_api.cli.client_settings import ClientSettings
from tiered_api.cli.explain.http_of_brokers import find_http_of_brokers
from tiered_api.cli.lake.http_place import HttpPlace, find_operator_place
from tiered_api.cli.profiles import HTTP

DEFAULT_PORT = 8082
SECONDS = 15.0
"""Time of each step of a request: an explanation waits for the leader and for the bucket."""
REPLY_BYTES = 32 << 20
NODE = "/tiered/v1/node"
_CODES = {
    401: Code.SASL_AUTHENTICATION_FAILED,
    403: Code.TOPIC_AUTHORIZATION_FAILED,
    404: Code.UNKNOWN_TOPIC_OR_PARTITION,
}
"""The codes of replies that no other try would change."""


class BrokersHttp:
    """The HTTP of the broker that the user named, and of others of its cluster."""

    def __init__(self, place: HttpPlace) -> None:
        self._login = place.login
        self.base = self._base_of(place.address)
        self._cluster_id = ""
        self._trusted = {self.base}

    def get_json(self, path: str, base: str = "") -> Any:
        """Returns the JSON of a reply with status 200. Raises `Refused` and `Unavailable` in the broker's words."""
        return orjson.loads(self.get(path, base))

    def get(self, path: str, base: str = "") -> bytes:
        """Returns the body of a reply with status 200, of the broker that the user named unless `base` names another
        one of its cluster. Raises `Refused` and `Unavailable`."""
        where = self._base_of(base) if base else self.base
        if where not in self._trusted:
            self._cluster_id = self._cluster_id or self._read_cluster_id(self.base)
            if self._read_cluster_id(where) != self._cluster_id:
                raise Refused(Code.INVALID_REQUEST, f"{where} is of another cluster than {self.base}")
            self._trusted.add(where)
        return self._send(where, path, self._login.make_headers())

    def _read_cluster_id(self, base: str) -> str:
        return str(orjson.loads(self._send(base, NODE, {})).get("cluster_id"))

    def _base_of(self, address: str) -> str:
        """Returns scheme, host and port of an address of HTTP. Raises `Refused` if the login must not go there."""
        parts = urlsplit(address if "://" in address else f"//{address}")
        try:
            host, port = parts.hostname or "", parts.port or DEFAULT_PORT
        except ValueError:
            host, port = "", 0
        if not host or parts.username is not None or parts.scheme not in ("", "http", "https"):
            why = f"http {address}: it must be HOST:PORT of a broker's HTTP, or its URL"
            raise Refused(Code.INVALID_REQUEST, why)
        scheme = "https" if self._login.uses_tls(parts.scheme) else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def _send(self, base: str, path: str, login: dict[str, str]) -> bytes:
        url = urlsplit(base + path)
        try:
            reply = send_request(
                "GET", url, {"Accept": "application/json, text/plain", **login}, tls=self._tls_context,
                bytes_max=REPLY_BYTES, seconds=SECONDS,
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(f"no broker replies at {base}: {error}") from None
        if reply.status != 200:
            raise _to_error(reply)
        return reply.body

    def _tls_context(self) -> ssl.SSLContext:
        return self._login.context or ssl.create_default_context()


def open_http(args: Namespace) -> BrokersHttp:
    """Returns the HTTP of the broker that a command names: by `--http`, by the Kafka addresses of `--brokers`, or by
    the first other source of settings with one of both. So `explain` asks the cluster that `health` asks."""
    place = find_operator_place(args)
    if args.http is None and has_brokers_alone(place.settings):
        place = place._replace(address=asyncio.run(find_http_of_brokers(args)))
    return BrokersHttp(place)


def has_brokers_alone(settings: ClientSettings) -> bool:
    """Returns True if the first source that has an address has those of Kafka listeners, and none of HTTP."""
    source = settings.source(HTTP, "brokers")
    return source is not None and not source.settings.get(HTTP)


def _to_error(reply: HttpReply) -> Refused | Unavailable:
    """Returns the error in the broker's own words."""
    try:
        why = str(orjson.loads(reply.body)["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        why = f"status {reply.status}"
    if reply.status >= 500 or reply.status == 429:
        return Unavailable(why)
    return Refused(_CODES.get(reply.status, Code.INVALID_REQUEST), why)
