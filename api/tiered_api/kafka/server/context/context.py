"""The surroundings of every handler of the Kafka protocol: broker, clock and counters, and the request itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tiered.broker.broker import Broker
from tiered.log_limiter import LogLimiter
from tiered.metrics import Counter, Metrics
from tiered.security.principal import Caller
from tiered.system.turns import Turns
from tiered_api.kafka.protocol.apis import ALL_APIS
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.context.metadata_fragments import TopicFragments

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)


@dataclass(slots=True)
class Call(Generic[R]):
    """One request, its client and the listener. The handler is cancelled when the connection ends."""

    request: R
    version: int
    correlation_id: int
    client_id: str
    peer: str
    """HOST:PORT of the client."""
    listener: str
    caller: Caller
    """The principal of the client, and its host."""
    on_credential: Callable[[], None] = lambda: None
    """Called when the request has proved by its credential that a broker sent it."""
    pause_ms: int = 0
    """Pause that the changes of the request cost its client."""

    @property
    def client_host(self) -> str:
        """Host of the client, without the port."""
        return self.caller.host


REFUSED_LOGINS = ("certificate", "login", "login_timeout", "stranger", "tls_handshake")
"""Reasons that the audit log has."""


class Refusals:
    """Connections and requests that were refused: counted by reason, and logged at a limited rate."""

    def __init__(self, metrics: Metrics, broker: Broker) -> None:
        self._counter: Counter = metrics.counter(
            "tiered_kafka_refused_total", "Connections refused or ended by the broker, by reason.", ("reason",)
        )
        self._log_limiter = LogLimiter(broker.world.clock)
        self._audit = broker.audit

    def record(self, reason: str, peer: str, why: str, listener: str = "", claimed_user: str = "") -> None:
        """Counts and logs a refusal. `reason` is a short label, `why` explains the single case."""
        self._counter.inc(1, reason)
        if reason in REFUSED_LOGINS:
            self._audit.record_refused_login(peer.rpartition(":")[0] or peer, listener, why, claimed_user)
        suppressed = self._log_limiter.admit(reason)
        if suppressed is not None:
            log.warning(
                "kafka connection refused reason=%s peer=%s suppressed=%d why=%s", reason, peer, suppressed, why
            )

    def record_unlogged(self, reason: str) -> None:
        """Counts a connection that was closed for an everyday reason, without a log line."""
        self._counter.inc(1, reason)

    def count(self, reason: str) -> int:
        """Returns the number of refusals with that reason."""
        return int(self._counter.value(reason))


class KafkaContext:
    """The surroundings of the Kafka protocol on one broker. Numbers of the hot path are plain attributes, which the
    metrics read on request."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.clock = broker.world.clock
        self.refusals = Refusals(broker.metrics, broker)
        self.turns = Turns(self.clock)
        self.log_limiter = LogLimiter(self.clock)
        """Limits warnings that clients can cause at will."""
        self.requests = dict.fromkeys(ALL_APIS, 0)
        """Number of received requests by API key."""
        self.produced_bytes = 0
        self.fetched_bytes = 0
        self.replicated_bytes = 0
        self.cold_bytes = 0
        """Bytes of cold batches that are loading, or loaded and not sent yet."""
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
        metrics.counter(
            "tiered_kafka_fetched_bytes_total", "Bytes of record batches in replies to Fetch."
        ).set_function(lambda: self.fetched_bytes)
