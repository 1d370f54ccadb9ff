"""Administration, expiry, snapshots, and the rules of the state under any sequence of requests."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.transactions.rig import P0, P1, WALL_MS, ShardRig, make_shard_in
from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered.shard import CoordinatorRecord
from tiered.transactions.limits import TransactionSettings
from tiered.transactions.metadata import TransactionState
from tiered.transactions.requests import (
    DescribeReply,
    DescribeTransaction,
    ListedTransaction,
    ListReply,
    ListTransactions,
    MarkersDue,
    ProducerIdReply,
)
from tiered.transactions.shard import TransactionShard


def test_open_transaction_is_described_and_an_unknown_one_not_found() -> None:
    rig, producer = make_shard_in(TransactionState.ONGOING)
    assert rig.send(DescribeTransaction("t")) == DescribeReply(
        Code.NONE, "Ongoing", 60_000, WALL_MS, producer.producer_id, producer.producer_epoch, (P0,)
    )
    assert rig.send(DescribeTransaction("x")) == DescribeReply(Code.TRANSACTIONAL_ID_NOT_FOUND)
    assert rig.send(DescribeTransaction("")) == DescribeReply(Code.INVALID_REQUEST)


def test_list_passes_all_filters() -> None:
    rig, producer = make_shard_in(TransactionState.ONGOING)
    rig.init(name="u")
    rig.pass_time(500)
    ongoing, empty = ListedTransaction("t", producer.producer_id, "Ongoing"), ListedTransaction("u", 101, "Empty")
    for request, listed in (
        (ListTransactions(), (ongoing, empty)),
        (ListTransactions(states=frozenset(("Empty",))), (empty,)),
        (ListTransactions(producer_ids=frozenset((100,))), (ongoing,)),
        (ListTransactions(duration_ms=499), (ongoing,)),
        (ListTransactions(duration_ms=500), ()),
    ):
        assert rig.send(request) == ListReply(listed)


def test_id_expires_after_its_time_but_not_within_a_transaction() -> None:
    for state in TransactionState:
        rig = make_shard_in(state)[0]
        rig.shard.state.settings = TransactionSettings(id_expiration_ms=10_000_000)
        rig.pass_time(9_999_999 - 3_600_000)
        rig.pass_time(3_600_000)
        assert "t" in rig.shard.state.transactions
        rig.pass_time(3_600_000)
        expires = state in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
        if state is TransactionState.ONGOING:
            assert rig.found().state is TransactionState.PREPARE_ABORT, "its timeout is shorter"
        else:
            assert ("t" not in rig.shard.state.transactions) is expires
        rig.reload()
        if expires:
            assert "t" not in rig.shard.state.transactions


def test_clock_that_is_known_to_be_fast_expires_and_aborts_nothing_early() -> None:
    rig, _ = make_shard_in(TransactionState.ONGOING)
    rig.init(name="u")
    day_ms = 86_400_000
    rig.wall_ms += 8 * day_ms
    rig.fast_ms = 8 * day_ms
    rig.reload()
    rig.pass_time(59_000)
    assert rig.found().state is TransactionState.ONGOING, "it has the rest of its timeout"
    rig.pass_time(1_000)
    assert rig.found().state is TransactionState.PREPARE_ABORT
    rig.pass_time(rig.settings.expiration_check_ms)
    assert "u" in rig.shard.state.transactions
    rig.fast_ms = 0
    rig.pass_time(rig.settings.expiration_check_ms)
    assert "u" not in rig.shard.state.transactions


def test_records_that_cannot_be_read_are_counted_and_skipped() -> None:
    rig, _ = make_shard_in(TransactionState.ONGOING)
    good = rig.log[-1]
    assert good.value is not None
    shard = TransactionShard(TransactionSettings())
    shard.apply(
        [
            good,
            CoordinatorRecord(good.key, good.value[:-1]),
            CoordinatorRecord(b"\0\1\0\1x", good.value),
            CoordinatorRecord(b"\0", None),
            CoordinatorRecord(good.key, b"\0\7" + good.value[2:]),
            CoordinatorRecord(good.key, good.value[:16] + b"\x09" + good.value[17:]),
        ]
    )
    assert shard.state.skipped_records == 5
    assert shard.state.transactions == rig.shard.state.transactions


class TransactionMachine(RuleBasedStateMachine):
    """Producers, markers, timeouts and loads in any order. `rig` checks the rules after each step."""

    names = st.sampled_from(["t", "u"])
    partitions = st.frozensets(st.sampled_from([P0, P1, TopicPartition("a", 1)]), min_size=1)

    def __init__(self) -> None:
        super().__init__()
        self.rig = ShardRig()
        self.producers: dict[str, ProducerIdReply] = {}
        self.decided: dict[tuple[str, int, int], bool] = {}
        self.due: list[MarkersDue] = []

    @rule(name=names, goes_on=st.booleans())
    def init(self, name: str, goes_on: bool) -> None:
        known = self.producers.get(name)
        if known is not None and goes_on:
            reply = self.rig.init(known.producer_id, known.producer_epoch, name=name)
        else:
            reply = self.rig.init(name=name)
        if reply.code is Code.NONE:
            self.producers[name] = reply
        self._take()

    @rule(name=names, partitions=partitions)
    def add(self, name: str, partitions: frozenset[TopicPartition]) -> None:
        if name in self.producers:
            self.rig.add(self.producers[name], *partitions, name=name)

    @rule(name=names, commit=st.booleans(), version=st.sampled_from([0, 2]))
    def end(self, name: str, commit: bool, version: int) -> None:
        if name in self.producers:
            reply = self.rig.end(self.producers[name], commit, name=name, version=version)
            if reply.code is Code.NONE:
                self.producers[name] = reply
        self._take()

    @rule(data=st.data())
    def write_markers(self, data: st.DataObject) -> None:
        if self.due:
            due = data.draw(st.sampled_from(self.due))
            some = data.draw(st.sampled_from(sorted(due.partitions)))
            self.rig.write_markers(due, some)
        self._take()

    @rule(ms=st.integers(1, 70_000))
    def pass_time(self, ms: int) -> None:
        self.rig.pass_time(ms)
        self._take()

    @rule()
    def reload(self) -> None:
        before = dict(self.rig.shard.state.transactions)
        self.rig.reload()
        assert self.rig.shard.state.transactions == before, "the log gives another state"
        self._take()

    @invariant()
    def snapshot_gives_the_state(self) -> None:
        copy = TransactionShard(TransactionSettings())
        for part in self.rig.shard.snapshot():
            copy.apply(part)
        assert copy.state.transactions == self.rig.shard.state.transactions

    def _take(self) -> None:
        """I14: one outcome for each producer epoch that got markers, however often they are asked for."""
        for event in self.rig.take_events():
            if isinstance(event, MarkersDue):
                self.due.append(event)
                key = (event.transactional_id, event.producer_id, event.producer_epoch)
                if self.rig.found(event.transactional_id).client_version >= 2:
                    assert self.decided.setdefault(key, event.commit) is event.commit


TestTransactionMachine = TransactionMachine.TestCase
TestTransactionMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
