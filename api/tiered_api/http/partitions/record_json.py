"""Records as JSON for readers: whole responses, REST v2 lists, and the data of events."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from tiered.records.aborted import AbortedTransaction
from tiered.records.model import Header, Record
from tiered_api.http.exchange.errors import CONVERSION_FAILED, HttpError
from tiered_api.http.partitions.reads import OBJECTS_MAX, DecodedBatch, decode_batches


def _binary(data: bytes) -> str:
    return b64encode(data).decode("ascii")


DEPTH_SAFE = 200
"""Brackets in a value that need no check: orjson reads depths up to 1024 and writes depths up to 254."""


def _json(data: bytes) -> Any:
    value = orjson.loads(data)
    if data.count(b"[") + data.count(b"{") > DEPTH_SAFE:
        try:
            orjson.dumps([[[value]]])
        except orjson.JSONEncodeError:
            raise ValueError("nested too deeply to be shown") from None
    return value


FORMS: dict[str, Callable[[bytes], Any]] = {"string": bytes.decode, "json": _json, "binary": _binary}
"""Returns the renderer of keys and values; it raises ValueError if bytes are not of the form."""


def headers_json(headers: tuple[Header, ...]) -> list[dict[str, str | None]]:
    """Returns headers with base64 values, the form that REST v3 accepts."""
    return [{"name": name, "value": None if value is None else _binary(value)} for name, value in headers]


def rows_json(batch: DecodedBatch, form: str) -> list[dict[str, Any]]:
    """Returns the records of one batch. Bytes that are not of the form become `key_base64` or `value_base64`, and `key`
    or `value` is null: nothing is lost or ambiguous."""
    show, epoch = FORMS[form], batch.leader_epoch
    try:
        return [
            {
                "offset": offset,
                "timestamp": timestamp,
                "leader_epoch": epoch,
                "key": None if key is None else show(key),
                "value": None if value is None else show(value),
                "headers": headers_json(headers) if headers else [],
            }
            for offset, timestamp, key, value, headers in batch.records
        ]
    except ValueError:
        return [_row(row, epoch, show) for row in batch.records]


def _row(row: Record, epoch: int, show: Callable[[bytes], Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"offset": row.offset, "timestamp": row.timestamp, "leader_epoch": epoch}
    for name, data in (("key", row.key), ("value", row.value)):
        try:
            out[name] = None if data is None else show(data)
        except ValueError:
            out[name] = None
            out[f"{name}_base64"] = _binary(data or b"")
    out["headers"] = headers_json(row.headers)
    return out


def encode_json(
    data: bytes,
    offset: int,
    room: int,
    form: str,
    outer: dict[str, Any],
    aborted: Sequence[AbortedTransaction] = (),
    objects: int = OBJECTS_MAX,
) -> tuple[bytes, int]:
    """Returns (body, records) of a JSON read: `outer` with the next offset and the records."""
    rows: list[dict[str, Any]] = []
    following = offset
    for batch in decode_batches(data, offset, room, objects, aborted):
        rows += rows_json(batch, form)
        following = batch.next_offset
    return orjson.dumps({**outer, "next_offset": following, "records": rows}), len(rows)


def encode_v2(
    data: bytes,
    offset: int,
    room: int,
    form: str,
    topic: str,
    partition: int,
    aborted: Sequence[AbortedTransaction] = (),
) -> tuple[bytes, int, int]:
    """Returns (body, records, next offset) of a REST v2 read."""
    rows, following = rows_v2(data, offset, room, form, topic, partition, aborted=aborted)
    return orjson.dumps(rows), len(rows), following


def rows_v2(
    data: bytes,
    offset: int,
    room: int,
    form: str,
    topic: str,
    partition: int,
    objects: int = OBJECTS_MAX,
    aborted: Sequence[AbortedTransaction] = (),
) -> tuple[list[dict[str, Any]], int]:
    """Returns (records, next offset) of a REST v2 read. Ends before a record that is not of the form, because v2 has no
    other field for it. Raises `HttpError` 422 if that is the first one."""
    show = FORMS[form]
    rows: list[dict[str, Any]] = []
    following = offset
    for batch in decode_batches(data, offset, room, objects, aborted):
        following = batch.next_offset
        for at, _, key, value, _ in batch.records:
            try:
                shown = (None if key is None else show(key), None if value is None else show(value))
            except ValueError:
                if rows:
                    return rows, at
                raise HttpError(
                    CONVERSION_FAILED,
                    f"the record of {topic} partition {partition} at offset {at} is not {form}: read it as binary "
                    f"(Accept, or a consumer made with that format), or go on at position {at + 1}",
                ) from None
            rows.append({"topic": topic, "key": shown[0], "value": shown[1], "partition": partition, "offset": at})
    return rows, following


def encode_events(
    data: bytes,
    offset: int,
    room: int,
    form: str,
    aborted: Sequence[AbortedTransaction] = (),
    objects: int = OBJECTS_MAX,
) -> tuple[bytes, int, int]:
    """Returns (text of the events, records, next offset). The id of an event is the record's offset."""
    out: list[bytes] = []
    following = offset
    for batch in decode_batches(data, offset, room, objects, aborted):
        out += [b"id: %d\ndata: %b\n\n" % (row["offset"], orjson.dumps(row)) for row in rows_json(batch, form)]
        following = batch.next_offset
    return b"".join(out), len(out), following
