"""Tests of `tiered top` without a cluster: rates and lags from replies, and tables that fit the screen."""

from __future__ import annotations

from typing import Any

import pytest

from tiered.ids import TopicPartition
from tiered_api.cli.live.top_state import IN, OUT, WAITING, TopState
from tiered_api.cli.live.top_table import Table, make_tables, share_lines
from tiered_api.health.view import BrokerReport
from tiered_api.kafka.protocol.messages.describe_cluster import ReportedFigure
from tiered_api.kafka.protocol.messages.list_groups import ListedGroup
from tiered_api.kafka.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def metadata(topics: dict[str, int], brokers: tuple[int, ...] = (1, 2)) -> MetadataResponse:
    """Returns the reply for topics with so many partitions. Their leaders are the brokers in turn."""
    return MetadataResponse(
        controller_id=1,
        brokers=[MetadataResponseBroker(node_id=node, host="h", port=node) for node in brokers],
        topics=[
            MetadataResponseTopic(
                name=name,
                partitions=[
                    MetadataResponsePartition(
                        partition_index=number,
                        leader_id=brokers[number % len(brokers)],
                        replica_nodes=list(brokers),
                        isr_nodes=list(brokers),
                    )
                    for number in range(count)
                ],
            )
            for name, count in topics.items()
        ],
    )


def state(**topics: int) -> TopState:
    made = TopState()
    made.on_metadata(metadata(topics))
    return made


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def tables(of: TopState, lines: int = 60, **order: Any) -> tuple[Table, Table, Table]:
    brokers, topics, groups = make_tables(of, lines, **{"by_name": True, "is_reversed": False, **order})
    return brokers, topics, groups


def test_rate_of_a_topic_needs_two_looks_at_all_partitions() -> None:
    seen = state(a=2)
    first, second = TopicPartition("a", 0), TopicPartition("a", 1)
    seen.on_ends(10.0, {first: 100})
    assert seen.topics["a"].ends.rate is None and not seen.topics["a"].ends.samples
    seen.on_ends(10.0, {second: 50})
    seen.on_ends(15.0, {first: 200})
    assert seen.topics["a"].ends.rate == 20.0
    assert texts(tables(seen)[1]) == [["a", "2", "0", "250", "20"]]


def test_rates_and_problems_of_a_broker_are_those_of_its_reports() -> None:
    seen = state()
    for at, count in ((0.0, 1_000.0), (2.0, 5_000.0)):
        figures = (ReportedFigure(IN, "", count), ReportedFigure(OUT, "", 3.0), ReportedFigure(WAITING, "", 4.0))
        seen.on_report(at, BrokerReport(1, ("its bucket is away", "its disk is full"), figures=figures))
    seen.on_fault(2, "no reply within 5 s")
    one, two = tables(seen)[0].rows
    assert [cell.text for cell in one][4:] == ["2.0 kB", "0 B", "4", "its bucket is away (and 1 more)"]
    assert one[0].text == "1 controller" and one[-1].is_bad and two[-1] == ("no reply within 5 s", True)
    seen.on_reply(2)
    assert tables(seen)[0].rows[1][-1] == ("healthy", False)
    seen.on_report(3.0, BrokerReport(1, (), figures=(ReportedFigure(IN, "", 0.0),)))
    assert seen.brokers[1].bytes_in.rate == 0.0, "a restart is no growth"


def test_lag_of_a_group_is_counted_against_known_ends() -> None:
    seen = state(a=1, b=1)
    seen.on_groups(2, [ListedGroup(group_id="g", group_state="Stable")])
    seen.on_commits(1.0, "g", {TopicPartition("a", 0): 40})
    assert texts(tables(seen)[2]) == [["g", "Stable", "-", ""]]
    seen.on_ends(2.0, {TopicPartition("a", 0): 100, TopicPartition("b", 0): 7})
    seen.on_commits(3.0, "g", {TopicPartition("a", 0): 40, TopicPartition("b", 0): 9})
    assert texts(tables(seen)[2]) == [["g", "Stable", "60", "█"]]
    seen.on_commits(3.0, "gone", {})
    seen.on_groups(1, [])
    assert list(seen.groups) == ["g"], "broker 1 never had it"
    seen.on_groups(2, [])
    assert not seen.groups


def test_topics_and_brokers_that_are_gone_are_forgotten() -> None:
    seen = state(a=1, b=1)
    seen.on_ends(1.0, {TopicPartition("a", 0): 5})
    seen.on_metadata(metadata({"b": 1}, brokers=(2,)))
    seen.on_ends(2.0, {TopicPartition("a", 0): 6})
    assert list(seen.topics) == ["b"] and list(seen.brokers) == [2]
    assert (seen.brokers[2].leaders, seen.brokers[2].replicas) == (1, 1)


def test_topics_are_sorted_by_rate_or_name_and_turned_around() -> None:
    seen = state(a=1, b=1, c=1)
    for at in (0, 1):
        seen.on_ends(float(at), {TopicPartition(name, 0): at * rate for name, rate in (("a", 5), ("b", 9), ("c", 1))})
    for order, names in (
        ({"by_name": True}, "abc"),
        ({"by_name": True, "is_reversed": True}, "cba"),
        ({"by_name": False}, "bac"),
        ({"by_name": False, "is_reversed": True}, "cab"),
    ):
        assert "".join(row[0] for row in texts(tables(seen, **order)[1])) == names


def test_tables_have_the_lines_of_the_screen_and_say_what_they_leave_out() -> None:
    seen = state(**{f"t{number:02}": 1 for number in range(50)})
    brokers, topics, groups = tables(seen, lines=31)
    assert [len(each.rows) for each in (brokers, topics, groups)] == [2, 20, 0] and topics.left_out == 30


@pytest.mark.parametrize(
    ("wanted", "lines", "room"),
    [
        ((3, 100, 100), 23, [3, 10, 10]),
        ((3, 1, 100), 23, [3, 1, 19]),
        ((50, 50, 50), 0, [3, 3, 3]),
        ((0, 0, 0), 9, [0, 0, 0]),
    ],
)
def test_lines_are_shared_among_tables(wanted: tuple[int, ...], lines: int, room: list[int]) -> None:
    assert share_lines(wanted, lines) == room


def test_names_cannot_move_the_cursor() -> None:
    seen = state(a=1)
    seen.on_groups(1, [ListedGroup(group_id="\x1b[2J", group_state="Empty")])
    assert "\x1b" not in texts(tables(seen)[2])[0][0]
