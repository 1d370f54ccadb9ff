"""TieredAcknowledge (API key 20004, ours): an operator acknowledges possible losses, which then are no problem of the
cluster any more.

The reply names the acknowledged losses as they were reported. A topic without a possible loss is no error. A topic that
does not exist is one.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiered.controller.partition_health import unacknowledged_losses
from tiered.controller.requests import AcknowledgeLosses
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import Loss
from tiered_api.kafka.protocol.messages.describe_cluster import PossibleLoss
from tiered_api.kafka.protocol.messages.tiered_acknowledge import (
    AcknowledgedTopic,
    TieredAcknowledgeRequest,
    TieredAcknowledgeResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import clamp_timeout_ms
from tiered_api.kafka.server.context.mutation_charges import MutationCharges


async def handle(context: KafkaContext, call: Call[TieredAcknowledgeRequest]) -> TieredAcknowledgeResponse:
    """Returns the acknowledged losses once the acknowledgement is committed."""
    image = context.broker.image
    try:
        found = _select_losses(image, call.request.topics)
        if found:
            seen = tuple(
                (image.topics[tp.topic].topic_id, tp.partition, loss.leader_epoch) for tp, loss in found.items()
            )
            await context.broker.submit(
                AcknowledgeLosses(seen),
                clamp_timeout_ms(call.request.timeout_ms) / 1000,
                by=MutationCharges(context, call),
            )
    except Refused as refused:
        return TieredAcknowledgeResponse(refused.code.number, refused.why)
    return TieredAcknowledgeResponse(losses=encode_losses(found))


def encode_losses(found: Mapping[TopicPartition, Loss]) -> list[PossibleLoss]:
    """Returns losses as messages of the protocol."""
    return [PossibleLoss(*tp, *loss) for tp, loss in found.items()]


def _select_losses(image: Image, topics: list[AcknowledgedTopic] | None) -> dict[TopicPartition, Loss]:
    found = unacknowledged_losses(image)
    if topics is None:
        return found
    chosen: dict[TopicPartition, Loss] = {}
    for each in topics:
        known = image.topics.get(each.topic)
        if known is None:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {each.topic[:249]!r}")
        numbers = range(len(known.partitions)) if each.partitions is None else each.partitions
        for number in numbers:
            if not 0 <= number < len(known.partitions):
                why = f"there is no partition {number} of topic {each.topic!r}"
                raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, why)
            tp = TopicPartition(each.topic, number)
            if tp in found:
                chosen[tp] = found[tp]
    return chosen
