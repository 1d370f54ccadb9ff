"""Shares of the memory of transactional ids: an id counts for its first caller, above its share a holder gets none."""

from __future__ import annotations

from tests.unit.transactions.rig import P0, ShardRig
from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered.transactions.decision import ID_BYTES
from tiered.transactions.limits import TransactionSettings


def small_rig() -> ShardRig:
    rig = ShardRig(TransactionSettings(bytes_max=60 * ID_BYTES))
    rig.shard.state.on_refused = lambda _, holder, why: None
    return rig


def fill(rig: ShardRig, holder: str) -> int:
    """Begins with ever more ids until one is refused. Returns how many were not."""
    for number in range(1_000):
        code = rig.init(name=f"{holder}.{number}", holder=holder).code
        if code is not Code.NONE:
            assert code is Code.COORDINATOR_NOT_AVAILABLE and code.retriable
            return number
    raise AssertionError("nothing was refused")


def test_greedy_holder_leaves_room_for_ids_of_others() -> None:
    rig, refused = small_rig(), list[tuple[str, str]]()
    rig.shard.state.on_refused = lambda _, holder, why: refused.append((holder, why))
    assert 40 <= fill(rig, "alice") <= 45
    assert rig.init(name="bob", holder="bob").code is Code.NONE
    assert rig.init(name="alice.0", holder="alice").code is Code.NONE, "it has its id"
    ((holder, why),) = refused
    assert holder == "alice" and "bytes of transactional ids are taken (tiered.transactions.max.bytes)" in why


def test_greedy_holder_adds_no_partitions_and_others_do() -> None:
    rig = small_rig()
    fill(rig, "alice")
    many = [TopicPartition("t", number) for number in range(20)]
    assert rig.add(rig.init(name="alice.0", holder="alice"), *many, name="alice.0") is Code.COORDINATOR_NOT_AVAILABLE
    assert rig.add(rig.init(name="bob", holder="bob"), P0, name="bob") is Code.NONE


def test_id_counts_for_its_first_caller_until_it_expires() -> None:
    rig = small_rig()
    rig.init(name="t", holder="alice")
    rig.init(name="t", holder="bob")
    assert rig.shard.state.by_holder == {"alice": rig.shard.state.memory_bytes}
    rig.pass_time(rig.settings.id_expiration_ms + rig.settings.expiration_check_ms)
    rig.pass_time(rig.settings.expiration_check_ms)
    assert "t" not in rig.shard.state.transactions and rig.shard.state.by_holder == {}


def test_loaded_ids_count_for_nobody_until_they_are_used() -> None:
    rig = small_rig()
    taken = fill(rig, "alice")
    rig.reload()
    assert rig.shard.state.by_holder == {}
    assert 0 < fill(rig, "again") < taken // 4
    assert rig.init(name="alice.0", holder="alice").code is Code.NONE
    assert rig.shard.state.by_holder["alice"] > 0
