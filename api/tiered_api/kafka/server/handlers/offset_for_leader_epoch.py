"""OffsetForLeaderEpoch (API key 23): the end offset of a leader epoch, with which a consumer detects a log truncation
(KIP-320).

v3+ has the sender's replica id. Our brokers never send this request, so a sender that claims to be a broker is refused.
Epochs older than the local log are looked up in the manifest, because cold records have epochs too.
"""

from __future__ import annotations

from functools import partial

from tiered.errors import Code
from tiered.replication.offset_lookup import end_offset_for_epoch
from tiered_api.kafka.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import ENGINE_ERRORS, error_code_of
from tiered_api.kafka.server.context.led_partitions import find_leader_replica
from tiered_api.kafka.server.rights.inter_broker_auth import is_impostor
from tiered_api.kafka.server.slots.bounded_tasks import run_bounded


async def handle(context: KafkaContext, call: Call[OffsetForLeaderEpochRequest]) -> OffsetForLeaderEpochResponse:
    """Returns one result per partition. A partition that the request names twice is refused."""
    turns, wanted = context.turns, dict[tuple[str, int], OffsetForLeaderPartition | None]()
    requested = ((topic.topic, each) for topic in call.request.topics for each in topic.partitions)
    async for name, each in turns.each_of(requested):
        place = name, each.partition
        wanted[place] = None if place in wanted else each
    work = _refuse if is_impostor(context, call, call.request.replica_id) else _find_end_offset
    works = [partial(work, context, *place, found) async for place, found in turns.each_of(wanted.items())]
    places = list(wanted)
    results = await run_bounded(
        works,
        context.broker.settings.remote_list_offsets_request_timeout_ms,
        lambda number: EpochEndOffset(Code.REQUEST_TIMED_OUT.number, places[number][1]),
        turns,
    )
    topics: dict[str, OffsetForLeaderTopicResult] = {}
    async for (name, _), result in turns.each_of(zip(wanted, results, strict=True)):
        topics.setdefault(name, OffsetForLeaderTopicResult(name)).partitions.append(result)
    return OffsetForLeaderEpochResponse(topics=list(topics.values()))


async def _refuse(
    context: KafkaContext, topic: str, number: int, requested: OffsetForLeaderPartition | None
) -> EpochEndOffset:
    return EpochEndOffset(Code.CLUSTER_AUTHORIZATION_FAILED.number, number)


async def _find_end_offset(
    context: KafkaContext, topic: str, number: int, requested: OffsetForLeaderPartition | None
) -> EpochEndOffset:
    if requested is None:
        return EpochEndOffset(Code.INVALID_REQUEST.number, number)
    try:
        replica = find_leader_replica(context, topic, number, requested.current_leader_epoch)
        epoch, end = await end_offset_for_epoch(replica, requested.leader_epoch)
        replica.reads.check_not_stopped()
    except ENGINE_ERRORS as fault:
        return EpochEndOffset(error_code_of(fault).number, number)
    return EpochEndOffset(Code.NONE.number, number, epoch, end)
