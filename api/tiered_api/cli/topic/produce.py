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
from tiered_api.cli.output import drop_output, print_json, say_error, shown
from tiered_api.cli.reach import cluster, pairs
from tiered_api.cli.text.record_format import Shown, compiled
from tiered_api.cli.text.record_input import Parsed, RecordReader
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.producer import BATCH_BYTES, DeliveryReport, KafkaProducer

READ_BYTES = 1 << 20
STDIN = 0


def produce(args: Namespace) -> int:
    """Reads records until the end of the input. What could not be written ends it with an error that counts it."""
    return asyncio.run(_produce(args))


async def _produce(args: Namespace) -> Exit:
    reader = RecordReader(args.format)
    headers: list[Header] = [(name, value.encode()) for name, value in pairs(args.header, "-H", ":=")]
    tell = _teller(args.output_format)
    async with cluster(args) as client:
        producer = KafkaProducer(
            client,
            tell,
            random.Random(),
            acks=args.acks,
            codec=Codec[args.compression.upper()],
            batch_bytes=BATCH_BYTES if args.max_message_bytes is None else args.max_message_bytes,
            delivery_seconds=args.delivery_timeout,
            create_topics=args.allow_auto_topic_creation,
        )
        try:
            async with producer, contextlib.aclosing(_input(producer)) as pieces:
                async for data in pieces:
                    await _add(client, producer, reader.feed(data, end=not data), args, headers)
        except Refused as no:
            if not producer.added:
                raise
            _say_written(producer)
            say_error(no.why)
            return Exit.FAILED
        except Unavailable:
            _say_written(producer)
            raise
        except BrokenPipeError:
            # The reader of our output left (`| head`). Records may be left that nobody will write: that is no success.
            drop_output()
            _say_written(producer)
            print("tiered: nobody reads the output any more (-o '' prints nothing)", file=sys.stderr)
            return Exit.FAILED
    return Exit.OK


async def _input(producer: KafkaProducer) -> AsyncGenerator[bytes, None]:
    """Standard input as it comes, b"" at its end; no longer than the producer lives."""
    data = b"."
    while data:
        await producer.wait_or_fail(_readable())
        data = os.read(STDIN, READ_BYTES)
        yield data


async def _readable() -> None:
    """Returns when standard input can be read without waiting. The loop must not wait in a read: batches are sent
    meanwhile. (No thread waits in it either: it could not be interrupted.)"""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def tell() -> None:
        # Once: the loop would go on to say it until we read.
        loop.remove_reader(STDIN)
        if not ready.done():
            ready.set_result(None)

    try:
        loop.add_reader(STDIN, tell)
    except PermissionError:
        return  # a file: there is always something to read
    try:
        await ready
    finally:
        loop.remove_reader(STDIN)


async def _add(
    client: KafkaClient, producer: KafkaProducer, records: Iterable[Parsed], args: Namespace, headers: list[Header]
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


def _teller(form: str) -> Callable[[DeliveryReport], None]:
    """What prints written records: by a format, as JSON, or not at all."""
    if form == "json":
        return lambda delivered: _each(delivered, _print_json)
    if not form:
        return lambda delivered: None
    write = compiled(form)

    def tell(delivered: DeliveryReport) -> None:
        _each(delivered, lambda record: sys.stdout.buffer.write(write(record)))
        sys.stdout.buffer.flush()

    return tell


def _each(delivered: DeliveryReport, call: Callable[[Shown], object]) -> None:
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
        call(Shown(delivered.tp.topic, delivered.tp.partition, record, number=number))


def _print_json(record: Shown) -> None:
    print_json(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.record.offset,
            "timestamp": record.record.timestamp,
            "key": shown(record.record.key),
        }
    )


def _say_written(producer: KafkaProducer) -> None:
    sys.stdout.flush()
    if producer.written:
        print(f"tiered: {producer.written} of {producer.added} records that were read are written", file=sys.stderr)
