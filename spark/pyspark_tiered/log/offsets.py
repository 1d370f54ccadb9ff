"""The options that bound a read, with the names and the meaning of Spark's Kafka source. Pure.

    startingOffsets / endingOffsets                        earliest | latest | {"topic": {"0": 23, "1": -2}}
    startingOffsetsByTimestamp / endingOffsetsByTimestamp  {"topic": {"0": 1000, "1": 2000}}   (milliseconds)
    startingTimestamp / endingTimestamp                    1000                                (all partitions)

    startingOffsetsByTimestampStrategy                     error | latest: no record has that time or a later one

In JSON -2 is the earliest offset, -1 the latest. A timestamp wins over offsets, a common one over one by partition.

The option `cut` is for this package alone: it names a topic by its id, and wins over all others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from tiered.errors import Code, Refused


class BoundKind(Enum):
    """Kind of a bound's value."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"


class Bound(NamedTuple):
    """One end of a partition's range: an offset, or the first record at or after a timestamp in milliseconds.

    `needs_match` refuses a timestamp that no record has or follows. Without it the bound is then the end.
    """

    kind: BoundKind
    value: int = 0
    needs_match: bool = False

    def take_end(self, topic: str, partition: int, end: int) -> int:
        """Returns the end of a partition for a timestamp after all its records. Raises `Refused` if it needs a
        match."""
        if self.needs_match:
            raise Refused(
                Code.INVALID_REQUEST,
                f"no record of {topic}-{partition} has timestamp {self.value} or a later one: choose an earlier start, "
                f"or {STRATEGY_NAME}=latest to read what comes later",
            )
        return end


class Cut(NamedTuple):
    """Offsets `[start, end)` of a topic with this id. Partitions that it does not name are not read."""

    topic_id: str
    ranges: dict[int, tuple[int, int]]

    def to_option(self) -> str:
        """Returns the value of the option."""
        return json.dumps({"topic_id": self.topic_id, "ranges": self.ranges})

    def ends(self) -> dict[int, int]:
        """Returns the end of each partition that is read."""
        return {number: end for number, (start, end) in self.ranges.items() if start < end}

    def check(self, topic: str, topic_id: str) -> dict[int, tuple[int, int]]:
        """Returns the ranges. Raises `Refused` if the topic of this name has another id by now."""
        if topic_id != self.topic_id:
            raise Refused(
                Code.OFFSET_OUT_OF_RANGE,
                f"the topic {topic} with id {self.topic_id} is gone, or was created again: the id is {topic_id}",
            )
        return self.ranges


CUT = "cut"
STRATEGY_NAME = "startingOffsetsByTimestampStrategy"
STRATEGIES = ("error", "latest")

EARLIEST, LATEST = Bound(BoundKind.EARLIEST), Bound(BoundKind.LATEST)
_JSON_EARLIEST, _JSON_LATEST = -2, -1


def bounds(
    options: Mapping[str, str], end: str, topic: str, partitions: Sequence[int], default: Bound
) -> dict[int, Bound]:
    """Returns the bound of each partition.

    `end` is "starting" or "ending"; `options` has lower-case names. Raises `Refused`.
    """
    needs_match = end == "starting" and options.get(STRATEGY_NAME.lower(), STRATEGIES[0]).lower() == STRATEGIES[0]
    common = options.get(f"{end}timestamp")
    if common is not None:
        bound = Bound(BoundKind.TIMESTAMP, _number(f"{end}Timestamp", common), needs_match)
        return dict.fromkeys(partitions, bound)
    by_time = options.get(f"{end}offsetsbytimestamp")
    if by_time is not None:
        given = _per_partition(f"{end}OffsetsByTimestamp", by_time, topic, partitions)
        return {partition: Bound(BoundKind.TIMESTAMP, value, needs_match) for partition, value in given.items()}
    text = options.get(f"{end}offsets")
    if text is None:
        return dict.fromkeys(partitions, default)
    if text.strip().lower() in ("earliest", "latest"):
        return dict.fromkeys(partitions, EARLIEST if text.strip().lower() == "earliest" else LATEST)
    given = _per_partition(f"{end}Offsets", text, topic, partitions)
    return {partition: _offset(f"{end}Offsets", value) for partition, value in given.items()}


def check_order(topic: str, starts: Mapping[int, Bound], ends: Mapping[int, Bound]) -> None:
    """Raises `Refused` if a partition starts at a later offset or timestamp than it ends at."""
    for partition, start in starts.items():
        end = ends[partition]
        if start.kind is end.kind and start.kind in (BoundKind.OFFSET, BoundKind.TIMESTAMP) and start.value > end.value:
            raise Refused(
                Code.INVALID_REQUEST,
                f"{topic}-{partition} starts at {start.kind.value} {start.value}, after its end at {end.value}",
            )


def parse_cut(text: str) -> Cut:
    """Parses the value of the option. Raises `Refused`."""
    try:
        found = json.loads(text)
        ranges = {int(number): (int(start), int(end)) for number, (start, end) in found["ranges"].items()}
        return Cut(str(found["topic_id"]), ranges)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused(
            Code.INVALID_REQUEST, f"{CUT} is for pyspark_tiered.table alone, and cannot be {text!r}"
        ) from None


def _offset(option: str, value: int) -> Bound:
    if value == _JSON_EARLIEST:
        return EARLIEST
    if value == _JSON_LATEST:
        return LATEST
    if value < 0:
        raise Refused(Code.INVALID_REQUEST, f"{option}: {value} is no offset; -2 is the earliest, -1 the latest")
    return Bound(BoundKind.OFFSET, value)


def _per_partition(option: str, text: str, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    """Returns the numbers of `{"topic": {"0": 1, ...}}`. Every partition must have one, as in Spark's Kafka source."""
    try:
        given = {int(partition): int(value) for partition, value in json.loads(text)[topic].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        example = json.dumps({topic: {str(partition): 0 for partition in partitions[:2]}})
        raise Refused(Code.INVALID_REQUEST, f"{option} must be like {example}, not {text!r}") from None
    if set(given) != set(partitions):
        raise Refused(
            Code.INVALID_REQUEST,
            f"{option} must name all partitions of {topic}, {sorted(partitions)}, not {sorted(given)}",
        )
    return given


def _number(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Refused(Code.INVALID_REQUEST, f"{option} must be milliseconds since 1970, not {text!r}") from None
