"""`tiered topic produce`: records from standard input into topics, and a line for each that is written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Iterable

from tiered.errors import Code, Refused, Unavailable
from tiered.records.model import Codec, Header, Record
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import discard_output, print_error, print_json, text_or_base64
from tiered_api.cli.reach import open_client, parse_pairs
from tiered_api.cli.text.record_format import PrintableRecord, compile_format
from tiered_api.cli.text.record_input import InputRecord, RecordReader
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.producer import BATCH_BYTES, DeliveryReport, KafkaProducer
from tiered_api.kafka.client.transactions import ProducerTransaction

READ_BYTES = 1 << 20
STDIN = 0


async def produce(args: Namespace) -> int:
    """Produces records until the end of the input. Records that could not be written end it with an error that counts
    them."""
    reader = RecordReader(args.format)
    headers: list[Header] = [(name, value.encode()) for name, value in parse_pairs(args.header, "-H", ":=")]
    report = _make_reporter(args.output_format)
    async with open_client(args) as client:
        producer = KafkaProducer(
            client,
            report,
            random.Random(),
            acks=args.acks,
            codec=Codec[args.compression.upper()],
            batch_bytes=BATCH_BYTES if args.max_message_bytes is None else args.max_message_bytes,
            delivery_seconds=args.delivery_timeout,
            create_topics=args.allow_auto_topic_creation,
            transaction=_make_transaction(client, args),
        )
        try:
            async with producer, contextlib.aclosing(_read_stdin(producer)) as pieces:
                async for data in pieces:
                    await _add(client, producer, reader.feed(data, end=not data), args, headers)
        except Refused as no:
            if not producer.added:
                raise
            _print_written(producer)
            print_error(no.why if args.transactional_id is None else f"the transaction is not committed: {no.why}")
            return Exit.FAILED
        except Unavailable:
            _print_written(producer)
            raise
        except BrokenPipeError:
            # The reader of our output left (`| head`). Some records may not have been written: that is no success.
            discard_output()
            _print_written(producer)
            print("tiered: the reader of the output is gone (-o '' prints nothing)", file=sys.stderr)
            return Exit.FAILED
    return Exit.OK


def _make_transaction(client: KafkaClient, args: Namespace) -> ProducerTransaction | None:
    if args.transactional_id is None:
        return None
    if args.acks != -1:
        raise Refused(Code.INVALID_REQUEST, "--transactional-id needs --acks all")
    return ProducerTransaction(client, args.transactional_id, args.transaction_timeout)


async def _read_stdin(producer: KafkaProducer) -> AsyncGenerator[bytes, None]:
    """Yields standard input as it comes, b"" at its end; ends with the producer."""
    data = b"."
    while data:
        await producer.wait_or_fail(_wait_readable())
        data = os.read(STDIN, READ_BYTES)
        yield data


async def _wait_readable() -> None:
    """Returns when standard input can be read without waiting. The loop must not wait in a read: batches are sent
    meanwhile. (No thread waits in it either: it could not be interrupted.)"""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def on_readable() -> None:
        # Once: the loop would report it until we read.
        loop.remove_reader(STDIN)
        if not ready.done():
            ready.set_result(None)

    try:
        loop.add_reader(STDIN, on_readable)
    except PermissionError:
        return  # a file: there is always something to read
    try:
        await ready
    finally:
        loop.remove_reader(STDIN)


async def _add(
    client: KafkaClient, producer: KafkaProducer, records: Iterable[InputRecord], args: Namespace, headers: list[Header]
) -> None:
    key = None if args.key is None else args.key.encode()
    for parsed in records:
        topic = parsed.topic or args.topic
        if not topic:
            raise Refused(Code.INVALID_REQUEST, "no topic: name one, or read it from the input with %t")
        value = parsed.value
        if args.tombstone and not value:
            value = None
        elif value is None:
            value = b""
        timestamp = client.clock.wall_ms() if parsed.timestamp is None else parsed.timestamp
        partition = args.partition if parsed.partition is None else parsed.partition
        record = (timestamp, key if parsed.key is None else parsed.key, value, [*headers, *parsed.headers])
        await producer.add(topic, partition, record)


def _make_reporter(form: str) -> Callable[[DeliveryReport], None]:
    """Returns the printer of written records: by a format, as JSON, or none."""
    if form == "json":
        return lambda delivered: _for_each_record(delivered, _print_json)
    if not form:
        return lambda delivered: None
    write = compile_format(form)

    def report(delivered: DeliveryReport) -> None:
        _for_each_record(delivered, lambda record: sys.stdout.buffer.write(write(record)))
        sys.stdout.buffer.flush()

    return report


def _for_each_record(delivered: DeliveryReport, call: Callable[[PrintableRecord], object]) -> None:
    for number, (timestamp, key, value, headers) in enumerate(delivered.records):
        offset = -1 if delivered.base_offset < 0 else delivered.base_offset + number
        when = timestamp if delivered.timestamp < 0 else delivered.timestamp
        record = Record(
            offset,
            when,
            None if key is None else bytes(key),
            None if value is None else bytes(value),
            tuple(headers),
        )
        call(PrintableRecord(delivered.tp.topic, delivered.tp.partition, record, number=number))


def _print_json(record: PrintableRecord) -> None:
    print_json(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.record.offset,
            "timestamp": record.record.timestamp,
            "key": text_or_base64(record.record.key),
        }
    )


def _print_written(producer: KafkaProducer) -> None:
    sys.stdout.flush()
    if producer.written:
        print(f"tiered: {producer.written} of {producer.added} records that were read are written", file=sys.stderr)
