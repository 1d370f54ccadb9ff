"""Media types of bodies (415) and of responses (406). RFC 9110, section 12."""

from __future__ import annotations

from tiered_api.http.exchange.errors import HttpError

JSON = "application/json"
BINARY = "application/octet-stream"
EVENTS = "text/event-stream"
TEXT = "text/plain"
OPENMETRICS = "application/openmetrics-text"
HTML = "text/html"
V2 = "application/vnd.kafka.v2+json"
V2_JSON = "application/vnd.kafka.json.v2+json"
V2_BINARY = "application/vnd.kafka.binary.v2+json"
V2_AVRO = "application/vnd.kafka.avro.v2+json"
V2_JSONSCHEMA = "application/vnd.kafka.jsonschema.v2+json"
V2_PROTOBUF = "application/vnd.kafka.protobuf.v2+json"
V2_WITH_SCHEMAS = {V2_AVRO: "AVRO", V2_JSONSCHEMA: "JSON", V2_PROTOBUF: "PROTOBUF"}
"""Embedded formats with a schema, and their names in the registry."""
V2_FORMS = {V2_BINARY: "binary", V2_JSON: "json", V2: "binary", JSON: "binary", **V2_WITH_SCHEMAS}
"""The embedded formats of bodies of v2."""
REGISTRY = ("application/vnd.schemaregistry.v1+json", "application/vnd.schemaregistry+json", JSON)
"""Types of bodies and replies of the schema registry."""


def body_type(header: str | None, accepted: tuple[str, ...]) -> str:
    """Returns the type of a body without its parameters. Raises `HttpError` 415 if it is not in `accepted`."""
    kind = (header or "").partition(";")[0].strip().lower()
    if kind not in accepted:
        named = f"Content-Type {kind!r} is not understood here" if kind else "Content-Type is missing"
        raise HttpError(415, f"{named}; send one of {', '.join(accepted)}")
    return kind


def negotiate_type(header: str | None, offered: tuple[str, ...]) -> str:
    """Returns the first type in `offered` with the highest weight in an Accept header. Raises `HttpError` 406 if none
    is acceptable."""
    if not header or header == "*/*":
        return offered[0]
    ranges = [_media_range(part) for part in header.split(",")]
    weight, best = 0.0, ""
    for kind in offered:
        q = max((r for r in ranges if _matches(r[0], kind)), key=lambda r: (r[1], r[2]), default=("", 0, 0.0))[2]
        if q > weight:
            weight, best = q, kind
    if not best:
        raise HttpError(406, f"none of the types in Accept is available here; there are {', '.join(offered)}")
    return best


def _media_range(part: str) -> tuple[str, int, float]:
    """Returns (range, precision, weight) of one element of Accept. A weight that is malformed counts as 0."""
    kind, _, parameters = part.partition(";")
    kind = kind.strip().lower()
    exact = 0 if kind == "*/*" else 1 if kind.endswith("/*") else 2
    weight = 1.0
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                weight = float(value)
            except ValueError:
                weight = 0.0
    return kind, exact, weight


def _matches(accepted: str, kind: str) -> bool:
    return accepted in ("*/*", kind) or (accepted.endswith("/*") and kind.startswith(accepted[:-1]))
