"""Records in JSON and back: the embedded formats of REST v2 (binary, json) and v3 (BINARY, JSON, STRING).

A key or value with a schema stays JSON here; `record_encoding` of the registry encodes it.

Numbers follow orjson: integers beyond 64 bits become doubles, as in most JSON readers.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Set
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import orjson

from tiered.records.model import Header
from tiered_api.http.exchange.errors import (
    BAD_REQUEST,
    INVALID_RECORD,
    KEY_SCHEMA_MISSING,
    VALUE_SCHEMA_MISSING,
    HttpError,
)
from tiered_api.http.exchange.fields import check_fields
from tiered_api.http.exchange.schemas import FIELD_V3, HEADER_V3, RECORD_V2, RECORD_V3, names
from tiered_api.http.partitions.schema_spec import SCHEMA_TYPES, SchemaSpec, parse_spec_v3

MAX_TIMESTAMP = 253_402_300_799_999
"""The last millisecond of the year 9999, the last one that an ISO timestamp can express."""
TIMESTAMP_CHARACTERS = 64
"""Most characters of a timestamp in ISO 8601, which needs 32."""
HEADERS_MAX = 1_000
"""Most headers of one record."""
BODY_HEADERS_MAX = 200_000
"""Most headers of all records in one body. Each one takes some 150 bytes of memory, however short it is."""
COMPACT_BYTES = 1 << 20
"""From this size on, a text is not copied for the memory that its maker left to it."""
RECORD_V3_FIELDS = names(RECORD_V3)
FIELD_V3_FIELDS = names(FIELD_V3)
HEADER_V3_FIELDS = names(HEADER_V3)
RECORD_V2_FIELDS = names(RECORD_V2)


NO_SCHEMAS: tuple[SchemaSpec | None, SchemaSpec | None] = (None, None)


class ProducerRecord(NamedTuple):
    """A record as a client sent it. `kinds` names the v3 types of key and value ("" if there is none). Key and value
    are JSON if they have `schemas`, until they are encoded."""

    partition: int | None
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    kinds: tuple[str, str] = ("", "")
    schemas: tuple[SchemaSpec | None, SchemaSpec | None] = NO_SCHEMAS


def record_error(message: str) -> HttpError:
    """Returns the error for a record that is not acceptable."""
    return HttpError(INVALID_RECORD, message)


def decode_base64(text: Any, what: str) -> bytes:
    """Returns the bytes of a base64 string. Raises `HttpError` 422 for any other value."""
    if not isinstance(text, str):
        raise record_error(f"{what} has to be a base64 string")
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise record_error(f"{what} is not base64") from None


# -- v3 ---------------------------------------------------------------------------------------------------------------


def _string(data: Any, what: str) -> bytes:
    if not isinstance(data, str):
        raise record_error(f"{what}.data has to be a string when type is STRING")
    return data.encode()


def _json(data: Any, what: str) -> bytes:
    try:
        return orjson.dumps(data)
    except orjson.JSONEncodeError as error:
        raise record_error(f"{what} cannot be kept as JSON: {error}") from None


def _compact_json(data: Any, what: str) -> bytes:
    return _compact(_json(data, what))


def _compact(text: bytes) -> bytes:
    """Returns a short text in memory of its size. orjson leaves 4 KiB and more to each one that it makes."""
    return b"%b" % text if len(text) < COMPACT_BYTES else text


def compact_record(record: ProducerRecord) -> ProducerRecord:
    """Returns a record of v3 that may be kept together with many others: its JSON takes no more memory than its
    bytes."""
    key_kind, value_kind = record.kinds
    if "JSON" not in record.kinds:
        return record
    key = _compact(record.key) if key_kind == "JSON" and record.key is not None else record.key
    value = _compact(record.value) if value_kind == "JSON" and record.value is not None else record.value
    return record._replace(key=key, value=value)


_FROM_V3: dict[str, Callable[[Any, str], bytes]] = {"STRING": _string, "JSON": _json, "BINARY": decode_base64}


def _field_v3(field: Any, what: str, code: int) -> tuple[bytes | None, str, SchemaSpec | None]:
    if field is None:
        return None, "", None
    if not isinstance(field, dict):
        raise record_error(f"{what} has to be an object with type and data")
    if len(field) != 2 or "type" not in field or "data" not in field:  # the check of all fields takes longer
        check_fields(field, FIELD_V3_FIELDS, what, code)
        if "data" not in field:
            raise record_error(f"{what} needs data (null for none)")
        schema = parse_spec_v3(field, what)
        if schema is not None:
            data = field["data"]
            return (None, "", None) if data is None else (_compact_json(data, what), "", schema)
    kind, data = field.get("type"), field["data"]
    if isinstance(kind, str) and kind in _FROM_V3:
        return (None if data is None else _FROM_V3[kind](data, what)), kind, None
    if data is None and (kind is None or kind in SCHEMA_TYPES):
        return None, "", None
    if isinstance(kind, str) and kind in SCHEMA_TYPES:
        return _compact_json(data, what), "", parse_spec_v3(field, what)
    raise record_error(f"{what}.type has to be one of BINARY, JSON, STRING, {', '.join(SCHEMA_TYPES)}")


def parse_record_v3(
    record: Any, now_ms: int, allowed: Set[str] = RECORD_V3_FIELDS, code: int = BAD_REQUEST
) -> ProducerRecord:
    """Parses one record of a v3 body, which has no other than the `allowed` fields. Raises `HttpError` 4xx with the
    reason if it is malformed, and with `code` for an unknown field."""
    if not isinstance(record, dict):
        raise record_error("a record has to be a JSON object")
    key = value = key_schema = value_schema = None
    key_kind = value_kind = ""
    fields = 0
    if "key" in record:
        key, key_kind, key_schema = _field_v3(record["key"], "key", code)
        fields = 1
    if "value" in record:
        value, value_kind, value_schema = _field_v3(record["value"], "value", code)
        fields += 1
    if len(record) == fields and key_schema is None and value_schema is None:  # most have no other field
        return ProducerRecord(None, now_ms, key, value, (), (key_kind, value_kind))
    check_fields(record, allowed, "a record", code)
    partition, timestamp, headers = record.get("partition_id"), record.get("timestamp"), record.get("headers")
    return ProducerRecord(
        None if partition is None else _partition(partition),
        now_ms if timestamp is None else parse_timestamp(timestamp),
        key,
        value,
        () if headers is None else _headers_v3(headers, code),
        (key_kind, value_kind),
        NO_SCHEMAS if key_schema is None and value_schema is None else (key_schema, value_schema),
    )


def _partition(partition: Any) -> int:
    if type(partition) is not int or not 0 <= partition < 1 << 31:
        raise HttpError(BAD_REQUEST, "the partition has to be a non-negative integer")
    return partition


def _headers_v3(headers: Any, code: int) -> tuple[Header, ...]:
    if not isinstance(headers, list) or len(headers) > HEADERS_MAX:
        raise record_error(f"headers has to be an array of at most {HEADERS_MAX}")
    out: list[Header] = []
    for header in headers:
        if not isinstance(header, dict) or not isinstance(header.get("name"), str):
            raise record_error("a header has to be an object with name and value")
        check_fields(header, HEADER_V3_FIELDS, "a header", code)
        value = header.get("value")
        out.append((header["name"], None if value is None else decode_base64(value, "a header's value")))
    return tuple(out)


def check_header_count(count: int) -> None:
    """Raises `HttpError` 413 if the records of one body have too many headers."""
    if count > BODY_HEADERS_MAX:
        raise HttpError(413, f"the records have more than {BODY_HEADERS_MAX} headers: use several requests")


def parse_timestamp(value: Any) -> int:
    """Returns milliseconds from an ISO 8601 timestamp with its offset from UTC, or from an integer of milliseconds."""
    if isinstance(value, str):
        try:
            value = value if len(value) <= TIMESTAMP_CHARACTERS else ""
            value = (datetime.fromisoformat(value) - _EPOCH) // _MILLISECOND
        except (ValueError, TypeError):
            value = None
    if type(value) is not int:
        raise record_error(
            "timestamp has to be ISO 8601 with an offset (2013-01-01T05:00:00Z) or milliseconds since 1970"
        )
    if not 0 <= value <= MAX_TIMESTAMP:
        raise record_error("timestamp is outside of 1970 to 9999")
    return value


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


_last_formatted: tuple[int, str] = (0, "1970-01-01T00:00:00.000Z")


def format_timestamp(ms: int) -> str:
    """Returns an ISO 8601 timestamp in UTC. The last result is cached, because many records have the same timestamp."""
    global _last_formatted
    if ms == _last_formatted[0]:
        return _last_formatted[1]
    text = f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
    _last_formatted = (ms, text)
    return text


# -- v2 ---------------------------------------------------------------------------------------------------------------


SCHEMA_FORM = "schema"
FROM_V2: dict[str, Callable[[Any, str], bytes]] = {
    "binary": decode_base64,
    "json": _compact_json,
    SCHEMA_FORM: _compact_json,
}


def parse_record_v2(
    record: Any, form: str, now_ms: int, schemas: tuple[SchemaSpec | None, SchemaSpec | None] = NO_SCHEMAS
) -> ProducerRecord:
    """Parses one record of a v2 body in an embedded format: "binary", "json", or "schema" for one with `schemas`.
    Raises `HttpError` 422, also for a key or value without its schema."""
    if not isinstance(record, dict):
        raise record_error("a record has to be a JSON object")
    check_fields(record, RECORD_V2_FIELDS, "a record of v2", 422)
    read = FROM_V2[form]
    key, value, partition = record.get("key"), record.get("value"), record.get("partition")
    if form == SCHEMA_FORM:
        if key is not None and schemas[0] is None:
            raise HttpError(KEY_SCHEMA_MISSING, "a record has a key, and the body has no key_schema or key_schema_id")
        if value is not None and schemas[1] is None:
            why = "a record has a value, and the body has no value_schema or value_schema_id"
            raise HttpError(VALUE_SCHEMA_MISSING, why)
    return ProducerRecord(
        None if partition is None else _partition(partition),
        now_ms,
        None if key is None else read(key, "key"),
        None if value is None else read(value, "value"),
        (),
        schemas=schemas,
    )
