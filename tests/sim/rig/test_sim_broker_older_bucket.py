"""Tests of a bucket that goes back to an older state (a replica that lags, a backup): brokers notice, and say so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.sim.harness.loop import SimLoop
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, fill, numbers, read_values, run
from tiered.durability import metadata_position
from tiered.durability.data_directory import ROOT
from tiered.errors import Refused
from tiered.hot import checkpoints

LOCAL = {"remote_storage_enable": "false", "retention_ms": "-1"}
NOTE = f"{ROOT}/{metadata_position.FILE}"

Copy = tuple[dict[str, object], list[str]]


def copy_bucket(site: SimBrokerRig) -> Copy:
    return dict(site.bucket.memory._objects), list(site.bucket.memory._keys)


def put_back(site: SimBrokerRig, copy: Copy) -> None:
    """Puts the bucket back to an older state."""
    site.bucket.memory._objects.clear()
    site.bucket.memory._objects.update(copy[0])  # type: ignore[arg-type]
    site.bucket.memory._keys[:] = copy[1]


async def refuse_start(site: SimBrokerRig) -> None:
    with pytest.raises(Refused, match=f"the bucket went back to an older state.* remove {NOTE}"):
        await site.start()
    await site.stop()


@pytest.mark.parametrize("stopped", [True, False])
def test_start_with_an_older_bucket_is_refused_and_keeps_the_logs(stopped: bool) -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        await site.create("old", 1, **LOCAL)
        older = copy_bucket(site)
        replica = await site.create("new", 1, **LOCAL)
        await fill(replica, 20)
        await asyncio.sleep(0 if stopped else 6)
        await (site.stop() if stopped else site.crash(site.machine.kill))
        newer = copy_bucket(site)
        put_back(site, older)
        for _ in range(2):
            await refuse_start(site)
        put_back(site, newer)
        await site.start()
        assert await read_values(site.node.leader_replica("new", 0), 0) == numbers(0, 20)
        await site.stop()

    run(scenario)


def test_start_with_an_older_bucket_gives_no_producer_id_again() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        older = copy_bucket(site)
        await site.node.producer_ids.next_id()
        await asyncio.sleep(6)
        await site.crash(site.machine.kill)
        put_back(site, older)
        await refuse_start(site)

    run(scenario)


def test_start_with_an_older_bucket_gives_no_leader_epoch_again() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        await site.create("t", 1, **LOCAL)
        older = copy_bucket(site)
        for _ in range(3):
            await site.crash(site.machine.kill)
            await site.start()
        await site.crash(site.machine.kill)
        put_back(site, older)
        await refuse_start(site)

    run(scenario)


def test_start_goes_on_with_an_older_bucket_once_the_note_is_removed() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        await site.create("old", 1, **LOCAL)
        older = copy_bucket(site)
        await site.create("new", 1, **LOCAL)
        await site.stop()
        put_back(site, older)
        await refuse_start(site)
        site.machine.disk.remove(NOTE)
        await site.start()
        assert sorted(site.node.image.topics) == ["old"]
        await site.stop()
        await site.start()
        await site.stop()

    run(scenario)


def test_uploads_of_a_manifest_that_went_back_pause_with_a_problem() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(QUICK)
        replica = await site.create(
            "t", 1, internal_segment_bytes="4096", retention_ms="-1", local_retention_bytes="32768"
        )
        await fill(replica, 20)
        await site.wait_until(lambda: replica.cold_end_offset >= 12)
        older = copy_bucket(site)
        await fill(replica, 40, 20)
        await site.wait_until(lambda: replica.cold_end_offset >= 50)
        newer = copy_bucket(site)
        put_back(site, older)
        put, uploads = site.bucket.memory.put, 0

        async def count(key: str, *args: Any, **kwargs: Any) -> Any:
            nonlocal uploads
            uploads += key.startswith("data/")
            assert uploads < 200, "uploads without a pause"
            return await put(key, *args, **kwargs)

        site.bucket.memory.put = count  # type: ignore[method-assign]
        await fill(replica, 12, 60)
        await asyncio.sleep(60)
        assert uploads < 100
        assert any("the manifest has sequence" in each for each in site.node.health().problems)
        put_back(site, newer)
        await site.wait_until(lambda: replica.cold_end_offset >= 68)
        assert not any("the manifest has sequence" in each for each in site.node.health().problems)
        assert await read_values(replica, 0) == numbers(0, 72)
        await site.stop()

    run(scenario)


def test_running_controller_ends_once_its_metadata_log_went_back() -> None:
    """A slot that it wrote behind a hole would be unknown to every start."""

    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        older = copy_bucket(site)
        await site.create("lost", 1, **LOCAL)
        newer = copy_bucket(site)
        put_back(site, older)
        await asyncio.wait_for(site.node.ended.wait(), 300)
        assert any("the bucket went back to an older state" in each for each in site.node.health().problems)
        await site.stop()
        await refuse_start(site)
        put_back(site, newer)
        await refuse_start(site)  # the controller wrote on before it noticed: that is lost now
        site.machine.disk.remove(NOTE)
        await site.start()
        assert "lost" in site.node.image.topics
        await site.stop()

    run(scenario)


def test_nothing_is_appended_behind_a_later_leader_epoch() -> None:
    """Such records would be taken for rot by the next start, and cut."""

    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        replica = await site.create("t", 1, **LOCAL)
        await fill(replica, 3)
        older = copy_bucket(site)
        for _ in range(3):
            await site.crash(site.machine.kill)
            await site.start()
        replica = site.node.leader_replica("t", 0)
        later = replica.leader_epoch
        await fill(replica, 3, 3)
        await site.crash(site.machine.kill)
        put_back(site, older)
        site.machine.disk.remove(NOTE)
        await site.start()
        (why,) = site.node.hosted_replicas.list_unserved().values()
        assert f"the log has leader epoch {later}" in why
        with pytest.raises(Refused, match="went back to an older state"):
            site.node.leader_replica("t", 0)
        while site.node.hosted_replicas.unopened_leaders:  # each start begins a new leader epoch
            await site.crash(site.machine.kill)
            await site.start()
        replica = site.node.leader_replica("t", 0)
        assert replica.leader_epoch >= later
        await fill(replica, 3, 6)
        for _ in range(2):
            await site.crash(site.machine.kill)
            await site.start()
            assert await read_values(site.node.leader_replica("t", 0), 0) == numbers(0, 9)

    run(scenario)


def test_damaged_leader_epochs_on_disk_are_repaired_before_the_log_is_led() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        await fill(await site.create("t", 1, internal_segment_bytes="4096", **LOCAL), 20)
        await site.stop()
        disk, directory = site.machine.disk, f"{ROOT}/t-0"
        lineage = checkpoints.parse_lineage(checkpoints.load(disk, directory, checkpoints.EPOCHS_FILE) or b"")
        damaged = checkpoints.encode_lineage((*lineage[:-1], (lineage[-1][0] + 900, lineage[-1][1])))
        await checkpoints.save(disk, directory, checkpoints.EPOCHS_FILE, damaged)
        await site.start()
        replica = site.node.leader_replica("t", 0)
        assert replica.log.epochs.lineage == lineage
        await fill(replica, 3, 20)
        assert await read_values(replica, 0) == numbers(0, 23)

    loop = SimLoop(1, seconds_max=1000)

    async def main() -> None:  # `run` judges disks: it would find the damage
        await scenario(SimBrokerRig(loop))

    loop.run(main())
