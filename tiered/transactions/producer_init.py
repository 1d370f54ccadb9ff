"""InitProducerId: a producer's id and epoch, and the fence against its predecessor (KIP-98, KIP-360).

A producer that begins gets a higher epoch than every producer of its transactional id before it (I16). An open
transaction of a predecessor is aborted first; the producer tries again until that is complete.
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.transactions.decision import ID_BYTES, TransactionDecision
from tiered.transactions.end import fence_producer
from tiered.transactions.metadata import (
    EPOCH_EXHAUSTED,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    TransactionMetadata,
    TransactionState,
)
from tiered.transactions.requests import InitProducerId, ProducerIdReply


def handle_init_producer_id(decision: TransactionDecision, request: InitProducerId) -> ProducerIdReply:
    """Decides InitProducerId."""
    state = decision.state
    if not request.transactional_id:
        return ProducerIdReply(Code.INVALID_REQUEST)
    if not 0 < request.timeout_ms <= state.settings.timeout_max_ms:
        return ProducerIdReply(Code.INVALID_TRANSACTION_TIMEOUT)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return ProducerIdReply(Code.INVALID_REQUEST)
    found = state.transactions.get(request.transactional_id)
    if found is None:
        return _register(decision, request)
    if request.producer_id != NO_PRODUCER_ID and not _is_known_producer(found, request):
        return ProducerIdReply(Code.PRODUCER_FENCED)
    if found.state.is_prepared:
        return ProducerIdReply(Code.CONCURRENT_TRANSACTIONS)
    if found.state is TransactionState.ONGOING:
        if request.producer_id != NO_PRODUCER_ID and request.producer_epoch != found.producer_epoch:
            return ProducerIdReply(Code.PRODUCER_FENCED)
        fence_producer(decision, request.transactional_id)
        return ProducerIdReply(Code.CONCURRENT_TRANSACTIONS)
    return _next_epoch(decision, request, found)


def needs_producer_id(found: TransactionMetadata | None, request: InitProducerId) -> bool:
    """True if the request cannot be decided without a producer id that nobody has had."""
    if found is None:
        return True
    is_open = found.state is TransactionState.ONGOING or found.state.is_prepared
    expects_present = request.producer_epoch in (NO_PRODUCER_EPOCH, found.producer_epoch)
    return found.is_epoch_exhausted and expects_present and not is_open


def _is_known_producer(found: TransactionMetadata, request: InitProducerId) -> bool:
    """True if the producer has the present id, or repeats the request that gave it a new id."""
    repeats = request.producer_id == found.previous_producer_id and request.producer_epoch >= EPOCH_EXHAUSTED
    return request.producer_id == found.producer_id or repeats


def _register(decision: TransactionDecision, request: InitProducerId) -> ProducerIdReply:
    state = decision.state
    if len(state.transactions) >= state.settings.ids_max or state.free_bytes < ID_BYTES:
        return ProducerIdReply(Code.POLICY_VIOLATION)
    if request.new_producer_id == NO_PRODUCER_ID:
        return ProducerIdReply(Code.COORDINATOR_LOAD_IN_PROGRESS)
    value = TransactionMetadata(
        request.new_producer_id, 0, request.timeout_ms, TransactionState.EMPTY, updated_ms=decision.now.wall_ms
    )
    decision.write(request.transactional_id, value, NO_PRODUCER_EPOCH)
    return ProducerIdReply(Code.NONE, value.producer_id, value.producer_epoch)


def _next_epoch(decision: TransactionDecision, request: InitProducerId, found: TransactionMetadata) -> ProducerIdReply:
    """Moves the epoch on, or gives a new id where the epochs of the old one are exhausted."""
    expected, last = request.producer_epoch, decision.state.last_epoch(request.transactional_id)
    producer_id, epoch = found.producer_id, found.producer_epoch
    if expected not in (NO_PRODUCER_EPOCH, epoch):
        if expected != last:
            return ProducerIdReply(Code.PRODUCER_FENCED)
    elif found.is_epoch_exhausted:
        if request.new_producer_id == NO_PRODUCER_ID:
            return ProducerIdReply(Code.COORDINATOR_LOAD_IN_PROGRESS)
        producer_id, epoch = request.new_producer_id, 0
        last = found.producer_epoch if expected != NO_PRODUCER_EPOCH else NO_PRODUCER_EPOCH
    else:
        epoch, last = epoch + 1, epoch if expected != NO_PRODUCER_EPOCH else NO_PRODUCER_EPOCH
    value = found._replace(
        producer_id=producer_id, producer_epoch=epoch, timeout_ms=request.timeout_ms, state=TransactionState.EMPTY,
        partitions=frozenset(), started_ms=NO_TIME, updated_ms=decision.now.wall_ms,
        previous_producer_id=found.producer_id,
    )  # fmt: skip
    decision.write(request.transactional_id, value, last)
    return ProducerIdReply(Code.NONE, value.producer_id, value.producer_epoch)
