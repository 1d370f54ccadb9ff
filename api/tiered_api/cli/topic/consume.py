"""`tiered topic consume`: prints records of topics as JSON or in a format, of a range or until interrupted."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import print_error
from tiered_api.cli.reach import new_consumer, open_client, parse_numbers
from tiered_api.cli.text.offset_range import NO_RESET, Point, PointKind, Range, parse_range, resolve_offsets
from tiered_api.cli.topic.consume_group import consume_as_member
from tiered_api.cli.topic.describe import partitions_of
from tiered_api.cli.topic.outages import Outages
from tiered_api.cli.topic.record_printer import Printer, make_writer
from tiered_api.cli.topic.topics import select_topics
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.consumer import KafkaConsumer


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
    # Same as Ctrl-C: a member of a group leaves it.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    write = make_writer(args)
    if args.offset == NO_RESET and args.group is None:
        raise Refused(Code.INVALID_REQUEST, f"-o {NO_RESET} is for the members of a group: name it by -g")
    where = None if args.offset == NO_RESET else parse_range(args.offset, time.time_ns() // 1_000_000)
    if args.group is not None or where is None:
        await consume_as_member(args, where, write)
        return
    async with open_client(args) as client:
        wanted = await select_partitions(client, args)
        starts, ends = await resolve_bounds(
            client, where, wanted, read_committed=args.read_committed, report=print_error
        )
        if args.read_committed and ends:
            await _report_held_back(client, where, ends)
        consumer = new_consumer(client, args)
        consumer.assign({each: start for each, start in starts.items() if each not in ends or start < ends[each]})
        try:
            await read_range(
                consumer, ends, Printer(write, args.num), Outages(client.clock, "this command", client.describe_wait)
            )
        finally:
            await consumer.close()


async def select_partitions(client: KafkaClient, args: Namespace) -> list[TopicPartition]:
    """Returns the partitions to read. Raises `Refused` if one does not exist."""
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
    client: KafkaClient,
    where: Range,
    wanted: list[TopicPartition],
    *,
    read_committed: bool,
    report: Callable[[str], None] | None = None,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Returns the start of each partition, and its end if the range has one. A range with an end is cut to the current
    log, so that the read ends. Deleted offsets are skipped. `report` gets a sentence if the start is a time after all
    records of a partition."""
    starts = await resolve_offsets(client, where.start, wanted, read_committed=read_committed, report=report)
    if where.end is None:
        return starts, {}
    lows = await resolve_offsets(client, Point(PointKind.START), wanted)
    highs = await resolve_offsets(client, Point(PointKind.END), wanted, read_committed=read_committed)
    ends = await resolve_offsets(client, where.end, wanted, read_committed=read_committed)
    return (
        {each: max(start, lows[each]) for each, start in starts.items()},
        {each: min(end, highs[each]) for each, end in ends.items()},
    )


async def _report_held_back(client: KafkaClient, where: Range, ends: Mapping[TopicPartition, int]) -> None:
    """Names on the error stream a partition whose range goes on behind an open transaction."""
    _, whole = await resolve_bounds(client, where, list(ends), read_committed=False)
    held = [each for each, end in sorted(ends.items()) if whole[each] > end]
    if held:
        more = f", and {len(held) - 1} partitions more" if len(held) > 1 else ""
        print_error(f"an open transaction holds back {held[0]} from offset {ends[held[0]]} on{more}")


async def read_range(
    consumer: KafkaConsumer, ends: Mapping[TopicPartition, int], printer: Printer, outages: Outages
) -> None:
    """Reads until every partition is at its end or enough is printed; else without an end. Goes on at its positions
    while brokers are unreachable, as Kafka's console consumer does."""
    trimmed = 0
    while consumer.positions() and not printer.is_done:
        for fetched in await outages.outlast("read", consumer.poll, consumer.find_fault):
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
