"""Since when a reader is behind, by where a partition ended when."""

from __future__ import annotations

from tiered_api.http.partitions.end_history import ENDS_MAX, EndHistory


def history(*ends: tuple[int, int]) -> EndHistory:
    """(end, ms) at each look."""
    made = EndHistory()
    for end, at_ms in ends:
        made.record_end(end, at_ms)
    return made


def test_a_reader_had_all_when_the_end_was_last_where_it_is() -> None:
    made = history((0, 0), (0, 10), (5, 20), (5, 30), (9, 40))
    assert made.behind_since_ms(0) == (10, True)
    assert made.behind_since_ms(4) == (10, True)
    assert made.behind_since_ms(5) == made.behind_since_ms(8) == (30, True)
    assert made.behind_since_ms(9) == (40, True)


def test_longer_ago_than_the_looks_go_back_is_said() -> None:
    made = history((5, 20), (9, 40))
    assert made.behind_since_ms(4) == (20, False)


def test_an_end_that_goes_back_makes_what_was_known_void() -> None:
    made = history((5, 20), (9, 40), (7, 50))
    assert made.behind_since_ms(6) == (50, False) and made.behind_since_ms(7) == (50, True)


def test_it_stays_small_and_keeps_the_oldest() -> None:
    made = EndHistory()
    for number in range(10_000):
        made.record_end(number, 10 * number)
        assert len(made._ends) <= ENDS_MAX
    assert made.behind_since_ms(0) == (0, True)
    since_ms, is_known = made.behind_since_ms(9_990)
    assert is_known and 99_000 <= since_ms <= 99_900
