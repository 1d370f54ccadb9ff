"""Tests of a bucket that goes back to an older state (a replica that lags, a backup): brokers notice, and say so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.scenario import run_by
from tests.sim.harness.loop import SimLoop
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, fill, numbers, read_values, run
from tiered.durability import metadata_position
from tiered.durability.data_directory import ROOT
from tiered.errors import Refused
from tiered.hot import checkpoints

LOCAL = {"remote_storage_enable": "false", "retention_ms": "-1"}
NOTE = f"{ROOT}/{metadata_position.FILE}"

Copy = tuple[dict[str, object], list[str]]


def copy_bucket(rig: SimBrokerRig) -> Copy:
    return dict(rig.bucket.memory._objects), list(rig.bucket.memory._keys)


def put_back(rig: SimBrokerRig, copy: Copy) -> None:
    """Puts the bucket back to an older state."""
    rig.bucket.memory._objects.clear()
    rig.bucket.memory._objects.update(copy[0])  # type: ignore[arg-type]
    rig.bucket.memory._keys[:] = copy[1]


async def refuse_start(rig: SimBrokerRig) -> None:
    with pytest.raises(Refused, match=f"the bucket went back to an older state.* remove {NOTE}"):
        await rig.start()
    await rig.stop()


@pytest.mark.parametrize("stopped", [True, False])
@run_by(run)
async def test_start_with_an_older_bucket_is_refused_and_keeps_the_logs(rig: SimBrokerRig, *, stopped: bool) -> None:
    await rig.start()
    await rig.create("old", 1, **LOCAL)
    older = copy_bucket(rig)
    replica = await rig.create("new", 1, **LOCAL)
    await fill(replica, 20)
    await asyncio.sleep(0 if stopped else 6)
    await (rig.stop() if stopped else rig.crash(rig.machine.kill))
    newer = copy_bucket(rig)
    put_back(rig, older)
    for _ in range(2):
        await refuse_start(rig)
    put_back(rig, newer)
    await rig.start()
    assert await read_values(rig.broker.leader_replica("new", 0), 0) == numbers(0, 20)


@run_by(run)
async def test_start_with_an_older_bucket_gives_no_producer_id_again(rig: SimBrokerRig) -> None:
    await rig.start()
    older = copy_bucket(rig)
    await rig.broker.producer_ids.next_id()
    await asyncio.sleep(6)
    await rig.crash(rig.machine.kill)
    put_back(rig, older)
    await refuse_start(rig)


@run_by(run)
async def test_start_with_an_older_bucket_gives_no_leader_epoch_again(rig: SimBrokerRig) -> None:
    await rig.start()
    await rig.create("t", 1, **LOCAL)
    older = copy_bucket(rig)
    for _ in range(3):
        await rig.crash(rig.machine.kill)
        await rig.start()
    await rig.crash(rig.machine.kill)
    put_back(rig, older)
    await refuse_start(rig)


@run_by(run)
async def test_start_goes_on_with_an_older_bucket_once_the_note_is_removed(rig: SimBrokerRig) -> None:
    await rig.start()
    await rig.create("old", 1, **LOCAL)
    older = copy_bucket(rig)
    await rig.create("new", 1, **LOCAL)
    await rig.stop()
    put_back(rig, older)
    await refuse_start(rig)
    rig.machine.disk.remove(NOTE)
    await rig.start()
    assert sorted(rig.broker.image.topics) == ["old"]
    await rig.stop()
    await rig.start()


@run_by(run)
async def test_uploads_of_a_manifest_that_went_back_pause_with_a_problem(rig: SimBrokerRig) -> None:
    await rig.start(QUICK)
    replica = await rig.create("t", 1, internal_segment_bytes="4096", retention_ms="-1", local_retention_bytes="32768")
    await fill(replica, 20)
    await rig.wait_until(lambda: replica.cold_end_offset >= 12)
    older = copy_bucket(rig)
    await fill(replica, 40, 20)
    await rig.wait_until(lambda: replica.cold_end_offset >= 50)
    newer = copy_bucket(rig)
    put_back(rig, older)
    put, uploads = rig.bucket.memory.put, 0

    async def count(key: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal uploads
        uploads += key.startswith("data/")
        assert uploads < 200, "uploads without a pause"
        return await put(key, *args, **kwargs)

    rig.bucket.memory.put = count  # type: ignore[method-assign]
    await fill(replica, 12, 60)
    await asyncio.sleep(60)
    assert uploads < 100
    assert any("the manifest has sequence" in each for each in rig.broker.health().problems)
    put_back(rig, newer)
    await rig.wait_until(lambda: replica.cold_end_offset >= 68)
    assert not any("the manifest has sequence" in each for each in rig.broker.health().problems)
    assert await read_values(replica, 0) == numbers(0, 72)


@run_by(run)
async def test_running_controller_ends_once_its_metadata_log_went_back(rig: SimBrokerRig) -> None:
    """A slot that it wrote behind a hole would be unknown to every start."""
    await rig.start()
    older = copy_bucket(rig)
    await rig.create("lost", 1, **LOCAL)
    newer = copy_bucket(rig)
    put_back(rig, older)
    await asyncio.wait_for(rig.broker.ended.wait(), 300)
    assert any("the bucket went back to an older state" in each for each in rig.broker.health().problems)
    await rig.stop()
    await refuse_start(rig)
    put_back(rig, newer)
    await refuse_start(rig)  # the controller wrote on before it noticed: that is lost now
    rig.machine.disk.remove(NOTE)
    await rig.start()
    assert "lost" in rig.broker.image.topics


@run_by(run)
async def test_nothing_is_appended_behind_a_later_leader_epoch(rig: SimBrokerRig) -> None:
    """Such records would be taken for rot by the next start, and cut."""
    await rig.start()
    replica = await rig.create("t", 1, **LOCAL)
    await fill(replica, 3)
    older = copy_bucket(rig)
    for _ in range(3):
        await rig.crash(rig.machine.kill)
        await rig.start()
    replica = rig.broker.leader_replica("t", 0)
    later = replica.leader_epoch
    await fill(replica, 3, 3)
    await rig.crash(rig.machine.kill)
    put_back(rig, older)
    rig.machine.disk.remove(NOTE)
    await rig.start()
    (why,) = rig.broker.hosted_replicas.list_unserved().values()
    assert f"the log has leader epoch {later}" in why
    with pytest.raises(Refused, match="went back to an older state"):
        rig.broker.leader_replica("t", 0)
    while rig.broker.hosted_replicas.unopened_leaders:  # each start begins a new leader epoch
        await rig.crash(rig.machine.kill)
        await rig.start()
    replica = rig.broker.leader_replica("t", 0)
    assert replica.leader_epoch >= later
    await fill(replica, 3, 6)
    for _ in range(2):
        await rig.crash(rig.machine.kill)
        await rig.start()
        assert await read_values(rig.broker.leader_replica("t", 0), 0) == numbers(0, 9)


def test_damaged_leader_epochs_on_disk_are_repaired_before_the_log_is_led() -> None:
    async def scenario(rig: SimBrokerRig) -> None:
        await rig.start()
        await fill(await rig.create("t", 1, internal_segment_bytes="4096", **LOCAL), 20)
        await rig.stop()
        disk, directory = rig.machine.disk, f"{ROOT}/t-0"
        lineage = checkpoints.parse_lineage(checkpoints.load(disk, directory, checkpoints.EPOCHS_FILE) or b"")
        damaged = checkpoints.encode_lineage((*lineage[:-1], (lineage[-1][0] + 900, lineage[-1][1])))
        await checkpoints.save(disk, directory, checkpoints.EPOCHS_FILE, damaged)
        await rig.start()
        replica = rig.broker.leader_replica("t", 0)
        assert replica.log.epochs.lineage == lineage
        await fill(replica, 3, 20)
        assert await read_values(replica, 0) == numbers(0, 23)

    loop = SimLoop(1, seconds_max=1000)

    async def main() -> None:  # `run` judges disks: it would find the damage
        await scenario(SimBrokerRig(loop))

    loop.run(main())
