"""Tests of `tiered.testing` and of `tiered serve --ephemeral`, as the test suites of other programs use them."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from tests.e2e.serving import COMMAND
from tests.sources import ROOT
from tiered.errors import Refused, Unavailable
from tiered.testing import FactTimeout, TieredCluster, cluster
from tiered.testing.in_process import SETTINGS
from tiered.testing.rest import RequestFailed
from tiered_api.cli.broker.ephemeral import EphemeralDirectory
from tiered_api.cli.broker.sources import load_settings

SECONDS = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[TieredCluster]:
    """One broker for tests that move no time and order no faults."""
    with cluster() as made:
        yield made


def librdkafka(servers: str, topic: str) -> list[bytes | None]:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    producer.produce(topic, b"1", b"k")
    assert producer.flush(SECONDS) == 0
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    record = consumer.poll(SECONDS)
    consumer.close()
    assert record is not None
    return [record.value()]


def aio(servers: str, topic: str) -> list[bytes | None]:
    async def work() -> list[bytes | None]:
        async with (
            aiokafka.AIOKafkaProducer(bootstrap_servers=servers) as producer,
            aiokafka.AIOKafkaConsumer(
                topic, bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest"
            ) as consumer,
        ):
            await producer.send_and_wait(topic, b"1", b"k")
            record = await asyncio.wait_for(consumer.getone(), SECONDS)
            return [record.value]

    return asyncio.run(work())


def kafka_python(servers: str, topic: str) -> list[bytes | None]:
    producer = kafka.KafkaProducer(bootstrap_servers=servers)
    producer.send(topic, b"1", b"k").get(SECONDS)
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest",
        consumer_timeout_ms=int(SECONDS * 1000),
    )  # fmt: skip
    value = next(consumer).value
    consumer.close()
    producer.close()
    return [value]


@pytest.mark.parametrize("client", [librdkafka, aio, kafka_python])
def test_kafka_client_writes_and_reads(client: Callable[[str, str], list[bytes]], broker: TieredCluster) -> None:
    topic = client.__name__
    broker.create_topic(topic)
    assert client(broker.bootstrap_servers, topic) == [b"1"]
    assert [(each.key, each.value) for each in broker.records(topic)] == [(b"k", b"1")]


def test_topic_has_partitions_settings_and_records(broker: TieredCluster) -> None:
    broker.create_topic("t", partitions=2, cleanup_policy="compact", preallocate=True)
    assert broker.produce("t", "v", "k", partition=1, headers={"a": "b"}) == 0
    broker.produce("t", None, b"\xff", partition=1)
    (first, second) = broker.records("t", 1)
    assert (first.partition, first.offset, first.key, first.value) == (1, 0, b"k", b"v")
    assert first.headers == (("a", b"b"),) and abs(first.timestamp_ms - broker.now_ms()) < 60_000
    assert (second.key, second.value) == (b"\xff", None)
    assert (broker.start_offset("t", 1), broker.end_offset("t", 1), broker.end_offset("t", 0)) == (0, 2, 0)
    configs = broker.ask("GET", "/topics/t")["configs"]
    assert (configs["cleanup.policy"], configs["preallocate"]) == ("compact", "true")
    broker.delete_topic("t")
    assert "t" not in broker.topics()


def test_refused_request_raises_the_sentence_of_the_broker(broker: TieredCluster) -> None:
    with pytest.raises(RequestFailed, match=r"400, retention.ms=x: it must be"):
        broker.create_topic("bad", retention_ms="x")


def test_fact_that_stays_false_ends_with_its_last_value(broker: TieredCluster) -> None:
    with pytest.raises(FactTimeout, match=r"the last value is 0"):
        broker.wait_until(lambda: 0, seconds=0.01)
    with pytest.raises(FactTimeout, match=r"there is no topic absent"):
        broker.wait_until(lambda: broker.leader("absent"), seconds=0.01)


def test_fact_of_an_absent_thing_says_what_is_absent(broker: TieredCluster) -> None:
    broker.create_topic("one")
    facts: list[Callable[..., object]] = [broker.leader, broker.in_sync, broker.lose_leader, broker.move_leader]
    for fact in facts:
        with pytest.raises(LookupError, match="there is no topic absent"):
            fact("absent")
    for fact in [*facts, broker.end_offset, broker.records]:
        for number in (1, -1):
            with pytest.raises(LookupError, match=f"topic one has no partition {number}"):
                fact("one", number)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"min_insync_replica": 2}, "min.insync.replica: unknown broker setting; did you mean min.insync.replicas"),
        ({"log_retention_ms": -5}, "log.retention.ms=-5"),
        ({"min_insync_replicas": "two"}, "min.insync.replicas=two"),
    ],
)
def test_setting_that_is_wrong_is_refused_and_leaves_nothing(
    settings: dict[str, Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(Refused, match=why), cluster(1, **settings):
        pass
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="at least one broker, not 0"), cluster(0):
        pass


def test_settings_of_kafka_reach_brokers_and_topics() -> None:
    with cluster(log_retention_hours=2, log_cleanup_policy=["compact", "delete"]) as broker:
        broker.create_topic("t")
        broker.create_topic("u", cleanup_policy=("delete", "compact"))
        (cluster_row,) = broker.ask("GET", "/v3/clusters")["data"]
        rows = broker.ask("GET", f"/v3/clusters/{cluster_row['cluster_id']}/topics/t/configs")["data"]
        configs = {row["name"]: row["value"] for row in rows}
        assert (configs["retention.ms"], configs["cleanup.policy"]) == ("7200000", "compact,delete")
        assert broker.ask("GET", "/topics/u")["configs"]["cleanup.policy"] == "delete,compact"


def test_reply_that_is_not_json_is_returned_as_text(broker: TieredCluster) -> None:
    assert "# TYPE tiered_" in broker.ask("GET", "/metrics")


def test_record_has_bytes_or_text_and_nothing_else(broker: TieredCluster) -> None:
    broker.create_topic("parts")
    broker.produce("parts", "é", headers={"a": b"\xff", "b": None, "c": "é"})
    (record,) = broker.records("parts")
    assert (record.key, record.value) == (None, "é".encode())
    assert record.headers == (("a", b"\xff"), ("b", None), ("c", "é".encode()))
    wrong: Any = {"n": 1}
    with pytest.raises(TypeError, match="a record has bytes or text, not dict"):
        broker.produce("parts", wrong)


def test_offset_without_a_leader_says_why() -> None:
    with cluster(2) as brokers:
        brokers.create_topic("t", replication_factor=1)
        brokers.lose_leader("t")
        brokers.wait_until(lambda: brokers.leader("t") is None)
        with pytest.raises(LookupError, match="the offsets of t-0 are not known: "):
            brokers.end_offset("t")


def test_group_that_is_not_there_has_no_offset_and_no_member(broker: TieredCluster) -> None:
    broker.create_topic("unread")
    assert (broker.committed("nobody", "unread"), broker.members("nobody")) == (None, 0)


def test_fault_inside_another_ends_before_it() -> None:
    with cluster() as broker:
        broker.create_topic("t", remote_storage_enable=True, internal_segment_bytes=1000)
        with broker.bucket_away():
            with pytest.raises(KeyError), broker.bucket_away():
                raise KeyError
            for _ in range(2):
                broker.produce("t", "x" * 900)
            with pytest.raises(FactTimeout):
                broker.wait_until(lambda: broker.cold_end_offset("t"), seconds=0.3)
        broker.wait_until(lambda: broker.cold_end_offset("t") == 1)
        for fault in (broker.bucket_slow, broker.clients_delayed):
            with pytest.raises(ValueError, match="a delay is 0 s or longer, not -1"), fault(-1):
                pass


def test_address_of_a_broker_that_is_down_stays_free_for_it() -> None:
    with cluster() as broker:
        host, _, port = broker.bootstrap_servers.partition(":")
        http_port = broker.http_url.rpartition(":")[2]
        broker.kill(1)
        for number in map(int, (port, http_port)):
            with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
                other.bind((host, number))
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, number), SECONDS)
        broker.start(1)
        broker.create_topic("t")
        broker.kill(1)  # what holds its addresses ends with the cluster


def test_start_that_fails_holds_nothing_and_can_be_repeated() -> None:
    with cluster() as broker, socket.socket() as other:
        broker.create_topic("t")
        host, _, port = broker.bootstrap_servers.partition(":")
        broker.kill(1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((host, int(port)))
        other.listen()
        with pytest.raises(Unavailable, match="Address already in use"):
            broker.start(1)
        other.close()
        broker.start(1)
        assert broker.produce("t", "1") == 0


def test_start_without_the_bucket_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster() as broker:
        broker.create_topic("t")
        broker.kill(1)
        monkeypatch.setattr("tiered.testing.running_cluster.CALL_SECONDS", 0.2)
        with broker.bucket_away(), pytest.raises(TimeoutError, match="did not do this within"):
            broker.start(1)
        monkeypatch.undo()
        broker.start(1)
        assert broker.produce("t", "1") == 0


def test_broker_in_the_other_state_is_refused_and_undisturbed() -> None:
    with cluster() as broker:
        broker.create_topic("t")
        with pytest.raises(ValueError, match="broker 1 runs already"):
            broker.start(1)
        with pytest.raises(ValueError, match="there is no broker 2: the cluster has the brokers 1 to 1"):
            broker.kill(2)
        broker.kill(1)
        for end in (broker.kill, broker.stop):
            with pytest.raises(ValueError, match="broker 1 does not run"):
                end(1)
        with pytest.raises(LookupError, match=r"no broker of the cluster runs: start\(number\)"):
            broker.produce("t", "1")
        with pytest.raises(FactTimeout, match="no broker of the cluster runs"):
            broker.wait_until(lambda: broker.leader("t"), seconds=0.01)
        broker.start(1)
        assert broker.produce("t", "1") == 0
    broker.close()  # a second time
    with pytest.raises(RuntimeError, match="the cluster has ended"):
        broker.leader("t")
    with pytest.raises(RuntimeError, match="the cluster has ended"):
        broker.advance(hours=1)


def test_records_expire_when_the_time_moves() -> None:
    with cluster() as broker:
        broker.create_topic("t", retention_ms=3_600_000, internal_segment_bytes=1000)
        broker.produce("t", "x" * 600)
        broker.advance(minutes=59)
        broker.produce("t", "y" * 600)
        broker.advance(minutes=2)
        broker.wait_until(lambda: broker.start_offset("t") == 1)
        assert broker.records("t")[0].value == b"y" * 600


def test_silent_member_leaves_its_group_when_the_time_moves() -> None:
    with cluster() as broker:
        broker.create_topic("t")
        broker.produce("t", "1")
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest",
             "heartbeat.interval.ms": 20_000, "session.timeout.ms": 45_000}
        )  # fmt: skip
        consumer.subscribe(["t"])
        record = consumer.poll(SECONDS)
        assert record is not None
        consumer.commit(message=record, asynchronous=False)
        assert (broker.members("g"), broker.committed("g", "t")) == (1, 1)
        broker.advance(minutes=1)
        broker.wait_until(lambda: broker.members("g") == 0)
        consumer.close()


def test_open_transaction_ends_when_the_time_moves() -> None:
    with cluster() as broker:
        broker.create_topic("t")
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x", "transaction.timeout.ms": 60_000}
        )
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        producer.produce("t", b"never committed")
        producer.flush(SECONDS)
        broker.advance(minutes=2)
        broker.wait_until(lambda: broker.end_offset("t") == 2)  # the record, and the marker of the abort
        with pytest.raises(confluent_kafka.KafkaException):
            producer.commit_transaction(SECONDS)
        assert broker.records("t") == []


def test_bucket_that_is_away_delays_uploads_only() -> None:
    with cluster() as broker:
        broker.create_topic("t", remote_storage_enable=True, internal_segment_bytes=1000)
        with broker.bucket_away():
            for _ in range(3):
                broker.produce("t", "x" * 900)
            assert broker.cold_end_offset("t") == 0
        with broker.bucket_slow(0.01):
            broker.wait_until(lambda: broker.cold_end_offset("t") == 2)


def test_delay_holds_back_what_clients_send() -> None:
    with cluster() as broker:
        broker.create_topic("t")
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("t", b"first")
        assert producer.flush(SECONDS) == 0
        with broker.clients_delayed(3600):
            producer.produce("t", b"late")
            producer.flush(0.05)
            assert broker.end_offset("t") == 1
            broker.advance(hours=1)
        assert producer.flush(SECONDS) == 0
        assert [each.value for each in broker.records("t")] == [b"first", b"late"]


def test_cluster_loses_a_leader_and_gets_it_back() -> None:
    with cluster(3, min_insync_replicas=2) as brokers:
        brokers.create_topic("t")
        brokers.produce("t", "1")
        lost = brokers.lose_leader("t")
        assert brokers.leader("t") not in (lost, None)
        brokers.produce("t", "2")
        brokers.start(lost)
        brokers.wait_until(lambda: lost in brokers.in_sync("t"))
        assert [each.value for each in brokers.records("t")] == [b"1", b"2"]


def test_new_leader_knows_all_committed_records() -> None:
    with cluster(3) as brokers:
        for number in range(10):
            topic = f"t{number}"
            brokers.create_topic(topic)
            brokers.produce(topic, "x")
            brokers.move_leader(topic)
            assert (brokers.end_offset(topic), len(brokers.records(topic))) == (1, 1)


def test_group_goes_on_at_another_coordinator() -> None:
    with cluster(3) as brokers:
        brokers.create_topic("t")
        brokers.produce("t", "1")
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": brokers.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["t"])
        record = consumer.poll(SECONDS)
        assert record is not None
        old = brokers.coordinator("g")
        assert brokers.move_coordinator("g") == brokers.coordinator("g") != old
        consumer.commit(message=record, asynchronous=False)
        brokers.wait_until(lambda: brokers.committed("g", "t") == 1)
        consumer.close()


def stay(brokers: TieredCluster, ends: Event) -> None:
    """Runs in a forked process, which has the descriptors of its parent."""
    with pytest.raises(RuntimeError, match="belongs to the process that forked"):
        brokers.produce("t", "never")
    brokers.close()
    assert ends.wait(SECONDS)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_broker_is_killed_and_started_beside_a_forked_process() -> None:
    with cluster(2) as brokers:
        brokers.create_topic("t")
        client = confluent_kafka.Producer({"bootstrap.servers": brokers.bootstrap_servers})
        client.produce("t", b"0")
        assert client.flush(SECONDS) == 0
        forks = multiprocessing.get_context("fork")
        ends = forks.Event()
        child = forks.Process(target=stay, args=(brokers, ends))
        child.start()
        lost = brokers.lose_leader("t")
        brokers.start(lost)
        brokers.wait_until(lambda: brokers.in_sync("t") == {1, 2})
        client.produce("t", b"1")
        assert client.flush(SECONDS) == 0
        ends.set()
        child.join(SECONDS)
        assert child.exitcode == 0
        assert [each.value for each in brokers.records("t")] == [b"0", b"1"]


def test_time_of_a_cluster_moves_without_a_lost_broker() -> None:
    with cluster(3) as brokers:
        brokers.create_topic("t")
        leader = brokers.leader("t")
        brokers.advance(days=60)
        assert brokers.leader("t") == leader and brokers.in_sync("t") == {1, 2, 3}
        assert brokers.produce("t", "1") == 0


def test_nothing_is_left_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    threads = set(threading.enumerate())
    with cluster(2) as brokers:
        assert list(tmp_path.iterdir())
        brokers.create_topic("t")
    assert not list(tmp_path.iterdir())
    left = {thread.name for thread in set(threading.enumerate()) - threads if not thread.daemon}
    assert not left


def examples() -> list[str]:
    """The Python of docs/how-to/test-with-brokers.md: a file of tests, a cluster without pytest, and a fixture."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/test-with-brokers.md").read_text(), re.DOTALL)


def test_suite_of_the_documentation_passes_in_parallel(tmp_path: Path) -> None:
    """Two processes, each with brokers of its own for each test."""
    again = "\n\ndef test_broker_is_empty(tiered_broker):\n    assert tiered_broker.topics() == []\n"
    shared = "\n\ndef test_brokers_are_shared(brokers):\n    assert len(brokers.http_urls) == 3\n"
    (tmp_path / "test_theirs.py").write_text(examples()[0] + again)
    (tmp_path / "test_shared.py").write_text(examples()[2] + shared)
    paths = os.pathsep.join(str(ROOT / each) for each in ("", "api"))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", str(tmp_path)]
    command += [] if has_entry_point() else ["-p", "tiered.testing.pytest_plugin"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "5 passed" in done.stdout, done.stdout


def has_entry_point() -> bool:
    """True if this environment was installed since the package has the entry point."""
    return any(each.value == "tiered.testing.pytest_plugin" for each in entry_points(group="pytest11"))


def test_cluster_of_the_documentation_has_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    exec(examples()[1], {})
    servers, url = capsys.readouterr().out.split()
    assert len(servers.split(",")) == 3 and url.startswith("http://127.0.0.1:")


def test_ephemeral_broker_ends_with_its_parent(tmp_path: Path) -> None:
    """The parent is a shell, which is killed."""
    command = " ".join([*COMMAND, "serve", "--ephemeral"])
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(
        ["sh", "-c", f"{command} & wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert parent.stdout is not None
    line = json.loads(parent.stdout.readline())
    assert list(tmp_path.iterdir())
    assert librdkafka(line["bootstrap_servers"], "t") == [b"1"]
    parent.kill()
    parent.wait(SECONDS)
    more, log = parent.communicate(timeout=SECONDS)  # the broker has closed both
    assert more == b"" and b" INFO " not in log
    deadline = time.monotonic() + SECONDS
    while list(tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ephemeral_broker_has_the_settings_of_brokers_in_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    weakest = EphemeralDirectory().settings()
    made, _ = load_settings(None, {}, ["log.level=debug"], {}, weakest)
    assert made.log_level == "debug" and made.tiered_audit_file.startswith(str(tmp_path))
    names = [name.replace(".", "_") for name in weakest if name not in {"log.level", "tiered.audit.file"}]
    assert {name: getattr(made, name) for name in names} == {name: getattr(SETTINGS, name) for name in names}
    assert len(names) == 7


def test_ephemeral_broker_without_a_place_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with pytest.raises(Refused, match=r"which TMPDIR names: No such file"):
        EphemeralDirectory()


@pytest.mark.parametrize("option", [["--data-dir", "x"], ["--kafka", "127.0.0.1:0"], ["-c", "tiered.processes=2"]])
def test_ephemeral_broker_refuses_places_of_its_own(option: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "serve", "--ephemeral", *option], capture_output=True, text=True, timeout=SECONDS, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2 and "--ephemeral" in done.stderr
    assert not list(tmp_path.iterdir())
