"""The charge of changes of metadata against the quota of a client (KIP-599): topics, settings, ACLs, users, quotas,
tokens, elections and reassignments."""

from __future__ import annotations

from typing import Any

from tiered.errors import Refused
from tiered.security.principal import BROKER, Caller
from tiered_api.kafka.protocol.messages.create_partitions import CreatePartitionsRequest
from tiered_api.kafka.protocol.messages.create_topics import CreateTopicsRequest
from tiered_api.kafka.protocol.messages.delete_topics import DeleteTopicsRequest
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.context.context import Call, KafkaContext

STRICT_FROM: dict[type[Message], int] = {CreateTopicsRequest: 6, DeleteTopicsRequest: 5, CreatePartitionsRequest: 3}
"""Versions from which clients know THROTTLING_QUOTA_EXCEEDED, and try again later. The clients of all other requests
wait for the pause that the reply names."""


class MutationCharges:
    """The changes of one request, and the pause of its reply. A client with a debt is refused if the request knows the
    error, any other client only if it owes too much."""

    def __init__(self, context: KafkaContext, call: Call[Any]) -> None:
        self.caller: Caller = call.caller
        self._call = call
        self._quotas = context.broker.client_quotas
        limits = None
        if self._quotas.table.has_client_quotas and self.caller.principal.kind != BROKER:
            limits = self._quotas.find_limits(self.caller.principal.name, call.client_id)
        self._limit = None if limits is None else limits.mutations
        self._time_limit = None if limits is None else limits.requests
        strict_from = STRICT_FROM.get(type(call.request))
        self._is_strict = strict_from is not None and call.version >= strict_from
        self._paid = 0

    def pay(self, count: int) -> None:
        """Charges changes that the handler submits later, together with others. Raises `Refused` with
        THROTTLING_QUOTA_EXCEEDED."""
        self._charge(count)
        self._paid += count

    def admit_changes(self, count: int) -> None:
        """Charges changes that were not paid before. Raises `Refused` with THROTTLING_QUOTA_EXCEEDED."""
        paid = min(count, self._paid)
        self._paid -= paid
        if count > paid:
            self._charge(count - paid)

    def charge_time(self, spent_ns: int) -> None:
        """Charges the time of the event loop that changes cost."""
        if self._time_limit is not None and spent_ns:
            self._pause(self._quotas.record_request_time(self._time_limit, spent_ns))

    def _charge(self, count: int) -> None:
        if self._limit is None or not count:
            return
        try:
            pause_ms = self._quotas.charge_mutations(self._limit, count, is_strict=self._is_strict)
        except Refused:
            self._pause(self._quotas.find_mutation_pause(self._limit))
            raise
        self._pause(pause_ms)

    def _pause(self, pause_ms: int) -> None:
        self._call.pause_ms = min(max(self._call.pause_ms, pause_ms), 2**31 - 1)
