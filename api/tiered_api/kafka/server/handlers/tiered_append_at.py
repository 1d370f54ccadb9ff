"""TieredAppendAt (API key 20010, ours): compare and append, for the schema registry of another broker."""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered.hosting.conditional_append import append_at
from tiered.ids import TopicId, TopicPartition
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.protocol.messages.tiered_append_at import TieredAppendAtRequest, TieredAppendAtResponse
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import clamp_timeout_ms
from tiered_api.kafka.server.rights.inter_broker_auth import authorize_call, refusal_text


async def handle(context: KafkaContext, call: Call[TieredAppendAtRequest]) -> TieredAppendAtResponse:
    """Returns once the batch is committed."""
    request = call.request
    try:
        authorize_call(context, call, request.cluster_id, request.credential)
        replica = _find_leader(context, request)
        data = bytearray(request.records or b"")
        await append_at(replica, data, request.end_offset, clamp_timeout_ms(request.timeout_ms))
    except Refused as refused:
        return TieredAppendAtResponse(refused.code.number, refusal_text(refused))
    return TieredAppendAtResponse()


def _find_leader(context: KafkaContext, request: TieredAppendAtRequest) -> LeaderReplica:
    """Returns the leader replica of exactly this topic and leader epoch. Raises `Refused`."""
    topic = context.broker.image.topics_by_id.get(TopicId(request.topic_id))
    if topic is None:
        raise Refused(Code.UNKNOWN_TOPIC_ID, f"there is no topic with id {request.topic_id}")
    replica = context.broker.leader_replica(topic.name, request.partition)
    if replica.topic_id != request.topic_id or replica.leader_epoch != request.leader_epoch:
        tp = TopicPartition(topic.name, request.partition)
        raise Refused(Code.NOT_LEADER_OR_FOLLOWER, f"this broker leads {tp} in another epoch")
    return replica
