"""The order of the requests on one connection, as Kafka has it, and how many of them may wait for replies.

A request begins once all earlier requests of its connection have their replies. So it finds their effects, and they do
not find its own. Kafka reads nothing from a connection meanwhile.

Two kinds may overlap requests of the same kind, because nobody can tell the difference. A Produce appends its records
before the next request begins, and waits only for their commit. A Fetch has no effects. A Fetch behind a Produce waits:
it has to find the committed records.

Requests of a broker may overlap. It sends them for many clients over one connection, and waits for the reply before it
sends a request that depends on it.

Five requests of a connection may wait: as many as clients send by default. More Produce requests may wait while the
broker is at ease. A client such as librdkafka sends one batch in each, and those of topics with `flush=bucket` wait for
a put: with five of them, a put would carry five batches. A Produce that waits keeps no frame, because its records are
in the log.
"""

from __future__ import annotations

PRODUCE, FETCH = 0, 1
OVERLAPPING = frozenset((PRODUCE, FETCH))
"""The API keys whose requests may begin while earlier requests with the same key wait."""

WAITING_MAX = 5
"""Most requests of one connection that wait for replies."""
WAITING_PRODUCE_MAX = 100
"""Most of them if they are Produce requests, and the broker is at ease."""


def is_full(waiting: int, waiting_key: int, pending: int, pending_max: int) -> bool:
    """True if no further request of a connection may begin while so many of the other key wait for their replies. The
    broker has `pending` requests without a reply on all connections: it is at ease below half of `pending_max`."""
    if waiting < WAITING_MAX:
        return pending >= pending_max
    return waiting_key != PRODUCE or waiting >= WAITING_PRODUCE_MAX or pending >= pending_max // 2


def may_begin(api_key: int, waiting_key: int, is_broker: bool) -> bool:
    """True if a request may begin while earlier ones with the other key wait for their replies."""
    return (api_key == waiting_key and api_key in OVERLAPPING) or is_broker
