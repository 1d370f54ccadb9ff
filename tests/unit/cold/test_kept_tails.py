"""Tests of the sections in memory of objects that a broker has put."""

from __future__ import annotations

from tiered.cold.kept_tails import KeptTails


def test_newest_tails_stay_within_the_room() -> None:
    tails = KeptTails(100)
    for number in range(7):
        tails.keep(f"k{number}", b"x" * 20)
    assert [tails.find(f"k{number}") is not None for number in range(7)] == [False] * 2 + [True] * 5
    tails.keep("large", b"x" * 26)
    assert tails.find("large") is None and tails.bytes_held == 100
    tails.keep("k6", b"y" * 10)
    assert tails.find("k6") == b"y" * 10 and tails.bytes_held == 90
    tails.drop(["k6", "k5", "unknown"])
    assert tails.find("k5") is None and tails.bytes_held == 60


def test_older_tail_displaces_no_newer_one_and_goes_first() -> None:
    tails = KeptTails(100)
    tails.keep("new", b"x" * 20)
    tails.add_older("old", b"y" * 20)
    tails.add_older("too much", b"y" * 20)
    assert tails.find("old") == b"y" * 20 and tails.find("too much") is None
    for number in range(4):
        tails.keep(f"k{number}", b"x" * 20)
    assert tails.find("old") is None and tails.find("new") is not None and tails.bytes_held == 100
