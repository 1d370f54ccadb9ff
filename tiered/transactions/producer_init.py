"""InitProducerId: a producer's id and epoch, and the fence against its predecessor (KIP-98, KIP-360).

A producer that begins gets a higher epoch than every producer of its transactional id before it (I16). An open
transaction of a predecessor is aborted first; the producer tries again until that is complete.

An id that stands for an idempotency key has one transaction (I11). Once that is committed, no other one begins: the
request gets the reply that was committed with it.
"""

from __future__ import annotations

from itertools import islice

from tiered.errors import Code
from tiered.ids import KEYED_FROM
from tiered.transactions.decision import ID_BYTES, TransactionDecision
from tiered.transactions.end import fence_producer
from tiered.transactions.limits import KEY_IDLE_MS
from tiered.transactions.metadata import (
    EPOCH_EXHAUSTED,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    TransactionMetadata,
    TransactionState,
)
from tiered.transactions.requests import InitProducerId, KeysForgotten, ProducerIdReply

FORGOTTEN_AT_ONCE = 10
"""Most keys that make room for one."""


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
    state.claim(request.transactional_id, request.holder)
    if request.request_hash or found.reply:
        settled = _find_settled(found, request)
        if settled is not None:
            return settled
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


def _find_settled(found: TransactionMetadata, request: InitProducerId) -> ProducerIdReply | None:
    """Returns the reply to an idempotency key whose transaction is open or committed; None if one may begin."""
    if found.reply:
        if not request.request_hash:
            return ProducerIdReply(Code.PRODUCER_FENCED)
        if request.request_hash != found.request_hash:
            return ProducerIdReply(Code.DUPLICATE_RESOURCE)
        return ProducerIdReply(Code.NONE, found.producer_id, found.producer_epoch, found.reply)
    return ProducerIdReply(Code.INVALID_TXN_STATE) if found.state is TransactionState.ONGOING else None


def _is_known_producer(found: TransactionMetadata, request: InitProducerId) -> bool:
    """True if the producer has the present id, or repeats the request that gave it a new id."""
    repeats = request.producer_id == found.previous_producer_id and request.producer_epoch >= EPOCH_EXHAUSTED
    return request.producer_id == found.producer_id or repeats


def _register(decision: TransactionDecision, request: InitProducerId) -> ProducerIdReply:
    state = decision.state
    if request.request_hash and not _make_room_for_key(decision):
        return ProducerIdReply(Code.THROTTLING_QUOTA_EXCEEDED)
    if len(state.transactions) >= state.settings.ids_max:
        return ProducerIdReply(Code.POLICY_VIOLATION)
    if not state.has_room(request.holder, ID_BYTES):
        return ProducerIdReply(Code.COORDINATOR_NOT_AVAILABLE)
    if request.new_producer_id == NO_PRODUCER_ID:
        return ProducerIdReply(Code.COORDINATOR_LOAD_IN_PROGRESS)
    value = TransactionMetadata(
        _choose_producer_id(request), 0, request.timeout_ms, TransactionState.EMPTY,
        updated_ms=decision.now.wall_ms, request_hash=request.request_hash,
    )  # fmt: skip
    state.claim(request.transactional_id, request.holder)
    decision.write(request.transactional_id, value, NO_PRODUCER_EPOCH)
    return ProducerIdReply(Code.NONE, value.producer_id, value.producer_epoch)


def _choose_producer_id(request: InitProducerId) -> int:
    """Returns the new producer id. That of an idempotency key counts as a key in the partitions too."""
    return request.new_producer_id | KEYED_FROM if request.request_hash else request.new_producer_id


def _make_room_for_key(decision: TransactionDecision) -> bool:
    """Returns True if there is room for another key. Forgets the oldest ones for it, if their clients have given up."""
    state, forgotten = decision.state, 0
    oldest_ms = decision.now.wall_ms - KEY_IDLE_MS
    settings = state.settings
    for name in list(islice(state.keyed, FORGOTTEN_AT_ONCE)):
        if len(state.keyed) < settings.keys_max and state.free_bytes >= settings.bytes_kept_from_keys:
            break
        found = state.transactions[name]
        is_open = found.state is TransactionState.ONGOING or found.state.is_prepared
        if not is_open and found.updated_ms <= oldest_ms:
            decision.remove(name)
            forgotten += 1
    if forgotten:
        decision.events.append(KeysForgotten(forgotten))
    return len(state.keyed) < settings.keys_max and state.free_bytes >= settings.bytes_kept_from_keys


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
        producer_id, epoch = _choose_producer_id(request), 0
        last = found.producer_epoch if expected != NO_PRODUCER_EPOCH else NO_PRODUCER_EPOCH
    else:
        epoch, last = epoch + 1, epoch if expected != NO_PRODUCER_EPOCH else NO_PRODUCER_EPOCH
    value = found._replace(
        producer_id=producer_id, producer_epoch=epoch, timeout_ms=request.timeout_ms, state=TransactionState.EMPTY,
        partitions=frozenset(), started_ms=NO_TIME, updated_ms=decision.now.wall_ms,
        previous_producer_id=found.producer_id, request_hash=request.request_hash,
    )  # fmt: skip
    decision.write(request.transactional_id, value, last)
    return ProducerIdReply(Code.NONE, value.producer_id, value.producer_epoch)
