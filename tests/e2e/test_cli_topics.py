"""Tests of `tiered topic create|list|describe|alter|add-partitions|delete|trim|describe-storage`, against ours and
Kafka."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli_cluster import KINDS, CliCluster, start_cluster
from tests.e2e.serving import SECONDS
from tiered.errors import Code
from tiered_api.cli.arguments import parser
from tiered_api.cli.cluster.health import fetch_eligible, fetch_min_isr
from tiered_api.cli.reach import open_client as reached
from tiered_api.health.verdict import EligibleReplicas
from tiered_api.kafka.client.error_sentences import explain_error

NO_TOPIC = explain_error(Code.UNKNOWN_TOPIC_OR_PARTITION.number)


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with start_cluster(request.param, tmp_path_factory.mktemp("topics")) as made:
        yield made


def test_topics_are_created_listed_and_deleted_with_an_outcome_each(cluster: CliCluster) -> None:
    first, second = cluster.new_name("life"), cluster.new_name("life")
    assert cluster.rows("topic", "create", first, second, "-p", "3", "-r", "1") == [
        {"topic": first, "status": "OK"},
        {"topic": second, "status": "OK"},
    ]
    again = cluster.rows("topic", "create", first, cluster.new_name("life"), code=1)
    assert again[0]["status"].endswith(" (TOPIC_ALREADY_EXISTS)") and again[1]["status"] == "OK"
    assert cluster.rows("topic", "create", first, "--if-not-exists")[0]["status"] == "OK (exists)"
    assert cluster.rows("topic", "list", first) == [{"name": first, "partitions": 3, "replicas": 1}]
    detailed = cluster.rows("topic", "list", "-d", first)
    assert [(row["partition"], row["leader"], row["isr"]) for row in detailed] == [(n, 1, [1]) for n in range(3)]
    gone = cluster.rows("topic", "delete", first, second, "never-there", code=1)
    assert sorted(row["status"].split(" (")[-1] for row in gone) == ["OK", "OK", "UNKNOWN_TOPIC_OR_PARTITION)"]
    assert "no topic " + first in cluster.run("topic", "list", first, code=1)


def test_dry_run_of_a_deletion_counts_the_records(cluster: CliCluster) -> None:
    topic = cluster.create_topic(2)
    cluster.produce(topic, "a\nb\nc\n", "-p", "0")
    cluster.produce(topic, "d\n", "-p", "1")
    cluster.rows("topic", "trim", topic, "-o", "1", "-p", "0")
    found = cluster.rows("topic", "delete", topic, "never-there", "--dry-run", code=1)
    missing = explain_error(Code.UNKNOWN_TOPIC_OR_PARTITION.number)
    assert found == [
        {"topic": topic, "partitions": 2, "records": 3, "status": "OK (dry run)"},
        {"topic": "never-there", "partitions": None, "records": None, "status": missing},
    ]
    assert cluster.consume(topic, "-p", "0") == ["b", "c"]


def test_value_too_large_for_a_request_is_refused_in_one_line(cluster: CliCluster) -> None:
    topic = cluster.create_topic()
    for words in (
        ("create", "t", "-r", "32768"),
        ("create", "t" * 40_000),
        ("add-partitions", topic, "-n", str(2**31 - 1)),
        ("describe", "t" * 40_000),
    ):
        said = cluster.run("topic", *words, code=2)
        assert said.startswith("tiered: ") and said.count("\n") == 1, said


def test_dry_run_checks_and_changes_nothing(cluster: CliCluster) -> None:
    good = cluster.new_name("dry")
    rows = cluster.rows("topic", "create", good, "no good", "--dry-run", code=1)
    assert {row["topic"]: row["status"].rpartition(" (")[2] for row in rows} == {
        good: "dry run)",
        "no good": "INVALID_TOPIC_EXCEPTION)",
    }
    cluster.run("topic", "list", good, code=1)


def test_text_is_a_table_with_aligned_columns(cluster: CliCluster) -> None:
    topic = cluster.create_topic(2)
    heading, row = cluster.run("topic", "list", topic).splitlines()
    assert heading.split() == ["NAME", "PARTITIONS", "REPLICAS"] and row.split() == [topic, "2", "1"]
    assert len(heading) == len(row)
    first, *rest = cluster.run("topic", "describe", "never-there", topic, topic, "-s", code=1).splitlines()
    assert first.split() == ["NAME", topic] and "" not in rest, "an empty line stands between topics only"


def test_expressions_match_whole_names_and_no_internal_topics(cluster: CliCluster) -> None:
    prefix = cluster.new_name("regex")
    names = [f"{prefix}-{letter}" for letter in "abc"]
    cluster.run("topic", "create", *names)
    assert [row["name"] for row in cluster.rows("topic", "list", "-r", f"{prefix}-[ab]")] == names[:2]
    assert cluster.rows("topic", "list", "-r", prefix) == []
    assert {row["topic"] for row in cluster.rows("topic", "delete", "-r", f"{prefix}-.*")} == set(names)
    assert "no topic matches" in cluster.run("topic", "delete", "-r", f"{prefix}-.*", code=2)
    assert "is not a regular expression" in cluster.run("topic", "delete", "-r", "(", code=2)


def test_describe_shows_settings_with_their_source_and_the_watermarks(cluster: CliCluster) -> None:
    topic = cluster.create_topic(2, retention_ms="123456789")
    cluster.produce(topic, "a\nb\nc\n", "-p", "1")
    [shown] = cluster.rows("topic", "describe", topic, "-a")
    assert shown["summary"]["name"] == topic and len(shown["summary"]["topic_id"]) == 22
    configs = {row["key"]: (row["value"], row["source"]) for row in shown["configs"]}
    assert configs["retention.ms"] == ("123456789", "DYNAMIC_TOPIC_CONFIG")
    assert configs["cleanup.policy"] == ("delete", "DEFAULT_CONFIG")
    offsets = [(row["log_start_offset"], row["high_watermark"], row["leader"]) for row in shown["partitions"]]
    assert offsets == [(0, 0, 1), (0, 3, 1)]
    [only] = cluster.rows("topic", "describe", topic, "-p")
    assert only.keys() == {"partitions"}
    text = cluster.run("topic", "describe", topic)
    assert text.startswith("SUMMARY\n=======\nNAME ") and "\n\nCONFIGS\n=======\nKEY " in text
    assert f"NAME        {topic}\n" in text and "PARTITIONS\n=" not in text


def test_settings_that_do_not_survive_a_move_are_told(tmp_path: Path) -> None:
    with start_cluster("ours", tmp_path) as cluster:
        kept = cluster.create_topic(preallocate="TRUE")
        [shown] = cluster.rows("topic", "describe", kept)
        assert [(row["key"], row["value"]) for row in shown["without_effect"]] == [("preallocate", "true")]
        assert "\n\nWITHOUT EFFECT\n==============\nKEY " in cluster.run("topic", "describe", kept)
        assert cluster.rows("topic", "check-settings", "--to", "kafka") == []
        assert [row["effect"] for row in cluster.rows("topic", "check-settings", "--to", "tiered")] == ["none"]
        topic = cluster.create_topic(flush="ack", segment_bytes="1048576", remote_storage_enable="true")
        rows = cluster.rows("topic", "check-settings", "--to", "kafka", code=1)
        assert {row["topic"] for row in rows} == {topic} and {row["effect"] for row in rows} == {"refused"}
        assert sorted(row["setting"] for row in rows) == ["flush", "remote.storage.enable"]
        assert cluster.rows("topic", "check-settings", kept, "--to", "kafka") == []
        assert "UNKNOWN_TOPIC" in cluster.run("topic", "check-settings", "never-there", "--to", "kafka", code=1)


def test_compacted_topic_is_cleaned_when_asked_for(tmp_path: Path) -> None:
    with start_cluster("ours", tmp_path) as cluster:
        topic = cluster.create_topic(cleanup_policy="compact", min_cleanable_dirty_ratio="1")
        cluster.produce(topic, "".join(f"k{each % 3}:{each}\n" for each in range(30)), "-f", "%k:%v\n")
        other = cluster.create_topic()
        process = cluster.start("topic", "compact", topic, other, "--format", "json")
        out, err = cluster.end(process)
        assert process.returncode == 1 and f"{other}-0: it is not compacted".encode() in err, (out, err)
        row = json.loads(out)
        assert (row["topic"], row["where"], row["clean_to"], row["problem"]) == (topic, "bucket", None, None)
        deadline = time.monotonic() + SECONDS
        while row["clean_to"] is None and time.monotonic() < deadline:
            [shown] = cluster.rows("topic", "describe", topic)
            [row] = shown["compaction"]
        assert row["clean_to"] == 30 and row["dirty_bytes"] == 0 and row["bytes_after"] < row["bytes_before"]


def test_missing_topic_does_not_hide_the_others(cluster: CliCluster) -> None:
    topic = cluster.create_topic()
    for verb in ("describe", "describe-storage"):
        process = cluster.start("topic", verb, "never-there", topic)
        out, err = cluster.end(process)
        assert process.returncode == 1 and topic.encode() in out
        assert err.decode() == f"tiered: never-there: {NO_TOPIC}\n"


def test_alter_of_a_missing_topic_names_the_topic_for_any_setting(cluster: CliCluster) -> None:
    topic = cluster.create_topic()
    process = cluster.start("topic", "alter", "never-there", topic, "-s", "retention.ms=5000000", "-s", "flush.ms=9")
    out, err = cluster.end(process)
    assert process.returncode == 1 and b"UNKNOWN_TOPIC_OR_PARTITION" in out + err
    low = cluster.start("topic", "alter", "never-there", "-s", "retention.ms=5")
    out, err = cluster.end(low)
    assert low.returncode == 1 and b"UNKNOWN_TOPIC_OR_PARTITION" in out + err and b"INVALID_CONFIG" not in out + err


def test_settings_are_altered_and_removed(cluster: CliCluster) -> None:
    topic = cluster.create_topic(retention_ms="5000000", max_message_bytes="4000")

    def settings() -> dict[str, str]:
        return {row["key"]: row["value"] for row in cluster.rows("topic", "describe", topic, "-c")[0]["configs"]}

    cluster.run("topic", "alter", topic, "-s", "retention.ms=7000000", "-d", "max.message.bytes")
    assert (settings()["retention.ms"], settings()["max.message.bytes"]) == ("7000000", "1048588")
    cluster.run("topic", "alter", topic, "-s", "retention.ms=9000000", "--dry-run")
    assert settings()["retention.ms"] == "7000000"
    refused = cluster.rows("topic", "alter", topic, "-s", "no.such.setting=1", code=1)
    assert refused[0]["status"].endswith(" (INVALID_CONFIG)")
    assert "nothing to alter" in cluster.run("topic", "alter", topic, code=2)


def test_partitions_are_added(cluster: CliCluster) -> None:
    topic = cluster.create_topic(2)
    rows = cluster.rows("topic", "add-partitions", topic, "never-there", "-n", "3", code=1)
    assert sorted((row["topic"], row["status"]) for row in rows) == [
        ("never-there", NO_TOPIC),
        (topic, "OK"),
    ]
    assert cluster.rows("topic", "list", topic)[0]["partitions"] == 5


def test_trim_moves_the_start_by_offset_by_time_and_to_the_end(cluster: CliCluster) -> None:
    topic = cluster.create_topic(2)
    lines = "".join(f"{1_700_000_000_000 + 1000 * n} v{n}\n" for n in range(10))
    for partition in ("0", "1"):
        cluster.produce(topic, lines, "-f", "%d %v\\n", "-p", partition)
    assert "-p" in cluster.run("topic", "trim", topic, "-o", "3", code=2), "all partitions must be said"
    assert cluster.rows("topic", "trim", topic, "-o", "3", "-p", "1") == [
        {"topic": topic, "partition": 1, "new_start_offset": 3, "error": None}
    ]
    assert cluster.consume(topic, "-p", "1")[0] == "v3" and cluster.consume(topic, "-p", "0")[0] == "v0"
    rows = cluster.rows("topic", "trim", topic, "-o", "@1700000005000", "-p", "all")
    assert [row["new_start_offset"] for row in rows] == [5, 5]
    assert [row["new_start_offset"] for row in cluster.rows("topic", "trim", topic, "-o", "end", "-p", "0-1")] == [
        10,
        10,
    ]
    assert [row["error"] for row in cluster.rows("topic", "trim", topic, "-o", "@1700000009500", "-p", "all")] == [
        None,
        None,
    ], "there is nothing to lose in an empty partition"
    beyond = cluster.rows("topic", "trim", topic, "-o", "11", "-p", "0", code=1)
    assert beyond[0]["error"] == "offset 11 is above the high watermark 10 (OFFSET_OUT_OF_RANGE)"
    assert beyond[0]["new_start_offset"] is None
    said = cluster.run("topic", "trim", topic, "-o", "abc", "-p", "0", code=2)
    assert "offset 'abc': try start, end, 47, +2, -3 or @<time>" in said, "a range is not possible here"
    assert "no partition" in cluster.run("topic", "trim", topic, "-o", "1", "-p", "7", code=2)


def test_trim_of_a_compacted_topic_says_how_to_allow_it(cluster: CliCluster) -> None:
    topic = cluster.create_topic(cleanup_policy="compact")
    for dry in (["--dry-run"], []):
        [row] = cluster.rows("topic", "trim", topic, "-o", "end", "-p", "0", *dry, code=1)
        assert row["error"] == (
            "only compaction deletes records of this topic; add delete to its cleanup.policy first (POLICY_VIOLATION)"
        )


def test_trim_by_a_time_after_all_records_deletes_nothing(cluster: CliCluster) -> None:
    topic = cluster.create_topic(2)
    lines = "".join(f"{1_700_000_000_000 + 1000 * n} v{n}\n" for n in range(10))
    cluster.produce(topic, lines, "-f", "%d %v\\n", "-p", "0")
    cluster.produce(topic, lines + "1700000020000 w\n", "-f", "%d %v\\n", "-p", "1")
    for dry in (["--dry-run"], []):
        first, second = cluster.rows("topic", "trim", topic, "-o", "@1700000010000", "-p", "all", *dry, code=1)
        assert first["new_start_offset"] is None and second["new_start_offset"] == 10
        assert first["error"] == (
            "no record is at or after 1700000010000 ms (it has offsets 0 to 9): -o end deletes them all"
        )
        assert not dry or (first["records"], second["records"]) == (None, 10)
        starts = [row["log_start_offset"] for row in cluster.rows("topic", "describe-storage", topic)]
        assert starts == ([0, 0] if dry else [0, 10])


def test_trim_without_effect_shows_the_old_and_the_new_start(cluster: CliCluster) -> None:
    topic = cluster.create_topic(1)
    cluster.produce(topic, "a\nb\nc\n", "-p", "0")

    def plan(where: str, code: int = 0) -> list[object]:
        [row] = cluster.rows("topic", "trim", topic, "-o", where, "-p", "0", "--dry-run", code=code)
        return [row["start_offset"], row["new_start_offset"], row["records"], row["error"]]

    assert plan("2") == [0, 2, 2, None] and plan("end") == [0, 3, 3, None] and plan("-1") == [0, 2, 2, None]
    assert plan("4", 1) == [0, None, None, "offset 4 is above the high watermark 3"]
    cluster.rows("topic", "trim", topic, "-o", "1", "-p", "0")
    assert plan("start") == [1, 1, 0, None] and plan("0") == [1, 1, 0, None]
    assert cluster.consume(topic, "-p", "0") == ["b", "c"]


def test_describe_storage_shows_hot_and_cold_records(cluster: CliCluster) -> None:
    topic = cluster.create_topic(2)
    cluster.produce(topic, "a\nb\n", "-p", "0")
    rows = cluster.rows("topic", "describe-storage", topic)
    assert [(row["partition"], row["log_start_offset"], row["high_watermark"]) for row in rows] == [
        (0, 0, 2),
        (1, 0, 0),
    ]
    assert rows[0]["local_start_offset"] == 0 and rows[0]["local_bytes"] > 60 and rows[1]["local_bytes"] == 0


def test_cluster_info_and_health_are_printed(cluster: CliCluster) -> None:
    topic = cluster.create_topic(3)
    [shown] = cluster.rows("cluster", "info", "-t")
    host, port = cluster.address.split(":")
    [broker] = shown["brokers"]
    assert (broker["id"], broker["host"], broker["port"], broker["controller"]) == (1, host, int(port), True)
    assert len(shown["cluster_id"]) == 22
    assert {"name": topic, "partitions": 3, "replicas": 1} in shown["topics"]
    assert cluster.run("cluster", "info").splitlines()[2] == shown["cluster_id"]
    [health] = cluster.rows("cluster", "health")
    assert health["healthy"] is True and health["leaderless_partitions"] == [] and health["nodes"] == [1]
    assert "Healthy:" in cluster.run("cluster", "health", "--watch", "--exit-when-healthy")
    [here] = cluster.rows("cluster", "brokers")
    assert (here["id"], here["address"], here["state"], here["controller"]) == (1, cluster.address, "live", True)
    assert here["leaders"] == here["replicas"] == here["in_sync"] >= 3 and here["lag"] == 0


def test_requests_about_under_replicated_topics_are_answered(cluster: CliCluster) -> None:
    """No topic lacks replicas here; both kinds of clusters still answer the requests that the command then sends."""
    topic = cluster.create_topic(3, min_insync_replicas="1")

    async def ask() -> tuple[dict[str, int], dict[tuple[str, int], EligibleReplicas]]:
        async with reached(parser().parse_args(["cluster", "health", "--brokers", cluster.address])) as client:
            return await fetch_min_isr(client, [topic]), (await fetch_eligible(client, [topic]))[0]

    least, eligible = asyncio.run(ask())
    assert least == {topic: 1} and eligible == {(topic, number): EligibleReplicas() for number in range(3)}


def test_settings_of_brokers_are_shown_and_altered(cluster: CliCluster) -> None:
    def get(name: str) -> str:
        return cluster.run("cluster", "config", "get", name).strip()

    before = get("message.max.bytes")
    assert before == "1048588"
    cluster.run("cluster", "config", "set", "message.max.bytes=2000000")
    assert get("message.max.bytes") == "2000000"
    named = cluster.rows("cluster", "config", "get", "node.id", "message.max.bytes", "node.id")
    assert [(row["key"], row["value"]) for row in named] == [("node.id", "1"), ("message.max.bytes", "2000000")]
    assert "no setting nope, nor.this" in cluster.run("cluster", "config", "get", "nope", "node.id", "nor.this", code=2)
    [row] = cluster.rows("cluster", "config", "list", "--filter", "message.max.bytes")
    assert row == {"key": "message.max.bytes", "value": "2000000", "source": "DYNAMIC_DEFAULT_BROKER_CONFIG"}
    cluster.run("cluster", "config", "reset", "message.max.bytes")
    assert get("message.max.bytes") == before
    refused = cluster.rows("cluster", "config", "set", "message.max.bytes=x", code=1)
    assert " (INVALID_" in refused[0]["status"]
    assert "broker 7 is not live" in cluster.run("cluster", "config", "get", "node.id", "--node", "7", code=2)


def test_unreachable_cluster_is_a_one_line_error_with_its_exit_code(cluster: CliCluster) -> None:
    words = cluster.run("cluster", "info", "--brokers", "127.0.0.1:1", code=4)
    assert words.startswith("tiered: no broker replies at 127.0.0.1:1 (") and words.count("\n") == 1
    assert "check --brokers" in words
    assert cluster.rows("cluster", "info", "-X", f"brokers=127.0.0.1:1,{cluster.address}", "-X", "timeout=5")
    for wrong in ("nonsense", "timeout=0", "timeout=x"):
        assert wrong in cluster.run("topic", "list", "-X", wrong, code=2)
