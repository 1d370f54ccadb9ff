"""Tests of transactions, as each client begins, ends, reads and loses them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat.client import ClientError, ClientRecord, DriverClient, PartitionKey
from tests.compat.clients import ALL, KINDS, ClientKind, kinds
from tests.compat.conftest import Clients
from tests.compat.transactions import (
    COMMITTED,
    END,
    UNCOMMITTED,
    TransactionalProducer,
    open_reader,
    read,
    send_ends,
    send_plain,
    values_of,
    wait_for_value,
)

FENCED = r"(?i)fenced|invalid_?producer_?epoch|producer's epoch|epoch is smaller"
REFUSED_MEMBER = r"(?i)fenced|generation|unknown_?member|commit_?failed"
Start = Callable[[ClientKind], DriverClient]


@pytest.mark.parametrize("kind", kinds("transactions", few=True))
def test_committed_transactions_are_read_whole_and_aborted_ones_not_at_all(
    kind: ClientKind, clients: Clients, admin: DriverClient, name: str
) -> None:
    topics = [f"{name}-{letter}" for letter in "ab"]
    places = [(topic, partition) for topic in topics for partition in range(2)]
    for topic in topics:
        admin.ask("create", topic=topic, partitions=2)
    client = clients(kind)
    producer = TransactionalProducer(client, name)
    for number, end in enumerate(("commit", "abort", "commit", "abort", "abort", "commit")):
        producer.begin()
        for topic, partition in places:
            producer.send(topic, f"{end} {number} first", f"{end} {number} second", partition=partition)
        send_plain(admin, topics[0], f"plain {number}", partition=1)
        producer.client.ask(f"txn_{end}", producer=producer.handle)
    send_ends(admin, places)
    committed = read(client, kind, f"{name}-1", places, COMMITTED)
    uncommitted = read(client, kind, f"{name}-2", places, UNCOMMITTED)
    every = [
        f"{end} {number} {which}".encode()
        for number, end in enumerate(("commit", "abort", "commit", "abort", "abort", "commit"))
        for which in ("first", "second")
    ]
    plain = [f"plain {number}".encode() for number in range(6)]
    for place in places:
        mine = [each for each in uncommitted[place] if each is not None and not each.startswith(b"plain")]
        assert mine == every
        wanted = [each for each in uncommitted[place] if each is not None and not each.startswith(b"abort")]
        assert committed[place] == wanted
    assert [each for each in committed[places[1]] if each in plain] == plain


@pytest.mark.parametrize("kind", kinds("broker's way of transactions"))
def test_client_that_adds_partitions_as_brokers_do_has_transactions(
    kind: ClientKind, clients: Clients, admin: DriverClient, name: str
) -> None:
    """@platformatic/kafka sends AddPartitionsToTxn 5. Another client reads: its own takes in what several transactions
    of a producer aborted, and after another producer of its id it cannot begin, on Kafka too."""
    source, target = f"{name}-in", f"{name}-out"
    admin.ask("create", topic=source)
    admin.ask("create", topic=target, partitions=2)
    send_plain(admin, source, *(f"{number}" for number in range(10)))
    places = [(target, 0), (target, 1)]
    client = clients(kind)
    producer = TransactionalProducer(client, name)
    client.records.clear()
    client.ask("open", group=name, isolation=COMMITTED)
    client.ask("subscribe", topics=[source])
    client.wait_for(10)
    wanted: list[bytes] = []
    for position, end in ((4, "commit"), (7, "abort"), (6, "commit"), (9, "abort")):
        producer.begin()
        for _, partition in places:
            producer.send(target, f"{end} to {position}", partition=partition)
        producer.send_offsets((source, 0, position))
        client.ask(f"txn_{end}", producer=producer.handle)
        wanted += [f"{end} to {position}".encode()] if end == "commit" else []
    send_ends(admin, places)
    reader = KINDS[0]
    assert read(clients(reader), reader, f"{name}-2", places, COMMITTED) == dict.fromkeys(places, wanted)
    assert client.ask("committed", partitions=[[source, 0]]) == [[source, 0, 6, ""]]
    client.ask("leave")


@pytest.mark.parametrize("kind", kinds("transactions", few=True))
def test_open_transaction_holds_back_later_records_of_its_partition_only(
    kind: ClientKind, clients: Clients, admin: DriverClient, name: str
) -> None:
    admin.ask("create", topic=name, partitions=2)
    places = [(name, 0), (name, 1)]
    client = clients(kind)
    send_plain(admin, name, "before")
    producer = TransactionalProducer(client, name)
    producer.begin()
    ((_, first),) = [each for each in producer.send(name, "within") if each is not None]
    assert first == 1
    send_plain(admin, name, "after")
    open_reader(client, kind, name, places, COMMITTED)
    for number in range(3):
        # The other partition is the clock: its records come in fetches that ask for both partitions.
        send_plain(admin, name, f"tick {number}", partition=1)
        wait_for_value(client, places[1], f"tick {number}")
    assert values_of(client)[places[0]] == [b"before"]
    if "ends by isolation" in kind.features:
        assert client.ask("ends", partitions=[[name, 0]]) == [[name, 0, 0, 1]]
    producer.commit()
    wait_for_value(client, places[0], "after")
    assert values_of(client)[places[0]] == [b"before", b"within", b"after"]
    if "ends by isolation" in kind.features:
        assert client.ask("ends", partitions=[[name, 0]]) == [[name, 0, 0, 4]]
    client.ask("leave")


@pytest.mark.parametrize("kind", kinds("ends by isolation"))
def test_end_of_a_partition_follows_the_isolation_level(
    kind: ClientKind, clients: Clients, admin: DriverClient, name: str
) -> None:
    admin.ask("create", topic=name)
    client = clients(kind)
    producer = TransactionalProducer(client, name)
    producer.begin()
    producer.send(name, "one", "two")
    found = {}
    for level in (COMMITTED, UNCOMMITTED):
        client.ask("open", group=name, isolation=level)
        found[level] = client.ask("ends", partitions=[[name, 0]])
        client.ask("leave")
    producer.abort()
    assert found == {COMMITTED: [[name, 0, 0, 0]], UNCOMMITTED: [[name, 0, 0, 2]]}


@pytest.mark.parametrize("kind", kinds("transactions", few=True))
def test_second_producer_of_an_id_fences_the_first_and_aborts_for_it(
    kind: ClientKind, clients: Clients, admin: DriverClient, name: str
) -> None:
    admin.ask("create", topic=name)
    client = clients(kind)
    old = TransactionalProducer(client, name, handle=f"{name}-old")
    old.begin()
    old.send(name, "of the old one")
    new = TransactionalProducer(client, name, handle=f"{name}-new")
    new.begin()
    new.send(name, "of the new one")
    new.commit()
    with pytest.raises(ClientError, match=FENCED):
        old.send(name, "late")
        old.commit()
    send_ends(admin, [(name, 0)])
    assert read(client, kind, name, [(name, 0)], COMMITTED) == {(name, 0): [b"of the new one"]}


@pytest.mark.parametrize("kind", kinds("transactions"))
def test_killed_producer_leaves_nothing_of_its_open_transaction(
    kind: ClientKind, start: Start, clients: Clients, admin: DriverClient, name: str
) -> None:
    admin.ask("create", topic=name)
    killed = start(kind)
    producer = TransactionalProducer(killed, name)
    producer.begin()
    producer.send(name, "whole")
    producer.commit()
    producer.begin()
    producer.send(name, "half")
    killed.kill()
    client = clients(kind)
    again = TransactionalProducer(client, name)
    again.begin()
    again.send(name, "again")
    again.commit()
    send_ends(admin, [(name, 0)])
    assert read(client, kind, name, [(name, 0)], COMMITTED) == {(name, 0): [b"whole", b"again"]}


@pytest.mark.parametrize("kind", kinds("transactions", few=True))
def test_transaction_past_its_timeout_is_aborted_and_its_producer_refused(
    kind: ClientKind, clients: Clients, admin: DriverClient, name: str
) -> None:
    admin.ask("create", topic=name)
    client = clients(kind)
    producer = TransactionalProducer(client, name, timeout_ms=1000)
    producer.begin()
    producer.send(name, "too slow")
    send_ends(admin, [(name, 0)])
    assert read(client, kind, name, [(name, 0)], COMMITTED) == {(name, 0): []}
    with pytest.raises(ClientError):
        producer.commit()
    again = TransactionalProducer(client, name, handle=f"{name}-again")
    again.begin()
    again.send(name, "in time")
    again.commit()
    send_ends(admin, [(name, 0)])
    assert read_second(client, kind, f"{name}-2", (name, 0)) == [b"in time"]


def read_second(client: DriverClient, kind: ClientKind, group: str, place: PartitionKey) -> list[bytes | None]:
    """Returns the committed values between the first record `END` and the second."""
    open_reader(client, kind, group, [place], COMMITTED)
    client.wait_until(lambda: sum(each.value == END for each in client.records) >= 2)
    found = values_of(client)[place]
    client.ask("leave")
    return found[found.index(END) + 1 : -1]


@pytest.mark.parametrize("kind", kinds("transactions", few=True, slow=("kafka-python",)))
def test_offsets_of_a_transaction_are_committed_with_its_records_or_not(
    kind: ClientKind, clients: Clients, admin: DriverClient, name: str
) -> None:
    source, target = f"{name}-in", f"{name}-out"
    for topic in (source, target):
        admin.ask("create", topic=topic)
    send_plain(admin, source, *(f"{number}" for number in range(10)))
    client = clients(kind)
    producer = TransactionalProducer(client, name)
    client.records.clear()
    client.ask("open", group=name, assignor=kind.assignors[0], isolation=COMMITTED)
    client.ask("subscribe", topics=[source])
    client.wait_for(10)
    for position, end in ((4, "commit"), (7, "abort"), (6, "commit"), (9, "abort")):
        producer.begin()
        producer.send(target, f"{end} to {position}")
        producer.send_offsets((source, 0, position))
        client.ask(f"txn_{end}", producer=producer.handle)
        wanted = position if end == "commit" else {7: 4, 9: 6}[position]
        assert client.ask("committed", partitions=[[source, 0]]) == [[source, 0, wanted, ""]]
    client.ask("leave")
    send_ends(admin, [(target, 0)])
    assert read(client, kind, f"{name}-2", [(target, 0)], COMMITTED) == {(target, 0): [b"commit to 4", b"commit to 6"]}
    again = clients(kind)
    again.records.clear()
    again.ask("open", group=name, assignor=kind.assignors[0], isolation=COMMITTED)
    again.ask("subscribe", topics=[source])
    assert again.wait_for(4)[0].offset == 6
    again.ask("leave")


@pytest.mark.parametrize("kind", kinds("fenced generations", few=True, slow=("kafka-python",)))
def test_offsets_of_a_member_that_has_left_are_refused(
    kind: ClientKind, clients: Clients, admin: DriverClient, name: str
) -> None:
    admin.ask("create", topic=name)
    client = clients(kind)
    producer = TransactionalProducer(client, name)
    for _ in range(2):
        client.assigned = set()
        client.ask("open", group=name, assignor=kind.assignors[0])
        client.ask("subscribe", topics=[name])
        client.wait_until(lambda: client.assigned == {(name, 0)})
        if _ == 0:
            client.ask("txn_keep_member")
            client.ask("leave")
    producer.begin()
    with pytest.raises(ClientError, match=REFUSED_MEMBER):
        producer.send_offsets((name, 0, 5), kept=True)
        producer.commit()
    producer.abandon()
    assert client.ask("committed", partitions=[[name, 0]]) == [[name, 0, -1, ""]]
    after = TransactionalProducer(client, name, handle=f"{name}-after")
    after.begin()
    after.send_offsets((name, 0, 3))
    after.commit()
    assert client.ask("committed", partitions=[[name, 0]]) == [[name, 0, 3, ""]]
    client.ask("leave")


@pytest.mark.parametrize("kind", kinds("transactions"))
def test_transactional_idempotent_and_plain_producers_share_a_partition(
    kind: ClientKind, clients: Clients, admin: DriverClient, name: str
) -> None:
    admin.ask("create", topic=name)
    client = clients(kind)
    one, two = (TransactionalProducer(client, f"{name}-{number}", handle=f"{name}-{number}") for number in (1, 2))
    one.begin()
    two.begin()
    wanted: list[bytes] = []
    for number in range(5):
        one.send(name, f"one {number}")
        two.send(name, f"two {number}")
        client.send(name, [ClientRecord(b"idempotent %d" % number)], idempotent=True)
        client.send(name, [ClientRecord(b"plain %d" % number)])
        wanted += [b"two %d" % number, b"idempotent %d" % number, b"plain %d" % number]
    two.commit()
    one.abort()
    send_ends(admin, [(name, 0)])
    assert read(client, kind, name, [(name, 0)], COMMITTED) == {(name, 0): wanted}


def test_clients_of_all_kinds_write_transactions_beside_each_other(
    clients: Clients, admin: DriverClient, name: str
) -> None:
    """Each has a version of transactions of its own; all of them read the same."""
    those: list[ClientKind] = [each.values[0] for each in kinds("transactions")]
    admin.ask("create", topic=name)
    producers = {kind.name: TransactionalProducer(clients(kind), f"{name}-{kind}") for kind in those}
    wanted = []
    for number in range(3):
        for producer in producers.values():
            producer.begin()
        for each, producer in producers.items():
            producer.send(name, f"{each} {number}")
            wanted += [f"{each} {number}".encode()] if is_committed(those, each, number) else []
        for each, producer in producers.items():
            producer.client.ask(
                "txn_commit" if is_committed(those, each, number) else "txn_abort", producer=producer.handle
            )
    send_ends(admin, [(name, 0)])
    for kind in those:
        assert read(clients(kind), kind, f"{name}-{kind}", [(name, 0)], COMMITTED) == {(name, 0): wanted}, kind


def is_committed(those: list[ClientKind], kind: str, number: int) -> bool:
    """True for half of the transactions: other clients in each round."""
    return ([each.name for each in those].index(kind) + number) % 2 == 0


@pytest.mark.skipif(not ALL, reason="make compat runs it: two JVMs for each version")
@pytest.mark.parametrize("kind", kinds("resumed transactions"))
def test_transaction_is_ended_by_another_process_than_began_it(
    kind: ClientKind, start: Start, clients: Clients, admin: DriverClient, name: str
) -> None:
    """Flink's way: the process that commits knows producer id and epoch, and initializes nothing."""
    admin.ask("create", topic=name)
    for number, end in enumerate(("commit", "abort")):
        first = start(kind)
        producer = TransactionalProducer(first, f"{name}-{number}")
        producer.begin()
        producer.send(name, f"{end} it")
        producer_id, epoch = first.ask("txn_state", producer=producer.handle)
        first.kill()
        second = clients(kind)
        known = {"producer": producer.handle, "producer_id": producer_id, "epoch": epoch}
        second.ask("txn_resume", **known)
        second.ask(f"txn_{end}", producer=producer.handle)
    send_ends(admin, [(name, 0)])
    assert read(clients(kind), kind, name, [(name, 0)], COMMITTED) == {(name, 0): [b"commit it"]}
    assert read(clients(KINDS[0]), KINDS[0], f"{name}-2", [(name, 0)], UNCOMMITTED) == {
        (name, 0): [b"commit it", b"abort it"]
    }
