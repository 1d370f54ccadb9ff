"""Tests of the segment checkpoint and of the rules that roll a segment."""

from __future__ import annotations

from tests.unit.hot.fixtures import NOW, config
from tiered.hot.segments import (
    IndexChecksums,
    Segment,
    encode_line,
    encode_lines,
    find_segment_number,
    is_roll_due,
    jitter_ms,
    must_roll,
    parse_lines,
)

PROOF = IndexChecksums(16, 123, 24, 456)


def segment(base: int = 0, following: int = 10, size: int = 1000, created: int = NOW) -> Segment:
    return Segment(base, following, size, created, NOW + 5, base + 3, PROOF)


def test_offset_is_in_the_last_segment_that_begins_at_or_before_it() -> None:
    segments = [segment(10, 20), segment(20, 30), segment(30, 40)]
    assert [find_segment_number(segments, offset) for offset in (9, 10, 19, 20, 35, 99)] == [-1, 0, 0, 1, 2, 2]


def test_segment_rolls_by_the_clock_of_the_broker() -> None:
    settings = config(segment_ms=1000)
    assert not is_roll_due(segment(), settings, NOW + 999, "t-0", None)
    assert is_roll_due(segment(), settings, NOW + 1000, "t-0", None)
    assert is_roll_due(segment(), settings, NOW + 500, "t-0", 500)
    assert not is_roll_due(segment(size=0), settings, NOW + 9999, "t-0", 1)
    assert is_roll_due(segment(), settings, NOW - 500, "t-0", 500), "the clock was set back"
    assert not is_roll_due(segment(), settings, NOW - 499, "t-0", 500)


def test_roll_jitter_is_fixed_for_a_segment_and_bounded() -> None:
    shares = {jitter_ms(100, "t-0", base) for base in range(50)}
    assert len(shares) > 10
    assert all(0 <= share < 100 for share in shares)
    assert jitter_ms(100, "t-0", 7) == jitter_ms(100, "t-0", 7)
    assert jitter_ms(0, "t-0", 7) == 0


def test_segment_is_full_by_bytes_or_by_offsets() -> None:
    assert not must_roll(segment(), 500, 10, config())
    assert must_roll(segment(), 501, 10, config())
    assert must_roll(segment(), 1, 2**31, config())
    assert not must_roll(segment(size=0), 99_999, 10, config())


def test_checkpoint_lines_decode_to_what_was_encoded() -> None:
    unproved = Segment(10, 10, 0, NOW)
    assert parse_lines(encode_lines([segment(), unproved])) == {0: segment(), 10: unproved}


def test_last_line_of_a_segment_counts() -> None:
    assert parse_lines(encode_line(segment()) + encode_line(segment(following=12))) == {0: segment(following=12)}


def test_damaged_checkpoint_line_is_ignored() -> None:
    whole = encode_line(segment())
    assert parse_lines(whole[:-3]) == {}
    assert parse_lines(whole.replace(b"1000", b"1001") + encode_line(segment(10, 20))) == {10: segment(10, 20)}
    assert parse_lines(bytes(64)) == {}
