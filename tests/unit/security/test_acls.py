"""The rules of ACLs: decisions equal those of a naive model, and rules that cannot apply are refused in words."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.security.naive_decisions import decide_naively
from tiered.security.acls import (
    EVERYTHING,
    SUPPORTED,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    acl_from_texts,
    find_acl_fault,
)
from tiered.security.authorizer import Authorizer
from tiered.security.principal import ANONYMOUS, Caller, Principal

NAMES = st.sampled_from(["a", "ab", "abc", "b", "*", "ba", "abd"])
HOSTS = ["10.0.0.1", "10.0.0.2"]
USERS = ["alice", "bob"]
KINDS = [ResourceType.TOPIC, ResourceType.GROUP]
ASKED = [each for each in Operation if each > Operation.ALL]
ACLS = st.builds(
    Acl,
    st.sampled_from(KINDS),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    NAMES,
    st.sampled_from(["User:alice", "User:bob", "User:*"]),
    st.sampled_from(["*", *HOSTS]),
    st.sampled_from([each for each in Operation if each >= Operation.ALL]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
CALLERS = st.builds(Caller, st.sampled_from(USERS).map(lambda name: Principal("User", name)), st.sampled_from(HOSTS))
ALICE = Caller(Principal("User", "alice"), "10.0.0.1")
READ_A = Acl(
    ResourceType.TOPIC, PatternType.LITERAL, "a", "User:alice", "*", Operation.READ, Permission.ALLOW
)  # fmt: skip


@given(st.lists(ACLS, max_size=6), CALLERS, st.sampled_from(KINDS), NAMES, st.booleans())
def test_decisions_equal_a_look_at_every_rule(
    acls: list[Acl], caller: Caller, kind: ResourceType, name: str, is_open: bool
) -> None:
    authorizer = Authorizer(acls, is_open=is_open)
    for operation in ASKED:
        naive = decide_naively(acls, caller, operation, kind, name)
        expected = is_open if naive is None else naive
        for _ in range(2):  # the second answer is remembered
            assert authorizer.is_allowed(caller, operation, kind, name) is expected


@given(st.lists(ACLS, max_size=6), CALLERS)
def test_operation_is_allowed_somewhere_if_a_name_of_a_rule_allows_it(acls: list[Acl], caller: Caller) -> None:
    authorizer = Authorizer(acls)
    names = {each.resource_name + tail for each in acls for tail in ("", "~") if each.resource_name != "*"} | {"~"}
    allowed = any(authorizer.is_allowed(caller, Operation.WRITE, ResourceType.TOPIC, name) for name in names)
    asked = authorizer.is_allowed_anywhere(caller, Operation.WRITE, ResourceType.TOPIC)
    assert asked or not allowed


@given(st.lists(ACLS, max_size=6), CALLERS, st.booleans())
def test_operation_is_allowed_everywhere_if_every_name_allows_it(
    acls: list[Acl], caller: Caller, is_open: bool
) -> None:
    """A name that differs from all others in its end has the decision of the rules of prefixes."""
    names = {each.resource_name + tail for each in acls for tail in ("", "~") if each.resource_name != "*"} | {"~"}
    names |= {"*~" for each in acls if each.pattern_type is PatternType.PREFIXED and each.resource_name == "*"}
    decisions = [decide_naively(acls, caller, Operation.DESCRIBE, ResourceType.TOPIC, name) for name in names]
    expected = all(is_open if each is None else each for each in decisions)
    authorizer = Authorizer(acls, is_open=is_open)
    for _ in range(2):  # the second answer is remembered
        assert authorizer.is_allowed_everywhere(caller, Operation.DESCRIBE, ResourceType.TOPIC) is expected


def test_rule_for_all_names_allows_everywhere_unless_one_denies() -> None:
    everything = READ_A._replace(resource_name="*")
    deny = READ_A._replace(resource_name="secret", operation=Operation.DESCRIBE, permission=Permission.DENY)
    rules = {"all": [everything], "one name": [READ_A], "all but one": [everything, deny], "none": []}
    found = {
        name: Authorizer(acls).is_allowed_everywhere(ALICE, Operation.DESCRIBE, ResourceType.TOPIC)
        for name, acls in rules.items()
    }
    assert found == {"all": True, "one name": False, "all but one": False, "none": False}


def test_whole_rule_that_is_denied_allows_nothing_anywhere() -> None:
    def can_write(*acls: Acl) -> bool:
        return Authorizer(acls).is_allowed_anywhere(ALICE, Operation.WRITE, ResourceType.TOPIC)

    write = READ_A._replace(resource_name="abc", operation=Operation.WRITE)
    deny = write._replace(permission=Permission.DENY)
    assert can_write(write) and not can_write(write, deny) and not can_write(READ_A)
    assert not can_write(write, deny._replace(resource_name="ab", pattern_type=PatternType.PREFIXED))
    assert can_write(write, deny._replace(resource_name="abcd", pattern_type=PatternType.PREFIXED))
    assert not can_write(write, deny._replace(resource_name="*"))


@pytest.mark.parametrize("operation", [Operation.READ, Operation.ALL])
@pytest.mark.parametrize(
    "denied",
    [
        {},
        {"resource_name": "*"},
        {"pattern_type": PatternType.PREFIXED},
        {"principal": "User:*"},
        {"host": ALICE.host},
    ],
    ids=["same", "all names", "prefix", "everybody", "host"],
)
def test_rule_that_denies_wins_over_one_that_allows(denied: dict[str, object], operation: Operation) -> None:
    deny = READ_A._replace(permission=Permission.DENY, operation=operation, **denied)  # type: ignore[arg-type]
    for acls in ([READ_A, deny], [deny, READ_A._replace(resource_name="*")]):
        assert not Authorizer(acls, is_open=True).is_allowed(ALICE, Operation.READ, ResourceType.TOPIC, "a")


IMPLIED = [
    *((each, Operation.DESCRIBE) for each in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)),
    (Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS),
]


@pytest.mark.parametrize(("operation", "implied"), IMPLIED, ids=lambda each: each.name)
def test_operation_that_is_allowed_implies_another_and_a_denied_one_none(
    operation: Operation, implied: Operation
) -> None:
    allow = READ_A._replace(operation=operation)
    mask = Authorizer([allow]).allowed_operations(ALICE, ResourceType.TOPIC, "a")
    assert mask == 1 << operation | 1 << implied
    deny = allow._replace(permission=Permission.DENY)
    everything = READ_A._replace(operation=Operation.ALL)
    mask = Authorizer([everything, deny]).allowed_operations(ALICE, ResourceType.TOPIC, "a")
    assert mask == EVERYTHING & ~(1 << operation)


def test_remembered_decision_is_that_of_one_host_and_one_type() -> None:
    authorizer = Authorizer([READ_A._replace(host=ALICE.host)])
    other = ALICE._replace(host="10.0.0.2")
    for caller, kind in ((ALICE, ResourceType.TOPIC), (other, ResourceType.TOPIC), (ALICE, ResourceType.GROUP)):
        expected = caller is ALICE and kind is ResourceType.TOPIC
        assert authorizer.is_allowed(caller, Operation.READ, kind, "a") is expected
    write = READ_A._replace(operation=Operation.WRITE)
    assert not Authorizer([write]).is_allowed_anywhere(ALICE, Operation.WRITE, ResourceType.TRANSACTIONAL_ID)


def test_super_user_and_broker_may_do_everything() -> None:
    deny = READ_A._replace(principal="User:*", operation=Operation.ALL, permission=Permission.DENY)
    authorizer = Authorizer([deny], {"User:alice"})
    bob = ALICE._replace(principal=Principal("User", "bob"))
    broker = ALICE._replace(principal=Principal("Broker", "broker-1"))
    masks = [authorizer.allowed_operations(each, ResourceType.TOPIC, "a") for each in (ALICE, broker, bob)]
    assert masks == [EVERYTHING, EVERYTHING, 0]
    assert authorizer.is_allowed_anywhere(ALICE, Operation.WRITE, ResourceType.TOPIC)
    asked = [authorizer.is_allowed_everywhere(each, Operation.WRITE, ResourceType.TOPIC) for each in (ALICE, bob)]
    assert asked == [True, False]


def test_host_of_a_rule_may_be_written_in_any_form_of_the_address() -> None:
    acl = READ_A._replace(host="0:0:0:0:0:0:0:1")
    for host, expected in (("::1", True), ("[::1]", True), ("::2", False)):
        caller = ALICE._replace(host=host)
        assert Authorizer([acl]).is_allowed(caller, Operation.READ, ResourceType.TOPIC, "a") is expected
    mapped = ALICE._replace(host="::ffff:10.0.0.1")
    assert Authorizer([READ_A._replace(host="10.0.0.1")]).is_allowed(mapped, Operation.READ, ResourceType.TOPIC, "a")


def test_remembered_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.security.authorizer.REMEMBERED_MAX", 3)
    authorizer = Authorizer([READ_A])
    for number in range(20):
        assert not authorizer.is_allowed(ALICE, Operation.READ, ResourceType.TOPIC, f"t{number}")
        assert len(authorizer._remembered) <= 3


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"resource_type": ResourceType.ANY}, "Invalid resourceType ANY"),
        ({"pattern_type": PatternType.MATCH}, "Invalid patternType MATCH"),
        ({"operation": Operation.ANY}, "Invalid operation ANY"),
        ({"permission": Permission.UNKNOWN}, "Invalid permissionType UNKNOWN"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_type": ResourceType.CLUSTER, "operation": Operation.ALL}, "only valid name for the CLUSTER"),
        ({"operation": Operation.CLUSTER_ACTION}, "TOPIC has no operation CLUSTER_ACTION: it has READ, WRITE"),
        ({"principal": "alice"}, "must have the form User:name"),
        ({"principal": ":alice"}, "must have the form User:name"),
        ({"host": "example.com"}, "must be an IP address"),
        ({"resource_name": "x" * 1025}, "more than 1024 characters"),
    ],
)
def test_rule_that_cannot_apply_is_refused_in_words(changed: dict[str, object], words: str) -> None:
    assert find_acl_fault(READ_A) is None
    refused = find_acl_fault(READ_A._replace(**changed))  # type: ignore[arg-type]
    assert refused is not None and words in refused.why


def test_every_operation_of_the_table_can_be_granted_on_its_type() -> None:
    for kind, operations in SUPPORTED.items():
        name = "kafka-cluster" if kind is ResourceType.CLUSTER else "a"
        for operation in (*operations, Operation.ALL):
            acl = READ_A._replace(resource_type=kind, resource_name=name, operation=operation)
            assert find_acl_fault(acl) is None and acl_from_texts(*acl.to_texts()) == acl


@given(ACLS, NAMES)
def test_filter_by_match_chooses_the_rules_that_apply_to_a_name(acl: Acl, name: str) -> None:
    chosen = AclFilter(pattern_type=PatternType.MATCH, resource_name=name).matches(acl)
    assert chosen == (decide_naively([acl], ALICE, Operation.READ, acl.resource_type, name) is not None)


@given(ACLS)
def test_filter_of_the_fields_of_a_rule_chooses_it_and_no_other(acl: Acl) -> None:
    assert AclFilter().matches(acl) and AclFilter(*acl).matches(acl)
    for place, other in enumerate((5, PatternType.LITERAL + PatternType.PREFIXED - acl[1], "x", "x", "x", 99, 99)):
        fields: list[Any] = [*acl]
        fields[place] = other
        assert not AclFilter(*fields).matches(acl)


def test_anonymous_is_a_principal_like_others() -> None:
    acl = READ_A._replace(principal="User:ANONYMOUS")
    assert Authorizer([acl]).is_allowed(Caller(ANONYMOUS, "10.9.9.9"), Operation.READ, ResourceType.TOPIC, "a")


def test_decisions_about_long_names_take_no_memory() -> None:
    authorizer = Authorizer([READ_A])
    name = "a" * 30_000
    tracemalloc.start()
    try:
        for number in range(200):
            assert not authorizer.is_allowed(ALICE, Operation.READ, ResourceType.GROUP, f"{number}{name}")
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
