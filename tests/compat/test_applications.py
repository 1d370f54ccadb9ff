"""Tests of whole applications that write exactly once, killed on the way: Kafka Streams, and Kafka's own copier."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.compat.brokers import CompatBroker
from tests.compat.client import ClientRecord, DriverClient, PartitionKey
from tests.compat.clients import ALL, DRIVERS, KINDS, compile_java
from tests.compat.conftest import Clients
from tests.compat.transactions import COMMITTED, open_reader, values_of
from tests.peer.kafka import java

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(not ALL, reason="make compat runs it: applications in Java that are killed and start again"),
]
WORDS = ("log", "segment", "record", "offset", "epoch", "leader")
LINES = 600
COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
COPIED = 2000
SECONDS = 90.0


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Runs an application, and kills it at the end if it still runs."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def send_lines(admin: DriverClient, topic: str, lines: list[str]) -> None:
    for start in range(0, len(lines), 100):
        some = lines[start : start + 100]
        records = [ClientRecord(line.encode(), partition=number % 2) for number, line in enumerate(some)]
        admin.send(topic, records, idempotent=True)


def test_word_count_of_streams_is_exact_after_it_was_killed(
    broker: CompatBroker, admin: DriverClient, clients: Clients, name: str
) -> None:
    """Each word gets the counts 1, 2, 3 and so on, each once: a repeated or lost record would break the row."""
    source, target = f"{name}-in", f"{name}-out"
    for topic in (source, target):
        admin.ask("create", topic=topic, partitions=2)
    rng = Random(7)
    lines = [" ".join(rng.choices(WORDS, k=5)) for _ in range(LINES)]
    reader = clients(KINDS[1])
    open_reader(reader, KINDS[1], f"{name}-reader", [(target, 0), (target, 1)], COMMITTED)
    command = compile_java(DRIVERS / "streams" / "WordCount.java", DRIVERS / "streams" / "pom.xml", "WordCount")
    with tempfile.TemporaryDirectory() as state:
        login = [] if broker.login is None else [str(broker.login.write_properties(Path(state) / "client"))]
        for number, part in enumerate((lines[: LINES // 2], lines[LINES // 2 :])):
            directory = str(Path(state) / str(number))
            with running([*command, broker.address, name, source, target, directory, *login]):
                send_lines(admin, source, part)
                wanted = 5 * LINES if number else 5 * LINES // 4
                reader.wait_until(lambda least=wanted: len(reader.records) >= least, SECONDS)  # type: ignore[misc]
    counts: dict[bytes, list[int]] = {}
    for each in reader.records:
        counts.setdefault(each.key or b"", []).append(int(each.value or b""))
    reader.ask("leave")
    truth = " ".join(lines).split()
    assert counts == {word.encode(): list(range(1, truth.count(word) + 1)) for word in WORDS}


def test_copiers_that_abort_and_die_copy_each_record_once(
    broker: CompatBroker, admin: DriverClient, clients: Clients, name: str
) -> None:
    if broker.login is not None:
        pytest.skip("the copier does not log in")
    source, target = f"{name}-in", f"{name}-out"
    for topic in (source, target):
        admin.ask("create", topic=topic, partitions=2)
    for partition in range(2):
        for start in range(0, COPIED, 500):
            records = [ClientRecord(b"%d" % number, partition=partition) for number in range(start, start + 500)]
            admin.send(source, records)

    def copier(partition: int) -> list[str]:
        places = ["--input-topic", source, "--input-partition", str(partition), "--output-topic", target]
        options = ["--transaction-size", "50", "--enable-random-aborts", "--use-group-metadata"]
        identity = ["--transactional-id", f"{name}-{partition}", "--consumer-group", name]
        return java(COPIER, ["--broker-list", broker.address, *places, *options, *identity], heap="128m")

    with ExitStack() as stack:
        for partition in range(2):
            with running(copier(partition)) as killed:
                wait_progress(killed, COPIED // 4)
        ends = [stack.enter_context(running(copier(partition))) for partition in range(2)]
        for each in ends:
            each.communicate(timeout=SECONDS)
            assert each.returncode == 0
    reader = clients(KINDS[1])
    places: list[PartitionKey] = [(target, 0), (target, 1)]
    open_reader(reader, KINDS[1], f"{name}-reader", places, COMMITTED)
    reader.wait_for(2 * COPIED, SECONDS)
    found = [value for values in values_of(reader).values() for value in values]
    reader.ask("leave")
    assert sorted(int(value or b"") for value in found) == sorted(2 * list(range(COPIED)))


def wait_progress(copier: subprocess.Popen[str], count: int) -> None:
    """Waits until a copier reports that it has consumed so many records."""
    assert copier.stdout is not None
    for line in copier.stdout:
        if line.startswith("{") and json.loads(line).get("consumed", 0) >= count:
            return
    raise AssertionError(f"the copier ended with {copier.wait()}")
