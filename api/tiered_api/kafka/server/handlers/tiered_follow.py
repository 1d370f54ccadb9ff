"""TieredFollow (API key 20001, ours): another broker follows the metadata log, and is heard by asking.

The answer waits for something new. When the connection ends before that, the wait is cancelled: so a process that dies
is missed at once.
"""

from __future__ import annotations

from tiered.errors import Refused
from tiered.peers import MetadataFetch
from tiered_api.kafka.protocol.messages.tiered_follow import TieredFollowRequest, TieredFollowResponse
from tiered_api.kafka.server.context import Call, KafkaContext
from tiered_api.kafka.server.inter_broker_auth import authorize_call, refusal_text

WAIT_MAX_MS = 60_000


async def handle(context: KafkaContext, call: Call[TieredFollowRequest]) -> TieredFollowResponse:
    """The slots that are asked for, or why this broker has none to give."""
    asked = call.request
    wait_ms = max(0, min(asked.wait_ms, WAIT_MAX_MS))
    ask = MetadataFetch(asked.node_id, asked.incarnation, asked.slot, asked.applied, asked.controller_epoch, wait_ms)
    try:
        answer = await authorize_call(context, call, asked.cluster_id, asked.credential).handle_metadata_fetch(ask)
    except Refused as refused:
        return TieredFollowResponse(refused.code.number, refusal_text(refused))
    return TieredFollowResponse(
        controller_epoch=answer.controller_epoch,
        next_slot=answer.next_slot,
        entries=list(answer.entries),
        too_old=answer.too_old,
        store_age_ms=answer.store_age_ms,
    )
