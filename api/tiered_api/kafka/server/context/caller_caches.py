"""Caches of what requests mean, one for each caller that has a connection.

Keeps I29. A cache remembers partitions and requests that its caller was allowed to use. Another caller never sees it,
and a request that no cache knows is checked. Each change of the ACLs empties all caches. All caches together are
bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from tiered.security.principal import Caller


class CallerCache(Protocol):
    """The things that one caller was allowed to use."""

    def __len__(self) -> int:
        """Returns the number of entries."""

    def clear(self) -> None:
        """Forgets everything."""

    def evict_stale(self) -> None:
        """Forgets replicas that have stopped."""


C = TypeVar("C", bound=CallerCache)


class CallerCaches(Generic[C]):
    """The caches of all callers. A cache lasts as long as a connection of its caller holds it."""

    def __init__(self, make: Callable[[Caller], C], entries_max: int) -> None:
        self._make = make
        self._entries_max = entries_max
        self._by_caller: WeakValueDictionary[Caller, C] = WeakValueDictionary()
        self._entries = 0
        """At least the number of entries in all caches."""

    def find(self, caller: Caller) -> C:
        """Returns the cache of a caller."""
        cache = self._by_caller.get(caller)
        if cache is None:
            cache = self._by_caller[caller] = self._make(caller)
        return cache

    def admit(self) -> None:
        """Counts an entry that is about to be added. At the limit, forgets all entries of all callers first."""
        if self._entries >= self._entries_max:
            self.clear()
        self._entries += 1

    def clear(self) -> None:
        """Forgets everything: each caller is checked again."""
        self._entries = 0
        for cache in self._by_caller.values():
            cache.clear()

    def evict_stale(self) -> None:
        """Forgets replicas that have stopped."""
        self._entries = 0
        for cache in self._by_caller.values():
            cache.evict_stale()
            self._entries += len(cache)
