"""The shared parts of the consumer fetches of one broker."""

from __future__ import annotations

from typing import Protocol

from tiered.security.principal import Caller
from tiered_api.kafka.server.context.caller_caches import CallerCaches
from tiered_api.kafka.server.context.context import KafkaContext
from tiered_api.kafka.server.fetch.cold_reads import ColdReads
from tiered_api.kafka.server.fetch.parking import ParkedFetches
from tiered_api.kafka.server.fetch.read_sources import ReadSources
from tiered_api.kafka.server.fetch.rereads import RereadQueue
from tiered_api.kafka.server.slots.response_slot import RequestConnection, RunGuarded

KNOWN_MAX = 20_000
"""Most replicas that are remembered, for all callers together."""


class FetchConnection(RequestConnection, Protocol):
    """The connection of a client, with what the Fetch handler keeps in it."""

    fetch_prefix_end: int
    """Position of the first partition in the last Fetch request."""
    read_sources: ReadSources
    """Replicas that the caller may read."""
    fetch_rotation: int
    """Number of fetches that left out records for want of room."""
    holder: str
    """The holder that cold reads count for; "" for a broker."""

    @property
    def can_copy_slices(self) -> bool:
        """True if replies may copy file slices to memory: few unsent bytes wait there."""


class FetchContext:
    """The surroundings of each consumer fetch: replicas, cold reads, and the fetches that wait."""

    __slots__ = ("cold_reads", "kafka", "parked", "rereads", "sources")

    def __init__(self, kafka: KafkaContext, run_guarded: RunGuarded) -> None:
        self.kafka = kafka
        self.sources: CallerCaches[ReadSources] = CallerCaches(self._make_sources, KNOWN_MAX)
        kafka.broker.authorization.subscribe(self.sources.clear)
        self.cold_reads = ColdReads(kafka)
        self.parked = ParkedFetches(run_guarded, kafka.turns)
        self.rereads = RereadQueue(kafka)

    def _make_sources(self, caller: Caller) -> ReadSources:
        return ReadSources(self.kafka, caller, self.sources.admit)
