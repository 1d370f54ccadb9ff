"""What every handler of the Kafka protocol can reach: the node, its clock, the counters; what a request came with."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Generic, TypeVar

from tiered.broker.broker import Broker
from tiered.log_limiter import LogLimiter
from tiered.metrics import Counter, Metrics
from tiered_api.kafka.protocol.apis import ALL_APIS
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.metadata_fragments import TopicFragments
from tiered_api.kafka.server.turns import Turns

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)


@dataclass(slots=True)
class Call(Generic[R]):
    """One request, and who sent it over which listener. Its handler is cancelled when the connection ends."""

    request: R
    version: int
    correlation_id: int
    client_id: str
    client_host: str
    listener: str


class Refusals:
    """Connections and requests that were turned away: counted by reason, and logged so that no flood fills the log."""

    def __init__(self, metrics: Metrics, broker: Broker) -> None:
        self._counter: Counter = metrics.counter(
            "tiered_kafka_refused_total", "Connections refused or ended by the broker, by reason.", ("reason",)
        )
        self._log_limiter = LogLimiter(broker.world.clock)

    def record(self, reason: str, peer: str, why: str) -> None:
        """Something was refused for a `reason` of few words; `why` says more of this one."""
        self._counter.inc(1, reason)
        suppressed = self._log_limiter.admit(reason)
        if suppressed is not None:
            log.warning("kafka connection refused reason=%s peer=%s unsaid=%d why=%s", reason, peer, suppressed, why)

    def record_unlogged(self, reason: str) -> None:
        """A connection was closed as they are every day: the log is not told."""
        self._counter.inc(1, reason)

    def count(self, reason: str) -> int:
        """How many there were."""
        return int(self._counter.value(reason))


class KafkaContext:
    """One broker's surroundings of the Kafka protocol. Numbers of the hot path are plain attributes, which the metrics
    read when somebody looks."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.clock = broker.world.clock
        self.refusals = Refusals(broker.metrics, broker)
        self.turns = Turns()
        self.log_limiter = LogLimiter(self.clock)
        """For warnings of handlers that clients can cause at will."""
        self.requests = dict.fromkeys(ALL_APIS, 0)
        """Requests taken, by API key."""
        self.produced_bytes = 0
        self.fetched_bytes = 0
        self.replicated_bytes = 0
        self.cold_bytes = 0
        """Bytes of cold batches that are loaded and not yet sent, or under way."""
        self.topic_fragments = TopicFragments()
        metrics = broker.metrics
        metrics.counter("tiered_kafka_requests_total", "Requests taken, by API.", ("api",)).set_function(
            lambda: {(api.name,): self.requests[key] for key, api in ALL_APIS.items() if self.requests[key]}
        )
        metrics.counter(
            "tiered_kafka_produced_bytes_total", "Bytes of record batches that were appended."
        ).set_function(lambda: self.produced_bytes)
        metrics.counter(
            "tiered_kafka_replicated_bytes_total", "Bytes of record batches that followers were sent."
        ).set_function(lambda: self.replicated_bytes)
        metrics.counter("tiered_kafka_fetched_bytes_total", "Bytes of record batches that were answered.").set_function(
            lambda: self.fetched_bytes
        )
