"""Tests of the checker of idempotency keys: each broken rule is reported, and a history that keeps them all is not."""

from __future__ import annotations

from dataclasses import replace

from tests.sim.cluster.committed_reader import LoggedBatch
from tests.sim.cluster.key_checker import KeyedRequest, check_keys
from tests.sim.cluster.transaction_checker import WholeLog
from tiered.ids import TopicPartition

X, Y = TopicPartition("x0", 0), TopicPartition("x0", 1)
LOGS = {
    X: WholeLog.of([LoggedBatch(4, 5, -1, -1, False, None, (b"a", b"b"))]),
    Y: WholeLog.of([LoggedBatch(7, 7, -1, -1, False, None, (b"c",))]),
}
REPLY = ((X, 4), (X, 5), (Y, 7))
GOOD = KeyedRequest("k", True, (b"a", b"b", b"c"), [REPLY, REPLY])


def findings(request: KeyedRequest, logs: dict[TopicPartition, WholeLog] = LOGS) -> list[str]:
    return [each.rule for each in check_keys([request], logs)]


def test_request_that_is_where_its_replies_say_is_not_reported() -> None:
    assert findings(GOOD) == []
    assert findings(KeyedRequest("k", True, (b"never",))) == []


def test_request_that_is_written_twice_is_reported() -> None:
    again = {**LOGS, Y: WholeLog.of([LoggedBatch(7, 8, -1, -1, False, None, (b"c", b"a"))])}
    assert findings(replace(GOOD, replies=[]), again) == ["I11"]


def test_reply_with_another_place_is_reported() -> None:
    assert findings(replace(GOOD, replies=[REPLY, ((X, 4), (X, 6), (Y, 7))])) == ["I11"]
    assert findings(KeyedRequest("k", False, (b"never",), [((X, 1),)])) == ["I11"]


def test_request_that_counts_as_another_one_is_reported() -> None:
    assert findings(replace(GOOD, refusals=["used"])) == ["I11"]


def test_half_of_a_transaction_is_reported() -> None:
    half = KeyedRequest("k", True, (b"a", b"never"))
    assert findings(half) == ["I14"]
    assert findings(replace(half, is_transaction=False)) == []
