"""The charge of created and deleted partitions against the quota of a client (KIP-599)."""

from __future__ import annotations

from typing import Any

from tiered.errors import Refused
from tiered.security.principal import BROKER
from tiered_api.kafka.server.exchange.context import Call, KafkaContext

NEVER = 1 << 15
"""For requests that are never refused: their charges only grow the debt."""


class MutationCharges:
    """The charges of one request. From version `strict_from` on, a client with a debt is refused."""

    def __init__(self, context: KafkaContext, call: Call[Any], strict_from: int) -> None:
        self.caller = call.caller
        self._quotas = context.broker.client_quotas
        principal = call.caller.principal
        limits = None
        if self._quotas.table.has_client_quotas and principal.kind != BROKER:
            limits = self._quotas.find_limits(principal.name, call.client_id)
        self._limit = None if limits is None else limits.mutations
        self._is_strict = call.version >= strict_from
        self.pause_ms = 0
        """Throttle time of the reply."""

    def add(self, partitions: int) -> None:
        """Charges partitions. Raises `Refused` with THROTTLING_QUOTA_EXCEEDED."""
        if self._limit is None:
            return
        try:
            pause_ms = self._quotas.charge_mutations(self._limit, partitions, is_strict=self._is_strict)
        except Refused:
            self.pause_ms = max(self.pause_ms, self._quotas.find_mutation_pause(self._limit))
            raise
        self.pause_ms = max(self.pause_ms, pause_ms)
