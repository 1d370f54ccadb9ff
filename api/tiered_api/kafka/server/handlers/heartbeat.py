"""Heartbeat (API key 12): a member is alive.

v3+ names static members (KIP-345). While the group is loading, the reply has no error, as in Kafka: the member would
otherwise look for another coordinator without success.
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups import requests
from tiered_api.kafka.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import call_coordinator


async def handle(context: KafkaContext, call: Call[HeartbeatRequest]) -> HeartbeatResponse:
    """Returns the code that tells the member what to do."""
    request = call.request
    beat = requests.Heartbeat(request.group_id, request.generation_id, request.member_id, request.group_instance_id)
    reply = await call_coordinator(context, request.group_id, beat, requests.HeartbeatReply)
    code = reply.code if isinstance(reply, requests.HeartbeatReply) else reply
    return HeartbeatResponse(error_code=0 if code is Code.COORDINATOR_LOAD_IN_PROGRESS else code.number)
