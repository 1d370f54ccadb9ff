"""Partitions that wait for a pass, by topic: topics take turns, and the partitions of a topic take turns among each
other. So a partition waits for one pass of each other topic at most, however many partitions that topic has."""

from __future__ import annotations

from collections.abc import Container
from typing import Generic, Protocol, TypeVar


class OfTopic(Protocol):
    """A partition that knows the name of its topic."""

    @property
    def topic(self) -> str:
        """The name of its topic."""


R = TypeVar("R", bound=OfTopic)


class TopicTurns(Generic[R]):
    """The waiting partitions, each once."""

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[R, None]] = {}
        """The next turn is that of the first topic with a partition that may have one."""

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def add(self, replica: R) -> None:
        """Adds a partition behind the others of its topic. A topic without waiting partitions comes last."""
        self._by_topic.setdefault(replica.topic, {})[replica] = None

    def remove(self, replica: R) -> None:
        """Removes a partition if it waits. Its topic keeps its turn."""
        waiting = self._by_topic.get(replica.topic)
        if waiting is not None:
            waiting.pop(replica, None)
            if not waiting:
                del self._by_topic[replica.topic]

    def find_next(self, busy: Container[R]) -> R | None:
        """Returns the partition whose turn is next, without those that are busy; None if there is none."""
        return next((each for waiting in self._by_topic.values() for each in waiting if each not in busy), None)

    def take(self, replica: R) -> None:
        """Removes a partition that has its turn: its topic comes last then."""
        self.remove(replica)
        waiting = self._by_topic.pop(replica.topic, None)
        if waiting is not None:
            self._by_topic[replica.topic] = waiting
