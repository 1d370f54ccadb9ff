"""Transactions as orders to a client's driver, and reading by isolation level."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from tests.compat.client import ClientError, ClientRecord, DriverClient, PartitionKey
from tests.compat.clients import ClientKind

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
END = b"end"
Values = dict[PartitionKey, list[bytes | None]]


class TransactionalProducer:
    """A transactional producer in a driver's process; `handle` tells apart two with the same transactional id."""

    def __init__(self, client: DriverClient, name: str, *, handle: str = "", timeout_ms: int = 60_000) -> None:
        self.client = client
        self.handle = handle or name
        client.ask("txn_init", producer=self.handle, name=name, timeout_ms=timeout_ms)

    def begin(self) -> None:
        self.client.ask("txn_begin", producer=self.handle)

    def send(self, topic: str, *values: str, partition: int = 0) -> list[tuple[int, int] | None]:
        """Sends records to one partition, and returns where they are."""
        records = [ClientRecord(value.encode(), partition=partition) for value in values]
        return self.client.send(topic, records, producer=self.handle)

    def send_offsets(self, *offsets: tuple[str, int, int], **how: Any) -> None:
        """Adds offsets of the group of the open consumer to the transaction."""
        self.client.ask("txn_offsets", producer=self.handle, offsets=[list(each) for each in offsets], **how)

    def commit(self) -> None:
        self.client.ask("txn_commit", producer=self.handle)

    def abort(self) -> None:
        self.client.ask("txn_abort", producer=self.handle)

    def abandon(self) -> None:
        """Aborts after a refusal: some clients have nothing to abort then, or are fenced."""
        with suppress(ClientError):
            self.abort()


def send_plain(admin: DriverClient, topic: str, *values: str, partition: int = 0) -> None:
    """Sends records outside of transactions."""
    admin.send(topic, [ClientRecord(value.encode(), partition=partition) for value in values])


def open_reader(client: DriverClient, kind: ClientKind, group: str, places: Iterable[PartitionKey], level: str) -> None:
    """Opens a consumer that reads partitions from the beginning: clients that cannot assign them subscribe."""
    client.records.clear()
    client.ask("open", group=group, assignor=kind.assignors[0], isolation=level)
    if "assign" in kind.features:
        client.ask("assign", partitions=[[*place, 0] for place in places])
    else:
        client.ask("subscribe", topics=sorted({topic for topic, _ in places}))


def read(client: DriverClient, kind: ClientKind, group: str, places: list[PartitionKey], level: str) -> Values:
    """Returns all values up to the record `END` of each partition."""
    open_reader(client, kind, group, places, level)
    client.wait_until(lambda: sum(each.value == END for each in client.records) >= len(places))
    found = values_of(client)
    client.ask("leave")
    return {place: [each for each in found[place] if each != END] for place in places}


def values_of(client: DriverClient) -> Values:
    """Returns the values that a consumer got so far, by partition."""
    found: Values = defaultdict(list)
    for each in client.records:
        found[(each.topic, each.partition)].append(each.value)
    return found


def wait_for_value(client: DriverClient, place: PartitionKey, value: str) -> None:
    """Waits until a consumer got a value."""
    client.wait_until(lambda: value.encode() in values_of(client)[place])


def send_ends(admin: DriverClient, places: list[PartitionKey]) -> None:
    """Ends each partition with the record by which readers know that they have all."""
    for topic, partition in places:
        admin.send(topic, [ClientRecord(END, partition=partition)])
