"""The partitions of one Produce request: those that have a result are not appended to again."""

from __future__ import annotations

from typing import Any

from tiered_api.kafka.server.handlers.produce import PendingProduce
from tiered_api.kafka.server.produce.frames import ParsedProduce, ProduceResult, ProduceTopic


def make_pending() -> PendingProduce:
    """Returns a request with two topics, of two partitions and of one."""
    topics = [ProduceTopic(b"a", "a", [(0, None), (1, None)]), ProduceTopic(b"b", "b", [(7, None)])]
    connection: Any = None
    return PendingProduce(connection, 9, 1, ParsedProduce(None, -1, 1000, topics, 0))


def answer(pending: PendingProduce, most: int) -> list[tuple[bytes, int]]:
    """Answers at most this many partitions, and returns them."""
    found: list[tuple[bytes, int]] = []
    for place, _, _, results in pending.iterate_unanswered():
        if len(found) == most:
            break
        results.append(ProduceResult(place[1]))
        found.append(place)
    return found


def test_partitions_are_answered_in_the_order_of_the_request() -> None:
    pending = make_pending()
    assert answer(pending, 9) == [(b"a", 0), (b"a", 1), (b"b", 7)]
    assert [(echo, [each.partition for each in results]) for echo, results in pending.results] == [
        (b"a", [0, 1]),
        (b"b", [7]),
    ]


def test_request_that_stopped_goes_on_behind_its_last_result() -> None:
    for first in range(4):
        pending = make_pending()
        begun = answer(pending, first)
        assert [*begun, *answer(pending, 9)] == [(b"a", 0), (b"a", 1), (b"b", 7)]
        assert [len(results) for _, results in pending.results] == [2, 1]


def test_request_that_is_answered_has_nothing_left() -> None:
    pending = make_pending()
    answer(pending, 9)
    assert answer(pending, 9) == []
