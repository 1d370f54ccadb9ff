"""Idempotency keys of HTTP: each key has one transaction, and its request gets the reply that was committed with it."""

from __future__ import annotations

from tests.unit.transactions.rig import P0, ShardRig
from tiered.errors import Code
from tiered.ids import KEYED_FROM
from tiered.transactions.limits import KEY_IDLE_MS, REPLY_BYTES_MAX, TransactionSettings
from tiered.transactions.metadata import TransactionState
from tiered.transactions.requests import EndTransaction, InitProducerId, KeysForgotten, ProducerIdReply

REPLY = b'{"offset": 7}'


class KeyRig(ShardRig):
    """A shard with idempotency keys."""

    def begin(self, request_hash: bytes = b"h", *, name: str = "k") -> ProducerIdReply:
        request = InitProducerId(name, 30_000, request_hash=request_hash)
        if self.shard.needs_producer_id(request):
            request = InitProducerId(name, 30_000, new_producer_id=self._fresh_id(), request_hash=request_hash)
        reply = self.send(request)
        assert isinstance(reply, ProducerIdReply)
        return reply

    def commit(self, producer: ProducerIdReply, reply: bytes = REPLY, *, name: str = "k") -> ProducerIdReply:
        ended = self.send(EndTransaction(name, producer.producer_id, producer.producer_epoch, True, 2, reply=reply))
        assert isinstance(ended, ProducerIdReply)
        return ended

    def run_once(self, *, name: str = "k") -> None:
        """Begins and commits the transaction of a key."""
        producer = self.begin(name=name)
        assert self.add(producer, P0, name=name) is Code.NONE
        assert self.commit(producer, name=name).code is Code.NONE
        self.write_all_markers()


def test_key_begins_with_a_keyed_producer_id() -> None:
    rig = KeyRig()
    assert rig.begin() == ProducerIdReply(Code.NONE, KEYED_FROM | 100, 0)


def test_committed_key_gets_its_reply_before_markers_and_after_a_load() -> None:
    rig = KeyRig()
    producer = rig.begin()
    rig.add(producer, P0, name="k")
    rig.commit(producer)
    for _ in range(2):
        assert rig.found("k").state is TransactionState.PREPARE_COMMIT
        written = len(rig.log)
        assert (rig.begin().code, rig.begin().reply, len(rig.log)) == (Code.NONE, REPLY, written)
        rig.reload()
    rig.write_all_markers()
    rig.reload()
    assert (rig.found("k").state, rig.begin().reply) == (TransactionState.COMPLETE_COMMIT, REPLY)
    assert rig.begin(b"other").code is Code.DUPLICATE_RESOURCE


def test_lost_reply_to_the_commit_of_a_key_is_repeated() -> None:
    rig = KeyRig()
    producer = rig.begin()
    rig.add(producer, P0, name="k")
    ended = rig.commit(producer)
    assert rig.commit(producer).code is Code.CONCURRENT_TRANSACTIONS, (
        "as of any transaction: the markers are not written"
    )
    rig.write_all_markers()
    assert rig.commit(producer) == ended


def test_another_try_neither_aborts_nor_fences_an_open_keyed_transaction() -> None:
    rig = KeyRig()
    producer = rig.begin()
    rig.add(producer, P0, name="k")
    assert [rig.begin().code, rig.begin(b"other").code] == [Code.INVALID_TXN_STATE] * 2
    assert rig.commit(producer).code is Code.NONE


def test_try_that_has_written_nothing_is_fenced_by_the_next_one() -> None:
    rig = KeyRig()
    first, second = rig.begin(), rig.begin()
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)
    assert rig.add(first, P0, name="k") is Code.PRODUCER_FENCED
    assert rig.commit(first).code is Code.PRODUCER_FENCED
    rig.add(second, P0, name="k")
    assert rig.commit(second).code is Code.NONE


def test_key_of_a_dead_broker_is_free_after_its_timeout() -> None:
    rig = KeyRig()
    dead = rig.begin()
    rig.add(dead, P0, name="k")
    rig.pass_time(30_000)
    assert rig.begin().code is Code.CONCURRENT_TRANSACTIONS
    rig.write_all_markers()
    again = rig.begin(b"other")
    assert (again.code, again.reply) == (Code.NONE, b""), "nothing was written, so another request may have the key"
    assert rig.commit(dead).code is Code.PRODUCER_FENCED
    rig.add(again, P0, name="k")
    assert rig.commit(again).code is Code.NONE
    rig.write_all_markers()
    assert rig.begin().code is Code.DUPLICATE_RESOURCE


def test_nothing_but_time_ends_a_committed_key() -> None:
    rig = KeyRig()
    rig.run_once()
    identity = rig.begin()
    assert rig.init(name="k").code is Code.PRODUCER_FENCED, "an ordinary producer of that id"
    assert rig.add(identity, P0, name="k") is Code.INVALID_TXN_STATE
    assert rig.end(identity, False, name="k").code is Code.INVALID_TXN_STATE
    assert rig.begin().reply == REPLY
    rig.init(name="plain")
    rig.pass_time(rig.settings.key_expiration_ms - rig.settings.expiration_check_ms)
    rig.wall_ms, rig.fast_ms = rig.wall_ms + 10 * rig.settings.key_expiration_ms, 10 * rig.settings.key_expiration_ms
    rig.pass_time(rig.settings.expiration_check_ms - 1)
    assert sorted(rig.shard.state.transactions) == ["k", "plain"], "by a clock that is known to be fast"
    rig.pass_time(1 + rig.settings.expiration_check_ms)
    assert sorted(rig.shard.state.transactions) == ["plain"]
    assert rig.begin(b"other").code is Code.NONE


def test_only_a_commit_of_a_key_keeps_a_reply_of_bounded_size() -> None:
    rig = KeyRig()
    plain = rig.init(name="k")
    rig.add(plain, P0, name="k")
    assert rig.commit(plain).code is Code.INVALID_REQUEST
    keyed = rig.begin(name="l")
    rig.add(keyed, P0, name="l")
    assert rig.commit(keyed, b"x" * (REPLY_BYTES_MAX + 1), name="l").code is Code.INVALID_REQUEST
    before = rig.shard.state.memory_bytes
    assert rig.commit(keyed, b"x" * REPLY_BYTES_MAX, name="l").code is Code.NONE
    assert rig.shard.state.memory_bytes == before + REPLY_BYTES_MAX


def test_keys_take_half_of_the_ids_and_the_oldest_makes_room() -> None:
    rig = KeyRig(TransactionSettings(ids_max=4))
    rig.run_once(name="a")
    rig.begin(name="b")
    assert rig.begin(name="c").code is Code.THROTTLING_QUOTA_EXCEEDED
    assert rig.init(name="plain").code is Code.NONE
    rig.pass_time(KEY_IDLE_MS)
    assert rig.begin(name="b").code is Code.NONE, "it changed last"
    assert rig.begin(name="c").code is Code.NONE
    assert (rig.take_events(), sorted(rig.shard.state.transactions)) == ([KeysForgotten(1)], ["b", "c", "plain"])
    assert rig.begin(name="d").code is Code.THROTTLING_QUOTA_EXCEEDED


def test_key_whose_markers_are_missing_makes_no_room() -> None:
    rig = KeyRig(TransactionSettings(ids_max=4))
    decided = rig.begin(name="a")
    rig.add(decided, P0, name="a")
    assert rig.commit(decided, name="a").code is rig.begin(name="b").code is Code.NONE
    rig.pass_time(KEY_IDLE_MS)
    assert rig.begin(name="c").code is Code.NONE
    assert sorted(rig.shard.state.transactions) == ["a", "c"]


def test_keys_leave_half_of_the_memory_to_other_ids() -> None:
    rig = KeyRig(TransactionSettings(bytes_max=4_000))
    codes = [rig.begin(name=f"{n}").code for n in range(4)]
    assert codes == [Code.NONE] * 3 + [Code.THROTTLING_QUOTA_EXCEEDED]
    assert rig.init(name="plain").code is Code.NONE
