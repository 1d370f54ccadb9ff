"""Consumer groups (KIP-848): members of several clients share the partitions that the broker assigns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat.client import DriverClient
from tests.compat.clients import CONSUMER_GROUPS, KINDS, ClientKind, kinds
from tests.compat.test_groups import check_all_consumed, wait_shared_out
from tests.compat.test_groups import join as join_classic

Start = Callable[[ClientKind], DriverClient]
SERVER_ASSIGNORS = ("server-uniform", "server-range")


def join(start: Start, kind: ClientKind, group: str, assignor: str, regex: str = "") -> DriverClient:
    """Starts a member; it has sent its first heartbeat."""
    member = start(kind)
    member.ask("open", group=group, assignor=assignor)
    member.ask("subscribe", topics=[regex or group])
    return member


@pytest.mark.parametrize("kind", kinds(CONSUMER_GROUPS, few=True))
@pytest.mark.parametrize("assignor", SERVER_ASSIGNORS[:1])
def test_partitions_are_owned_once_while_members_join_leave_and_die(
    kind: ClientKind, assignor: str, start: Start, admin: DriverClient, name: str
) -> None:
    admin.ask("create", topic=name, partitions=6)
    other = KINDS[0]  # each kind meets librdkafka in its group
    first = join(start, other, name, assignor, f"^{name}$")  # a regular expression, which the broker resolves
    second = join(start, kind, name, assignor)
    wait_shared_out([first, second], name)
    check_all_consumed(admin, [first, second], name, "two")
    for member in (first, second):
        member.ask("commit")
    admin.ask("add_partitions", topic=name, total=7)
    wait_shared_out([first, second], name, 7)
    first.ask("leave")
    wait_shared_out([second], name, 7)
    third = join(start, kind, name, assignor)
    wait_shared_out([second, third], name, 7)
    third.kill()
    wait_shared_out([second], name, 7)
    check_all_consumed(admin, [second], name, "one")
    second.ask("leave")


@pytest.mark.parametrize("kind", kinds(CONSUMER_GROUPS))
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_group_is_moved_to_the_consumer_protocol_and_back_while_it_works(
    kind: ClientKind, assignor: str, start: Start, admin: DriverClient, name: str
) -> None:
    admin.ask("create", topic=name, partitions=6)
    classic = join_classic(start, KINDS[0], name, assignor)
    wait_shared_out([classic], name)
    consumer = join(start, kind, name, SERVER_ASSIGNORS[0])
    wait_shared_out([classic, consumer], name)
    check_all_consumed(admin, [classic, consumer], name, "both")
    for member in (classic, consumer):
        member.ask("commit")
    other = join_classic(start, kind, name, assignor)
    wait_shared_out([classic, consumer, other], name)
    consumer.ask("leave")
    wait_shared_out([classic, other], name)
    check_all_consumed(admin, [classic, other], name, "back")
    classic.ask("leave")
    other.ask("leave")
