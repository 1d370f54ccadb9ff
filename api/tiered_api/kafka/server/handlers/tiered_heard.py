"""TieredHeard (API key 20003, ours): what this broker knows of the controller, for one that misses it."""

from __future__ import annotations

from tiered.errors import Refused
from tiered_api.kafka.protocol.messages.tiered_heard import TieredHeardRequest, TieredHeardResponse
from tiered_api.kafka.server.context import Call, KafkaContext
from tiered_api.kafka.server.inter_broker_auth import authorize_call, refusal_text


async def handle(context: KafkaContext, call: Call[TieredHeardRequest]) -> TieredHeardResponse:
    """At once, from memory."""
    asked = call.request
    try:
        heard = authorize_call(context, call, asked.cluster_id, asked.credential).controller_view()
    except Refused as refused:
        return TieredHeardResponse(refused.code.number, refusal_text(refused))
    return TieredHeardResponse(
        controller_epoch=heard.controller_epoch,
        controller=heard.controller,
        heard_ms_ago=heard.heard_ms_ago,
        node_id=heard.node_id,
        incarnation=heard.incarnation,
    )
