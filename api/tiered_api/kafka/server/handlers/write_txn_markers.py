"""WriteTxnMarkers (API key 27): commit and abort markers for partitions that this broker leads.

Coordinators send it to the leaders of a decided transaction. Operators abort a hanging transaction with it (KIP-664).
An operator has no credential, and can only abort an open transaction: a commit is the coordinator's to decide. v2+ has
the transaction version (KIP-1228), with which the epoch of a marker must be above that of the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.records.marker import TransactionMarker
from tiered_api.kafka.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tiered_api.kafka.server.exchange.context import Call, KafkaContext
from tiered_api.kafka.server.exchange.inter_broker_auth import check_credential

WRITES_AT_ONCE = 500
"""Markers of one request that are written at the same time."""

WriteMarker = Callable[[TopicPartition, TransactionMarker], Awaitable[None]]


async def handle(context: KafkaContext, call: Call[WriteTxnMarkersRequest]) -> WriteTxnMarkersResponse:
    """Returns one code for each partition, once its marker is committed or refused."""
    request = call.request
    refused: Refused | None = None
    if request.credential:
        refused = check_credential(context, call.listener, request.credential)
    elif any(each.transaction_result for each in request.markers):
        refused = Refused(Code.CLUSTER_AUTHORIZATION_FAILED, "only a coordinator decides that a transaction commits")
    if refused is not None:
        context.refusals.record("stranger", call.client_host, refused.why)
    slots, writer = asyncio.Semaphore(WRITES_AT_ONCE), context.broker.marker_writer
    write = writer.write_marker if request.credential else writer.abort_transaction
    return WriteTxnMarkersResponse(
        list(await asyncio.gather(*(_write_marker(write, each, slots, refused) for each in request.markers)))
    )


async def _write_marker(
    write_marker: WriteMarker, asked: WritableTxnMarker, slots: asyncio.Semaphore, refused: Refused | None
) -> WritableTxnMarkerResult:
    marker = TransactionMarker(
        asked.producer_id, asked.producer_epoch, asked.transaction_result, asked.coordinator_epoch,
        asked.transaction_version,
    )  # fmt: skip

    async def write(name: str, number: int) -> WritableTxnMarkerPartitionResult:
        code = refused.code if refused is not None else await _write(write_marker, TopicPartition(name, number), marker)
        return WritableTxnMarkerPartitionResult(number, code.number)

    async def write_in_turn(name: str, number: int) -> WritableTxnMarkerPartitionResult:
        async with slots:
            return await write(name, number)

    return WritableTxnMarkerResult(
        asked.producer_id,
        [
            WritableTxnMarkerTopicResult(
                topic.name,
                list(await asyncio.gather(*(write_in_turn(topic.name, number) for number in topic.partition_indexes))),
            )
            for topic in asked.topics
        ],
    )


async def _write(write_marker: WriteMarker, tp: TopicPartition, marker: TransactionMarker) -> Code:
    try:
        await write_marker(tp, marker)
    except Refused as refused:
        return refused.code
    except Unavailable:
        return Code.NOT_LEADER_OR_FOLLOWER
    return Code.NONE
