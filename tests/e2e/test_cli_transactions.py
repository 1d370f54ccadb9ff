"""Tests of `tiered transaction` and of `topic consume` on transactions, against ours and Kafka."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import confluent_kafka
import pytest

from tests.e2e.cli_cluster import KINDS, CliCluster, start_cluster
from tests.e2e.http_cluster import HttpCluster, run
from tests.e2e.serving import SECONDS, run_tiered
from tests.e2e.test_http_read_committed import ONE, Producers
from tests.scenario import run_by


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with start_cluster(request.param, tmp_path_factory.mktemp("transactions")) as made:
        yield made


def begin_transaction(cluster: CliCluster, name: str, topic: str, *values: str) -> confluent_kafka.Producer:
    """Returns a producer with an open transaction that has these records."""
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.address, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.flush(60)
    return producer


def test_open_transaction_is_listed_described_and_aborted(cluster: CliCluster) -> None:
    topic, name = cluster.create_topic(), cluster.new_name("id")
    producer = begin_transaction(cluster, name, topic, "a", "b")
    [listed] = [row for row in cluster.rows("transaction", "list") if row["transactional_id"] == name]
    assert (listed["state"], listed["coordinator"]) == ("Ongoing", 1)
    [shown] = cluster.rows("transaction", "describe", name)
    assert (shown["state"], shown["partitions"]) == ("Ongoing", [f"{topic}-0"])
    assert (shown["producer_id"], shown["duration_ms"] >= 0) == (listed["producer_id"], True)
    assert cluster.consume(topic) == []
    assert cluster.rows("transaction", "abort", name) == [{"transactional_id": name, "status": "OK"}]
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(SECONDS)
    ongoing = cluster.rows("transaction", "list", "--states", "Ongoing")
    assert name not in [row["transactional_id"] for row in ongoing]
    assert cluster.consume(topic) == []
    assert cluster.consume(topic, "--isolation-level", "read_uncommitted") == ["a", "b"]
    assert name in cluster.run("transaction", "describe", name)


def test_open_transaction_that_holds_a_read_back_is_named_once(cluster: CliCluster) -> None:
    topic = cluster.create_topic()
    cluster.produce(topic, "before\n")
    producer = begin_transaction(cluster, cluster.new_name("id"), topic, "a")
    process = cluster.start("topic", "consume", topic, "-o", ":end", "-f", "%v\n")
    out, err = cluster.end(process)
    assert (out, err.decode()) == (
        b"before\n", f"tiered: an open transaction holds back {topic}-0 from offset 1 on\n"
    )  # fmt: skip
    producer.commit_transaction(SECONDS)
    process = cluster.start("topic", "consume", topic, "-n", "2", "-f", "%v\n")
    assert cluster.end(process) == (b"before\na\n", b"")


def test_list_without_transactions_is_a_heading(cluster: CliCluster) -> None:
    assert cluster.run("transaction", "list", "--states", "PrepareCommit").split() == [
        "TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE"
    ]  # fmt: skip
    assert cluster.rows("transaction", "list", "--states", "PrepareCommit") == []
    assert cluster.run("transaction", "find-hanging", "--max-timeout", "20h").split()[0] == "TOPIC"


def test_unknown_transactional_id_is_refused_and_not_created(cluster: CliCluster) -> None:
    name = cluster.new_name("none")
    assert "TRANSACTIONAL_ID_NOT_FOUND" in cluster.run("transaction", "describe", name, code=1)
    [row] = cluster.rows("transaction", "abort", name, code=1)
    assert row["status"].endswith("; see `tiered transaction list` (TRANSACTIONAL_ID_NOT_FOUND)")
    assert name not in cluster.run("transaction", "list")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("list", "--states", "Sleeping"), "Sleeping"),
        (("abort",), "name transactional ids"),
        (("abort", "x", "-t", "t"), "name transactional ids"),
        (("abort", "-t", "t", "-p", "0"), "--start-offset"),
    ],
)
def test_wrong_arguments_are_refused(cluster: CliCluster, arguments: tuple[str, ...], words: str) -> None:
    assert words in cluster.run("transaction", *arguments, code=2)


def test_transaction_that_a_coordinator_will_end_does_not_hang(cluster: CliCluster) -> None:
    topic = cluster.create_topic()
    producer = begin_transaction(cluster, cluster.new_name("id"), topic, "a")
    assert cluster.rows("transaction", "find-hanging", topic, "--max-timeout", "1ms") == []
    abort = ("transaction", "abort", "-t", topic, "-p", "0", "--start-offset", "0")
    assert "may yet commit it" in cluster.run(*abort, code=2)
    assert cluster.consume(topic, "--isolation-level", "read_uncommitted") == ["a"]
    [aborted] = cluster.rows(*abort, "--force")
    assert aborted["status"] == "OK"
    producer.abort_transaction(30)


@run_by(run, "tmp_path")
async def test_hanging_transaction_is_found_and_aborted(three: HttpCluster) -> None:
    await three.create("t", [2, 1])
    await three[1].produce("t", "a")
    await Producers(three[2]).write(ONE, "b")
    address = next(iter(three[3].kafka.addresses.values())).address

    async def command(*arguments: str) -> list[dict[str, object]]:
        words = ("transaction", *arguments, "--brokers", address, "--format", "json")
        done = await asyncio.to_thread(run_tiered, *words)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert await command("find-hanging", "--max-timeout", "20h") != []
    [found] = await command("find-hanging", "t")
    assert (found["topic"], found["partition"], found["start_offset"], found["producer_id"]) == ("t", 0, 1, ONE)
    aborted = await command("abort", "-t", "t", "-p", "0", "--start-offset", "1")
    assert aborted == [{"topic": "t", "partition": 0, "start_offset": 1, "status": "OK"}]
    assert await command("find-hanging") == []
    got = (await three[1].get("/topics/t/partitions/0/records?offset=0")).json
    assert ([row["value"] for row in got["records"]], got["next_offset"]) == (["a"], 3)


def test_refusal_of_a_long_transactional_id_quotes_its_beginning(cluster: CliCluster) -> None:
    said = cluster.run("transaction", "describe", "x" * 10_000, code=1)
    assert "transactional id xxx" in said and len(said) < 400


def test_produced_input_is_one_transaction(cluster: CliCluster) -> None:
    topic, name = cluster.create_topic(2), cluster.new_name("id")
    data = "".join(f"{n % 2} v{n}\n" for n in range(10))
    options = ("-f", r"%p %v\n", "-o", "%p %v\\n", "--transactional-id", name)
    assert sorted(cluster.produce(topic, data, *options)) == sorted(data.splitlines())
    assert sorted(cluster.consume(topic, "-n", "10", "-o", "start")) == [f"v{n}" for n in range(10)]
    [shown] = cluster.rows("transaction", "describe", name)
    assert shown["state"] in ("PrepareCommit", "CompleteCommit")
    assert (shown["duration_ms"] is None) == (shown["state"] == "CompleteCommit")
    cluster.produce(topic, data, *options)  # the same id again
    assert len(cluster.consume(topic, "-n", "20", "-o", "start")) == 20


def test_failed_input_leaves_nothing_for_committed_readers(cluster: CliCluster) -> None:
    topic, name = cluster.create_topic(max_message_bytes="2000"), cluster.new_name("id")
    data = "small\n" + "x" * 5000 + "\n"
    said = cluster.run(
        "topic", "produce", topic, "-o", "", "-z", "none", "--transactional-id", name, stdin=data.encode(), code=1
    )
    assert "the transaction is not committed" in said
    cluster.produce(topic, "after\n", "-o", "")
    assert cluster.consume(topic) == ["after"]
    assert "--acks all" in cluster.run("topic", "produce", topic, "--transactional-id", name, "--acks", "1", code=2)
