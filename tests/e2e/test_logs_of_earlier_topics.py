"""The log of a topic that was deleted and made again under its name: no byte passes to the next topic. A log that is
gone, or that bit rot gave another topic's id, is not taken for a whole one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from tests.e2e.kafka_site import values_of
from tests.scenario import run_by
from tests.sim.harness.disk import SimDisk
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, fill, numbers, read_values, run
from tests.sim.rig.old_proof import write_old_proof
from tests.sim.scenarios.three import ThreeBrokers, run_scenario
from tiered.broker.partition_report import explain
from tiered.controller.requests import AlterTopicConfigs, CreateTopic, DeleteTopic
from tiered.errors import Unavailable
from tiered.hot import checkpoints
from tiered.ids import TopicPartition
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.replication.leader_replica import LeaderReplica

AT = TopicPartition("t", 0)
LOG = "log/t-0"
METADATA = "partition.metadata"
FIRST_SEGMENT = f"{0:020d}.log"
ANOTHER_ID = b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA"
UNTIERED = {"remote.storage.enable": "false", "retention.ms": "-1"}


def end_a_deletion_after_one_file(disk: SimDisk) -> None:
    """Lets the next deletion of the log, whatever its name is by then, remove the topic id only. The process then ends.

    `shutil.rmtree` removes files in the order of the file system."""
    remove = disk.remove

    def remove_one(path: str) -> None:
        if path.startswith(LOG) and disk.exists(f"{path}/{METADATA}"):
            remove(f"{path}/{METADATA}")
            disk.remove = remove  # type: ignore[method-assign]
            raise Unavailable("the process is killed")
        remove(path)

    disk.remove = remove_one  # type: ignore[method-assign]


async def create(rig: SimBrokerRig, **configs: str) -> LeaderReplica:
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    await rig.broker.submit(CreateTopic("t", 1, configs=UNTIERED | settings))
    return rig.broker.leader_replica("t", 0)


async def recreate(rig: SimBrokerRig) -> LeaderReplica:
    await rig.broker.submit(DeleteTopic("t"))
    return await create(rig)


@pytest.mark.parametrize("same_boot", [True, False])
@run_by(run)
async def test_start_that_dies_while_it_deletes_an_earlier_log(rig: SimBrokerRig, *, same_boot: bool) -> None:
    await rig.start()
    replica = await create(rig)
    await fill(replica, 3)
    await replica.flush()
    await rig.broker.hosted_replicas.save_offsets()
    await rig.crash(rig.machine.kill)
    disk = rig.machine.disk
    disk.remove(f"{LOG}/{METADATA}")
    disk.open(f"{LOG}/{METADATA}", create=True).append([ANOTHER_ID])
    if not same_boot:
        disk.remove("log/proof")
    end_a_deletion_after_one_file(disk)
    with pytest.raises(Unavailable):
        await rig.start()
    await rig.crash(rig.machine.kill)
    again = (await rig.start()).leader_replica("t", 0)
    assert again.high_watermark == 0 and await read_values(again, 0) == []


@run_by(run_scenario)
async def test_follower_that_died_in_that_deletion_copies_the_new_topic_only(three: ThreeBrokers) -> None:
    """Both topics begin in leader epoch 0, so nothing but the topic id tells their records apart."""
    leader, follower = three.others()
    created = CreateTopic("t", assignments=[[leader.node_id, follower.node_id]], configs={"min.insync.replicas": "1"})
    await three.controller.node.submit(created)
    await three.wait_until(lambda: leader.node.hosted_replicas.find_leader(AT) is not None, 30)
    old = leader.node.leader_replica(*AT)
    await three.wait_until(lambda: len(old.state.isr) == 2, 30)
    for number in range(3):
        await old.append(batch([b"old-%d" % number]))
    await follower.kill()
    await three.controller.node.submit(DeleteTopic("t"))
    await three.controller.node.submit(created)
    await three.wait_until(lambda: (leader.node.hosted_replicas.find_leader(AT) or old) is not old, 30)
    new = leader.node.leader_replica(*AT)
    await three.wait_until(lambda: len(new.state.isr) == 1, 60)
    for number in range(5):
        await new.append(batch([b"new-%d" % number]))
    end_a_deletion_after_one_file(follower.machine.disk)
    with pytest.raises(Unavailable):
        await follower.start()
    await follower.kill()
    await follower.start()
    await three.wait_until(lambda: len(new.state.isr) == 2, 60)
    copy = follower.node.hosted_replicas.find_follower(AT)
    assert copy is not None and copy.log.end_offset == 5
    held = copy.log.read(0, 1 << 20, end_offset=5)
    assert held is not None
    assert values_of(held.file.pread(held.start, held.length)) == [b"new-%d" % number for number in range(5)]


async def check_second_topic(rig: SimBrokerRig, go_on: Callable[[], None]) -> None:
    """Makes the topic again, lets a pass of the first one `go_on`, and checks the log of the second."""
    again = await recreate(rig)
    await fill(again, 3)
    go_on()
    await asyncio.sleep(60)
    assert FIRST_SEGMENT in rig.machine.disk.list(LOG)
    await fill(again, 1, start=3)
    assert await read_values(again, 0) == numbers(0, 4)
    await rig.crash(rig.machine.kill)
    again = (await rig.start()).leader_replica("t", 0)
    assert await read_values(again, 0) == numbers(0, 4)
    await rig.stop()


@run_by(run)
async def test_retention_that_waits_for_an_fsync_spares_the_second_topic(rig: SimBrokerRig) -> None:
    await rig.start()
    await fill(await create(rig, internal_segment_bytes="4096"), 10)
    disk, gate, waiting = rig.machine.disk, asyncio.Event(), asyncio.Event()
    delay = disk.sync_delay

    async def wait(verb: str, path: str) -> None:
        if path.startswith(f"{LOG}/") and path.endswith(".snapshot") and not waiting.is_set():
            waiting.set()
            await gate.wait()
        await delay(verb, path)

    disk.sync_delay = wait  # type: ignore[method-assign]
    await rig.broker.submit(AlterTopicConfigs("t", {"retention.bytes": "1"}))
    await asyncio.wait_for(waiting.wait(), 30)
    await check_second_topic(rig, gate.set)


@run_by(run)
async def test_retention_that_waits_for_the_bucket_spares_the_second_topic(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await create(rig, internal_segment_bytes="4096", remote_storage_enable="true")
    await fill(replica, 4)
    await rig.wait_until(lambda: replica.cold_end_offset == 3)
    no_upload = FaultRule(FaultKind.ERROR, ("upload",))
    rig.machine.faults.rules = [no_upload]
    await fill(replica, 6, start=4)
    await asyncio.sleep(3)
    slow = FaultRule(FaultKind.DELAY, ("put",), key="/manifest", seconds=20)
    rig.machine.faults.rules = [no_upload, slow]
    await rig.broker.submit(AlterTopicConfigs("t", {"retention.bytes": "1"}))
    await asyncio.sleep(25)
    assert not replica.is_stopped
    await check_second_topic(rig, lambda: None)


async def fill_and_note(rig: SimBrokerRig) -> None:
    """Appends four records that are durable by the checkpoints too."""
    replica = await create(rig)
    await fill(replica, 4)
    await replica.flush()
    await rig.broker.hosted_replicas.save_offsets()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["rot", "loss", "loss of the files"])
@run_by(run)
async def test_log_that_rotted_or_is_gone_is_not_taken_for_whole(
    rig: SimBrokerRig, *, clean: bool, damage: str
) -> None:
    """Four durable records are noted. A flipped bit of the topic id is mended, and the loss of the log is reported."""
    await rig.start()
    await fill_and_note(rig)
    if clean:
        await rig.stop()
    await rig.crash(rig.machine.kill)
    disk = rig.machine.disk
    write_old_proof(disk, clean=False)  # as for a log that is not small
    if damage != "rot":
        for path in [LOG] if damage == "loss" else [f"{LOG}/{name}" for name in disk.list(LOG)]:
            disk.remove(path)
    else:
        (first,) = disk.open(f"{LOG}/{METADATA}").pread(21, 1)
        bit = next(bit for bit in range(7) if re.match(rb"[A-Za-z0-9_-]", bytes([first ^ 1 << bit])))
        disk.flip_bit(f"{LOG}/{METADATA}", 21 * 8 + bit)
    again = (await rig.start()).leader_replica("t", 0)
    if damage == "rot":
        assert await read_values(again, 0) == numbers(0, 4)
    else:
        assert explain(again)["possible_loss"]["from_offset"] == 0


@run_by(run)
async def test_loss_is_known_after_a_start_that_ended_before_it_registered(rig: SimBrokerRig) -> None:
    """Housekeeping saves the checkpoints meanwhile, and they no longer note the records."""
    await rig.start()
    await fill_and_note(rig)
    await rig.crash(rig.machine.kill)
    rig.machine.disk.remove(LOG)
    node = rig.broker = rig._new_broker(QUICK)
    open_channel = node.cluster.channel.open

    def open_and_lose_bucket() -> None:
        open_channel()
        rig.machine.faults.rules = [FaultRule(FaultKind.ERROR, ("put",))]

    node.cluster.channel.open = open_and_lose_bucket  # type: ignore[method-assign]
    starting = asyncio.create_task(node.start())
    await asyncio.sleep(5)
    assert not node.served.is_set()
    starting.cancel()
    await rig.crash(rig.machine.kill)
    await asyncio.gather(starting, return_exceptions=True)
    rig.machine.faults.rules = []
    again = (await rig.start()).leader_replica("t", 0)
    assert again.log.end_offset == 0 and explain(again)["possible_loss"]["from_offset"] == 0


@run_by(run)
async def test_earlier_log_is_no_loss_after_a_start_that_ended_in_its_deletion(rig: SimBrokerRig) -> None:
    """The checkpoints forget the log before its files go."""
    await rig.start()
    await fill_and_note(rig)
    await rig.crash(rig.machine.kill)
    disk = rig.machine.disk
    disk.remove(f"{LOG}/{METADATA}")
    disk.open(f"{LOG}/{METADATA}", create=True).append([ANOTHER_ID])
    discard = disk.discard

    async def discard_and_die(path: str) -> None:
        await discard(path)
        raise Unavailable("the process is killed")

    disk.discard = discard_and_die  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await rig.start()
    await rig.crash(rig.machine.kill)
    assert not [name for name in rig.machine.disk.list("log") if name.startswith("t-0")]
    again = (await rig.start()).leader_replica("t", 0)
    assert explain(again)["possible_loss"] is None


@run_by(run)
async def test_topic_made_again_after_its_files_went_has_lost_nothing(rig: SimBrokerRig) -> None:
    """The broker deleted the files of the first topic, and is killed before it saves its checkpoints by itself."""
    await rig.start()
    await fill_and_note(rig)
    await rig.broker.submit(AlterTopicConfigs("t", {"file.delete.delay.ms": "0"}))
    await rig.broker.submit(DeleteTopic("t"))
    await rig.wait_until(lambda: not any(name.startswith("t-0") for name in rig.machine.disk.list("log")))
    noted = checkpoints.load(rig.machine.disk, "log", checkpoints.RECOVERY_POINTS)
    assert noted is not None and b"t 0" not in noted


@run_by(run_scenario)
async def test_replica_whose_log_is_gone_does_not_lead_before_a_whole_one(three: ThreeBrokers) -> None:
    leader, follower = three.others()
    assignments = [[leader.node_id, follower.node_id]]
    configs = {"min.insync.replicas": "2", "remote.storage.enable": "false"}
    await three.controller.node.submit(CreateTopic("t", assignments=assignments, configs=configs))
    await three.wait_until(lambda: leader.node.hosted_replicas.find_leader(AT) is not None, 30)
    old = leader.node.leader_replica(*AT)
    await three.wait_until(lambda: len(old.state.isr) == 2, 30)
    for number in range(3):
        await old.append(batch([b"old-%d" % number]))
    copy = follower.node.hosted_replicas.find_follower(AT)
    assert copy is not None
    await copy.flush()
    await follower.node.hosted_replicas.save_offsets()
    await follower.kill()
    await leader.kill()
    follower.machine.disk.remove(LOG)
    await follower.start()
    await asyncio.sleep(60)
    await leader.start()
    await three.wait_until(lambda: leader.node.hosted_replicas.find_leader(AT) is not None, 60)
    assert leader.node.leader_replica(*AT).log.end_offset == 3
