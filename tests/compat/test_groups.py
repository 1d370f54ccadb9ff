"""Tests of members that join, leave, die and come back: together they always have all partitions, and each has one
owner."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.compat.client import SECONDS, ClientError, ClientRecord, DriverClient, PartitionKey, wait_until
from tests.compat.clients import KINDS, ClientKind, kinds

PARTITIONS = 6
SESSION_MS = 2000
Start = Callable[[ClientKind], DriverClient]


def assignors() -> list[Any]:
    """Returns every client with every assignor that it has. The broker only passes on what an assignor says: the last
    one of each client, which is cooperative if the client has such a one, stands for the others."""
    pairs = []
    for each in kinds(few=True):
        (kind,) = each.values
        others = () if kind.java and len(kinds()) <= 4 else kind.assignors[:-1]
        for name in (*others, *kind.assignors[-1:]):
            marks = [*each.marks, *([pytest.mark.also("clients")] if name in others else [])]
            pairs.append(pytest.param(kind, name, id=f"{kind}-{name}", marks=marks))
    return pairs


def join(start: Start, kind: ClientKind, group: str, assignor: str, instance: str = "") -> DriverClient:
    """Starts a member; it has sent its join request."""
    member = start(kind)
    more = {"instance": instance} if instance else {}
    member.ask("open", group=group, assignor=assignor, session_ms=SESSION_MS, **more)
    member.ask("subscribe", topics=[group])
    return member


def is_shared_out(members: list[DriverClient], topic: str, partitions: int = PARTITIONS) -> bool:
    """True if every member has a partition, and each partition one owner."""
    everything = {(topic, partition) for partition in range(partitions)}
    had: list[PartitionKey] = [place for member in members for place in member.assigned]
    return len(had) == partitions and set(had) == everything and all(member.assigned for member in members)


def wait_shared_out(members: list[DriverClient], topic: str, partitions: int = PARTITIONS) -> None:
    """Waits until the group has assigned the topic."""
    wait_until(members, lambda: is_shared_out(members, topic, partitions))


def check_all_consumed(
    admin: DriverClient, members: list[DriverClient], topic: str, text: str, partitions: int = PARTITIONS
) -> None:
    """Checks that each new record reaches exactly one member: the owner of its partition."""
    for member in members:
        member.records.clear()
    records = [
        ClientRecord(f"{text} {number}".encode(), partition=number % partitions) for number in range(10 * partitions)
    ]
    admin.send(topic, records)
    wanted = {each.value for each in records}
    wait_until(members, lambda: wanted <= {each.value for member in members for each in member.records})
    got = [each.value for member in members for each in member.records if each.value in wanted]
    assert sorted(got) == sorted(wanted)  # type: ignore[type-var]
    for member in members:
        assert {(each.topic, each.partition) for each in member.records if each.value in wanted} <= member.assigned


def commit(member: DriverClient) -> None:
    """Commits once no rebalance goes on. A cooperative group may have one more after all partitions have owners."""
    until = time.monotonic() + SECONDS
    while True:
        try:
            member.ask("commit")  # the driver polls between two orders
        except ClientError as error:
            if "RebalanceInProgress" not in str(error) or time.monotonic() > until:
                raise
        else:
            return


@pytest.mark.parametrize(("kind", "assignor"), assignors())
def test_partitions_are_owned_once_while_members_join_leave_and_die(
    kind: ClientKind, assignor: str, start: Start, admin: DriverClient, name: str
) -> None:
    admin.ask("create", topic=name, partitions=PARTITIONS)
    first = join(start, kind, name, assignor)
    wait_shared_out([first], name)
    second, third = join(start, kind, name, assignor), join(start, kind, name, assignor)
    wait_shared_out([first, second, third], name)
    check_all_consumed(admin, [first, second, third], name, "three")
    for member in (first, second, third):
        commit(member)
    second.ask("leave")
    wait_shared_out([first, third], name)
    third.kill()
    wait_shared_out([first], name)
    fourth = join(start, kind, name, assignor)
    wait_shared_out([first, fourth], name)
    check_all_consumed(admin, [first, fourth], name, "two")
    for member in (first, fourth):
        member.ask("leave")


@pytest.mark.parametrize("kind", kinds("static", few=True))
def test_restarted_static_member_moves_no_partition(
    kind: ClientKind, start: Start, admin: DriverClient, name: str
) -> None:
    """It dies without a message and is back within its session: the other member revokes nothing."""
    admin.ask("create", topic=name, partitions=PARTITIONS)
    one = start(kind)
    one.ask("open", group=name, instance="one", session_ms=20_000)
    one.ask("subscribe", topics=[name])
    two = start(kind)
    two.ask("open", group=name, instance="two", session_ms=20_000)
    two.ask("subscribe", topics=[name])
    wait_shared_out([one, two], name)
    had, asked = two.assigned, one.revoked
    two.kill()
    again = start(kind)
    again.ask("open", group=name, instance="two", session_ms=20_000)
    again.ask("subscribe", topics=[name])
    again.wait_until(lambda: again.assigned == had)
    check_all_consumed(admin, [one, again], name, "after")
    assert one.revoked == asked
    for member in (one, again):
        member.ask("leave")


def test_clients_of_all_kinds_share_a_group(start: Start, admin: DriverClient, name: str) -> None:
    """Any of them may lead: the others understand its assignment."""
    those = [each.values[0] for each in kinds() if "range" in each.values[0].assignors]
    partitions = 2 * len(those)
    admin.ask("create", topic=name, partitions=partitions)
    members: list[DriverClient] = []
    for kind in those:
        members.append(join(start, kind, name, "range"))
        wait_shared_out(members, name, partitions)
    check_all_consumed(admin, members, name, "all", partitions)
    leader = members.pop(0)
    leader.ask("leave")
    wait_shared_out(members, name, partitions)
    check_all_consumed(admin, members, name, "rest", partitions)
    for member in members:
        member.ask("leave")


def test_group_of_five_survives_the_loss_of_four(start: Start, admin: DriverClient, name: str) -> None:
    """All join at once, then all but one end at once."""
    admin.ask("create", topic=name, partitions=10)
    members = [join(start, KINDS[0], name, "cooperative-sticky") for _ in range(5)]
    wait_shared_out(members, name, 10)
    check_all_consumed(admin, members, name, "five", 10)
    for member in members[1:]:
        member.kill()
    wait_shared_out(members[:1], name, 10)
    check_all_consumed(admin, members[:1], name, "one", 10)
    members[0].ask("leave")


@pytest.mark.parametrize("kind", kinds())
def test_added_partitions_are_assigned(kind: ClientKind, start: Start, admin: DriverClient, name: str) -> None:
    admin.ask("create", topic=name, partitions=2)
    members = [join(start, kind, name, kind.assignors[0]) for _ in range(2)]
    wait_shared_out(members, name, 2)
    admin.ask("add_partitions", topic=name, total=5)
    wait_shared_out(members, name, 5)
    # Each member sees the new number at a time of its own, and joins again: a record may come twice, none not at all.
    admin.send(name, [ClientRecord(b"%d" % number, partition=number) for number in range(5)])
    wanted = {b"%d" % number for number in range(5)}
    wait_until(members, lambda: wanted <= {each.value for member in members for each in member.records})
    for member in members:
        member.ask("leave")
