"""Tests of a start with logs that another process of the machine gave to it: the broker takes its place with them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.scenario import run_by
from tests.sim.harness.disk import SimDisk
from tests.sim.harness.machine import SimMachine
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, fill, numbers, read_values, run
from tiered.controller.requests import DeleteTopic
from tiered.durability.adopted_logs import ADOPTED_FILE, AdoptedLog, encode_adopted
from tiered.durability.data_directory import META_FILE, ROOT
from tiered.errors import Corrupt
from tiered.hot import checkpoints
from tiered.ids import TopicPartition

SECOND = replace(QUICK, node_id=1001, process=1, processes=2)


async def copy_file(source: SimDisk, target: SimDisk, path: str) -> None:
    folder, _, name = path.rpartition("/")
    target.make_dirs(folder)
    await checkpoints.save(target, folder, name, checkpoints.load(source, folder, name) or b"")


async def move_logs(rig: SimBrokerRig, *names: str) -> SimMachine:
    """Gives logs of the stopped broker to a new directory, which is on the machine of the rig from then on."""
    disk, topics = rig.machine.disk, rig.broker.image.topics
    second = SimMachine(rig.loop, "second", rig.bucket, rig.network)
    await copy_file(disk, second.disk, f"{ROOT}/{checkpoints.RECOVERY_POINTS}")
    rows = dict(row.split("=") for row in (checkpoints.load(disk, ROOT, META_FILE) or b"").decode().splitlines())
    incarnation = checkpoints.parse_clean_mark(checkpoints.load(disk, ROOT, checkpoints.CLEAN_MARK) or b"")
    adopted = []
    for name in names:
        for each in disk.list(f"{ROOT}/{name}-0"):
            await copy_file(disk, second.disk, f"{ROOT}/{name}-0/{each}")
        disk.remove(f"{ROOT}/{name}-0")
        at = TopicPartition(name, 0)
        adopted.append(AdoptedLog(at, topics[name].topic_id, 1, rows["directory.id"], incarnation))
    await checkpoints.save(second.disk, ROOT, ADOPTED_FILE, encode_adopted(adopted))
    await second.disk.sync_dir(".")
    rig.machine = second
    return second


def has_file(rig: SimBrokerRig) -> bool:
    return rig.machine.disk.exists(f"{ROOT}/{ADOPTED_FILE}")


async def fill_and_move(rig: SimBrokerRig, *names: str) -> None:
    await rig.start()
    for name in ("a", "b"):
        await fill(await rig.create(name), 10)
    await rig.stop()
    await move_logs(rig, *names)


@run_by(run)
async def test_process_serves_the_records_of_logs_that_moved_to_it(rig: SimBrokerRig) -> None:
    await fill_and_move(rig, "a", "b")
    await rig.start(SECOND)
    for name in ("a", "b"):
        assert await read_values(rig.broker.leader_replica(name, 0), 0) == numbers(0, 10)
    assert not rig.broker.health().details["possible_loss"] and not has_file(rig)
    await fill(rig.broker.leader_replica("a", 0), 1, 10)
    await rig.stop()
    await rig.start(SECOND)
    assert await read_values(rig.broker.leader_replica("a", 0), 0) == numbers(0, 11)


@run_by(run)
async def test_logs_that_stay_are_served_by_their_process(rig: SimBrokerRig) -> None:
    await rig.start()
    for name in ("a", "b"):
        await fill(await rig.create(name), 10)
    await rig.stop()
    first = rig.machine
    await move_logs(rig, "a")
    await rig.start(SECOND)
    await rig.stop()
    rig.machine = first
    await rig.start()
    assert await read_values(rig.broker.leader_replica("b", 0), 0) == numbers(0, 10)
    assert not rig.broker.health().details["possible_loss"]
    assert rig.broker.image.topics["a"].partitions[0].replicas == (1001,)


@run_by(run)
async def test_log_of_a_topic_that_was_deleted_is_not_adopted(rig: SimBrokerRig) -> None:
    await rig.start()
    for name in ("a", "b"):
        await fill(await rig.create(name), 10)
    topics = rig.broker.image.topics
    await rig.stop()
    first = rig.machine
    second = await move_logs(rig, "a")
    rig.machine = first
    await rig.start()
    assert "a" in topics
    await rig.broker.submit(DeleteTopic("a"))
    await rig.stop()
    rig.machine = second
    await rig.start(SECOND)
    assert "a-0" not in rig.machine.disk.list(ROOT) and not has_file(rig)


@run_by(run)
async def test_log_of_a_process_that_ran_again_is_kept_and_not_served(
    rig: SimBrokerRig, *, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.start()
    await fill(await rig.create("a"), 10)
    await rig.stop()
    first = rig.machine
    second = await move_logs(rig, "a")
    rig.machine = first
    await rig.start()
    assert rig.broker.health().details["possible_loss"], "the log is gone here, and nothing else is claimed"
    await rig.stop()
    rig.machine = second
    await rig.start(SECOND)
    (name,) = (each for each in rig.machine.disk.list(ROOT) if each.startswith("a-0"))
    assert name.endswith("-stray") and any(file.endswith(".log") for file in rig.machine.disk.list(f"{ROOT}/{name}"))
    assert "log of another broker is kept and not served partition=a-0" in caplog.text
    assert rig.broker.image.topics["a"].partitions[0].replicas == (1,)
    await rig.stop()
    await rig.start(SECOND)
    assert rig.machine.disk.exists(f"{ROOT}/{name}"), "each later start keeps it"


@run_by(run)
async def test_start_waits_until_the_giver_does_not_count_as_live(rig: SimBrokerRig) -> None:
    """The stop of the giver did not reach the metadata: its next controller fences it."""
    await rig.start()
    await fill(await rig.create("a"), 10)
    incarnation = rig.broker.incarnation
    rig.machine.faults.outage = True
    await rig.stop()
    rig.machine.faults.outage = False
    await move_logs(rig, "a")
    await rig.start(SECOND)
    assert rig.broker.image.brokers[1].incarnation == incarnation and not rig.broker.image.brokers[1].live
    assert await read_values(rig.broker.leader_replica("a", 0), 0) == numbers(0, 10)


@run_by(run)
async def test_records_missing_in_a_moved_log_are_reported(rig: SimBrokerRig) -> None:
    await fill_and_move(rig, "a")
    path = max(each for each in rig.machine.disk.list(f"{ROOT}/a-0") if each.endswith(".log"))
    file = rig.machine.disk.open(f"{ROOT}/a-0/{path}")
    file.truncate(0)
    file.close()
    await rig.start(SECOND)
    lost = rig.broker.health().details["possible_loss"]["a-0"]
    assert lost["from_offset"] == int(path[:20]), "the first record that is not there"


@run_by(run)
async def test_file_of_adopted_logs_that_was_cut_ends_the_start(rig: SimBrokerRig) -> None:
    await fill_and_move(rig, "a")
    whole = checkpoints.load(rig.machine.disk, ROOT, ADOPTED_FILE) or b""
    await checkpoints.save(rig.machine.disk, ROOT, ADOPTED_FILE, whole[:-20])
    with pytest.raises(Corrupt, match="a start without it would delete them"):
        await rig.start(SECOND)
    await rig.crash(rig.machine.kill)
    await checkpoints.save(rig.machine.disk, ROOT, ADOPTED_FILE, whole)
    await rig.start(SECOND)
    assert await read_values(rig.broker.leader_replica("a", 0), 0) == numbers(0, 10)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 5.0])
@run_by(run)
async def test_kill_after_the_first_start_with_moved_logs_loses_nothing(rig: SimBrokerRig, *, seconds: float) -> None:
    await fill_and_move(rig, "a", "b")
    await rig.start(SECOND)
    await asyncio.sleep(seconds)
    await rig.crash(rig.machine.kill)
    await rig.start(SECOND)
    for name in ("a", "b"):
        assert await read_values(rig.broker.leader_replica(name, 0), 0) == numbers(0, 10)
    assert not rig.broker.health().details["possible_loss"]


@pytest.mark.parametrize("is_power_cut", [False, True])
@pytest.mark.parametrize("changes", range(1, 24))
@run_by(run)
async def test_end_during_the_first_start_with_moved_logs_loses_nothing(
    rig: SimBrokerRig, *, changes: int, is_power_cut: bool
) -> None:
    """The end comes after so many changes of the disk. Only a power cut may be reported as a possible loss."""
    await fill_and_move(rig, "a", "b")
    disk, reached = rig.machine.disk, asyncio.Event()
    begun = disk.ops
    disk.on_op = lambda op: reached.set() if op.number - begun == changes else None
    start = asyncio.ensure_future(rig.start(SECOND))
    await reached.wait()
    assert not start.done()
    start.cancel()
    await rig.crash(rig.machine.power_cut if is_power_cut else rig.machine.kill)
    await asyncio.gather(start, return_exceptions=True)
    await rig.start(SECOND)
    for name in ("a", "b"):
        assert await read_values(rig.broker.leader_replica(name, 0), 0) == numbers(0, 10)
    assert is_power_cut or not rig.broker.health().details["possible_loss"]
    assert not has_file(rig)
