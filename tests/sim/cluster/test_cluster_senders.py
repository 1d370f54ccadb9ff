"""Tests of senders with several batches in flight: without faults, and if one of the batches is lost."""

from __future__ import annotations

import pytest

from tests.sim.cluster.history import Send, SendVerdict
from tests.sim.cluster.observer import BrokenRules
from tests.sim.cluster.options import ClusterOptions
from tests.sim.cluster.run import run
from tests.sim.cluster.senders import SimProducer, can_continue
from tests.sim.cluster.test_cluster_stored import without_faults
from tiered.ids import TopicPartition
from tiered.producers import states

OK, REFUSED, UNKNOWN = (SendVerdict.OK, 2), (SendVerdict.FAILED, 1), (SendVerdict.UNKNOWN, 1)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([OK, OK], True),
        ([REFUSED, REFUSED], True),
        ([OK, REFUSED], True),
        ([REFUSED, OK], False),
        ([OK, UNKNOWN], False),
        ([UNKNOWN, REFUSED], False),
        ([OK, (SendVerdict.FAILED, 2)], False),
    ],
)
def test_producer_id_continues_behind_known_batches(ends: list[tuple[SendVerdict, int]], expected: bool) -> None:
    tp = TopicPartition("t", 0)
    sends = [Send("s", 0, tp, (b"v",), -1, 0, verdict=verdict, attempts=attempts) for verdict, attempts in ends]
    assert can_continue(sends) is expected


def with_in_flight(drawn: ClusterOptions) -> ClusterOptions:
    return without_faults(drawn).with_changes(in_flight=5)


def count_concurrent(sends: list[Send]) -> int:
    """Returns how many batches were in flight with another one of their producer."""
    begun = [(send.producer_id, send.tp, send.invoked_ns) for send in sends if send.producer_id >= 0]
    return len(begun) - len(set(begun))


def test_pipelined_batches_are_sent_again_after_a_lost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the broker keeps I11 and I12 here: a broker that takes a batch out of sequence is found."""
    assert count_concurrent(run(1, lambda drawn: without_faults(drawn).with_changes(in_flight=1)).history.sends) == 0
    sends = run(1, with_in_flight).history.sends
    assert count_concurrent(sends) > 20 and all(
        send.verdict is SendVerdict.OK for send in sends if send.producer_id >= 0
    )
    original = SimProducer._produce

    async def lose(sender: SimProducer, send: Send, data: bytes, node: int) -> None:
        if send.producer_id >= 0 and send.number % 7 == 0 and not send.attempts:
            send.attempts += 1
        else:
            await original(sender, send, data, node)

    monkeypatch.setattr(SimProducer, "_produce", lose)
    sends = run(1, with_in_flight).history.sends
    assert any(send.attempts > 1 and send.number % 7 for send in sends), "one behind was refused"
    monkeypatch.setattr(states, "check_sequence", lambda batch, producer, before, is_empty: None)
    with pytest.raises(BrokenRules) as broken:
        run(1, with_in_flight)
    assert {*broken.value.rules} <= {"I11", "I12"}
