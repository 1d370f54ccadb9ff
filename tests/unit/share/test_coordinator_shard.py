"""The share coordinator shard: epochs that fence, writes in any order, snapshots, bounds (I39)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import Code
from tiered.ids import TopicId
from tiered.shard import CoordinatorRecord, Now, ProducerIdAndEpoch
from tiered.share.coordinator_shard import ShareCoordinatorShard
from tiered.share.coordinator_state import size_of
from tiered.share.limits import ShareCoordinatorSettings
from tiered.share.records import UPDATE_KEY, read_key
from tiered.share.requests import (
    DeleteState,
    InitializeState,
    ReadReply,
    ReadState,
    Request,
    SharePartitionKey,
    StateReply,
    SummarizeState,
    SummaryReply,
    TopicsDeleted,
    WriteState,
)
from tiered.share.state import RecordState, StateBatch

TOPIC, GONE = TopicId("AAECAwQFBgcICQoLDA0ODw"), TopicId("BAECAwQFBgcICQoLDA0ODw")
KEY = SharePartitionKey("g", TOPIC, 0)
AVAILABLE, ACKNOWLEDGED, ARCHIVED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED
NOW = Now(0, 1_000, 1_000)


class Rig:
    """A shard, and the log that it writes. Each decision is compared with a replay of the log."""

    def __init__(self, **settings: int) -> None:
        self.settings = ShareCoordinatorSettings(**settings)
        self.log: list[CoordinatorRecord] = []
        self.shard = self.make()

    def make(self) -> ShareCoordinatorShard:
        return ShareCoordinatorShard(self.settings, lambda topic, number: topic == TOPIC and number < 3)

    def do(self, request: Request) -> Any:
        result = self.shard.decide(request, NOW, 5)
        self.log += result.records
        [(token, reply)] = result.replies
        assert token == 5
        self.check()
        return reply

    def check(self) -> None:
        replayed, restored = self.make(), self.make()
        replayed.apply(self.log)
        for part in self.shard.snapshot():
            restored.apply(part)
        state = self.shard.state
        assert replayed.state.partitions == restored.state.partitions == state.partitions
        assert replayed.state.updates == state.updates
        assert state.memory_bytes == sum(size_of(key, value) for key, value in state.partitions.items())
        assert state.skipped_records == replayed.state.skipped_records == 0

    def begin(self, state_epoch: int = 1, start: int = 0, key: SharePartitionKey = KEY) -> StateReply:
        reply = self.do(InitializeState(key, state_epoch, start))
        assert isinstance(reply, StateReply)
        return reply

    def write(
        self, *batches: tuple[int, int, RecordState, int], start: int = -1, leader: int = 2, epoch: int = 1
    ) -> Code:
        rows = tuple(StateBatch(*each) for each in batches)
        reply = self.do(WriteState(KEY, epoch, leader, start, 0, rows))
        assert isinstance(reply, StateReply)
        return reply.code

    def read(self, leader: int = -1) -> ReadReply:
        reply = self.do(ReadState(KEY, leader))
        assert isinstance(reply, ReadReply)
        return reply


def test_written_state_is_read() -> None:
    rig = Rig()
    assert rig.begin(start=3) == StateReply()
    assert rig.write((3, 4, ACKNOWLEDGED, 1), (8, 8, AVAILABLE, 2)) is Code.NONE
    assert rig.write((4, 6, ARCHIVED, 1), start=4) is Code.NONE
    expected = (StateBatch(4, 6, ARCHIVED, 1), StateBatch(8, 8, AVAILABLE, 2))
    assert rig.read() == ReadReply(state_epoch=1, start_offset=4, batches=expected)


def test_uninitialized_share_partition_is_neither_read_nor_written() -> None:
    rig = Rig()
    assert rig.read().code is rig.write((0, 0, ACKNOWLEDGED, 1)) is Code.INVALID_REQUEST
    assert rig.do(SummarizeState(KEY)) == SummaryReply()
    assert rig.do(DeleteState(KEY)) == StateReply()
    assert rig.log == []


def test_read_by_the_next_leader_fences_the_one_before() -> None:
    rig = Rig()
    rig.begin()
    assert rig.read(leader=3).code is Code.NONE
    assert rig.write((0, 0, ACKNOWLEDGED, 1), leader=2) is Code.FENCED_LEADER_EPOCH
    assert rig.read(leader=2).code is Code.FENCED_LEADER_EPOCH
    assert rig.read().batches == ()
    before = len(rig.log)
    assert rig.read(leader=3).code is Code.NONE
    assert len(rig.log) == before


def test_reset_of_offsets_fences_the_writes_before_it() -> None:
    rig = Rig()
    rig.begin()
    rig.write((0, 0, ACKNOWLEDGED, 1), leader=4)
    assert rig.begin(state_epoch=2, start=50).code is Code.NONE
    assert rig.write((0, 0, ACKNOWLEDGED, 1), leader=4, epoch=1) is Code.FENCED_STATE_EPOCH
    assert rig.begin(state_epoch=1).code is Code.FENCED_STATE_EPOCH
    assert rig.write(epoch=3, leader=4) is Code.INVALID_REQUEST
    assert rig.write(epoch=2, leader=3) is Code.FENCED_LEADER_EPOCH
    assert rig.read() == ReadReply(state_epoch=2, start_offset=50)


def test_repeated_initialization_changes_nothing() -> None:
    rig = Rig()
    rig.begin()
    assert rig.begin() == StateReply()
    assert len(rig.log) == 1


@pytest.mark.parametrize("batch", [(0, 0, 1, 1), (0, 0, 3, 1), (2, 1, 2, 1), (-1, 1, 2, 1), (0, 0, 2, -1)], ids=repr)
def test_malformed_batch_is_refused(batch: tuple[int, int, RecordState, int]) -> None:
    rig = Rig()
    rig.begin()
    assert rig.write((5, 5, ACKNOWLEDGED, 1), batch) is Code.INVALID_REQUEST
    assert rig.read().batches == ()


def test_partition_that_does_not_exist_is_refused() -> None:
    rig = Rig()
    for key in (SharePartitionKey("g", GONE, 0), SharePartitionKey("g", TOPIC, 3)):
        assert rig.begin(key=key).code is Code.UNKNOWN_TOPIC_OR_PARTITION


def test_deleted_topics_take_their_share_partitions() -> None:
    rig = Rig()
    other = SharePartitionKey("h", TOPIC, 1)
    rig.begin()
    rig.begin(key=other)
    assert rig.do(DeleteState(KEY)) == StateReply()
    assert set(rig.shard.state.partitions) == {other}
    rig.do(TopicsDeleted(frozenset((GONE,))))
    assert set(rig.shard.state.partitions) == {other}
    rig.do(TopicsDeleted(frozenset((TOPIC,))))
    assert (rig.shard.state.partitions, rig.shard.state.memory_bytes) == ({}, 0)


def test_snapshot_follows_the_permitted_updates() -> None:
    rig = Rig(updates_per_snapshot=2)
    rig.begin()
    for at in range(6):
        rig.write((at, at, ACKNOWLEDGED, 1), start=at)
    kinds = [found.kind for key, _, _ in rig.log if (found := read_key(key)) is not None]
    assert kinds == [0, UPDATE_KEY, UPDATE_KEY, 0, UPDATE_KEY, UPDATE_KEY, 0]
    assert rig.shard.state.partitions[KEY].snapshot_epoch == 2


def test_summary_has_the_count_of_the_newest_write() -> None:
    rig = Rig()
    rig.begin()
    rig.do(WriteState(KEY, 1, 2, 4, 3, (StateBatch(5, 7, ACKNOWLEDGED, 1),)))
    rig.do(WriteState(KEY, 1, 2, 2, 9, ()))  # a late one
    assert rig.do(SummarizeState(KEY)) == SummaryReply(Code.NONE, "", 1, 2, 4, 3)
    rig.do(WriteState(KEY, 1, 2, -1, 5, ()))  # one that leaves the start offset as it is
    assert rig.do(SummarizeState(KEY)) == SummaryReply(Code.NONE, "", 1, 2, 4, 5)


def test_batches_and_memory_are_bounded() -> None:
    rig = Rig(batches_max=2, bytes_max=2_000)
    assert rig.begin().code is Code.NONE
    rig.begin(key=KEY._replace(partition=1))
    assert rig.begin(key=KEY._replace(partition=2)).code is Code.COORDINATOR_NOT_AVAILABLE
    assert rig.write((0, 0, ACKNOWLEDGED, 1), (2, 2, ACKNOWLEDGED, 1), (4, 4, ACKNOWLEDGED, 1)) is Code.INVALID_REQUEST
    assert rig.write((0, 0, ACKNOWLEDGED, 1), (2, 2, ACKNOWLEDGED, 1)) is Code.NONE
    rig.shard.state.other_shards_bytes = lambda: 2_000
    assert rig.write((0, 0, ARCHIVED, 1)) is Code.NONE  # what takes no memory goes on
    assert rig.write(start=1) is Code.NONE
    assert rig.write((4, 4, ACKNOWLEDGED, 1)) is Code.COORDINATOR_NOT_AVAILABLE


writes = st.lists(
    st.tuples(
        st.integers(-1, 12),
        st.lists(
            st.builds(
                lambda first, size, state, count: StateBatch(first, first + size, state, count),
                st.integers(0, 15),
                st.integers(0, 5),
                st.sampled_from([AVAILABLE, ACKNOWLEDGED, ARCHIVED]),
                st.integers(1, 3),
            ),
            max_size=3,
        ),
    ),
    max_size=6,
)


@given(writes, st.randoms(use_true_random=False), st.integers(0, 3))
def test_late_and_repeated_writes_give_the_same_state(
    found: list[tuple[int, list[StateBatch]]], random: Any, updates: int
) -> None:
    mixed = [*found, *found]
    random.shuffle(mixed)

    def state_after(rows: Sequence[tuple[int, list[StateBatch]]], updates: int) -> ReadReply:
        rig = Rig(updates_per_snapshot=updates)
        rig.begin()
        for start, rows_of_write in rows:
            rig.do(WriteState(KEY, 1, 2, start, 0, tuple(rows_of_write)))
        return rig.read()

    assert state_after(found, 100) == state_after(mixed, updates)


def test_unreadable_records_are_counted_and_skipped() -> None:
    shard = Rig().make()
    shard.apply([CoordinatorRecord(b"\0\7", b""), CoordinatorRecord(b"\0", b""), CoordinatorRecord(b"", None)])
    shard.apply(Rig().log)
    assert shard.state.skipped_records == 3


def test_shard_has_no_deadlines_and_no_transactions() -> None:
    shard = Rig().make()
    shard.on_loaded(NOW)
    shard.cancel_request(1)
    shard.end_transaction(ProducerIdAndEpoch(1, 1), True)
    assert shard.next_due_ms is None
    assert shard.due(NOW) == ((), (), ())
