"""Simulated ObjectStore: linearizable memory behind faults, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tiered.object_store.faulty import ALL_VERBS, FaultKind, FaultRule, Faults, FaultyStore, LateWrite
from tiered.object_store.memory import MemoryStore, StoredObject
from tiered.ports import Buffer, Clock, GetResult, ListedObject, NotFound, ObjectStore, Ok, PutResult


class SimBucket:
    """One bucket that outlives brokers: each broker gets its own connection with its own faults.

    `written` is the history of every object, in the order in which the writes took effect: (key, content). An object
    that is encrypted anew has the same content, and is not written.
    """

    def __init__(self, loop: SimLoop) -> None:
        self.memory = RecordingStore(SimClock(loop))
        self.wrap: Callable[[ObjectStore, Clock], ObjectStore] = lambda store, clock: store
        """Makes the store of a process from its connection, as encryption does."""
        self._under_way: list[LateWrite] = []
        self._written_ns: dict[str, int] = {}

    @property
    def requests(self) -> int:
        """Returns the number of requests of all kinds."""
        return self.memory.requests

    @property
    def written(self) -> list[tuple[str, bytes]]:
        return self.memory.written

    @property
    def objects(self) -> Mapping[str, StoredObject]:
        """Returns the objects in the bucket now, decrypted if the bucket is encrypted."""
        return self.memory.contents if self.memory.decrypt is not None else self.memory._objects

    @property
    def stored(self) -> Mapping[str, StoredObject]:
        """Returns the objects in the bucket now, as they are stored."""
        return self.memory._objects

    def store(self, faults: Faults, clock: Clock) -> SimStore:
        return SimStore(self.memory, faults, clock, self._under_way, self._written_ns)


class SimStore(FaultyStore):
    """One process's connection to the bucket."""

    def revoke(self) -> None:
        """Revokes the port of a dead process: none of its later calls reaches the bucket; a call in flight may land."""
        self.faults = Faults(outage=True, reply_seconds=0.0)


class RecordingStore(MemoryStore):
    """Records all writes: an offset that a manifest names never changes its bytes."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.written: list[tuple[str, bytes]] = []
        self.on_write: Callable[[], None] = lambda: None
        self.on_delete: Callable[[Sequence[str]], None] = lambda keys: None
        """Callback before each delete takes effect."""
        self.requests = 0
        self.looks_for_old_uploads = 0
        self.decrypt: Callable[[str, bytes], bytes] | None = None
        """Returns the content of an encrypted object, by its key and the stored bytes."""
        self.contents: dict[str, StoredObject] = {}
        """Decrypted objects, if `decrypt` is set."""

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        self.requests += 1
        return await super().get(key, start, length)

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[ListedObject]:
        self.requests += 1
        return await super().list(prefix, after, limit)

    async def delete(self, keys: Sequence[str]) -> None:
        self.requests += 1
        self.on_delete(keys)
        await super().delete(keys)
        for key in keys:
            self.contents.pop(key, None)

    async def end_old_uploads(self, prefix: str) -> int:
        self.requests += 1
        self.looks_for_old_uploads += prefix == ""
        return await super().end_old_uploads(prefix)

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        self.requests += 1
        result = await super().put(key, data, if_absent=if_absent, if_match=if_match)
        if isinstance(result, Ok):
            self._record(key, bytes(data))
        return result

    def _record(self, key: str, data: bytes) -> None:
        if self.decrypt is not None:
            data, before = self.decrypt(key, data), self.contents.get(key)
            self.contents[key] = self._objects[key]._replace(data=data)
            if before is not None and before.data == data:
                return
        self.written.append((key, data))
        self.on_write()


DRAWN_KINDS = tuple(kind for kind in FaultKind if kind is not FaultKind.THROTTLE)
"""Fault kinds that a swarm draws. Throttling counts calls and is not random."""
LISTED_PREFIXES = ("data/", "meta/")
"""Prefixes whose lists find garbage, so that a later list finds the rest. Lists alone find snapshots of groups: a
list that hides the newest one breaks the promise of stores that groups rely on."""


def tolerable_rules(rules: Sequence[FaultRule], rng: random.Random) -> list[FaultRule]:
    """Returns the rules, with stale lists (frequent ones, because there are few) only for prefixes that tolerate
    them."""
    stale = [rule for rule in rules if rule.kind is FaultKind.STALE_LIST]
    return [rule for rule in rules if rule.kind is not FaultKind.STALE_LIST] + [
        FaultRule(FaultKind.STALE_LIST, ("list",), key=prefix, probability=rng.random(), seconds=rule.seconds)
        for rule in stale
        for prefix in LISTED_PREFIXES
    ]


def draw_faults(rng: random.Random, worst: float = 0.25) -> Faults:
    """Draws a swarm: a random subset of all kinds of faults, each with a random chance up to `worst`."""
    rules = [
        FaultRule(kind, ALL_VERBS, probability=rng.random() * worst, seconds=rng.choice((0.05, 0.5, 3.0, 30.0)))
        for kind in DRAWN_KINDS
        if rng.random() < 0.5
    ]
    return Faults(
        rules, rng, first_byte_seconds=rng.choice((0.0, 0.005, 0.03)), reply_seconds=rng.choice((0.1, 1.0, 5.0))
    )
