"""UnregisterBroker (API key 64): removes a broker that has left for good from the metadata (KIP-631).

Kafka also removes brokers that are live or have replicas. This broker refuses both with INVALID_REQUEST and the reason.
"""

from __future__ import annotations

from tiered.controller.requests import UnregisterBroker
from tiered.errors import Refused
from tiered_api.kafka.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.mutation_charges import MutationCharges


async def handle(context: KafkaContext, call: Call[UnregisterBrokerRequest]) -> UnregisterBrokerResponse:
    """Returns success, or the error and its reason."""
    try:
        await context.broker.submit(UnregisterBroker(call.request.broker_id), by=MutationCharges(context, call))
    except Refused as refused:
        return UnregisterBrokerResponse(0, refused.code.number, refused.why)
    return UnregisterBrokerResponse()
