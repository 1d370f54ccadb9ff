"""The kinds of stores on which the ObjectStore contract runs."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.encryption import write_key_file
from tests.s3_rules import BUCKET
from tests.sim.harness.clock import SimClock, SimRng
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.store import SimBucket
from tiered.object_store.encrypted import EncryptedStore
from tiered.object_store.encrypted_object import stored_size
from tiered.object_store.faulty import Faults, faulty
from tiered.object_store.key_file import KeyFile
from tiered.object_store.memory import MemoryStore
from tiered.object_store.url import open_store
from tiered.ports import ObjectStore
from tiered.system.clock import SystemClock, SystemRng

T = TypeVar("T")


@dataclass(frozen=True)
class StoreCase:
    """A kind of store, new and empty for each test. `rounds` is how many races it runs in a second or two."""

    kind: str
    make: Callable[[], ObjectStore]
    rounds: int
    on_loop: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run

    def stored_size(self, size: int) -> int:
        """Returns the bytes in the store of an object with `size` bytes."""
        return stored_size(size) if self.kind == "encrypted" else size

    def run(self, body: Callable[[ObjectStore], Coroutine[Any, Any, T]]) -> T:
        """Runs `body` with the store on an event loop of its own."""

        async def main() -> T:
            store = self.make()
            try:
                return await body(store)
            finally:
                await store.close()

        result: T = self.on_loop(main())
        return result


OTHER_SERVERS = os.environ.get("S3_SERVERS", "").split()
"""Servers of other makers (`tests/s3_servers.py`) that `make test-s3` names."""
KINDS = ["memory", "directory", "encrypted", "faulty", "simulated", "s3-fake", "s3-strict", "s3-rotating", "s3-moto"]
KINDS = [f"s3-{each}" for each in OTHER_SERVERS] or KINDS
BY_FOLDER = ("s3-strict", "s3-seaweedfs")
"""Kinds that list a folder after the other. `s3-strict` also wants checksums, and `s3-rotating` replaces its access key
every few requests."""


def store_case(kind: str, name: str, folder: Path) -> StoreCase:
    """Returns a new store of a kind for the test `name`, in `folder`, or below a prefix of its own in a server's
    bucket."""
    clock, rng = SystemClock(), SystemRng()
    if kind == "memory":
        return StoreCase(kind, lambda: open_store("memory://", clock, rng), 200)
    if kind == "directory":
        return StoreCase(kind, lambda: open_store(f"file://{folder}/store", clock, rng), 40)
    if kind == "encrypted":
        key_file = KeyFile(str(write_key_file(folder / "keys")), clock)
        return StoreCase(kind, lambda: EncryptedStore(MemoryStore(clock), key_file), 5)
    if kind == "faulty":
        return StoreCase(kind, lambda: faulty(MemoryStore(clock), Faults(), clock), 200)
    if kind == "simulated":
        loop = SimLoop(1)
        faults = Faults(random=random.Random(1), first_byte_seconds=0.01)
        sim_clock = SimClock(loop)
        return StoreCase(kind, lambda: SimBucket(loop).store(faults, sim_clock), 200, loop.run)
    prefix = SimRng(name).stream("prefix").getrandbits(64)
    return StoreCase(
        kind,
        lambda: open_store(f"s3://{BUCKET}/{prefix:x}/deep", clock, rng),
        2 if kind == "s3-moto" or OTHER_SERVERS else 4,
    )
