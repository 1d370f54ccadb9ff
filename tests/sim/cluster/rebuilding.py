"""I31, I23: the bucket alone suffices for a rebuild, and has only named objects.

All disks are lost once everything is cold; the rebuilt state is compared with the state before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from tests.sim.cluster import audit
from tests.sim.cluster.checkers import PartitionDump
from tests.sim.cluster.model_of_copies import ModelLoss
from tests.sim.cluster.observer import patched
from tests.sim.cluster.senders import SimProducer
from tiered.coordinator import host as coordinator_host
from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.metadata.image import Image
from tiered.metadata.topic_names import TRANSACTIONS_TOPIC
from tiered.producers.entry import BATCHES_RETAINED
from tiered.replication.leader_replica import LeaderReplica

if TYPE_CHECKING:
    from tests.sim.cluster.run import ClusterRun

COLD_SECONDS = 120.0
SWEEP_SECONDS = 240.0
SNAPSHOT_SECONDS, SNAPSHOT_SLACK_SECONDS = 10.0, 10.0
"""Interval of coordinator snapshots in a run with a rebuild: shorter than a broker's, so that no run waits long.
Seconds until the last of them is written."""


def short_snapshot_intervals() -> AbstractContextManager[None]:
    """Makes coordinators write snapshots often, within the context."""
    return patched(coordinator_host, "SNAPSHOT_SECONDS", lambda _: SNAPSHOT_SECONDS)


async def check_rebuild(run: ClusterRun, before: dict[TopicPartition, PartitionDump]) -> None:
    """I31: all disks are lost at once. Every topic with its settings, every cold record and every group's offsets come
    back, and offsets continue above. I11: the last batches of each producer come back too."""
    sender = run.make_sender("before", -1, True, resends=True)
    await _write_batches(run, sender)
    await run.wait_until(lambda: _roll_until_cold(run), COLD_SECONDS, "everything is cold")
    if "clock_jump" not in run.options.troubles:
        # I23: what was left behind goes under the leaders of today too, whatever replies were lost.
        await run.wait_until(
            lambda: not _unnamed_objects(run), SWEEP_SECONDS, "the bucket holds only what is named, disks or not"
        )
    offsets = await _settled_group_offsets(run)
    cold = {
        tp: run.model.copies_of(partition_id).bucket_end
        for tp in before
        if (partition_id := run.partition_id(tp)) is not None
    }
    topics, epochs = _topic_settings(run.model.image), _leader_epochs(run.model.image)
    for host in run.operators.present_hosts():
        await host.end("disk")
    for host in run.operators.present_hosts():
        host.power_on()
    await run.wait_until(run.is_live, COLD_SECONDS, "all brokers are back without their disks")
    for name, image in (("the log", run.model.image), *((host.name, node.image) for host, node in run.world.nodes())):
        if _topic_settings(image) != topics:
            run.findings.report("I31", f"topics were {topics}, by {name} they are {_topic_settings(image)}")
    for tp, epoch in _leader_epochs(run.model.image).items():
        if tp in epochs and epoch <= epochs[tp]:
            run.findings.report("R1", f"{tp} is led under epoch {epoch} without its disks, was under {epochs[tp]}")
    found, left = await _settled_group_offsets(run), await audit.read_all_topics(run)
    for tp, dump in left.items():
        if dump.end != max(cold.get(tp, 0), dump.start):
            run.findings.report("I31", f"{tp} ends at {dump.end} without its disks, cold was up to {cold.get(tp)}")
    for tp in before:
        assert await sender.resend(tp) == BATCHES_RETAINED, f"liveness: nobody says what became of the retries for {tp}"
    await sender.close()
    after = await audit.read_all_topics(run)
    ends = {tp: (min(dump.end, left[tp].end), left[tp].end) for tp, dump in before.items()}
    for tp in find_moved_offsets(offsets, found, ends):
        run.findings.report("I31", f"the group was at {offsets}, is at {found}: {tp} is astray")
    for tp, old in before.items():
        new = after[tp]
        lost = [offset for offset in old.values if new.start <= offset < cold[tp] and offset not in new.values]
        if lost or new.end < cold[tp]:
            run.findings.report("I31", f"{tp} ends at {new.end}, cold was up to {cold[tp]}, lost {lost[:5]}")
        # Above the cold end a log begins anew: there it holds what was written since.
        other = [o for o, value in old.values.items() if o < cold[tp] and new.values.get(o, value) != value]
        if other:
            run.findings.report("I31", f"{tp} has other records at {other[:5]}")
    await run.check_writable()
    await run.compaction.check_state()
    # I23: after one more segment under the new epochs, nothing unnamed is left.
    await run.wait_until(lambda: _roll_until_cold(run), COLD_SECONDS, "everything is cold again")
    await run.wait_until(lambda: not _unnamed_objects(run), SWEEP_SECONDS, "the bucket holds only what is named")
    if "clock_jump" not in run.options.troubles:
        await run.wait_until(
            lambda: not run.model.image.deleted_topics, SWEEP_SECONDS, "deleted topics leave nothing behind"
        )


async def _write_batches(run: ClusterRun, sender: SimProducer) -> None:
    """Writes as many batches to each partition as a broker keeps of one producer, all with one producer id."""
    end_ns = run.loop.now_ns + round(COLD_SECONDS * 1e9)
    partitions = run.own_partitions()
    while left := [tp for tp in partitions if sender.count_acked(tp) < BATCHES_RETAINED]:
        assert run.loop.now_ns < end_ns, f"liveness: {left} take no records\n{run.state()}"
        task = run.loop.create_task(sender.send(left[0]), name="before")
        await run.wait_until(task.done, COLD_SECONDS, "a record is taken or refused")


def find_moved_offsets(
    was: Mapping[TopicPartition, int],
    found: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, tuple[int, int]],
) -> list[TopicPartition]:
    """Returns groups with another offset after the rebuild. A commit may have been above the end of a partition that
    once lost records, if its coordinator did not lead that partition. The rebuild cuts it to the end that the partition
    has by then, between the two of `ends`."""
    wrong = []
    for tp in sorted({*was, *found}):
        before, now = was.get(tp, -1), found.get(tp, -1)
        lowest, highest = ends.get(tp, (before, before))
        if now != before and not min(before, lowest) <= now <= min(before, highest):
            wrong.append(tp)
    return wrong


def _topic_settings(image: Image) -> dict[str, tuple[TopicId, int, dict[str, str]]]:
    """Returns id, number of partitions and settings of each topic."""
    return {
        name: (topic.topic_id, len(topic.partitions), dict(topic.configs))
        for name, topic in sorted(image.topics.items())
    }


async def _settled_group_offsets(run: ClusterRun) -> dict[TopicPartition, int]:
    """Returns the offsets of the group once no loss of disks can change them: its snapshot follows soon. All
    committed records are cold, so that no offset is cut back."""
    if not run.options.members:
        return {}
    found = await audit.fetch_group_offsets(run)
    await run.wait(SNAPSHOT_SECONDS + SNAPSHOT_SLACK_SECONDS)
    return found


def _leader_epochs(image: Image) -> dict[TopicPartition, int]:
    """Returns the leader epoch of each partition."""
    return {
        TopicPartition(topic.name, number): each.leader_epoch
        for topic in image.topics.values()
        for number, each in enumerate(topic.partitions)
    }


def _has_local_copies(replica: LeaderReplica) -> bool:
    """True if the disk still has closed segments that the bucket has and the topic need not keep."""
    return replica.config.local_retention_bytes == 1 and replica.log.segments.count > 1


def _unnamed_objects(run: ClusterRun) -> list[str]:
    """Returns objects that nothing names, also of deleted topics. (Their deletion goes by wall clocks: after a jump
    they may be late, or an upload may land when the topic is already forgotten.)"""
    known = run.model.image.topics_by_id
    jumped = "clock_jump" in run.options.troubles
    return [key for key in run.model.unreferenced() if not jumped or key.split("/")[1] in known]


def is_held_back(image: Image, replica: LeaderReplica, losses: Collection[ModelLoss] = ()) -> bool:
    """True if an open transaction holds uploads back for longer than a run: its coordinator has lost it, or one of the
    `losses` of its partition took its marker."""
    topic = image.topics.get(TRANSACTIONS_TOPIC)
    may_be_lost = topic is not None and any(each.loss is not None for each in topic.partitions)
    stable = replica.last_stable_offset
    return stable < replica.high_watermark and (may_be_lost or any(stable < each.from_offset for each in losses))


def _roll_until_cold(run: ClusterRun) -> bool:
    """True if all tiered records are in the bucket. Each call rolls the active segments: a leader that took over
    meanwhile has its own active segment."""
    cold = True
    for _, node in run.world.nodes():
        for replica in node.leader_replicas():
            partition_id = PartitionId(replica.topic_id, replica.partition)
            gone = max(replica.cold_end_offset, replica.log_start_offset)  # what expired before goes nowhere
            tiered = replica.config.copies_to_bucket
            losses = run.model.copies_of(partition_id).losses if run.model.is_modelled(partition_id) else ()
            if is_held_back(run.model.image, replica, losses):
                continue
            if run.model.is_modelled(partition_id) and tiered and gone < replica.high_watermark:
                cold = False
                if replica.log.segments.active.size:
                    replica.roll()
            elif run.model.is_modelled(partition_id) and tiered and _has_local_copies(replica):
                cold = False
    return cold
