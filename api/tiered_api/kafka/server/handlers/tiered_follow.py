"""TieredFollow (API key 20001, ours): another broker follows the metadata log. The requests of that broker are also its
heartbeats.

The reply waits for new slots. If the connection ends first, the wait is cancelled, so that the controller notices a
dead process at once.
"""

from __future__ import annotations

from tiered.errors import Refused
from tiered.peers import ClockComparison, MetadataFetch
from tiered_api.kafka.protocol.messages.tiered_follow import TieredFollowRequest, TieredFollowResponse
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.rights.inter_broker_auth import authorize_call, refusal_text

WAIT_MAX_MS = 60_000


async def handle(context: KafkaContext, call: Call[TieredFollowRequest]) -> TieredFollowResponse:
    """Returns the requested slots, or why this broker has none to give."""
    request = call.request
    wait_ms = max(0, min(request.wait_ms, WAIT_MAX_MS))
    clock = ClockComparison(request.clock_ahead_ms, request.clock_error_ms) if request.clock_error_ms >= 0 else None
    fetch = MetadataFetch(
        request.node_id, request.incarnation, request.slot, request.applied, request.controller_epoch, wait_ms, clock,
        request.metadata_version, request.active_key,
    )  # fmt: skip
    try:
        reply = await authorize_call(context, call, request.cluster_id, request.credential).handle_metadata_fetch(fetch)
    except Refused as refused:
        return TieredFollowResponse(refused.code.number, refusal_text(refused))
    return TieredFollowResponse(
        controller_epoch=reply.controller_epoch,
        next_slot=reply.next_slot,
        entries=list(reply.entries),
        too_old=reply.too_old,
        store_age_ms=reply.store_age_ms,
        wall_ms=reply.wall_ms,
        held_ms=reply.held_ms,
        active_keys=list(reply.active_keys),
    )
