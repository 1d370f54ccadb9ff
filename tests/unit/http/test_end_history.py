"""Tests of the time since which a reader lags, from the history of log ends."""

from __future__ import annotations

from tiered_api.http.partitions.end_history import ENDS_MAX, EndHistory


def history(*ends: tuple[int, int]) -> EndHistory:
    """(end, ms) at each look."""
    made = EndHistory()
    for end, at_ms in ends:
        made.record_end(end, at_ms)
    return made


def test_reader_lags_since_the_end_was_at_its_position() -> None:
    made = history((0, 0), (0, 10), (5, 20), (5, 30), (9, 40))
    assert made.behind_since_ms(0) == (10, True)
    assert made.behind_since_ms(4) == (10, True)
    assert made.behind_since_ms(5) == made.behind_since_ms(8) == (30, True)
    assert made.behind_since_ms(9) == (40, True)


def test_lag_longer_than_the_history_is_marked() -> None:
    made = history((5, 20), (9, 40))
    assert made.behind_since_ms(4) == (20, False)


def test_end_that_goes_back_clears_the_history() -> None:
    made = history((5, 20), (9, 40), (7, 50))
    assert made.behind_since_ms(6) == (50, False) and made.behind_since_ms(7) == (50, True)


def test_history_is_bounded_and_keeps_the_oldest() -> None:
    made = EndHistory()
    for number in range(10_000):
        made.record_end(number, 10 * number)
        assert len(made._ends) <= ENDS_MAX
    assert made.behind_since_ms(0) == (0, True)
    since_ms, is_known = made.behind_since_ms(9_990)
    assert is_known and 99_000 <= since_ms <= 99_900
