"""`tiered topic consume`: records of topics as JSON or in a format, from one place to another or until interrupted."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.records.model import Record
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import print_error, text_or_base64
from tiered_api.cli.reach import open_client, parse_numbers
from tiered_api.cli.text.offset_range import Point, PointKind, Range, parse_range, resolve_offsets
from tiered_api.cli.text.record_format import PrintableRecord, compile_format
from tiered_api.cli.topic.describe import partitions_of
from tiered_api.cli.topic.topics import select_topics
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.consumer import FetchedBatch, KafkaConsumer

TEXT = "%p\\t%o\\t%d\\t%k\\t%v\\n"
"""What `--format text` stands for."""
MEMBER_WAIT_MS = 5000

Write = Callable[[PrintableRecord], bytes]


def consume(args: Namespace) -> int:
    """Prints records."""
    try:
        asyncio.run(_consume(args))
    except asyncio.CancelledError:
        return Exit.INTERRUPTED
    return Exit.OK


async def _consume(args: Namespace) -> None:
    this = asyncio.current_task()
    assert this is not None
    # As Ctrl-C: a member of a group leaves it.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    write = _make_writer(args)
    where = parse_range(args.offset, time.time_ns() // 1_000_000)
    if args.group is not None:
        from tiered_api.cli.topic.consume_group import consume_as_member

        await consume_as_member(args, where, write)
        return
    async with open_client(args) as client:
        wanted = await select_partitions(client, args)
        starts, ends = await resolve_bounds(client, where, wanted, read_committed=args.read_committed)
        consumer = new_consumer(client, args)
        consumer.assign({each: start for each, start in starts.items() if each not in ends or start < ends[each]})
        try:
            await _read(consumer, ends, Printer(write, args.num))
        finally:
            await consumer.close()


def new_consumer(client: KafkaClient, args: Namespace) -> KafkaConsumer:
    """A consumer as the options say. Heartbeats of a member go over the same connection: no poll may hold them up."""
    wait_ms = args.fetch_max_wait if args.group is None else min(args.fetch_max_wait, MEMBER_WAIT_MS)
    return KafkaConsumer(
        client,
        read_committed=args.read_committed,
        include_control=args.print_control_records,
        max_wait_ms=wait_ms,
        max_bytes=args.fetch_max_bytes,
        rack=args.rack,
        warn=print_error,
    )


async def select_partitions(client: KafkaClient, args: Namespace) -> list[TopicPartition]:
    """The partitions that are read. Refused when one is not there."""
    names = await select_topics(client, args)
    wanted = [each for name in names for each in partitions_of(await client.fetch_topic(name))]
    if args.partitions is None:
        return wanted
    only = parse_numbers(args.partitions, "-p")
    missing = [f"{name}-{number}" for name in names for number in only if TopicPartition(name, number) not in wanted]
    if missing:
        raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {', '.join(missing)}")
    return [each for each in wanted if each.partition in only]


async def resolve_bounds(
    client: KafkaClient, where: Range, wanted: list[TopicPartition], *, read_committed: bool
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Where to begin in each partition, and where to end if the range does. What ends lies within the log now, so that
    reading comes to its end; what was deleted is passed over."""
    starts = await resolve_offsets(client, where.start, wanted, read_committed=read_committed)
    if where.end is None:
        return starts, {}
    lows = await resolve_offsets(client, Point(PointKind.START), wanted)
    highs = await resolve_offsets(client, Point(PointKind.END), wanted, read_committed=read_committed)
    ends = await resolve_offsets(client, where.end, wanted, read_committed=read_committed)
    return (
        {each: max(start, lows[each]) for each, start in starts.items()},
        {each: min(end, highs[each]) for each, end in ends.items()},
    )


class Printer:
    """Prints records and counts them. `is_done` when as many as asked for are printed."""

    def __init__(self, write: Write, max_records: int) -> None:
        self._write = write
        self._max_records = max_records
        self.count = 0

    @property
    def is_done(self) -> bool:
        """Whether no more is wanted."""
        return self._max_records > 0 and self.count >= self._max_records

    def print(self, fetched: FetchedBatch, end: int | None) -> int:
        """Prints the records of a batch that lie before `end`; the offset behind the last one that it dealt with."""
        out = []
        position = fetched.header.next_offset
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


async def _read(consumer: KafkaConsumer, ends: Mapping[TopicPartition, int], printer: Printer) -> None:
    """Reads until every partition is at its end, enough is printed, or for ever."""
    trimmed = 0
    while consumer.positions() and not printer.is_done:
        for fetched in await consumer.poll():
            printer.print(fetched, ends.get(fetched.tp))
        sys.stdout.buffer.flush()
        for tp, position in consumer.positions().items():
            if tp in ends and position >= ends[tp]:
                consumer.unassign(tp)
        if consumer.skipped_offsets > trimmed:
            print(
                f"tiered: {consumer.skipped_offsets - trimmed} offsets were deleted before they were read",
                file=sys.stderr,
            )
            trimmed = consumer.skipped_offsets


# -- how records are printed ------------------------------------------------------------------------------------------


def _make_writer(args: Namespace) -> Write:
    if args.format != "json":
        return compile_format(TEXT if args.format == "text" else args.format)
    option = orjson.OPT_INDENT_2 if args.pretty_print else 0

    def write(record: PrintableRecord) -> bytes:
        return orjson.dumps(_as_json(record, args.meta_only), option=option | orjson.OPT_APPEND_NEWLINE)

    return write


def _as_json(record: PrintableRecord, meta_only: bool) -> dict[str, Any]:
    """A record as rpk prints it: what is absent is left out; bytes that are no text are base64 with that prefix."""
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
