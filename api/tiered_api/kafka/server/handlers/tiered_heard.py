"""TieredHeard (API key 20003, ours): this broker's view of the controller, for a broker that has lost contact with
it."""

from __future__ import annotations

from tiered.errors import Refused
from tiered_api.kafka.protocol.messages.tiered_heard import TieredHeardRequest, TieredHeardResponse
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.rights.inter_broker_auth import authorize_call, refusal_text


async def handle(context: KafkaContext, call: Call[TieredHeardRequest]) -> TieredHeardResponse:
    """Returns the view from memory, at once."""
    request = call.request
    try:
        view = authorize_call(context, call, request.cluster_id, request.credential).controller_view()
    except Refused as refused:
        return TieredHeardResponse(refused.code.number, refusal_text(refused))
    return TieredHeardResponse(
        controller_epoch=view.controller_epoch,
        controller=view.controller,
        heard_ms_ago=view.heard_ms_ago,
        node_id=view.node_id,
        incarnation=view.incarnation,
    )
