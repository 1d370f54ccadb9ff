"""The caches of what requests mean: one for each caller, and one bound for all."""

from __future__ import annotations

import gc

from tiered.security.principal import ANONYMOUS, Caller, Principal
from tiered_api.kafka.server.context.caller_caches import CallerCaches

ALICE, NEARBY = Caller(Principal("User", "alice"), "10.0.0.1"), Caller(ANONYMOUS, "10.0.0.1")


class Entries(dict[str, bool]):
    """A cache of names. The value is false if the entry is stale."""

    def evict_stale(self) -> None:
        for name in [name for name, is_fresh in self.items() if not is_fresh]:
            del self[name]


def add(caches: CallerCaches[Entries], cache: Entries, name: str, is_fresh: bool = True) -> None:
    caches.admit()
    cache[name] = is_fresh


def test_cache_belongs_to_one_principal_on_one_host() -> None:
    caches = CallerCaches(lambda _: Entries(), 100)
    alice, nearby = caches.find(ALICE), caches.find(NEARBY)
    elsewhere = caches.find(ALICE._replace(host="10.0.0.2"))
    add(caches, alice, "t")
    assert caches.find(Caller(Principal("User", "alice"), "10.0.0.1")) is alice
    assert not nearby and not elsewhere


def test_cache_ends_with_the_last_connection_that_holds_it() -> None:
    caches = CallerCaches(lambda _: Entries(), 100)
    alice = caches.find(ALICE)
    add(caches, alice, "t")
    del alice
    gc.collect()
    assert "t" not in caches.find(ALICE)


def test_bound_counts_the_entries_of_all_callers() -> None:
    caches = CallerCaches(lambda _: Entries(), 3)
    alice, nearby = caches.find(ALICE), caches.find(NEARBY)
    for name in "ab":
        add(caches, alice, name)
    add(caches, nearby, "c")
    add(caches, nearby, "d")
    assert not alice and list(nearby) == ["d"]


def test_stale_entries_make_room() -> None:
    caches = CallerCaches(lambda _: Entries(), 3)
    alice = caches.find(ALICE)
    for name in "abc":
        add(caches, alice, name, is_fresh=name == "c")
    caches.evict_stale()
    add(caches, alice, "d")
    assert sorted(alice) == ["c", "d"]


def test_cleared_caches_forget_every_caller() -> None:
    caches = CallerCaches(lambda _: Entries(), 100)
    alice, nearby = caches.find(ALICE), caches.find(NEARBY)
    add(caches, alice, "a")
    add(caches, nearby, "b")
    caches.clear()
    assert not alice and not nearby
