"""Tests of SIGKILL under load: no acknowledged record is lost or duplicated, and groups continue."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from tests.compat.brokers import CompatBroker
from tests.compat.client import ClientError, ClientRecord, DriverClient, wait_until
from tests.compat.clients import KINDS, ClientKind, kinds
from tests.compat.transactions import COMMITTED, TransactionalProducer, read, send_ends

pytestmark = pytest.mark.timeout(600)
PARTITIONS = 3
ROUNDS = 12
EACH = 300
TRANSACTIONS = 14


def write(client: DriverClient, topic: str, done: list[int], wake: threading.Condition) -> None:
    """Writes rounds of records, each acknowledged whole before the next; reports its progress after each."""
    for start in range(0, ROUNDS * EACH, EACH):
        numbers = range(start, start + EACH)
        records = [ClientRecord(b"%d" % number, partition=number % PARTITIONS) for number in numbers]
        client.send(topic, records, idempotent=True, acks="all", codec="lz4")
        with wake:
            done.append(start + EACH)
            wake.notify_all()


@pytest.mark.parametrize("kind", kinds())
def test_idempotent_producer_and_group_survive_a_killed_broker(
    kind: ClientKind, fragile: CompatBroker, name: str
) -> None:
    if kind.name == "kafkajs":
        pytest.skip("KafkaJS has no lz4, and gives up on a broker that is away for seconds")
    with KINDS[0].start(fragile) as admin, kind.start(fragile) as producer:
        admin.ask("create", topic=name, partitions=PARTITIONS)
        with kind.start(fragile) as member:
            member.ask("open", group=name, assignor="range", session_ms=6000)
            member.ask("subscribe", topics=[name])
            done: list[int] = []
            wake = threading.Condition()
            writer = threading.Thread(target=write, args=(producer, name, done, wake))
            writer.start()
            for rounds in (3, 7):
                with wake:
                    assert wake.wait_for(lambda least=rounds: len(done) >= least, 90)  # type: ignore[misc]
                fragile.crash()
            writer.join(120)
            assert done and done[-1] == ROUNDS * EACH
            wanted = {b"%d" % number for number in range(ROUNDS * EACH)}
            wait_until([member], lambda: {each.value for each in member.records} >= wanted, 60)
            commit_all(member, admin, name)
            member.ask("leave")
        assert read_all(admin, name) == [list(range(part, ROUNDS * EACH, PARTITIONS)) for part in range(PARTITIONS)]


def commit_all(member: DriverClient, admin: DriverClient, topic: str) -> None:
    """Commits until the end is committed: a member that was removed with the broker reads again first."""
    end = {ROUNDS * EACH // PARTITIONS}
    for _ in range(300):
        with suppress(ClientError):
            member.ask("commit")
        committed = admin.ask("group_offsets", group=topic)
        if len(committed) == PARTITIONS and {each[2] for each in committed} == end:
            return
    raise AssertionError(f"committed: {committed}")


def read_all(client: DriverClient, topic: str) -> list[list[int]]:
    """Returns the values of each partition in the order of their offsets, which have no gaps."""
    client.ask("open", group=topic + "-all")
    places = [[topic, partition] for partition in range(PARTITIONS)]
    ends = client.ask("ends", partitions=places)
    client.records.clear()
    client.ask("assign", partitions=[[*place, 0] for place in places])
    found = client.wait_for(sum(end - first for _, _, first, end in ends))
    client.ask("leave")
    values = []
    for partition in range(PARTITIONS):
        mine = [each for each in found if each.partition == partition]
        assert [each.offset for each in mine] == list(range(len(mine)))
        values.append([int(each.value or b"") for each in mine])
    return values


def test_committed_offsets_survive_a_killed_broker(fragile: CompatBroker, name: str) -> None:
    with KINDS[0].start(fragile) as client:
        client.ask("create", topic=name, partitions=2)
        client.send(name, [ClientRecord(b"%d" % number, partition=number % 2) for number in range(40)])
        client.ask("open", group=name)
        client.ask("subscribe", topics=[name])
        client.wait_for(40)
        client.ask("commit", offsets=[[name, 0, 11, "eleven"], [name, 1, 20, ""]])
        fragile.crash()
        assert client.ask("committed", partitions=[[name, 0], [name, 1]]) == [
            [name, 0, 11, "eleven"],
            [name, 1, 20, ""],
        ]
        client.ask("commit", offsets=[[name, 0, 12, "twelve"]])
        client.ask("leave")
    with KINDS[1].start(fragile) as other:
        other.ask("open", group=name)
        other.ask("subscribe", topics=[name])
        assert [each.offset for each in other.wait_for(8)] == list(range(12, 20))
        other.ask("leave")


@pytest.mark.parametrize("kind", kinds("transactions", slow=("kafka-python",)))
def test_transactions_are_whole_after_kills_of_the_broker(kind: ClientKind, fragile: CompatBroker, name: str) -> None:
    """The broker dies within a transaction and while one ends. A client that gives up begins anew."""
    places = [(name, partition) for partition in range(PARTITIONS)]
    committed: set[int] = set()
    aborted: set[int] = set()
    with KINDS[0].start(fragile) as admin, kind.start(fragile) as client:
        admin.ask("create", topic=name, partitions=PARTITIONS)
        producer = TransactionalProducer(client, name)
        for number in range(TRANSACTIONS):
            try:
                producer.begin()
                for _, partition in places:
                    producer.send(name, f"{number} first", f"{number} second", partition=partition)
                    if number == 4 and partition == 1:
                        fragile.crash()
                order = client.begin("txn_abort" if number % 4 == 2 else "txn_commit", producer=producer.handle)
                if number in (8, 10):
                    fragile.crash()
                client.finish(order)
            except ClientError:
                producer.abandon()
                producer = begin_anew(client, name, number)
            else:
                (aborted if number % 4 == 2 else committed).add(number)
        send_ends(admin, places)
        found = read(admin, KINDS[0], name, places, COMMITTED)
    assert len(committed) >= TRANSACTIONS // 2
    numbers = [[int((value or b"").split()[0]) for value in values] for values in found.values()]
    assert numbers[0] == numbers[1] == numbers[2] == sorted(2 * sorted(set(numbers[0])))
    assert committed <= set(numbers[0]) and not aborted & set(numbers[0])


def begin_anew(client: DriverClient, name: str, number: int) -> TransactionalProducer:
    """Returns a new producer of the transactional id, once the broker is back for this client."""
    for attempt in range(30):
        with suppress(ClientError):
            return TransactionalProducer(client, name, handle=f"{name}-{number}-{attempt}")
    raise AssertionError("no new producer")
