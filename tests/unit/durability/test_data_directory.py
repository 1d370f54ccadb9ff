"""Tests of the broker's own files: the offsets of all logs are written whole, by one writer at a time."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import Op, SimDisk
from tests.unit.hot.fixtures import TOPIC_ID, append, batch, open_log
from tiered.durability.data_directory import META_FILE, ROOT, DataDirectory
from tiered.errors import Code, Corrupt, Refused
from tiered.hot import checkpoints
from tiered.ids import TopicPartition

AT = TopicPartition("t", 0)


@run_by(run_alone)
async def test_requests_during_a_write_of_offsets_share_the_next_write() -> None:
    disk = SimDisk(random.Random(1))
    log = await open_log(disk)
    directory = DataDirectory(disk)
    synced: list[str] = []
    disk.on_op = lambda op: synced.append(op.path) if op.verb == "sync" else None
    disk.sync_seconds = lambda: 0.001
    append(log, batch(0))
    first = asyncio.ensure_future(directory.save_offsets({AT: log}))
    await asyncio.sleep(0)
    await log.flush()
    synced.clear()
    await asyncio.gather(first, *(directory.save_offsets({AT: log}) for _ in range(50)))
    assert len(synced) <= 6, "three files for the one that runs and for the one that all others share"
    found = await directory.open("c", 1, "fresh")
    assert found.recovery_points == {AT: 1}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"version=1\ncluster.id=c\nnode.id=1\ndirectory.id=d\n", ""),
        (b"version=1\ncluster.id=c\nnode.id=1\ndirect", "directory.id"),
        (b"version=1\ncluster.id=c\nnode.", "node.id"),
        (bytes(80), "cluster.id"),
    ],
)
@run_by(run_alone)
async def test_damaged_name_plate_differs_from_one_of_another_broker(*, text: bytes, named: str) -> None:
    disk = SimDisk(random.Random(1))
    disk.make_dirs(ROOT)
    await checkpoints.save(disk, ROOT, META_FILE, text)
    directory = DataDirectory(disk)
    if named:
        with pytest.raises(Corrupt, match=f"names no {named}.* remove") as caught:
            await directory.open("c", 1, "fresh")
        assert caught.value.where == "log/meta.properties"
    else:
        assert (await directory.open("c", 1, "fresh")).directory_id == "d"
        for cluster, node in (("other", 1), ("c", 2)):
            with pytest.raises(Refused, match="belongs to"):
                await directory.open(cluster, node, "fresh")


@pytest.mark.parametrize(
    ("row", "code", "words"),
    [
        ("version=2", Code.UNSUPPORTED_VERSION, "start the program that wrote it"),
        ("cluster.id=other", Code.INCONSISTENT_CLUSTER_ID, "either store or data.dir is the wrong one"),
        ("node.id=7", Code.INVALID_CONFIG, "give that node.id, or a data.dir of its own"),
    ],
)
@run_by(run_alone)
async def test_directory_of_another_broker_is_refused_and_unchanged(*, row: str, code: Code, words: str) -> None:
    disk = SimDisk(random.Random(1))
    directory = DataDirectory(disk)
    await directory.open("c", 1, "d")
    await directory.mark_clean([], "one")
    text = checkpoints.load(disk, ROOT, META_FILE)
    assert text is not None
    name = row.partition("=")[0]
    rows = [row if line.startswith(f"{name}=") else line for line in text.decode().splitlines()]
    await checkpoints.save(disk, ROOT, META_FILE, "\n".join(rows).encode())
    with pytest.raises(Refused, match=words) as refused:
        await directory.open("c", 1, "fresh")
    assert refused.value.code is code
    await checkpoints.save(disk, ROOT, META_FILE, text)
    found = await directory.open("c", 1, "fresh")
    assert found.clean and found.directory_id == "d"


@run_by(run_alone)
async def test_logs_without_a_name_plate_are_refused(*, caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(random.Random(1))
    await DataDirectory(disk).open("c", 1, "d")
    assert not caplog.messages, "an empty directory is a new one"
    disk.remove(f"{ROOT}/{META_FILE}")
    await DataDirectory(disk).open("c", 1, "e")
    assert not caplog.messages, "nor has it anything to lose without logs"
    disk.make_dirs(f"{ROOT}/t-0")
    disk.remove(f"{ROOT}/{META_FILE}")
    found = await DataDirectory(disk).open("c", 1, "fresh")
    assert found.directory_id == "fresh"
    assert "meta.properties of the data directory is gone or empty, and logs are there" in caplog.text


@run_by(run_alone)
async def test_offset_file_is_durable_before_its_rename() -> None:
    """Otherwise a power cut could leave an empty file: every log would be checked, and deleted records would be
    back."""
    disk = SimDisk(random.Random(2))
    log = await open_log(disk)
    append(log, batch(0))
    await log.flush()
    log.advance_start(1)
    directory = DataDirectory(disk)
    await directory.open("c", 1, "fresh")
    await directory.save_offsets({AT: log})
    images: list[SimDisk] = []

    def take(op: Op) -> None:
        images.extend(disk.crash_image(random.Random(seed)) for seed in range(5))

    disk.on_op = take
    pauses = random.Random(3)
    disk.sync_seconds = lambda: pauses.random() / 1000
    await asyncio.gather(*(directory.save_offsets({AT: log}) for _ in range(8)))
    disk.on_op = None
    assert len(images) > 20
    for image in images:
        found = await DataDirectory(image).open("c", 1, "other")
        assert (found.recovery_points, found.log_starts) == ({AT: 1}, {AT: 1})


def test_log_that_is_put_aside_gets_a_unique_valid_name() -> None:
    disk = SimDisk(random.Random(1))
    directory = DataDirectory(disk)
    tp = TopicPartition("t" * 249, 99_999)
    for due in (1, 2, 3):
        disk.make_dirs(directory.log_path(tp))
        directory.rename_for_deletion(tp, f"before-{TOPIC_ID}", due)
    names = disk.list(ROOT)
    assert (len(names), {len(name) for name in names}) == (3, {255})
    assert all(name.startswith("ttt") and name.endswith("-delete") for name in names)
    assert directory.must_save_offsets(1)
    asyncio.run(directory.save_offsets({}))
    assert not directory.must_save_offsets(2)
    assert [asyncio.run(directory.delete_one_due(2)) for _ in range(3)] == [True, True, False]
    assert [name for name in disk.list(ROOT) if name.endswith("-delete")] == names[2:]


@run_by(run_alone)
async def test_directory_of_a_log_that_a_checkpoint_notes_stays_empty() -> None:
    """Only its name tells the next start that the log is deleted and not lost. The disk may have no room for more."""
    disk = SimDisk(random.Random(1))
    directory = DataDirectory(disk)
    log = await open_log(disk)
    directory.rename_for_deletion(AT, TOPIC_ID, 0)
    (name,) = disk.list(ROOT)
    assert not await directory.delete_one_due(0)
    assert disk.list(ROOT) == [name] and disk.list(f"{ROOT}/{name}") == []
    await directory.save_offsets({})
    assert await directory.delete_one_due(0) and name not in disk.list(ROOT)
    log.close()


@pytest.mark.parametrize("seed", range(10))
@run_by(run_alone)
async def test_clean_mark_does_not_return_by_a_power_cut_after_a_start(*, seed: int) -> None:
    """Records after the start are not fsynced: the next start must not treat them as those of a clean stop."""
    disk = SimDisk(random.Random(1))
    await DataDirectory(disk).open("c", 1, "d")
    await DataDirectory(disk).mark_clean([], "one")
    assert (await DataDirectory(disk.clone()).open("c", 1, "fresh")).clean
    await DataDirectory(disk).open("c", 1, "fresh")
    assert not (await DataDirectory(disk.crash_image(random.Random(seed))).open("c", 1, "fresh")).clean
