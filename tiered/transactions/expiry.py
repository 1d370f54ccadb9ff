"""Expiry of transactional ids that nobody uses (transactional.id.expiration.ms)."""

from __future__ import annotations

from tiered.transactions.decision import TransactionDecision
from tiered.transactions.metadata import TransactionState

EXPIRY_SLICE_IDS = 5_000
"""Ids that one turn of the expiry looks at, so that no turn takes long."""


def expire_ids(decision: TransactionDecision, names: list[str]) -> None:
    """Takes one slice of ids from the end of `names`, and removes those that expired. An open transaction keeps its id.
    The ids of idempotency keys have a time of their own.

    A producer whose id expired gets a new producer id with its next InitProducerId.
    """
    state = decision.state
    oldest_ms = decision.now.expiry_ms - state.settings.id_expiration_ms
    oldest_key_ms = decision.now.expiry_ms - state.settings.key_expiration_ms
    for _ in range(min(EXPIRY_SLICE_IDS, len(names))):
        name = names.pop()
        found = state.transactions.get(name)
        if found is None or found.state is TransactionState.ONGOING or found.state.is_prepared:
            continue
        if found.updated_ms <= (oldest_key_ms if found.request_hash else oldest_ms):
            decision.remove(name)
