"""Tests of the early fence: a broker that is silent in every way is fenced after the suspect timeout, one that replies
is not, and a pause of the controller is no silence of others."""

from __future__ import annotations

from tiered.controller.suspicion import OwnPauses, SilentBrokers, is_conclusive

SECOND = 1_000_000_000
TIMEOUT = 2 * SECOND
NEAR: tuple[int, ...] = ()


def watched(*nodes: int, is_enabled: bool = True) -> SilentBrokers:
    made = SilentBrokers(TIMEOUT, lambda node: TIMEOUT, is_enabled=is_enabled)
    made.set_live_brokers([(node, f"i{node}") for node in nodes], 0)
    return made


def query(silent: SilentBrokers, at_ns: int, *, is_answered: bool, took_ns: int | None = None) -> list[int]:
    """Sends the requests that are due; returns to which brokers."""
    due = list(silent.take_queries_due(at_ns))
    ended_ns = at_ns + (silent.query_ns if took_ns is None else took_ns)
    for node, incarnation in due:
        silent.end_query(node, incarnation, at_ns, ended_ns, is_answered=is_answered)
    return [node for node, _ in due]


def test_broker_that_is_silent_and_does_not_reply_is_fenced() -> None:
    silent = watched(2, 3)
    silent.on_heard(3, "i3", TIMEOUT)
    assert query(silent, SECOND - 1, is_answered=False) == []
    assert query(silent, SECOND, is_answered=False) == [2]
    assert query(silent, 3 * SECOND // 2, is_answered=False) == [2]
    assert silent.find_silent(TIMEOUT - 1, NEAR) == []
    assert silent.find_silent(TIMEOUT, NEAR) == [(2, "i2")]


def test_broker_that_replies_is_not_silent() -> None:
    silent = watched(2)
    assert query(silent, 3 * SECOND // 2, is_answered=True) == [2]
    assert silent.find_silent(TIMEOUT, NEAR) == []
    assert query(silent, 2 * TIMEOUT, is_answered=False) == [2]
    assert silent.find_silent(2 * TIMEOUT, NEAR) == [(2, "i2")], "its reply was long ago"


def test_fetch_after_the_request_ends_the_silence() -> None:
    silent = watched(2)
    query(silent, 3 * SECOND // 2, is_answered=False)
    silent.on_heard(2, "i2", TIMEOUT - 1)
    assert silent.find_silent(TIMEOUT, NEAR) == []


def test_contact_of_another_incarnation_does_not_count() -> None:
    silent = watched(2)
    query(silent, 3 * SECOND // 2, is_answered=False)
    silent.on_heard(2, "earlier", TIMEOUT - 1)
    assert silent.find_silent(TIMEOUT, NEAR) == [(2, "i2")]
    silent.set_live_brokers([(2, "later")], TIMEOUT)
    assert silent.find_silent(TIMEOUT, NEAR) == []


def test_early_request_alone_proves_nothing() -> None:
    """It may have waited on a connection that was broken. The second one has a new connection."""
    silent = watched(2)
    query(silent, SECOND, is_answered=False)
    assert silent.find_silent(TIMEOUT, NEAR) == []


def test_controller_that_was_paused_asks_before_it_fences() -> None:
    silent = watched(2)
    assert silent.find_silent(60 * SECOND, NEAR) == [], "it has sent no request yet"
    assert query(silent, 60 * SECOND, is_answered=False, took_ns=3 * SECOND) == [2]
    assert silent.find_silent(63 * SECOND, NEAR) == [], "it was paused while it waited for the reply"
    assert query(silent, 63 * SECOND, is_answered=False) == [2]
    assert silent.find_silent(64 * SECOND, NEAR) == [(2, "i2")]


def test_pause_of_the_controller_is_no_silence_of_others() -> None:
    """The broker waited for the controller meanwhile, and pauses next."""
    silent = watched(2)
    silent.on_pause(SECOND, SECOND)
    query(silent, 2 * SECOND, is_answered=False)
    query(silent, 5 * SECOND // 2, is_answered=False)
    assert silent.find_silent(3 * SECOND - 1, NEAR) == []
    assert silent.find_silent(3 * SECOND, NEAR) == [(2, "i2")]
    silent.on_pause(9 * SECOND, 3 * SECOND)
    assert silent.find_silent(5 * SECOND, NEAR) == [], "no broker is heard in the future"


def test_own_pause_is_the_time_beyond_a_tick() -> None:
    pauses = OwnPauses(SECOND)
    assert [pauses.tick(at * SECOND) for at in (7, 8, 11, 15, 16)] == [0, 0, 0, 3 * SECOND, 0]


def test_request_in_progress_is_not_sent_again() -> None:
    silent = watched(2)
    assert list(silent.take_queries_due(SECOND)) == [(2, "i2")]
    assert list(silent.take_queries_due(SECOND + 1)) == []


def test_controller_that_hears_no_other_machine_waits_longer() -> None:
    """It is more likely to be cut off itself. A process of its own machine replies all the same."""
    silent = watched(2, 3, 1001)
    silent.on_heard(1001, "i1001", TIMEOUT)
    query(silent, 3 * SECOND // 2, is_answered=False)
    assert silent.find_silent(TIMEOUT, [1001]) == []
    assert silent.find_silent(TIMEOUT * 5 // 4, [1001]) == [(2, "i2"), (3, "i3")]


def test_only_other_broker_is_fenced_without_a_longer_wait() -> None:
    silent = watched(2)
    query(silent, 3 * SECOND // 2, is_answered=False)
    assert silent.find_silent(TIMEOUT, NEAR) == [(2, "i2")], "nobody else could choose a new controller"


def test_silence_of_the_last_controller_counts_for_the_next_one() -> None:
    silent = watched(2, 3)
    silent.backdate(2, TIMEOUT, SECOND, is_unanswered=True)
    silent.backdate(3, TIMEOUT, SECOND, is_unanswered=False)
    silent.backdate(9, TIMEOUT, SECOND, is_unanswered=True)
    silent.on_heard(3, "i3", SECOND)
    assert silent.find_silent(SECOND, NEAR) == [(2, "i2")]


def test_without_a_shorter_timeout_no_broker_is_fenced_early() -> None:
    silent = watched(2, is_enabled=False)
    assert query(silent, 3 * TIMEOUT, is_answered=False) == []
    assert silent.find_silent(3 * TIMEOUT, NEAR) == []


def test_wait_that_took_much_longer_than_its_limit_is_not_conclusive() -> None:
    assert is_conclusive(SECOND, SECOND) and is_conclusive(SECOND * 3 // 2, SECOND)
    assert not is_conclusive(SECOND * 3 // 2 + 1, SECOND)
