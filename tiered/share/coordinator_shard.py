"""The share coordinator of one partition of `__share_group_state`, as a pure shard.

It keeps what the leaders of partitions have persisted of their share partitions. Each share partition has two epochs. A
write of an earlier leader is fenced by the leader epoch of its successor, which that gives when it reads. A write from
before a reset of offsets is fenced by the state epoch (I39).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Never

from tiered.errors import Code
from tiered.ids import TopicId
from tiered.shard import UNAWAITED, CoordinatorRecord, CoordinatorResult, Now, ProducerIdAndEpoch
from tiered.share import requests
from tiered.share.coordinator_state import ShardState, merge_update
from tiered.share.limits import ShareCoordinatorSettings
from tiered.share.records import ShareSnapshot, ShareUpdate, snapshot_record, update_record
from tiered.share.requests import (
    NO_EPOCH,
    InitializeState,
    ReadReply,
    ReadState,
    Reply,
    Request,
    SharePartitionKey,
    StateReply,
    SummarizeState,
    SummaryReply,
    WriteState,
)
from tiered.share.state import PERSISTED_STATES, UNINITIALIZED_OFFSET, StateBatch, join_batches

SNAPSHOT_PART_RECORDS = 1_000
GROUP_BYTES_MAX = 32_767
"""Largest id of a group: records have its length in 15 bits."""
DONE = StateReply()
Result = CoordinatorResult[Reply, Never]


class ShareCoordinatorShard:
    """Decides the requests of one coordinator partition. It is a `tiered.shard.CoordinatorShard`.

    The reply to a request comes with its decision: no request is parked, and there are no deadlines.
    """

    def __init__(
        self,
        settings: ShareCoordinatorSettings,
        has_partition: Callable[[TopicId, int], bool],
        other_shards_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.state = ShardState(settings, has_partition=has_partition, other_shards_bytes=other_shards_bytes)

    # -- the log -------------------------------------------------------------------------------------------------------

    def apply(self, records: Iterable[CoordinatorRecord], /) -> None:
        """Applies records of a snapshot, then of the log, in order."""
        self.state.apply(records)

    def end_transaction(self, marker: ProducerIdAndEpoch, is_commit: bool, /) -> None:
        """Does nothing: no transaction writes to `__share_group_state`."""

    def on_loaded(self, now: Now, /) -> None:
        """Does nothing: there are no deadlines."""

    def snapshot(self) -> Iterator[Sequence[CoordinatorRecord]]:
        """Yields the state as the fewest records that give it, in parts."""
        keys = iter(tuple(self.state.partitions))
        while part := list(islice(keys, SNAPSHOT_PART_RECORDS)):
            found = ((key, self.state.partitions.get(key)) for key in part)
            yield [snapshot_record(key, value) for key, value in found if value is not None]

    # -- decisions -----------------------------------------------------------------------------------------------------

    def decide(self, request: Request, now: Now, token: int = UNAWAITED, /) -> Result:
        """Decides a request. Its records are applied at once."""
        records: tuple[CoordinatorRecord, ...] = ()
        reply: Reply = DONE
        match request:
            case requests.InitializeState():
                reply, records = self._initialize(request, now)
            case requests.ReadState():
                reply, records = self._read(request)
            case requests.WriteState():
                reply, records = self._write(request, now)
            case requests.SummarizeState():
                reply = self._summarize(request)
            case requests.DeleteState():
                records = self._delete([request.key])
            case requests.TopicsDeleted():
                records = self._delete([key for key in self.state.partitions if key.topic_id in request.topic_ids])
        self.state.apply(records)
        return CoordinatorResult(records, ((token, reply),))

    @property
    def next_due_ms(self) -> int | None:
        """None: there are no deadlines."""
        return None

    def due(self, now: Now, /) -> Result:
        """Does nothing: there are no deadlines."""
        return CoordinatorResult()

    def cancel_request(self, token: int, /) -> None:
        """Does nothing: no request is parked."""

    def _initialize(self, request: InitializeState, now: Now) -> tuple[StateReply, tuple[CoordinatorRecord, ...]]:
        key, found = request.key, self.state.partitions.get(request.key)
        if found is not None and request.state_epoch < found.state_epoch:
            return _fenced_state(found, request.state_epoch), ()
        refused = self._check_key(key)
        if refused is not None:
            return refused, ()
        if request.start_offset < UNINITIALIZED_OFFSET or request.state_epoch < 0:
            return StateReply(Code.INVALID_REQUEST, "a state epoch or start offset is negative"), ()
        if found is not None and (found.state_epoch, found.start_offset, found.batches) == (
            request.state_epoch,
            request.start_offset,
            (),
        ):
            return DONE, ()  # the caller did not get the reply to an earlier request
        if found is None and self.state.held_bytes >= self.state.settings.bytes_max // 2:
            return StateReply(Code.COORDINATOR_NOT_AVAILABLE, "the memory for new share partitions is full"), ()
        value = ShareSnapshot(
            0 if found is None else found.snapshot_epoch + 1,
            request.state_epoch,
            0 if found is None else found.leader_epoch,
            request.start_offset,
            now.wall_ms,
            now.wall_ms,
        )
        return DONE, (snapshot_record(key, value),)

    def _read(self, request: ReadState) -> tuple[ReadReply, tuple[CoordinatorRecord, ...]]:
        found = self.state.partitions.get(request.key)
        if found is None:
            return ReadReply(Code.INVALID_REQUEST, "the share partition is not initialized"), ()
        epoch = request.leader_epoch
        if epoch != NO_EPOCH and epoch < found.leader_epoch:
            refused = _fenced_leader(found, epoch)
            return ReadReply(refused.code, refused.why), ()
        records: tuple[CoordinatorRecord, ...] = ()
        if epoch > found.leader_epoch:
            # The record fences the leader before, also if this coordinator has a successor.
            update = ShareUpdate(found.snapshot_epoch, epoch, found.start_offset, (), found.delivery_complete_count)
            records = (update_record(request.key, update),)
        return ReadReply(Code.NONE, "", found.state_epoch, found.start_offset, found.batches), records

    def _write(self, request: WriteState, now: Now) -> tuple[StateReply, tuple[CoordinatorRecord, ...]]:
        key, found = request.key, self.state.partitions.get(request.key)
        if found is None:
            return StateReply(Code.INVALID_REQUEST, "the share partition is not initialized"), ()
        if request.leader_epoch < found.leader_epoch:
            return _fenced_leader(found, request.leader_epoch), ()
        if request.state_epoch < found.state_epoch:
            return _fenced_state(found, request.state_epoch), ()
        refused = self._check_key(key) or _check_content(request, found)
        if refused is not None:
            return refused, ()
        update = ShareUpdate(
            found.snapshot_epoch, request.leader_epoch, request.start_offset, join_batches(request.batches, 0),
            request.delivery_complete_count,
        )  # fmt: skip
        merged = merge_update(found, update)
        settings = self.state.settings
        if len(merged.batches) > settings.batches_max:
            return StateReply(Code.INVALID_REQUEST, f"share partitions have {settings.batches_max} batches at most"), ()
        if len(merged.batches) > len(found.batches) and self.state.held_bytes >= settings.bytes_max:
            return StateReply(Code.COORDINATOR_NOT_AVAILABLE, "the memory for share partitions is full"), ()
        if self.state.updates[key] < settings.updates_per_snapshot:
            return DONE, (update_record(key, update),)
        snapshot = replace(merged, snapshot_epoch=merged.snapshot_epoch + 1, written_ms=now.wall_ms)
        return DONE, (snapshot_record(key, snapshot),)

    def _summarize(self, request: SummarizeState) -> SummaryReply:
        found = self.state.partitions.get(request.key)
        if found is None:
            return SummaryReply()
        return SummaryReply(
            Code.NONE, "", found.state_epoch, found.leader_epoch, found.start_offset, found.delivery_complete_count
        )

    def _delete(self, keys: Iterable[SharePartitionKey]) -> tuple[CoordinatorRecord, ...]:
        return tuple(snapshot_record(key, None) for key in keys if key in self.state.partitions)

    def _check_key(self, key: SharePartitionKey) -> StateReply | None:
        if not 0 < len(key.group.encode(errors="surrogatepass")) <= GROUP_BYTES_MAX:
            return StateReply(Code.INVALID_GROUP_ID, f"the id of a group has 1 to {GROUP_BYTES_MAX} bytes")
        if self.state.has_partition(key.topic_id, key.partition):
            return None
        return StateReply(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {key.topic_id}/{key.partition}")


def _check_content(request: WriteState, found: ShareSnapshot) -> StateReply | None:
    if request.state_epoch > found.state_epoch:
        why = f"state epoch {request.state_epoch} was never given, the present one is {found.state_epoch}"
        return StateReply(Code.INVALID_REQUEST, why)
    if request.start_offset < UNINITIALIZED_OFFSET:
        return StateReply(Code.INVALID_REQUEST, f"start offset {request.start_offset} is negative")
    return next(map(_refuse_batch, filter(_is_malformed, request.batches)), None)


def _is_malformed(batch: StateBatch) -> bool:
    in_order = 0 <= batch.first_offset <= batch.last_offset
    return not in_order or batch.state not in PERSISTED_STATES or batch.delivery_count < 0


def _refuse_batch(batch: StateBatch) -> StateReply:
    first, last, state, count = batch
    return StateReply(Code.INVALID_REQUEST, f"batch of {first} to {last}: state {state}, delivery count {count}")


def _fenced_leader(found: ShareSnapshot, epoch: int) -> StateReply:
    return StateReply(Code.FENCED_LEADER_EPOCH, f"leader epoch {epoch} is below {found.leader_epoch}")


def _fenced_state(found: ShareSnapshot, epoch: int) -> StateReply:
    return StateReply(Code.FENCED_STATE_EPOCH, f"state epoch {epoch} is below {found.state_epoch}")
