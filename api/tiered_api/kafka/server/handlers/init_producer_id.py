"""InitProducerId (API key 22): an id for an idempotent producer.

A producer that lost track of its sequence may send its id (v3+, KIP-360). Without a transaction it then gets a new id,
as in Kafka. A transactional id is refused with a final error: there are no transactions yet, and a retriable error
would keep the client waiting for ever.
"""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tiered_api.kafka.server.exchange.context import Call, KafkaContext

NO_ID = -1


async def handle(context: KafkaContext, call: Call[InitProducerIdRequest]) -> InitProducerIdResponse:
    """Returns a new id with epoch 0."""
    request = call.request
    if request.transactional_id is not None:
        fault = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if request.transactional_id else Code.INVALID_REQUEST
        return _make_refused_response(fault)
    if (request.producer_id == NO_ID) != (request.producer_epoch == NO_ID):
        return _make_refused_response(Code.INVALID_REQUEST)
    try:
        producer_id = await context.broker.producer_ids.next_id()
    except Refused as refused:
        return _make_refused_response(Code.COORDINATOR_LOAD_IN_PROGRESS if refused.code.retriable else refused.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _make_refused_response(code: Code) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code.number, producer_id=NO_ID, producer_epoch=NO_ID)
