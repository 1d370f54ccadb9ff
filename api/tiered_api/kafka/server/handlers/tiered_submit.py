"""TieredSubmit (API key 20002, ours): a request that another broker forwards to the controller."""

from __future__ import annotations

from tiered.errors import Code, Corrupt, Refused
from tiered_api.kafka.protocol.messages.tiered_submit import TieredSubmitRequest, TieredSubmitResponse
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import clamp_timeout_ms
from tiered_api.kafka.server.rights.inter_broker_auth import authorize_call, refusal_text


async def handle(context: KafkaContext, call: Call[TieredSubmitRequest]) -> TieredSubmitResponse:
    """Returns the controller's reply once its changes are committed."""
    request = call.request
    try:
        cluster = authorize_call(context, call, request.cluster_id, request.credential)
        reply = await cluster.handle_forwarded(request.request, clamp_timeout_ms(request.timeout_ms) / 1000)
    except Refused as refused:
        return TieredSubmitResponse(refused.code.number, refusal_text(refused))
    except Corrupt as error:
        return TieredSubmitResponse(
            Code.INVALID_REQUEST.number, refusal_text(Refused(Code.INVALID_REQUEST, str(error)))
        )
    return TieredSubmitResponse(reply=reply.reply, slot=reply.slot)
