"""Tests of the simulated disk: the possible images after a power cut, and the faults that tests can set."""

from __future__ import annotations

import random

import pytest

from tests.sim.harness.disk import DiskFault, Op, SimDisk
from tests.sim.harness.loop import SimLoop
from tiered.errors import Unavailable

SEEDS = range(300)
SYNCED = bytes(range(1, 101))
LATER = [bytes([200 + number]) * 3000 for number in range(4)]


async def write_file(disk: SimDisk) -> None:
    """Writes a file with 100 synced bytes and 12,000 unsynced ones."""
    file = disk.open("f", create=True)
    file.append([SYNCED])
    await file.sync()
    await disk.sync_dir(".")
    for data in LATER:
        file.append([data])


def draw_crash_images() -> list[bytes]:
    disk = SimDisk(random.Random(0))
    SimLoop(0).run(write_file(disk))
    found = []
    for seed in SEEDS:
        image = disk.crash_image(random.Random(seed))
        found.append(image.open("f").pread(0, 1 << 20))
    return found


def test_synced_bytes_survive_every_power_cut() -> None:
    assert all(image.startswith(SYNCED) for image in draw_crash_images())


def test_power_cut_may_leave_all_nothing_a_torn_write_zeros_or_a_hole() -> None:
    full = SYNCED + b"".join(LATER)
    tails = [image[len(SYNCED) :] for image in draw_crash_images()]
    whole = [tail for tail in tails if full[len(SYNCED) :].startswith(tail)]
    assert b"" in tails and full[len(SYNCED) :] in tails
    assert any(len(tail) % 3000 for tail in whole), "no torn write"
    assert any(tail.endswith(bytes(100)) for tail in tails), "no zeros at the end"
    assert any(bytes(100) in tail and not tail.endswith(b"\0") for tail in tails), "no hole before later bytes"
    assert all(len(tail) <= 12_000 for tail in tails)


def test_power_cut_during_a_truncation_may_leave_zeros() -> None:
    """A file system may write the zeros behind the new end before the new size."""
    disk = SimDisk(random.Random(0))
    SimLoop(0).run(write_file(disk))
    SimLoop(0).run(disk.open("f").sync())
    disk.open("f").truncate(50)
    images = [disk.crash_image(random.Random(seed)).open("f").pread(0, 1 << 20) for seed in SEEDS]
    full = SYNCED + b"".join(LATER)
    assert set(images) == {full, full[:50], full[:50] + bytes(4046) + full[4096:]}


def test_synced_file_in_an_unsynced_folder_may_lose_its_name() -> None:
    disk = SimDisk(random.Random(0))

    async def main() -> None:
        disk.make_dirs("d")
        await disk.sync_dir(".")
        file = disk.open("d/f", create=True)
        file.append([b"x"])
        await file.sync()

    SimLoop(0).run(main())
    named = [disk.crash_image(random.Random(seed)).exists("d/f") for seed in SEEDS]
    assert True in named and False in named


def test_rename_is_all_or_nothing() -> None:
    disk = SimDisk(random.Random(0))

    async def main() -> None:
        disk.make_dirs("a")
        disk.make_dirs("b")
        for name, data in (("a/new", b"new"), ("b/f", b"old")):
            file = disk.open(name, create=True)
            file.append([data])
            await file.sync()
        for folder in (".", "a", "b"):
            await disk.sync_dir(folder)
        disk.rename("a/new", "b/f")

    SimLoop(0).run(main())
    seen = set()
    for seed in SEEDS:
        image = disk.crash_image(random.Random(seed))
        seen.add((image.exists("a/new"), image.open("b/f").pread(0, 9)))
    assert seen == {(True, b"old"), (False, b"new")}
    SimLoop(0).run(disk.sync_dir("a"))
    assert not any(disk.crash_image(random.Random(seed)).exists("a/new") for seed in SEEDS)


def test_kill_loses_nothing_and_keeps_the_boot_mark() -> None:
    disk = SimDisk(random.Random(0))
    SimLoop(0).run(write_file(disk))
    after = disk.after_kill()
    assert after.open("f").size() == 12_100
    assert after.boot_mark(".") == disk.boot_mark(".")
    with pytest.raises(Unavailable, match="process is dead"):
        disk.open("f")


def test_power_cut_changes_the_boot_mark() -> None:
    disk = SimDisk(random.Random(0))
    mark = disk.boot_mark(".")
    assert disk.after_power_cut().boot_mark(".") != mark


def test_write_during_a_sync_is_not_synced_by_it() -> None:
    disk = SimDisk(random.Random(0))
    disk.sync_seconds = lambda: 1.0
    loop = SimLoop(0)

    async def main() -> None:
        file = disk.open("f", create=True)
        await disk.sync_dir(".")
        file.append([b"before"])
        syncing = loop.create_task(file.sync())
        loop.call_later(0.5, lambda: file.append([b"after"]))
        await syncing

    loop.run(main())
    found = {disk.crash_image(random.Random(seed)).open("f").pread(0, 20) for seed in SEEDS}
    assert b"before" in found and all(data.startswith(b"before") for data in found)


def test_clone_and_crash_image_are_separate_disks() -> None:
    disk = SimDisk(random.Random(0))
    SimLoop(0).run(write_file(disk))
    clone = disk.clone()
    clone.open("f").truncate(0)
    clone.open("g", create=True)
    assert (disk.open("f").size(), disk.exists("g")) == (12_100, False)


def test_every_change_has_a_number_and_an_image() -> None:
    disk = SimDisk(random.Random(0))
    seen: list[Op] = []
    sizes: list[int] = []

    def observe(op: Op) -> None:
        seen.append(op)
        sizes.append(disk.clone().open("f").size())

    disk.on_op = observe
    SimLoop(0).run(write_file(disk))
    assert [op.number for op in seen] == list(range(1, 9))
    assert [op.verb for op in seen] == ["create", "append", "sync", "sync_dir"] + ["append"] * 4
    assert sizes == [0, 100, 100, 100, 3100, 6100, 9100, 12100]


def test_full_disk_takes_appends_whole_or_not_at_all() -> None:
    disk = SimDisk(random.Random(0))
    disk.capacity = 10
    file = disk.open("f", create=True)
    file.append([b"12345678"])
    with pytest.raises(Unavailable, match="No space left") as caught:
        file.append([b"abc"])
    assert (caught.value.final, file.size(), disk.space().free) == (False, 8, 2)
    disk.capacity = None
    assert file.append([b"abc"]) == 11


def test_failed_sync_is_final() -> None:
    disk = SimDisk(random.Random(0))
    disk.faults.append(DiskFault("sync", "f"))

    async def main() -> None:
        file = disk.open("f", create=True)
        for _ in range(2):
            with pytest.raises(Unavailable) as caught:
                await file.sync()
            assert caught.value.final
        with pytest.raises(Unavailable):
            file.append([b"x"])
        assert file.pread(0, 1) == b""
        disk.remove("f")
        assert disk.list(".") == []

    SimLoop(0).run(main())


def test_faults_match_by_verb_path_and_count() -> None:
    disk = SimDisk(random.Random(0))
    disk.faults.append(DiskFault("pread", ".log", skip=1, times=1))
    log, other = disk.open("0.log", create=True), disk.open("0.index", create=True)
    assert (log.pread(0, 1), other.pread(0, 1)) == (b"", b"")
    with pytest.raises(Unavailable) as caught:
        log.pread(0, 1)
    assert not caught.value.final
    assert log.pread(0, 1) == b""


def test_flipped_bit_stays_after_a_power_cut() -> None:
    disk = SimDisk(random.Random(0))
    SimLoop(0).run(write_file(disk))
    disk.flip_bit("f", 8 * 10 + 3)
    wrong = SYNCED[10] ^ 8
    assert disk.open("f").pread(10, 1)[0] == wrong
    assert disk.after_power_cut().open("f").pread(10, 1)[0] == wrong
