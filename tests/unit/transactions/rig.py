"""A shard of transactions under a clock that the test moves, with a log that can be loaded again."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered.shard import CoordinatorRecord, CoordinatorResult, Now
from tiered.transactions.limits import TransactionSettings
from tiered.transactions.metadata import TransactionMetadata, TransactionState
from tiered.transactions.requests import (
    AddPartitions,
    CodeReply,
    EndTransaction,
    Event,
    InitProducerId,
    MarkersDue,
    MarkersWritten,
    ProducerIdReply,
    Reply,
    Request,
)
from tiered.transactions.shard import TransactionShard

T = "t"
P0, P1 = TopicPartition("a", 0), TopicPartition("b", 1)
ReplyT = TypeVar("ReplyT")
WALL_MS = 1_700_000_000_000


class ShardRig:
    """`log` has all records, `events` all events since `take_events`. Fresh producer ids count from 100."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.settings = settings or TransactionSettings()
        self.shard = TransactionShard(self.settings)
        self.log: list[CoordinatorRecord] = []
        self.events: list[Event] = []
        self.mono_ms = 1_000
        self.wall_ms = WALL_MS
        self.fast_ms = 0
        self.next_producer_id = 100
        self.shard.on_loaded(self.now)

    @property
    def now(self) -> Now:
        return Now(self.mono_ms, self.wall_ms, self.wall_ms - self.fast_ms)

    def pass_time(self, ms: int) -> None:
        """Moves both clocks, and handles what is due."""
        self.mono_ms += ms
        self.wall_ms += ms
        self._take(self.shard.due(self.now))

    def send(self, request: Request) -> Reply:
        """Decides one request, and checks the rules of the state."""
        result = self.shard.decide(request, self.now, 7)
        self._take(result)
        ((token, reply),) = result.replies
        assert token == 7
        return reply

    def _take(self, result: CoordinatorResult[Reply, Event]) -> None:
        self.log += result.records
        self.events += result.events
        assert self.shard.find_violations() == ()

    def take_events(self) -> list[Event]:
        taken, self.events = self.events, []
        return taken

    def reload(self) -> None:
        """Drops the shard, and loads another one from the log."""
        self.shard = TransactionShard(self.settings)
        self.shard.apply(self.log)
        self.shard.on_loaded(self.now)
        assert self.shard.find_violations() == ()
        self._take(self.shard.due(self.now))

    def found(self, name: str = T) -> TransactionMetadata:
        return self.shard.state.transactions[name]

    # -- requests -----------------------------------------------------------------------------------------------------

    def init(
        self, producer_id: int = -1, producer_epoch: int = -1, *, name: str = T, timeout_ms: int = 60_000,
        holder: str = "",
    ) -> ProducerIdReply:  # fmt: skip
        """InitProducerId, with a fresh producer id only if the shard says that it needs one."""
        request = InitProducerId(name, timeout_ms, producer_id, producer_epoch, holder=holder)
        if self.shard.needs_producer_id(request):
            request = replace(request, new_producer_id=self._fresh_id())
        reply = self.send(request)
        assert isinstance(reply, ProducerIdReply)
        return reply

    def add(self, producer: ProducerIdReply, *partitions: TopicPartition, name: str = T, version: int = 2) -> Code:
        reply = self.send(
            AddPartitions(name, producer.producer_id, producer.producer_epoch, frozenset(partitions), version)
        )
        assert isinstance(reply, CodeReply)
        return reply.code

    def end(self, producer: ProducerIdReply, commit: bool, *, name: str = T, version: int = 2) -> ProducerIdReply:
        request = EndTransaction(name, producer.producer_id, producer.producer_epoch, commit, version)
        if self.shard.needs_producer_id(request):
            request = EndTransaction(
                name, producer.producer_id, producer.producer_epoch, commit, version, self._fresh_id()
            )
        reply = self.send(request)
        assert isinstance(reply, ProducerIdReply)
        return reply

    def write_markers(self, due: Event, *partitions: TopicPartition) -> None:
        """Tells the shard that markers are written: in these partitions, or in all that are due."""
        assert isinstance(due, MarkersDue)
        wanted = frozenset(partitions) or due.partitions
        self.send(MarkersWritten(due.transactional_id, due.producer_id, due.producer_epoch, wanted))

    def write_all_markers(self) -> None:
        for event in self.take_events():
            if isinstance(event, MarkersDue):
                self.write_markers(event)

    def _fresh_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id - 1


def make_shard_in(state: TransactionState, version: int = 2) -> tuple[ShardRig, ProducerIdReply]:
    """Returns a shard with one id in that state, and the producer as it was before its last EndTxn."""
    rig = ShardRig()
    producer = rig.init()
    if state is TransactionState.EMPTY:
        return rig, producer
    assert rig.add(producer, P0, version=version) is Code.NONE
    if state is TransactionState.ONGOING:
        return rig, producer
    commit = state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    assert rig.end(producer, commit, version=version).code is Code.NONE
    if not state.is_prepared:
        rig.write_all_markers()
    assert rig.found().state is state
    return rig, producer
