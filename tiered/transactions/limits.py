"""Limits of transactions, each with the setting that it comes from, if there is one."""

from __future__ import annotations

from tiered.value import value

INT32_MAX = (1 << 31) - 1
REPLY_BYTES_MAX = 64 << 10
"""Largest reply that is kept for an idempotency key."""
KEY_IDLE_MS = 600_000
"""Age from which a key may make room for another one: by then its client has given up."""
NO_TIMEOUT_MS = INT32_MAX
"""Timeout of a transaction in two-phase commit (KIP-939): the coordinator never aborts it by itself."""


@value
class TransactionSettings:
    """Limits of a shard, and the memory that it shares. The defaults are those of the broker's settings."""

    timeout_max_ms: int = 900_000
    """Longest timeout that a producer may request (transaction.max.timeout.ms)."""
    id_expiration_ms: int = 7 * 24 * 3_600_000
    """Time after which a transactional id without a transaction expires (transactional.id.expiration.ms)."""
    expiration_check_ms: int = 3_600_000
    """Interval of the checks for expired ids (transaction.remove.expired.transaction.cleanup.interval.ms)."""
    ids_max: int = 100_000
    """Transactional ids that one shard holds."""
    key_expiration_ms: int = 24 * 3_600_000
    """Time after which the id of an idempotency key expires (producer.id.expiration.ms)."""
    partitions_max: int = 10_000
    """Partitions of one transaction: all of them are one record."""
    bytes_max: int = 256 << 20
    """Memory of all shards of a broker (tiered.transactions.max.bytes)."""

    @property
    def keys_max(self) -> int:
        """Idempotency keys that one shard holds."""
        return max(self.ids_max // 2, 1)

    @property
    def bytes_kept_from_keys(self) -> int:
        """Memory that ids of idempotency keys do not take, for all other ids."""
        return self.bytes_max // 2
