"""`POST /tiered/v1/transactions`: records of several topics and offsets of a group, all or nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from aiohttp import web

from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused
from tiered.ids import TopicId
from tiered.metadata.topic_names import check_writable
from tiered.security.acls import Operation, ResourceType
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import KEY_IN_USE, KEY_REUSED, HttpError
from tiered_api.http.exchange.fields import V3_FREE
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.partitions.idempotency import IdempotencyKey, IdempotencyKeys, find_key
from tiered_api.http.partitions.produce import (
    batches,
    choose_compression,
    encode_records,
    find_partition,
    find_topic,
    keyless_counter,
)
from tiered_api.http.partitions.record_formats import ProducerRecord, format_timestamp
from tiered_api.http.transactions.body import TransactionBody, parse_body
from tiered_api.http.transactions.kept_replies import (
    WrittenPartition,
    check_reply_fits,
    decode_reply,
    encode_reply,
    group_by_partition,
)
from tiered_api.http.transactions.producer import EncodeBatch, PartitionWrite, Places, TransactionalProducer
from tiered_api.http.transactions.transactional_ids import TransactionalIds

TRANSACTIONAL_ID = "tiered-http"
"""Name of the resource for the rights of transactions over HTTP. No transaction has exactly this id, so the right gives
nothing on the Kafka port."""
NO_TOPIC = TopicId("")
"""The place of keys that are of no single topic."""
KEY_HASH = struct.Struct(">hi")
TAKEN_OVER = (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING)
"""Refusals of a try whose key another try has taken over."""


class Plan(NamedTuple):
    """The writes of a transaction: the number of partitions of each topic, and for each partition its batches and the
    numbers of the records in them."""

    partition_counts: Mapping[str, int]
    writes: Sequence[PartitionWrite]
    numbers: Sequence[Sequence[Sequence[int]]]

    def locate(self, placed: Places) -> list[WrittenPartition]:
        """Returns all batches with their places."""
        return [
            WrittenPartition(write.tp, runs, places)
            for write, runs, places in zip(self.writes, self.numbers, placed, strict=True)
        ]


async def commit_transaction(request: HttpRequest) -> web.StreamResponse:
    """Writes all records and commits all offsets in one transaction, or nothing."""
    context = request.context
    data = await request.read_body()
    given = await request.parse_json_object(data, V3_FREE, 422, "records")
    body = await request.run_job(len(data), parse_body, given, context.clock.wall_ms())
    _require_rights(request, body)
    key = await find_key(request, NO_TOPIC, data)
    del data, given  # the memory is needed for the batches
    own = context.broker.image.brokers.get(context.broker.settings.node_id)
    if own is not None and not own.listeners:  # no other broker could reach this one, so it is alone
        raise Refused(Code.INVALID_REQUEST, "transactions need a Kafka listener, and this broker has none")
    if key is None:
        written = await _commit(request, body)
    else:
        with context.service(IdempotencyKeys).use(key):
            written = await commit_once(context, body, key, partial(_require_rights, request, body), request)
    return json_response(_format_reply(body, written))


def _require_rights(request: HttpRequest, body: TransactionBody) -> None:
    """Raises `HttpError` 403 if the caller lacks a right. Brokers then write as brokers, because the transactional id
    is their own."""
    request.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, TRANSACTIONAL_ID)
    for name in {record.topic for record in body.records}:
        request.require(Operation.WRITE, ResourceType.TOPIC, name)
    if body.group is not None:
        request.require(Operation.READ, ResourceType.GROUP, body.group.group)
        for name in {each.tp.topic for each in body.group.offsets}:
            request.require(Operation.READ, ResourceType.TOPIC, name)


async def _commit(request: HttpRequest, body: TransactionBody) -> list[WrittenPartition]:
    context = request.context
    plan = _plan_writes(context, body, None, request)
    seconds = context.limits.append_ms / 1000
    async with context.service(TransactionalIds).take(seconds, request.caller.holder) as producer:
        _require_rights(request, body)
        try:
            require_rights = partial(_require_rights, request, body)
            placed = await producer.commit(
                plan.writes, body.group, seconds, require_rights=require_rights, holder=request.caller.holder
            )
        except Refused as refused:
            raise _to_client_error(refused) from None
    context.records_written.inc(len(body.records))
    return plan.locate(placed)


async def commit_once(
    context: HttpContext,
    body: TransactionBody,
    key: IdempotencyKey,
    require_rights: Callable[[], None],
    request: HttpRequest | None = None,
) -> list[WrittenPartition]:
    """Writes all in the one transaction of a key, or finds where its first try wrote it.

    The key has a transactional id of its own. Its coordinator keeps the reply in the record that commits the
    transaction, so that no try can write after another one has. `require_rights` raises an error if the caller lost its
    rights during a wait. Work in threads is charged to the client of the `request`.
    """
    seconds, holder = context.limits.append_ms / 1000, "" if request is None else request.caller.holder
    request_hash = KEY_HASH.pack(key.producer_epoch, key.base_sequence)
    producer = TransactionalProducer(context, f"tiered-key-{key.producer_id:x}", request_hash, holder)
    async with context.service(TransactionalIds).admit(seconds, holder):
        try:
            kept = await producer.begin_once(seconds)
            require_rights()
            if kept:
                context.service(IdempotencyKeys).mark_used(key)
                return decode_reply(kept, body.records, key.producer_id)
            plan = _plan_writes(context, body, key, request)
            check_reply_fits([(write.tp, len(write.batches)) for write in plan.writes])
            placed = await producer.commit(
                plan.writes,
                body.group,
                seconds,
                lambda placed: encode_reply(plan.partition_counts, plan.locate(placed)),
                require_rights,
                holder,
            )
        except Refused as refused:
            raise _to_key_error(refused) from None
    context.records_written.inc(len(body.records))
    context.service(IdempotencyKeys).mark_used(key)
    return plan.locate(placed)


def _plan_writes(
    context: HttpContext, body: TransactionBody, key: IdempotencyKey | None, request: HttpRequest | None
) -> Plan:
    counts: dict[str, int] = {}
    counters: dict[str, int] = {}
    for name, _ in body.records:
        if name not in counts:
            check_writable(name)
            counts[name] = len(find_topic(context, name).partitions)
            counters[name] = next(keyless_counter) if key is None else key.producer_id
    records = [record for _, record in body.records]
    writes, numbers = [], []
    for tp, mine in group_by_partition(body.records, counts, counters).items():
        source = find_partition(context, find_topic(context, tp.topic), tp.partition)
        limit = min(source.config.max_message_bytes, source.config.segment_size)
        runs = list(batches(records, mine, limit))
        encoders = [(len(run), _encoder(context, request, source.config, [records[n] for n in run])) for run in runs]
        writes.append(PartitionWrite(tp, source.topic_id, encoders))
        numbers.append(runs)
    return Plan(counts, writes, numbers)


def _encoder(
    context: HttpContext, request: HttpRequest | None, config: TopicConfig, records: Sequence[ProducerRecord]
) -> EncodeBatch:
    compression = choose_compression(config, records)
    run_job = context.run_job if request is None else request.run_job

    async def encode(*producer: int) -> bytearray:
        producer_id, epoch, sequence = producer
        identity = (producer_id, epoch, sequence)
        return await run_job(compression.work, encode_records, compression, records, identity, transactional=True)

    return encode


def _format_reply(body: TransactionBody, written: Sequence[WrittenPartition]) -> dict[str, Any]:
    """Returns the place of each record in the order of the request, and the offsets of the group."""
    reports: list[dict[str, Any]] = [{} for _ in body.records]
    for tp, runs, places in written:
        for run, place in zip(runs, places, strict=True):
            for at, number in enumerate(run):
                own = body.records[number].record.timestamp
                reports[number] = {
                    "topic_name": tp.topic,
                    "partition_id": tp.partition,
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


def _to_key_error(refused: Refused) -> Refused | HttpError:
    """Returns the error of a request with a key."""
    if refused.code is Code.DUPLICATE_RESOURCE:
        why = "this Idempotency-Key was used for another request: use a new key for each request"
        return HttpError(KEY_REUSED, why)
    if refused.code is Code.INVALID_TXN_STATE or refused.code in TAKEN_OVER:
        why = "a request with this Idempotency-Key is still under way"
        return HttpError(KEY_IN_USE, why, (("Retry-After", "1"),))
    return _to_client_error(refused)
