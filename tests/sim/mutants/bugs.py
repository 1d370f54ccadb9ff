"""The bugs of the mutants: each function turns a production function into one with the bug. `mutants.py` says which
rules each breaks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from tiered.cold.manifest_store import ManifestStore
from tiered.cold.uploader import Uploader
from tiered.cold.verified_put import put_verified
from tiered.controller.controller_queries import ControllerQueries
from tiered.controller.requests import AlterTopicConfigs, CreatePartitions, CreateTopics, DeleteTopic
from tiered.controller.runtime import Runtime, _ParkedRequest
from tiered.controller.standby import StandbyController
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore
from tiered.errors import Code, Corrupt, Fenced, Unavailable
from tiered.hot import retention
from tiered.hot.disk_log import DiskLog
from tiered.hot.segment_files import OpenFiles
from tiered.hot.time_lookup import TimeLookups, search_log
from tiered.ids import PartitionId
from tiered.metadata.election import Candidate
from tiered.metadata.log_reader import read_entries
from tiered.metadata.log_writer import MetadataLog
from tiered.metadata.parts.topics import PartitionImage
from tiered.peers import DivergingEpoch, PartitionFetch
from tiered.producers.states import ProducerStates
from tiered.replication.divergence import LeaderLog
from tiered.replication.leader_reads import LeaderReads
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.leader_state import KeepLocalLog, LeaderState
from tiered.upkeep.tiering import Tiering
from tiered_api.kafka.client.connection import BrokerConnection

LONG_MAX = 2**63 - 1
REFUSE_AFTER_MS = 20_000
SWEEP_SECONDS = 0.1
LEAKED: list[Any] = []
"""Files that a mutant does not close; the list is emptied when the mutant ends."""


class NoStream:
    """A stream that ignores close, so that the real stream stays open."""

    def close(self) -> None:
        """Closes nothing."""


# -- machines ---------------------------------------------------------------------------------------------------------


def place_by_process(original: Any) -> Any:
    def place_replicas(*args: Any, **options: Any) -> Any:
        return original(*args, **{**options, "machines": {}})

    return place_replicas


def find_no_shared_machine(original: Any) -> Any:
    return lambda nodes, machines: None


def register_without_process(original: Any) -> Any:
    def register(image: Any, settings: Any, request: Any, now_ms: int) -> Any:
        return original(image, settings, replace(request, process=0), now_ms)

    return register


def count_all_as_far(original: Any) -> Any:
    def other_addresses(queries: ControllerQueries) -> tuple[list[str], list[str]]:
        near, far = original(queries)
        return [], near + far

    return other_addresses


def adopt_nothing(original: Any) -> Any:
    return lambda adopted: original(())


def find_no_predecessor(original: Any) -> Any:
    return lambda disk, chosen, count: {}


def find_no_obstacle(original: Any) -> Any:
    return lambda directories, moves, count: ""


def trust_any_giver(original: Any) -> Any:
    def describe_refusal(image: Any, node: int, process: int, given: Any) -> str:
        return ""

    return describe_refusal


# -- replication ------------------------------------------------------------------------------------------------------


def elect_any_live_replica(original: Any) -> Any:
    def last_resort(replicas: Any, elr: Any, *others: Any) -> Any:
        return next((node for node in replicas if node in others[-1].live), None)

    return last_resort


def search_each_tier_once(original: Any) -> Any:
    async def offset_for_timestamp(self: LeaderReads, timestamp: int, lookups: TimeLookups | None = None) -> Any:
        log, lookups = self.unified_log, lookups or TimeLookups()
        if log.log_start_offset < log.hot.local_start_offset:
            found = await log.cold.reader.offset_for_timestamp(
                log.partition_id, timestamp, manifest=log.manifest, lookups=lookups
            )
            self.check_not_stopped()
            if found is not None and found[0] < log.hot.local_start_offset:
                return found
        return (await search_log(log.hot, timestamp, 0, lookups)).found

    return offset_for_timestamp


def keep_progress_of_removed_replicas(original: Any) -> Any:
    def apply_isr(self: LeaderState, *new: Any) -> bool:
        before = dict(self._followers)
        moved = bool(original(self, *new))
        self._followers = before | self._followers
        self.check()
        return moved

    return apply_isr


def keep_leader_epoch(original: Any) -> Any:
    def keep_replicas(image: PartitionImage, *others: Any) -> PartitionImage:
        new: PartitionImage = original(image, *others)
        return replace(new, leader_epoch=image.leader_epoch) if new.leader == image.leader else new

    return keep_replicas


def ask_committed_members_only(original: Any) -> Any:
    def is_deleted_on_isr(self: LeaderState, offset: int) -> bool:
        known = self._followers
        others = self._isr - {self.node_id}
        return offset == 0 or all(node in known and known[node].log_start >= offset for node in others)

    return is_deleted_on_isr


def elect_first_to_return(original: Any) -> Any:
    def last_resort(replicas: Any, elr: Any, *others: Any) -> Any:
        return next((node for node in replicas if node in others[-1].live), None) if not elr else None

    return last_resort


def keep_isr_after_restart(original: Any) -> Any:
    def keep_isr(old: Any, node: int, end: Any, context: Any) -> Any:
        return old if node in old.isr or node in old.elr else original(old, node, end, context)

    return keep_isr


def join_at_stale_watermark(original: Any) -> Any:
    def may_join(self: LeaderState, broker: int, now_ns: int, lag_ns: int) -> bool:
        follower = self._followers.get(broker)
        return follower is not None and broker not in self._maximal_isr and follower.offset >= self.high_watermark

    return may_join


def advance_below_min_isr(original: Any) -> Any:
    def move(self: LeaderState, min_isr: int) -> bool:
        return bool(original(self, 1))

    return move


def ignore_diverging_epochs(original: Any) -> Any:
    def judge(asked: PartitionFetch, led: LeaderLog) -> Code | DivergingEpoch:
        found = original(asked, led)
        if not isinstance(found, DivergingEpoch):
            return cast("Code", found)
        return Code.NONE if asked.offset <= led.end else DivergingEpoch(led.epochs.latest, led.end)

    return judge


# -- metadata ---------------------------------------------------------------------------------------------------------


def skip_boundary_check(original: Any) -> Any:
    async def check_boundary(self: MetadataLog, slot: int) -> None:
        return None

    return check_boundary


def read_collected_slots(original: Any) -> Any:
    async def catch_up(self: StandbyController) -> None:
        committed = self._view.loader
        entries, _ = await read_entries(self._store, committed.image.slot + 1)
        if not entries:
            return cast("None", await original(self))
        committed.append_from_bucket(entries)

    return catch_up


def reuse_controller_epoch(original: Any) -> Any:
    def stand(highest_epoch: int, next_slot: int) -> Candidate:
        return Candidate(max(1, highest_epoch), next_slot)

    return stand


def repeat_written_slot(original: Any) -> Any:
    async def write(self: MetadataLog, changes: Any) -> Any:
        first, epoch = self.next_slot, self.epoch
        retries = self._retries.value()
        other = await original(self, changes)
        if other is None and self.next_slot == first + 1 and self.epoch == epoch and self._retries.value() > retries:
            return await original(self, changes)
        return other

    return write


def append_after_lost_slot(original: Any) -> Any:
    async def append(self: MetadataLog, changes: Any) -> int:
        while True:
            other = await self._write(tuple(changes))
            if other is None:
                return self.next_slot - 1
            self.next_slot = other.slot + 1

    return append


# -- tiering ----------------------------------------------------------------------------------------------------------


def put_manifest_first(original: Any) -> Any:
    async def copy(self: Uploader, manifest: Any, epoch: int, entry: Any, log_part: Any, tail: bytes) -> None:
        await self._add_to_manifest(manifest, epoch, [entry])
        await put_verified(self._store, entry.key, log_part, tail)

    return copy


def drop_unuploaded_segments(original: Any) -> Any:
    def find_local_start(
        closed: Any, active: Any, config: Any, now_ms: int, *, cold_end: int, clean_to: int = 0
    ) -> Any:
        return original(closed, active, config, now_ms, cold_end=LONG_MAX, clean_to=clean_to)

    return find_local_start


def keep_active_segment_only(original: Any) -> Any:
    def plan(closed: Any, active: Any, config: Any, now_ms: int, **ends: Any) -> retention.RetentionPlan:
        found: retention.RetentionPlan = original(closed, active, config, now_ms, **ends)
        if config.retention_bytes < 0 and config.retention_ms < 0:
            return found
        below = [each.next_offset for each in closed if each.next_offset <= ends["deletable_below"]]
        start = max([found.log_start, *below])
        return replace(found, log_start=start, drop_below=max(start, found.drop_below))

    return plan


def sweep_unfinished_objects(original: Any) -> Any:
    def garbage(listed: Any, alive: Any, busy: Any, epoch: int) -> Any:
        return [each for each in listed if each.key not in alive and not each.key.endswith("/manifest")]

    return garbage


def sweep_during_upload(original: Any) -> Any:
    """Sweeps during uploads. That alone is no bug: objects of uploads in flight are no garbage at any time."""

    async def sweep(self: Tiering, replica: LeaderReplica) -> None:
        while not replica.is_stopped:
            if replica.manifest is not None:
                with suppress(Fenced, Unavailable, Corrupt):
                    await replica.cold.collector.sweep(replica.partition_id, replica.topic, replica.leader_epoch)
            await self._clock.sleep(SWEEP_SECONDS)

    async def tier(self: Tiering, replica: LeaderReplica) -> None:
        sweeping = asyncio.create_task(sweep(self, replica), name="sweeps")
        try:
            await original(self, replica)
        finally:
            sweeping.cancel()

    return tier


def sweep_named_objects(original: Any) -> Any:
    def garbage(listed: Any, alive: Any, busy: Any, epoch: int) -> Any:
        return [each for each in listed if not each.key.endswith("/manifest")]

    return garbage


def skip_epoch_fence(original: Any) -> Any:
    async def change(self: ManifestStore, partition_id: PartitionId, topic: str, epoch: int, fn: Any) -> Any:
        known = await self.load(partition_id)
        return await original(self, partition_id, topic, max(epoch, known.leader_epoch) if known else epoch, fn)

    return change


def skip_reconcile(original: Any) -> Any:
    return lambda *args: KeepLocalLog()


# -- producers and readers --------------------------------------------------------------------------------------------


def forget_producers_on_start(original: Any) -> Any:
    async def open(cls: type[DiskLog], *args: Any, **options: Any) -> DiskLog:
        log: DiskLog = await original.__func__(cls, *args, **options)
        log._writer.replace_producers(ProducerStates(log.end_offset))
        return log

    return classmethod(open)


def forget_producers_on_follow(original: Any) -> Any:
    def append_as_follower(self: DiskLog, data: Any, **how: Any) -> None:
        original(self, data, **how)
        self._writer.replace_producers(ProducerStates(self.end_offset))

    return append_as_follower


def serve_to_log_end(original: Any) -> Any:
    def ends(self: LeaderReads) -> tuple[int, int, int]:
        committed, stable, start = original(self)
        end = self.unified_log.hot.end_offset
        return max(committed, end), max(stable, end), start

    return ends


def use_log_end_for_epoch(original: Any) -> Any:
    async def end_of_cold_epoch(replica: Any, epoch: int) -> tuple[int, int]:
        return epoch, replica.log.end_offset

    return end_of_cold_epoch


def accept_any_commit(original: Any) -> Any:
    def refusal(group: Any, request: Any) -> Any:
        return None if group is not None else original(group, request)

    return refusal


def take_all_for_free(original: Any) -> Any:
    return lambda group, topic_id, partition: True


def own_nothing(original: Any) -> Any:
    return lambda owned, partitions: False


def accept_any_epoch(original: Any) -> Any:
    def refusal(group: Any, member_id: str, epoch: int) -> Any:
        return None if member_id in group.members else original(group, member_id, epoch)

    return refusal


def forget_sessions(original: Any) -> Any:
    return lambda decision, group, member_id, metadata: None


def refuse_late_members(original: Any) -> Any:
    def refusal(turn: Any, request: Any) -> Code | None:
        late = turn.now.mono_ms > REFUSE_AFTER_MS
        return Code.COORDINATOR_NOT_AVAILABLE if late else cast("Code | None", original(turn, request))

    return refusal


def skip_replica_stop(original: Any) -> Any:
    return lambda self, deleted: None


def keep_leading_deleted_topic(original: Any) -> Any:
    return lambda self, topic_id: False


def leave_stream_open(original: Any) -> Any:
    def lose(self: BrokerConnection, why: Any) -> Any:
        if self.closed is None:
            left, self._stream = self._stream, cast("Any", NoStream())
            left.on_readable(None)
            left.on_writable(None)
            LEAKED.append(left)
        return original(self, why)

    return lose


def write_empty_snapshot(original: Any) -> Any:
    async def write(self: CoordinatorSnapshotStore, name: Any, records: Any) -> None:
        await original(self, name, [])

    return write


def open_file_per_read(original: Any) -> Any:
    def get(self: OpenFiles, path: str, *, create: bool = False) -> Any:
        LEAKED.append(self._disk.open(path, create=create, write=False))
        return original(self, path, create=create)

    return get


def skip_settle_time(original: Any) -> Any:
    return lambda tiering: 1


def never_suspect(original: Any) -> Any:
    return lambda logs, at: False


def reply_before_commit(original: Any) -> Any:
    async def submit(self: Runtime[Any], request: Any, timeout: float) -> Any:
        if isinstance(request, CreateTopics | DeleteTopic | CreatePartitions | AlterTopicConfigs):
            decision = self._shard.decide(request, self._clock.wall_ms())
            self._shard.apply(decision.changes)
            self._parked.append(_ParkedRequest(decision, asyncio.get_running_loop().create_future()))
            self._wake.set()
            return decision.reply
        return await original(self, request, timeout)

    return submit
