"""Tests of both passes of a clean: Kafka's rules for records, batches, producers, transactions and horizons."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.compaction.logs import NOW, RETENTION, Cleaned, Log, clean, facts, headers, position_of, records
from tiered.compaction.batch_filter import forget_horizons
from tiered.errors import Corrupt
from tiered.records import compression, pieces
from tiered.records.batch import decode_records
from tiered.records.model import DELETE_HORIZON, Codec
from tiered.records.native import walk
from tiered.records.pieces import RECORD_BYTES_MAX, iterate_records

CODECS = list(Codec)


def open_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every compressed batch be opened in pieces of a few records."""
    monkeypatch.setattr(pieces, "RATIO_FROM", 1)
    monkeypatch.setattr(pieces, "RATIO_MAX", 0)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 60)
    monkeypatch.setattr(compression, "PIECE_BYTES", 60)


def cleaned(log: Log, **changes: object) -> Cleaned:
    """Cleans a whole log as it was written."""
    return clean(log.data, log.end, aborted=log.aborted, last=log.last, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", CODECS)
def test_last_record_of_each_key_stays_at_its_offset_with_its_timestamp(codec: Codec) -> None:
    log = Log()
    log.add((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), codec=codec)
    log.add((b"c", b"1"), (b"b", b"2"), codec=codec)
    out = cleaned(log)
    assert facts(out.data) == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", b"2")]
    assert [each.timestamp for each in records(out.data)] == [NOW + 2, NOW + 3, NOW + 4]
    first = headers(out.data)[0]
    assert (first.base_offset, first.last_offset, first.count, first.codec) == (0, 2, 1, codec)
    assert first.max_timestamp == NOW + 2 and not walk(out.data).why


def test_batch_in_which_nothing_changes_keeps_its_bytes() -> None:
    log = Log()
    log.add((b"a", b"1"), (b"b", b"1"), codec=Codec.LZ4)
    log.add((b"c", b"1"))
    assert cleaned(log).data == log.data


def test_record_without_key_goes_up_to_where_the_clean_went() -> None:
    log = Log()
    log.add((None, b"1"), (b"a", b"1"), (None, b"2"))
    assert facts(cleaned(log).data) == [(1, b"a", b"1")]


def test_batch_that_ends_the_range_stays_without_records() -> None:
    log = Log()
    log.add((b"a", b"1"))
    log.add((None, b"1"), (None, b"2"))
    last = headers(cleaned(log, upper_bound=3).data)[-1]
    assert (last.base_offset, last.last_offset, last.count) == (1, 2, 0)
    assert len(headers(cleaned(log).data)) == 1


def test_tombstone_stays_until_its_horizon_and_hides_older_records() -> None:
    log = Log()
    log.add((b"a", b"1"))
    log.add((b"a", None), (b"b", b"1"))
    kept = cleaned(log, keeps_tombstones=True)
    assert not headers(kept.data)[0].attributes & 0x40, "an older record may be there that this clean does not see"
    first = cleaned(log)
    assert facts(first.data) == facts(kept.data) == [(1, b"a", None), (2, b"b", b"1")]
    head = headers(first.data)[0]
    assert head.attributes & 0x40 and head.base_timestamp == NOW + RETENTION
    assert [each.timestamp for each in records(first.data)] == [NOW + 1, NOW + 2] and not walk(first.data).why
    before = clean(first.data, log.end, first_dirty=log.end, now_ms=NOW + RETENTION - 1)
    assert before.data == first.data, "the horizon counts from the first clean"
    after = clean(first.data, log.end, first_dirty=log.end, now_ms=NOW + RETENTION)
    assert facts(after.data) == [(2, b"b", b"1")]
    assert headers(after.data)[0].base_timestamp == NOW + RETENTION


def test_append_time_of_a_batch_stays() -> None:
    log = Log()
    log.add((b"a", b"1"), (b"b", None), append_time=True)
    log.add((b"a", b"2"))
    out = cleaned(log)
    assert [each.timestamp for each in records(out.data)] == [NOW + 1, NOW + 2]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_aborted_records_go_and_supersede_nothing(codec: Codec) -> None:
    log = Log()
    log.add((b"a", b"1"))
    log.add((b"a", b"x"), (b"b", b"x"), producer=7, transactional=True, codec=codec)
    log.end_transaction(7, commit=False)
    log.add((b"c", b"1"))
    log.last.clear()
    out = cleaned(log)
    assert facts(out.data) == [(0, b"a", b"1"), (4, b"c", b"1")]
    assert [head.is_control for head in headers(out.data)] == [False, True, False]
    assert out.kept_aborted == log.aborted


@pytest.mark.parametrize("commit", [True, False])
def test_marker_goes_only_a_horizon_after_the_clean_that_saw_no_data(commit: bool) -> None:
    log = Log()
    log.add((b"a", b"1"), producer=7, transactional=True)
    log.end_transaction(7, commit=commit)
    log.add((b"a", b"2"))
    log.last.clear()
    first = cleaned(log)
    marker = headers(first.data)[0]
    assert marker.is_control and not marker.attributes & 0x40, "its data was there in this clean"
    rest = {"first_dirty": log.end, "aborted": first.kept_aborted}
    kept = clean(first.data, log.end, keeps_tombstones=True, **rest)  # type: ignore[arg-type]
    assert kept.data == first.data, "data may be there that this clean does not see"
    second = clean(first.data, log.end, now_ms=NOW, **rest)  # type: ignore[arg-type]
    marker = headers(second.data)[0]
    assert marker.is_control and marker.attributes & 0x40 and marker.base_timestamp == NOW + RETENTION
    assert decode_records(second.data)[0].timestamp == NOW + 1 and not walk(second.data).why
    third = clean(second.data, log.end, first_dirty=log.end, now_ms=NOW + RETENTION - 1)
    assert third.data == second.data
    fourth = clean(second.data, log.end, first_dirty=log.end, now_ms=NOW + RETENTION)
    assert [head.is_control for head in headers(fourth.data)] == [False]


@pytest.mark.parametrize("codec", CODECS)
def test_horizons_in_the_dirty_part_are_forgotten_and_all_else_stays(codec: Codec) -> None:
    log = Log()
    log.add((b"a", None), (b"b", b"1"), codec=codec)
    log.add((b"c", b"1"), producer=7, transactional=True)
    log.add((b"c", b"2"))
    log.end_transaction(7, commit=True)
    log.last.clear()
    rest = clean(cleaned(log).data, log.end, first_dirty=log.end).data
    assert [bool(each.attributes & 0x40) for each in headers(rest)] == [True, False, True]
    batches = walk(rest).batches
    assert forget_horizons(rest, batches, log.end) is rest
    upper = forget_horizons(rest[batches[0].size :], batches[1:], 2)
    whole = forget_horizons(rest, batches, 1)
    assert bytes(whole)[batches[0].size :] == bytes(upper) and len(whole) == len(rest)
    assert not walk(whole).why and not any(each.attributes & 0x40 for each in headers(bytes(whole)))
    assert records(bytes(whole)) == records(rest)
    again = clean(bytes(whole), log.end, now_ms=NOW + RETENTION)
    assert headers(again.data)[0].base_timestamp == NOW + 2 * RETENTION
    assert facts(again.data) == facts(rest) and records(again.data)[0].timestamp == NOW


def test_batch_with_a_wrong_crc_keeps_it_beside_its_horizon() -> None:
    log = Log()
    log.add((b"a", None))
    rotten = bytearray(cleaned(log).data)
    rotten[-1] ^= 1
    assert forget_horizons(rotten, walk(rotten, check_crc=False).batches, 0) == rotten


def test_marker_stays_while_a_record_of_its_transaction_stays() -> None:
    log = Log()
    log.add((b"a", b"1"), producer=7, transactional=True)
    log.end_transaction(7, commit=True)
    log.last.clear()
    for _ in range(3):
        out = clean(log.data, log.end, first_dirty=log.end, now_ms=NOW + 9 * RETENTION)
        assert out.data == log.data


def test_next_transaction_of_an_aborted_producer_is_not_aborted() -> None:
    log = Log()
    log.add((b"a", b"x"), producer=7, transactional=True)
    log.end_transaction(7, commit=False)
    log.add((b"a", b"1"), producer=7, transactional=True)
    log.end_transaction(7, commit=True)
    out = clean(log.data, log.end, first_dirty=2, aborted=log.aborted, last=log.last)
    assert facts(out.data) == [(2, b"a", b"1")]


@pytest.mark.parametrize("seen_to", [0, 1], ids=["nothing below", "its data only"])
@pytest.mark.parametrize("commit", [True, False])
def test_abort_whose_marker_the_walk_does_not_see_ends_there(seen_to: int, commit: bool) -> None:
    """The log start is above the marker, or moves there while the log is walked."""
    log = Log()
    log.add((b"a", b"x"), producer=7, transactional=True)
    start = log.end_transaction(7, commit=False) + 1
    log.add((b"a", b"1"), producer=7, transactional=True)
    log.end_transaction(7, commit=commit)
    log.add((b"b", b"1"))
    seen = log.data[: position_of(log.data, seen_to)] + log.data[position_of(log.data, start) :]
    out = clean(seen, log.end, first_dirty=start, aborted=log.aborted)
    assert facts(out.data) == ([(2, b"a", b"1")] if commit else []) + [(4, b"b", b"1")]
    assert out.kept_aborted == log.aborted[1:]
    log.end_transaction(7, commit=False)
    seen = log.data[: position_of(log.data, seen_to)] + log.data[position_of(log.data, 4) :]
    assert clean(seen, log.end, first_dirty=4, aborted=log.aborted[:1]).kept_aborted == [], "no batch is here"


def test_last_sequence_of_a_producer_stays_in_an_empty_batch() -> None:
    log = Log()
    log.add((b"a", b"1"), (b"b", b"1"), producer=7)
    log.add((b"a", b"2"), (b"b", b"2"), producer=7)
    log.add((b"a", b"3"), (b"b", b"3"), producer=8)
    out = cleaned(log)
    [empty, _] = headers(out.data)
    assert (empty.producer_id, empty.base_sequence, empty.last_sequence, empty.count) == (7, 2, 3, 0)
    assert (empty.base_offset, empty.last_offset) == (2, 3) and not walk(out.data).why
    again = clean(out.data, log.end, first_dirty=log.end, last=log.last)
    assert again.data == out.data, "an empty batch stays as long as it is needed"
    gone = clean(out.data, log.end, first_dirty=log.end)
    assert len(headers(gone.data)) == 1, "and no longer"


def test_empty_batch_of_an_aborted_transaction_keeps_its_marker() -> None:
    log = Log()
    log.add((b"a", b"x"), producer=7, transactional=True)
    log.end_transaction(7, commit=False)
    log.add((b"b", b"1"))
    out = cleaned(log)
    for _ in range(2):
        assert [head.count for head in headers(out.data)] == [0, 1, 1]
        assert out.kept_aborted == log.aborted
        out = clean(out.data, log.end, first_dirty=log.end, aborted=out.kept_aborted, last=log.last, now_ms=2 * NOW)


def test_last_marker_of_a_producer_without_records_stays_empty() -> None:
    log = Log()
    log.add((b"a", b"1"))
    log.end_transaction(7, commit=False)
    from tiered.compaction.batch_filter import LastRecord

    known = {7: LastRecord(-1, 0)}
    once = clean(log.data, log.end, last=known)
    out = clean(once.data, log.end, first_dirty=log.end, last=known, now_ms=NOW + RETENTION)
    assert [(head.is_control, head.count) for head in headers(out.data)] == [(False, 1), (True, 0)]


def test_keys_that_do_not_fit_take_several_cleans() -> None:
    log = Log()
    for turn in range(3):
        for number in range(30):
            log.add((b"k%d" % number, b"%d" % turn), (b"other%d" % (number % 7), b"%d" % turn))
    whole = cleaned(log)
    data, clean_to, cleans = log.data, 0, 0
    while clean_to < log.end:
        part = clean(data, log.end, first_dirty=clean_to, memory=10 * 24)
        assert part.clean_to > clean_to
        data, clean_to, cleans = part.data, part.clean_to, cleans + 1
    assert cleans > 10 and facts(data) == facts(whole.data)


def test_corrupt_batch_ends_the_clean() -> None:
    log = Log()
    log.add((b"a", b"1"))
    position = len(log.data)
    log.add((b"a", b"2"))
    damaged = bytearray(log.data)
    damaged[-1] ^= 1
    with pytest.raises(Corrupt, match="crc mismatch") as raised:
        clean(bytes(damaged), log.end)
    assert raised.value.position == position


def test_compressed_batch_that_cannot_be_opened_ends_the_clean() -> None:
    log = Log()
    log.add((b"a", b"1" * 100), codec=Codec.ZSTD)
    damaged = bytearray(log.data)
    damaged[70] ^= 0xFF
    from tiered.records.native import crc32c

    damaged[17:21] = crc32c(damaged[21:]).to_bytes(4, "big")
    with pytest.raises(Corrupt):
        clean(bytes(damaged), log.end)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_batch_that_is_too_large_to_open_stays_with_later_tombstones(codec: Codec) -> None:
    log = Log()
    log.add((b"a", b"1"), (b"b", b"1"))
    log.add((b"c", None))
    before = len(log.data)
    log.add((b"a", b"2"), (b"b", bytes(RECORD_BYTES_MAX)), (b"a", bytes(1 << 20)), codec=codec)
    large = log.data[before:]
    log.add((b"b", None), (b"d", None))
    log.add((b"a", b"3"), (b"e", b"1"))
    log.add((b"e", b"2"))
    for data in (log.data, cleaned(log).data):  # the second clean comes after all horizons
        below, kept, above = clean(data, log.end, now_ms=NOW + 2 * RETENTION).data.partition(large)
        assert kept == large, "byte for byte"
        assert facts(below) == [(2, b"c", None)]
        assert facts(above) == [(6, b"b", None), (7, b"d", None), (8, b"a", b"3"), (10, b"e", b"2")]
        assert not headers(above)[0].attributes & DELETE_HORIZON


def test_tombstones_above_a_batch_in_the_clean_part_that_is_too_large_stay() -> None:
    log = Log()
    log.add((b"c", None))
    log.add((b"b", bytes(RECORD_BYTES_MAX)), codec=Codec.ZSTD)
    large = log.data[-headers(log.data)[1].size :]
    clean_to = log.end
    log.add((b"b", None))
    log.add((b"e", b"1"))
    for first_dirty in (clean_to, log.end):
        first = cleaned(log, first_dirty=first_dirty).data
        second = clean(first, log.end, first_dirty=log.end, now_ms=NOW + 2 * RETENTION).data
        below, kept, above = second.partition(large)
        assert kept == large and facts(below) == []
        assert facts(above) == [(2, b"b", None), (3, b"e", b"1")]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_keys_of_one_mib_that_differ_in_their_last_byte_are_different_keys(codec: Codec) -> None:
    log, key = Log(), random.Random(1).randbytes(1 << 20)
    for number in range(4):
        log.add((key + b"%d" % (number % 2), b"%d" % number), codec=codec)
    assert facts(cleaned(log).data) == [(2, key + b"0", b"2"), (3, key + b"1", b"3")]


@pytest.mark.parametrize("codec", CODECS[1:])
def test_batch_that_compresses_well_is_cleaned_in_pieces(codec: Codec) -> None:
    """Its size without compression is far above what is opened whole, but for snappy."""
    log, line = Log(), b"x" * 1000
    log.add(*((b"%d" % (number % 7), line) for number in range(20_000)), codec=codec)
    log.add((b"6", b"2"))
    first = cleaned(log)
    assert len(log.data) < 2 << 20
    last = {number % 7: number for number in range(20_000) if number % 7 != 6}
    expected = sorted((offset, b"%d" % key, line) for key, offset in last.items())
    assert facts(first.data) == [*expected, (20_000, b"6", b"2")]
    assert headers(first.data)[0].codec == codec
    assert clean(first.data, log.end).data == first.data


@pytest.mark.parametrize("codec", CODECS[1:])
def test_tombstone_in_one_piece_gives_the_whole_batch_a_horizon(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    open_in_small_pieces(monkeypatch)
    log = Log()
    log.add((b"a", b"1"), *((b"%d" % number, b"v" * 50) for number in range(20)), (b"b", None), codec=codec)
    log.add((b"a", b"2"))
    out = cleaned(log)
    first = headers(out.data)[0]
    assert first.codec == codec and first.attributes & DELETE_HORIZON and first.base_timestamp == NOW + RETENTION
    assert (first.base_offset, first.last_offset, first.count) == (0, 21, 21)
    assert [each.timestamp for each in records(out.data)] == [NOW + number for number in range(1, 23)]
    assert first.max_timestamp == NOW + 21
    later = clean(out.data, log.end, first_dirty=log.end, now_ms=NOW + RETENTION)
    assert [each.offset for each in records(later.data)] == [*range(1, 21), 22]


def test_one_key_in_very_many_records_takes_the_memory_of_one() -> None:
    log = Log()
    for _ in range(20):
        log.add(*((b"k", b"%d" % number) for number in range(5_000)))
    done = cleaned(log, memory=2 * 24)
    assert done.clean_to == log.end and facts(done.data) == [(log.end - 1, b"k", b"4999")]


def test_log_without_two_keys_alike_keeps_its_bytes_over_all_its_cleans() -> None:
    log = Log()
    for number in range(40):
        log.add((b"a%d" % number, b"1"), (b"b%d" % number, b"1"), codec=CODECS[number % len(CODECS)])
    clean_to = cleans = 0
    while clean_to < log.end:
        part = clean(log.data, log.end, first_dirty=clean_to, memory=10 * 24)
        assert part.data == log.data and part.clean_to > clean_to
        clean_to, cleans = part.clean_to, cleans + 1
    assert cleans >= 8


def test_old_tombstone_without_a_horizon_gets_one() -> None:
    """Kafka 2 kept no horizon in a batch, and left gaps between offsets."""
    log, years = Log(), 10 * 365 * 86_400_000
    log.add((b"a", b"1"), (b"b", b"1"))
    log.end += 7
    log.add((b"a", None), (b"c", b"1"))
    first = cleaned(log, now_ms=NOW + years)
    assert facts(first.data) == [(1, b"b", b"1"), (9, b"a", None), (10, b"c", b"1")]
    assert headers(first.data)[-1].base_timestamp == NOW + years + RETENTION
    later = clean(first.data, log.end, first_dirty=log.end, now_ms=NOW + years + RETENTION)
    assert facts(later.data) == [(1, b"b", b"1"), (10, b"c", b"1")]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_tombstone_above_the_end_of_a_pass_gets_its_horizon_in_the_next(codec: Codec) -> None:
    """Older values of its key stay until then, also if it shares a batch with a tombstone below the end."""
    log = Log()
    log.add((b"gone", b"1"))
    log.add((b"first", None), (b"k1", b""), (b"k2", b""), (b"gone", None), codec=codec)
    first = clean(log.data, log.end, memory=4 * 24)
    assert first.clean_to == 3 and facts(first.data) == facts(log.data)
    assert not [each for each in headers(first.data) if each.attributes & DELETE_HORIZON]
    second = clean(first.data, log.end, first_dirty=first.clean_to, now_ms=NOW + 2 * RETENTION)
    assert [key for _, key, _ in facts(second.data)] == [b"first", b"k1", b"k2", b"gone"]
    assert headers(second.data)[-1].attributes & DELETE_HORIZON


# -- a naive reference over random histories --------------------------------------------------------------------------

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", None])
VALUES = st.sampled_from([b"1", b"22", b"", None])
BATCHES = st.tuples(
    st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4),
    st.sampled_from([-1, -1, 1, 2]),
    st.sampled_from(["plain", "plain", "txn", "commit", "abort"]),
    st.sampled_from(CODECS),
)


class Reference:
    """All that a history says, record by record."""

    def __init__(self) -> None:
        self.log = Log()
        self.records: list[tuple[int, bytes | None, bytes | None, int]] = []
        """(offset, key, value, producer id of the transaction or -1)"""
        self.aborted_offsets: set[int] = set()

    def write(self, pairs: list[tuple[bytes | None, bytes | None]], producer: int, kind: str, codec: Codec) -> None:
        log = self.log
        is_open = producer in log.open
        if producer >= 0 and (kind in ("commit", "abort") or (is_open and kind == "plain")):
            self.end(producer, commit=kind != "abort")
            return
        transactional = producer >= 0 and kind == "txn"
        base = log.add(*pairs, producer=producer, transactional=transactional, codec=codec)
        owner = producer if transactional else -1
        self.records += [(base + number, key, value, owner) for number, (key, value) in enumerate(pairs)]

    def end(self, producer: int, *, commit: bool) -> None:
        first = self.log.open.get(producer)
        self.log.end_transaction(producer, commit=commit)
        if not commit and first is not None:
            self.aborted_offsets |= {each[0] for each in self.records if each[3] == producer and each[0] >= first}

    def finish(self) -> None:
        for producer in list(self.log.open):
            self.end(producer, commit=False)

    def committed(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [each[:3] for each in self.records if each[0] not in self.aborted_offsets]

    def expected(self) -> list[tuple[int, bytes | None, bytes | None]]:
        latest = {key: offset for offset, key, _ in self.committed()}
        return [each for each in self.committed() if each[1] is not None and latest[each[1]] == each[0]]


@settings(max_examples=60, deadline=None)
@given(st.lists(BATCHES, max_size=14), st.sampled_from([4 * 24, 1 << 12]), st.sampled_from([None, 150]))
def test_any_history_is_cleaned_as_a_naive_cleaner_does(
    batches: list[tuple[list[tuple[bytes | None, bytes | None]], int, str, Codec]], memory: int, piece: int | None
) -> None:
    check_any_history(batches, memory, piece)


@given(st.lists(BATCHES, max_size=14), st.sampled_from([4 * 24, 1 << 12]), st.sampled_from([None, 150]))
def test_any_history_is_cleaned_in_small_pieces_as_a_naive_cleaner_does(
    batches: list[tuple[list[tuple[bytes | None, bytes | None]], int, str, Codec]], memory: int, piece: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        open_in_small_pieces(patched)
        check_any_history(batches, memory, piece)


def check_any_history(
    batches: list[tuple[list[tuple[bytes | None, bytes | None]], int, str, Codec]], memory: int, piece: int | None
) -> None:
    """The cleans go on until all is clean, then once more after the horizon."""
    history = Reference()
    for pairs, producer, kind, codec in batches:
        history.write(pairs, producer, kind, codec)
    history.finish()
    log, expected = history.log, history.expected()
    data, clean_to, aborted = log.data, 0, log.aborted
    while clean_to < log.end:
        step = clean(
            data, log.end, first_dirty=clean_to, aborted=aborted, last=log.last, memory=memory, piece=piece,
            upper_bound=log.end,
        )  # fmt: skip
        assert step.clean_to > clean_to
        data, clean_to, aborted = step.data, step.clean_to, step.kept_aborted
        assert not walk(data).why
        assert [each.base_offset for each in headers(data)] == sorted(each.base_offset for each in headers(data))
        seen = _read_committed(data, aborted)
        assert {key: value for _, key, value in seen if key is not None} == {
            key: value for _, key, value in history.committed() if key is not None
        }
    assert _read_committed(data, aborted) == facts(data) == expected
    for producer, last in log.last.items():
        owned = [each for each in headers(data) if each.producer_id == producer and not each.is_control]
        assert owned[-1].last_offset == last.offset
        assert owned[-1].last_sequence == log.sequences[producer] - 1
    if log.end:
        assert headers(data)[-1].last_offset == log.end - 1
    for turn in range(1, 4):
        later = clean(
            data, log.end, first_dirty=log.end, aborted=aborted, last=log.last, now_ms=NOW + turn * 10 * RETENTION,
            upper_bound=log.end,
        )  # fmt: skip
        data, aborted = later.data, later.kept_aborted
    assert facts(data) == [each for each in expected if each[2] is not None]


def _read_committed(data: bytes, aborted: object) -> list[tuple[int, bytes | None, bytes | None]]:
    """Returns the records that a read_committed consumer gets, with the entries of the cleaned transaction index."""
    from tiered.records.aborted import AbortedTransactions

    listed = AbortedTransactions((each.producer_id, each.first_offset) for each in aborted)  # type: ignore[attr-defined]
    out: list[tuple[int, bytes | None, bytes | None]] = []
    at = 0
    for head in headers(data):
        if not listed.has_batch(head) and not head.is_control:
            out += [(each.offset, each.key, each.value) for each in iterate_records(data, at, head)]
        at += head.size
    return out
