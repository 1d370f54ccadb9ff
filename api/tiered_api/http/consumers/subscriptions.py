"""The topics of subscriptions. A pattern is matched off the event loop, once for all consumers that have it, and only
with topics that are new since the last match."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from weakref import WeakValueDictionary

from tiered.broker.broker import Broker
from tiered.metadata.image import Image
from tiered.ports import Clock
from tiered_api.http.consumers.topic_patterns import NAME_CHARACTERS, TopicPattern
from tiered_api.http.exchange.limits import Exhausted

JOB_STEPS = 1 << 21
"""Steps of one job in a thread, some 0.1 s at worst: other jobs get their turn after each."""
PAUSE_SECONDS = 0.5

Topics = Mapping[str, int]
"""Number of partitions by topic. The same object means the same topics."""
RunJob = Callable[[int, Callable[[list[str]], list[str]], list[str]], Awaitable[list[str]]]
"""`HttpContext.run_job`: runs large work in a thread."""


@dataclass(frozen=True)
class Subscription:
    """The topics of one consumer instance: a list of names, or a pattern."""

    topics: tuple[str, ...] = ()
    pattern: str = ""


class PatternMatches:
    """The topics that one pattern matches, as of the last look-up."""

    def __init__(self, text: str, patterns: PatternCache) -> None:
        self._pattern = TopicPattern(text)
        self._patterns = patterns
        self._known_topics: Topics = {}
        self._names: tuple[str, ...] = ()

    async def matching_names(self, known: Topics) -> tuple[str, ...]:
        """Returns the names in order, without internal topics."""
        if self._known_topics is not known:
            async with self._patterns.lock:
                if self._known_topics is not known:
                    await self._update(known)
        return self._names

    async def _update(self, known: Topics) -> None:
        new, gone = self._patterns.diff_topics(self._known_topics, known)
        found: list[str] = []
        names = iter(new)
        count = max(JOB_STEPS // (NAME_CHARACTERS * self._pattern.steps_per_char), 1)
        while some := list(islice(names, count)):
            steps = sum(map(len, some)) * self._pattern.steps_per_char
            found += await self._patterns.run_match_job(steps, self._pattern.filter_names, some)
        if found or not gone.isdisjoint(self._names):
            kept = (name for name in self._names if name not in gone)
            self._names = tuple(sorted((*kept, *(name for name in found if not name.startswith("__")))))
        self._known_topics = known


class PatternCache:
    """The patterns of all consumers of one listener. They are matched one at a time, so that they never take all
    threads."""

    def __init__(self, run_job: RunJob, clock: Clock) -> None:
        self.lock = asyncio.Lock()
        self._run_job = run_job
        self._clock = clock
        self._matches: WeakValueDictionary[str, PatternMatches] = WeakValueDictionary()
        self._diffed: tuple[Topics, Topics] = ({}, {})
        self._difference: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())

    def get_matches(self, text: str) -> PatternMatches:
        """Returns the matches of one pattern, shared by its consumers. Raises ValueError if the pattern is not
        supported."""
        found = self._matches.get(text)
        if found is None:
            found = self._matches[text] = PatternMatches(text, self)
        return found

    def diff_topics(self, before: Topics, after: Topics) -> tuple[frozenset[str], frozenset[str]]:
        """Returns the names of new topics and of deleted topics. The result is cached, because most patterns need the
        same one."""
        if self._diffed[0] is not before or self._diffed[1] is not after:
            self._diffed = (before, after)
            self._difference = (frozenset(after.keys() - before.keys()), frozenset(before.keys() - after.keys()))
        return self._difference

    async def run_match_job(self, steps: int, among: Callable[[list[str]], list[str]], names: list[str]) -> list[str]:
        """Runs one match job. Retries while all threads are busy, so that the matches so far are not lost."""
        while True:
            try:
                return await self._run_job(steps, among, names)
            except Exhausted:
                await self._clock.sleep(PAUSE_SECONDS)


class TopicCatalog:
    """The topics of the cluster, for the subscriptions of all consumers of one listener."""

    def __init__(self, broker: Broker, patterns: PatternCache) -> None:
        self._broker = broker
        self._patterns = patterns
        self._counts_cache: tuple[Image | None, Topics] = (None, {})

    def partition_counts(self) -> Topics:
        """Returns the number of partitions of every topic; the same object until a number may have changed."""
        image = self._broker.image
        if self._counts_cache[0] is not image:
            counts = {topic.name: len(topic.partitions) for topic in image.topics.values()}
            self._counts_cache = (image, self._counts_cache[1] if counts == self._counts_cache[1] else counts)
        return self._counts_cache[1]

    @property
    def rights(self) -> object:
        """Returns another object after each change of rights."""
        return self._broker.authorization.authorizer

    def subscribe(
        self, subscription: Subscription, may_read: Callable[[str], bool] = lambda _: True
    ) -> SubscribedTopics:
        """Returns the topics of one subscription. A pattern matches topics that the consumer may read. Raises
        ValueError for a pattern that is not supported."""
        matches = self._patterns.get_matches(subscription.pattern) if subscription.pattern else None
        return SubscribedTopics(self, subscription, matches, may_read)


class SubscribedTopics:
    """The topics of one subscription."""

    def __init__(
        self,
        catalog: TopicCatalog,
        subscription: Subscription,
        matches: PatternMatches | None,
        may_read: Callable[[str], bool],
    ) -> None:
        self.subscription = subscription
        self._may_read = may_read
        self._catalog = catalog
        self._matches = matches

    def partition_counts(self) -> Topics:
        """Returns the number of partitions of every topic."""
        return self._catalog.partition_counts()

    @property
    def rights(self) -> object:
        """Returns another object after each change of rights."""
        return self._catalog.rights

    async def matching_names(self, known: Topics) -> tuple[str, ...]:
        """Returns the names of the topics in order: those in `known` that match the pattern, or the list as it is."""
        if self._matches is not None:
            names = await self._matches.matching_names(known)
            return tuple(name for name in names if self._may_read(name))
        return tuple(sorted(self.subscription.topics))
