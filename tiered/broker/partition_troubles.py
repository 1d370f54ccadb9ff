"""Since when partitions lack a leader or replicas in sync, as one broker has seen it. The metadata log has no times.

An entry ends with its trouble, or with its topic. So there are no more entries than partitions.
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.ids import TopicId
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import PartitionImage, TopicImage
from tiered.ports import Clock

UNKNOWN_MS = -1
"""The time of a trouble from before the start of this broker."""


class Trouble(NamedTuple):
    """The times of one partition."""

    leaderless_ms: int | None
    """None while the partition has a leader."""
    smaller_ms: tuple[int, ...]
    """By the number of missing members, from one on: since when at least so many are missing."""


class PartitionTroubles:
    """The partitions of the cluster that lack something."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._troubles: dict[TopicId, dict[int, Trouble]] = {}

    def on_image(self, old: Image, new: Image) -> None:
        """Notes the times of changes. Topics that are the same object in both images cost nothing."""
        if new.topics_by_id is old.topics_by_id:
            return
        for topic_id in [each for each in self._troubles if each not in new.topics_by_id]:
            del self._troubles[topic_id]
        now_ms = self._clock.wall_ms()
        for topic_id, topic in new.topics_by_id.items():
            before = old.topics_by_id.get(topic_id)
            if before is not topic:
                self._examine(topic, before, now_ms)

    def leaderless_since_ms(self, topic_id: TopicId, partition: int) -> int:
        """Returns since when a partition has no leader, `UNKNOWN_MS` if it has one or if that is not known."""
        found = self._find(topic_id, partition).leaderless_ms
        return UNKNOWN_MS if found is None else found

    def missing_since_ms(self, topic_id: TopicId, partition: int) -> tuple[int, ...]:
        """Returns since when replicas of a partition are not in sync, by their number from one on: at least so many.
        A time is `UNKNOWN_MS` if that is not known."""
        return self._find(topic_id, partition).smaller_ms

    def _find(self, topic_id: TopicId, partition: int) -> Trouble:
        return self._troubles.get(topic_id, {}).get(partition, SOUND)

    def _examine(self, topic: TopicImage, before: TopicImage | None, now_ms: int) -> None:
        known, found = self._troubles.get(topic.topic_id, {}), {}
        were = () if before is None else before.partitions
        for number, each in enumerate(topic.partitions):
            was = were[number] if number < len(were) else None
            if was is each:
                trouble = known.get(number, SOUND)
            else:
                trouble = _date(each, known.get(number, SOUND), UNKNOWN_MS if was is None else now_ms)
            if trouble != SOUND:
                found[number] = trouble
        if found:
            self._troubles[topic.topic_id] = found
        else:
            self._troubles.pop(topic.topic_id, None)


SOUND = Trouble(None, ())


def _date(each: PartitionImage, known: Trouble, now_ms: int) -> Trouble:
    """Returns the troubles of a partition now, the new ones since `now_ms`. Replicas that a move adds do not count."""
    missing = max(0, len(each.replicas) - len(each.adding) - len(each.isr))
    kept = known.smaller_ms[:missing]
    leaderless = None if each.leader != NO_LEADER else now_ms if known.leaderless_ms is None else known.leaderless_ms
    return Trouble(leaderless, kept + (now_ms,) * (missing - len(kept)))
