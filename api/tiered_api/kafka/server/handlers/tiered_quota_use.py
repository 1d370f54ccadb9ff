"""TieredQuotaUse (API key 20009, ours): what clients used of their quotas at another process of this machine."""

from __future__ import annotations

from tiered.errors import Refused
from tiered.peers import QuotaUse
from tiered_api.kafka.protocol.messages.tiered_quota_use import TieredQuotaUseRequest, TieredQuotaUseResponse
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.rights.inter_broker_auth import authorize_call, refusal_text


async def handle(context: KafkaContext, call: Call[TieredQuotaUseRequest]) -> TieredQuotaUseResponse:
    """Counts the use as that of this process."""
    request = call.request
    try:
        authorize_call(context, call, request.cluster_id, request.credential)
    except Refused as refused:
        return TieredQuotaUseResponse(refused.code.number, refusal_text(refused))
    context.broker.client_quotas.count_reported(
        QuotaUse(each.key, each.user, each.client_id, each.value, each.bound) for each in request.uses
    )
    return TieredQuotaUseResponse()
