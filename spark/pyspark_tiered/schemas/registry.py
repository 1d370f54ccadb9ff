"""Schemas of a registry with Confluent's API, by id or guid. Plain, blocking code for the driver and for tasks.

A schema never changes, so each is asked for once in a process. An id that the registry lacks is asked for again after a
while: its schema may come.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from pyspark_tiered.log.broker_http import BrokerHttp
from pyspark_tiered.log.login import make_login
from pyspark_tiered.schemas.framing import Reference
from pyspark_tiered.schemas.unreadable import SCHEMA_BYTES_MAX, UnreadableSchema
from tiered.errors import Code, Refused, Unavailable

ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
SCHEMAS_MAX = 1_000
"""Schemas that a process keeps of a registry."""
UNKNOWN_SECONDS = 10.0
UNKNOWN_MAX = 10_000
REGISTRIES_MAX = 16
REFERENCES_MAX = 500
AVRO, PROTOBUF, JSON_SCHEMA = "AVRO", "PROTOBUF", "JSON"
_DEFAULT_PORTS = {"http": 80, "https": 443}
T = TypeVar("T")


class SchemaSource(NamedTuple):
    """The place of schemas: addresses of one registry, of which the first that replies is asked. `login` are properties
    of a Kafka client. `waits`: a partition stops at a record whose schema the registry lacks; else it is a dead
    letter."""

    urls: tuple[str, ...] = ()
    login: tuple[tuple[str, str], ...] = ()
    waits: bool = False


class RegistryChoice(NamedTuple):
    """The registry by the options of a user: its URL, "" for the one of the table or of the brokers; the others as in
    `SchemaSource`."""

    url: str = ""
    login: tuple[tuple[str, str], ...] = ()
    waits: bool = False

    def source(self, remembered: str, brokers: Callable[[], tuple[str, ...]]) -> SchemaSource:
        """Returns where schemas are; `remembered` is the URL that the table keeps, "" for none."""
        named = self.url or remembered
        return SchemaSource((named,) if named else brokers(), self.login, self.waits)


ANY_REGISTRY = RegistryChoice()
"""The registry of the table, or that of the brokers."""


class KnownSchema(NamedTuple):
    """A schema. `references` are the names and texts of all that it needs, each behind those that it needs itself."""

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class UnknownSchema(Exception):
    """The registry has no such schema, and its words."""


class SchemaRegistry:
    """The schemas of one registry."""

    def __init__(self, urls: tuple[str, ...], login: Mapping[str, str]) -> None:
        self._places = [_open(url, login) for url in urls]
        self._names = ", ".join(urls)
        self._known: dict[Reference, KnownSchema | UnreadableSchema] = {}
        self._unknown: dict[Reference, tuple[float, str]] = {}
        self._plans: dict[tuple[str, Reference], Any] = {}
        """By the format that was expected, and the schema: a record may name a schema of another format."""
        self._is_checked = False

    def find(self, reference: Reference) -> KnownSchema:
        """Returns a schema. Raises `UnknownSchema`, `UnreadableSchema`, `Refused`, and `Unavailable` if the registry
        does not reply."""
        known = self._known.get(reference)
        if known is not None:
            return _or_raise(known)
        since, why = self._unknown.get(reference, (0.0, ""))
        if why and time.monotonic() < since + UNKNOWN_SECONDS:
            raise UnknownSchema(why)
        self._check()
        path = f"/schemas/ids/{reference}" if isinstance(reference, int) else f"/schemas/guids/{reference}"
        body = self._get(path)
        if isinstance(body, dict) and body.get("schemaType") == PROTOBUF:
            body = self._get(f"{path}?format=serialized")
        if body is None:
            if len(self._unknown) >= UNKNOWN_MAX:
                self._unknown.clear()
            why = f"the registry has no schema {reference}"
            self._unknown[reference] = time.monotonic(), why
            raise UnknownSchema(why)
        if len(self._known) >= SCHEMAS_MAX:
            self._known.clear()
            self._plans.clear()
        try:
            found: KnownSchema | UnreadableSchema = self._read(body)
        except UnreadableSchema as why:
            found = why
        self._known[reference] = found
        return _or_raise(found)

    def plan(self, kind: str, reference: Reference, make: Callable[[str, KnownSchema], T]) -> T:
        """Returns what `make` makes of a schema where values of the format `kind` are expected, made once. Raises as
        `find` does, and what `make` raised."""
        key = kind, reference
        if key not in self._plans:
            found = self.find(reference)
            try:
                self._plans[key] = make(kind, found)
            except UnreadableSchema as why:
                self._plans[key] = why
        made: T | UnreadableSchema = self._plans[key]
        return _or_raise(made)

    def _check(self) -> None:
        """Raises `Refused` if there is no registry: then no id would be known, and each record a dead letter."""
        if not self._is_checked:
            if not isinstance(self._get("/schemas/types"), list):
                raise Refused(Code.INVALID_REQUEST, f"there is no schema registry at {self._names}")
            self._is_checked = True

    def _read(self, body: Mapping[str, Any]) -> KnownSchema:
        texts: dict[str, str] = {}
        self._read_references(body, texts, 0)
        kind, text = str(body.get("schemaType", AVRO)), str(body["schema"])
        if len(text) + sum(map(len, texts.values())) > SCHEMA_BYTES_MAX:
            raise UnreadableSchema(f"it has more than {SCHEMA_BYTES_MAX} characters")
        return KnownSchema(kind, text, tuple(texts.items()))

    def _read_references(self, body: Mapping[str, Any], texts: dict[str, str], depth: int) -> None:
        """Adds the schemas that one refers to, each behind those that it needs."""
        for each in body.get("references") or ():
            name = str(each["name"])
            if name in texts:
                continue
            if len(texts) >= REFERENCES_MAX or depth > REFERENCES_MAX:
                raise UnreadableSchema(f"it refers to more than {REFERENCES_MAX} schemas")
            subject = quote(str(each["subject"]), safe="")
            path = f"/subjects/{subject}/versions/{int(each['version'])}?deleted=true"
            form = "&format=serialized" if body.get("schemaType") == PROTOBUF else ""
            found = self._get(f"{path}{form}")
            if not isinstance(found, dict):
                raise UnreadableSchema(f"the registry has no {each['subject']!a}, version {each['version']}")
            self._read_references(found, texts, depth + 1)
            texts[name] = str(found["schema"])

    def _get(self, path: str) -> Any:
        """Returns what is at a path, None if nothing is. Asks the next address if one does not reply."""
        failure: Unavailable | None = None
        for http, prefix in self._places:
            try:
                return json.loads(http.get(f"{prefix}{path}", ACCEPT).body)
            except Unavailable as fault:
                failure = fault
            except Refused as fault:
                if fault.code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                    return None
                raise
            except ValueError:
                raise Refused(Code.INVALID_REQUEST, f"{http}{prefix} is no schema registry: no JSON") from None
        raise failure or Refused(
            Code.INVALID_REQUEST, "no schema registry is known: the bucket names no broker, so name one by --registry"
        )


def _or_raise(found: T | UnreadableSchema) -> T:
    if isinstance(found, UnreadableSchema):
        raise UnreadableSchema(str(found))
    return found


def _open(url: str, login: Mapping[str, str]) -> tuple[BrokerHttp, str]:
    """Returns the host of an address, and its path."""
    parts = urlsplit(url if "://" in url else f"//{url}")
    try:
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        port = None
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    place = f"{parts.scheme}://{host}" if parts.scheme else host
    http = BrokerHttp(f"{place}:{port}" if port else place, make_login(login), is_patient=False)
    return http, parts.path.rstrip("/")


@lru_cache(maxsize=REGISTRIES_MAX)
def open_registry(urls: tuple[str, ...], login: tuple[tuple[str, str], ...]) -> SchemaRegistry:
    """Returns the registry at some addresses: one for all tasks of a process."""
    return SchemaRegistry(urls, dict(login))
