"""The schema that a request names for keys or values, as REST v2 and v3 of the REST Proxy name it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tiered_api.http.exchange.errors import INVALID_RECORD, HttpError

SCHEMA_TYPES = {"AVRO": "AVRO", "JSONSCHEMA": "JSON", "PROTOBUF": "PROTOBUF"}
"""The types of v3 with a schema, and their names in the registry."""
STRATEGIES = ("TOPIC_NAME", "RECORD_NAME", "TOPIC_RECORD_NAME")
LATEST = -1
NUMBER_MAX = (1 << 31) - 1


class SchemaSpec(NamedTuple):
    """A schema by its id, by its text, or by subject and version. `kind` is its format in the registry, "" for any.

    Without an id and a text, the version of the subject counts, which is the latest one unless it is given.
    """

    kind: str = ""
    id: int = -1
    text: str = ""
    subject: str = ""
    strategy: str = STRATEGIES[0]
    version: int = LATEST


def parse_spec_v3(field: Mapping[str, Any], what: str) -> SchemaSpec | None:
    """Returns the schema that a key or value of v3 names; None if it names none. Raises `HttpError` 422."""
    kind = field.get("type")
    is_typed = isinstance(kind, str) and kind in SCHEMA_TYPES
    named = [each for each in ("schema_id", "schema_version", "schema", "subject") if field.get(each) is not None]
    strategy = field.get("subject_name_strategy")
    if not is_typed and not named and strategy is None:
        return None
    if kind is not None and not is_typed:
        raise _error(f"{what}.type has to be one of {', '.join(SCHEMA_TYPES)} with a schema")
    if strategy is not None and strategy not in STRATEGIES:
        raise _error(f"{what}.subject_name_strategy has to be one of {', '.join(STRATEGIES)}")
    if strategy is not None and "subject" in named:
        raise _error(f"{what} has to have either subject or subject_name_strategy")
    if len({"schema_id", "schema_version", "schema"} & set(named)) > 1:
        raise _error(f"{what} has to have only one of schema_id, schema_version and schema")
    text, subject = field.get("schema"), field.get("subject")
    if not isinstance(text, str | None) or not isinstance(subject, str | None):
        raise _error(f"{what}.schema and {what}.subject have to be strings")
    if text is not None and kind is None:
        raise _error(f"{what}.schema needs a type: one of {', '.join(SCHEMA_TYPES)}")
    if text is None and "schema_id" not in named and (strategy or STRATEGIES[0]) != STRATEGIES[0]:
        raise _error(f"{what}.subject_name_strategy {strategy} needs a schema or a schema_id")
    return SchemaSpec(
        SCHEMA_TYPES.get(str(kind), ""),
        _number(field.get("schema_id"), f"{what}.schema_id"),
        text or "",
        subject or "",
        strategy or STRATEGIES[0],
        _version(field.get("schema_version"), f"{what}.schema_version"),
    )


def parse_spec_v2(body: Mapping[str, Any], part: str, kind: str) -> SchemaSpec | None:
    """Returns the schema that a body of v2 names for its keys or values; None if it names none. Raises `HttpError`
    422."""
    text, id = body.get(f"{part}_schema"), body.get(f"{part}_schema_id")
    if not isinstance(text, str | None):
        raise _error(f"{part}_schema has to be a string")
    if isinstance(id, str) and id.isascii() and id.isdigit() and len(id) <= 10:
        id = int(id)  # the REST Proxy takes it so
    if id is not None:
        return SchemaSpec(kind, _number(id, f"{part}_schema_id"))
    return None if text is None else SchemaSpec(kind, text=text)


def _number(value: Any, what: str) -> int:
    if value is None:
        return -1
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise _error(f"{what} has to be a non-negative integer")
    return value


def _version(value: Any, what: str) -> int:
    if value is None or value in ("latest", LATEST):
        return LATEST
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    if type(value) is not int or not 1 <= value <= NUMBER_MAX:
        raise _error(f'{what} has to be a number from 1 on, or "latest"')
    return value


def _error(why: str) -> HttpError:
    return HttpError(INVALID_RECORD, why)
