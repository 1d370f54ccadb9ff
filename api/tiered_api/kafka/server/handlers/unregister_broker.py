"""UnregisterBroker (API key 64): a broker that has left for good goes out of the metadata (KIP-631).

Kafka takes out brokers that are live or have replicas, too; here both are refused with INVALID_REQUEST and the reason.
"""

from __future__ import annotations

from tiered.controller.requests import UnregisterBroker
from tiered.errors import Refused
from tiered_api.kafka.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from tiered_api.kafka.server.context import Call, KafkaContext


async def handle(context: KafkaContext, call: Call[UnregisterBrokerRequest]) -> UnregisterBrokerResponse:
    """Done, or why not."""
    try:
        await context.broker.submit(UnregisterBroker(call.request.broker_id))
    except Refused as refused:
        return UnregisterBrokerResponse(0, refused.code.number, refused.why)
    return UnregisterBrokerResponse()
