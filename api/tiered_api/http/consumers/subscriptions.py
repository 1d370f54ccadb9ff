"""The topics that subscriptions name. A pattern is matched off the loop, and only with names that are new since the
last time, however many consumers have it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from weakref import WeakValueDictionary

from tiered.ports import Clock
from tiered_api.http.consumers.topic_patterns import NAME_CHARACTERS, Pattern
from tiered_api.http.server.limits import Exhausted

JOB_STEPS = 1 << 21
"""Steps of one job in a thread, some 0.1 s at worst: others get their turn after each."""
PAUSE_SECONDS = 0.5

Topics = Mapping[str, int]
"""Partitions by topic. The same object means the same topics."""
Work = Callable[[int, Callable[[list[str]], list[str]], list[str]], Awaitable[list[str]]]
"""`Site.work`: does it in a thread where the size is much."""


class Matches:
    """The names that one pattern matches, of the topics that it was asked for last."""

    def __init__(self, text: str, patterns: Patterns) -> None:
        self._pattern = Pattern(text)
        self._patterns = patterns
        self._seen: Topics = {}
        self._names: tuple[str, ...] = ()

    async def among(self, known: Topics) -> tuple[str, ...]:
        """The names in order, those of internal topics left out."""
        if self._seen is not known:
            async with self._patterns.turn:
                if self._seen is not known:
                    await self._look(known)
        return self._names

    async def _look(self, known: Topics) -> None:
        new, gone = self._patterns.difference(self._seen, known)
        found: list[str] = []
        names = iter(new)
        count = max(JOB_STEPS // (NAME_CHARACTERS * self._pattern.effort), 1)
        while some := list(islice(names, count)):
            steps = sum(map(len, some)) * self._pattern.effort
            found += await self._patterns.work(steps, self._pattern.among, some)
        if found or not gone.isdisjoint(self._names):
            kept = (name for name in self._names if name not in gone)
            self._names = tuple(sorted((*kept, *(name for name in found if not name.startswith("__")))))
        self._seen = known


class Patterns:
    """All patterns of one listener's consumers. One at a time is matched, so they never take all threads."""

    def __init__(self, work: Work, clock: Clock) -> None:
        self.turn = asyncio.Lock()
        self._work = work
        self._clock = clock
        self._matches: WeakValueDictionary[str, Matches] = WeakValueDictionary()
        self._between: tuple[Topics, Topics] = ({}, {})
        self._difference: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())

    def matches(self, text: str) -> Matches:
        """Of one pattern, shared by those who have it. ValueError when it is not taken."""
        found = self._matches.get(text)
        if found is None:
            found = self._matches[text] = Matches(text, self)
        return found

    def difference(self, before: Topics, after: Topics) -> tuple[frozenset[str], frozenset[str]]:
        """Names that came and that went. Most patterns ask for the same two."""
        if self._between[0] is not before or self._between[1] is not after:
            self._between = (before, after)
            self._difference = (frozenset(after.keys() - before.keys()), frozenset(before.keys() - after.keys()))
        return self._difference

    async def work(self, steps: int, among: Callable[[list[str]], list[str]], names: list[str]) -> list[str]:
        """Tries again while the threads are taken: what was matched so far is not lost."""
        while True:
            try:
                return await self._work(steps, among, names)
            except Exhausted:
                await self._clock.sleep(PAUSE_SECONDS)
