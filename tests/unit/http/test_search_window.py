"""Tests of a search from the end: the last records that fit a filter, and the stretches of offsets that it reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.spark.filling import TransactionalLog
from tests.unit.http.test_record_search import ROOM, make_log, offsets
from tiered.records.batch import Codec, encode_batch
from tiered.records.model import BatchHeader, Record
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.partitions import record_search
from tiered_api.http.partitions.reads import read_batch
from tiered_api.http.partitions.record_filter import RecordFilter
from tiered_api.http.partitions.record_json import encode_last
from tiered_api.http.partitions.record_search import RecordSearch
from tiered_api.http.partitions.search_window import FIRST_BYTES, GROWTH_MAX, SLACK_BYTES, SearchWindow

CODECS = [Codec.NONE, Codec.ZSTD]
ANY = RecordFilter()


def search(
    data: bytes,
    wanted: RecordFilter,
    start: int = 0,
    end: int = 1_000,
    most: int = 100,
    room: int = ROOM,
    aborted: list[tuple[int, int]] | None = None,
    *,
    with_control: bool = False,
) -> dict[str, Any]:
    looked = RecordSearch(data, wanted, with_control=with_control)
    last = looked.find_last(start, end, most, room, aborted or [])
    rendered = encode_last(last, ROOM, "string", {"scanned": looked.scanned, "covered": last.covered})
    found: dict[str, Any] = json.loads(b"".join(rendered.pieces))
    assert len(found["records"]) == rendered.shown and found["next_before"] == rendered.next_offset
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_last_records_with_the_text_come_first(codec: Codec) -> None:
    data = make_log(codec, 8)
    found = search(data, RecordFilter(b"ten"), end=40)
    assert offsets(found) == [37, 27, 17, 7] and (found["next_before"], found["scanned"]) == (0, 40)
    found = search(data, RecordFilter(b"ten"), start=8, end=37)
    assert offsets(found) == [27, 17] and (found["next_before"], found["scanned"]) == (8, 29)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 6, 7, 20])
@pytest.mark.parametrize("wanted", [ANY, RecordFilter(b"other"), RecordFilter(b"ten")])
def test_pages_from_the_end_have_each_record_once(wanted: RecordFilter, most: int, codec: Codec) -> None:
    data, before, pages, scanned = make_log(codec, 8), 40, list[int](), 0
    forward = [offset for offset in range(40) if wanted == ANY or (offset % 10 == 7) == (wanted.text == b"ten")]
    while before > 0:
        page = search(data, wanted, end=before, most=most)
        assert page["next_before"] < before and len(page["records"]) <= most
        pages, before, scanned = [*pages, *offsets(page)], page["next_before"], scanned + page["scanned"]
    assert pages == forward[::-1] and scanned == 40


def test_room_ends_a_page_but_for_one_long_record() -> None:
    data = b"".join(encode_batch([(1, None, b"x" * 1_000, ())], base_offset=offset) for offset in range(4))
    page = search(data, ANY, end=4, room=2_200)
    assert offsets(page) == [3, 2] and page["next_before"] == 2
    assert offsets(search(data, ANY, end=4, room=10)) == [3]
    one = encode_batch([(1, None, b"x" * 1_000, ()) for _ in range(4)])
    assert offsets(search(one, ANY, end=4, room=2_200)) == [3, 2]


def test_only_batches_before_the_last_records_are_left_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    def count(data: bytes, at: int, head: BatchHeader, *bounds: int) -> tuple[list[Record], bool]:
        decoded.append(head.base_offset)
        return read_batch(data, at, head, *bounds)

    monkeypatch.setattr(record_search, "read_batch", count)
    assert offsets(search(make_log(batches=8), ANY, end=38, most=7)) == [37, 36, 35, 34, 33, 32, 31]
    assert decoded == [35, 30]


def test_aborted_transactions_and_markers_are_left_out() -> None:
    committed = encode_batch([(1, b"k", b"ten", ())])
    aborted = encode_batch([(1, b"k", b"ten", ())], base_offset=1, producer_id=9, transactional=True, base_sequence=0)
    marker = encode_batch([(1, b"ten", b"ten", ())], base_offset=2, producer_id=9, transactional=True, control=True)
    data = committed + aborted + marker
    assert offsets(search(data, ANY, end=3, aborted=[(9, 1)])) == [0]
    assert offsets(search(data, ANY, end=3)) == [1, 0]


@pytest.mark.parametrize("most", [1, 2, 9])
def test_pages_from_the_end_have_the_markers_that_a_read_wants(most: int) -> None:
    log = TransactionalLog()
    log.write(1, 2)
    log.end(1, commit=False)
    log.write(2, 2)
    log.end(2, commit=True)
    data, before, shown = log.roll().log, 6, list[tuple[int, str | None]]()
    while before > 0:
        page = search(data, ANY, end=before, most=most, aborted=[(1, 0)], with_control=True)
        assert page["next_before"] < before and len(page["records"]) <= most
        shown += [(each["offset"], each.get("control")) for each in page["records"]]
        before = page["next_before"]
    assert shown == [(5, "commit"), (4, None), (3, None), (2, "abort")]


def test_data_that_ends_early_finds_nothing_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    short = search(make_log(batches=4), ANY, end=21)
    assert (short["records"], short["covered"]) == ([], 20)
    assert search(b"", ANY, end=21)["covered"] == 21, "compaction has removed all records of the stretch"
    monkeypatch.setattr(record_search, "OPENED_BYTES_MAX", 100)
    opened = search(make_log(Codec.ZSTD, 8), RecordFilter(b"nowhere"), end=40)
    assert opened["records"] == [] and 0 < opened["covered"] < 40


def test_batch_in_pieces_is_searched_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_batch([(1, None, b"%d" % n + b"x" * 500, ()) for n in range(50)])
    assert offsets(search(data, ANY, end=50, most=3, room=2_000)) == [49, 48, 47]
    assert offsets(search(data, RecordFilter(b"11x"), end=50, room=2_000)) == [11]
    monkeypatch.setattr(record_search, "OPENED_BYTES_MAX", 5_000)
    with pytest.raises(HttpError, match="too large to be searched from its end: search with offset=0, without before"):
        search(data, ANY, end=50, room=2_000)


def test_window_moves_to_the_log_start_and_keeps_to_the_bytes_of_a_read() -> None:
    window = SearchWindow(100, 100_000, 200, 1 << 20)
    assert (window.start, window.end, window.read_bytes, window.is_empty) == (99_800, 100_000, FIRST_BYTES, False)
    window.move(200)
    assert (window.start, window.end) == (99_800 - GROWTH_MAX * 200, 99_800), "few bytes: the next one is wider"
    assert window.read_bytes == 2_000 + SLACK_BYTES
    window.move(1_600 << 10)
    assert (window.end - window.start, window.end) == (768, 98_200), "three quarters of a read is the aim"
    assert window.read_bytes == (960 << 10) + SLACK_BYTES
    window.move(0)
    assert window.end - window.start == GROWTH_MAX * 768
    while not window.is_empty:
        before = window.end
        window.move(1 << 19)
        assert 100 <= window.start <= window.end < before and window.read_bytes <= 1 << 20
    assert (window.start, window.end) == (100, 100)
    assert SearchWindow(5, 5, 200, 1_000).is_empty and SearchWindow(5, 3, 200, 1_000).start == 5


def test_window_that_one_read_did_not_cover_takes_more_bytes_first() -> None:
    window = SearchWindow(0, 1_000, 1_000, 1 << 24)
    window.retry(500, FIRST_BYTES)
    assert (window.start, window.read_bytes) == (0, 2 * FIRST_BYTES + SLACK_BYTES)
    window.retry(999, 1_000)
    assert (window.start, window.read_bytes) == (0, 4 * FIRST_BYTES + 2 * SLACK_BYTES), "twice as many at least"
    window.retry(1, 1 << 20)
    assert (window.start, window.read_bytes) == (0, 1 << 24), "never more than the limit"
    window.retry(500, 1 << 24)
    assert (window.start, window.read_bytes) == (750, 1 << 24), "then it begins later"


def test_window_that_a_whole_read_did_not_cover_begins_later() -> None:
    window = SearchWindow(0, 1_000, 1_000, 1_000)
    window.retry(100, 1_000)
    assert (window.start, window.end) == (950, 1_000)
    window.retry(951, 900_000)
    assert window.start == 999, "one offset at least"
    wide = SearchWindow(0, 1_000, 1_000, 1_000)
    wide.retry(990, 1_000)
    assert wide.start == 990, "never before what one read has shown"
