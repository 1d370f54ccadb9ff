"""Checker of idempotency keys: a request with a key is written once, however often it is sent. Pure: observations in,
broken rules out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.sim.cluster.observer import Finding
from tests.sim.cluster.transaction_checker import Logs
from tiered.ids import TopicPartition

Place = tuple[TopicPartition, int]


@dataclass
class KeyedRequest:
    """One request with a key, as it is sent again and again. Each reply has the place of each value."""

    key: str
    is_transaction: bool
    values: tuple[bytes, ...]
    replies: list[tuple[Place, ...]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """Replies that say that another request has used the key."""


def check_keys(requests: Iterable[KeyedRequest], logs: Logs) -> Iterator[Finding]:
    """I11: no value of a request is written twice, all replies to it name the same places, and the values are there.
    I14: a transaction is committed as a whole or not at all."""
    places: dict[bytes, list[Place]] = {}
    for tp, log in logs.items():
        for offset, value in log.committed.items():
            places.setdefault(value, []).append((tp, offset))
    for request in requests:
        what = f"{'transaction' if request.is_transaction else 'request'} with key {request.key}"
        written = [places.get(value, []) for value in request.values]
        twice = next((found for found in written if len(found) > 1), None)
        if twice is not None:
            yield Finding("I11", f"{what} is written twice: {twice}")
        if request.refusals:
            yield Finding("I11", f"{what} counts as another request: {request.refusals[0]}")
        for reply in request.replies:
            if [list(found) for found in written] != [[place] for place in reply] and twice is None:
                yield Finding("I11", f"{what} got {reply}, and is at {written}")
                break
        missing = sum(not found for found in written)
        if request.is_transaction and missing not in (0, len(written)):
            yield Finding("I14", f"{what}: {missing} of {len(written)} records are not committed")
