"""Transactions of the cluster: those of transactional ids, the open ones of a topic, and their abort (KIP-664)."""

from __future__ import annotations

import asyncio
from bisect import insort
from typing import Any

from aiohttp import web

from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.metadata.parts.topics import TopicImage
from tiered.security.acls import WILDCARD, Operation, ResourceType
from tiered.system.turns import each_of
from tiered_api.http.admin.requests import check_code, send_as_caller
from tiered_api.http.exchange.errors import BAD_REQUEST, ILLEGAL_STATE, KAFKA_RETRIABLE_ERROR, HttpError
from tiered_api.http.exchange.fields import check_fields
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response, no_content
from tiered_api.http.exchange.schemas import TRANSACTION_ABORT, names
from tiered_api.http.partitions.produce import find_topic
from tiered_api.http.v3.topics import boolean_field
from tiered_api.kafka.client.leader_routing import TRANSACTION
from tiered_api.kafka.client.transactions import (
    ENDED,
    FENCE_TIMEOUT_MS,
    PartitionTransaction,
    make_abort_request,
    make_producers_request,
    read_held_partitions,
    read_markers,
    read_open_transactions,
)
from tiered_api.kafka.protocol.messages.describe_producers import DescribeProducersResponse
from tiered_api.kafka.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tiered_api.kafka.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tiered_api.kafka.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from tiered_api.kafka.protocol.messages.write_txn_markers import WriteTxnMarkersResponse

LIST, DESCRIBE, PRODUCERS, FIND_COORDINATOR, INIT, MARKERS = 2, 0, 0, 6, 5, 1
LISTED_MAX = 1_000
"""Most transactional ids of a reply: the open ones first."""
IDLE = ENDED | {"Empty", "Dead"}
"""States of an id without an open transaction."""
ABORT_SECONDS = 20.0
PAUSE_SECONDS = 0.2

Row = dict[str, Any]


async def list_transactions(request: HttpRequest) -> web.StreamResponse:
    """Lists the transactional ids with their states; of open transactions, since when and in which partitions."""
    brokers = sorted(each.node_id for each in request.context.broker.image.brokers.values() if each.live)
    lists = await asyncio.gather(*(_list_of_broker(request, broker) for broker in brokers))
    chosen = list[tuple[bool, str, int, int, str]]()
    for broker, listed in zip(brokers, lists, strict=True):
        async for each in each_of(listed):
            place = (
                each.transaction_state in IDLE, each.transactional_id, broker, each.producer_id, each.transaction_state
            )  # fmt: skip
            if len(chosen) < LISTED_MAX or place < chosen[-1]:
                insort(chosen, place)
                del chosen[LISTED_MAX:]
    shown = [_row(name, broker, producer_id, state) for _, name, broker, producer_id, state in chosen]
    shares: dict[int, list[Row]] = {}
    for row in shown:
        if row["state"] not in IDLE:
            shares.setdefault(row["coordinator"], []).append(row)
    await asyncio.gather(*(_describe(request, *share) for share in shares.items()))
    return json_response(
        {
            "transactions": shown,
            "left_out": sum(map(len, lists)) - len(shown),
            "partial": not request.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, WILDCARD),
        }
    )


async def _list_of_broker(request: HttpRequest, broker: int) -> list[TransactionState]:
    reply = await send_as_caller(request, ListTransactionsRequest(), ListTransactionsResponse, LIST, broker)
    check_code(reply.error_code, f"transactions of broker {broker}")
    return reply.transaction_states


def _row(name: str, coordinator: int, producer_id: int, state: str) -> Row:
    return {
        "transactional_id": name,
        "coordinator": coordinator,
        "producer_id": producer_id,
        "state": state,
        "started_ms": None,
        "timeout_ms": None,
        "partitions": [],
    }


async def _describe(request: HttpRequest, coordinator: int, rows: list[Row]) -> None:
    """Adds what the coordinator knows of open transactions. Without a start time, one has ended meanwhile."""
    message = DescribeTransactionsRequest([row["transactional_id"] for row in rows])
    reply = await send_as_caller(request, message, DescribeTransactionsResponse, DESCRIBE, coordinator)
    found = {each.transactional_id: each for each in reply.transaction_states if not each.error_code}
    for row in rows:
        each = found.get(row["transactional_id"])
        if each is not None:
            row["state"] = each.transaction_state
            row["timeout_ms"] = each.transaction_timeout_ms
            is_open = each.transaction_start_time_ms > 0 and each.transaction_state not in IDLE
            row["started_ms"] = each.transaction_start_time_ms if is_open else None
            row["partitions"] = [f"{topic.topic}/{number}" for topic in each.topics for number in topic.partitions]


async def abort_transactional_id(request: HttpRequest) -> web.StreamResponse:
    """Aborts the open transaction of a transactional id. Its producer is fenced, and cannot go on."""
    name = request.args["transactional_id"]
    check_fields(await request.read_json_object(), frozenset(), "the body")
    coordinator = await _find_coordinator(request, name)
    described = await send_as_caller(
        request, DescribeTransactionsRequest([name]), DescribeTransactionsResponse, DESCRIBE, coordinator
    )
    [found] = described.transaction_states  # a new epoch would create the id
    if found.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND.number:
        raise HttpError(404, f"transactional id {name[:249]!r} not found")
    check_code(found.error_code, f"transactional id {name[:249]!r}")
    end_ns = request.context.clock.mono_ns() + int(ABORT_SECONDS * 1e9)
    while True:
        reply = await send_as_caller(
            request, InitProducerIdRequest(name, FENCE_TIMEOUT_MS), InitProducerIdResponse, INIT, coordinator
        )
        # CONCURRENT_TRANSACTIONS: the abort has begun.
        if reply.error_code != Code.CONCURRENT_TRANSACTIONS.number or request.context.clock.mono_ns() > end_ns:
            check_code(reply.error_code, f"transactional id {name[:249]!r}")
            return no_content()
        await request.context.clock.sleep(PAUSE_SECONDS)


async def _find_coordinator(request: HttpRequest, name: str) -> int:
    message = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=[name])
    [found] = (await send_as_caller(request, message, FindCoordinatorResponse, FIND_COORDINATOR)).coordinators
    check_code(found.error_code, f"transactional id {name[:249]!r}", found.error_message)
    return found.node_id


# -- open transactions of a topic -------------------------------------------------------------------------------------


async def list_open_transactions(request: HttpRequest) -> web.StreamResponse:
    """Lists the open transactions of a topic as its leaders see them, and which of them hang: no coordinator will end
    them."""
    topic = find_topic(request.context, request.args["topic"])
    opened, silent = await _fetch_open(request, topic)
    held = await _find_held(request, opened)
    rows = [
        {
            "partition": each.tp.partition,
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "coordinator_epoch": each.coordinator_epoch,
            "start_offset": each.start_offset,
            "last_timestamp": each.last_timestamp,
            "hanging": (each.producer_id, each.tp) not in held,
        }
        for each in sorted(opened, key=lambda each: (each.tp, each.start_offset))
    ]
    return json_response({"topic": topic.name, "transactions": rows[:LISTED_MAX], "partitions_missing": silent})


async def abort_open_transaction(request: HttpRequest) -> web.StreamResponse:
    """Aborts a hanging transaction of a partition with a marker; with `force` also one that a coordinator may yet
    commit."""
    topic, number = find_topic(request.context, request.args["topic"]), request.path_number("partition")
    body = await request.read_json_object()
    check_fields(body, names(TRANSACTION_ABORT), "the body")
    force, start = boolean_field(body, "force"), body.get("start_offset")
    if type(start) is not int:
        raise HttpError(422, "start_offset has to be an integer")
    opened, silent = await _fetch_open(request, topic, number)
    if silent:
        raise Refused(Code.LEADER_NOT_AVAILABLE, f"the leader of partition {number} does not list its transactions")
    found = next((each for each in opened if each.start_offset == start), None)
    if found is None:
        raise HttpError(BAD_REQUEST, f"no open transaction of partition {number} begins at offset {start}")
    if not force and await _find_held(request, [found]):
        why = f"a coordinator has the transaction of producer {found.producer_id}, and may yet commit it"
        raise HttpError(ILLEGAL_STATE, f"{why}: abort its transactional id, or set force")
    leader = topic.partitions[number].leader
    reply = await send_as_caller(
        request, make_abort_request(found), WriteTxnMarkersResponse, MARKERS, leader, ABORT_SECONDS
    )
    for tp, error_code, _ in read_markers(reply):
        check_code(error_code, f"partition {tp}")
    return no_content()


async def _fetch_open(
    request: HttpRequest, topic: TopicImage, only: int | None = None
) -> tuple[list[PartitionTransaction], int]:
    """Returns the open transactions of a topic or of one partition, and the number of partitions whose leader does not
    reply, or not for them."""
    shares: dict[int, list[TopicPartition]] = {}
    for number, part in enumerate(topic.partitions):
        if only in (None, number):
            shares.setdefault(part.leader, []).append(TopicPartition(topic.name, number))
    silent = sum(map(len, shares.values()))
    shares.pop(-1, None)

    async def ask(leader: int, share: list[TopicPartition]) -> DescribeProducersResponse | None:
        message = make_producers_request(share)
        try:
            return await send_as_caller(request, message, DescribeProducersResponse, PRODUCERS, leader)
        except (HttpError, Refused):
            return None

    opened: list[PartitionTransaction] = []
    for reply in await asyncio.gather(*(ask(*share) for share in shares.items())):
        for _, error_code, found in read_open_transactions(reply) if reply is not None else ():
            if not error_code:
                silent -= 1
                opened += found
    return opened, silent


async def _find_held(request: HttpRequest, opened: list[PartitionTransaction]) -> set[tuple[int, TopicPartition]]:
    """Returns producer id and partition of the transactions that a coordinator knows. This broker asks in its own name:
    an id that the caller may not describe does not make a transaction hang. Raises `HttpError` 503 if a broker does not
    reply, and `Refused` if one does not know all its ids."""
    producers = sorted({each.producer_id for each in opened})
    if not producers:
        return set()
    send = request.context.remote_brokers.send_request
    held: set[tuple[int, TopicPartition]] = set()
    for broker in sorted(each.node_id for each in request.context.broker.image.brokers.values() if each.live):
        try:
            listed = await send(broker, ListTransactionsRequest([], producers), ListTransactionsResponse, LIST)
            check_code(listed.error_code, f"transactions of broker {broker}")
            ids = [each.transactional_id for each in listed.transaction_states]
            reply = await send(broker, DescribeTransactionsRequest(ids), DescribeTransactionsResponse, DESCRIBE)
        except Unavailable as fault:
            raise HttpError(KAFKA_RETRIABLE_ERROR, f"broker {broker} does not reply: {fault}") from None
        held |= read_held_partitions(reply)
    return held
