"""Load of a coordinator partition with 100,000 transactional ids: CPU from the batches of the log to the shard."""

from __future__ import annotations

import time

from bench.figures import Figure
from tiered.coordinator.log_records import decode_batch, encode_batches
from tiered.shard import Now
from tiered.transactions.limits import TransactionSettings
from tiered.transactions.metadata import TransactionMetadata, TransactionState
from tiered.transactions.records import transaction_record
from tiered.transactions.shard import TransactionShard

IDS = 100_000
ROUNDS = 3
UPDATED_MS = 1_700_000_000_000


def main() -> list[Figure]:
    """Measures the best of some loads of a log that names each id once."""
    records = [
        transaction_record(
            f"application-{number}",
            TransactionMetadata(
                1_000 + number, 3, 60_000, TransactionState.COMPLETE_COMMIT, updated_ms=UPDATED_MS,
                started_ms=UPDATED_MS, previous_producer_id=1_000 + number, client_version=2,
            ),
        )
        for number in range(IDS)
    ]  # fmt: skip
    batches = list(encode_batches(records, UPDATED_MS))
    seconds = min(_load(batches) for _ in range(ROUNDS))
    return [Figure("load of 100,000 transactional ids", seconds, "s of CPU", 1.0, at_most=True)]


def _load(batches: list[bytes]) -> float:
    began, shard = time.process_time(), TransactionShard(TransactionSettings(ids_max=IDS))
    for each in batches:
        shard.apply(decode_batch(each))
    shard.on_loaded(Now(0, UPDATED_MS, UPDATED_MS))
    return time.process_time() - began
