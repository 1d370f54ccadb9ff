"""`POST /tiered/v1/transactions`: records of several topics and offsets of a group, all or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from aiohttp import web

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import check_writable
from tiered.records.batch import Codec, encode_batch
from tiered_api.http.exchange.errors import PARTITION_NOT_FOUND, HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.partitions.idempotency import has_key
from tiered_api.http.partitions.produce import (
    batches,
    choose_partition,
    find_partition,
    find_topic,
    keyless_counter,
    topic_codec,
)
from tiered_api.http.partitions.record_formats import ProducerRecord, format_timestamp
from tiered_api.http.transactions.body import TransactionBody, parse_body
from tiered_api.http.transactions.producer import EncodeBatch, PartitionWrite, Placed
from tiered_api.http.transactions.transactional_ids import TransactionalIds


async def commit_transaction(request: HttpRequest) -> web.StreamResponse:
    """Writes all records and commits all offsets in one transaction, or nothing."""
    context = request.context
    if has_key(request):
        raise HttpError(400, "transactions take no Idempotency-Key yet")
    data = await request.read_body()
    given = await request.parse_json_object(data)
    body = await context.run_job(len(data), parse_body, given, context.clock.wall_ms())
    writes, numbers = _plan_writes(request, body)
    own = context.broker.image.brokers.get(context.broker.settings.node_id)
    if own is not None and not own.listeners:  # no other broker could reach this one, so it is alone
        raise Refused(Code.INVALID_REQUEST, "transactions need a Kafka listener, and this broker has none")
    seconds = context.limits.append_ms / 1000
    async with context.service(TransactionalIds).take(seconds) as producer:
        try:
            placed = await producer.commit(writes, body.group, seconds)
        except Refused as refused:
            raise _to_client_error(refused) from None
    context.records_written.inc(len(body.records))
    return json_response(_format_reply(body, writes, numbers, placed))


def _plan_writes(request: HttpRequest, body: TransactionBody) -> tuple[list[PartitionWrite], list[list[list[int]]]]:
    """Returns the writes of each partition, and the numbers of the records in their batches."""
    context = request.context
    counters: dict[str, int] = {}
    groups: dict[TopicPartition, list[int]] = {}
    for number, (name, record) in enumerate(body.records):
        check_writable(name)
        count = len(find_topic(context, name).partitions)
        chosen = choose_partition(record, count, counters.setdefault(name, next(keyless_counter)))
        if chosen >= count:
            raise HttpError(PARTITION_NOT_FOUND, f"records[{number}]: topic {name!r} has no partition {chosen}")
        groups.setdefault(TopicPartition(name, chosen), []).append(number)
    records = [record for _, record in body.records]
    writes, numbers = [], []
    for tp, mine in groups.items():
        source = find_partition(context, find_topic(context, tp.topic), tp.partition)
        limit = min(source.config.max_message_bytes, source.config.segment_bytes)
        runs = list(batches(records, mine, limit))
        codec, level = topic_codec(source.config)
        encoders = [(len(run), _encoder([records[n] for n in run], codec, level)) for run in runs]
        writes.append(PartitionWrite(tp, source.topic_id, encoders))
        numbers.append(runs)
    return writes, numbers


def _encoder(records: Sequence[ProducerRecord], codec: Codec, level: int | None) -> EncodeBatch:
    return partial(_encode, [record[1:5] for record in records], codec, level)


def _encode(
    rows: Sequence[Any], codec: Codec, level: int | None, producer_id: int, producer_epoch: int, base_sequence: int
) -> bytes:
    return encode_batch(
        rows,
        codec=codec,
        level=level,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=True,
    )


def _format_reply(
    body: TransactionBody,
    writes: Sequence[PartitionWrite],
    numbers: Sequence[Sequence[Sequence[int]]],
    placed: Sequence[Sequence[Placed]],
) -> dict[str, Any]:
    """Returns the place of each record in the order of the request, and the offsets of the group."""
    reports: list[dict[str, Any]] = [{} for _ in body.records]
    for write, runs, places in zip(writes, numbers, placed, strict=True):
        for run, place in zip(runs, places, strict=True):
            for at, number in enumerate(run):
                own = body.records[number].record.timestamp
                reports[number] = {
                    "topic_name": write.tp.topic,
                    "partition_id": write.tp.partition,
                    "offset": place.base_offset + at,
                    "timestamp": format_timestamp(own if place.append_time_ms < 0 else place.append_time_ms),
                }
    committed = () if body.group is None else body.group.offsets
    return {
        "records": reports,
        "offsets": [
            {"topic_name": tp.topic, "partition_id": tp.partition, "offset": offset} for tp, offset, _ in committed
        ],
    }


def _to_client_error(refused: Refused) -> Refused:
    """Returns the refusal with the outcome of the transaction."""
    if refused.code is Code.REQUEST_TIMED_OUT:
        return refused
    code = Code.NOT_ENOUGH_REPLICAS if refused.code is Code.TRANSACTION_ABORTABLE else refused.code
    return Refused(code, f"nothing was written: {refused.why}")
