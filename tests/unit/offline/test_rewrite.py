"""Tests of encryption anew: every object gets the active key, and no change of a broker is undone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.encryption import write_key_file
from tests.scenario import run_by
from tests.unit.cold.rig import PID, entry
from tiered.cold.layout import manifest_key
from tiered.cold.manifest import Manifest
from tiered.cold.manifest_store import ManifestStore
from tiered.errors import Refused
from tiered.metrics import Metrics
from tiered.object_store.encrypted import EncryptedStore
from tiered.object_store.key_file import KeyFile
from tiered.object_store.memory import MemoryStore
from tiered.offline import rewrite
from tiered.offline.rewrite import BucketRewriter, RewriteCounts
from tiered.ports import Buffer, FileSlice, GetResult, NotFound, PutResult, Unknown
from tiered.system.clock import SystemClock, SystemRng

SEGMENTS = [entry(base, base + 10) for base in (0, 10, 20)]
BODY = b"records " * 10_000


class Rig:
    """A bucket with three segments under the key `one`, which is active no more."""

    def __init__(self, folder: Path, inner: MemoryStore) -> None:
        self.clock, self.inner, self.path = SystemClock(), inner, folder / "keys"
        self.manifests = ManifestStore(self.open("one"), self.clock, SystemRng(), Metrics())

    def open(self, active: str) -> EncryptedStore:
        """Returns a store with both keys."""
        write_key_file(self.path, "one", "two", active=active)
        return EncryptedStore(self.inner, KeyFile(str(self.path), self.clock))

    async def fill(self) -> None:
        store = self.open("one")
        await self.manifests.take_over(PID, "t", 1)
        for each in SEGMENTS:
            await store.put(each.key, BODY)
            await self.manifests.change(PID, "t", 1, lambda manifest, _, each=each: manifest.add(each))  # type: ignore[misc]
        await store.put("groups/x", b"a snapshot")
        await self.inner.put("meta/FORMAT", b"plain")

    async def key_ids(self) -> dict[str, int]:
        """Returns the number of objects by key."""
        counts: dict[str, int] = {}
        for each in await self.inner.list(""):
            key_id = await self.open("two").find_key_id(each.key)
            counts[str(key_id)] = counts.get(str(key_id), 0) + 1
        return counts

    async def rewrite(self) -> RewriteCounts:
        return await BucketRewriter(self.open("two")).rewrite(lambda _: None)


def run(folder: Path, scenario: Callable[[Rig], Awaitable[None]], inner: MemoryStore | None = None) -> None:
    async def main() -> None:
        rig = Rig(folder, inner or MemoryStore(SystemClock()))
        await rig.fill()
        await scenario(rig)

    asyncio.run(main())


@pytest.mark.parametrize("whole_bytes", [1 << 20, 1_000])
def test_every_object_gets_the_active_key_and_keeps_its_content(
    whole_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "WHOLE_BYTES", whole_bytes)
    monkeypatch.setattr(rewrite, "PIECE_BYTES", 70_000)

    async def scenario(rig: Rig) -> None:
        assert await rig.key_ids() == {"one": 5, "": 1}
        done = await rig.rewrite()
        assert (done.object_count, done.left, await rig.key_ids()) == (6, 0, {"two": 6})
        store = rig.open("two")
        for each in SEGMENTS:
            got = await store.get(each.key)
            assert isinstance(got, GetResult) and got.data == BODY
        got = await store.get("meta/FORMAT")
        assert isinstance(got, GetResult) and got.data == b"plain"
        assert (await rig.rewrite()).object_count == 0

    run(tmp_path, scenario)


@run_by(run, "tmp_path")
async def test_leader_goes_on_with_its_manifest(rig: Rig) -> None:
    await rig.rewrite()
    more = entry(30, 40)
    changed = await rig.manifests.change(PID, "t", 1, lambda manifest, _: manifest.add(more), from_written=True)
    assert changed.cold_end_offset == 40


class Interrupted(MemoryStore):
    """A store whose next write of `key` comes after another write, `before`."""

    key = ""
    before: Callable[[], Awaitable[None]] | None = None

    async def _interrupt(self, key: str) -> None:
        if key == self.key and self.before is not None:
            before, self.before = self.before, None
            await before()

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        await self._interrupt(key)
        return await super().put(key, data, if_absent=if_absent, if_match=if_match)

    async def upload(self, key: str, parts: list[Buffer | FileSlice]) -> PutResult:  # type: ignore[override]
        await self._interrupt(key)
        return await super().upload(key, parts)


def test_manifest_that_its_leader_changes_meanwhile_is_not_undone(tmp_path: Path) -> None:
    store = Interrupted(SystemClock())

    async def scenario(rig: Rig) -> None:
        async def change() -> None:
            await rig.manifests.change(PID, "t", 1, lambda manifest, _: manifest.add(entry(30, 40)))

        store.key, store.before = manifest_key(PID), change
        assert (await rig.rewrite()).left == 0
        loaded = await rig.manifests.load(PID)
        assert loaded is not None and loaded.cold_end_offset == 40

    run(tmp_path, scenario, store)


@pytest.mark.parametrize("is_applied", [False, True])
def test_put_without_a_reply_is_read_back(is_applied: bool, tmp_path: Path) -> None:
    class Silent(MemoryStore):
        is_silent = False

        async def put(
            self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
        ) -> PutResult:
            if not self.is_silent or key != "groups/x":
                return await super().put(key, data, if_absent=if_absent, if_match=if_match)
            self.is_silent = False
            if is_applied:
                await super().put(key, data, if_absent=if_absent, if_match=if_match)
            return Unknown("no reply")

    store = Silent(SystemClock())

    async def scenario(rig: Rig) -> None:
        store.is_silent = True
        done = await rig.rewrite()
        assert (done.object_count, done.left, store.is_silent) == (6, 0, False)
        assert await rig.key_ids() == {"two": 6}

    run(tmp_path, scenario, store)


@pytest.mark.parametrize("whole_bytes", [1 << 20, 1_000])
def test_segment_that_retention_deletes_meanwhile_stays_deleted(
    whole_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "WHOLE_BYTES", whole_bytes)
    store = Interrupted(SystemClock())
    oldest = SEGMENTS[0].key

    async def scenario(rig: Rig) -> None:
        def advance(manifest: Manifest, opened: object) -> Manifest:
            return manifest.advance_start(10, {})

        async def expire() -> None:
            await rig.manifests.change(PID, "t", 1, advance)
            await store.delete([oldest])

        store.key, store.before = oldest, expire
        done = await rig.rewrite()
        assert (done.left, await store.get(oldest)) == (0, NotFound())
        assert sum((await rig.key_ids()).values()) == 5

    run(tmp_path, scenario, store)


def test_large_object_that_no_manifest_names_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its upload may be under way: a delete afterwards could take it from the manifest that names it next."""
    monkeypatch.setattr(rewrite, "WHOLE_BYTES", 1_000)

    async def scenario(rig: Rig) -> None:
        new = entry(30, 40).key
        await rig.open("one").put(new, BODY)
        done = await rig.rewrite()
        assert done.left == 1 and f"{new} is named by no manifest" in done.faults[0]
        assert await rig.key_ids() == {"two": 6, "one": 1}

    run(tmp_path, scenario)


@run_by(run, "tmp_path")
async def test_damaged_object_is_left_and_named(rig: Rig) -> None:
    stored = await rig.inner.get("groups/x")
    assert isinstance(stored, GetResult)
    await rig.inner.put("groups/x", stored.data[:-1] + b"?")
    done = await rig.rewrite()
    assert done.left == 1 and "where=groups/x" in done.faults[0]


@run_by(run, "tmp_path")
async def test_bucket_without_an_active_key_is_refused(rig: Rig) -> None:
    with pytest.raises(Refused, match="no key encrypts new objects"):
        await BucketRewriter(rig.open("")).rewrite(lambda _: None)
