"""The end of a run: reads everything, and checks every predicate.

The checkers of the predicates of docs/internals/invariants.md:

- `checkers`, over all that clients did and saw, at the end: I1, I2, I4, I11 to I13, I17, I18, and of I6 that no end
  that ListOffsets names goes back. (The end in a Fetch may, for a moment after an election, as in Kafka.)
- `model_of_copies` with `expiry`, over each copy of a partition, at every step: I3, I5 to I10, I16, I22, R1 to R5.
- `bucket_rules` and `model`, over the bucket, at every write and delete: I16 of manifests, I20, I21, I23 to I25.
- `compacted_logs` with `clean_watch` and `cold_cleans`, over each clean on a disk or in the bucket: I26, and of
  replaced objects I20, I21 and I23. `compaction_load` has their clients, and checks what a reader from the start gets.
- `stored`, over every disk and object, at the end: I3, I5, I20, I21, and I23 of expired objects.
- `read_progress`, and the deadlines of `run`: I19. `resources`: I30.
- `rebuilding`, in some runs: I31, and I23 of objects that nothing names.
- this file: I4 for the true ends of epochs.
- `committers`, over what groups without members were shown, at the end: I18, also after a loss.
- `time_readers`, over all look-ups by time, at the end: I33.
- `rest_checker`, over all reads and commits of REST consumers: I34.
- `machines_checker`, over each metadata image and each move of a high watermark: I35.
- `transition_rules`, over single steps of states that brokers hold: I14, I15 and I22.
- `transaction_checker`, over all that transactional clients did and saw, at the end: I14, I15, and I16 of producers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.sim.cluster import checkers, resources, stored
from tests.sim.cluster.checkers import PartitionDump
from tests.sim.cluster.consumers import CONSUMERS
from tests.sim.cluster.history import GroupOffsets, Send
from tests.sim.cluster.members import GROUP
from tests.sim.cluster.model_of_copies import ModelOfCopies
from tests.sim.cluster.observer import Finding
from tests.sim.cluster.time_readers import check_lookups
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import PartitionId, TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.client.consumer import KafkaConsumer
from tiered_api.kafka.client.group_offsets import fetch_committed_offsets
from tiered_api.kafka.client.leader_routing import EARLIEST, LATEST, list_offsets_at
from tiered_api.kafka.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

if TYPE_CHECKING:
    from tests.sim.cluster.run import ClusterRun

READ_SECONDS = 60.0
IDLE_SECONDS = 15.0


async def audit_run(run: ClusterRun) -> dict[TopicPartition, PartitionDump]:
    """Checks everything that must hold once all faults are over. Returns what could be read."""
    dumps = await read_all_topics(run)
    for finding in (
        *check_history(run, dumps),
        *stored.check_stored(run),
        *await check_group_offsets(run),
        *await check_epoch_ends(run),
    ):
        run.findings.report(*finding)
    run.findings.raise_if_any()
    await run.wait_until(
        lambda: resources.is_idle(run), IDLE_SECONDS, "I30: brokers come to rest once nobody asks them"
    )
    return dumps


def check_history(run: ClusterRun, dumps: dict[TopicPartition, PartitionDump]) -> Iterator[Finding]:
    """Runs all checkers over the whole history."""
    history = run.history
    replicas = {
        TopicPartition(topic.name, number): len(each.replicas)
        for topic in run.model.image.topics.values()
        for number, each in enumerate(topic.partitions)
    }
    named = run.model.image.losses  # nobody acknowledges any
    reported = {
        tp: [each.from_offset for each in named.get(partition_id, ())]
        for tp in dumps
        if (partition_id := run.partition_id(tp)) is not None
    }

    may_be_lost = loss_predicate(run)

    def may_have_diverged(tp: TopicPartition, offset: int, since_ns: int) -> bool:
        partition_id = run.partition_id(tp)
        return partition_id is None or run.model.copies_of(partition_id).may_have_diverged(offset, since_ns)

    def may_be_lowered_to(tp: TopicPartition, offset: int, since_ns: int) -> bool:
        """A coordinator goes by the losses that leaders report: nobody knows which of the records are the same."""
        return offset in reported.get(tp, ()) or may_be_lost(tp, offset, since_ns)

    def is_promised(send: Send) -> bool:
        """acks=1 promises a copy in memory only: it counts if there is one replica, and while its machine has power. A
        partition whose records are in the bucket gets another replica at once."""
        alone = replicas.get(send.tp, 1) == 1 and not any(at >= send.invoked_ns for at in run.disk_loss_times)
        alone = alone and send.tp not in run.operators.reassignments.requested
        partition_id = run.partition_id(send.tp)
        alone = alone and partition_id is not None and "bucket" not in run.model.flush(partition_id)
        return send.acks == -1 or (send.acks == 1 and alone)

    yield from checkers.check_dense_offsets(dumps)
    yield from checkers.check_acked_records(history, dumps, is_promised, may_be_lost)
    yield from checkers.check_losses_reported(history, dumps, is_promised, reported)
    yield from checkers.check_one_value_per_offset(history, dumps, may_have_diverged)
    yield from checkers.check_contiguous_reads(history)
    yield from checkers.check_reads_committed(history)
    yield from checkers.check_end_offsets(history, may_have_diverged)
    yield from checkers.check_no_phantoms(history, dumps)
    yield from checkers.check_no_duplicates(dumps, may_be_lost)
    lost_at = sorted((*run.disk_loss_times, *run.model.unclean_election_times))
    yield from checkers.check_order(history, dumps, lost_at)
    yield from checkers.check_single_owner(history.ownerships, lost_at)
    yield from checkers.check_generations_grow(history.ownerships, lost_at)
    yield from checkers.check_single_owner(history.consumer_ownerships, lost_at)
    yield from checkers.check_late_commits(history.late_commits, lost_at)
    yield from checkers.check_offsets_stable(history.commits, history.offsets_shown, lost_at, may_be_lowered_to)
    yield from checkers.check_commit_generations(history.commits, history.ownerships, lost_at)
    if run.time_reader is not None:
        sends = (*history.sends, *run.compaction.history.sends)
        logs = {each.name: each for each in run.model.compacted_logs.values()}
        kept = {
            tp: offsets - logs[str(tp)].removed_offsets() if str(tp) in logs else offsets
            for tp, offsets in run.compaction.last_offsets.items()
        }
        yield from check_lookups(run.time_reader.lookups, sends, may_be_lost, kept)
    if run.rest is not None:
        yield from run.rest.check(may_be_lost)
    yield from check_log_starts(run, dumps)
    yield from run.expected.check()
    yield from check_reassignments(run)
    yield from check_configs(run)


def loss_predicate(run: ClusterRun) -> checkers.LossPredicate:
    """Returns a predicate that asks the reference model. All records of a deleted topic may be gone."""

    def is_lost(tp: TopicPartition, offset: int, since_ns: int) -> bool:
        partition_id = run.partition_id(tp)
        return partition_id is None or run.model.copies_of(partition_id).may_be_gone(offset, since_ns)

    return is_lost


async def check_group_offsets(run: ClusterRun) -> list[Finding]:
    """I18: compares the committed offsets that the coordinator reports now with those of every member that started.
    After a power cut, a lost disk or an unclean election nothing is certain: a snapshot of committed offsets may be a
    minute old."""
    groups = [GROUP] * bool(run.options.members) + [CONSUMERS] * bool(run.options.consumers)
    places = run.history.group_offsets
    for group in groups:
        asked_ns = run.loop.now_ns
        places.append(GroupOffsets(group, await fetch_group_offsets(run, group), asked_ns, run.loop.now_ns))
    lost_at = (*run.disk_loss_times, *run.model.unclean_election_times)
    sure_until = min(lost_at, default=run.loop.now_ns + 1)
    sure = [each for each in places if each.answered_ns < sure_until]
    return list(checkers.check_committed_offsets(run.history.commits, sure, loss_predicate(run)))


async def fetch_group_offsets(run: ClusterRun, group: str = GROUP) -> dict[TopicPartition, int]:
    """Returns the committed offsets of the group, from its coordinator."""
    client = run.world.client("c-groups")
    task = asyncio.create_task(_fetch_committed(client, group), name="groups")
    try:
        await run.wait_until(task.done, READ_SECONDS, "the coordinator answers")
        return task.result()
    finally:
        task.cancel()
        await client.close()


async def _fetch_committed(client: KafkaClient, group: str) -> dict[TopicPartition, int]:
    while True:
        try:
            return await fetch_committed_offsets(client, group)
        except (Refused, Unavailable, Corrupt):
            await asyncio.sleep(0.5)


async def check_epoch_ends(run: ClusterRun) -> list[Finding]:
    """Requests the end of each leader epoch as clients do to find divergence (KIP-320), hot or cold, and checks it."""
    client = run.world.client("c-epochs")
    found: list[Finding] = []
    for shape in run.options.topics:
        for number in range(shape.partitions):
            tp = TopicPartition(shape.name, number)
            partition_id = run.partition_id(tp)
            ends = epoch_ends(run.model.copies_of(partition_id)) if partition_id is not None else {}
            task = asyncio.create_task(_fetch_epoch_ends(client, tp, list(ends)), name="epochs")
            try:
                await run.wait_until(task.done, READ_SECONDS, "leader epochs are answered")
                told = task.result()
            finally:
                task.cancel()
            start = (
                run.model.copies_of(partition_id).log_start if partition_id is not None else 0
            )  # retention went on meanwhile
            wrong = {each: (told[each], end) for each, end in ends.items() if told[each] != end > start}
            if wrong:
                found.append(Finding("I4", f"{tp}: leader epochs end elsewhere: (told, true) {wrong}"))
    await client.close()
    return found


def epoch_ends(copies: ModelOfCopies) -> dict[int, int]:
    """Returns the end of each epoch that wrote committed records, without the last one, which may continue, and without
    epochs whose records retention deleted."""
    ends: dict[int, int] = {}
    for batch in sorted(copies.committed.values()):
        ends[batch.epoch] = batch.last + 1
    return {epoch: end for epoch, end in ends.items() if epoch < max(ends) and end > copies.log_start}


async def _fetch_epoch_ends(client: KafkaClient, tp: TopicPartition, wanted: list[int]) -> dict[int, int]:
    ends: dict[int, int] = {}
    while left := [epoch for epoch in wanted if epoch not in ends]:
        part = OffsetForLeaderPartition(tp.partition, -1, left[0])
        request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(tp.topic, [part])])
        try:
            shares, _ = await client.group_by_leader([tp])
            for node in shares:
                got = await client.send(request, OffsetForLeaderEpochResponse, node_id=node)
                answer = got.topics[0].partitions[0]
                if answer.error_code:
                    raise to_refused(answer.error_code, str(tp))
                ends[left[0]] = answer.end_offset
        except (Refused, Unavailable, Corrupt):
            client.forget_leaders([tp])
            await asyncio.sleep(0.5)
    return ends


def check_log_starts(run: ClusterRun, dumps: dict[TopicPartition, PartitionDump]) -> Iterator[Finding]:
    """I22: a log starts only at an offset at which the run saw it put, where that was judged, and not below an
    acknowledged deletion."""
    for tp, dump in dumps.items():
        partition_id, told = run.partition_id(tp), run.reply_observer.reply_checker.deleted_below(tp, run.loop.now_ns)
        if partition_id is None:
            continue
        copies = run.model.copies_of(partition_id)
        if dump.start > copies.log_start:
            yield Finding("I22", f"{tp} starts at {dump.start}, it was put at {copies.log_start}")
        if dump.start < told and not copies.may_have_lost_start(told):
            yield Finding("I22", f"{tp} starts at {dump.start}, told was that what is below {told} is gone")


def check_configs(run: ClusterRun) -> Iterator[Finding]:
    """M5: a broker that has applied the metadata log uses its settings."""
    for host, node in run.world.nodes():
        if run.model.applied_slot(host.node_id) < run.model.image.slot:
            continue
        for held in node.hosted_replicas.list_replicas():
            if run.model.is_modelled(held.partition_id) and held.log.config != run.model.config(
                held.partition_id.topic_id
            ):
                wanted = run.model.config(held.partition_id.topic_id).to_strings()
                other = {
                    key: (got, wanted[key]) for key, got in held.log.config.to_strings().items() if got != wanted[key]
                }
                yield Finding("M5", f"{host.name}: {held.tp} goes by others than it should: {other}")


def check_reassignments(run: ClusterRun) -> Iterator[Finding]:
    """KIP-455: reassigned replicas are where they were requested."""

    lasting = {OFFSETS_TOPIC, *(shape.name for shape in run.options.topics)}

    def replicas(tp: TopicPartition) -> tuple[int, ...] | None:
        """Returns None for a topic that may have been deleted and recreated, and if a spare broker took a place."""
        known = run.model.image.topics.get(tp.topic) if tp.topic in lasting else None
        if known is not None and run.model.copies_of(PartitionId(known.topic_id, tp.partition)).has_spare:
            return None
        return known.partitions[tp.partition].replicas if known is not None else None

    hosts, together = run.world.hosts, run.options.changes_processes
    place = (lambda node: hosts[node].machine_id) if together else (lambda node: node)
    for what in run.operators.reassignments.expected.find_misplaced(replicas, place):
        yield Finding("MOVED", what)


async def read_all_topics(run: ClusterRun) -> dict[TopicPartition, PartitionDump]:
    """Reads all topics of the run with a new client over the wire."""
    client = run.world.client("c-audit")
    wanted = [tp for tp in run.partitions() if tp.topic.startswith("t")]
    task = asyncio.create_task(_read(client, wanted), name="audit")
    try:
        await run.wait_until(task.done, READ_SECONDS, "everything can be read")
        return task.result()
    finally:
        task.cancel()
        await client.close()


async def _read(client: KafkaClient, wanted: list[TopicPartition]) -> dict[TopicPartition, PartitionDump]:
    while True:
        try:
            starts = await list_offsets_at(client, wanted, EARLIEST)
            ends = await list_offsets_at(client, wanted, LATEST)
            return await _read_between(client, starts, ends)
        except (Refused, Unavailable, Corrupt):
            await asyncio.sleep(0.5)


async def _read_between(
    client: KafkaClient, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]
) -> dict[TopicPartition, PartitionDump]:
    dumps = {tp: PartitionDump(start, ends[tp]) for tp, start in starts.items()}
    consumer = KafkaConsumer(client, max_wait_ms=100)
    consumer.assign({tp: start for tp, start in starts.items() if start < ends[tp]})
    try:
        while left := [tp for tp, offset in consumer.positions().items() if offset < ends[tp]]:
            for fetched in await consumer.poll():
                dump = dumps[fetched.tp]
                head = fetched.header
                dump.batches.append((head.base_offset, head.producer_id, head.base_sequence, head.count))
                dump.values.update((record.offset, record.value or b"") for record in fetched.records)
            for tp in left:
                if consumer.positions()[tp] >= ends[tp]:
                    consumer.unassign(tp)
    finally:
        await consumer.close()
    for tp, start in (await list_offsets_at(client, list(starts), EARLIEST)).items():
        # Retention went on meanwhile: what it took in the middle of the reading is no hole.
        dump = dumps[tp]
        if start > dump.start:
            dump.start = start
            dump.values = {offset: value for offset, value in dump.values.items() if offset >= start}
            dump.batches = [each for each in dump.batches if each[0] + each[3] > start]
    return dumps
