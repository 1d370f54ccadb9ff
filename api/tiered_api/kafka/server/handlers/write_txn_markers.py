"""WriteTxnMarkers (API key 27): commit and abort markers for partitions that this broker leads.

Coordinators send it to the leaders of a decided transaction. Operators abort a hanging transaction with it (KIP-664).
An operator has no credential, and can only abort an open transaction: a commit is the coordinator's to decide. v2+ has
the transaction version (KIP-1228), with which the epoch of a marker must be above that of the records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import repeat

from tiered.coordination.marker_writer import MarkerDue, MarkerReason
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.records.marker import TransactionMarker
from tiered.system.turns import Turns
from tiered_api.kafka.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.rights.inter_broker_auth import check_credential
from tiered_api.kafka.server.slots.bounded_tasks import CONCURRENCY, run_bounded

WRITES_AT_ONCE = 500
"""Markers of a coordinator's request that are written at the same time: as many as it sends in one."""
TIMEOUT_MS = 30_000


async def handle(context: KafkaContext, call: Call[WriteTxnMarkersRequest]) -> WriteTxnMarkersResponse:
    """Returns one code for each partition, once its marker is committed or refused."""
    request = call.request
    refused: Refused | None = None
    codes: Iterator[Code]
    if request.credential:
        refused = check_credential(context, call, request.credential)
    elif any(each.transaction_result for each in request.markers):
        refused = Refused(Code.CLUSTER_AUTHORIZATION_FAILED, "only a coordinator decides that a transaction commits")
    if refused is not None:
        context.refusals.record("stranger", call.client_host, refused.why)
        codes = repeat(refused.code)
    else:
        codes = iter(await _write_all(context, request))
    return WriteTxnMarkersResponse([await _make_result(context.turns, each, codes) for each in request.markers])


async def _write_all(context: KafkaContext, request: WriteTxnMarkersRequest) -> list[Code]:
    writer = context.broker.marker_writer
    reason = MarkerReason.DECIDED if request.credential else MarkerReason.OPERATOR
    writes: list[Callable[[], Awaitable[Code]]] = []
    for requested in request.markers:
        marker = _marker_of(requested)
        for topic in requested.topics:
            async for number in context.turns.each_of(topic.partition_indexes):
                due = MarkerDue(TopicPartition(topic.name, number), marker, reason)
                writes.append(partial(writer.try_write, due))
    return await run_bounded(
        writes, TIMEOUT_MS, lambda _: Code.REQUEST_TIMED_OUT, context.turns,
        concurrency=WRITES_AT_ONCE if request.credential else CONCURRENCY,
    )  # fmt: skip


def _marker_of(requested: WritableTxnMarker) -> TransactionMarker:
    return TransactionMarker(
        requested.producer_id, requested.producer_epoch, requested.transaction_result, requested.coordinator_epoch,
        requested.transaction_version,
    )  # fmt: skip


async def _make_result(turns: Turns, requested: WritableTxnMarker, codes: Iterator[Code]) -> WritableTxnMarkerResult:
    result = WritableTxnMarkerResult(requested.producer_id, [])
    for topic in requested.topics:
        found = [
            WritableTxnMarkerPartitionResult(each, next(codes).number)
            async for each in turns.each_of(topic.partition_indexes)
        ]
        result.topics.append(WritableTxnMarkerTopicResult(topic.name, found))
    return result
