"""Tests of the record of what the bucket was used for: counters that begin anew, hours, and the bytes of the file."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import Corrupt
from tiered.object_store.envelope import seal
from tiered.object_store.metered import VERBS
from tiered.object_store.store_usage import HOUR_MS, HOURS_MAX, LOOK_MS_MAX, StoredUsage, StoreUsage, VerbUsage

START = 1_000 * HOUR_MS


def test_growth_of_a_counter_is_in_the_hour_of_its_look() -> None:
    usage = StoreUsage()
    usage.look(START + 5, {"get": (3, 300), "put": (0, 0)}, 0)
    usage.look(START + 60_000, {"get": (10, 1_000)}, 0)
    usage.look(START + HOUR_MS, {"get": (11, 1_000), "list": (1, 0)}, 0)
    assert usage.list_verbs(0) == [
        VerbUsage(START, "get", 10, 1_000),
        VerbUsage(START + HOUR_MS, "get", 1, 0),
        VerbUsage(START + HOUR_MS, "list", 1, 0),
    ]
    assert [each.hour_ms for each in usage.list_verbs(START + 1)] == [START + HOUR_MS] * 2


def test_stored_bytes_count_for_the_time_between_looks() -> None:
    usage = StoreUsage()
    usage.look(START, {}, 500)
    usage.look(START + HOUR_MS // 60, {}, 600)
    assert usage.list_stored(0) == [StoredUsage(START, 10.0)]
    usage.look(START + HOUR_MS // 60 + LOOK_MS_MAX + 1, {}, 600)  # the machine slept: nobody knows
    usage.look(START, {}, 600)  # the clock was set back
    assert usage.list_stored(0) == [StoredUsage(START, 10.0)]


def test_usage_of_an_earlier_process_is_added_to_that_of_this_one() -> None:
    before, now = StoreUsage(), StoreUsage()
    before.look(START, {"get": (7, 70)}, 0)
    before.look(START + 60_000, {"get": (8, 70)}, HOUR_MS)
    now.look(START + 120_000, {"get": (2, 5)}, 0)
    now.add_encoded(before.encode(), "file")
    assert now.list_verbs(0) == [VerbUsage(START, "get", 10, 75)]
    assert now.list_stored(0) == [StoredUsage(START, 60_000.0)]
    now.look(START + 180_000, {"get": (3, 5)}, 0)
    assert now.list_verbs(0) == [VerbUsage(START, "get", 11, 75)]


def test_usage_older_than_its_days_is_forgotten() -> None:
    usage = StoreUsage()
    for hour in range(HOURS_MAX + 5):
        usage.look(START + hour * HOUR_MS, dict.fromkeys(VERBS, (hour + 1, 0)), 1)
    assert len(usage.list_verbs(0)) == HOURS_MAX * len(VERBS)
    assert usage.list_verbs(0)[0].hour_ms == START + 5 * HOUR_MS
    assert len(usage.encode()) < 200_000


VALUES = st.none() | st.integers(-(1 << 60), 1 << 60) | st.text(max_size=5)
NESTED = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=4), max_leaves=8)


@given(st.binary(max_size=200) | NESTED.map(lambda body: seal({"verbs": body, "stored": body})))
def test_damaged_file_is_corrupt_or_read_and_adds_nothing_else(data: bytes) -> None:
    usage = StoreUsage()
    try:
        usage.add_encoded(data, "file")
    except Corrupt:
        assert usage.list_verbs(-(1 << 70)) == [] and usage.list_stored(-(1 << 70)) == []
