"""Tests of `tiered group` and `tiered topic consume -g`: members, offsets and lag, against ours and Kafka."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.e2e.cli_cluster import KINDS, CliCluster, start_cluster
from tests.e2e.serving import SECONDS
from tests.scenario import run_alone, run_by
from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered_api.cli.arguments import parser
from tiered_api.cli.reach import open_client
from tiered_api.cli.text.offset_range import parse_range
from tiered_api.cli.topic.consume_group import GroupReader
from tiered_api.cli.topic.record_printer import Printer, make_writer
from tiered_api.kafka.client.error_sentences import explain_error
from tiered_api.kafka.client.group_member import ConsumerGroupMember


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with start_cluster(request.param, tmp_path_factory.mktemp("groups")) as made:
        yield made


def create_filled_topic(cluster: CliCluster, partitions: int, each: int) -> str:
    """Creates a topic with records in every partition."""
    topic = cluster.create_topic(partitions)
    for partition in range(partitions):
        lines = "".join(f"{1_700_000_000_000 + 1000 * number} v{number}\n" for number in range(each))
        cluster.produce(topic, lines, "-f", r"%d %v\n", "-p", str(partition), "-o", "")
    return topic


def describe(cluster: CliCluster, group: str) -> dict[str, Any]:
    [shown] = cluster.rows("group", "describe", group)
    return shown


def offsets(cluster: CliCluster, group: str) -> list[tuple[int, int | None, int]]:
    """Returns partition, committed offset and lag."""
    return [(row["partition"], row["current_offset"], row["lag"]) for row in describe(cluster, group)["partitions"]]


@pytest.mark.parametrize(("first", "second"), [("classic", "classic"), ("consumer", "classic")])
def test_printed_records_are_committed_and_the_next_member_continues(
    cluster: CliCluster, first: str, second: str
) -> None:
    topic, group = create_filled_topic(cluster, 1, 10), cluster.new_name(f"goes-on-{first}")
    by_first, by_second = (["-g", group, "--group-protocol", each] for each in (first, second))
    assert cluster.consume(topic, *by_first, "-n", "4", form=r"%o\n") == ["0", "1", "2", "3"]
    assert describe(cluster, group)["type"] == first
    assert offsets(cluster, group) == [(0, 4, 6)]
    assert cluster.consume(topic, *by_second, "-n", "6", form=r"%o\n") == [str(n) for n in range(4, 10)]
    shown = describe(cluster, group)
    assert (shown["state"], shown["members"], shown["total_lag"], shown["coordinator"]) == ("Empty", 0, 0, 1)


def test_consumer_group_is_described_with_its_members(cluster: CliCluster) -> None:
    topic, group = create_filled_topic(cluster, 2, 3), cluster.new_name("server-side")
    settings = {"group.protocol": "consumer", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.address, "group.id": group, **settings})
    consumer.subscribe([topic])
    while consumer.poll(1) is None:
        pass  # the test has a limit of its own
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 2)], asynchronous=False)
    shown = describe(cluster, group)
    assert (shown["state"], shown["members"], shown["total_lag"]) == ("Stable", 1, 4)
    assert (shown["type"], shown["epoch"], shown["assignment_epoch"]) == ("consumer", 1, 1)
    assert [row["lag_seconds"] for row in shown["partitions"]] == [shown["lag_seconds"], None]
    assert shown["lag_seconds"] > 365 * 86_400, "the records have times of years ago"
    assert {row["client_id"] for row in shown["partitions"]} == {"rdkafka"}
    assert offsets(cluster, group) == [(0, 2, 1), (1, None, 3)]
    consumer.close()
    assert describe(cluster, group)["state"] == "Empty"


def test_offset_above_the_end_has_a_negative_lag_and_a_sentence(cluster: CliCluster, tmp_path: Path) -> None:
    topic, group = create_filled_topic(cluster, 2, 3), cluster.new_name("beyond")
    file = tmp_path / "offsets"
    file.write_text(f"{topic} 0 50\n{topic} 1 1\n")
    cluster.run("group", "seek", group, "--to-file", str(file))
    assert offsets(cluster, group) == [(0, 50, -47), (1, 1, 2)]
    assert describe(cluster, group)["total_lag"] == 2
    said = cluster.run("group", "describe", group).splitlines()
    assert [line.startswith(f"{topic}-0 ends at 3, below the committed offset 50:") for line in said[-2:]] == [
        False,
        True,
    ]
    cluster.run("group", "seek", group, "--to", "end")
    assert "below the committed offset" not in cluster.run("group", "describe", group)


def wait_offsets(cluster: CliCluster, group: str, expected: list[tuple[int, int | None, int]]) -> None:
    """Waits until a group has committed these offsets."""
    end = time.monotonic() + SECONDS
    found: list[tuple[int, int | None, int]] = []
    while found != expected:
        assert time.monotonic() < end, found
        if any(row["group"] == group and row["state"] == "Stable" for row in cluster.rows("group", "list")):
            found = offsets(cluster, group)


def test_member_at_the_end_leaves_its_place_to_the_next_one(cluster: CliCluster) -> None:
    topic, group = create_filled_topic(cluster, 2, 1), cluster.new_name("end")
    reader = cluster.start("topic", "consume", topic, "-g", group, "-o", "end", "-f", r"%v\n")
    wait_offsets(cluster, group, [(0, 1, 0), (1, 1, 0)])
    reader.send_signal(signal.SIGINT)
    assert cluster.end(reader)[0] == b""
    cluster.produce(topic, "x\ny\n", "-f", r"%v\n", "-p", "1")
    assert cluster.consume(topic, "-g", group, "-o", "end", "-n", "2") == ["x", "y"]


@run_by(run_alone)
async def test_place_of_a_member_stays_the_same_at_its_next_join(*, cluster: CliCluster) -> None:
    """The group may have refused to commit it."""
    topic, group = create_filled_topic(cluster, 1, 1), cluster.new_name("end")
    args = parser().parse_args(
        ["topic", "consume", topic, "-g", group, "-o", "end", "-X", f"brokers={cluster.address}"]
    )
    async with asyncio.timeout(SECONDS), open_client(args) as client:
        member, printer = ConsumerGroupMember(client, group, [topic]), Printer(make_writer(args), 0)
        reader = GroupReader(client, args, parse_range("end", 0), member, printer)
        for _ in range(2):
            assert await reader.start_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 1}
            await asyncio.to_thread(cluster.produce, topic, "x\n", "-f", r"%v\n")


def test_offset_that_a_log_does_not_have_is_not_committed(cluster: CliCluster) -> None:
    topic, group = create_filled_topic(cluster, 1, 1), cluster.new_name("stray")
    assert "ends at 1" in cluster.run("topic", "consume", topic, "-g", group, "-o", "47", code=2)
    assert cluster.consume(topic, "-g", group, "-n", "1") == ["v0"]


def test_member_without_a_reset_needs_the_offsets_of_its_group(cluster: CliCluster) -> None:
    topic, group = create_filled_topic(cluster, 2, 4), cluster.new_name("none")
    words = ("topic", "consume", topic, "-g", group, "-o", "none")
    said = cluster.run(*words, code=2)
    assert f"group {group} has no offset of {topic}-0, {topic}-1" in said
    cluster.run("group", "seek", group, "--to", "start", "--topics", topic, "--allow-new-topics")
    assert len(cluster.consume(topic, "-g", group, "-o", "none", "-n", "8")) == 8
    cluster.run("group", "seek", group, "--to", "start")
    cluster.run("topic", "trim", topic, "-o", "2", "-p", "all")
    assert "has no offset 0: it begins at 2" in cluster.run(*words, code=2)
    assert "-o none is for the members of a group" in cluster.run("topic", "consume", topic, "-o", "none", code=2)


def test_two_members_share_partitions_and_an_interrupted_one_leaves(cluster: CliCluster) -> None:
    topic, group = create_filled_topic(cluster, 2, 1), cluster.new_name("shared")
    readers = [cluster.start("topic", "consume", topic, "-g", group, "-f", r"%p\n") for _ in range(2)]
    while True:
        rows = cluster.rows("group", "list")
        if any(row["group"] == group and row["state"] == "Stable" for row in rows):
            shown = describe(cluster, group)
            owners = {row["member_id"] for row in shown["partitions"]}
            if shown["members"] == 2 and len(owners) == 2 and None not in owners:
                break
    assert shown["balancer"] == "range"
    assert {row["client_id"] for row in shown["partitions"]} == {"tiered"}
    text = cluster.run("group", "describe", group).splitlines()
    head, table = text[: text.index("")], text[text.index("") + 1 :]
    lag_seconds = {"LAG-SECONDS"}  # while a record is unread
    assert [name for line in head if (name := line.split()[0]) not in lag_seconds] == [
        "GROUP", "TYPE", "COORDINATOR", "STATE", "BALANCER", "MEMBERS", "TOTAL-LAG",
    ]  # fmt: skip
    assert [name for name in table[0].split() if name not in lag_seconds] == [
        "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-START-OFFSET", "LOG-END-OFFSET", "LAG", "MEMBER-ID", "CLIENT-ID",
        "HOST",
    ]  # fmt: skip
    refused = cluster.rows("group", "seek", group, "--to", "start", "--topics", topic, "--allow-new-topics", code=1)
    assert {"group " + group + " has members; stop them first (UNKNOWN_MEMBER_ID)"} == {row["error"] for row in refused}
    for dry in (["--dry-run"], []):
        [row] = cluster.rows("group", "delete", group, *dry, code=1)
        assert row["status"] == explain_error(Code.NON_EMPTY_GROUP.number) and row.get("members", 2) == 2
        rows = cluster.rows("group", "offset-delete", group, "-t", f"{topic}:0", *dry, code=1)
        assert [row["status"] for row in rows] == [explain_error(Code.GROUP_SUBSCRIBED_TO_TOPIC.number)]
    for reader, how in zip(readers, (signal.SIGINT, signal.SIGTERM), strict=True):
        reader.send_signal(how)
        _, err = cluster.end(reader)
        assert (reader.returncode, err) == (130, b"")
    assert describe(cluster, group)["state"] == "Empty"
    assert offsets(cluster, group) == [(0, 1, 0), (1, 1, 0)]


def test_seek_moves_offsets_to_places_times_groups_and_files(cluster: CliCluster, tmp_path: Path) -> None:
    topic, group, other = create_filled_topic(cluster, 2, 10), cluster.new_name("seek"), cluster.new_name("seek")
    assert "allow-new-topics" in cluster.run("group", "seek", group, "--to", "end", "--topics", topic, code=2)
    rows = cluster.rows("group", "seek", group, "--to", "end", "--topics", topic, "--allow-new-topics")
    assert rows == [
        {"topic": topic, "partition": number, "prior_offset": None, "current_offset": 10} for number in (0, 1)
    ]
    rows = cluster.rows("group", "seek", group, "--to", "start", "--dry-run")
    assert [(row["prior_offset"], row["current_offset"]) for row in rows] == [(10, 0), (10, 0)]
    assert offsets(cluster, group) == [(0, 10, 0), (1, 10, 0)]
    for when in ("1700000003", "1700000003000", "1700000003000000000"):
        cluster.run("group", "seek", group, "--to", "start")
        cluster.run("group", "seek", group, "--to", when)
        assert offsets(cluster, group) == [(0, 3, 7), (1, 3, 7)]
    cluster.run("group", "seek", other, "--to-group", group)
    assert offsets(cluster, other) == [(0, 3, 7), (1, 3, 7)]
    file = tmp_path / "offsets"
    file.write_text(f"{topic} 1 8\n\n")
    cluster.run("group", "seek", other, "--to-file", str(file))
    assert offsets(cluster, other) == [(0, 3, 7), (1, 8, 2)]
    assert cluster.consume(topic, "-g", other, "-n", "9", form=r"%o\n").count("8") == 2
    file.write_text(f"{topic} one 8\n")
    assert f"{file}:1:" in cluster.run("group", "seek", other, "--to-file", str(file), code=2)
    assert "--to yesterday" in cluster.run("group", "seek", group, "--to", "yesterday", code=2)


def test_seek_and_consume_say_that_no_record_is_late_enough(cluster: CliCluster) -> None:
    topic, group = create_filled_topic(cluster, 3, 4), cluster.new_name("seek")
    cluster.run("topic", "produce", topic, "-f", "%d %v\n", "-p", "1", stdin=b"1750000000000 later\n")
    said = f"tiered: no record of {topic}-0 and 1 partition more is at or after 1740000000000 ms: the end is taken\n"
    for options in (("--dry-run",), ()):
        seek = ("group", "seek", group, "--to", "@1740000000", "--topics", topic, "--allow-new-topics", *options)
        out, err = cluster.end(cluster.start(*seek, "--format", "json"))
        assert [json.loads(line)["current_offset"] for line in out.splitlines()] == [4, 4, 4]
        assert err.decode() == said
    out, err = cluster.end(cluster.start("topic", "consume", topic, "-o", "@1740000000", "-f", "%v\n", "-n", "1"))
    assert (out, err.decode()) == (b"later\n", said)
    out, err = cluster.end(cluster.start("topic", "consume", topic, "-o", "@1740000000:end", "-f", "%v\n"))
    assert (out, err.decode()) == (b"later\n", said)
    _, err = cluster.end(cluster.start("topic", "consume", topic, "-o", "@1600000000:@1740000000", "-f", "%v\n"))
    assert not err, "all records are earlier than the end of the range"
    new = cluster.new_name("reads")
    out, err = cluster.end(cluster.start("topic", "consume", topic, "-g", new, "-o", "@1740000000", "-n", "1"))
    assert json.loads(out)["value"] == "later" and err.decode() == said


def test_groups_and_offsets_are_deleted(cluster: CliCluster) -> None:
    topic, group = create_filled_topic(cluster, 2, 1), cluster.new_name("gone")
    cluster.run("group", "seek", group, "--to", "end", "--topics", topic, "--allow-new-topics")
    delete = ("group", "offset-delete", group, "-t", f"{topic}:0")
    assert cluster.rows(*delete, "--dry-run") == [
        {"topic": topic, "partition": 0, "offset": 1, "status": "OK (dry run)"}
    ]
    assert cluster.rows(*delete) == [{"topic": topic, "partition": 0, "status": "OK"}]
    assert offsets(cluster, group) == [(1, 1, 0)]
    missing = explain_error(Code.GROUP_ID_NOT_FOUND.number)
    assert cluster.rows("group", "delete", group, "never-there", "--dry-run", code=1) == [
        {"group": group, "members": 0, "offsets": 1, "status": "OK (dry run)"},
        {"group": "never-there", "members": None, "offsets": None, "status": missing},
    ]
    rows = cluster.rows("group", "delete", group, "never-there", code=1)
    assert rows == [
        {"group": group, "status": "OK"},
        {"group": "never-there", "status": missing},
    ]
    assert f"no group {group}" in cluster.run("group", "describe", group, code=1)


def test_lists_are_filtered_by_state_and_by_name_expression(cluster: CliCluster) -> None:
    topic, group = create_filled_topic(cluster, 1, 1), cluster.new_name("listed")
    cluster.run("group", "seek", group, "--to", "end", "--topics", topic, "--allow-new-topics")
    rows = cluster.rows("group", "list", "-s", "Empty,Stable")
    assert [row["state"] for row in rows if row["group"] == group] == ["Empty"]
    assert group not in {row["group"] for row in cluster.rows("group", "list", "-s", "Stable")}
    assert [row["group"] for row in cluster.rows("group", "describe", "-r", f"{group[:-1]}.", "-s")] == [group]
