"""Contract of ObjectStore, on every implementation: memory, directory, encrypted, faulty, simulated, S3 against two
servers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.contract.stores import BY_FOLDER, OTHER_SERVERS, StoreCase
from tests.s3_rules import by_folder
from tests.scenario import run_by
from tiered.object_store.probe import probe
from tiered.ports import (
    Buffer,
    ConditionFailed,
    Conflict,
    FileSlice,
    GetResult,
    NotFound,
    ObjectStore,
    Ok,
    PutResult,
    Unknown,
)  # fmt: skip
from tiered.system.clock import SystemRng
from tiered.system.local_disk import LocalDisk

RACERS = 50


async def version_of(store: ObjectStore, key: str) -> str:
    got = await store.get(key)
    assert isinstance(got, GetResult)
    return got.version


async def body_of(store: ObjectStore, key: str) -> bytes:
    got = await store.get(key)
    assert isinstance(got, GetResult)
    return got.data


@run_by(StoreCase.run, "case")
async def test_get_returns_the_object_with_size_and_version(store: ObjectStore) -> None:
    result = await store.put("a/b", b"hello")
    assert isinstance(result, Ok)
    assert await store.get("a/b") == GetResult(b"hello", 5, result.version)


@run_by(StoreCase.run, "case")
async def test_any_buffer_may_be_put(store: ObjectStore) -> None:
    await store.put("bytearray", bytearray(b"abc"))
    await store.put("memoryview", memoryview(b"xabcx")[1:4])
    await store.put("empty", b"")
    found = [await body_of(store, key) for key in ("bytearray", "memoryview", "empty")]
    assert found == [b"abc", b"abc", b""]


@run_by(StoreCase.run, "case")
async def test_range_is_shorter_only_at_the_end(store: ObjectStore) -> None:
    await store.put("k", b"0123456789")
    ranges: list[tuple[int, int | None]] = [
        (0, None),
        (3, 4),
        (8, 10),
        (4, None),
        (9, 1),
        (10, 5),
        (50, None),
        (2, 0),
    ]
    wanted = [b"0123456789", b"3456", b"89", b"456789", b"9", b"", b"", b""]
    version = await version_of(store, "k")
    for (start, length), data in zip(ranges, wanted, strict=True):
        assert await store.get("k", start, length) == GetResult(data, 10, version)


@run_by(StoreCase.run, "case")
async def test_missing_object_is_not_found(store: ObjectStore) -> None:
    await store.put("folder/key", b"x")
    answers = [await store.get("none"), await store.get("none", 3, 5), await store.get("none", 0, 0)]
    assert [*answers, await store.get("folder")] == [NotFound()] * 4


@run_by(StoreCase.run, "case")
async def test_create_fails_if_the_object_exists(store: ObjectStore) -> None:
    assert isinstance(await store.put("k", b"first", if_absent=True), Ok)
    assert await store.put("k", b"second", if_absent=True) == ConditionFailed()
    assert await body_of(store, "k") == b"first"
    await store.delete(["k"])
    assert isinstance(await store.put("k", b"third", if_absent=True), Ok)


@run_by(StoreCase.run, "case")
async def test_swap_needs_the_present_version(store: ObjectStore) -> None:
    first = await store.put("k", b"first")
    assert isinstance(first, Ok)
    second = await store.put("k", b"second", if_match=first.version)
    assert isinstance(second, Ok) and second.version != first.version
    assert await store.put("k", b"third", if_match=first.version) == ConditionFailed()
    assert await store.get("k") == GetResult(b"second", 6, second.version)


@run_by(StoreCase.run, "case")
async def test_swap_of_a_missing_object_fails(store: ObjectStore) -> None:
    first = await store.put("k", b"first")
    assert isinstance(first, Ok)
    await store.delete(["k"])
    assert await store.put("k", b"second", if_match=first.version) == ConditionFailed()
    assert await store.get("k") == NotFound()


@run_by(StoreCase.run, "case")
async def test_put_without_condition_overwrites_and_ends_the_old_version(store: ObjectStore) -> None:
    first = await store.put("k", b"first")
    assert isinstance(first, Ok)
    await store.put("k", b"second")
    assert await store.put("k", b"third", if_match=first.version) == ConditionFailed()


def test_same_bytes_get_another_version_in_our_stores(case: StoreCase) -> None:
    """S3's ETag is the MD5 of the body: there a nonce inside the object has to do this."""

    async def body(store: ObjectStore) -> set[str]:
        versions = set()
        for _ in range(30):
            result = await store.put("k", b"same")
            assert isinstance(result, Ok)
            versions.add(result.version)
        return versions

    assert len(case.run(body)) == (1 if case.kind.startswith("s3") else 30)


def test_upload_joins_buffers_and_file_slices(case: StoreCase, tmp_path: Path) -> None:
    data = random.Random(5).randbytes(700_000)
    disk = LocalDisk(str(tmp_path / "disk"))
    file = disk.open("f", create=True)
    file.append([data])

    async def body(store: ObjectStore) -> None:
        parts: list[Buffer | FileSlice] = [
            b"head",
            FileSlice(file, 100, 600_000),
            memoryview(b"middle"),
            FileSlice(file, 0, 7),
            b"",
        ]
        result = await store.upload("k", parts)
        assert isinstance(result, Ok)
        whole = b"head" + data[100:600_100] + b"middle" + data[:7]
        assert await store.get("k") == GetResult(whole, len(whole), result.version)

    case.run(body)
    disk.close()


def test_file_may_be_removed_during_its_upload(case: StoreCase, tmp_path: Path) -> None:
    disk = LocalDisk(str(tmp_path / "disk"))
    file = disk.open("f", create=True)
    file.append([b"x" * 500_000])

    async def body(store: ObjectStore) -> None:
        uploading = asyncio.ensure_future(store.upload("k", [FileSlice(file, 0, 500_000)]))
        await asyncio.sleep(0)
        disk.remove("f")
        if case.kind not in ("memory", "faulty", "simulated"):  # these read on the loop, so the file is still open
            file.close()
        assert isinstance(await uploading, Ok)
        assert await body_of(store, "k") == b"x" * 500_000

    case.run(body)
    disk.close()


def test_list_is_in_order_below_the_prefix(case: StoreCase) -> None:
    """Some stores list a folder after the other: then `a/1` comes before `a-b/1`."""
    keys = ["a/1", "a/2", "a/b/1", "a/b-c/1", "a/b.c", "a-b/1", "ab", "b/1", "z"]

    async def body(store: ObjectStore) -> None:
        for key in reversed(keys):
            await store.put(key, key.encode())
        for prefix in ("", "a", "a/", "a/b", "a/b/", "b/1", "none", "z"):
            found = [key for key in keys if key.startswith(prefix)]
            wanted = sorted(found, key=by_folder if case.kind in BY_FOLDER else str)
            listed = [(entry.key, entry.size) for entry in await store.list(prefix)]
            assert listed == [(key, case.stored_size(len(key))) for key in wanted]

    case.run(body)


def test_list_continues_after_a_key_and_stops_at_the_limit(case: StoreCase) -> None:
    keys = [f"log/{number:020d}" for number in range(25)]

    async def body(store: ObjectStore) -> None:
        await asyncio.gather(*(store.put(key, b"x") for key in [*keys, "other/1", "log-2/1"]))
        assert [entry.key for entry in await store.list("log/", after=keys[9], limit=5)] == keys[10:15]
        assert [entry.key for entry in await store.list("log/", after=keys[19])] == keys[20:]
        assert [entry.key for entry in await store.list("log/", after="log/00000000000000000003x", limit=1)] == [
            keys[4]
        ]
        assert await store.list("log/", after=keys[-1]) == []
        assert await store.list("log/", limit=0) == []

    case.run(body)


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_list_is_empty_only_behind_the_last_key(case: StoreCase, limit: int) -> None:
    """A caller that continues behind the last key of each page, until one is empty, has seen all keys."""
    keys = [f"log/{number:020d}" for number in range(7)]

    async def body(store: ObjectStore) -> None:
        await asyncio.gather(*(store.put(key, b"x") for key in [*keys, "a", "z"]))
        found: list[str] = []
        while page := await store.list("log/", found[-1] if found else "", limit):
            assert len(page) <= limit
            found += [entry.key for entry in page]
        assert found == keys

    case.run(body)


@run_by(StoreCase.run, "case")
async def test_list_has_the_version_of_each_object(store: ObjectStore) -> None:
    for data in (b"x", b"y"):
        put = await store.put("k", data)
        got = await store.get("k")
        assert isinstance(put, Ok) and isinstance(got, GetResult)
        assert [entry.version for entry in await store.list("k")] == [put.version] == [got.version]


@run_by(StoreCase.run, "case")
async def test_list_has_the_time_of_each_write(store: ObjectStore) -> None:
    await store.put("k", b"x")
    first = (await store.list("k"))[0].modified_ms
    await store.put("k2", b"x")
    second = (await store.list("k2"))[0].modified_ms
    assert 1_600_000_000_000 < first <= second < first + 60_000


@run_by(StoreCase.run, "case")
async def test_delete_removes_objects_and_ignores_missing_ones(store: ObjectStore) -> None:
    for key in ("d/1", "d/2", "d/3"):
        await store.put(key, b"x")
    await store.delete(["d/1", "d/3", "d/none", "none/none"])
    await store.delete([])
    assert [entry.key for entry in await store.list("")] == ["d/2"]
    await store.delete(["d/2"])
    assert await store.list("") == []
    assert isinstance(await store.put("d/1", b"again", if_absent=True), Ok)


async def race(store: ObjectStore, key: str, number: int, put: Callable[[bytes], Awaitable[PutResult]]) -> None:
    """Checks that exactly one of the racers wins, and that its body stays. All bodies differ: S3 could not tell equal
    ones apart. A server of another maker may leave losers without a verdict while fifty ask at once."""
    bodies = [b"round %d racer %d" % (number, racer) for racer in range(RACERS)]
    results = await asyncio.gather(*(put(body) for body in bodies))
    winners = [body for body, result in zip(bodies, results, strict=True) if isinstance(result, Ok)]
    losers = [result for result in results if result == ConditionFailed()]
    undecided = [result for result in results if isinstance(result, Conflict | Unknown)] if OTHER_SERVERS else []
    assert (len(winners), len(losers) + len(undecided)) == (1, RACERS - 1), results
    assert await body_of(store, key) == winners[0]


@run_by(StoreCase.run, "case")
async def test_one_of_fifty_racers_creates(store: ObjectStore, *, case: StoreCase) -> None:
    for number in range(case.rounds):
        key = f"race/{number}"
        await race(store, key, number, lambda data: store.put(key, data, if_absent=True))  # noqa: B023


@run_by(StoreCase.run, "case")
async def test_one_of_fifty_racers_swaps(store: ObjectStore, *, case: StoreCase) -> None:
    await store.put("race", b"start")
    for number in range(case.rounds):
        version = await version_of(store, "race")
        await race(store, "race", number, lambda data: store.put("race", data, if_match=version))  # noqa: B023


def test_counter_swapped_by_many_writers_loses_no_step(case: StoreCase) -> None:
    async def step(store: ObjectStore, nonce: int) -> None:
        while True:
            got = await store.get("counter")
            assert isinstance(got, GetResult)
            count = int(got.data.split()[0])
            if isinstance(await store.put("counter", b"%d %d" % (count + 1, nonce), if_match=got.version), Ok):
                return

    async def body(store: ObjectStore) -> None:
        await store.put("counter", b"0 start")
        await asyncio.gather(*(step(store, number) for number in range(12)))
        assert (await body_of(store, "counter")).split()[0] == b"12"

    case.run(body)


@run_by(StoreCase.run, "case")
async def test_probe_accepts_the_store_and_leaves_no_object(store: ObjectStore) -> None:
    await probe(store, SystemRng())
    assert await store.list("") == []
