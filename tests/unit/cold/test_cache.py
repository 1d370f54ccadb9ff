"""Tests of the chunk cache: many readers share one get, memory is bounded, and a failed get is not cached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.scenario import run_by
from tests.sim.harness.loop import SimLoop
from tiered.cold.cache import ChunkCache
from tiered.cold.chunks import Chunk
from tiered.errors import Unavailable
from tiered.metrics import Metrics

A, B, C = (Chunk(name, 0, 10) for name in "abc")


class Source:
    """An object store that replies after a second and records the requested chunks."""

    def __init__(self) -> None:
        self.requested: list[str] = []
        self.broken = False

    async def get(self, chunk: Chunk) -> bytes:
        self.requested.append(chunk.key)
        await asyncio.sleep(1)
        if self.broken:
            raise Unavailable("broken")
        return chunk.key.encode() * chunk.length


def run_scenario(scenario: Callable[[ChunkCache, Source], object], bytes_max: int = 20) -> None:
    async def main() -> None:
        await scenario(ChunkCache(Metrics(), bytes_max), Source())  # type: ignore[misc]

    SimLoop(1).run(main())


async def use(cache: ChunkCache, source: Source, chunk: Chunk) -> bytes:
    with cache.lease(chunk, source.get) as lease:
        return await lease.data()


@run_by(run_scenario)
async def test_hundred_readers_share_one_get(cache: ChunkCache, source: Source) -> None:
    found = await asyncio.gather(*(use(cache, source, A) for _ in range(100)))
    assert set(found) == {b"a" * 10}
    assert await use(cache, source, A) == b"a" * 10
    assert source.requested == ["a"]


@run_by(run_scenario)
async def test_least_recently_used_chunk_is_evicted_first(cache: ChunkCache, source: Source) -> None:
    for chunk in (A, B, A, C, A, B):
        await use(cache, source, chunk)
        assert cache.bytes_held <= 20
    assert source.requested == ["a", "b", "c", "b"]


@run_by(run_scenario)
async def test_leased_chunks_stay_above_the_bound_and_stop_read_ahead(cache: ChunkCache, source: Source) -> None:
    leases = [cache.lease(chunk, source.get) for chunk in (A, B, C)]
    assert not cache.has_room(1)
    for lease in leases:
        await lease.data()
    assert cache.bytes_held == 30
    leases[0].release()
    leases[0].release()
    assert cache.bytes_held == 20 and not cache.has_room(1)
    leases[1].release()
    assert cache.bytes_held == 20 and cache.has_room(10)


@run_by(run_scenario)
async def test_get_without_readers_is_cancelled(cache: ChunkCache, source: Source) -> None:
    first, second = cache.lease(A, source.get), cache.lease(A, source.get)
    await asyncio.sleep(0.5)
    first.release()
    assert await second.data() == b"a" * 10
    third = cache.lease(B, source.get)
    await asyncio.sleep(0.5)
    third.release()
    assert cache.bytes_held == 10
    assert await use(cache, source, B) == b"b" * 10
    assert source.requested == ["a", "b", "b"]


@run_by(run_scenario)
async def test_cancelled_reader_leaves_the_get_to_the_others(cache: ChunkCache, source: Source) -> None:
    first = asyncio.ensure_future(use(cache, source, A))
    second = asyncio.ensure_future(use(cache, source, A))
    await asyncio.sleep(0.5)
    first.cancel()
    assert await second == b"a" * 10
    assert source.requested == ["a"]


@run_by(run_scenario)
async def test_failed_get_fails_all_its_readers_and_is_not_cached(cache: ChunkCache, source: Source) -> None:
    source.broken = True
    found = await asyncio.gather(*(use(cache, source, A) for _ in range(3)), return_exceptions=True)
    assert [type(fault) for fault in found] == [Unavailable] * 3
    assert cache.bytes_held == 0
    source.broken = False
    assert await use(cache, source, A) == b"a" * 10


@run_by(run_scenario)
async def test_failed_read_ahead_is_retried_by_the_next_lease(cache: ChunkCache, source: Source) -> None:
    source.broken = True
    ahead = cache.lease(A, source.get)
    await asyncio.sleep(2)
    assert ahead.is_ready
    source.broken = False
    assert await use(cache, source, A) == b"a" * 10
    ahead.release()
    with pytest.raises(AssertionError):
        await ahead.data()


@run_by(run_scenario)
async def test_invalidated_chunk_is_fetched_again_and_leases_keep_old_bytes(cache: ChunkCache, source: Source) -> None:
    lease = cache.lease(A, source.get)
    await lease.data()
    cache.invalidate(A)
    assert await use(cache, source, A) == b"a" * 10
    assert await lease.data() == b"a" * 10
    lease.release()
    assert source.requested == ["a", "a"] and cache.bytes_held == 10
