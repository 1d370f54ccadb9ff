"""Records as JSON for readers: whole responses, REST v2 lists, and the data of events.

A response is rendered in pieces. The objects of one piece exist at a time, and each step holds the interpreter's lock
for milliseconds. So the pieces are not joined, and long base64 is made bit by bit.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import orjson

from tiered.records.aborted import AbortedTransaction
from tiered.records.marker import TransactionMarker
from tiered.records.model import Header, Record
from tiered.records.pieces import RECORD_BYTES
from tiered_api.http.exchange.errors import CONVERSION_FAILED, HttpError
from tiered_api.http.partitions.json_condition import TooLongToShow, parse_json
from tiered_api.http.partitions.reads import OBJECTS_MAX, SHOWN_BYTES_MAX, DecodedBatch, decode_batches
from tiered_api.http.partitions.record_filter import RecordFilter
from tiered_api.http.partitions.record_search import LastRecords, RecordSearch

PIECE_BYTES = 1 << 17
"""Bytes of records that are rendered in one step, beside a single larger record."""
BINARY_BYTES = 3 << 18
"""Bytes that become base64 in one step: whole groups of three."""
DEPTH_SAFE = 200
"""Brackets in a value that need no check: orjson reads depths up to 1024 and writes depths up to 254."""
EXPANSION_MAX = 3
"""Most bytes of a response for each byte of its room. Control characters take six as text. It has one record at
least."""


class Rendered(NamedTuple):
    """A response in pieces, the number of records that it shows, and the offset of the next read."""

    pieces: list[bytes]
    shown: int
    next_offset: int

    @property
    def size(self) -> int:
        """Bytes of the response."""
        return sum(map(len, self.pieces))


Tails = list[tuple[str, bytes]]
"""Fields at the end of a row, as base64."""
Row = tuple[dict[str, Any], Tails]


def _binary(data: bytes) -> str:
    if len(data) > SHOWN_BYTES_MAX:
        raise TooLongToShow
    return b64encode(data).decode("ascii")


def _text(data: bytes) -> str:
    if len(data) > SHOWN_BYTES_MAX:
        raise TooLongToShow(f"it has {len(data)} bytes, more than {SHOWN_BYTES_MAX}")
    return data.decode()


def _json(data: bytes) -> Any:
    value = parse_json(data)
    if data.count(b"[") + data.count(b"{") > DEPTH_SAFE:
        try:
            orjson.dumps([[[value]]])
        except orjson.JSONEncodeError:
            raise ValueError("nested too deeply to be shown") from None
    return value


_KEY, _VALUE = attrgetter("key"), attrgetter("value")

FORMS: dict[str, Callable[[bytes], Any]] = {"string": _text, "json": _json, "binary": _binary}
"""Returns the renderer of keys and values; it raises ValueError if bytes are not of the form, or are too long."""


def headers_json(headers: tuple[Header, ...]) -> list[dict[str, str | None]]:
    """Returns headers with base64 values, the form that REST v3 accepts."""
    return [
        {"name": name, "value": None if value is None else b64encode(value).decode("ascii")} for name, value in headers
    ]


def _find_longest(records: Sequence[Record]) -> int:
    """Returns the size of the longest key or value."""
    return max(map(len, filter(None, chain(map(_KEY, records), map(_VALUE, records)))), default=0)


def _rows_json(records: Sequence[Record], batch: DecodedBatch, form: str) -> list[dict[str, Any]]:
    """Returns records of one batch. Raises `ValueError` if a key or value is not of the form."""
    epoch, marker, show = batch.leader_epoch, batch.marker, FORMS[form]
    if marker is not None:
        return [_control_row(record, epoch, marker) for record in records]
    if form == "string" and _find_longest(records) <= SHOWN_BYTES_MAX:
        show = bytes.decode  # what `_text` does then, without a call of Python for each
    return [
        {
            "offset": offset,
            "timestamp": timestamp,
            "leader_epoch": epoch,
            "key": None if key is None else show(key),
            "value": None if value is None else show(value),
            "headers": headers_json(headers) if headers else [],
        }
        for offset, timestamp, key, value, headers in records
    ]


def _row(row: Record, epoch: int, form: str) -> Row:
    """Returns a record, and its fields that are too long. Bytes that are not of the form become `key_base64` or
    `value_base64`, and `key` or `value` is null: nothing is lost or ambiguous."""
    show, tails = FORMS[form], Tails()
    out: dict[str, Any] = {"offset": row.offset, "timestamp": row.timestamp, "leader_epoch": epoch}
    for name, data in (("key", row.key), ("value", row.value)):
        try:
            out[name] = None if data is None else show(data)
        except ValueError:
            assert data is not None
            if form == "binary":
                tails.append((name, data))
                continue
            out[name] = None
            tails.append((f"{name}_base64", data))
    out["headers"] = headers_json(row.headers)
    return out, tails


def _control_row(record: Record, epoch: int, marker: TransactionMarker) -> dict[str, Any]:
    """Returns the row of a control record, with what it says beside the fields of all rows."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "leader_epoch": epoch,
        "key": None,
        "value": None,
        "headers": [],
        "control": "commit" if marker.commit else "abort",
        "producer_id": marker.producer_id,
        "producer_epoch": marker.producer_epoch,
        "coordinator_epoch": marker.coordinator_epoch,
    }


def _row_pieces(row: dict[str, Any], tails: Tails) -> Iterator[bytes]:
    """Yields the JSON of a row."""
    text = orjson.dumps(row)
    if not tails:
        yield text
        return
    yield text[:-1]
    for name, data in tails:
        yield b',"%b":"' % name.encode()
        for at in range(0, len(data), BINARY_BYTES):
            yield b64encode(data[at : at + BINARY_BYTES])
        yield b'"'
    yield b"}"


def _join(rows: Sequence[Row]) -> list[bytes]:
    """Returns the JSON of rows, with commas between them."""
    if not any(tails for _, tails in rows):
        return [orjson.dumps([row for row, _ in rows])[1:-1]]
    out: list[bytes] = []
    for row, tails in rows:
        out += (b",", *_row_pieces(row, tails))
    return out[1:]


def _slices(batch: DecodedBatch) -> Iterator[tuple[Sequence[Record], int]]:
    """Yields the records of a batch in pieces, each with the offset after it. A batch of one piece needs no look at its
    records."""
    start = size = 0
    if 0 <= batch.size < PIECE_BYTES:
        yield batch.records, batch.next_offset
        return
    for n, (_, _, key, value, headers) in enumerate(batch.records, 1):
        size += RECORD_BYTES * (1 + len(headers)) + len(key or b"") + len(value or b"")
        if size >= PIECE_BYTES and n < len(batch.records):
            yield batch.records[start:n], batch.records[n - 1].offset + 1
            start, size = n, 0
    yield batch.records[start:], batch.next_offset


def _gather(
    batches: Iterator[DecodedBatch],
    offset: int,
    room: int,
    render: Callable[[Sequence[Record], DecodedBatch], list[bytes]],
    between: bytes = b"",
) -> Rendered:
    """Returns what `render` makes of the records and their batch, with `between` between its results."""
    pieces, count, following, size = list[bytes](), 0, offset, 0
    for batch in batches:
        for records, ends in _slices(batch):
            if records:
                made = render(records, batch)
                if count and between:
                    pieces.append(between)
                pieces += made
                count, size = count + len(records), size + sum(map(len, made))
            following = ends
            if size >= EXPANSION_MAX * room:
                return Rendered(pieces, count, following)
    return Rendered(pieces, count, following)


def encode_json(
    data: bytes,
    offset: int,
    room: int,
    form: str,
    outer: dict[str, Any],
    aborted: Sequence[AbortedTransaction] = (),
    objects: int = OBJECTS_MAX,
    with_control: bool = False,
) -> Rendered:
    """Returns a JSON read: `outer` with the next offset and the records."""
    batches = decode_batches(data, offset, room, objects, aborted, with_control)
    pieces, count, following = _gather_json(batches, offset, room, form)
    return _complete_json(outer | {"next_offset": following}, pieces, count, following)


def encode_found(
    search: RecordSearch,
    offset: int,
    most: int,
    room: int,
    form: str,
    outer: dict[str, Any],
    aborted: Sequence[AbortedTransaction] = (),
) -> Rendered:
    """Returns a JSON read of the records that a search finds, `most` at most, with the number of records that were
    looked at."""
    batches = search.find_records(offset, most, room, aborted)
    pieces, count, following = _gather_json(batches, offset, room, form)
    return _complete_json(outer | {"next_offset": following, "scanned": search.scanned}, pieces, count, following)


def encode_last(found: LastRecords, room: int, form: str, outer: dict[str, Any]) -> Rendered:
    """Returns a JSON read of the records that a search from the end found, the last one first. The next read is before
    `next_before`."""
    pieces, count, _ = _gather_json(iter(found.batches), 0, room, form)
    records = [record for batch in found.batches for record in batch.records]
    before = found.searched_from if count == len(records) else records[count - 1].offset
    return _complete_json(outer | {"next_before": before}, pieces, count, before)


def _gather_json(batches: Iterator[DecodedBatch], offset: int, room: int, form: str) -> Rendered:
    """Returns records as JSON, with commas between them."""

    def render(records: Sequence[Record], batch: DecodedBatch) -> list[bytes]:
        try:
            return [orjson.dumps(_rows_json(records, batch, form))[1:-1]]
        except ValueError:
            return _join([_row(record, batch.leader_epoch, form) for record in records])

    return _gather(batches, offset, room, render, b",")


def _complete_json(outer: dict[str, Any], pieces: list[bytes], count: int, following: int) -> Rendered:
    return Rendered([orjson.dumps(outer)[:-1] + b',"records":[', *pieces, b"]}"], count, following)


def encode_v2(
    data: bytes,
    offset: int,
    room: int,
    form: str,
    topic: str,
    partition: int,
    aborted: Sequence[AbortedTransaction] = (),
) -> Rendered:
    """Returns a REST v2 read."""
    pieces, count, following = rows_v2(data, offset, room, form, topic, partition, aborted=aborted)
    return Rendered([b"[", *pieces, b"]"], count, following)


def rows_v2(
    data: bytes,
    offset: int,
    room: int,
    form: str,
    topic: str,
    partition: int,
    objects: int = OBJECTS_MAX,
    aborted: Sequence[AbortedTransaction] = (),
    show: Callable[[bytes], Any] | None = None,
) -> Rendered:
    """Returns the rows of a REST v2 read, with commas between them. Ends before a record that is not of the form, or
    takes too long to be shown as JSON: v2 has no other field for it. Raises `HttpError` 422 if that is the first one.

    `show` renders keys and values in a format with schemas. Its `LookupError` for a schema that is not loaded ends the
    rows too, and is raised for the first record.
    """
    show = show or FORMS[form]
    pieces, count, following, size = list[bytes](), 0, offset, 0
    for batch in decode_batches(data, offset, room, objects, aborted):
        for records, ends in _slices(batch):
            rows, why = list[Row](), None
            for record in records:
                try:
                    rows.append(_row_v2(record, topic, partition, form, show))
                except ValueError as error:
                    why = f" ({error})" if isinstance(error, TooLongToShow) or form not in FORMS else ""
                    break
                except LookupError:
                    if not count and not rows:
                        raise
                    why = ""
                    break
            if rows:
                made = _join(rows)
                pieces += [b",", *made] if count else made
                count, size = count + len(rows), size + sum(map(len, made))
            if why is not None:
                ends = records[len(rows)].offset
                if not count:
                    raise _unshown_v2(why, topic, partition, ends, form)
            following = ends
            if why is not None or size >= EXPANSION_MAX * room:
                return Rendered(pieces, count, following)
    return Rendered(pieces, count, following)


def _row_v2(record: Record, topic: str, partition: int, form: str, show: Callable[[bytes], Any]) -> Row:
    """Returns a record, and its fields that are too long. Raises `ValueError` if it is not of the form."""
    tails = Tails()
    row: dict[str, Any] = {"topic": topic}
    for name, data in (("key", record.key), ("value", record.value)):
        try:
            row[name] = None if data is None else show(data)
        except ValueError:
            if form != "binary" or data is None:
                raise
            tails.append((name, data))
    row |= {"partition": partition, "offset": record.offset}
    return row, tails


def _unshown_v2(why: str, topic: str, partition: int, offset: int, form: str) -> HttpError:
    return HttpError(
        CONVERSION_FAILED,
        f"the record of {topic} partition {partition} at offset {offset} is not {form}{why}: read it as binary "
        f"(Accept, or a consumer made with that format), or go on at position {offset + 1}",
    )


def encode_events(
    data: bytes,
    offset: int,
    room: int,
    form: str,
    aborted: Sequence[AbortedTransaction] = (),
    objects: int = OBJECTS_MAX,
    wanted: RecordFilter | None = None,
    with_control: bool = False,
) -> Rendered:
    """Returns events, of all records or of those that fit a filter. The id of an event is the record's offset."""

    def render(records: Sequence[Record], batch: DecodedBatch) -> list[bytes]:
        out: list[bytes] = []
        try:
            rows = _rows_json(records, batch, form)
        except ValueError:
            for record in records:
                row, tails = _row(record, batch.leader_epoch, form)
                out += (b"id: %d\ndata: " % record.offset, *_row_pieces(row, tails), b"\n\n")
            return out
        return [b"".join(b"id: %d\ndata: %b\n\n" % (row["offset"], orjson.dumps(row)) for row in rows)]

    if wanted is None:
        batches = decode_batches(data, offset, room, objects, aborted, with_control)
    else:
        batches = RecordSearch(data, wanted).find_records(offset, OBJECTS_MAX, room, aborted, objects)
    return _gather(batches, offset, room, render)
