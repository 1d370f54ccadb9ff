"""Tests of the health of a cluster, judged by the replies of its brokers, and of the lines about each broker."""

from __future__ import annotations

import json

import pytest

from tiered.time_text import format_time
from tiered_api.cli.cluster.brokers import broker_rows
from tiered_api.cli.cluster.health import print_health
from tiered_api.cli.exits import Exit
from tiered_api.health.verdict import (
    EligibleReplicas,
    TroubleTimes,
    UnhealthyPartition,
    describe_bucket_away,
    find_unhealthy,
    summarize_health,
    topics_to_examine,
)
from tiered_api.health.view import AWAY, FENCED, LIVE, STOPPED, BrokerReport, ClusterView, build_view
from tiered_api.kafka.protocol.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from tiered_api.kafka.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

NOW = 1_700_000_000_000


def seen(
    *partitions: tuple[int, list[int], list[int]],
    controller: int = 1,
    names: tuple[str, ...] = ("t",),
    full: tuple[int, ...] = (),
) -> ClusterView:
    """Brokers 1 and 2 are live, 4 is fenced, 5 has stopped; a topic whose partitions have leader, replicas, ISR."""
    made = [
        MetadataResponsePartition(partition_index=number, leader_id=leader, replica_nodes=replicas, isr_nodes=isr)
        for number, (leader, replicas, isr) in enumerate(partitions)
    ]
    got = MetadataResponse(
        brokers=[MetadataResponseBroker(node, "h", 9090 + node, None) for node in (1, 2)],
        controller_id=controller,
        topics=[MetadataResponseTopic(name=name, partitions=made) for name in names],
    )
    registered = [
        DescribeClusterBroker(1, "h", 9091, is_disk_full=1 in full),
        DescribeClusterBroker(2, "h", 9092, is_disk_full=2 in full),
        DescribeClusterBroker(4, "h", 9094, "r", is_fenced=True),
        DescribeClusterBroker(5, "h", 9095, None, is_fenced=True, is_stopped=True),
    ]
    return build_view(DescribeClusterResponse(brokers=registered if partitions or controller < 0 else []), got)


def found(known: ClusterView, min_isr: int = 1, **eligible: EligibleReplicas) -> list[UnhealthyPartition]:
    """`p0=EligibleReplicas(...)` is that of partition 0."""
    return list(
        find_unhealthy(known, {"t": min_isr}, {("t", int(name[1:])): each for name, each in eligible.items()}, {})
    )


@pytest.mark.parametrize(
    ("isr", "full", "why"),
    [
        ([1], (2,), "the disk of broker 2 is full"),
        ([2], (1, 2), "the disk of broker 1 is full"),
        ([], (1, 2), "the disks of brokers 1 and 2 are full"),
        ([], (2,), "the disk of broker 2 is full; broker 1 is not in sync yet"),
    ],
)
def test_replica_on_full_disk_is_said_to_lack_room(isr: list[int], full: tuple[int, ...], why: str) -> None:
    [one] = found(seen((1, [1, 2], isr), full=full), 0)
    assert one.why == why


def test_replica_that_a_move_adds_is_not_missed_while_it_copies() -> None:
    known = seen((1, [1, 2, 4], [1]), (1, [1, 2], [1]), (1, [1, 2], [1]))
    added = {("t", 0): [2, 4], ("t", 1): [2]}
    lacks = list(find_unhealthy(known, {"t": 1}, {}, added))
    assert [each.partition for each in lacks] == [2] and lacks[0].why == "broker 2 is not in sync yet"
    (under,) = (each for each in find_unhealthy(known, {"t": 2}, {}, {("t", 1): [2]}) if each.partition == 1)
    assert under.problems == ("under-min-ISR",)
    assert under.why.endswith("min.insync.replicas requires 2; a move to broker 2 is under way")


def test_states_of_brokers_are_distinguished() -> None:
    known = seen((1, [1, 3], [1]))
    assert {node: known.state(node) for node in known.brokers} == {1: LIVE, 2: LIVE, 3: AWAY, 4: FENCED, 5: STOPPED}
    assert (known.brokers[4].address, known.brokers[4].rack, known.brokers[3].address) == ("h:9094", "r", None)
    without = build_view(None, MetadataResponse(brokers=[MetadataResponseBroker(1, "h", 9091)]))
    assert list(without.brokers) == [1], "brokers that do not know DescribeCluster"


@pytest.mark.parametrize(
    ("known", "reasons"),
    [
        (seen((1, [1, 2], [1, 2]), (2, [2], [2])), ["nodes down"]),
        (seen(), []),
        (seen((-1, [1, 2], [1, 2])), ["nodes down", "leaderless partitions"]),
        (seen((1, [1, 2], [1])), ["nodes down", "under-replicated partitions"]),
        (seen((3, [3], [3])), ["nodes down", "leaderless partitions"]),
        (seen((-1, [3], [])), ["nodes down", "leaderless partitions", "under-min-ISR partitions",
                               "under-replicated partitions"]),
        (seen(controller=-1), ["nodes down", "no controller"]),
    ],
)  # fmt: skip
def test_every_partition_has_its_leader_and_its_replicas(known: ClusterView, reasons: list[str]) -> None:
    verdict = summarize_health(known, found(known))
    assert (verdict["healthy"], verdict["reasons"]) == (not reasons, reasons)


def test_stopped_broker_without_replicas_is_not_missed() -> None:
    assert summarize_health(seen((1, [1], [1])), [])["nodes_down"] == [4]
    assert summarize_health(seen((1, [1, 5], [1])), [])["nodes_down"] == [4, 5]
    assert summarize_health(seen((1, [1, 3], [1])), [])["nodes_down"] == [3, 4]


def test_details_are_requested_only_for_topics_with_problems() -> None:
    assert topics_to_examine(seen((1, [1, 2], [1, 2]))) == []
    assert topics_to_examine(seen((1, [1, 2], [1, 2]), (1, [1, 2], [2]))) == ["t"]
    assert topics_to_examine(seen((4, [4], [4]))) == ["t"]


def test_min_isr_counts_up_to_the_number_of_replicas() -> None:
    assert found(seen((1, [1], [1])), min_isr=2) == []
    [one] = found(seen((1, [1, 2, 4], [1])), min_isr=2)
    assert one.problems == ("under-min-ISR", "under-replicated") and one.min_isr == 2
    [one] = found(seen((1, [1, 2, 4], [1, 2])), min_isr=2)
    assert one.problems == ("under-replicated",)


@pytest.mark.parametrize(
    ("partition", "eligible", "why"),
    [
        ((1, [1, 2, 4], [1, 2]), EligibleReplicas(), "broker 4 is fenced"),
        ((1, [1, 2, 4], [1, 4]), EligibleReplicas(), "broker 2 is not in sync yet"),
        ((1, [1, 2, 4, 5], [1, 5]), EligibleReplicas(), "broker 4 is fenced; broker 2 is not in sync yet"),
        (
            (1, [1, 3, 4], [1]),
            EligibleReplicas(),
            "acks=all is refused: 1 in sync, min.insync.replicas requires 2; broker 3 is away and 4 is fenced",
        ),
        ((4, [4, 5], [4, 5]), EligibleReplicas(), "its leader 4 is fenced"),
        (
            (-1, [4, 5], []),
            EligibleReplicas(elr=(5, 4)),
            "waits for brokers 4 (fenced) or 5 (stopped): nobody else has all that was acknowledged",
        ),
        (
            (-1, [4, 3], [4]),
            EligibleReplicas(),
            "waits for broker 4 (fenced): nobody else has all that was acknowledged; broker 3 is away",
        ),
        ((-1, [1, 4], [4, 1]), EligibleReplicas(), "an election is due: broker 1 may lead"),
        (
            (-1, [1, 4], []),
            EligibleReplicas(last_known=(1, 4)),
            "waits until brokers 1 and 4 (fenced) have said what is left of their logs",
        ),
        ((-1, [4], []), EligibleReplicas(), "no broker is known that has its records; broker 4 is fenced"),
    ],
)
def test_each_partition_has_a_reason(
    partition: tuple[int, list[int], list[int]], eligible: EligibleReplicas, why: str
) -> None:
    [one] = found(seen(partition), 2, p0=eligible)
    assert (one.name, one.why) == ("t/0", why)


def test_each_problem_is_named_and_has_an_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    known = seen((1, [1], [1]), (-1, [4, 2], [4]))
    verdict = summarize_health(known, found(known))
    assert print_health(verdict, "text") is Exit.UNHEALTHY
    shown = capfd.readouterr().out.splitlines()
    assert "Leaderless partitions (1):       [t/1]" in shown
    assert shown[-1].split("  ")[0] == "t/1" and "waits for broker 4" in shown[-1]
    assert print_health(verdict, "json") is Exit.UNHEALTHY
    told = json.loads(capfd.readouterr().out)
    assert (told["nodes"], told["nodes_down"]) == ([1, 2, 4, 5], [4])
    assert (told["under_replicated_partitions"], told["partitions"][0]["leader"]) == (["t/1"], None)
    assert print_health(summarize_health(seen(), []), "json") is Exit.OK
    assert json.loads(capfd.readouterr().out)["partial"] is False


def test_partition_says_since_when_it_has_its_first_problem(capfd: pytest.CaptureFixture[str]) -> None:
    """Three partitions: without a leader, with fewer replicas in sync than `min.insync.replicas`, and with one less
    than all. The times are those at which so many replicas were missing."""
    known = seen((-1, [1, 2, 4], []), (1, [1, 2, 4], [1]), (1, [1, 2, 4], [1, 2]), (1, [1, 4], [1]))
    minute = 60_000
    times = {
        ("t", 0): TroubleTimes(NOW + 3 * minute, (NOW, NOW + minute, NOW + 2 * minute)),
        ("t", 1): TroubleTimes(missing_ms=(NOW, NOW + minute)),
        ("t", 2): TroubleTimes(missing_ms=(NOW,)),
        ("t", 3): TroubleTimes(missing_ms=(-1,)),
    }
    verdict = summarize_health(known, list(find_unhealthy(known, {"t": 2}, {}, {}, times)))
    since = [each["since_ms"] for each in verdict["partitions"]]
    assert since == [NOW + 3 * minute, NOW + minute, NOW, None]
    print_health(verdict, "text")
    rows = capfd.readouterr().out.splitlines()[-5:]
    at = rows[0].lower().index("since")
    assert [row[at:].split("  ")[0] for row in rows[1:]] == [*(format_time(each) for each in since[:3]), "-"]


@pytest.mark.parametrize(
    ("report", "hidden"),
    [
        (BrokerReport(1, (), hides_topics=True), ["only the topics that you may see"]),
        (BrokerReport(1, (), hides_health=True), ["no problems of brokers, without DESCRIBE on the cluster"]),
    ],
)
def test_view_that_is_partial_is_no_healthy_cluster(
    report: BrokerReport, hidden: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    verdict = summarize_health(seen(), [], [BrokerReport(2, ()), report])
    assert (verdict["healthy"], verdict["partial"], verdict["hidden"]) == (True, True, hidden)
    assert print_health(verdict, "text") is Exit.PARTIAL
    lines = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    assert lines.index(f"Partial: [{hidden[0]}]") == lines.index("Unhealthy reasons: []") + 1
    unhealthy = summarize_health(seen((1, [1, 2], [1])), [], [report])
    assert print_health(unhealthy, "text") is Exit.UNHEALTHY


def test_text_explains_some_partitions_and_counts_the_rest(capfd: pytest.CaptureFixture[str]) -> None:
    known = seen(*([(1, [1, 4], [1])] * 103))
    print_health(summarize_health(known, found(known)), "text")
    assert capfd.readouterr().out.splitlines()[-1] == "... and 3 more: --format json has all of them"


def machines(*live: int) -> ClusterView:
    """Machines 1 and 2 have two processes each, machine 3 has one; others than the live brokers are fenced."""
    all_brokers = {1: 0, 2: 0, 3: 0, 1001: 1, 1002: 1}
    registered = [
        DescribeClusterBroker(node, "h", 9000 + node, is_fenced=node not in live, process=process)
        for node, process in all_brokers.items()
    ]
    brokers = [MetadataResponseBroker(node, "h", 9000 + node) for node in live]
    return build_view(DescribeClusterResponse(brokers=registered), MetadataResponse(brokers=brokers, controller_id=1))


def silent(node: int) -> BrokerReport:
    return BrokerReport(node, (f"is fenced, and does not reply: no route to {node}",), has_replied=False)


def test_machine_that_is_away_is_one_sentence_with_its_brokers(capfd: pytest.CaptureFixture[str]) -> None:
    verdict = summarize_health(machines(1, 1001, 3), [], [silent(2), silent(1002)])
    why = "broker 2 is fenced, and does not reply: no route to 2"
    assert verdict["broker_problems"] == [f"machine 2 is away: brokers 2 and 1002 do not reply; {why}"]
    assert (verdict["machines_down"], verdict["nodes_down"], verdict["reasons"]) == ([2], [2, 1002], ["nodes down"])
    print_health(verdict, "text")
    assert ["Machines", "down:", "[2]"] in [line.split() for line in capfd.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("live", "reports", "problems", "away"),
    [
        ((1, 1001, 3, 1002), [silent(2)], ["broker 2: is fenced, and does not reply: no route to 2"], []),
        ((1, 2, 1001, 1002), [silent(3)], ["broker 3: is fenced, and does not reply: no route to 3"], []),
        (
            (1, 1001, 3),
            [silent(2), BrokerReport(1002, ("no store", "cut off"))],
            ["broker 2: is fenced, and does not reply: no route to 2", "broker 1002: no store", "broker 1002: cut off"],
            [2],
        ),
    ],
)
def test_broker_alone_has_its_own_sentences(
    live: tuple[int, ...], reports: list[BrokerReport], problems: list[str], away: list[int]
) -> None:
    verdict = summarize_health(machines(*live), [], reports)
    assert (verdict["broker_problems"], verdict["machines_down"]) == (problems, away)


def test_outage_of_the_bucket_has_one_time_for_all_brokers() -> None:
    reports = [
        BrokerReport(1, ("store away",), NOW + 70_000),
        BrokerReport(3, ("store away",), NOW),
        BrokerReport(2, ()),
    ]
    first, *own = summarize_health(seen(), [], reports)["broker_problems"]
    assert first == f"requests to the bucket fail since {format_time(NOW)}, say brokers 1 and 3"
    assert own == ["broker 1: store away", "broker 3: store away"]
    assert summarize_health(seen(), [], reports[:1])["broker_problems"] == ["broker 1: store away"]
    assert list(describe_bucket_away({3: NOW})) == [
        f"requests to the bucket fail since {format_time(NOW)}, says broker 3"
    ]
    assert not list(describe_bucket_away({}))


def test_lists_are_short_and_user_topics_come_first(capfd: pytest.CaptureFixture[str]) -> None:
    known = seen(*([(1, [1, 4], [1])] * 4), names=("__consumer_offsets", "u", "v"))
    verdict = summarize_health(known, found(known))
    before = json.dumps(verdict)
    print_health(verdict, "text")
    lines = capfd.readouterr().out.splitlines()
    named = "[u/0, u/1, u/2, u/3, v/0, ... and 3 more, 4 of __consumer_offsets]"
    assert f"Under-replicated partitions (12): {named}" in lines
    *rows, last = [line.split(" ")[0] for line in lines[lines.index("") + 2 :]]
    assert rows == [f"{name}/{number}" for name in ("u", "v") for number in range(4)] and last == "4"
    assert lines[-1] == "4 of __consumer_offsets: under-replicated (-i shows them)"
    print_health(verdict, "text", internal=True)
    lines = capfd.readouterr().out.splitlines()
    rows = [line.split(" ")[0] for line in lines[lines.index("") + 2 :]]
    assert rows == [f"{name}/{number}" for name in ("u", "v", "__consumer_offsets") for number in range(4)]
    assert json.dumps(verdict) == before and verdict["partitions"][0]["topic"] == "__consumer_offsets"


def test_each_broker_has_a_row_with_its_leaders_and_replicas() -> None:
    known = seen((1, [1, 2], [1, 2]), (2, [2, 4], [2]), (-1, [4], []))
    shown = broker_rows(known, {1: {("t", 0): 0}, 2: {("t", 0): 7, ("t", 1): 5}})
    assert shown[0] == {
        "id": 1, "address": "h:9091", "rack": None, "machine": 1, "state": LIVE, "controller": True,
        "leaders": 1, "replicas": 1, "in_sync": 1, "lag": 0,
    }  # fmt: skip
    assert [(row["id"], row["leaders"], row["replicas"], row["in_sync"], row["lag"]) for row in shown[1:]] == [
        (2, 1, 2, 2, 12),
        (4, 0, 2, 0, None),
        (5, 0, 0, 0, None),
    ]


def test_lag_is_shown_only_if_every_replica_has_one() -> None:
    known = seen((1, [1], [1]), (1, [1], [1]))
    assert next(row["lag"] for row in broker_rows(known, {1: {("t", 0): 3}})) is None
