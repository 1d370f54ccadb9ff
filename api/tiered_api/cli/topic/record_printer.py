"""The printer of `tiered topic consume`: records as JSON or in a format, up to a number of records."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import orjson

from tiered.records.model import Record
from tiered_api.cli.output import text_or_base64
from tiered_api.cli.text.record_format import PrintableRecord, compile_format
from tiered_api.kafka.client.consumer import FetchedBatch

TEXT = "%p\\t%o\\t%d\\t%k\\t%v\\n"
"""The record format of `--format text`."""

Write = Callable[[PrintableRecord], bytes]


class Printer:
    """Prints records and counts them."""

    def __init__(self, write: Write, max_records: int) -> None:
        self._write = write
        self._max_records = max_records
        self.count = 0

    @property
    def is_done(self) -> bool:
        """True if as many records are printed as the user wants."""
        return self._max_records > 0 and self.count >= self._max_records

    def print(self, fetched: FetchedBatch, end: int | None) -> int:
        """Prints the records of a batch below `end`. Returns the offset after the last one that was handled."""
        out = []
        position = fetched.next_offset
        for record in fetched.records:
            if self.is_done or (end is not None and record.offset >= end):
                position = record.offset
                break
            self.count += 1
            out.append(self._write(_to_printable(fetched, record, self.count)))
        sys.stdout.buffer.write(b"".join(out))
        return position


def _to_printable(fetched: FetchedBatch, record: Record, number: int) -> PrintableRecord:
    tp, head = fetched.tp, fetched.header
    return PrintableRecord(
        tp.topic, tp.partition, record, head.leader_epoch, head.attributes, head.producer_id,
        head.producer_epoch, fetched.log_start_offset, fetched.last_stable_offset, fetched.high_watermark, number,
    )  # fmt: skip


def make_writer(args: Namespace) -> Write:
    if args.format != "json":
        return compile_format(TEXT if args.format == "text" else args.format)
    option = orjson.OPT_INDENT_2 if args.pretty_print else 0

    def write(record: PrintableRecord) -> bytes:
        return orjson.dumps(_as_json(record, args.meta_only), option=option | orjson.OPT_APPEND_NEWLINE)

    return write


def _as_json(record: PrintableRecord, meta_only: bool) -> dict[str, Any]:
    """Returns a record as rpk prints it: absent fields are left out; bytes that are not UTF-8 are base64 with that
    prefix."""
    _, timestamp, key, value, headers = record.record
    out: dict[str, Any] = {"topic": record.topic}
    if key is not None:
        out["key"] = text_or_base64(key)
    if meta_only:
        out["value_size"] = len(value or b"")
    elif value is not None:
        out["value"] = text_or_base64(value)
    if headers:
        out["headers"] = [{"key": name, "value": text_or_base64(data)} for name, data in headers]
    out |= {"timestamp": timestamp, "partition": record.partition, "offset": record.record.offset}
    return out
