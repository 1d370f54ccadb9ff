"""EndTxn, timeouts, and the completion after all markers (KIP-98, KIP-890).

The outcome is decided by the record of PREPARE_COMMIT or PREPARE_ABORT. Markers are requested by an event, which the
carrier gets once that record is committed (I14). With transaction version 2 each end moves the producer's epoch, so
that no late record of this transaction can join the next one.
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.transactions.decision import TransactionDecision
from tiered.transactions.limits import REPLY_BYTES_MAX
from tiered.transactions.metadata import (
    EPOCH_BUMP_VERSION,
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
)
from tiered.transactions.requests import (
    CodeReply,
    EndTransaction,
    MarkersWritten,
    ProducerIdReply,
    TransactionTimedOut,
)


def handle_end_transaction(decision: TransactionDecision, request: EndTransaction) -> ProducerIdReply:
    """Decides EndTxn."""
    if not request.transactional_id:
        return ProducerIdReply(Code.INVALID_REQUEST)
    found = decision.state.transactions.get(request.transactional_id)
    if found is None:
        return ProducerIdReply(Code.INVALID_PRODUCER_ID_MAPPING)
    if request.reply and not _may_keep(decision, found, request):
        return ProducerIdReply(Code.INVALID_REQUEST)
    if request.client_version < EPOCH_BUMP_VERSION:
        return _end_plainly(decision, request, found)
    return _end_with_new_epoch(decision, request, found)


def _may_keep(decision: TransactionDecision, found: TransactionMetadata, request: EndTransaction) -> bool:
    """True if the reply of an idempotency key may be kept with its transaction."""
    has_room = len(request.reply) <= min(REPLY_BYTES_MAX, max(decision.state.free_bytes, 0))
    is_of_key = found.request_hash != b"" and request.client_version >= EPOCH_BUMP_VERSION
    return request.commit and is_of_key and (has_room or found.reply != b"")


def needs_producer_id(found: TransactionMetadata | None, request: EndTransaction) -> bool:
    """True if the request cannot be decided without a producer id that nobody has had."""
    return found is not None and request.client_version >= EPOCH_BUMP_VERSION and found.is_epoch_exhausted


def _end_plainly(decision: TransactionDecision, request: EndTransaction, found: TransactionMetadata) -> ProducerIdReply:
    """Ends a transaction of version 0 or 1: the same request may be sent again, with the same epoch."""
    if found.producer_id != request.producer_id:
        return ProducerIdReply(Code.INVALID_PRODUCER_ID_MAPPING)
    if found.producer_epoch != request.producer_epoch:
        return ProducerIdReply(Code.PRODUCER_FENCED)
    if found.state is TransactionState.ONGOING:
        _prepare(decision, request.transactional_id, found, request.commit, client_version=0)
        return ProducerIdReply(Code.NONE)
    return _reply_to_repeated(found, request)


def _reply_to_repeated(found: TransactionMetadata, request: EndTransaction) -> ProducerIdReply:
    """Replies where the outcome is decided: NONE for the same outcome once it is complete.

    A client of version 0 keeps its epoch. So the other outcome may be that of its next transaction, and waits too.
    """
    if found.state.is_prepared:
        return ProducerIdReply(Code.CONCURRENT_TRANSACTIONS)
    if found.state is TransactionState.EMPTY or found.commits != request.commit:
        return ProducerIdReply(Code.INVALID_TXN_STATE)
    return ProducerIdReply(Code.NONE)


def _end_with_new_epoch(
    decision: TransactionDecision, request: EndTransaction, found: TransactionMetadata
) -> ProducerIdReply:
    """Ends a transaction of version 2. The epoch tells a repeated request from the end of the next transaction."""
    repeats_after_new_id = (
        found.previous_producer_id == request.producer_id
        and request.producer_epoch == EPOCH_EXHAUSTED
        and found.producer_epoch == 0
    )
    if found.producer_id != request.producer_id and not repeats_after_new_id:
        return ProducerIdReply(Code.INVALID_PRODUCER_ID_MAPPING)
    is_current = found.producer_id == request.producer_id and found.producer_epoch == request.producer_epoch
    decided = found.state not in (TransactionState.EMPTY, TransactionState.ONGOING)
    repeats = decided and (repeats_after_new_id or found.producer_epoch == request.producer_epoch + 1)
    if repeats:
        reply = _reply_to_repeated(found, request)
        return ProducerIdReply(Code.NONE, *_next_identity(found)) if reply.code is Code.NONE else reply
    if not is_current:
        return ProducerIdReply(Code.PRODUCER_FENCED)
    if found.state.is_prepared:
        return ProducerIdReply(Code.CONCURRENT_TRANSACTIONS)
    if found.state is not TransactionState.ONGOING and (request.commit or found.reply):
        return ProducerIdReply(Code.INVALID_TXN_STATE)
    if found.is_epoch_exhausted and request.new_producer_id == NO_PRODUCER_ID:
        return ProducerIdReply(Code.COORDINATOR_LOAD_IN_PROGRESS)
    prepared = _prepare(
        decision, request.transactional_id, found, request.commit, client_version=request.client_version,
        next_producer_id=request.new_producer_id if found.is_epoch_exhausted else NO_PRODUCER_ID,
        reply=request.reply,
    )  # fmt: skip
    return ProducerIdReply(Code.NONE, *_next_identity(prepared))


def _next_identity(found: TransactionMetadata) -> tuple[int, int]:
    """Returns the producer id and epoch of the next transaction."""
    if found.next_producer_id != NO_PRODUCER_ID:
        return found.next_producer_id, 0
    return found.producer_id, found.producer_epoch


def fence_producer(decision: TransactionDecision, transactional_id: str) -> None:
    """Aborts an open transaction, and fences its producer by a higher epoch, which no producer gets."""
    found = decision.state.transactions[transactional_id]
    _prepare(decision, transactional_id, found, False, client_version=EPOCH_BUMP_VERSION, last_epoch=NO_PRODUCER_EPOCH)


def abort_timed_out(decision: TransactionDecision, transactional_id: str) -> None:
    """Aborts a transaction whose timeout has passed."""
    found = decision.state.transactions[transactional_id]
    decision.events.append(TransactionTimedOut(transactional_id, found.producer_id, found.timeout_ms))
    fence_producer(decision, transactional_id)


def _prepare(
    decision: TransactionDecision, transactional_id: str, found: TransactionMetadata, commit: bool, *,
    client_version: int, next_producer_id: int = NO_PRODUCER_ID, last_epoch: int | None = None, reply: bytes = b"",
) -> TransactionMetadata:  # fmt: skip
    """Writes the outcome, and requests the markers."""
    moves_epoch = client_version >= EPOCH_BUMP_VERSION
    is_ongoing = found.state is TransactionState.ONGOING
    now_ms = decision.now.wall_ms
    value = found._replace(
        state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
        producer_epoch=min(found.producer_epoch + 1, EPOCH_MAX) if moves_epoch else found.producer_epoch,
        partitions=found.partitions if is_ongoing else frozenset(),
        started_ms=found.started_ms if is_ongoing else now_ms,
        updated_ms=now_ms, previous_producer_id=found.producer_id, next_producer_id=next_producer_id,
        client_version=client_version, reply=reply,
    )  # fmt: skip
    if last_epoch is None and moves_epoch:
        last_epoch = found.producer_epoch
    decision.write(transactional_id, value, last_epoch)
    if not value.partitions:
        return _complete(decision, transactional_id, value)
    decision.state.unmarked[transactional_id] = value.partitions
    decision.request_markers(transactional_id)
    return value


def resume_markers(decision: TransactionDecision, transactional_id: str) -> None:
    """Goes on with a decided transaction after a load. The log may end between the decision and the completion of a
    transaction without partitions: no marker would complete that one."""
    left = decision.state.unmarked.get(transactional_id)
    if left:
        decision.request_markers(transactional_id)
    elif left is not None:
        _complete(decision, transactional_id, decision.state.transactions[transactional_id])


def handle_markers_written(decision: TransactionDecision, request: MarkersWritten) -> CodeReply:
    """Notes markers that are committed. The transaction is complete with the last one."""
    state, transactional_id = decision.state, request.transactional_id
    found = state.transactions.get(transactional_id)
    if found is None or not found.state.is_prepared:
        return CodeReply(Code.NONE)
    if (found.producer_id, found.producer_epoch) != (request.producer_id, request.producer_epoch):
        return CodeReply(Code.NONE)
    state.unmarked[transactional_id] -= request.partitions
    if not state.unmarked[transactional_id]:
        _complete(decision, transactional_id, found)
    return CodeReply(Code.NONE)


def _complete(decision: TransactionDecision, transactional_id: str, found: TransactionMetadata) -> TransactionMetadata:
    decision.state.unmarked.pop(transactional_id, None)
    producer_id, producer_epoch = _next_identity(found)
    return decision.write(
        transactional_id,
        found._replace(
            state=TransactionState.COMPLETE_COMMIT if found.commits else TransactionState.COMPLETE_ABORT,
            producer_id=producer_id, producer_epoch=producer_epoch, partitions=frozenset(),
            updated_ms=decision.now.wall_ms, previous_producer_id=found.producer_id, next_producer_id=NO_PRODUCER_ID,
        ),
    )  # fmt: skip
