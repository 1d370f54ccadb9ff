"""Tests of the text that says where a read begins and ends."""

from __future__ import annotations

import pytest

from tiered.errors import Refused
from tiered_api.cli.group.seek import parse_target_point
from tiered_api.cli.reach import parse_addresses, parse_numbers, parse_pairs
from tiered_api.cli.text.offset_range import Point, PointKind, Range, parse_point, parse_range

NOW = 1_700_000_000_000
DAY = 1_644_796_800_000  # 2022-02-14
HOUR = 3_600_000


def time(ms: int) -> Point:
    return Point(PointKind.TIME, ms)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("start", Range(Point(PointKind.START))),
        ("end", Range(Point(PointKind.END))),
        (":end", Range(Point(PointKind.START), Point(PointKind.END))),
        ("+3", Range(Point(PointKind.START, 3))),
        ("-3", Range(Point(PointKind.END, -3))),
        ("-3:end", Range(Point(PointKind.END, -3), Point(PointKind.END))),
        ("47", Range(Point(PointKind.ZERO, 47))),
        ("47:", Range(Point(PointKind.ZERO, 47))),
        (":47", Range(Point(PointKind.START), Point(PointKind.ZERO, 47))),
        ("1:5", Range(Point(PointKind.ZERO, 1), Point(PointKind.ZERO, 5))),
        ("1-5", Range(Point(PointKind.ZERO, 1), Point(PointKind.ZERO, 5))),
        ("1-end", Range(Point(PointKind.ZERO, 1), Point(PointKind.END))),
        ("@1700000000123", Range(time(1_700_000_000_123))),
        ("@1700000000", Range(time(NOW))),
        ("@1700000000:1700000001", Range(time(NOW), time(NOW + 1000))),
        ("@2022-02-14", Range(time(DAY))),
        ("@2022-02-14:1h", Range(time(DAY), time(DAY + HOUR))),
        ("@2022-02-14T10:00:00Z", Range(time(DAY + 10 * HOUR))),
        ("@2022-02-14T10:00:00.5Z:2022-02-14T11:00:00Z", Range(time(DAY + 10 * HOUR + 500), time(DAY + 11 * HOUR))),
        ("@2022-02-14T10:00:00+01:00", Range(time(DAY + 9 * HOUR))),
        ("@-48h:-24h", Range(time(NOW - 48 * HOUR), time(NOW - 24 * HOUR))),
        ("@-1h30m", Range(time(NOW - HOUR - HOUR // 2))),
        ("@-1m:end", Range(time(NOW - 60_000), Point(PointKind.END))),
        ("@:-1hr", Range(Point(PointKind.START), time(NOW - HOUR))),
        ("@-1m3ms:", Range(time(NOW - 60_003))),
    ],
)
def test_offsets_mean_what_users_of_rpk_expect(text: str, meant: Range) -> None:
    assert parse_range(text, NOW) == meant


@pytest.mark.parametrize(
    "text",
    ["", ":", "x", "5:5", "5:4", "1:2:3", "--3", "@", "@:", "@end", "@yesterday", "@2022-13-01", "@-1h:-2h",
     "@1700000000x", "9999999999999999999", "@2022-02-14T10:00:00"],
)  # fmt: skip
def test_invalid_range_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_range(text, NOW)
    assert repr(text) in refused.value.why


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("start", Point(PointKind.START)),
        ("end", Point(PointKind.END)),
        ("1700000000", time(NOW)),
        ("1700000000000", time(NOW)),
        ("1700000000000000000", time(NOW)),
        ("@1700000000000000000", time(NOW)),
        ("@2022-02-14", time(DAY)),
        ("@2022-02-14T10:00:00Z", time(DAY + 10 * HOUR)),
        ("@-1h30m", time(NOW - HOUR - HOUR // 2)),
        ("oldest", Point(PointKind.START)),
    ],
)
def test_seek_accepts_the_positions_of_consume(text: str, meant: Point) -> None:
    assert parse_target_point(text, NOW) == meant
    if text.startswith("@"):
        assert parse_point(text, NOW) == meant


@pytest.mark.parametrize("text", ["", "17", "-1700000000", "now", "+3", "@", "@-2h:-1h", "1:2"])
def test_seek_to_an_invalid_position_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        parse_target_point(text, NOW)


def test_single_point_is_no_range() -> None:
    with pytest.raises(Refused, match="one offset or time, not a range"):
        parse_point("1:2", NOW)


def test_brokers_are_hosts_with_ports() -> None:
    assert [tuple(each) for each in parse_addresses("a, b:1,[::1]:2,[::1]")] == [
        ("a", 9092),
        ("b", 1),
        ("::1", 2),
        ("::1", 9092),
    ]
    for text in ("", ":1", "a:x", "a:0", "a:70000"):
        with pytest.raises(Refused):
            parse_addresses(text)


def test_numbers_and_pairs_are_parsed() -> None:
    assert parse_numbers("0,2-4,2", "-p") == [0, 2, 3, 4]
    assert parse_pairs(["a=b=c", "d="], "-c") == [("a", "b=c"), ("d", "")]
    assert parse_pairs(["a:b=c"], "-H", ":=") == [("a", "b=c")]
    for text in ("", "a", "1,", "1-", "-1", "0-999999"):
        with pytest.raises(Refused):
            parse_numbers(text, "-p")
    for text in ("a", "=b", ""):
        with pytest.raises(Refused):
            parse_pairs([text], "-c")
