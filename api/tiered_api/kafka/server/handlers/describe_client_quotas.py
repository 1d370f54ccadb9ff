"""DescribeClientQuotas (API key 48): the quotas of entities that a filter chooses (KIP-546). v1 is flexible."""

from __future__ import annotations

from tiered.errors import Refused
from tiered.quotas.entity import EntityFilter, QuotaFilter
from tiered_api.kafka.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext


async def handle(context: KafkaContext, call: Call[DescribeClientQuotasRequest]) -> DescribeClientQuotasResponse:
    """Returns the quotas that this broker knows."""
    request = call.request
    try:
        wanted = QuotaFilter(
            [EntityFilter(each.entity_type, each.match_type, each.match) for each in request.components],
            strict=request.strict,
        )
    except Refused as refused:
        return DescribeClientQuotasResponse(0, refused.code.number, refused.why, None)
    entries = [
        EntryData([EntityData(*part) for part in entity], [ValueData(*each) for each in values.items()])
        for entity, values in context.broker.image.quotas.items()
        if wanted.chooses(entity)
    ]
    return DescribeClientQuotasResponse(error_message=None, entries=entries)
