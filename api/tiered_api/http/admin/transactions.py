"""Transactions of the cluster: those of transactional ids, the open ones of a topic, and their abort (KIP-664)."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from aiohttp import web

from tiered.errors import Code, Refused, Unavailable
from tiered.metadata.parts.topics import TopicImage
from tiered.security.acls import WILDCARD, Operation, ResourceType
from tiered_api.http.admin.requests import check_code, send_as_caller
from tiered_api.http.exchange.errors import BAD_REQUEST, ILLEGAL_STATE, KAFKA_RETRIABLE_ERROR, HttpError
from tiered_api.http.exchange.fields import check_fields
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response, no_content
from tiered_api.http.exchange.schemas import TRANSACTION_ABORT, names
from tiered_api.http.partitions.produce import find_topic
from tiered_api.http.v3.topics import boolean_field
from tiered_api.kafka.client.leader_routing import TRANSACTION
from tiered_api.kafka.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tiered_api.kafka.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tiered_api.kafka.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tiered_api.kafka.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tiered_api.kafka.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

LIST, DESCRIBE, PRODUCERS, FIND_COORDINATOR, INIT, MARKERS = 2, 0, 0, 6, 5, 1
LISTED_MAX = 1_000
"""Most transactional ids of a reply: the open ones first."""
ENDED = frozenset(("CompleteCommit", "CompleteAbort", "Empty", "Dead"))
FENCE_TIMEOUT_MS = 1
"""Timeout for a producer id that nobody uses."""
ABORT_SECONDS = 20.0
PAUSE_SECONDS = 0.2

Row = dict[str, Any]


class OpenTransaction(NamedTuple):
    """An open transaction as the leader of a partition sees it."""

    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int


async def list_transactions(request: HttpRequest) -> web.StreamResponse:
    """Lists the transactional ids with their states; of open transactions, since when and in which partitions."""
    brokers = sorted(each.node_id for each in request.context.broker.image.brokers.values() if each.live)
    lists = await asyncio.gather(*(_list_of_broker(request, broker) for broker in brokers))
    rows = sorted(
        (row for each in lists for row in each), key=lambda row: (row["state"] in ENDED, row["transactional_id"])
    )
    shown = rows[:LISTED_MAX]
    shares: dict[int, list[Row]] = {}
    for row in shown:
        if row["state"] not in ENDED:
            shares.setdefault(row["coordinator"], []).append(row)
    await asyncio.gather(*(_describe(request, *share) for share in shares.items()))
    return json_response(
        {
            "transactions": shown,
            "left_out": len(rows) - len(shown),
            "partial": not request.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, WILDCARD),
        }
    )


async def _list_of_broker(request: HttpRequest, broker: int) -> list[Row]:
    reply = await send_as_caller(request, ListTransactionsRequest(), ListTransactionsResponse, LIST, broker)
    check_code(reply.error_code, f"transactions of broker {broker}")
    return [
        {
            "transactional_id": each.transactional_id,
            "coordinator": broker,
            "producer_id": each.producer_id,
            "state": each.transaction_state,
            "started_ms": None,
            "timeout_ms": None,
            "partitions": [],
        }
        for each in reply.transaction_states
    ]


async def _describe(request: HttpRequest, coordinator: int, rows: list[Row]) -> None:
    """Adds what the coordinator knows of open transactions. One that has ended meanwhile stays as it was listed."""
    message = DescribeTransactionsRequest([row["transactional_id"] for row in rows])
    reply = await send_as_caller(request, message, DescribeTransactionsResponse, DESCRIBE, coordinator)
    found = {each.transactional_id: each for each in reply.transaction_states if not each.error_code}
    for row in rows:
        each = found.get(row["transactional_id"])
        if each is not None:
            row["state"] = each.transaction_state
            row["timeout_ms"] = each.transaction_timeout_ms
            row["started_ms"] = each.transaction_start_time_ms if each.transaction_start_time_ms > 0 else None
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
    held = await _find_held(request, topic, opened)
    rows = [
        {**each._asdict(), "hanging": (each.producer_id, each.partition) not in held}
        for each in sorted(opened, key=lambda each: (each.partition, each.start_offset))
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
    opened, _ = await _fetch_open(request, topic, number)
    found = next((each for each in opened if each.start_offset == start), None)
    if found is None:
        raise HttpError(BAD_REQUEST, f"no open transaction of partition {number} begins at offset {start}")
    if not force and await _find_held(request, topic, [found]):
        why = f"a coordinator has the transaction of producer {found.producer_id}, and may yet commit it"
        raise HttpError(ILLEGAL_STATE, f"{why}: abort its transactional id, or set force")
    marker = WritableTxnMarker(
        found.producer_id,
        found.producer_epoch,
        False,
        [WritableTxnMarkerTopic(topic.name, [number])],
        max(found.coordinator_epoch, 0),
    )
    leader = topic.partitions[number].leader
    reply = await send_as_caller(
        request, WriteTxnMarkersRequest([marker]), WriteTxnMarkersResponse, MARKERS, leader, ABORT_SECONDS
    )
    for each in (each for result in reply.markers for found in result.topics for each in found.partitions):
        check_code(each.error_code, f"partition {number} of {topic.name!r}")
    return no_content()


async def _fetch_open(
    request: HttpRequest, topic: TopicImage, only: int | None = None
) -> tuple[list[OpenTransaction], int]:
    """Returns the open transactions of a topic or of one partition, and the number of partitions whose leader does not
    reply."""
    shares: dict[int, list[int]] = {}
    for number, part in enumerate(topic.partitions):
        if only in (None, number):
            shares.setdefault(part.leader, []).append(number)
    silent = len(shares.pop(-1, ()))

    async def ask(leader: int, numbers: list[int]) -> list[OpenTransaction] | int:
        message = DescribeProducersRequest([TopicRequest(topic.name, numbers)])
        try:
            reply = await send_as_caller(request, message, DescribeProducersResponse, PRODUCERS, leader)
        except (HttpError, Refused):
            return len(numbers)
        return [
            OpenTransaction(
                row.partition_index, each.producer_id, each.producer_epoch, each.coordinator_epoch,
                each.current_txn_start_offset, each.last_timestamp,
            )
            for found in reply.topics
            for row in found.partitions
            for each in row.active_producers
            if each.current_txn_start_offset >= 0
        ]  # fmt: skip

    opened: list[OpenTransaction] = []
    for outcome in await asyncio.gather(*(ask(*share) for share in shares.items())):
        if isinstance(outcome, int):
            silent += outcome
        else:
            opened += outcome
    return opened, silent


async def _find_held(request: HttpRequest, topic: TopicImage, opened: list[OpenTransaction]) -> set[tuple[int, int]]:
    """Returns (producer id, partition) of the transactions that a coordinator knows. This broker asks in its own name:
    an id that the caller may not describe does not make a transaction hang. Raises `HttpError` 503 if a broker does not
    reply."""
    producers = sorted({each.producer_id for each in opened})
    if not producers:
        return set()
    send = request.context.remote_brokers.send_request
    held: set[tuple[int, int]] = set()
    for broker in sorted(each.node_id for each in request.context.broker.image.brokers.values() if each.live):
        try:
            listed = await send(broker, ListTransactionsRequest([], producers), ListTransactionsResponse, LIST)
            check_code(listed.error_code, f"transactions of broker {broker}")
            ids = [each.transactional_id for each in listed.transaction_states]
            reply = await send(broker, DescribeTransactionsRequest(ids), DescribeTransactionsResponse, DESCRIBE)
        except Unavailable as fault:
            raise HttpError(KAFKA_RETRIABLE_ERROR, f"broker {broker} does not reply: {fault}") from None
        for each in reply.transaction_states:
            held |= {
                (each.producer_id, number)
                for found in each.topics
                if found.topic == topic.name
                for number in found.partitions
            }
    return held
