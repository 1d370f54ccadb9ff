"""Transitions of partitions whose records are in write-ahead chains: no election waits for a lost replica."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tiered.controller import partition_transitions
from tiered.controller.partition_transitions import PartitionContext, check_invariants
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.parts.topics import ChainRef, End, PartitionImage

ALL = (1, 2, 3)


def context(*live: int, spare: int | None = None, min_isr: int = 1, incarnation: str = "i") -> PartitionContext:
    known = {node: f"{incarnation}{node}" for node in live}
    return PartitionContext(frozenset(live), min_isr, now_ms=1000, chained=known, spare=spare)


def alone(*live: int) -> PartitionImage:
    return partition_transitions.new_partition((1,), context(*live))


def test_new_partition_names_the_chain_of_its_leader() -> None:
    assert alone(1, 2).chains == (ChainRef(0, 1, "i1"),)
    without = replace(context(1), chained=None)
    assert partition_transitions.new_partition((1,), without).chains == ()


def test_live_broker_takes_the_place_of_the_only_replica() -> None:
    new = partition_transitions.remove_brokers(alone(1, 2), (1,), context(2, spare=2))
    assert (new.replicas, new.leader, new.leader_epoch, new.isr, new.elr) == ((2,), 2, 1, (2,), ())
    assert new.chains == (ChainRef(0, 1, "i1"), ChainRef(1, 2, "i2")) and new.loss is None


def test_partition_waits_while_no_broker_lives() -> None:
    none = partition_transitions.remove_brokers(alone(1), (1,), context())
    assert (none.leader, none.replicas, none.chains) == (NO_LEADER, (1,), (ChainRef(0, 1, "i1"),))
    assert partition_transitions.reevaluate(none, context()) is none
    back = partition_transitions.register_broker(none, 1, End(1, 0, 0), context(1, incarnation="j"))
    assert (back.leader, back.chains) == (1, (ChainRef(0, 1, "i1"), ChainRef(1, 1, "j1"))), "its disk may be empty"
    assert back.loss is None


def test_any_live_replica_leads_if_none_is_eligible() -> None:
    old = replace(PartitionImage(ALL, 1, 4, (1,)), is_in_bucket=True, chains=(ChainRef(4, 1, "i1"),))
    new = partition_transitions.remove_brokers(old, (1,), context(3, spare=9, min_isr=2))
    assert (new.replicas, new.leader, new.isr, new.elr) == (ALL, 3, (3,), ())


def test_member_of_the_isr_leads_first() -> None:
    old = replace(PartitionImage(ALL, 1, 4, (1, 3)), is_in_bucket=True, chains=(ChainRef(4, 1, "i1"),))
    new = partition_transitions.remove_brokers(old, (1,), context(2, 3, spare=2))
    assert (new.leader, new.isr) == (3, (3,))


def test_chains_of_one_incarnation_are_named_once() -> None:
    chains = (ChainRef(3, 2, "i2"), ChainRef(4, 1, "i1"))
    old = PartitionImage((1, 2), 1, 4, (1, 2), partition_epoch=7, chains=chains, is_in_bucket=True)
    new = partition_transitions.hand_over(old, 1, context(1, 2, min_isr=2))
    assert new.chains == (ChainRef(4, 1, "i1"), ChainRef(5, 2, "i2"))


def test_leader_that_has_stored_all_leaves_only_its_own_chain() -> None:
    chains = (ChainRef(3, 2, "i2"), ChainRef(4, 1, "i1"))
    old = PartitionImage((1, 2), 1, 4, (1, 2), partition_epoch=7, chains=chains, is_in_bucket=True)
    assert partition_transitions.note_stored(old, 7, context(1, 2), is_in_bucket=True).chains == (ChainRef(4, 1, "i1"),)
    late = partition_transitions.note_stored(old, 6, context(1, 2), is_in_bucket=True)
    assert late is old, "the partition has changed meanwhile"


def test_partition_gets_chains_once_its_leader_has_stored_all() -> None:
    old = PartitionImage((1, 2), 1, 4, (1, 2))
    elected = partition_transitions.hand_over(old, 1, context(1, 2, min_isr=2))
    assert (elected.chains, elected.is_in_bucket) == ((), False), "its records are on disks alone"
    waits = partition_transitions.remove_brokers(old, (1, 2), context(3, spare=3))
    assert (waits.leader, waits.replicas) == (NO_LEADER, (1, 2))
    new = partition_transitions.note_stored(old, 0, context(1, 2), is_in_bucket=True)
    assert (new.chains, new.is_in_bucket) == ((ChainRef(4, 1, "i1"),), True)


def test_other_flush_keeps_the_chains_until_the_leader_has_their_records() -> None:
    plain = replace(context(1, 2), chained=None)
    old = partition_transitions.change_flush(alone(1, 2), plain)
    assert (old.chains, old.is_in_bucket) == ((ChainRef(0, 1, "i1"),), False)
    dead = partition_transitions.remove_brokers(old, (1,), replace(plain, live=frozenset({2})))
    assert dead.leader == NO_LEADER and dead.chains, "records are on disks alone from now on"
    assert partition_transitions.note_stored(old, 0, plain, is_in_bucket=True) is old, (
        "the leader goes by the old value"
    )
    assert partition_transitions.note_stored(old, 0, plain, is_in_bucket=False).chains == ()


def test_other_flush_while_nobody_leads_lets_any_replica_read_the_chains() -> None:
    plain = replace(context(), chained=None)
    waits = partition_transitions.remove_brokers(replace(alone(1), elr=()), (1,), context())
    changed = partition_transitions.change_flush(waits, plain)
    assert changed.is_in_bucket, "nobody has written meanwhile"
    back = replace(plain, live=frozenset({1}))
    led = partition_transitions.register_broker(changed, 1, End(1, 0, 0), back)
    assert (led.leader, led.loss, led.chains, led.is_in_bucket) == (1, None, (ChainRef(0, 1, "i1"),), False)


def test_other_flush_is_a_change_of_each_partition() -> None:
    """Else a note from before could count when the setting is back."""
    old = PartitionImage((1, 2), 1, 4, (1, 2))
    assert partition_transitions.change_flush(old, context(1, 2)) == old
    assert partition_transitions.change_flush(old, context(1, 2)) is not old


@pytest.mark.parametrize("seed", range(40))
def test_each_record_is_in_a_chain_that_is_named_or_in_a_segment(seed: int) -> None:
    """Brokers come and go with empty disks, and `flush` changes. Each leader puts records into its chain while `flush`
    says so, and some report what is stored."""
    rng = random.Random(seed)
    incarnations = {node: f"{node}.0" for node in range(1, 6)}
    live = set(incarnations)
    chained, has_changes = True, seed % 2 == 1

    def now() -> PartitionContext:
        spares: Sequence[int] = sorted(live)
        known = {node: incarnations[node] for node in live} if chained else None
        spare = rng.choice(spares) if spares else None
        return PartitionContext(frozenset(live), rng.randrange(1, 3), chained=known, spare=spare)

    image = partition_transitions.new_partition((1, 2) if rng.random() < 0.5 else (1,), now())
    needed: set[tuple[int, str]] = set()  # chains with records that are in no segment
    on_disks = False  # true if records are on disks alone
    for _ in range(200):
        before = image
        node = rng.randrange(1, 6)
        match rng.randrange(6 if has_changes else 5):
            case 0 if node in live:
                live.discard(node)
                image = partition_transitions.remove_brokers(image, (node,), now())
            case 1:
                incarnations[node] = f"{node}.{rng.random()}"
                live.discard(node)
                image = partition_transitions.remove_brokers(image, (node,), now())
                live.add(node)
                image = partition_transitions.register_broker(image, node, End(node, -1, 0), now())
            case 2:
                image = partition_transitions.reevaluate(image, now())
            case 3 if image.leader != NO_LEADER and rng.random() < 0.3:
                needed = {(image.leader, incarnations[image.leader])} if chained else set()
                on_disks = on_disks and not chained
                image = partition_transitions.note_stored(image, 0, now(), is_in_bucket=chained)
            case 5 if rng.random() < 0.3:
                chained = not chained
                image = partition_transitions.change_flush(image, now())
            case _ if image.leader != NO_LEADER and chained and image.is_in_bucket:
                needed.add((image.leader, incarnations[image.leader]))
            case _ if image.leader != NO_LEADER:
                on_disks = True
        check_invariants(image, replace(now(), min_isr=9))
        assert image.leader_epoch >= before.leader_epoch
        assert needed <= {(each.node_id, each.incarnation) for each in image.chains}
        if not image.is_in_bucket:
            assert has_changes
            continue
        assert not on_disks and image.loss == before.loss
        assert image.leader != NO_LEADER or not live, "a live broker can always lead"
        if image.leader != NO_LEADER:
            assert image.chains[-1] == (image.leader_epoch, image.leader, incarnations[image.leader])
