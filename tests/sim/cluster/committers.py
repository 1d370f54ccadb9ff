"""Groups without members, whose offsets one client each commits over the wire and reads again: I18, also after a loss.

A committed offset is the last acknowledged one, or a later one without a reply. A lost disk, a power cut or an unclean
election may take what the newest snapshot in the bucket does not cover: then any offset counts that was committed since
that snapshot. An offset that a coordinator has shown counts as acknowledged from then on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.sim.cluster.history import ClientHistory, CommitAttempt, GroupOffsets
from tests.sim.cluster.model_of_copies import ReportFinding
from tests.sim.cluster.observer import Finding, acting_node, patched
from tests.sim.cluster.options import COMMITTED_TOPIC
from tests.sim.harness.loop import SimLoop
from tiered.coordination.snapshot_stores import GROUP_SNAPSHOTS
from tiered.coordinator.partition import CoordinatorPartition
from tiered.coordinator.routing import partition_of
from tiered.coordinator.runtime import CoordinatorRuntime
from tiered.coordinator.snapshot import SnapshotName
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore
from tiered.coordinator.snapshotter import CoordinatorSnapshotter
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import PartitionId, TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.records.batch import encode_batch
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.client.group_offsets import commit_offsets, fetch_committed_offsets
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

if TYPE_CHECKING:
    from tests.sim.cluster.run import ClusterRun

REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
PLACE = TopicPartition(COMMITTED_TOPIC, 0)
RECORDS = 5_000
"""Records in the bucket from the beginning. They are more than any commit, so that no offset is cut back."""
PREPARED_SECONDS = 60.0
PAUSE_SECONDS = (0.01, 2.0)
SERVED_SECONDS = 60.0
DEPOSED_NS = 10_000_000_000
"""Longest time in which a leader that others cannot reach goes on after an unclean election."""


class Committer:
    """One group: commits growing offsets, and reads them, until `working` is unset. `is_sole` tells if only one
    coordinator can reply for a group."""

    def __init__(
        self,
        group: str,
        client: KafkaClient,
        loop: SimLoop,
        history: ClientHistory,
        sole_epoch: Callable[[str], int],
    ) -> None:
        self.working = True
        self.commits: list[CommitAttempt] = []
        self.shown: list[tuple[GroupOffsets, bool]] = []
        self.group = group
        self._client = client
        self._loop = loop
        self._history = history
        self._sole_epoch = sole_epoch
        self._rng = random.Random(f"{loop.seed}/{group}")

    async def work(self) -> None:
        value = 0
        while self.working:
            await asyncio.sleep(self._rng.uniform(*PAUSE_SECONDS))
            value += 1
            await self._commit(value)
            try:
                await self.read()
            except REQUEST_ERRORS:
                continue

    async def close(self) -> None:
        """Ends its connections."""
        await self._client.close()

    async def _commit(self, value: int) -> None:
        invoked_ns, code = self._loop.now_ns, None
        try:
            outcome = (await commit_offsets(self._client, self.group, {PLACE: value}))[PLACE]
            code = outcome.code if isinstance(outcome, Refused) else Code.NONE
        except Refused as refused:
            code = refused.code
        except (Unavailable, Corrupt):
            code = None
        finally:
            attempt = CommitAttempt(self.group, PLACE, value, invoked_ns, self._loop.now_ns, code)
            self.commits.append(attempt)
            if code is not None:
                self._history.count_code(code)

    async def read(self) -> None:
        """Reads the committed offset of the group."""
        requested_ns, epoch = self._loop.now_ns, self._sole_epoch(self.group)
        offsets = await fetch_committed_offsets(self._client, self.group)
        is_sole = 0 <= epoch == self._sole_epoch(self.group)
        self.shown.append((GroupOffsets(self.group, offsets, requested_ns, self._loop.now_ns), is_sole))


class CommitLoss(NamedTuple):
    """A moment that may take committed offsets: those acknowledged after `kept_ns` that were requested before
    `until_ns`."""

    at_ns: int
    until_ns: int
    kept_ns: int


def check_kept_commits(
    commits: Sequence[CommitAttempt], shown: Sequence[tuple[GroupOffsets, bool]], losses: Sequence[CommitLoss]
) -> Iterator[Finding]:
    """I18: an offset that a sole coordinator shows for a group was requested. It is not below one that was acknowledged
    or shown before, unless a loss took that one, or a commit without a reply arrived late."""
    acked = [each for each in commits if each.code is Code.NONE]
    for said, is_sole in sorted(shown, key=lambda each: each[0].requested_ns):
        if not is_sole:
            continue
        found = said.offsets.get(PLACE, -1)
        requested = {each.offset: each for each in commits if each.invoked_ns <= said.answered_ns}
        if found != -1 and found not in requested:
            yield Finding("I18", f"{said.group} is at {found}, which nobody requested")
            continue
        is_late = found in requested and requested[found].code is None
        kept = [
            each
            for each in acked
            if each.done_ns <= said.requested_ns
            and not any(_may_take(loss, each) for loss in losses if loss.at_ns <= said.answered_ns)
        ]
        least = max((each.offset for each in kept), default=-1)
        if found < least and not is_late:
            yield Finding(
                "I18",
                f"{said.group} is at {found} at {said.answered_ns}, acknowledged and kept is {least} of {kept[-3:]}",
            )
        seen = CommitAttempt(said.group, PLACE, found, said.requested_ns, said.answered_ns, Code.NONE)
        acked.append(seen)


def count_returns(shown: Sequence[tuple[GroupOffsets, bool]]) -> int:
    """Returns how often a group was shown at a lower offset than before."""
    offsets = [said.offsets.get(PLACE, -1) for said, is_sole in shown if is_sole]
    return sum(after < before for before, after in pairwise(offsets))


def _may_take(loss: CommitLoss, commit: CommitAttempt) -> bool:
    return loss.kept_ns < commit.done_ns and commit.invoked_ns <= loss.until_ns


class StoredSnapshot(NamedTuple):
    """A snapshot that the bucket confirmed, and the time of the state in it."""

    stored_ns: int
    name: SnapshotName
    taken_ns: int


class SnapshotWatch:
    """Observes the snapshots of groups: when their state was taken, and when they were in the bucket. It checks that no
    leader begins below a snapshot that was there when its process began."""

    def __init__(self, run: ClusterRun) -> None:
        self._run = run
        self._report: ReportFinding = run.findings.report
        self._taken: dict[tuple[PartitionId, int, int], int] = {}
        """Time at which a state was taken, by partition, leader epoch and offset."""
        self.stored: list[StoredSnapshot] = []
        self._at_start: dict[int, dict[PartitionId, SnapshotName]] = {}
        """By machine: the newest snapshots when its process began."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Observes everything within the context."""
        with ExitStack() as stack:
            stack.enter_context(patched(CoordinatorRuntime, "snapshot", self._snapshot))
            stack.enter_context(patched(CoordinatorSnapshotter, "prepare_final_snapshot", self._prepare_final))
            stack.enter_context(patched(CoordinatorSnapshotStore, "write", self._write))
            stack.enter_context(patched(LeaderReplica, "__init__", self._replica))
            yield

    def on_start(self, node: int) -> None:
        """A process begins on a machine."""
        newest: dict[PartitionId, SnapshotName] = {}
        for name in filter(None, map(GROUP_SNAPSHOTS.parse_key, self._run.world.bucket.objects)):
            newest[name.partition_id] = max(name, newest.get(name.partition_id, name))
        self._at_start[node] = newest

    def kept_ns(self, partition: int, at_ns: int) -> int:
        """Returns the time of the state in the newest snapshot of a partition that is in the bucket by `at_ns`; -1 for
        none."""
        there = [each for each in self.stored if each.name.partition_id.partition == partition]
        newest = max((each for each in there if each.stored_ns <= at_ns), key=lambda each: each.name, default=None)
        return newest.taken_ns if newest is not None else -1

    def _snapshot(self, original: Any) -> Any:
        async def snapshot(runtime: CoordinatorRuntime[Any, Any, Any]) -> Any:
            replica, taken_ns = runtime.replica, self._run.loop.now_ns
            is_deposed = self._is_deposed(replica)
            offset, records = await original(runtime)
            if not is_deposed:
                self._taken[replica.partition_id, replica.leader_epoch, offset] = taken_ns
            return offset, records

        return snapshot

    def _prepare_final(self, original: Any) -> Any:
        def prepare(snapshotter: CoordinatorSnapshotter, partition: CoordinatorPartition[Any, Any, Any]) -> None:
            original(snapshotter, partition)
            replica = partition.replica
            if not self._is_deposed(replica):
                place = replica.partition_id, replica.leader_epoch, replica.log.end_offset
                self._taken[place] = self._run.loop.now_ns

        return prepare

    def _write(self, original: Any) -> Any:
        async def write(store: CoordinatorSnapshotStore, name: SnapshotName, records: Any) -> None:
            await original(store, name, records)
            taken_ns = self._taken.get((name.partition_id, name.epoch, name.offset))
            if store.topic == OFFSETS_TOPIC and taken_ns is not None:
                self.stored.append(StoredSnapshot(self._run.loop.now_ns, name, taken_ns))

        return write

    def _replica(self, original: Any) -> Any:
        def begin(replica: LeaderReplica, *args: Any, **options: Any) -> None:
            original(replica, *args, **options)
            name = self._at_start.get(acting_node(), {}).get(replica.partition_id)
            if name is not None and replica.log.end_offset < name.offset:
                self._report("I18", f"{replica.tp} is led up to {replica.log.end_offset}, below its snapshot {name}")

        return begin

    def _is_deposed(self, replica: LeaderReplica) -> bool:
        """True if another leader may have acknowledged commits by now."""
        topic = self._run.model.image.topics.get(replica.tp.topic)
        return topic is None or topic.partitions[replica.tp.partition].leader_epoch > replica.leader_epoch


class CommitterLoad:
    """The committers of a run."""

    def __init__(self, run: ClusterRun) -> None:
        self.snapshots = SnapshotWatch(run)
        self.committers: list[Committer] = []
        self._run = run
        self._partitions = run.options.offsets_partitions

    @property
    def counts(self) -> dict[str, int]:
        """Counts of events."""
        acked = sum(each.code is Code.NONE for committer in self.committers for each in committer.commits)
        shown = sum(len(each.shown) for each in self.committers)
        lost = sum(count_returns(each.shown) for each in self.committers)
        return {"acked": acked, "shown": shown, "lost": lost, "snapshots": len(self.snapshots.stored)}

    async def prepare(self) -> None:
        """Puts more records than anybody commits into the bucket, and starts the committers."""
        run = self._run
        client = run.world.client("c-prepares")
        now_ms = run.world.hosts[1].machine.clock.wall_ms()
        data = encode_batch([(now_ms, None, b"", ())] * RECORDS)
        task = run.loop.create_task(_produce(client, data), name="prepares")
        await run.wait_until(task.done, PREPARED_SECONDS, "the topic whose offsets are committed takes its records")
        await task
        await client.close()
        await run.wait_until(self._is_cold, PREPARED_SECONDS, "the records whose offsets are committed are cold")
        for number in range(run.options.committers):
            group = f"group-{number}"
            client = run.world.client(f"c-{group}")
            self.committers.append(Committer(group, client, run.loop, run.history, self._sole_epoch))
        run.clients += self.committers

    async def settle(self) -> None:
        """I18 at the end: every group is served, and shows what it must."""
        run = self._run
        for each in self.committers:
            task = run.loop.create_task(_read_until_served(each), name=each.group)
            await run.wait_until(task.done, SERVED_SECONDS, f"{each.group} is served")
            await task
            await each.close()
        for finding in self.check():
            run.findings.report(*finding)

    def check(self) -> Iterator[Finding]:
        """Checks all that coordinators showed."""
        run, unclean = self._run, self._run.model.unclean_election_times
        moments = [(at, at) for at in run.disk_loss_times] + [(at, at + DEPOSED_NS) for at in unclean]
        for each in self.committers:
            partition = partition_of(each.group, self._partitions)
            losses = [CommitLoss(at, until, self.snapshots.kept_ns(partition, at)) for at, until in moments]
            yield from check_kept_commits(each.commits, each.shown, losses)

    def _sole_epoch(self, group: str) -> int:
        return self._run.sole_epoch(TopicPartition(OFFSETS_TOPIC, partition_of(group, self._partitions)))

    def _is_cold(self) -> bool:
        for _, node in self._run.world.nodes():
            for replica in node.leader_replicas():
                if replica.tp == PLACE:
                    if replica.log.segments.active.size:
                        replica.roll()
                    return replica.cold_end_offset >= RECORDS
        return False


async def _produce(client: KafkaClient, data: bytes) -> None:
    topic = TopicProduceData(name=PLACE.topic, partition_data=[PartitionProduceData(index=0, records=data)])
    request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic])
    while True:
        try:
            shares, _ = await client.group_by_leader([PLACE])
            for node in shares:
                got = (await client.send(request, ProduceResponse, node_id=node)).responses[0].partition_responses[0]
                if not got.error_code:
                    return
                raise to_refused(got.error_code, str(PLACE))
        except REQUEST_ERRORS:
            client.forget_leaders([PLACE])
        await asyncio.sleep(0.5)


async def _read_until_served(committer: Committer) -> None:
    while True:
        try:
            return await committer.read()
        except REQUEST_ERRORS:
            await asyncio.sleep(0.5)
