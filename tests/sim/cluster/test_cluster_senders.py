"""Senders with several batches under way: in peace, and when one of them gets lost before those behind it."""

from __future__ import annotations

import pytest

from tests.sim.cluster.history import Send, Verdict
from tests.sim.cluster.observer import Broken
from tests.sim.cluster.options import Options
from tests.sim.cluster.run import run
from tests.sim.cluster.senders import Sender, goes_on
from tests.sim.cluster.test_cluster_stored import peace
from tiered.hot.producer_state import ProducerStates
from tiered.ids import TopicPartition

OK, REFUSED, UNKNOWN = (Verdict.OK, 2), (Verdict.FAILED, 1), (Verdict.UNKNOWN, 1)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([OK, OK], True),
        ([REFUSED, REFUSED], True),
        ([OK, REFUSED], True),
        ([REFUSED, OK], False),
        ([OK, UNKNOWN], False),
        ([UNKNOWN, REFUSED], False),
        ([OK, (Verdict.FAILED, 2)], False),
    ],
)
def test_an_identity_goes_on_behind_what_is_known(ends: list[tuple[Verdict, int]], expected: bool) -> None:
    where = TopicPartition("t", 0)
    sends = [Send("s", 0, where, (b"v",), -1, 0, verdict=verdict, attempts=attempts) for verdict, attempts in ends]
    assert goes_on(sends) is expected


def several(drawn: Options) -> Options:
    return peace(drawn).but(in_flight=5)


def together(sends: list[Send]) -> int:
    """How many were under way with another one of their producer."""
    begun = [(send.producer_id, send.where, send.invoked_ns) for send in sends if send.producer_id >= 0]
    return len(begun) - len(set(begun))


def test_batches_are_under_way_together_and_one_that_gets_lost_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """I11 and I12 hold for the sake of the broker alone: it is found when it takes what does not follow."""
    assert together(run(1, lambda drawn: peace(drawn).but(in_flight=1)).history.sends) == 0
    sends = run(1, several).history.sends
    assert together(sends) > 20 and all(send.verdict is Verdict.OK for send in sends if send.producer_id >= 0)
    original = Sender._ask

    async def lose(sender: Sender, send: Send, data: bytes, node: int) -> None:
        if send.producer_id >= 0 and send.number % 7 == 0 and not send.attempts:
            send.attempts += 1
        else:
            await original(sender, send, data, node)

    monkeypatch.setattr(Sender, "_ask", lose)
    sends = run(1, several).history.sends
    assert any(send.attempts > 1 and send.number % 7 for send in sends), "one behind was refused"
    monkeypatch.setattr(ProducerStates, "_check_follows", lambda states, batch, producer, tail: None)
    with pytest.raises(Broken) as broken:
        run(1, several)
    assert {*broken.value.rules} <= {"I11", "I12"}
