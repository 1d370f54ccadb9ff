"""EndTxn (API key 26): commits or aborts a transaction.

The reply comes once the outcome is committed in `__transaction_state`. The markers follow. v2+ knows PRODUCER_FENCED.
v5+ is of transaction version 2 (KIP-890): the reply has the producer's id and epoch for its next transaction. The
caller need not be the process that began the transaction.
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.transactions.requests import EndTransaction, ProducerIdReply
from tiered_api.kafka.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.transaction_requests import (
    call_coordinator,
    call_coordinator_now,
    fenced_code,
)

FENCED_FROM, EPOCH_BUMP_FROM = 2, 5
PLAIN_VERSION, EPOCH_BUMP_VERSION = 0, 2


async def handle(context: KafkaContext, call: Call[EndTxnRequest]) -> EndTxnResponse:
    """Returns one code, and the identity of the producer from v5 on."""
    name = call.request.transactional_id
    return _response_of(call, await call_coordinator(context, name, _request_of(call), ProducerIdReply))


def handle_now(context: KafkaContext, call: Call[EndTxnRequest]) -> EndTxnResponse | None:
    """Does the same if the coordinator replies without a wait."""
    name = call.request.transactional_id
    reply = call_coordinator_now(context, name, _request_of(call), ProducerIdReply)
    return _response_of(call, reply) if reply is not None else None


def _request_of(call: Call[EndTxnRequest]) -> EndTransaction:
    request = call.request
    version = EPOCH_BUMP_VERSION if call.version >= EPOCH_BUMP_FROM else PLAIN_VERSION
    return EndTransaction(
        request.transactional_id, request.producer_id, request.producer_epoch, request.committed, version,
        reply=request.reply,
    )  # fmt: skip


def _response_of(call: Call[EndTxnRequest], reply: ProducerIdReply | Code) -> EndTxnResponse:
    if isinstance(reply, ProducerIdReply) and reply.code is Code.NONE:
        return EndTxnResponse(producer_id=reply.producer_id, producer_epoch=reply.producer_epoch)
    code = reply.code if isinstance(reply, ProducerIdReply) else reply
    return EndTxnResponse(error_code=fenced_code(code, call.version, FENCED_FROM).number)
