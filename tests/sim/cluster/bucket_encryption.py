"""The encryption of the bucket of a run (decision 0016), and ENCRYPTED: no stored object shows what a client wrote.

All brokers share a real key file. While they run, an operator activates another key in it, and encrypts all objects
anew beside the brokers. Before a rebuild from the bucket the old key goes, and plain objects are refused. The model and
the checkers see the objects decrypted.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.sim.harness.clock import SimClock
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.object_store.encrypted import EncryptedStore
from tiered.object_store.encrypted_object import (
    HEADER_BYTES,
    Header,
    ObjectCipher,
    find_chunks,
    parse_header,
    unwrap_data_key,
)
from tiered.object_store.faulty import Faults
from tiered.object_store.key_file import LOOK_NS, KeyFile, edit_key_file
from tiered.object_store.key_ring import KEY_BYTES, REFUSE_PLAIN, format_key_line
from tiered.object_store.probe import FOLDER
from tiered.offline.rewrite import BucketRewriter
from tiered.ports import Clock, ObjectStore

if TYPE_CHECKING:
    from tests.sim.cluster.run import ClusterRun

OLD, NEW = "old", "new"
FIRST_CHANGE_SECONDS, CHANGE_SECONDS = (1.0, 4.0), (1.0, 6.0)
LOOK_SECONDS = LOOK_NS / 1e9
LATE_WRITE_SECONDS = 31.0
"""Time after which no write that a faulty bucket held back lands."""
REWRITES_MAX = 5
SAMPLE_BYTES, SHOWN_MAX = 48, 3
VALUES = re.compile(rb"[a-z]+\d*\.\d+:x{10}")
"""The beginning of the longer values of senders."""


class BucketEncryption:
    """The key file of a run and its operator. `work` changes the keys until `working` is unset."""

    def __init__(self, run: ClusterRun) -> None:
        self.working = True
        self.counts: Counter[str] = Counter()
        self._run = run
        self._is_plain_allowed = run.options.turns_encryption_on
        self._rng = random.Random(f"{run.options.seed}/keys")
        self._keys = {name: self._rng.randbytes(KEY_BYTES) for name in (OLD, NEW)}
        self._path = ""
        self._steps = [[OLD]] if self._is_plain_allowed else []
        self._steps += [[NEW, OLD]]
        self._shown: set[str] = set()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Encrypts the bucket within the context."""
        bucket = self._run.world.bucket
        with tempfile.TemporaryDirectory(prefix="tiered-sim-keys-") as folder:
            self._path = os.path.join(folder, "keys")
            self._write_ring([OLD], "" if self._is_plain_allowed else OLD)
            bucket.memory.decrypt = self._decrypt
            bucket.wrap = self._encrypt
            yield

    async def work(self) -> None:
        """Activates the keys one after the other, and then encrypts all objects anew."""
        await asyncio.sleep(self._rng.uniform(*FIRST_CHANGE_SECONDS))
        for names in self._steps:
            self._write_ring(names, names[0])
            self.counts["key_changes"] += 1
            await asyncio.sleep(self._rng.uniform(*CHANGE_SECONDS))
        if self.working:
            await asyncio.sleep(LOOK_SECONDS)
            await self._rewrite()

    async def settle(self) -> None:
        """Before a rebuild: no object is left under the old key or none. Then the old key goes."""
        if not self._run.options.rebuild:
            return
        await self._run.wait(LATE_WRITE_SECONDS)
        for _ in range(REWRITES_MAX):
            if await self._rewrite():
                break
        used = {self._key_id(key, stored.data) for key, stored in self._run.world.bucket.stored.items()}
        assert used == {NEW}, f"liveness: after {REWRITES_MAX} rewrites objects are under {sorted(used)}"
        self._write_ring([NEW], NEW, REFUSE_PLAIN)
        self.counts["old_key_gone"] += 1

    def check_stored(self) -> None:
        """ENCRYPTED: no object has a value that was sent."""
        for key, stored in self._run.world.bucket.stored.items():
            found = VALUES.search(stored.data)
            if found is not None and self._key_id(key, stored.data):
                self._report(key, f"shows {found[0]!r}")

    # -- inside -------------------------------------------------------------------------------------------------------

    def _write_ring(self, names: list[str], active: str, *more: str) -> None:
        lines = [format_key_line(name, self._keys[name], is_active=name == active) for name in names]
        edit_key_file(self._path, lambda _: [*lines, *more])
        self._run.world.events.add(f"keys are {names}, active is {active or 'none'}")

    def _encrypt(self, store: ObjectStore, clock: Clock) -> EncryptedStore:
        return EncryptedStore(store, KeyFile(self._path, clock))

    async def _rewrite(self) -> bool:
        """True if all objects are under the active key."""
        clock = SimClock(self._run.loop)
        store = self._encrypt(self._run.world.bucket.store(Faults(), clock), clock)
        try:
            done = await BucketRewriter(store).rewrite(lambda counts: None)
        except (Unavailable, Corrupt, Refused) as error:
            self._run.world.events.add(f"rewrite failed: {error}")
            return False
        finally:
            await store.close()
        self._run.world.events.add(f"rewrite: {done}")
        self.counts["rewritten"] += done.object_count
        return done.left == 0

    def _key_id(self, key: str, data: bytes) -> str:
        header = parse_header(data, key)
        return NEW if key.startswith(f"{FOLDER}/") else header.key_id if header is not None else ""

    def _decrypt(self, key: str, data: bytes) -> bytes:
        """Returns the content of an object that is written. ENCRYPTED: its bytes are other ones."""
        try:
            header = parse_header(data, key)
            content = data if header is None else self._open(header, key, data)
        except Corrupt as error:
            self._report(key, f"is written and cannot be read: {error}")
            return data
        if header is None:
            if not self._is_plain_allowed:
                self._report(key, "is plain")
            return data
        self.counts["encrypted"] += 1
        for at in {0, len(content) // 2, len(content) - SAMPLE_BYTES}:
            sample = content[max(at, 0) :][:SAMPLE_BYTES]
            if len(sample) == SAMPLE_BYTES and sample in data:
                self._report(key, f"shows its content at {at}")
        return content

    def _open(self, header: Header, key: str, data: bytes) -> bytes:
        cipher = ObjectCipher(unwrap_data_key(header, self._keys[header.key_id], key), key, header.size)
        chunks = find_chunks(0, header.size, header.size)
        return bytes(cipher.decrypt(memoryview(data)[HEADER_BYTES:], chunks, 0, header.size))

    def _report(self, key: str, what: str) -> None:
        if key not in self._shown and len(self._shown) < SHOWN_MAX:
            self._shown.add(key)
            self._run.findings.report("ENCRYPTED", f"{key} {what}")
