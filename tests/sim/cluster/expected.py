"""What the administration was told, and what must therefore stand in the metadata log: I24 and M5 for its changes.

An answer is a fact from then on: a completed write is seen by every later read. A request without one leaves both
states possible, and may take effect at any later time (whoever froze with it goes on): what it could change is never
sure again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.sim.cluster.observer import Finding
from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered.metadata.image import TopicImage

T = TypeVar("T")
REFUSALS = {
    Code.TOPIC_ALREADY_EXISTS,
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.INVALID_PARTITIONS,
    Code.INVALID_REPLICA_ASSIGNMENT,
    Code.INVALID_REPLICATION_FACTOR,
    Code.INVALID_CONFIG,
    Code.INVALID_REQUEST,
    Code.INVALID_TOPIC_EXCEPTION,
}
"""Answers that say that nothing happened. All others leave that open."""


@dataclass
class OneOf(Generic[T]):
    """What one thing may be."""

    may_be: set[T]
    open: bool = False
    """Whether a change without an answer may take effect yet."""

    def asked(self, value: T, code: Code | None) -> None:
        """A change to `value`, and what was said of it."""
        if code is Code.NONE and not self.open:
            self.may_be = {value}
        elif code not in REFUSALS:
            self.may_be.add(value)
            self.open = self.open or code is not Code.NONE


@dataclass
class Topic:
    """One name."""

    there: OneOf[bool] = field(default_factory=lambda: OneOf({False}))
    partitions: OneOf[int] = field(default_factory=lambda: OneOf(set()))
    configs: dict[str, OneOf[str | None]] = field(default_factory=dict)


class Expected:
    """The topics that were ever asked for. `found` gives a topic as the metadata log has it, `start` where the manifest
    of a partition begins, `for_all` what is set for all brokers; `began_with` what brokers set for all where nothing
    is."""

    def __init__(
        self,
        found: Callable[[str], TopicImage | None],
        start: Callable[[TopicPartition], int] = lambda where: 0,
        for_all: Callable[[], Mapping[str, str]] = dict,
        began_with: Mapping[str, str] | None = None,
    ) -> None:
        self.delete_asked: dict[TopicPartition, int] = {}
        self._topics: dict[str, Topic] = {}
        self._found = found
        self._start = start
        self._for_all = for_all
        self._began_with = dict(began_with or {})
        self._all: dict[str, OneOf[str | None]] = {}

    def created(self, name: str, partitions: int, configs: Mapping[str, str], code: Code | None) -> Iterator[Finding]:
        known = self._topics.setdefault(name, Topic())
        if code is Code.TOPIC_ALREADY_EXISTS and known.there.open:
            code = Code.NONE  # an earlier try of the same: it has been decided
            known.there.open = False
        if code in REFUSALS:
            return
        known.there.asked(True, code)
        known.partitions.asked(partitions, Code.NONE)
        for key, value in configs.items():
            known.configs.setdefault(key, OneOf(set())).asked(value, Code.NONE)
        yield from self._now(name, code)

    def is_free(self, name: str) -> bool:
        """Whether no topic has the name, and no request without an answer can change the next one; then nothing that
        was said of earlier topics of that name counts for it."""
        known = self._topics[name]
        late = known.there.open or known.partitions.open or any(each.open for each in known.configs.values())
        free = known.there.may_be == {False} and not late
        if free:
            self._topics[name] = Topic()
        return free

    def deleted(self, name: str, code: Code | None) -> Iterator[Finding]:
        yield from self._refusal(name, "delete", code)
        self._topics[name].there.asked(False, code)
        yield from self._now(name, code)

    def grown(self, name: str, partitions: int, code: Code | None) -> Iterator[Finding]:
        yield from self._refusal(name, "grow", code)
        self._topics[name].partitions.asked(partitions, code)
        yield from self._now(name, code)

    def altered(self, name: str, configs: Mapping[str, str | None], code: Code | None) -> Iterator[Finding]:
        """None takes a setting of its own away."""
        yield from self._refusal(name, "alter", code)
        for key, value in configs.items():
            self._topics[name].configs.setdefault(key, OneOf({None})).asked(value, code)
        yield from self._now(name, code)

    def altered_for_all(self, configs: Mapping[str, str | None], code: Code | None) -> Iterator[Finding]:
        """As `altered`, of all brokers."""
        for key, value in configs.items():
            known = self._all.setdefault(key, OneOf({None, self._began_with.get(key)}))
            known.asked(value, code)
            if None in known.may_be and key in self._began_with:
                known.may_be.add(self._began_with[key])  # the next broker that registers says it again
        if code is Code.NONE:
            yield from self._check_all()

    def records_deleted(self, where: TopicPartition, start: int) -> Iterator[Finding]:
        """DeleteRecords was answered with this log start: it stands in the manifest by then."""
        if self._start(where) < start:
            yield Finding("I22", f"{where}: told was the log start {start}, the manifest has {self._start(where)}")

    def asks_to_delete(self, where: TopicPartition, before: int) -> None:
        """Somebody asks that what lies below be deleted: from now on it may be."""
        self.delete_asked[where] = max(before, self.delete_asked.get(where, 0))

    def asked_to_go(self, where: TopicPartition) -> int:
        """Below which offset somebody asked records to be deleted."""
        return self.delete_asked.get(where, 0)

    def check(self) -> Iterator[Finding]:
        """All of it, at any time between requests."""
        for name in self._topics:
            yield from self._check(name)
        yield from self._check_all()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _now(self, name: str, code: Code | None) -> Iterator[Finding]:
        if code is Code.NONE:
            yield from self._check(name)

    def _check_all(self) -> Iterator[Finding]:
        said = self._for_all()
        for key, value in self._all.items():
            if said.get(key) not in value.may_be:
                yield Finding("I24", f"all brokers have {key}={said.get(key)}, told was {value}")

    def _refusal(self, name: str, verb: str, code: Code | None) -> Iterator[Finding]:
        """Who is told that a topic is not there, or is, must not have been told otherwise before."""
        if code is Code.UNKNOWN_TOPIC_OR_PARTITION and self._topics[name].there.may_be == {True}:
            yield Finding("M5", f"{verb} {name}: it is not known, though it was made and not deleted")

    def _check(self, name: str) -> Iterator[Finding]:
        known, topic = self._topics[name], self._found(name)
        if (topic is not None) not in known.there.may_be:
            yield Finding("I24", f"{name} is {topic}, told was that it is {'' if topic is None else 'not '}there")
            return
        if topic is None:
            return
        if len(topic.partitions) not in known.partitions.may_be:
            yield Finding("I24", f"{name} has {len(topic.partitions)} partitions, told was {known.partitions}")
        for key, value in known.configs.items():
            if topic.configs.get(key) not in value.may_be:
                yield Finding("I24", f"{name} has {key}={topic.configs.get(key)}, told was {value}")
