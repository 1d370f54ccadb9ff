"""The order of the requests on one connection, as Kafka has it.

A request begins once all earlier requests of its connection have their replies. So it finds their effects, and they do
not find its own. Kafka reads nothing from a connection meanwhile.

Two kinds may overlap requests of the same kind, because nobody can tell the difference. A Produce appends its records
before the next request begins, and waits only for their commit. A Fetch has no effects. A Fetch behind a Produce waits:
it has to find the committed records.

Requests of a broker may overlap. It sends them for many clients over one connection, and waits for the reply before it
sends a request that depends on it.
"""

from __future__ import annotations

PRODUCE, FETCH = 0, 1
OVERLAPPING = frozenset((PRODUCE, FETCH))
"""The API keys whose requests may begin while earlier requests with the same key wait."""


def may_begin(api_key: int, waiting_key: int, is_broker: bool) -> bool:
    """True if a request may begin while earlier ones with the other key wait for their replies."""
    return (api_key == waiting_key and api_key in OVERLAPPING) or is_broker
