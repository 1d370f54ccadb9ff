"""Plans one micro-batch of a stream: how far it reads, and where it begins. Pure.

An offset of a stream is JSON: the topic, its id, and the next offset of each partition. The id tells a topic from a
later one of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark_tiered.delta.table_form import Range
from tiered.errors import Code, Refused

Json = dict[str, Any]


class StreamOffset(NamedTuple):
    """The place of a stream between two micro-batches."""

    topic: str
    topic_id: str
    offsets: Mapping[int, int]

    def to_json(self) -> Json:
        """Returns the form that Spark keeps in the checkpoint."""
        offsets = {str(partition): offset for partition, offset in sorted(self.offsets.items())}
        return {"topic": self.topic, "topic_id": self.topic_id, "offsets": offsets}


class ReadablePartition(NamedTuple):
    """Offsets `[start, end)` of a partition that can be read now, and about how many bytes of log they are.

    `log_end` is above `end` while a transaction is open, and else may be left out.
    """

    start: int
    end: int
    log_bytes: int
    log_end: int = 0

    def is_behind(self, offset: int) -> bool:
        """True if the log ends below an offset."""
        return max(self.end, self.log_end) < offset


class ReadableTopic(NamedTuple):
    """A topic as it can be read now."""

    topic: str
    topic_id: str
    partitions: Mapping[int, ReadablePartition]

    def ends(self) -> StreamOffset:
        """Returns the place after everything that can be read."""
        return StreamOffset(self.topic, self.topic_id, {number: each.end for number, each in self.partitions.items()})

    def is_behind(self, place: StreamOffset) -> bool:
        """True if the log of a partition ends below a place in this topic."""
        return self.topic_id == place.topic_id and any(
            each.is_behind(place.offsets.get(number, 0)) for number, each in self.partitions.items()
        )


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of one micro-batch; None: there is none."""

    rows: int | None = None
    log_bytes: int | None = None


def parse_offset(found: Any, topic: str) -> StreamOffset:
    """Parses an offset from a checkpoint. Raises `Refused` if it is none, or of another topic."""
    try:
        offset = StreamOffset(
            str(found["topic"]),
            str(found["topic_id"]),
            {int(partition): int(value) for partition, value in found["offsets"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise Refused(Code.INVALID_REQUEST, f"the checkpoint has no offset of this source: {found!r}") from fault
    if offset.topic != topic:
        raise Refused(
            Code.INVALID_REQUEST,
            f"the checkpoint belongs to topic {offset.topic}, not {topic}: a query of another topic needs its own",
        )
    return offset


def batch_ranges(
    start: StreamOffset, end: StreamOffset, now: ReadableTopic, *, fail_on_data_loss: bool
) -> tuple[dict[int, Range], list[str]]:
    """Returns the offsets `[start, end)` to read by partition, and sentences on what was lost.

    A partition without a start is new, and is read from its log start: older records are lost, as all records are if
    the log ends below a place that was reached. Raises `Refused` for anything lost if `fail_on_data_loss` is true.
    """
    lost = list[str]()
    same_topic = start.topic_id == end.topic_id
    if not same_topic:
        lost.append(
            f"topic {end.topic} was deleted and created again: id {start.topic_id} is now {end.topic_id}, and the rest "
            "of the old topic is gone"
        )
    if end.topic_id != now.topic_id:
        lost.append(f"topic {end.topic} with id {end.topic_id} is gone: id {now.topic_id} has its name")
        _check_loss(lost, fail_on_data_loss)
        return {}, lost
    ranges: dict[int, Range] = {}
    for number, last in sorted(end.offsets.items()):
        there = now.partitions.get(number)
        if there is None:
            lost.append(f"partition {number} of {end.topic} is gone")
            continue
        first = start.offsets.get(number, 0) if same_topic else there.start
        reached = max(first, last)
        if there.is_behind(reached):
            log_end = max(there.end, there.log_end)
            lost.append(
                f"the log of {end.topic}-{number} ends at {log_end}, below {reached}, where the stream was: an unclean "
                "election or a restore cut it"
            )
            last = min(last, there.end)
        if first < min(there.start, last):
            lost.append(
                f"retention removed offsets {first} to {min(there.start, last) - 1} of {end.topic}-{number} before "
                "they were read"
            )
        first = max(first, there.start)
        if first < last:
            ranges[number] = first, last
    _check_loss(lost, fail_on_data_loss)
    return ranges, lost


def next_offset(
    start: StreamOffset,
    now: ReadableTopic,
    limits: BatchLimits,
    target: StreamOffset | None = None,
    *,
    fail_on_data_loss: bool,
) -> StreamOffset:
    """Returns the end of the next micro-batch. It is `start` if there is nothing to read.

    The limits are spread over the partitions by what each of them has. `target`: the stream ends there, and partitions
    that it does not name are not read. Raises `Refused` as `batch_ranges` does.
    """
    ends = now.ends()
    if target is not None:
        if target.topic_id != now.topic_id:
            ends = start
        else:
            ends = ends._replace(
                offsets={
                    number: min(end, target.offsets[number])
                    for number, end in ends.offsets.items()
                    if number in target.offsets
                }
            )
    ranges, _ = batch_ranges(start, ends, now, fail_on_data_loss=fail_on_data_loss)
    share = _share(ranges, now, limits)
    same_topic = start.topic_id == ends.topic_id
    reached = dict(start.offsets) if same_topic else {}
    for number, end in ends.offsets.items():
        if number in ranges:
            low, high = ranges[number]
            # Each partition moves by one offset at least: else the small ones would wait for ever.
            reached[number] = min(low + max(int((high - low) * share), 1), high)
        elif now.partitions[number].is_behind(reached.get(number, 0)):
            reached[number] = end
        else:
            reached[number] = max(end, reached.get(number, end))
    return StreamOffset(ends.topic, ends.topic_id, reached)


def _share(ranges: Mapping[int, Range], now: ReadableTopic, limits: BatchLimits) -> float:
    """Returns the part of all readable offsets that fits the limits, at most 1."""
    rows = sum(high - low for low, high in ranges.values())
    log_bytes = 0.0
    for number, (low, high) in ranges.items():
        there = now.partitions[number]
        log_bytes += there.log_bytes * (high - low) / max(there.end - there.start, 1)
    share = 1.0
    if limits.rows is not None and rows > limits.rows:
        share = min(share, limits.rows / rows)
    if limits.log_bytes is not None and log_bytes > limits.log_bytes:
        share = min(share, limits.log_bytes / log_bytes)
    return share


def _check_loss(lost: list[str], fail_on_data_loss: bool) -> None:
    if lost and fail_on_data_loss:
        raise Refused(
            Code.OFFSET_OUT_OF_RANGE,
            f"{'; '.join(lost[:3])}. With failOnDataLoss=false the stream goes on with what is there",
        )
