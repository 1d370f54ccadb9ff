"""DescribeQuorum (API key 55): the controller and the brokers that follow its metadata log (KIP-595).

The controller is the leader and the only voter, and the other live brokers are observers. Offsets are slots of the
metadata log. The high watermark is the log end: the bucket has what is committed. v1+ has times of fetches (KIP-836),
v2+ the addresses of the voter and texts of errors (KIP-853). Brokers have no directory ids.
"""

from __future__ import annotations

from typing import cast

from tiered.config.listeners import parse_host_port
from tiered.controller.requests import DescribeQuorum, Quorum
from tiered.errors import Code, Refused
from tiered.metadata.image import Image
from tiered_api.kafka.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumListener,
    QuorumNode,
    QuorumPartitionResult,
    QuorumTopic,
    QuorumTopicResult,
    ReplicaState,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext

METADATA_TOPIC = "__cluster_metadata"
TIMEOUT_SECONDS = 10.0


async def handle(context: KafkaContext, call: Call[DescribeQuorumRequest]) -> DescribeQuorumResponse:
    """Returns the quorum as the controller knows it. The request has to name the metadata log, and nothing else."""
    topics = call.request.topics
    if [(each.topic_name, [part.partition_index for part in each.partitions]) for each in topics] != [
        (METADATA_TOPIC, [0])
    ]:
        return DescribeQuorumResponse(topics=[_refuse(each) for each in topics])
    try:
        quorum = cast(Quorum, await context.broker.submit(DescribeQuorum(), TIMEOUT_SECONDS))
    except Refused as refused:
        return DescribeQuorumResponse(refused.code.number, refused.why)
    return DescribeQuorumResponse(
        topics=[QuorumTopicResult(METADATA_TOPIC, [_make_result(quorum)])],
        nodes=_nodes_of(context.broker.image, quorum.controller),
    )


def _refuse(topic: QuorumTopic) -> QuorumTopicResult:
    code, why = Code.UNKNOWN_TOPIC_OR_PARTITION.number, f"only partition 0 of {METADATA_TOPIC} has a quorum"
    return QuorumTopicResult(
        topic.topic_name, [QuorumPartitionResult(each.partition_index, code, why) for each in topic.partitions]
    )


def _make_result(quorum: Quorum) -> QuorumPartitionResult:
    end = quorum.slot + 1
    return QuorumPartitionResult(
        leader_id=quorum.controller,
        leader_epoch=quorum.controller_epoch,
        high_watermark=end,
        current_voters=[
            ReplicaState(
                quorum.controller,
                log_end_offset=end,
                last_fetch_timestamp=quorum.now_ms,
                last_caught_up_timestamp=quorum.now_ms,
            )
        ],
        observers=[
            ReplicaState(
                each.node_id,
                log_end_offset=each.slot + 1 if each.slot >= 0 else -1,
                last_fetch_timestamp=each.fetched_ms,
                last_caught_up_timestamp=each.caught_up_ms,
            )
            for each in quorum.observers
        ],
    )


def _nodes_of(image: Image, controller: int) -> list[QuorumNode]:
    """Returns the controller with its addresses for clients: it has no listener of its own for its quorum."""
    known = image.brokers.get(controller)
    if known is None:
        return []
    places = ((name, parse_host_port(address)) for name, address in sorted(known.listeners.items()))
    return [QuorumNode(controller, [QuorumListener(name, *place) for name, place in places if place is not None])]
