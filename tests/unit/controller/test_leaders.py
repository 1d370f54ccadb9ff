"""Tests of decisions over all partitions: brokers that stop and return, ISR changes, elections."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import replace

import pytest

from tests.unit.controller.test_controller import decide, refusal
from tiered.config.settings import Settings
from tiered.controller import leaders, requests
from tiered.controller.controller import Controller
from tiered.controller.preferred_leaders import plan_preferred_leaders
from tiered.controller.requests import InSync, IsrChange, RegisterBroker, ReplicaEnd
from tiered.errors import Code, Refused
from tiered.ids import TopicId, encode_uuid, incarnation_number
from tiered.metadata import changes as kinds
from tiered.metadata.changes import ALL_BROKERS, NO_LEADER
from tiered.metadata.effective_config import broker_settings, topic_config
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import End, Loss, PartitionImage

TWO = {"min.insync.replicas": "2"}


def incarnation(node: int, number: int = 0) -> str:
    return encode_uuid(uuid.UUID(int=(node << 100) + (number << 90), version=4))


def cluster(*nodes: int, settings: Settings | None = None) -> Controller:
    ids = itertools.count(1)
    made = Controller(Image(), settings or Settings(), lambda: encode_uuid(uuid.UUID(int=next(ids))))
    for node in nodes:
        register(made, node)
    return made


def register(shard: Controller, node: int, number: int = 0, *ends: ReplicaEnd, whole: bool = True) -> None:
    decide(shard, RegisterBroker(node, incarnation(node, number), "d", "", whole=whole, ends=ends))


def fence(shard: Controller, node: int, number: int = 0) -> None:
    decide(shard, requests.FenceBroker(node, incarnation(node, number)))


def unfence(shard: Controller, node: int, number: int = 0) -> None:
    decide(shard, requests.UnfenceBroker(node, incarnation(node, number)))


def partition(shard: Controller, p: int = 0) -> PartitionImage:
    return shard.image.topics["t"].partitions[p]


def topic_id(shard: Controller) -> TopicId:
    return shard.image.topics["t"].topic_id


def states(shard: Controller) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    found = partition(shard)
    return found.leader, found.isr, found.elr


def test_fenced_broker_leads_nothing_and_returns_as_a_follower() -> None:
    shard = cluster(1, 2, 3)
    decide(shard, requests.CreateTopic("t", 1, 3, configs=TWO))
    fence(shard, 1)
    assert states(shard) == (2, (2, 3), ()) and not shard.image.brokers[1].live
    fence(shard, 2)
    assert states(shard) == (3, (3,), (2,))
    before = shard.image
    unfence(shard, 1)
    assert states(shard) == (3, (3,), (2,)) and shard.image.brokers[1].live
    assert before.topics["t"] is shard.image.topics["t"]
    fence(shard, 3)
    assert states(shard) == (NO_LEADER, (), (2, 3))
    unfence(shard, 2)
    assert states(shard) == (2, (2,), (3,))


def test_brokers_fenced_by_one_decision_can_each_lead_again() -> None:
    """A new controller does not hear of brokers that look for it still: one of them may be gone for good."""
    shard = cluster(1, 2, 3, 4)
    decide(shard, requests.CreateTopic("t", assignments=((1, 2, 3),)))
    others = ((2, incarnation(2)), (3, incarnation(3)), (9, incarnation(9)), (4, incarnation(4, 7)))
    decide(shard, requests.FenceBroker(1, incarnation(1), others))
    assert shard.image.live_ids() == {4}, "an unknown broker and an earlier incarnation change nothing"
    assert states(shard) == (NO_LEADER, (), (1, 2, 3))
    unfence(shard, 2)
    assert states(shard) == (2, (2,), ())


@pytest.mark.parametrize("kind", [requests.FenceBroker, requests.UnfenceBroker])
def test_broker_that_is_not_live_is_not_fenced(kind: type[requests.FenceBroker | requests.UnfenceBroker]) -> None:
    shard = cluster(1, 2)
    decide(shard, requests.StopBroker(2, incarnation(2)))
    for request in (kind(1, "other"), kind(9, "other"), kind(2, incarnation(2))):
        assert shard.decide(request, 0).changes == ()
    fence(shard, 1)
    assert shard.decide(requests.FenceBroker(1, incarnation(1)), 0).changes == ()
    unfence(shard, 1)
    assert shard.decide(requests.UnfenceBroker(1, incarnation(1)), 0).changes == ()


def test_broker_without_replicas_is_unregistered_once_it_is_not_live() -> None:
    shard = cluster(1, 2, 3)
    decide(shard, requests.CreateTopic("t", assignments=[[2, 1]]))
    gone = requests.UnregisterBroker(2)
    assert (refusal(shard, requests.UnregisterBroker(9)), refusal(shard, gone)) == (
        Code.BROKER_ID_NOT_REGISTERED,
        Code.INVALID_REQUEST,
    )
    fence(shard, 2)
    with pytest.raises(Refused, match="broker 2 has 1 replicas, such as t-0"):
        shard.decide(gone, 0)
    decide(shard, requests.AlterBrokerConfigs(2, {"cordoned.log.dirs": "*"}))
    decide(shard, requests.Reassign((requests.Move(topic_id(shard), 0, (1,)),)))
    decide(shard, gone)
    assert list(shard.image.brokers) == [1, 3] and 2 not in shard.image.broker_configs
    unfence(shard, 2)
    assert 2 not in shard.image.brokers, "who was unregistered has to register anew"
    register(shard, 2, 1)
    assert shard.image.brokers[2].live


def test_new_replicas_go_to_live_brokers() -> None:
    shard = cluster(1, 2, 3)
    fence(shard, 2)
    decide(shard, requests.CreateTopic("t", 3, 2))
    assert all(2 not in partition(shard, p).replicas for p in range(3))
    assert refusal(shard, requests.CreateTopic("u", 1, 3)) is Code.INVALID_REPLICATION_FACTOR
    decide(shard, requests.CreateTopic("v", assignments=[[2, 1]]))
    assert shard.image.topics["v"].partitions[0] == PartitionImage((2, 1), 1, 0, (1,), partition_epoch=1)


def test_leaderships_are_handed_over_before_a_stop() -> None:
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", 4, 2))
    decide(shard, requests.CreateTopic("u", assignments=[[1]]))
    assert decide(shard, requests.HandOver(1, incarnation(1))) == 1
    assert [partition(shard, p).leader for p in range(4)] == [2] * 4
    assert [partition(shard, p).leader_epoch for p in range(4)] == [1, 0, 1, 0]
    assert all(partition(shard, p).isr == (2,) for p in range(4)), "nobody waits for who is about to stop"
    assert refusal(shard, requests.HandOver(1, "other")) is Code.STALE_BROKER_EPOCH


def test_partitions_resigned_in_shares_end_as_after_one_stop() -> None:
    def made() -> Controller:
        shard = cluster(1, 2, 3)
        decide(shard, requests.CreateTopic("t", assignments=[[1, 2], [2, 1], [2, 3], [1, 3]]))
        decide(shard, requests.CreateTopic("u", assignments=[[1], [1], [2]]))
        return shard

    once, shares = made(), made()
    decide(once, requests.StopBroker(1, incarnation(1)))
    places = [(topic.topic_id, p) for topic in shares.image.topics.values() for p in range(len(topic.partitions))]
    for start in range(0, len(places), 3):
        share = (*places[start : start + 3], places[start], (TopicId("gone"), 0))
        decide(shares, requests.LeavePartitions(1, incarnation(1), share))
        assert shares.image.brokers[1].live
    assert refusal(shares, requests.LeavePartitions(1, "other", ())) is Code.STALE_BROKER_EPOCH
    last = shares.decide(requests.StopBroker(1, incarnation(1)), 1000)
    assert last.changes == (kinds.BrokerStopped(1, incarnation(1)),), "nothing is left to decide"
    shares.apply(last.changes)
    assert shares.image.topics == once.image.topics and shares.image.brokers == once.image.brokers


def test_stopping_broker_stays_in_sync_while_isr_would_be_too_small() -> None:
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", 2, 2, configs={"min.insync.replicas": "2"}))
    assert decide(shard, requests.HandOver(1, incarnation(1))) == 0
    assert [partition(shard, p).leader for p in range(2)] == [2, 2]
    assert all(set(partition(shard, p).isr) == {1, 2} for p in range(2))


def test_stopping_broker_joins_no_isr_and_its_next_incarnation_may() -> None:
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", 1, 2))
    decide(shard, requests.HandOver(1, incarnation(1)))
    decide(shard, requests.AnnounceBroker(1, incarnation(1), "", {}))
    back = isr_change(shard, 2, 1)
    assert decide(shard, requests.AlterPartitions(2, incarnation(2), (back,))) == (Code.INELIGIBLE_REPLICA,)
    assert partition(shard).isr == (2,)
    decide(shard, requests.RegisterBroker(1, "1" * 22, "d", "", whole=True))
    assert not shard.image.brokers[1].stopping
    later = replace(back, isr=(back.isr[0], replace(back.isr[1], incarnation=incarnation_number("1" * 22))))
    assert decide(shard, requests.AlterPartitions(2, incarnation(2), (later,))) == (Code.NONE,)


def test_stopping_broker_is_elected_only_if_no_other_can_be() -> None:
    shard = cluster(1, 2, 3)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2, 3]], configs={"min.insync.replicas": "3"}))
    decide(shard, requests.HandOver(1, incarnation(1)))
    decide(shard, requests.CreateTopic("u", assignments=[[1, 2]]))
    decide(shard, requests.CreateTopic("v", assignments=[[1]]))
    assert [shard.image.topics[name].partitions[0].leader for name in "uv"] == [2, 1]
    t = topic_id(shard)
    told = decide(shard, requests.ElectLeaders(True, ((t, 0),)))
    assert told == ((t, 0, Code.PREFERRED_LEADER_NOT_AVAILABLE),)
    decide(shard, requests.HandOver(2, incarnation(2)))
    assert partition(shard).leader == 3 and set(partition(shard).isr) == {1, 2, 3}


def isr_change(shard: Controller, *nodes: int, p: int = 0, epoch: int | None = None) -> IsrChange:
    now = partition(shard, p)
    isr = tuple(InSync(node, incarnation_number(shard.image.brokers[node].incarnation)) for node in nodes)
    return IsrChange(topic_id(shard), p, now.leader_epoch, now.partition_epoch if epoch is None else epoch, isr)


def test_isr_changes_of_a_leader_are_decided_one_by_one() -> None:
    shard = cluster(1, 2, 3)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2, 3], [2, 1, 3], [1, 2, 3]]))
    changes = (
        isr_change(shard, 1, 2),
        isr_change(shard, 1, 3),
        isr_change(shard, 1, 2, p=1),
        isr_change(shard, 1, 3, p=2),
        IsrChange(TopicId("no"), 0, 0, 0, ()),
        IsrChange(topic_id(shard), 3, 0, 0, ()),
    )
    assert decide(shard, requests.AlterPartitions(1, incarnation(1), changes)) == (
        Code.NONE,
        Code.INVALID_UPDATE_VERSION,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.NONE,
        Code.UNKNOWN_TOPIC_ID,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    )
    assert [partition(shard, p).isr for p in range(3)] == [(1, 2), (2, 1, 3), (1, 3)]
    late = requests.AlterPartitions(1, incarnation(1), (isr_change(shard, 1, epoch=1),))
    assert decide(shard, late) == (Code.INVALID_UPDATE_VERSION,)
    assert refusal(shard, requests.AlterPartitions(1, "other", ())) is Code.STALE_BROKER_EPOCH


def test_fenced_or_unknown_broker_does_not_join_the_isr() -> None:
    shard = cluster(1, 2, 3)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2, 3]], configs={"min.insync.replicas": "3"}))
    fence(shard, 2)
    fence(shard, 3)
    said = isr_change(shard, 1, 2)
    asked = requests.AlterPartitions(1, incarnation(1), (said,))
    assert decide(shard, asked) == (Code.INELIGIBLE_REPLICA,)
    register(shard, 2, 7)
    assert states(shard) == (1, (1,), (2, 3))
    assert decide(shard, asked) == (Code.INELIGIBLE_REPLICA,)
    assert decide(shard, requests.AlterPartitions(1, incarnation(1), (isr_change(shard, 1, 2),))) == (Code.NONE,)
    assert states(shard) == (1, (1, 2), (3,))


def test_incarnation_without_a_number_is_in_no_isr_change() -> None:
    shard = cluster(1)
    decide(shard, RegisterBroker(2, "no id", "d", ""))
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2]]))
    number = InSync(1, incarnation_number(incarnation(1)))
    said = IsrChange(topic_id(shard), 0, 0, 1, (number, InSync(2, -1)))
    assert decide(shard, requests.AlterPartitions(1, incarnation(1), (said,))) == (Code.INELIGIBLE_REPLICA,)


def test_most_complete_last_known_member_leads() -> None:
    """R4: both lost their unsynced records. The one that lost less leads, and the loss is recorded."""
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", 1, 2, configs=TWO))
    fence(shard, 1)
    fence(shard, 2)
    register(shard, 1, 1, ReplicaEnd(topic_id(shard), 0, 0, 5), whole=False)
    assert states(shard) == (NO_LEADER, (), (2,))
    assert partition(shard).ends == (End(1, 0, 5),)
    register(shard, 2, 1, ReplicaEnd(topic_id(shard), 0, 0, 8), whole=False)
    assert states(shard) == (2, (2,), ())
    assert partition(shard).loss == Loss(partition(shard).leader_epoch, 8, 1000)


@pytest.mark.parametrize("flush", ["ack", "none"])
def test_reported_synced_logs_are_whole_whatever_the_setting(flush: str) -> None:
    """R1: the report counts on the disk that the cluster knows, unless the broker suspects the log itself."""
    shard = cluster(1, 2, settings=Settings(log_flush=flush))
    decide(shard, requests.CreateTopic("t", 1, 2, configs={"flush": flush, **TWO}))
    proved = ((topic_id(shard), 0),)
    decide(shard, RegisterBroker(2, incarnation(2, 1), "d", "", proved=proved))
    assert states(shard) == (1, (1,), (2,))
    suspected = (ReplicaEnd(topic_id(shard), 0, 0, 5),)
    for number, (directory, said, ends) in enumerate((("d", (), ()), ("", proved, ()), ("d", proved, suspected)), 2):
        decide(shard, change_back := requests.AlterPartitions(1, incarnation(1), (isr_change(shard, 1, 2),)))
        assert states(shard) == (1, (1, 2), ()), change_back
        decide(shard, RegisterBroker(2, incarnation(2, number), directory, "", proved=said, ends=ends))
        assert states(shard) == (1, (1,), ())


def test_proved_log_proves_no_other_one() -> None:
    shard = cluster(1, 2)
    for name in ("s", "t"):
        decide(shard, requests.CreateTopic(name, configs=TWO, assignments=[[1, 2]]))
    other = shard.image.topics["s"]
    decide(shard, RegisterBroker(2, incarnation(2, 1), "d", "", proved=((other.topic_id, 0),)))
    assert shard.image.topics["s"].partitions[0].elr == (2,)
    assert states(shard) == (1, (1,), ())


def test_log_without_a_report_is_not_whole_without_flush_ack() -> None:
    """R1: the same disk proves only what was fsynced, and nothing was."""
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", 1, 2, configs=TWO))
    register(shard, 2, 1, whole=False)
    assert states(shard) == (1, (1,), ())


def test_corrupt_log_is_not_whole_in_any_directory() -> None:
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", 1, 2, configs=TWO))
    register(shard, 2, 1, ReplicaEnd(topic_id(shard), 0, 0, 5), whole=True)
    assert states(shard) == (1, (1,), ())


def test_earlier_incarnation_does_not_register_again() -> None:
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", 1, 2, configs=TWO))
    register(shard, 2, 1)
    fence(shard, 2, 1)
    assert shard.decide(requests.UnfenceBroker(2, incarnation(2, 0)), 0).changes == ()
    assert shard.image.brokers[2].fenced
    unfence(shard, 2, 1)
    assert not shard.image.brokers[2].fenced


def test_smaller_min_isr_leaves_only_isr_members_eligible() -> None:
    """From then on the high watermark moves without the replicas that left."""
    for lower in (
        requests.AlterTopicConfigs("t", {"min.insync.replicas": "1"}),
        requests.AlterTopicConfigs("t", {"min.insync.replicas": None}),
    ):
        shard = cluster(1, 2)
        decide(shard, requests.CreateTopic("t", 1, 2, configs=TWO))
        fence(shard, 2)
        assert states(shard) == (1, (1,), (2,))
        decide(shard, lower)
        assert states(shard) == (1, (1,), ())
    shard = cluster(1, 2, settings=Settings(min_insync_replicas=2))
    decide(shard, requests.CreateTopic("t", 1, 2))
    fence(shard, 2)
    assert states(shard) == (1, (1,), (2,))
    decide(shard, requests.AlterBrokerConfigs(ALL_BROKERS, {"min.insync.replicas": "1"}))
    assert states(shard) == (1, (1,), ())


def test_start_value_of_a_broker_counts_once_it_is_committed() -> None:
    """Otherwise a controller and a leader with other files would use different values of `min.insync.replicas`."""
    shard = cluster(1, settings=Settings(min_insync_replicas=2))
    assert shard.image.broker_configs == {ALL_BROKERS: TWO}
    register(shard, 2)
    assert shard.image.broker_configs == {ALL_BROKERS: TWO}
    assert cluster(1).image.broker_configs == {}
    assert refusal(shard, requests.AlterBrokerConfigs(1, {"min.insync.replicas": "1"})) is Code.INVALID_CONFIG


def test_min_insync_replicas_of_all_brokers_is_changed_and_never_removed() -> None:
    shard = cluster(1, settings=Settings(min_insync_replicas=2))
    for gone in ({"min.insync.replicas": None}, {}):
        assert refusal(shard, requests.AlterBrokerConfigs(ALL_BROKERS, gone, replace=True)) is Code.INVALID_CONFIG
    assert shard.image.broker_configs == {ALL_BROKERS: TWO}
    decide(shard, requests.AlterBrokerConfigs(ALL_BROKERS, {"min.insync.replicas": "1"}, replace=True))
    assert shard.image.broker_configs == {ALL_BROKERS: {"min.insync.replicas": "1"}}
    unset = cluster(1)
    decide(unset, requests.AlterBrokerConfigs(ALL_BROKERS, {"min.insync.replicas": None}))
    assert unset.image.broker_configs.get(ALL_BROKERS, {}) == {}, "nothing was set, so nothing is removed"


@pytest.mark.parametrize("said", [None, "1", "3"])
def test_leader_and_controller_mean_the_same_by_min_insync_replicas(said: str | None) -> None:
    """The metadata log or the default decides, never the value that one of the two was started with."""
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", 1, 2))
    if said is not None:
        decide(shard, requests.AlterBrokerConfigs(ALL_BROKERS, {"min.insync.replicas": said}))
    started_with_2 = Settings(min_insync_replicas=2)
    (topic,) = shard.image.topics.values()
    context = leaders.PartitionContexts(shard.image, started_with_2, frozenset({1, 2}), 0)(topic)
    leader = topic_config(topic, broker_settings(shard.image, started_with_2, 1).topic_defaults())
    assert leader.min_insync_replicas == context.min_isr == int(said or 1)


@pytest.mark.parametrize("wide", [True, False])
def test_unclean_topic_is_led_by_any_live_replica(wide: bool) -> None:
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", 1, 2))
    fence(shard, 2)
    fence(shard, 1)
    unfence(shard, 2)
    assert states(shard) == (NO_LEADER, (), (1,))
    said = {"unclean.leader.election.enable": "true"}
    decide(shard, requests.AlterBrokerConfigs(ALL_BROKERS, said) if wide else requests.AlterTopicConfigs("t", said))
    assert states(shard) == (2, (2,), ())
    assert partition(shard).loss == Loss(1, 0, 1000)


def test_elections_on_request_of_an_operator() -> None:
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", assignments=[[2, 1], [2, 1], [2, 1]]))
    decide(shard, requests.CreateTopic("u", assignments=[[1]]))
    t, u = topic_id(shard), shard.image.topics["u"].topic_id
    decide(shard, requests.Reassign(tuple(requests.Move(t, p, (1, 2)) for p in (0, 2))))
    asked = requests.ElectLeaders(True, ((t, 0), (t, 0), (t, 1), (t, 9), (TopicId("no"), 0)))
    assert decide(shard, asked) == (
        (t, 0, Code.NONE),
        (t, 1, Code.ELECTION_NOT_NEEDED),
        (t, 9, Code.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicId("no"), 0, Code.UNKNOWN_TOPIC_ID),
    )
    assert [partition(shard, p).leader for p in range(3)] == [1, 2, 2]
    fence(shard, 2)
    fence(shard, 1)
    unfence(shard, 2)
    assert decide(shard, requests.ElectLeaders(False)) == (
        *((t, p, Code.NONE) for p in range(3)),
        (u, 0, Code.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    )
    assert all(partition(shard, p).leader == 2 and partition(shard, p).loss is not None for p in range(3))


def test_loss_of_a_missing_partition_is_ignored() -> None:
    shard = cluster(1)
    decide(shard, requests.CreateTopic("t"))
    for p in (-1, 1):
        assert shard.decide(requests.ReportLoss(topic_id(shard), p, 0, 7), 0).changes == ()


def test_one_decision_elects_leaders_of_ten_thousand_partitions() -> None:
    """`test_topics_of_many_partitions.py` bounds what the decision costs for each partition."""
    shard = cluster(1, 2, 3, settings=Settings(tiered_partitions_max_per_broker=10_000))
    for name in "abcd":
        decide(shard, requests.CreateTopic(name, 2_500, 3, configs=TWO))
    made = shard.decide(requests.FenceBroker(1, incarnation(1)), 0)
    assert len(made.changes) == 10_001 and isinstance(made.changes[0], kinds.BrokerFenced)


def test_misplaced_partition_could_be_led_by_its_first_replica() -> None:
    shard = cluster(1, 2, 3)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2], [2, 1], [3, 1], [1, 3]]))
    at = topic_id(shard)
    assert plan_preferred_leaders(shard.image) == ()
    fence(shard, 1)
    assert plan_preferred_leaders(shard.image) == (), "who is away cannot lead"
    unfence(shard, 1)
    assert plan_preferred_leaders(shard.image) == (), "nor who is not in sync"
    for p, leader in ((0, 2), (3, 3)):
        old = partition(shard, p)
        isr = tuple(InSync(each, incarnation_number(incarnation(each))) for each in old.replicas)
        wanted = IsrChange(at, p, old.leader_epoch, old.partition_epoch, isr)
        assert decide(shard, requests.AlterPartitions(leader, incarnation(leader), (wanted,))) == (Code.NONE,)
    assert plan_preferred_leaders(shard.image) == ((at, 0), (at, 3))
    about_to_stop = shard.image.apply([kinds.BrokerStopping(1, incarnation(1))], shard.image.slot + 1)
    assert plan_preferred_leaders(about_to_stop) == ()
    decide(shard, requests.ElectLeaders(preferred=True, partitions=((at, 3),)))
    assert plan_preferred_leaders(shard.image) == ((at, 0),)


def test_records_that_the_leader_found_in_the_bucket_are_not_lost() -> None:
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2]]))
    fence(shard, 2)
    fence(shard, 1)
    unfence(shard, 2)
    decide(shard, requests.ElectLeaders(False, None))
    t, epoch = topic_id(shard), partition(shard).leader_epoch
    assert partition(shard).loss == Loss(epoch, 0, 1000)
    decide(shard, requests.ReportLoss(t, 0, epoch - 1, 90, 80))
    assert partition(shard).loss == Loss(epoch, 0, 1000), "another leader has found other things"
    decide(shard, requests.ReportLoss(t, 0, epoch, 90, 80))
    assert partition(shard).loss == Loss(epoch, 80, 1000)
    assert shard.image.losses == {(t, 0): (Loss(epoch, 80, 1000),)}
    assert leaders.report_loss(shard.image, requests.ReportLoss(t, 0, epoch, 90, 80), 1001).changes == ()


def test_operator_acknowledges_only_losses_that_were_shown() -> None:
    shard = cluster(1)
    decide(shard, requests.CreateTopic("t", assignments=[[1], [1]]))
    t, epoch = topic_id(shard), partition(shard).leader_epoch
    for p in (0, 1):
        decide(shard, requests.ReportLoss(t, p, epoch, 7))
    none = leaders.acknowledge_losses(
        shard.image, requests.AcknowledgeLosses(((t, 0, epoch - 1), (t, 9, epoch), (TopicId("no"), 0, 5))), 1000
    )
    assert none.changes == ()
    decide(shard, requests.AcknowledgeLosses(((t, 0, epoch), (t, 0, epoch))))
    assert shard.image.losses == {(t, 1): (Loss(epoch, 7, 1000),)}
    decide(shard, requests.ReportLoss(t, 0, epoch, 7))
    assert (t, 0) not in shard.image.losses, "the same loss, told twice"


def test_only_the_leader_notes_the_stored_end() -> None:
    shard = cluster(1, 2)
    decide(shard, requests.CreateTopic("t", assignments=[[1, 2]]))
    t, epoch = topic_id(shard), partition(shard).leader_epoch

    def note(node: int, epoch: int, offset: int, p: int = 0) -> int:
        end = requests.StoredEnd(t, p, epoch, offset)
        decide(shard, requests.NoteStoredEnds(node, incarnation(node), (end,)))
        return partition(shard).stored_end

    assert note(2, epoch, 5) == note(1, epoch + 1, 5) == note(1, epoch - 1, 5) == note(1, epoch, 5, p=3) == -1
    before = partition(shard).partition_epoch
    assert note(1, epoch, 5) == 5 and partition(shard).partition_epoch == before, "in-sync sets know nothing of it"
    again = requests.NoteStoredEnds(1, incarnation(1), (requests.StoredEnd(t, 0, epoch, 5),))
    assert leaders.note_stored_ends(shard.image, Settings(), again, 0).changes == ()
    fence(shard, 1)
    assert partition(shard).leader == 2 and partition(shard).stored_end == 5, "whoever leads next knows it"
    assert note(2, epoch + 1, -1) == -1
    stale = requests.NoteStoredEnds(1, incarnation(1, 5), ())
    assert refusal(shard, stale) is Code.STALE_BROKER_EPOCH


@pytest.mark.parametrize(("from_offset", "stored_to", "newest_ms"), [(90, 90, 700), (90, 80, 0)])
def test_loss_says_what_is_left_only_where_its_leader_saw_it(from_offset: int, stored_to: int, newest_ms: int) -> None:
    """An election reported more: records below the leader's own loss may be missing too."""
    shard = cluster(1)
    decide(shard, requests.CreateTopic("t", assignments=[[1]]))
    epoch = partition(shard).leader_epoch
    shard.apply((kinds.LossReported(topic_id(shard), 0, epoch, 0, 500),))
    decide(shard, requests.ReportLoss(topic_id(shard), 0, epoch, from_offset, stored_to, 700))
    assert partition(shard).loss == Loss(epoch, stored_to, 1000, newest_ms)


@pytest.mark.parametrize(
    ("newest_ms", "seconds"), [(0, None), (99_000, 1), (99_001, 1), (98_999, 2), (100_000, 0), (100_001, None)]
)
def test_missing_seconds_count_from_the_newest_record_left(newest_ms: int, seconds: int | None) -> None:
    assert Loss(1, 5, 100_000, newest_ms).seconds == seconds


def process_of(machine: int, process: int, number: int = 0) -> RegisterBroker:
    node = machine + 1000 * process
    return RegisterBroker(node, incarnation(node, number), "d", "", whole=True, process=process)


def test_broker_may_be_a_process_of_a_machine_from_its_level_on() -> None:
    shard = cluster(1)
    decide(shard, process_of(1, 1))
    assert (shard.image.brokers[1001].machine, shard.image.machines()) == (1, {1001: 1})
    decide(shard, requests.AnnounceBroker(1001, incarnation(1001), "h:1", {"PLAINTEXT": "h:2"}))
    assert shard.image.brokers[1001].machine == 1, "other addresses change no machine"
    for node, process in ((1001, 2), (64001, 64), (2, -1)):
        request = RegisterBroker(node, incarnation(node, 1), "d", "", whole=True, process=process)
        assert refusal(shard, request) is Code.INVALID_REGISTRATION
    older = cluster(1)
    older.apply([kinds.FeatureLevelSet("tiered.metadata.version", 1)])
    assert refusal(older, process_of(1, 1)) is Code.UNSUPPORTED_VERSION


def test_broker_becomes_no_process_of_a_machine_that_has_its_replicas() -> None:
    shard = cluster(1, 1001)
    decide(shard, requests.CreateTopic("t", 1, 2))
    with pytest.raises(Refused, match="t-0: brokers 1 and 1001 are processes of one machine"):
        shard.decide(process_of(1, 1, 1), 0)
    decide(shard, requests.DeleteTopic("t"))
    decide(shard, process_of(1, 1, 1))
    with pytest.raises(Refused, match="number of machines"):
        shard.decide(requests.CreateTopic("u", 1, 2), 0)
    decide(shard, requests.CreateTopic("u"))


def test_process_takes_no_broker_with_replicas_of_another_machine() -> None:
    """Broker 1001 is only stopped, and the process that would have its id has an empty directory."""
    shard = cluster(1, 1001)
    decide(shard, requests.CreateTopic("t", assignments=[[1001]]))
    decide(shard, requests.StopBroker(1001, incarnation(1001)))
    other = RegisterBroker(1001, incarnation(1001, 1), "", "", process=1)
    with pytest.raises(
        Refused, match="broker 1001 of machine 1001 has replicas, such as t-0, in another data directory"
    ):
        shard.decide(other, 0)
    decide(shard, process_of(1, 1, 1))
