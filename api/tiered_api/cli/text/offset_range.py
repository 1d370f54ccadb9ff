"""The range of a read: `-o start`, `-10`, `100:200`, `@2022-02-14:1h`, in the syntax of rpk.

Parsing yields points that mean the same for every partition; `resolve_offsets` gets their offsets from a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.leader_routing import EARLIEST, LATEST, list_offsets_at


class PointKind(Enum):
    """The origin of a point."""

    START = "start"
    END = "end"
    ZERO = "offset"
    TIME = "time"


class Point(NamedTuple):
    """A place in every partition: a distance from its start or end, an offset, or a time in ms."""

    at: PointKind
    value: int = 0


class Range(NamedTuple):
    """A range from a point to another one (exclusive), or without an end."""

    start: Point
    end: Point | None = None


NO_RESET = "none"
"""Value of `-o` for members that begin only at offsets of their group, as `auto.offset.reset` has it."""
UNITS_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6, "hr": 3.6e6, "d": 8.64e7}
UNIX_MS = {10: lambda number: number * 1000, 13: lambda number: number, 19: lambda number: number // 1_000_000}
"""Unix seconds, milliseconds and nanoseconds differ in their number of digits."""
POINT_FORMS = "start, end, 47, +2, -3"
LONGEST_MS = 1e15
"""Longer than any log: thirty thousand years."""
WORDS = {
    "start": Point(PointKind.START),
    "oldest": Point(PointKind.START),
    "beginning": Point(PointKind.START),
    "end": Point(PointKind.END),
    "newest": Point(PointKind.END),
}
_ONE_TIME = re.compile(
    r"(?P<day>\d{4}-\d{2}-\d{2})(?P<clock>T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2}))?"
    r"|(?P<number>\d{10}(\d{3}(\d{6})?)?(?=:|$))"
    r"|(?P<duration>-?(\d+(\.\d+)?(ns|us|ms|hr|s|m|h|d))+)"
    r"|(?P<end>end)"
)


def parse_range(text: str, now_ms: int, forms: str = f"{POINT_FORMS}, 10:20, :end") -> Range:
    """Parses a range. Raises `Refused` (INVALID_REQUEST) for another form; the error names `forms` and times."""
    if text.startswith("@"):
        return _parse_times(text, now_ms)
    start, colon, end = text.partition(":")
    if not colon and (found := re.fullmatch(r"(\d+)-(\d+|end)", text)):
        start, colon, end = found[1], ":", found[2]
    first = _parse_offset(text, start or "start", forms)
    if not end:
        if not start:
            raise _invalid_range(text, "it has neither a start nor an end")
        return Range(first)
    last = _parse_offset(text, end, forms)
    if first.at is last.at is PointKind.ZERO and last.value <= first.value:
        raise _invalid_range(text, f"it ends at {last.value}, not after {first.value}")
    return Range(first, last)


def parse_point(text: str, now_ms: int) -> Point:
    """Parses one point. Raises `Refused` (INVALID_REQUEST) for another form, or a range."""
    where = parse_range(text, now_ms, POINT_FORMS)
    if where.end is not None:
        raise _invalid_range(text, "one offset or time, not a range")
    return where.start


def _parse_offset(text: str, part: str, forms: str) -> Point:
    if part in WORDS:
        return WORDS[part]
    if not re.fullmatch(r"[+-]?\d{1,18}", part):
        raise _invalid_range(text, f"try {forms} or @<time>")
    if part[0] == "+":
        return Point(PointKind.START, int(part))
    return Point(PointKind.END, int(part)) if part[0] == "-" else Point(PointKind.ZERO, int(part))


def _parse_times(text: str, now_ms: int) -> Range:
    """Parses `@t`, `@t:`, `@:t`, `@t1:t2`. A duration counts from now; after a time, the second one counts from that
    time."""
    rest = text[1:]
    start, base = Point(PointKind.START), now_ms
    if not rest.startswith(":"):
        start, rest, is_duration = _parse_time(text, rest, now_ms)
        if start.at is PointKind.END:
            raise _invalid_range(text, "nothing follows the end")
        base = now_ms if is_duration else start.value
    if rest in ("", ":") and text not in ("@", "@:"):
        return Range(start)
    if not rest.startswith(":"):
        raise _invalid_range(text, f"{rest!r} is too much")
    # A second @ is accepted: `@t1:@t2`.
    end, rest, _ = _parse_time(text, rest[1:].removeprefix("@"), base)
    if rest:
        raise _invalid_range(text, f"{rest!r} is too much")
    if start.at is end.at is PointKind.TIME and end.value <= start.value:
        raise _invalid_range(text, "it ends before it begins")
    return Range(start, end)


def _parse_time(text: str, rest: str, base_ms: int) -> tuple[Point, str, bool]:
    """Returns one time, the text behind it, and True if it was a duration."""
    found = _ONE_TIME.match(rest)
    if not found:
        raise _invalid_range(
            text, "times are unix s, ms or ns, 2022-02-14, 2022-02-14T12:00:00Z, or durations as -1h30m"
        )
    left = rest[found.end() :]
    if found["end"]:
        return Point(PointKind.END), left, False
    if found["duration"]:
        parts = re.findall(r"(\d+(?:\.\d+)?)(ns|us|ms|hr|s|m|h|d)", found["duration"])
        ms = sum(float(number) * UNITS_MS[unit] for number, unit in parts)
        if ms > LONGEST_MS:
            raise _invalid_range(text, f"{found[0]} is too long")
        return Point(PointKind.TIME, base_ms + round(-ms if found[0].startswith("-") else ms)), left, True
    if found["number"]:
        return Point(PointKind.TIME, UNIX_MS[len(found["number"])](int(found["number"]))), left, False
    try:
        moment = datetime.fromisoformat(found[0])
    except ValueError:
        raise _invalid_range(text, f"{found[0]} is no time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Point(PointKind.TIME, round(moment.timestamp() * 1000)), left, False


def _invalid_range(text: str, why: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, f"offset {text!r}: {why}")


async def resolve_offsets(
    client: KafkaClient,
    point: Point,
    partitions: Iterable[TopicPartition],
    *,
    read_committed: bool = False,
    report: Callable[[str], None] | None = None,
) -> dict[TopicPartition, int]:
    """Returns the offset of each partition at a point. A relative point stays within the log. A time after all records
    is the log end: `report` gets a sentence that says so. An explicit offset is taken as it is."""
    wanted = list(partitions)
    if point.at is PointKind.ZERO:
        return dict.fromkeys(wanted, point.value)
    ends: Mapping[TopicPartition, int] = {}
    starts: Mapping[TopicPartition, int] = {}
    if point.at is not PointKind.START or point.value:
        ends = await list_offsets_at(client, wanted, LATEST, read_committed=read_committed)
    if point.at is PointKind.START or point.value:
        starts = await list_offsets_at(client, wanted, EARLIEST)
    if point.at is PointKind.TIME:
        found = await list_offsets_at(client, wanted, point.value, read_committed=read_committed)
        unmatched = sorted(tp for tp, offset in found.items() if offset < 0)
        if unmatched and report is not None:
            report(_describe_unmatched(unmatched, point.value))
        return {tp: offset if offset >= 0 else ends[tp] for tp, offset in found.items()}
    if point.at is PointKind.START:
        return {tp: min(start + point.value, ends.get(tp, start)) for tp, start in starts.items()}
    return {tp: max(end + point.value, starts.get(tp, end)) for tp, end in ends.items()}


def _describe_unmatched(unmatched: Sequence[TopicPartition], timestamp: int) -> str:
    others = len(unmatched) - 1
    more = f" and {others} partition{'s' * (others > 1)} more" if others else ""
    return f"no record of {unmatched[0]}{more} is at or after {timestamp} ms: the end is taken"
