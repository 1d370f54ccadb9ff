"""InitProducerId (API key 22): an id and an epoch for an idempotent or transactional producer.

A producer without a transactional id gets a new id, also if it sends the id that it has (v3+, KIP-360). For a
transactional id, the coordinator moves the epoch, which fences the producer before. An open transaction is aborted
first: the client retries on CONCURRENT_TRANSACTIONS. v4+ knows PRODUCER_FENCED.
"""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered.transactions.requests import InitProducerId, ProducerIdReply
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.transaction_requests import call_coordinator, fenced_code

NO_ID = -1
FENCED_FROM = 4
REQUEST_HASH_BYTES_MAX = 64


async def handle(context: KafkaContext, call: Call[InitProducerIdRequest]) -> InitProducerIdResponse:
    """Returns an id and an epoch."""
    request = call.request
    if request.transactional_id is not None:
        return await _init_transactional(context, request, call.version, call.caller.holder)
    if (request.producer_id == NO_ID) != (request.producer_epoch == NO_ID):
        return _make_refused_response(Code.INVALID_REQUEST)
    try:
        producer_id = await context.broker.producer_ids.next_id()
    except Refused as refused:
        return _make_refused_response(Code.COORDINATOR_LOAD_IN_PROGRESS if refused.code.retriable else refused.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _init_transactional(
    context: KafkaContext, request: InitProducerIdRequest, version: int, holder: str
) -> InitProducerIdResponse:
    name = request.transactional_id or ""
    if not name:
        return _make_refused_response(Code.INVALID_REQUEST)
    if len(request.request_hash) > REQUEST_HASH_BYTES_MAX:
        return _make_refused_response(Code.INVALID_REQUEST)
    requested = InitProducerId(
        name, request.transaction_timeout_ms, request.producer_id, request.producer_epoch,
        request_hash=request.request_hash, holder=holder,
    )  # fmt: skip
    reply = await call_coordinator(context, name, requested, ProducerIdReply)
    code = reply.code if isinstance(reply, ProducerIdReply) else reply
    if not isinstance(reply, ProducerIdReply) or code is not Code.NONE:
        return _make_refused_response(fenced_code(code, version, FENCED_FROM))
    return InitProducerIdResponse(producer_id=reply.producer_id, producer_epoch=reply.producer_epoch, reply=reply.reply)


def _make_refused_response(code: Code) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code.number, producer_id=NO_ID, producer_epoch=NO_ID)
