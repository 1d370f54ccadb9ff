"""Tests of replicas that a process takes over from another one of its machine, together with their files (I36)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.controller.test_controller import decide
from tests.unit.controller.test_leaders import TWO, cluster, incarnation, partition, process_of, states, topic_id
from tiered.config.settings import Settings
from tiered.controller import requests
from tiered.controller.adoption import describe_left_out, find_left_out
from tiered.controller.controller import Controller
from tiered.controller.request_codec import decode_request, encode_request
from tiered.controller.requests import AdoptedReplicas, RegisterBroker, ReplicaEnd
from tiered.errors import Code, Refused
from tiered.metadata.changes import NO_LEADER, BrokerRegistered, BrokerStopped, FeatureLevelSet
from tiered.metadata.parts.topics import End
from tiered.value import value


@value
class Moved:
    """A stopped process 0 of machine 1 whose logs were moved to process 1, and a broker 2 beside them."""

    shard: Controller
    given: AdoptedReplicas

    def request(self, number: int = 0, *ends: ReplicaEnd) -> RegisterBroker:
        return replace(process_of(1, 1, number), adopted=(self.given,), ends=ends)


def moved(
    *assignments: list[int], stop: bool = True, others: tuple[int, ...] = (2,), configs: dict[str, str] | None = None
) -> Moved:
    shard = cluster(1, *others)
    decide(shard, requests.CreateTopic("t", assignments=assignments, configs=configs or {}))
    if stop:
        decide(shard, requests.StopBroker(1, incarnation(1)))
    partitions = tuple((topic_id(shard), p) for p in range(len(assignments)))
    return Moved(shard, AdoptedReplicas(1, "d", incarnation(1), partitions))


def test_process_takes_the_place_of_another_and_leads() -> None:
    at = moved([1], [1])
    epoch = partition(at.shard).leader_epoch
    assert states(at.shard) == (NO_LEADER, (), (1,))
    decide(at.shard, at.request())
    for p in range(2):
        found = partition(at.shard, p)
        assert (found.replicas, found.leader, found.isr, found.elr) == ((1001,), 1001, (1001,), ())
        assert found.leader_epoch > epoch and found.loss is None
    assert at.shard.image.replica_counts.get(1, 0) == 0
    again = replace(at.request(), incarnation=incarnation(1001, 1), replaces=incarnation(1001))
    decide(at.shard, again)
    assert partition(at.shard).replicas == (1001,), "an earlier registration has done it"


def test_process_follows_where_another_machine_leads() -> None:
    at = moved([1, 2], [2, 1])
    epochs = [partition(at.shard, p).leader_epoch for p in range(2)]
    decide(at.shard, at.request())
    for p in range(2):
        found = partition(at.shard, p)
        assert (found.leader, found.isr, found.elr) == (2, (2,), ())
        assert found.leader_epoch > epochs[p], "what the leader knows of broker 1 counts for nothing"
    assert [partition(at.shard, p).replicas for p in range(2)] == [(1001, 2), (2, 1001)]


def distrust(shard: Controller, node: int) -> None:
    """The cluster trusts no directory of a stopped broker any more."""
    shard.apply((BrokerRegistered(node, incarnation(node), "", "", "", 0), BrokerStopped(node, incarnation(node))))


def test_log_that_lacks_records_counts_up_to_its_end() -> None:
    at = moved([1, 2], configs=TWO)
    decide(at.shard, requests.StopBroker(2, incarnation(2)))
    decide(at.shard, at.request(0, ReplicaEnd(topic_id(at.shard), 0, 0, 7)))
    found = partition(at.shard)
    assert (found.leader, found.elr, found.last_known, found.ends) == (NO_LEADER, (2,), (1001,), (End(1001, 0, 7),))


def test_log_of_a_directory_without_trust_is_not_proved() -> None:
    """The proofs of the receiver say nothing about the logs that it adopts."""
    at = moved([1, 2], configs=TWO)
    decide(at.shard, requests.StopBroker(2, incarnation(2)))
    distrust(at.shard, 1)
    decide(at.shard, replace(at.request(), whole=True, proved=at.given.partitions))
    found = partition(at.shard)
    assert (found.replicas, found.elr, found.last_known) == ((1001, 2), (2,), (1001,))


def test_election_that_waits_for_a_replica_waits_for_its_new_broker() -> None:
    at = moved([1, 2], configs=TWO)
    decide(at.shard, requests.StopBroker(2, incarnation(2)))
    end = ReplicaEnd(topic_id(at.shard), 0, 0, 5)
    decide(at.shard, RegisterBroker(1, incarnation(1, 1), "d", "", ends=(end,)))
    decide(at.shard, requests.StopBroker(1, incarnation(1, 1)))
    before = partition(at.shard)
    assert (before.elr, before.last_known, before.ends) == ((2,), (1,), (End(1, 0, 5),))
    given = replace(at.given, incarnation=incarnation(1, 1))
    decide(at.shard, replace(process_of(1, 1), adopted=(given,)))
    after = partition(at.shard)
    assert (after.replicas, after.leader, after.elr) == ((1001, 2), NO_LEADER, (2,))
    assert (after.last_known, after.ends) == ((1001,), (End(1001, 0, 5),))


def test_reassignment_goes_on_with_the_new_broker() -> None:
    at = moved([2], others=(2, 3), stop=False)
    decide(at.shard, requests.Reassign((requests.Move(topic_id(at.shard), 0, (1,)),)))
    decide(at.shard, requests.StopBroker(1, incarnation(1)))
    decide(at.shard, at.request())
    found = partition(at.shard)
    assert (found.replicas, found.adding, found.removing, found.isr) == ((1001, 2), (1001,), (2,), (2,))


@pytest.mark.parametrize("gone", ["topic", "replica", "partition"])
def test_log_of_no_replica_is_not_adopted(gone: str) -> None:
    at = moved([2] if gone == "replica" else [1], stop=False)
    request = at.request()
    if gone == "topic":
        decide(at.shard, requests.DeleteTopic("t"))
    elif gone == "partition":
        request = replace(request, adopted=(replace(at.given, partitions=((topic_id(at.shard), 1),)),))
    decide(at.shard, request)
    assert at.shard.image.replica_counts.get(1001, 0) == 0 and 1001 in at.shard.image.brokers


def test_giver_that_counts_as_live_keeps_its_replicas() -> None:
    at = moved([1], stop=False)
    with pytest.raises(Refused, match="broker 1 counts as live") as refused:
        at.shard.decide(at.request(), 0)
    assert refused.value.code is Code.DUPLICATE_BROKER_REGISTRATION, "it is repeated"
    decide(at.shard, requests.FenceBroker(1, incarnation(1)))
    decide(at.shard, at.request())
    assert states(at.shard)[0] == 1001


@pytest.mark.parametrize("case", ["ran again", "other directory", "other machine", "no broker", "itself", "both"])
def test_giver_that_is_another_one_keeps_its_replicas(case: str) -> None:
    at = moved([1, 2])
    request, why = at.request(), "another process ran as broker 1"
    if case == "ran again":
        decide(at.shard, RegisterBroker(1, incarnation(1, 1), "d", "", whole=True))
        decide(at.shard, requests.StopBroker(1, incarnation(1, 1)))
    elif case == "other directory":
        request = replace(request, adopted=(replace(at.given, directory="e"),))
    elif case == "other machine":
        request, why = replace(request, node_id=1002), "no other process of the machine of broker 1002"
    elif case == "no broker":
        given, why = replace(at.given, from_node=2), "broker 2 is no other process"
        request = replace(request, adopted=(given,))
    elif case == "itself":
        request, why = (
            replace(RegisterBroker(1, incarnation(1, 1), "d", ""), adopted=(at.given,)),
            "broker 1 and on broker 1",
        )
    else:
        decide(at.shard, process_of(2, 1))
        request, why = replace(RegisterBroker(2, incarnation(2, 1), "d", ""), adopted=(at.given,)), "on broker 2 and on"
    with pytest.raises(Refused, match=why) as refused:
        at.shard.decide(request, 0)
    assert refused.value.code is Code.INVALID_REGISTRATION


def test_adoption_needs_the_level_of_processes() -> None:
    at = moved([1])
    at.shard.apply([FeatureLevelSet("tiered.metadata.version", 1)])
    with pytest.raises(Refused) as refused:
        at.shard.decide(at.request(), 0)
    assert refused.value.code is Code.UNSUPPORTED_VERSION


def test_adopted_replicas_are_named_at_each_level() -> None:
    first = replace(moved([1]).request(), process=0)
    for level in range(3):
        assert decode_request(encode_request(first, level)) == first


def test_machine_leaves_out_the_processes_that_it_does_not_run() -> None:
    shard = cluster(1, 2)
    for process in (1, 2, 3):
        decide(shard, process_of(1, process))
    decide(shard, process_of(2, 3))
    for node in (1, 1001, 3001):
        decide(shard, requests.StopBroker(node, incarnation(node)))
    for node, process in ((1, 0), (1001, 1)):
        settings = Settings(node_id=node, process=process, processes=2)
        assert find_left_out(shard.image, node, settings) == [3001], "2001 is live"
    assert find_left_out(shard.image, 2, Settings(node_id=2)) == [], "3002 is live"
    decide(shard, requests.StopBroker(3002, incarnation(3002)))
    assert find_left_out(shard.image, 2, Settings(node_id=2)) == [3002]


def test_left_out_process_with_replicas_is_a_problem_of_its_machine() -> None:
    """Its logs were lost, so that no other process could take them over."""
    shard = cluster(1, 2)
    for process in (1, 2):
        decide(shard, process_of(1, process))
    decide(shard, requests.CreateTopic("t", assignments=[[2001, 2], [2, 2001]], configs={}))
    first, second = (Settings(node_id=1 + 1000 * number, process=number, processes=2) for number in range(2))

    def found(settings: Settings) -> list[str]:
        return [*describe_left_out(shard.image, settings.node_id, settings)]

    assert found(first) == [], "it is live"
    for node in (1001, 2001):
        decide(shard, requests.StopBroker(node, incarnation(node)))
    assert found(first) == [], "broker 1001 may take its logs over when it starts"
    decide(shard, replace(process_of(1, 1, 1), replaces=incarnation(1001)))
    assert found(second) == [] and found(Settings(node_id=2)) == []
    (said,) = found(first)
    assert "broker 2001 is process 2 of this machine" in said and "2 of the cluster's replicas wait" in said
    assert "tiered.processes=3" in said and "tiered cluster decommission 2001" in said
    decide(shard, requests.DeleteTopic("t"))
    assert found(first) == []
