"""Deletion of records below an offset, as DeleteRecords asks for it: the manifest before the local log, and no reply
before each possible next leader knows of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tiered.compaction.cleanable_range import DELETE, is_compacted
from tiered.errors import Code, Refused
from tiered.replication.append_admission import AppendAdmission
from tiered.replication.leader_reads import LeaderReads
from tiered.replication.leader_state import LeaderState
from tiered.replication.unified_log import UnifiedLog


class RecordDeletion:
    """The deletions of one leader replica. `save_offsets` writes the start offsets of all logs durably."""

    __slots__ = ("_admission", "_event", "_reads", "_save_offsets", "_state", "_unified_log", "waiting")

    def __init__(
        self,
        unified_log: UnifiedLog,
        state: LeaderState,
        reads: LeaderReads,
        admission: AppendAdmission,
        save_offsets: Callable[[], Awaitable[None]],
    ) -> None:
        self._unified_log = unified_log
        self._state = state
        self._reads = reads
        self._admission = admission
        self._save_offsets = save_offsets
        self.waiting = 0
        """Number of callers that wait for followers: followers must then learn a new log start at once."""
        self._event: asyncio.Event | None = None
        """Set, and replaced by a new event, whenever the condition of these callers may have become true. None while
        nobody waits: an event takes as much memory as a tenth of a partition."""

    async def delete_records(self, before: int) -> int:
        """Moves the log start offset to `before` (-1: the high watermark). Returns the log start offset once no later
        leader can serve records below `before`. A caller that gives up earlier leaves the deletion in progress.

        Raises `Refused`: OFFSET_OUT_OF_RANGE beyond the high watermark, or the reason why this broker stopped leading
        the partition. Raises `Fenced` and `Unavailable` (the bucket or the disk).
        """
        return await self.finish(await self.start(before))

    async def start(self, before: int) -> int:
        """The part of `delete_records` that may change the manifest. Returns the offset for `finish`."""
        unified_log, leader_epoch = self._unified_log, self._state.leader_epoch
        high_watermark, tp = self._state.high_watermark, unified_log.tp
        before = high_watermark if before == -1 else before
        if not 0 <= before <= high_watermark:
            raise Refused(
                Code.OFFSET_OUT_OF_RANGE, f"offset {before} of {tp} is beyond the high watermark {high_watermark}"
            )
        config = unified_log.config
        if is_compacted(config) and DELETE not in config.cleanup_policy:
            raise Refused(
                Code.POLICY_VIOLATION,
                f"records of {tp} are not deleted: its cleanup.policy is compact without delete",
            )
        self._admission.require_controller_contact()
        manifest = unified_log.manifest
        tiered = config.remote_storage_enable or manifest is not None
        if tiered and before > (manifest.log_start_offset if manifest is not None else 0):
            partition_id = unified_log.partition_id
            manifest = manifest or await unified_log.cold.manifests.take_over(partition_id, tp.topic, leader_epoch)
            moved = await unified_log.cold.collector.advance_start(manifest, leader_epoch, before)
            unified_log.update_manifest(moved)
        self.advance_start(before)
        self._state.record_deletion(before)  # not earlier: a failed put must keep no follower out of the ISR
        return before

    async def finish(self, before: int) -> int:
        """The part of `delete_records` that waits for the disk and for followers. Partitions that wait together share
        one write of the offsets. Returns the offset below which no later leader serves a record: retention may have
        moved the log start of this leader further meanwhile."""
        unified_log = self._unified_log
        if unified_log.manifest is None and unified_log.hot.checkpointed_start_offset < before:
            await self._save_offsets()
        await self._wait_deleted(before)
        return self._state.low_watermark(unified_log.log_start_offset)

    def advance_start(self, before: int) -> None:
        """Stops serving records below `before`. Later leaders need not know of it. Raises `Refused` if another broker
        leads the partition, or may."""
        if self._reads.stop_error is not None:
            raise self._reads.stop_error
        self._admission.require_controller_contact()
        if before > self._unified_log.hot.start_offset:
            self._unified_log.hot.advance_start(before)

    async def _wait_deleted(self, before: int) -> None:
        """Returns once every member of the ISR, from which the next leader comes, knows under this leader epoch that
        the log starts at `before`. A member that follows another leader does not say so to this one, and may have read
        the manifest before the deletion."""
        if not self._is_deleted(before):
            self.waiting += 1
            try:
                self._reads.end_listeners.notify()
                while not self._is_deleted(before):
                    if self._event is None:
                        self._event = asyncio.Event()
                    await self._event.wait()
            finally:
                self.waiting -= 1
        if self._reads.stop_error is not None:
            raise self._reads.stop_error
        self._admission.require_controller_contact()

    def _is_deleted(self, before: int) -> bool:
        """True if no caller has to wait for the deletion any longer. A member that left the ISR while it was below
        `min.insync.replicas` may lead too, and may have read the manifest before the deletion."""
        if self._reads.stop_error is not None:
            return True
        minimum = self._unified_log.config.min_insync_replicas
        return self._state.has_min_isr(minimum) and self._state.is_deleted_on_isr(before)

    def wake(self) -> None:
        """Lets waiting callers look again: a follower, the ISR, the settings or the leadership changed."""
        event, self._event = self._event, None
        if event is not None:
            event.set()
