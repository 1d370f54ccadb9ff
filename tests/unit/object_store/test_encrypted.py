"""Tests of the encrypted store: requests, mixed buckets, rotated and missing keys, and damage on the way."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.encryption import key_line, write_key_file
from tests.scenario import run_by
from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.object_store.encrypted import TRIES, EncryptedStore
from tiered.object_store.encrypted_object import CHUNK_BYTES, HEADER_BYTES, SEALED_BYTES
from tiered.object_store.encrypting_file import RUN_CHUNKS, EncryptingFile
from tiered.object_store.faulty import FaultKind, FaultRule, Faults, FaultyStore
from tiered.object_store.key_file import KeyFile
from tiered.object_store.memory import MemoryStore
from tiered.object_store.upload_body import UploadBody
from tiered.ports import GetResult, NotFound, Ok
from tiered.system.clock import SystemClock

SIZE = 5 * CHUNK_BYTES + 100
CONTENT = random.Random(2).randbytes(SIZE)


class Rig:
    """An encrypted store in memory, whose bytes and requests a test sees. `path` is its key file."""

    def __init__(self, folder: Path) -> None:
        self.clock = SystemClock()
        self.path = write_key_file(folder / "keys")
        self.inner = MemoryStore(self.clock)
        self.faults = Faults(reply_seconds=0)
        self.wire = FaultyStore(self.inner, self.faults, self.clock)
        self.store = self.reopen()

    def reopen(self) -> EncryptedStore:
        """Returns the store of another process."""
        return EncryptedStore(self.wire, KeyFile(str(self.path), self.clock))

    async def stored(self, key: str) -> bytes:
        got = await self.inner.get(key)
        assert isinstance(got, GetResult)
        return got.data


def run(folder: Path, scenario: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        rig = Rig(folder)
        try:
            await scenario(rig)
        finally:
            await rig.store.close()

    asyncio.run(main())


async def content_of(store: EncryptedStore, key: str, start: int = 0, length: int | None = None) -> bytes:
    got = await store.get(key, start, length)
    assert isinstance(got, GetResult)
    return got.data


@run_by(run, "tmp_path")
async def test_range_costs_one_request_once_the_header_is_known(rig: Rig) -> None:
    await rig.store.upload("k", [CONTENT[:1000], CONTENT[1000:]])
    assert CONTENT[:32] not in await rig.stored("k")
    counts = []
    for start, length in ((CHUNK_BYTES + 5, 10), (3 * CHUNK_BYTES - 1, 2), (SIZE - 1, 100), (SIZE, 5), (0, 10)):
        before = rig.wire.calls["get"]
        assert await content_of(rig.store, "k", start, length) == CONTENT[start : start + length]
        counts.append(rig.wire.calls["get"] - before)
    assert counts == [2, 1, 1, 1, 1]
    fresh, before = rig.reopen(), rig.wire.calls["get"]
    assert await content_of(fresh, "k", 0, 70_000) == CONTENT[:70_000]
    assert await content_of(fresh, "k", 70_000, 70_000) == CONTENT[70_000:140_000]
    assert rig.wire.calls["get"] - before == 2


@run_by(run, "tmp_path")
async def test_range_asks_for_whole_chunks_and_no_more(rig: Rig) -> None:
    ranges: list[tuple[int, int | None]] = []

    class Watched(MemoryStore):
        async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
            ranges.append((start, length))
            return await super().get(key, start, length)

    store = EncryptedStore(Watched(rig.clock), KeyFile(str(rig.path), rig.clock))
    await store.put("k", CONTENT)
    await store.get("k", CHUNK_BYTES, 2 * CHUNK_BYTES)
    await store.get("k", SIZE - 10)
    assert ranges == [
        (0, HEADER_BYTES),
        (HEADER_BYTES + SEALED_BYTES, 2 * SEALED_BYTES),
        (HEADER_BYTES + 5 * SEALED_BYTES, 100 + 16),
    ]


@run_by(run, "tmp_path")
async def test_plain_objects_of_an_older_bucket_are_read_and_replaced(rig: Rig) -> None:
    old = await rig.inner.put("old", CONTENT)
    assert isinstance(old, Ok)
    assert await content_of(rig.store, "old") == CONTENT
    assert await content_of(rig.store, "old", 7, 100) == CONTENT[7:107]
    assert await content_of(rig.store, "old", 0, 100) == CONTENT[:100]
    assert isinstance(await rig.store.put("old", b"new content", if_match=old.version), Ok)
    assert await content_of(rig.store, "old", 4, 3) == b"con"
    assert b"content" not in await rig.stored("old")


@run_by(run, "tmp_path")
async def test_plain_object_is_an_error_if_the_ring_refuses_it(rig: Rig) -> None:
    """Somebody who can write to the bucket and has no key cannot put records there."""
    await rig.store.put("sealed", b"content")
    await rig.inner.put("plain", b"content")
    assert await content_of(rig.store, "plain", 1) == b"ontent"
    rig.path.write_text(rig.path.read_text() + "refuse-plain\n")
    rig.store._key_file = KeyFile(str(rig.path), rig.clock)
    with pytest.raises(Corrupt, match="object is plain"):
        await rig.store.get("plain", 1)
    store = rig.reopen()
    assert await content_of(store, "sealed") == b"content"
    for start in (0, 1):
        with pytest.raises(Corrupt, match=f"object is plain, and {rig.path} has the line refuse-plain") as caught:
            await store.get("plain", start)
        assert caught.value.where == "plain"


@run_by(run, "tmp_path")
async def test_ring_without_an_active_key_reads_and_encrypts_nothing(rig: Rig) -> None:
    await rig.store.put("sealed", b"content")
    write_key_file(rig.path, "one", active="")
    store = rig.reopen()
    assert await content_of(store, "sealed") == b"content"
    await store.put("plain", b"content")
    await store.upload("uploaded", [b"con", b"tent"])
    assert [await rig.stored(key) for key in ("plain", "uploaded")] == [b"content"] * 2


@run_by(run, "tmp_path")
async def test_new_objects_take_the_new_key_and_old_ones_stay_readable(rig: Rig) -> None:
    await rig.store.put("first", b"content")
    write_key_file(rig.path, "one", "two", active="two")
    store = rig.reopen()
    await store.put("second", b"content")
    assert [await content_of(store, key) for key in ("first", "second")] == [b"content"] * 2
    assert [b"one" in (await rig.stored("first"))[:64], b"two" in (await rig.stored("second"))[:64]] == [True] * 2
    with pytest.raises(Unavailable, match=rf"second is encrypted by key two, which {rig.path} does not have") as no:
        await rig.store.get("second", 1, 2)
    assert no.value.refused


@run_by(run, "tmp_path")
async def test_another_key_of_the_same_id_opens_nothing(rig: Rig) -> None:
    await rig.store.put("k", b"content")
    rig.path.write_text(key_line("two", active=True).replace(" two ", " one "))
    with pytest.raises(Corrupt, match="key one does not open the object: it has another key of that id"):
        await rig.reopen().get("k")


@run_by(run, "tmp_path")
async def test_encrypted_object_without_keys_is_refused_in_words(rig: Rig) -> None:
    await rig.store.put("k", b"content")
    await rig.inner.put("plain", b"content")
    keyless = EncryptedStore(rig.inner, None)
    assert await content_of(keyless, "plain") == b"content"
    words = r"k is encrypted by key one, and no keys are given: set tiered\.encryption\.keys\.file, or add \?keys="
    with pytest.raises(Unavailable, match=words) as caught:
        await keyless.get("k")
    assert caught.value.refused
    await keyless.close()


@pytest.mark.parametrize("kind", [FaultKind.FLIPPED, FaultKind.TRUNCATED])
@pytest.mark.parametrize("start", [0, CHUNK_BYTES + 1])
@run_by(run, "tmp_path")
async def test_damage_is_read_again_and_then_raised(rig: Rig, *, kind: FaultKind, start: int) -> None:
    await rig.store.put("k", CONTENT)
    await rig.store.get("k", 1, 1)
    rig.faults.rules = [FaultRule(kind, ("get",), times=1)]
    assert await content_of(rig.store, "k", start, 1000) == CONTENT[start : start + 1000]
    rig.faults.rules = [FaultRule(kind, ("get",))]
    before = rig.wire.calls["get"]
    words = "is damaged" if kind is FaultKind.FLIPPED else "encrypted object ends early"
    with pytest.raises(Corrupt, match=words) as caught:
        await rig.store.get("k", start, 1000)
    assert caught.value.where == "k" and TRIES <= rig.wire.calls["get"] - before <= 2 * TRIES


@run_by(run, "tmp_path")
async def test_object_of_another_size_in_the_bucket_is_noticed_by_any_range(rig: Rig) -> None:
    await rig.store.put("k", CONTENT)
    whole = await rig.stored("k")
    for changed in (whole[:-1], whole + b"x"):
        await rig.inner.put("k", changed)
        for start in (0, 1):
            with pytest.raises(Corrupt, match=rf"encrypted object has {len(changed)} of {len(whole)} bytes"):
                await rig.store.get("k", start, 1)


@run_by(run, "tmp_path")
async def test_two_objects_that_are_swapped_are_noticed(rig: Rig) -> None:
    await rig.store.put("a", b"content a")
    await rig.store.put("b", b"content b")
    a, b = await rig.stored("a"), await rig.stored("b")
    await rig.inner.put("a", b)
    await rig.inner.put("b", a)
    for key in ("a", "b"):
        with pytest.raises(Corrupt, match="was moved or changed") as caught:
            await rig.store.get(key)
        assert caught.value.where == key


@run_by(run, "tmp_path")
async def test_object_that_another_process_replaced_is_read_anew(rig: Rig) -> None:
    other = rig.reopen()
    await rig.store.put("k", b"the first content")
    assert await content_of(rig.store, "k", 4, 5) == b"first"
    await other.put("k", b"the other content")
    assert await content_of(rig.store, "k", 4, 5) == b"other"
    await rig.inner.put("k", b"the plain content")
    assert await content_of(rig.store, "k", 4, 5) == b"plain"
    await other.put("k", b"the newer content")
    assert await content_of(rig.store, "k", 4, 5) == b"newer"
    await other.delete(["k"])
    assert await rig.store.get("k", 4, 5) == NotFound()


def test_upload_encrypts_each_chunk_once_a_pass() -> None:
    from tiered.object_store import encrypted_object

    chunks: list[int] = []

    class Counting(encrypted_object.ObjectCipher):
        def encrypt_into(self, number: int, content: object, room: memoryview) -> None:
            chunks.append(number)
            super().encrypt_into(number, content, room)  # type: ignore[arg-type]

    size = (2 * RUN_CHUNKS + 1) * CHUNK_BYTES + 3
    content = random.Random(3).randbytes(size)
    file = EncryptingFile("k", UploadBody([content[:7], content[7:]]), Counting(bytes(32), "k", size))
    passes = [b"", b""]
    for number in range(2):
        while piece := file.pread(len(passes[number]), 16 << 10) if len(passes[number]) < file.length else b"":
            passes[number] += piece
    assert passes[0] == passes[1] == encrypted_object.ObjectCipher(bytes(32), "k", size).encrypt(content)
    assert sorted(chunks) == sorted(list(range(2 * RUN_CHUNKS + 2)) * 2)


def test_running_store_takes_a_new_key_and_a_new_active_one(tmp_path: Path) -> None:
    """One process activates a key before another has it."""
    loop = SimLoop(1)
    files = [write_key_file(tmp_path / name) for name in ("first", "second")]

    async def main() -> None:
        clock = SimClock(loop)
        inner = MemoryStore(clock)
        first, second = (EncryptedStore(inner, KeyFile(str(file), clock)) for file in files)
        assert first.active_key_id == "one"
        write_key_file(files[0], "one", "two", active="two")
        await asyncio.sleep(6)
        await first.put("k", b"content")
        assert (first.active_key_id, await first.find_key_id("k")) == ("two", "two")
        with pytest.raises(Unavailable, match="k is encrypted by key two, which"):
            await second.get("k")
        write_key_file(files[1], "one", "two")
        await asyncio.sleep(1)
        assert await content_of(second, "k") == b"content"

    loop.run(main())


def test_missing_package_is_told_before_the_first_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_key_file(tmp_path / "keys"))
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    EncryptedStore(MemoryStore(SystemClock()), None)
    with pytest.raises(Refused, match=r"needs the package cryptography: pip install 'tiered\[encryption\]'"):
        EncryptedStore(MemoryStore(SystemClock()), KeyFile(path, SystemClock()))


def test_small_objects_are_encrypted_without_a_thread(tmp_path: Path) -> None:
    """The loop of the simulator has no threads: a call of one would fail."""
    loop = SimLoop(1)
    path = write_key_file(tmp_path / "keys")

    async def main() -> None:
        clock = SimClock(loop)
        store = EncryptedStore(MemoryStore(clock), KeyFile(str(path), clock))
        await store.put("k", CONTENT[:100_000])
        assert await content_of(store, "k") == CONTENT[:100_000]

    loop.run(main())
