"""A check of all that must hold between decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tiered.transactions.decision import MARKERS, TIMEOUT, ShardState, size_of
from tiered.transactions.limits import NO_TIMEOUT_MS
from tiered.transactions.metadata import EPOCH_MAX, NO_PRODUCER_ID, NO_TIME, TransactionState


def find_violations(state: ShardState) -> Iterator[str]:
    """Yields a sentence for each broken rule."""
    owners: dict[int, str] = {}
    size = sum(size_of(name, value) for name, value in state.transactions.items())
    if size != state.memory_bytes:
        yield f"the ids take {size} bytes, and {state.memory_bytes} are counted"
    if not set(state.holders) <= set(state.transactions):
        yield f"ids count for holders that are gone: {set(state.holders) - set(state.transactions)}"
    sizes = Counter[str]()
    for name, holder in state.holders.items():
        sizes[holder] += size_of(name, state.transactions.get(name))
    if +sizes != state.by_holder:
        yield f"holders have {dict(+sizes)} bytes, not {state.by_holder}"
    for name, value in state.transactions.items():
        if not 0 <= value.producer_epoch <= EPOCH_MAX or value.producer_id < 0:
            yield f"{name} has producer id {value.producer_id} and epoch {value.producer_epoch}"
        other = owners.setdefault(value.producer_id, name)
        if other != name:
            yield f"{name} and {other} share producer id {value.producer_id}"
        is_open = value.state is TransactionState.ONGOING or value.state.is_prepared
        resumes = value.state.is_prepared and (MARKERS, name, "") in state.deadlines
        if is_open is not bool(value.partitions) and not resumes:
            yield f"{name} is {value.state.label} with {len(value.partitions)} partitions"
        if is_open and value.started_ms == NO_TIME:
            yield f"{name} is {value.state.label}, and began at no time"
        if value.next_producer_id != NO_PRODUCER_ID and not value.state.is_prepared:
            yield f"{name} is {value.state.label}, and waits for producer id {value.next_producer_id}"
        if value.reply and not (value.request_hash and value.commits):
            yield f"{name} is {value.state.label}, and keeps the reply of a committed transaction"
        if bool(value.request_hash) is not (name in state.keyed):
            yield f"{name} is {'not ' if value.request_hash else ''}counted as an idempotency key"
        left = state.unmarked.get(name)
        if value.state.is_prepared is not bool(left) and not resumes:
            yield f"{name} is {value.state.label}, and waits for markers in {left}"
        elif left and not left <= value.partitions:
            yield f"{name} waits for markers in {left}, which are not in {value.partitions}"
        timed = (TIMEOUT, name, "") in state.deadlines
        if timed is not (value.state is TransactionState.ONGOING and value.timeout_ms != NO_TIMEOUT_MS):
            yield f"{name} is {value.state.label}, and its timeout is {'set' if timed else 'not set'}"
    for name in (*state.unmarked, *state.last_epochs):
        if name not in state.transactions:
            yield f"{name} is unknown, and has state left"
