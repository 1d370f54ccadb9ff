"""Tests of the plan of `tiered up`: the settings of each broker, and refusals before any broker runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiered.errors import Refused
from tiered_api.cli.arguments import parser
from tiered_api.cli.broker.up import ClusterPlan, broker_command, plan_cluster, ready_addresses, ready_line

LINE = "tiered is ready: http://127.0.0.1:{http} (health ...) kafka=127.0.0.1:{kafka} store=file:///b"


def planned(directory: Path, *words: str) -> ClusterPlan:
    return plan_cluster(parser().parse_args(["up", "--data-dir", str(directory), *words]))


def test_three_brokers_with_consecutive_ports_share_a_bucket(tmp_path: Path) -> None:
    made = planned(tmp_path)
    assert [(each.node_id, str(each.kafka), str(each.http), each.directory) for each in made.brokers] == [
        (1, "127.0.0.1:9092", "127.0.0.1:8082", f"{tmp_path}/broker-1"),
        (2, "127.0.0.1:9093", "127.0.0.1:8083", f"{tmp_path}/broker-2"),
        (3, "127.0.0.1:9094", "127.0.0.1:8084", f"{tmp_path}/broker-3"),
    ]
    assert made.store == f"file://{tmp_path}/bucket"


def test_command_of_a_broker_parses(tmp_path: Path) -> None:
    made = planned(
        tmp_path, "--brokers", "2", "--kafka", "[::1]:0", "-c", "log.segment.bytes=5000000", "-c", "num.partitions=2"
    )
    words = list(broker_command(made, made.brokers[1])(""))
    assert words[3:5] == [str(os.getpid()), "serve"]
    args = parser().parse_args(words[4:])
    assert (args.node_id, args.data_dir, args.store) == ("2", f"{tmp_path}/broker-2", made.store)
    assert (args.kafka, args.http, args.pairs) == (
        "[::1]:0",
        "127.0.0.1:8083",
        ["log.segment.bytes=5000000", "num.partitions=2"],
    )


def test_restart_uses_the_same_addresses(tmp_path: Path) -> None:
    made = planned(tmp_path, "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")
    again = broker_command(made, made.brokers[0])(LINE.format(http=81, kafka=91))
    args = parser().parse_args(list(again)[4:])
    assert (args.http, args.kafka) == ("127.0.0.1:81", "127.0.0.1:91")


def test_one_line_has_the_addresses_of_all_brokers(tmp_path: Path) -> None:
    made = planned(tmp_path, "--brokers", "2", "--store", "file:///b")
    lines = [LINE.format(http=81, kafka=91), LINE.format(http=82, kafka=92)]
    assert ready_addresses(lines[0]) == ("127.0.0.1:81", "127.0.0.1:91")
    assert ready_line(made, lines) == (
        "tiered is ready: 2 brokers kafka=127.0.0.1:91,127.0.0.1:92 http=http://127.0.0.1:81,http://127.0.0.1:82"
        " store=file:///b"
    )
    lines = [
        each.replace("(health", f"(console http://127.0.0.1:{at}/console/, health")
        for each, at in zip(lines, (81, 82), strict=True)
    ]
    assert " console=http://127.0.0.1:81/console/ store=" in ready_line(made, lines)


def test_bucket_of_environment_or_setting_is_that_of_all_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert planned(tmp_path, "-c", "store=s3://b/p").store == "s3://b/p"
    monkeypatch.setenv("TIERED_STORE", "file:///elsewhere")
    assert planned(tmp_path).store == "file:///elsewhere"
    assert planned(tmp_path, "--store", "file:///here").store == "file:///here"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["-c", "node.id=7"], "-c node.id=7: each broker has its own"),
        (["-c", "listeners=PLAINTEXT://:9092"], "each broker has its own"),
        (["--kafka", ""], "--kafka: it must be HOST:PORT"),
        (["--http", "8082"], "http=8082: it must be HOST:PORT"),
        (["--kafka", "127.0.0.1:65534"], "there is no port 65536 for broker 3"),
        (["--store", "memory://"], "cannot share memory"),
        (["-c", "log.segment.byte=5"], "did you mean log.segment.bytes?"),
    ],
)
def test_invalid_plan_is_refused_before_any_broker_runs(tmp_path: Path, words: list[str], why: str) -> None:
    with pytest.raises(Refused) as refused:
        planned(tmp_path, *words)
    assert why in refused.value.why


def test_listeners_from_other_sources_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_LISTENERS", "PLAINTEXT://127.0.0.1:9092")
    with pytest.raises(Refused, match=r"^listeners=PLAINTEXT://127.0.0.1:9092: each broker has its own"):
        planned(tmp_path)


def test_directory_of_a_single_broker_is_refused(tmp_path: Path) -> None:
    """Its bucket is at the place of the cluster's: a new broker 1 would replace it without its records."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "meta.properties").write_text("node.id=1\n")
    with pytest.raises(Refused, match="directory of a single broker"):
        planned(tmp_path)
