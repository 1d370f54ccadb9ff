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
from tiered_api.kafka.server.exchange.bounded_tasks import run_bounded
from tiered_api.kafka.server.exchange.context import Call, KafkaContext
from tiered_api.kafka.server.exchange.error_codes import ENGINE_ERRORS, error_code_of
from tiered_api.kafka.server.exchange.inter_broker_auth import is_impostor
from tiered_api.kafka.server.exchange.led_partitions import find_leader_replica


async def handle(context: KafkaContext, call: Call[OffsetForLeaderEpochRequest]) -> OffsetForLeaderEpochResponse:
    """Returns one result per partition."""
    wanted = [(topic.topic, each) for topic in call.request.topics for each in topic.partitions]
    work = _refuse if is_impostor(context, call, call.request.replica_id) else _find_end_offset
    works = [partial(work, context, name, each) for name, each in wanted]
    answers = await run_bounded(
        works,
        context.broker.settings.remote_list_offsets_request_timeout_ms,
        lambda number: EpochEndOffset(Code.REQUEST_TIMED_OUT.number, wanted[number][1].partition),
    )
    rest = iter(answers)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(topic.topic, [next(rest) for _ in topic.partitions])
            for topic in call.request.topics
        ]
    )


async def _refuse(context: KafkaContext, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    return EpochEndOffset(Code.CLUSTER_AUTHORIZATION_FAILED.number, asked.partition)


async def _find_end_offset(context: KafkaContext, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        replica = find_leader_replica(context, topic, asked.partition, asked.current_leader_epoch)
        epoch, end = await end_offset_for_epoch(replica, asked.leader_epoch)
        replica.reads.check_not_stopped()
    except ENGINE_ERRORS as fault:
        return EpochEndOffset(error_code_of(fault).number, asked.partition)
    return EpochEndOffset(Code.NONE.number, asked.partition, epoch, end)
