"""`tiered transaction list|describe|abort|find-hanging`: transactional ids and open transactions (KIP-664)."""

from __future__ import annotations

from argparse import Namespace

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_json, print_rows
from tiered_api.cli.reach import open_client
from tiered_api.cli.status import OK, format_status, print_outcomes
from tiered_api.cli.topic.describe import partitions_of, print_errors
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.leader_routing import require_all
from tiered_api.kafka.client.transactions import (
    DescribedTransaction,
    PartitionTransaction,
    abort_transaction,
    describe_transaction,
    fence_producer,
    find_hanging_transactions,
    list_open_transactions,
    list_transactional_ids,
)


async def list_transactions(args: Namespace) -> int:
    """Lists transactional ids with their states."""
    states = [state for text in args.states for state in text.split(",")]
    duration_ms = -1 if args.longer_than is None else int(args.longer_than * 1000)
    async with open_client(args) as client:
        found = await list_transactional_ids(client, states, duration_ms=duration_ms)
    rows = [
        {
            "transactional_id": each.transactional_id,
            "coordinator": each.coordinator,
            "producer_id": each.producer_id,
            "state": each.state,
        }
        for each in sorted(found, key=lambda each: each.transactional_id)
    ]
    print_rows(rows, args.format, ("transactional_id", "coordinator", "producer_id", "state"))
    return Exit.OK


async def describe(args: Namespace) -> int:
    """Describes the transactions of transactional ids."""
    outcomes: list[DescribedTransaction | Refused] = []
    async with open_client(args) as client:
        for name in dict.fromkeys(args.ids):
            try:
                outcomes.append(await describe_transaction(client, name))
            except Refused as refused:
                outcomes.append(refused)
        now_ms = client.clock.wall_ms()
    found = [outcome for outcome in outcomes if isinstance(outcome, DescribedTransaction)]
    refusals = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    if args.format == "json":
        for each in found:
            print_json({**_describe_row(each, now_ms), "partitions": [str(tp) for tp in each.partitions]})
    elif found:
        rows = [{**_describe_row(each, now_ms), "partitions": ",".join(map(str, each.partitions))} for each in found]
        print_rows(rows, args.format)
    print_errors(refusals)
    return Exit.FAILED if refusals else Exit.OK


async def abort(args: Namespace) -> int:
    """Aborts the transactions of transactional ids, or one hanging transaction of a partition."""
    rows = await _abort(args)
    return print_outcomes(rows, args.format)


async def find_hanging(args: Namespace) -> int:
    """Finds open transactions that no coordinator will end."""
    names = ("topic", "partition", "start_offset", "producer_id", "epoch", "idle_ms")
    async with open_client(args) as client:
        if args.topics:
            topics = [await client.fetch_topic(name) for name in dict.fromkeys(args.topics)]
        else:
            topics = list((await client.fetch_metadata(None)).topics)
        partitions = [tp for topic in topics for tp in partitions_of(topic)]
        now_ms, max_ms = client.clock.wall_ms(), int(args.max_timeout * 1000)
        found = require_all(await list_open_transactions(client, partitions))
        old = [each for opened in found.values() for each in opened if now_ms - each.last_timestamp >= max_ms]
        hanging = await find_hanging_transactions(client, old)
    rows = [
        {
            **_place(each),
            "producer_id": each.producer_id,
            "epoch": each.producer_epoch,
            "idle_ms": max(now_ms - each.last_timestamp, 0),
        }
        for each in sorted(hanging)
    ]
    print_rows(rows, args.format, names)
    return Exit.OK


def _describe_row(found: DescribedTransaction, now_ms: int) -> Row:
    return {
        "transactional_id": found.transactional_id,
        "coordinator": found.coordinator,
        "producer_id": found.producer_id,
        "epoch": found.producer_epoch,
        "state": found.state,
        "timeout_ms": found.timeout_ms,
        "duration_ms": max(now_ms - found.started_ms, 0) if found.started_ms > 0 else None,
    }


async def _abort(args: Namespace) -> list[Row]:
    place = (args.topic, args.partition, args.start_offset)
    if args.ids and place != (None, None, None):
        raise Refused(Code.INVALID_REQUEST, "name transactional ids, or a partition with -t, -p and --start-offset")
    if not args.ids and None in place:
        raise Refused(Code.INVALID_REQUEST, "name transactional ids, or all of -t, -p and --start-offset")
    async with open_client(args) as client:
        if not args.ids:
            tp = TopicPartition(args.topic, args.partition)
            return [await _abort_hanging(client, tp, args.start_offset, force=args.force)]
        rows: list[Row] = []
        for name in dict.fromkeys(args.ids):
            status = OK
            try:
                await fence_producer(client, name)
            except Refused as refused:
                status = format_status(refused.code.number, None)
            rows.append({"transactional_id": name, "status": status})
        return rows


async def _abort_hanging(client: KafkaClient, tp: TopicPartition, start_offset: int, *, force: bool) -> Row:
    opened = require_all(await list_open_transactions(client, [tp]))[tp]
    found = next((each for each in opened if each.start_offset == start_offset), None)
    if found is None:
        raise Refused(Code.INVALID_REQUEST, f"no open transaction of {tp} begins at offset {start_offset}")
    if not force and not await find_hanging_transactions(client, [found]):
        why = f"a coordinator has the transaction of producer {found.producer_id}, and may yet commit it"
        raise Refused(Code.INVALID_TXN_STATE, f"{why}: abort its transactional id, or give --force")
    await abort_transaction(client, found)
    return {**_place(found), "status": OK}


def _place(found: PartitionTransaction) -> Row:
    return {"topic": found.tp.topic, "partition": found.tp.partition, "start_offset": found.start_offset}
