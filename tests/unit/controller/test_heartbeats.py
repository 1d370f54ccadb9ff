"""Tests of the contact times of brokers at the controller, and of the time at which a broker becomes a candidate."""

from __future__ import annotations

import pytest

from tiered.controller.heartbeats import NO_PROGRESS, PROBE_AFTER_NS, BrokerHeartbeats, UnreachableBrokers
from tiered.metadata.candidacy import (
    RANK_DELAY_MS,
    RETRY_MS,
    BecomeCandidate,
    ContactLoss,
    Wait,
    decide_candidacy,
    decide_if_store_stalled,
)
from tiered.metadata.recent_entries import REPLY_BYTES, SLOTS_MAX, RecentEntries

TIMEOUT = 6_000_000_000
SESSION_MS = 6_000


def sessions() -> BrokerHeartbeats:
    made = BrokerHeartbeats(TIMEOUT)
    made.set_live_brokers([(1, "i1"), (2, "i2")], 0)
    return made


def test_broker_silent_for_the_whole_timeout_has_expired() -> None:
    heartbeats = sessions()
    assert heartbeats.begin_fetch(1, "i1", 7, TIMEOUT - 1)
    assert heartbeats.expired_sessions(TIMEOUT - 1) == []
    assert heartbeats.expired_sessions(TIMEOUT) == [(2, "i2")]


def test_parked_request_is_no_sign_of_life() -> None:
    heartbeats = sessions()
    heartbeats.begin_fetch(1, "i1", 7, 0)
    assert heartbeats.expired_sessions(TIMEOUT) == [(1, "i1"), (2, "i2")]


def test_delivered_reply_is_contact_and_a_broken_connection_is_none() -> None:
    heartbeats = sessions()
    heartbeats.begin_fetch(1, "i1", 7, 0)
    heartbeats.end_fetch(1, "i1", TIMEOUT - 1)
    heartbeats.begin_fetch(2, "i2", 7, 0)
    heartbeats.end_fetch(2, "i2", TIMEOUT - 1, connection_lost=True)
    assert heartbeats.expired_sessions(TIMEOUT) == [(2, "i2")]


def test_progress_of_a_broker_is_that_of_its_fetches() -> None:
    heartbeats = sessions()
    assert heartbeats.fetch_progress(1) == heartbeats.fetch_progress(9) == NO_PROGRESS
    heartbeats.begin_fetch(1, "i1", 5, 10, 5)
    assert heartbeats.fetch_progress(1)[:3] == (5, 10, 10)
    heartbeats.begin_fetch(1, "i1", 6, 20, 8)
    assert heartbeats.fetch_progress(1)[:3] == (6, 20, 10), "it had all entries of the fetch before, at its time"
    heartbeats.begin_fetch(1, "i1", 8, 30, 9)
    assert heartbeats.fetch_progress(1)[:3] == (8, 30, 20)
    heartbeats.begin_fetch(1, "i1", 8, 40, 9)
    assert heartbeats.fetch_progress(1)[:3] == (8, 40, 20), "it lacks an entry that was there at the last fetch"
    heartbeats.begin_fetch(1, "i1", 9, 50, 9)
    assert heartbeats.fetch_progress(1)[:3] == (9, 50, 50)


def test_fetch_of_another_incarnation_is_no_contact() -> None:
    heartbeats = sessions()
    assert not heartbeats.begin_fetch(1, "later", 7, TIMEOUT - 1)
    assert heartbeats.expired_sessions(TIMEOUT) == [(1, "i1"), (2, "i2")]
    heartbeats.set_live_brokers([(1, "later"), (2, "i2")], TIMEOUT)
    assert heartbeats.expired_sessions(TIMEOUT) == [(2, "i2")]


def test_broker_that_stops_fetching_is_probed_from_time_to_time() -> None:
    heartbeats = sessions()
    heartbeats.begin_fetch(1, "i1", 7, 0)
    assert heartbeats.take_probes_due(PROBE_AFTER_NS) == [2]
    assert heartbeats.take_probes_due(PROBE_AFTER_NS + 1) == []
    heartbeats.end_fetch(1, "i1", PROBE_AFTER_NS)
    assert heartbeats.take_probes_due(2 * PROBE_AFTER_NS) == [1, 2]


def test_earlier_silence_counts_for_a_broker_without_contact_since() -> None:
    heartbeats = sessions()
    heartbeats.begin_fetch(1, "i1", 7, 0)
    heartbeats.backdate_contact(1, TIMEOUT, 0)
    heartbeats.backdate_contact(2, TIMEOUT, 0)
    heartbeats.backdate_contact(3, TIMEOUT, 0)
    assert heartbeats.expired_sessions(0) == [(2, "i2")]


def test_broker_silent_for_half_the_timeout_may_follow_another() -> None:
    heartbeats = sessions()
    heartbeats.begin_fetch(1, "i1", 7, 0)
    heartbeats.begin_fetch(2, "i2", 7, TIMEOUT // 2)
    heartbeats.end_fetch(2, "i2", TIMEOUT // 2)
    assert heartbeats.silent_brokers(TIMEOUT - 1, TIMEOUT // 2) == []
    assert heartbeats.silent_brokers(TIMEOUT, TIMEOUT // 2) == [2], "1 has a question under way"
    heartbeats.end_fetch(1, "i1", TIMEOUT // 2)
    assert heartbeats.silent_brokers(TIMEOUT, TIMEOUT // 2) == [1, 2]


def test_log_is_checked_less_often_while_the_same_brokers_are_missing() -> None:
    missing, second = UnreachableBrokers(), 1_000_000_000
    assert not missing.is_log_check_due([], 0)
    looks = [s for s in range(600) if missing.is_log_check_due([1], s * second)]
    assert looks[:6] == [0, 1, 2, 3, 4, 5]
    assert len([s for s in looks if s >= 60]) < 20
    assert looks[-1] - looks[-2] == 60
    assert not missing.is_log_check_due([1], 600 * second - 1 * second)
    assert missing.is_log_check_due([1, 2], 600 * second + 1 * second), "another one is missed"


def test_applied_slot_of_all_is_that_of_the_slowest() -> None:
    heartbeats = sessions()
    heartbeats.begin_fetch(1, "i1", 9, 0)
    heartbeats.begin_fetch(2, "i2", 7, 0)
    assert heartbeats.is_applied_by_all(7)
    assert not heartbeats.is_applied_by_all(8)
    heartbeats.set_live_brokers([(1, "i1")], 1)
    assert heartbeats.is_applied_by_all(9)


@pytest.mark.parametrize(
    ("silence", "step"),
    [
        (ContactLoss(100, True, (50,), 0), BecomeCandidate(0)),
        (ContactLoss(100, True, (), 2), BecomeCandidate(2 * RANK_DELAY_MS)),
        (ContactLoss(100, False, (), 0), Wait(RETRY_MS)),
        (ContactLoss(SESSION_MS - 10, False, (), 0), Wait(10)),
        (ContactLoss(SESSION_MS, False, (SESSION_MS - 1, 9_000), 0), Wait(RETRY_MS)),
        (ContactLoss(SESSION_MS, False, (SESSION_MS, 9_000), 1), BecomeCandidate(RANK_DELAY_MS)),
        (ContactLoss(SESSION_MS, False, (), 0, brokers_queried=1), Wait(RETRY_MS)),
        (ContactLoss(SESSION_MS * 3 // 2, False, (), 0, brokers_queried=1), BecomeCandidate(0)),
        (ContactLoss(SESSION_MS, False, (), 0, brokers_queried=2, brokers_replied=1), BecomeCandidate(0)),
        (
            ContactLoss(100 * SESSION_MS, False, (), 0, brokers_queried=2, brokers_replied=1, excluded=True),
            BecomeCandidate(0),
        ),
        (ContactLoss(100 * SESSION_MS, False, (), 0, excluded=True, inactive_ms=30 * SESSION_MS - 1), Wait(RETRY_MS)),
        (ContactLoss(100 * SESSION_MS, False, (), 0, excluded=True, inactive_ms=30 * SESSION_MS), BecomeCandidate(0)),
        (
            ContactLoss(
                100 * SESSION_MS, False, (), 0, excluded=True, inactive_ms=59 * SESSION_MS, unfollowed_epochs=1
            ),
            Wait(RETRY_MS),
        ),
        (
            ContactLoss(3_600_000, False, (), 0, excluded=True, inactive_ms=3_600_000, unfollowed_epochs=99),
            BecomeCandidate(0),
        ),
        (ContactLoss(100, True, (), 0, brokers_queried=1, excluded=True), BecomeCandidate(0)),
    ],
)
def test_time_of_a_candidacy_depends_on_contact_and_rank(silence: ContactLoss, step: Wait | BecomeCandidate) -> None:
    assert decide_candidacy(silence, SESSION_MS, SESSION_MS) == step


SUSPECT_MS = 2_000


@pytest.mark.parametrize(
    ("silence", "step"),
    [
        (ContactLoss(SUSPECT_MS - 10, False, (), 0), Wait(10)),
        (ContactLoss(SUSPECT_MS, False, (), 0), BecomeCandidate(0)),
        (ContactLoss(SUSPECT_MS, False, (SUSPECT_MS,), 0, brokers_queried=1, brokers_replied=1), BecomeCandidate(0)),
        (ContactLoss(SUSPECT_MS, False, (SUSPECT_MS - 1,), 0, brokers_queried=1, brokers_replied=1), Wait(RETRY_MS)),
        (ContactLoss(SUSPECT_MS, False, (), 0, controller_replied=True), Wait(RETRY_MS)),
        (ContactLoss(SESSION_MS - 1, False, (), 0, controller_replied=True), Wait(RETRY_MS)),
        (ContactLoss(SESSION_MS, False, (), 0, controller_replied=True), BecomeCandidate(0)),
        (ContactLoss(60_000, False, (), 0, was_paused=True), Wait(0)),
        (ContactLoss(60_000, True, (), 0, was_paused=True), BecomeCandidate(0)),
        (ContactLoss(SUSPECT_MS, False, (), 0, brokers_queried=1), Wait(RETRY_MS)),
        (ContactLoss(SUSPECT_MS * 2 - 1, False, (), 0, brokers_queried=1), Wait(RETRY_MS)),
        (ContactLoss(SUSPECT_MS * 2, False, (), 0, brokers_queried=1), BecomeCandidate(0)),
    ],
    ids=[
        "too early", "silent", "silent to another broker too", "heard by another broker", "slow", "slow for long",
        "slow for a session", "paused", "paused, and the process of the controller has ended", "perhaps cut off",
        "perhaps cut off still", "perhaps cut off for long",
    ],
)  # fmt: skip
def test_controller_silent_to_all_is_replaced_early_and_a_slow_one_is_not(
    silence: ContactLoss, step: Wait | BecomeCandidate
) -> None:
    assert decide_candidacy(silence, SESSION_MS, SUSPECT_MS) == step


def test_controller_that_cannot_write_resigns() -> None:
    assert decide_if_store_stalled(ContactLoss(0, False, (), 1, 2 * SESSION_MS), SESSION_MS) == BecomeCandidate(
        RANK_DELAY_MS
    )
    assert decide_if_store_stalled(ContactLoss(0, False, (), 1, 2 * SESSION_MS - 1), SESSION_MS) is None


def test_recent_entries_return_what_follows_a_slot_if_they_have_it() -> None:
    tail = RecentEntries()
    tail.restart_at(5)
    assert tail.read(5) == []
    assert tail.read(4) is None
    tail.add(5, b"five")
    tail.add(6, b"six")
    assert tail.read(5) == [b"five", b"six"]
    assert tail.read(6) == [b"six"]
    assert tail.read(7) == []
    tail.add(9, b"nine")
    assert (tail.read(6), tail.read(9)) == (None, [b"nine"])


def test_recent_entries_and_a_reply_are_bounded() -> None:
    tail = RecentEntries()
    for slot in range(SLOTS_MAX + 10):
        tail.add(slot, b"%d" % slot)
    assert tail.read(9) is None
    assert tail.read(10) == [b"%d" % slot for slot in range(10, SLOTS_MAX + 10)]
    tail.add(SLOTS_MAX + 10, bytes(REPLY_BYTES))
    tail.add(SLOTS_MAX + 11, b"x")
    assert len(tail.read(SLOTS_MAX + 10) or []) == 1


def test_level_of_an_incarnation_is_kept_while_it_is_live() -> None:
    heartbeats = sessions()
    for incarnation in ("i1", "later"):  # "later" has registered, and is not tracked yet
        heartbeats.note_metadata_version(incarnation, 3)
    heartbeats.set_live_brokers([(1, "later"), (2, "i2")], 0)
    assert heartbeats.metadata_versions() == {"later": 3}
    heartbeats.note_metadata_version("later", 0)
    assert heartbeats.metadata_versions() == {"later": 0}
