"""Shares of the memory of groups: a group counts for its first caller, and a holder above its share gets no more."""

from __future__ import annotations

from tests.unit.groups.rig import RANGE, Rig
from tiered.errors import Code
from tiered.groups.limits import GroupSettings
from tiered.groups.requests import DeleteGroup, DeleteOffsets, DeleteReply, JoinGroup, JoinGroupReply, TopicsDeleted

MAX = 16_000
"""Room for some fifty groups with one offset each."""


def small_rig() -> Rig:
    return Rig(GroupSettings(bytes_max=MAX, initial_rebalance_delay_ms=0))


def fill(rig: Rig, holder: str) -> int:
    """Commits in ever more groups until one is refused. Returns how many were not."""
    for number in range(1_000):
        code = rig.commit(group=f"{holder}.{number}", holder=holder)
        if code is not Code.NONE:
            assert code is Code.COORDINATOR_NOT_AVAILABLE
            return number
    raise AssertionError("nothing was refused")


def own(rig: Rig, holder: str) -> int:
    return rig.shard.state.holders.by_holder.get(holder, 0)


def test_greedy_holder_leaves_room_for_groups_of_others() -> None:
    rig = small_rig()
    fill(rig, "alice")
    assert MAX * 0.7 < own(rig, "alice") <= MAX * 0.75
    assert rig.commit(group="bob", holder="bob") is Code.NONE
    assert rig.commit(group="alice.0", offset=7, holder="alice") is Code.NONE, "it takes no more room"
    (refused,) = {holder for holder, _ in rig.refused}
    assert refused == "alice" and "bytes of groups are taken (tiered.groups.max.bytes), alice has" in rig.refused[0][1]
    rig.check()


def test_greedy_holder_cannot_join_new_groups_and_others_can() -> None:
    rig = small_rig()
    fill(rig, "alice")

    def join(group: str, holder: str, metadata: bytes) -> Code:
        protocols = (("range", metadata),)
        request = JoinGroup(group, "", None, "c", "/h", 10_000, 10_000, "consumer", protocols, holder=holder)
        return rig.reply_to(request, JoinGroupReply).code

    assert join("alice.new", "alice", bytes(200)) is Code.COORDINATOR_NOT_AVAILABLE
    assert join("bob.new", "bob", RANGE[0][1]) is Code.MEMBER_ID_REQUIRED
    assert "alice.new" not in rig.shard.state.groups, "a refused group leaves nothing behind"
    rig.check()


def test_group_counts_for_its_first_caller() -> None:
    rig = small_rig()
    rig.commit(group="g", holder="alice")
    rig.commit(group="g", topic="other", holder="bob")
    assert own(rig, "bob") == 0 and own(rig, "alice") == rig.shard.log_state.memory_bytes
    rig.check()


def test_what_is_deleted_counts_no_more() -> None:
    rig = small_rig()
    for group in ("g", "h", "i"):
        rig.commit(group=group, holder="alice")
    assert rig.reply_to(DeleteGroup("g"), DeleteReply).code is Code.NONE
    assert rig.reply_to(DeleteOffsets("h", (("t", 0),)), DeleteReply).code is Code.NONE
    assert own(rig, "alice") == rig.shard.log_state.memory_bytes > 0
    rig.ask(TopicsDeleted(("t",)))
    assert own(rig, "alice") == 0
    rig.check()


def test_offsets_of_transactions_count_for_the_group() -> None:
    rig = small_rig()
    rig.commit(group="g", topic="first", holder="alice")
    rig.commit_in_transaction(group="g")
    pending = own(rig, "alice")
    assert pending == rig.shard.log_state.memory_bytes
    rig.end_transaction()
    assert 0 < own(rig, "alice") < pending
    assert own(rig, "alice") == rig.shard.log_state.memory_bytes


def test_expired_groups_count_no_more() -> None:
    rig = small_rig()
    rig.commit(group="g", holder="alice")
    rig.pass_ms(rig.settings.retention_ms + 2 * rig.settings.retention_check_ms)
    assert "g" not in rig.shard.state.groups and own(rig, "alice") == 0
    rig.check()


def test_member_that_leaves_takes_its_protocols_along() -> None:
    rig = small_rig()
    request = JoinGroup("g", "", None, "c", "/h", 10_000, 10_000, "consumer", RANGE, holder="alice")
    first = rig.reply_to(request, JoinGroupReply).member_id
    rig.ask(JoinGroup("g", first, None, "c", "/h", 10_000, 10_000, "consumer", RANGE, holder="alice"))
    assert own(rig, "alice") >= len(RANGE[0][1])
    rig.pass_ms(1_000_000)
    assert own(rig, "alice") == rig.shard.log_state.memory_bytes
    rig.check()


def test_loaded_groups_count_for_nobody_until_they_are_used() -> None:
    rig = small_rig()
    taken = fill(rig, "alice")
    rig.reload()
    assert own(rig, "alice") == 0
    again = fill(rig, "alice-again")
    assert 0 < again < taken / 4
    assert rig.commit(group="alice.1", holder="alice") is Code.NONE
    assert own(rig, "alice") > 0
    rig.check()
