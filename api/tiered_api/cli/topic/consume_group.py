"""`tiered topic consume -g`: reads as a member of a group.

The place where it begins in a partition is committed, and then exactly the printed records. While brokers are
unreachable, the member goes on trying and keeps its positions, as consumers of Kafka do.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Protocol

from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.cli.output import print_error
from tiered_api.cli.reach import new_consumer, open_client
from tiered_api.cli.text.offset_range import NO_RESET, PointKind, Range, resolve_offsets
from tiered_api.cli.topic.outages import Outages
from tiered_api.cli.topic.record_printer import Printer, Write
from tiered_api.cli.topic.topics import select_topics
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.consumer import KafkaConsumer
from tiered_api.kafka.client.consumer_member import ServerAssignedMember
from tiered_api.kafka.client.group_member import ConsumerGroupMember
from tiered_api.kafka.client.group_offsets import fetch_committed_offsets

COMMIT_NS = 1_000_000_000
LEAVE_SECONDS = 5.0
JOIN, READ, COMMIT = "join", "read", "commit"
"""Purposes of requests, each with its own outage."""
CONSUMER = "consumer"
"""The protocol of groups whose coordinator assigns."""
NAMED_MAX = 5
"""Most partitions that an error names."""


async def consume_as_member(args: Namespace, where: Range | None, write: Write) -> None:
    """Reads the partitions that are assigned to this member, until enough is printed or the user interrupts. `where` is
    the place to begin in partitions without an offset; None refuses them."""
    if args.partitions is not None:
        raise Refused(Code.INVALID_REQUEST, "-g and -p exclude each other: the group assigns the partitions")
    if where is not None and where.end is not None:
        raise Refused(Code.INVALID_REQUEST, f"-g reads without end: -o {args.offset} has an end")
    async with open_client(args) as client:
        topics = await select_topics(client, args)
        for topic in topics:
            await client.fetch_topic(topic)
        kind = ServerAssignedMember if args.group_protocol == CONSUMER else ConsumerGroupMember
        member: Member = kind(client, args.group, topics)
        await GroupReader(client, args, where, member, Printer(write, args.num)).run()


class Member(Protocol):
    """A member by either protocol of groups."""

    must_rejoin: asyncio.Event
    """Set once another assignment may be in force, or the membership is lost."""

    async def join(self) -> list[TopicPartition]:
        """Returns the partitions of the member, which are its own until `must_rejoin`."""

    async def commit(self, offsets: Mapping[TopicPartition, int], deadline: int | None = None) -> None:
        """Commits offsets, nothing without a membership."""

    async def leave(self) -> None:
        """Leaves the group."""


class GroupReader:
    """A member that prints the records of its partitions."""

    def __init__(
        self, client: KafkaClient, args: Namespace, where: Range | None, member: Member, printer: Printer
    ) -> None:
        self._client = client
        self._args = args
        self._where = where
        self._member = member
        self._printer = printer
        self._uncommitted: dict[TopicPartition, int] = {}
        self._first_offsets: dict[TopicPartition, int] = {}
        """Offsets of the command, as they were when the partition was assigned first."""
        self._committed_ns = client.clock.mono_ns()
        self._outages = Outages(client.clock, f"group {args.group}", client.describe_wait)

    async def run(self) -> None:
        consumer = new_consumer(self._client, self._args)
        try:
            while not self._printer.is_done:
                mine = await self._outages.outlast(JOIN, self._member.join)
                consumer.assign(await self._outages.outlast(JOIN, partial(self.start_offsets, mine)))
                await self._outages.outlast(COMMIT, self._commit)
                await self._read(consumer)
                if self._printer.is_done:
                    await self._commit()
                else:
                    await self._outages.outlast(COMMIT, self._commit)
                self._uncommitted.clear()
        finally:
            await consumer.close()
            await self._leave()

    async def start_offsets(self, mine: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the committed offsets, or the offset of the command for partitions without one.

        The latter are to be committed: the end, or a time, gives another offset at the next join, and the records
        between the two would be skipped. A number stays the same, and is not yet known to be in the log.
        """
        stable = self._args.read_committed
        known = await fetch_committed_offsets(self._client, self._args.group, require_stable=stable)
        new = [each for each in mine if each not in known]
        if self._where is None:
            if new:
                why = f"group {self._args.group} has no offset of {', '.join(map(str, sorted(new)[:NAMED_MAX]))}"
                ways = f"`tiered group seek` sets one, or -o says where to begin instead of {NO_RESET}"
                raise Refused(Code.INVALID_REQUEST, f"{why}: {ways}")
            return {each: known[each] for each in mine}
        unresolved = [each for each in new if each not in self._first_offsets]
        self._first_offsets |= await resolve_offsets(
            self._client, self._where.start, unresolved, read_committed=stable, report=print_error
        )
        if self._where.start.at is not PointKind.ZERO:
            self._uncommitted |= {each: self._first_offsets[each] for each in new}
        return {each: known[each] if each in known else self._first_offsets[each] for each in mine}

    async def _read(self, consumer: KafkaConsumer) -> None:
        while not self._member.must_rejoin.is_set() and not self._printer.is_done:
            for fetched in await self._outages.outlast(READ, consumer.poll, consumer.find_fault):
                if not self._printer.is_done:
                    self._uncommitted[fetched.tp] = self._printer.print(fetched, None)
            sys.stdout.buffer.flush()
            now_ns = self._client.clock.mono_ns()
            if now_ns - self._committed_ns >= COMMIT_NS:
                await self._try_to_commit(now_ns)

    async def _try_to_commit(self, now_ns: int) -> None:
        """Commits with one try, so that reads go on. The next commit has the offsets of one that failed."""
        try:
            await self._commit(deadline=now_ns)
        except (Unavailable, Refused) as fault:
            self._outages.note(COMMIT, fault, now_ns)
            self._committed_ns = self._client.clock.mono_ns()
        else:
            self._outages.end(COMMIT)

    async def _commit(self, deadline: int | None = None) -> None:
        await self._member.commit(self._uncommitted, deadline)
        self._uncommitted = {}
        self._committed_ns = self._client.clock.mono_ns()

    async def _leave(self) -> None:
        """Commits the printed records and leaves the group, also when interrupted."""
        try:
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            self._uncommitted = {}  # nobody saw the last output
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._commit()
                await self._member.leave()
        except (TimeoutError, Unavailable, Refused, Corrupt):
            print("tiered: the group could not be left properly: its session has to time out", file=sys.stderr)
