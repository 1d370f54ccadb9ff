"""Bodies and query parameters of requests to the registry, and its replies."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from aiohttp import web

from tiered.registry.records import VersionWritten, describe_schema, encode_extra
from tiered.registry.refusals import invalid_schema
from tiered.registry.schema import AVRO, KINDS, PROTOBUF, Reference, Schema
from tiered.registry.state import LATEST
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.fields import check_fields
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import HttpResponse, json_response
from tiered_api.http.exchange.schemas import REGISTERED_SCHEMA, SCHEMA_REFERENCE, names

UNPROCESSABLE = 422
INTEGER_MAX = (1 << 31) - 1
SERIALIZED = "serialized"
FORMATS = ("", "default", SERIALIZED)

T = TypeVar("T")


class Given(NamedTuple):
    """The schema of a body, and the id and version that an import gives; -1 without one."""

    schema: Schema
    id: int
    version: int


async def read_schema(request: HttpRequest) -> Given:
    """Reads a body with a schema. Raises `HttpError` or `RegistryRefused`."""
    body = await request.read_json_object()
    check_fields(body, names(REGISTERED_SCHEMA), "the body", UNPROCESSABLE)
    text, kind = body.get("schema"), body.get("schemaType")
    if not isinstance(text, str) or not isinstance(kind, str | None):
        raise HttpError(UNPROCESSABLE, "schema and schemaType have to be strings")
    if kind is not None and kind not in KINDS:
        raise invalid_schema(f"there is no schema type {kind[:40]!r}; there are {', '.join(KINDS)}")
    if not text.strip():
        raise invalid_schema("the schema is empty")
    for name in ("metadata", "ruleSet"):
        if not isinstance(body.get(name), dict | None):
            raise HttpError(UNPROCESSABLE, f"{name} has to be an object")
    references = body.get("references")
    if not isinstance(references, list | None):
        raise HttpError(UNPROCESSABLE, "references has to be an array")
    schema = Schema(text, kind or AVRO, tuple(map(_read_reference, references or ())), encode_extra(body))
    return Given(schema, _read_number(body, "id", 0), _read_number(body, "version", 1))


def _read_reference(value: Any) -> Reference:
    if not isinstance(value, dict):
        raise HttpError(UNPROCESSABLE, "a reference has to be an object")
    check_fields(value, names(SCHEMA_REFERENCE), "a reference", UNPROCESSABLE)
    name, subject, version = (value.get(each) for each in ("name", "subject", "version"))
    if not isinstance(name, str) or not isinstance(subject, str) or type(version) is not int:
        raise HttpError(UNPROCESSABLE, "a reference has a name, a subject and a version")
    if not LATEST <= version <= INTEGER_MAX:
        raise HttpError(UNPROCESSABLE, "the version of a reference has to be a number, or -1 for the latest")
    return Reference(name, subject, version)


def _read_number(body: dict[str, Any], name: str, low: int) -> int:
    """Returns a number of a body. -1 without it, and for a lower one, by which clients say that there is none."""
    value = body.get(name)
    if value is None:
        return -1
    if type(value) is not int or not -1 <= value <= INTEGER_MAX:
        raise HttpError(UNPROCESSABLE, f"{name} has to be an integer")
    return value if value >= low else -1


def query_flag(request: HttpRequest, name: str, *others: str) -> bool:
    """Returns a boolean of the query; clients write it in any case. Raises `HttpError` 400."""
    parameters = request.query_parameters()
    text = next((parameters[each] for each in (name, *others) if each in parameters), "").lower()
    if text not in ("", "true", "false"):
        raise HttpError(400, f"{name} has to be true or false")
    return text == "true"


def take_page(request: HttpRequest, found: list[T]) -> list[T]:
    """Returns the part of a list that `offset` and `limit` of the query name; -1 means no limit."""
    offset = request.query_integer("offset", 0, 0, INTEGER_MAX)
    limit = request.query_integer("limit", -1, -1, INTEGER_MAX)
    return found[offset:] if limit < 0 else found[offset : offset + limit]


def wanted_format(request: HttpRequest) -> str:
    """Returns `format` of the query. Raises `HttpError` 422 for one that does not exist here."""
    wanted = request.query_parameters().get("format", "")
    if wanted not in FORMATS:
        raise HttpError(UNPROCESSABLE, f"format={wanted[:40]!r} is not available; there is {SERIALIZED}")
    return wanted


def reply(request: HttpRequest, value: Any) -> web.StreamResponse:
    """Returns a value as JSON, of the type that the client prefers."""
    kind = media_types.negotiate_type(request.headers.get("Accept"), media_types.REGISTRY)
    return json_response(value, media_type=kind)


def reply_text(request: HttpRequest, schema: Schema) -> web.StreamResponse:
    """Returns the text of a schema alone."""
    if schema.kind == PROTOBUF:
        return HttpResponse(schema.text.encode(), media_type=media_types.TEXT)
    kind = media_types.negotiate_type(request.headers.get("Accept"), media_types.REGISTRY)
    return HttpResponse(schema.text.encode(), media_type=kind)


def describe_version(found: VersionWritten) -> dict[str, Any]:
    """Returns a version as clients see it."""
    named = {"subject": found.subject, "version": found.version, "id": found.id, "guid": found.schema.guid}
    return {**named, **describe_schema(found.schema)}
