"""Decisions about ACLs: each rule and each filter is judged on its own, and the number of rules is bounded."""

from __future__ import annotations

from dataclasses import asdict, replace

from tiered.config.settings import Settings
from tiered.controller.acls import FILTERS_MAX
from tiered.controller.controller import Controller
from tiered.controller.requests import AclChoice, CreateAcls, DeleteAcls
from tiered.errors import Code, Refused
from tiered.ids import TopicId
from tiered.metadata.changes import AclAdded, AclRemoved
from tiered.metadata.image import Image

READ = AclAdded("TOPIC", "LITERAL", "a", "User:alice", "*", "READ", "ALLOW")
WRITE = replace(READ, operation="WRITE")
ALL = AclChoice("ANY", "ANY", None, None, None, "ANY", "ANY")


def make_controller(*held: AclAdded, acls_max: int = 10) -> Controller:
    return Controller(
        Image().apply(held), Settings(tiered_acls_max=acls_max), lambda: TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
    )


def test_rule_is_added_once_and_a_bad_one_hinders_no_other() -> None:
    controller = make_controller(READ)
    bad, unknown = replace(READ, resource_name=""), replace(READ, operation="FLY")
    decision = controller.decide(CreateAcls((READ, bad, WRITE, unknown, WRITE)), 0)
    assert decision.changes == (WRITE,)
    codes = [each and each.code for each in decision.reply]
    assert codes == [None, Code.INVALID_REQUEST, None, Code.INVALID_REQUEST, None]


def test_number_of_rules_is_bounded() -> None:
    controller = make_controller(READ, acls_max=2)
    decision = controller.decide(CreateAcls((WRITE, replace(READ, host="10.0.0.1"), READ)), 0)
    assert decision.changes == (WRITE,)
    assert [each and each.code for each in decision.reply] == [None, Code.POLICY_VIOLATION, None]
    assert "tiered.acls.max" in decision.reply[1].why


def test_number_of_filters_is_bounded() -> None:
    """A request of 2 MiB has room for 200,000 filters, and each is compared with every rule."""
    decision = make_controller(READ).decide(DeleteAcls((ALL,) * (FILTERS_MAX + 1)), 0)
    assert decision.changes == () and len(decision.reply) == FILTERS_MAX + 1
    assert {each.code for each in decision.reply} == {Code.POLICY_VIOLATION}
    assert make_controller(READ).decide(DeleteAcls((ALL,) * FILTERS_MAX), 0).changes != ()


def test_filters_remove_the_rules_that_they_choose_and_name_them() -> None:
    controller = make_controller(READ, WRITE)
    read, write = (AclRemoved(**asdict(each)) for each in (READ, WRITE))
    filters = (
        replace(ALL, operation="READ"),
        ALL,
        replace(ALL, principal="User:bob"),
        replace(ALL, operation="UNKNOWN"),
    )
    decision = controller.decide(DeleteAcls(filters), 0)
    assert decision.reply[:3] == ((read,), (read, write), ())
    assert isinstance(decision.reply[3], Refused) and decision.reply[3].code is Code.INVALID_REQUEST
    assert sorted(decision.changes, key=str) == sorted([read, write], key=str)
    controller.apply(decision.changes)
    assert controller.image.acls == frozenset()
