"""Tests of group administration: list, describe, offsets, delete."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat.client import ClientError, ClientRecord, DriverClient
from tests.compat.clients import KINDS, ClientKind, kinds

Start = Callable[[ClientKind], DriverClient]


def group_of_one(start: Start, admin: DriverClient, name: str) -> DriverClient:
    """Creates a topic with 20 records, and a group with one member that has committed 7 and 8."""
    admin.ask("create", topic=name, partitions=2)
    admin.send(name, [ClientRecord(b"%d" % number, partition=number % 2) for number in range(20)])
    member = start(KINDS[0])
    member.ask("open", group=name, assignor="range")
    member.ask("subscribe", topics=[name])
    member.wait_for(20)
    member.ask("commit", offsets=[[name, 0, 7, ""], [name, 1, 8, "eight"]])
    return member


@pytest.mark.parametrize("kind", kinds("describe group"))
def test_group_is_described_reset_and_deleted(
    kind: ClientKind, clients: Callable[[ClientKind], DriverClient], start: Start, admin: DriverClient, name: str
) -> None:
    member = group_of_one(start, admin, name)
    client = clients(kind)
    assert client.ask("groups")[name] in ("stable", "")
    seen = client.ask("group", group=name)
    assert (seen["state"], seen["assignor"], len(seen["members"])) == ("stable", "range", 1)
    if kind.name != "kafkajs":
        assert seen["members"] == [{"instance": "", "parts": [[name, 0], [name, 1]]}]
    assert client.ask("group_offsets", group=name) == [[name, 0, 7], [name, 1, 8]]
    with pytest.raises(ClientError, match=r"(?i)non.?empty|not empty|member"):
        client.ask("delete_group", group=name)
        client.ask("set_offsets", group=name, offsets=[[name, 0, 3]])
    member.ask("leave")
    assert client.ask("group", group=name)["state"] == "empty"
    client.ask("set_offsets", group=name, offsets=[[name, 0, 3], [name, 1, 9]])
    assert client.ask("group_offsets", group=name) == [[name, 0, 3], [name, 1, 9]]
    again = start(KINDS[1])
    again.ask("open", group=name)
    again.ask("subscribe", topics=[name])
    first = {each.partition: each.offset for each in reversed(again.wait_for(8))}
    assert first == {0: 3, 1: 9}
    again.ask("leave")
    client.ask("delete_group", group=name)
    assert name not in client.ask("groups")


@pytest.mark.parametrize("kind", kinds("groups"))
def test_groups_are_listed(
    kind: ClientKind, clients: Callable[[ClientKind], DriverClient], start: Start, admin: DriverClient, name: str
) -> None:
    assert name not in clients(kind).ask("groups")
    member = group_of_one(start, admin, name)
    assert name in clients(kind).ask("groups")
    member.ask("leave")
    assert name in clients(kind).ask("groups")
