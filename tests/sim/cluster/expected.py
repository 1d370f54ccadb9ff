"""Possible contents of the metadata log, derived from the replies to administration requests: I24 and M5 for its
changes.

A reply is a fact from then on: every later read sees a completed write. A request without a reply leaves both states
possible. It may take effect at any later time, because a frozen broker may resume with it: the value that it could
change is never certain again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.sim.cluster.observer import Finding
from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered.metadata.parts.topics import TopicImage

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
"""Replies that mean that nothing happened. All other errors leave that open."""


@dataclass
class PossibleValues(Generic[T]):
    """Possible values of one setting or topic."""

    possible: set[T]
    undecided: bool = False
    """True if a change without a reply may take effect later."""

    def on_reply(self, value: T, code: Code | None) -> None:
        """Records the reply to a change to `value`."""
        if code is Code.NONE and not self.undecided:
            self.possible = {value}
        elif code not in REFUSALS:
            self.possible.add(value)
            self.undecided = self.undecided or code is not Code.NONE


@dataclass
class ExpectedTopic:
    """The expectations about one topic name."""

    exists: PossibleValues[bool] = field(default_factory=lambda: PossibleValues({False}))
    partitions: PossibleValues[int] = field(default_factory=lambda: PossibleValues(set()))
    configs: dict[str, PossibleValues[str | None]] = field(default_factory=dict)


class ExpectedTopics:
    """All topics that were ever requested. `find_topic` returns a topic of the metadata log, `log_start_of` the log
    start of a manifest, and `cluster_configs` the settings of all brokers; `initial_configs` are their values before
    any change."""

    def __init__(
        self,
        find_topic: Callable[[str], TopicImage | None],
        log_start_of: Callable[[TopicPartition], int] = lambda where: 0,
        cluster_configs: Callable[[], Mapping[str, str]] = dict,
        initial_configs: Mapping[str, str] | None = None,
    ) -> None:
        self.requested_starts: dict[TopicPartition, int] = {}
        self._topics: dict[str, ExpectedTopic] = {}
        self._find_topic = find_topic
        self._log_start_of = log_start_of
        self._cluster_configs = cluster_configs
        self._initial_configs = dict(initial_configs or {})
        self._cluster_values: dict[str, PossibleValues[str | None]] = {}

    def on_created(
        self, name: str, partitions: int, configs: Mapping[str, str], code: Code | None
    ) -> Iterator[Finding]:
        known = self._topics.setdefault(name, ExpectedTopic())
        if code is Code.TOPIC_ALREADY_EXISTS and known.exists.undecided:
            code = Code.NONE  # an earlier try of the same: it has been decided
            known.exists.undecided = False
        if code in REFUSALS:
            return
        known.exists.on_reply(True, code)
        known.partitions.on_reply(partitions, Code.NONE)
        for key, value in configs.items():
            known.configs.setdefault(key, PossibleValues(set())).on_reply(value, Code.NONE)
        yield from self._check_if_done(name, code)

    def is_free(self, name: str) -> bool:
        """True if no topic has the name and no request without a reply can change the next topic of that name. Replies
        about earlier topics of that name then do not count for the next one."""
        known = self._topics[name]
        late = (
            known.exists.undecided
            or known.partitions.undecided
            or any(each.undecided for each in known.configs.values())
        )
        free = known.exists.possible == {False} and not late
        if free:
            self._topics[name] = ExpectedTopic()
        return free

    def on_deleted(self, name: str, code: Code | None) -> Iterator[Finding]:
        yield from self._check_refusal(name, "delete", code)
        self._topics[name].exists.on_reply(False, code)
        yield from self._check_if_done(name, code)

    def on_partitions_added(self, name: str, partitions: int, code: Code | None) -> Iterator[Finding]:
        yield from self._check_refusal(name, "grow", code)
        self._topics[name].partitions.on_reply(partitions, code)
        yield from self._check_if_done(name, code)

    def on_configs_altered(self, name: str, configs: Mapping[str, str | None], code: Code | None) -> Iterator[Finding]:
        """Records altered settings of a topic. None removes the topic's own value."""
        yield from self._check_refusal(name, "alter", code)
        for key, value in configs.items():
            self._topics[name].configs.setdefault(key, PossibleValues({None})).on_reply(value, code)
        yield from self._check_if_done(name, code)

    def on_cluster_configs_altered(self, configs: Mapping[str, str | None], code: Code | None) -> Iterator[Finding]:
        """Records altered settings that apply to all brokers."""
        for key, value in configs.items():
            known = self._cluster_values.setdefault(key, PossibleValues({None, self._initial_configs.get(key)}))
            known.on_reply(value, code)
            if None in known.possible and key in self._initial_configs:
                known.possible.add(self._initial_configs[key])  # the next broker that registers says it again
        if code is Code.NONE:
            yield from self._check_cluster_configs()

    def on_records_deleted(self, tp: TopicPartition, start: int) -> Iterator[Finding]:
        """Records a reply to DeleteRecords with this log start: the manifest has it by then."""
        if self._log_start_of(tp) < start:
            yield Finding("I22", f"{tp}: told was the log start {start}, the manifest has {self._log_start_of(tp)}")

    def on_delete_requested(self, tp: TopicPartition, before: int) -> None:
        """Records a request to delete all records below an offset: from now on they may be deleted."""
        self.requested_starts[tp] = max(before, self.requested_starts.get(tp, 0))

    def requested_start(self, tp: TopicPartition) -> int:
        """Returns the highest offset below which a client requested deletion."""
        return self.requested_starts.get(tp, 0)

    def check(self) -> Iterator[Finding]:
        """Checks all expectations; callable at any time between requests."""
        for name in self._topics:
            yield from self._check_topic(name)
        yield from self._check_cluster_configs()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _check_if_done(self, name: str, code: Code | None) -> Iterator[Finding]:
        if code is Code.NONE:
            yield from self._check_topic(name)

    def _check_cluster_configs(self) -> Iterator[Finding]:
        said = self._cluster_configs()
        for key, value in self._cluster_values.items():
            if said.get(key) not in value.possible:
                yield Finding("I24", f"all brokers have {key}={said.get(key)}, told was {value}")

    def _check_refusal(self, name: str, verb: str, code: Code | None) -> Iterator[Finding]:
        """Reports a reply that a topic exists, or does not exist, if it contradicts an earlier reply."""
        if code is Code.UNKNOWN_TOPIC_OR_PARTITION and self._topics[name].exists.possible == {True}:
            yield Finding("M5", f"{verb} {name}: it is not known, though it was made and not deleted")

    def _check_topic(self, name: str) -> Iterator[Finding]:
        known, topic = self._topics[name], self._find_topic(name)
        if (topic is not None) not in known.exists.possible:
            yield Finding("I24", f"{name} is {topic}, told was that it is {'' if topic is None else 'not '}there")
            return
        if topic is None:
            return
        if len(topic.partitions) not in known.partitions.possible:
            yield Finding("I24", f"{name} has {len(topic.partitions)} partitions, told was {known.partitions}")
        for key, value in known.configs.items():
            if topic.configs.get(key) not in value.possible:
                yield Finding("I24", f"{name} has {key}={topic.configs.get(key)}, told was {value}")
