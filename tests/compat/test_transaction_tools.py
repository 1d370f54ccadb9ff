"""Tests of Kafka's own tools for transactions, as administrators run them."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compat.brokers import CompatBroker
from tests.compat.client import ClientError, ClientRecord, DriverClient
from tests.compat.clients import ALL, KINDS
from tests.compat.conftest import Clients
from tests.e2e.kafka_site import RawClient
from tests.peer.kafka import tool
from tiered.records.batch import encode_batch
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]
THOROUGH = pytest.mark.skipif(not ALL, reason="make compat runs it: a JVM for every step")
Run = Callable[..., list[list[str]]]


@pytest.fixture
def run(broker: CompatBroker) -> Run:
    """Runs the transactions tool; returns the words of each line."""

    def one(*arguments: str) -> list[list[str]]:
        said = tool("transactions", *broker.reach, *arguments)
        return [line.split() for line in said.splitlines() if line.strip()]

    return one


@pytest.fixture
def client(clients: Clients, admin: DriverClient, name: str) -> Iterator[DriverClient]:
    """Yields a client with a transaction that is open on two partitions, in each from offset 2 on."""
    admin.ask("create", topic=name, partitions=2)
    client = clients(KINDS[0])
    records = [ClientRecord(b"%d" % partition, partition=partition) for partition in range(2)]
    client.ask("txn_init", producer=name)
    for _ in range(2):
        client.ask("txn_begin", producer=name)
        client.send(name, records, producer=name)
        if _ == 0:
            client.ask("txn_commit", producer=name)
    client.ask("open", group=name, isolation="read_committed")
    yield client
    client.ask("leave")


def stable_ends(client: DriverClient, topic: str) -> list[int]:
    """Returns the last stable offsets."""
    return [end for _, _, _, end in client.ask("ends", partitions=[[topic, 0], [topic, 1]])]


def test_open_transaction_is_described_and_forced_to_end(run: Run, client: DriverClient, name: str) -> None:
    header, row = run("describe", "--transactional-id", name)
    said = dict(zip(header, row, strict=True))
    assert (said["TransactionalId"], said["TransactionState"]) == (name, "Ongoing")
    assert (said["TransactionTimeoutMs"], set(said["TopicPartitions"].split(","))) == (
        "60000",
        {f"{name}-0", f"{name}-1"},
    )
    assert stable_ends(client, name) == [2, 2]
    run("forceTerminateTransaction", "--transactionalId", name)
    assert stable_ends(client, name) == [4, 4]
    with pytest.raises(ClientError):
        client.ask("txn_commit", producer=name)


@THOROUGH
def test_transactions_are_listed_with_their_state(run: Run, client: DriverClient, name: str) -> None:
    header, *rows = run("list")
    assert header == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
    assert [row[3] for row in rows if row[0] == name] == ["Ongoing"]
    assert name not in [row[0] for row in run("list", "--duration-filter", "3600000")]
    client.ask("txn_abort", producer=name)


@THOROUGH
def test_transaction_of_one_partition_is_aborted_by_its_start(run: Run, client: DriverClient, name: str) -> None:
    place = ["--topic", name, "--partition", "0"]
    header, row = run("describe-producers", *place)
    assert dict(zip(header, row, strict=True))["CurrentTransactionStartOffset"] == "2"
    assert dict(zip(header, row, strict=True))["LatestCoordinatorEpoch"] == "0"
    (header,) = run("find-hanging", "--topic", name, "--max-transaction-timeout", "0")
    assert header[:3] == ["Topic", "Partition", "ProducerId"]
    run("abort", *place, "--start-offset", "2")
    header, row = run("describe-producers", *place)
    assert dict(zip(header, row, strict=True))["CurrentTransactionStartOffset"] == "None"
    assert stable_ends(client, name) == [4, 2]
    client.ask("txn_abort", producer=name)
    # Kafka writes a second marker to the partition, ours does not.
    assert stable_ends(client, name) in ([5, 4], [4, 4])


@THOROUGH
def test_hanging_transaction_is_found_and_aborted(
    run: Run, admin: DriverClient, name: str, broker: CompatBroker
) -> None:
    """No coordinator knows the transaction: its records came without the partition being verified."""
    admin.ask("create", topic=name, partitions=1)
    verify = ["--entity-type", "brokers", "--entity-default", "--alter", "--add-config"]
    switch = "transaction.partition.verification.enable"
    tool("configs", *broker.reach, *verify, f"{switch}=false")
    try:
        asyncio.run(write_unverified(broker.plain_address, name))
    finally:
        tool("configs", *broker.reach, *verify, f"{switch}=true")
    header, row = run("find-hanging", "--topic", name, "--max-transaction-timeout", "0")
    assert dict(zip(header, row, strict=True))["Topic"] == name
    assert row[:3] == [name, "0", "4711"]
    run("abort", "--topic", name, "--partition", "0", "--start-offset", "0")
    (header,) = run("find-hanging", "--topic", name, "--max-transaction-timeout", "0")


async def write_unverified(address: str, topic: str) -> None:
    host, port = address.rsplit(":", 1)
    client = RawClient(*await asyncio.open_connection(host, int(port)))
    head = encode_batch(
        [(int(time.time() * 1000) - 120_000, b"k", b"v", ())],
        producer_id=4711, producer_epoch=0, base_sequence=0, transactional=True,
    )  # fmt: skip
    part = PartitionProduceData(index=0, records=bytearray(head))
    request = ProduceRequest("no coordinator's", -1, 10_000, [TopicProduceData(name=topic, partition_data=[part])])
    got = await client.ask(request, 9, ProduceResponse)
    assert got.responses[0].partition_responses[0].error_code == 0
    client.close()


@THOROUGH
def test_features_tool_shows_the_version_of_transactions(broker: CompatBroker) -> None:
    said = tool("features", *broker.reach, "describe")
    (line,) = [line.split() for line in said.splitlines() if "transaction.version" in line]
    assert line[:8] == [
        *("Feature:", "transaction.version", "SupportedMinVersion:", "0"),
        *("SupportedMaxVersion:", "2", "FinalizedVersionLevel:", "2"),
    ]


@THOROUGH
def test_features_tool_changes_a_level_and_says_why_it_does_not(broker: CompatBroker) -> None:
    def change(*words: str) -> str:
        return tool("features", *broker.reach, *words)

    try:
        assert "transaction.version can be downgraded to 1." in change(
            "downgrade", "--feature", "transaction.version=1", "--dry-run"
        )
        assert "transaction.version was downgraded to 1." in change("downgrade", "--feature", "transaction.version=1")
        assert "FinalizedVersionLevel: 1" in change("describe").replace("\t", " ").split("transaction.version", 1)[1]
    finally:
        assert "transaction.version was upgraded to 2." in change("upgrade", "--feature", "transaction.version=2")
    for feature in ("transaction.version=3", "nothing.version=1"):
        name, level = feature.split("=")
        with pytest.raises(RuntimeError, match=rf"(?s)Could not upgrade {name} to {level}\. \w.*1 out of 1 operation"):
            change("upgrade", "--feature", feature)


@THOROUGH
def test_dump_tool_reads_the_states_of_a_transaction(broker: CompatBroker, client: DriverClient, name: str) -> None:
    client.ask("txn_commit", producer=name)
    logs = sorted(broker.logs.glob("__transaction_state-*/*.log"))
    states = [state for log in logs for state in dumped_states(log, name)]
    # Two partitions are added at once or one after the other.
    assert [state for state, _ in itertools.groupby(states)] == [0, 1, 2, 4, 1, 2, 4]


def dumped_states(log: Path, name: str) -> list[int]:
    """Returns the states of a transactional id in the order of the log, as the decoder of the tool shows them."""
    found = []
    for line in tool("dump-log", "--transaction-log-decoder", "--files", str(log)).splitlines():
        if "key:" in line and " payload: " in line:
            key, _, payload = line.partition(" key: ")[2].partition(" payload: ")
            if json.loads(key)["data"]["transactionalId"] == name and payload != "<DELETE>":
                found.append(json.loads(payload)["data"]["transactionStatus"])
    return found
