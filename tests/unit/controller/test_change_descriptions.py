"""Each request of a caller is described for the audit log by what it changed, without secrets."""

from __future__ import annotations

from typing import get_args

import pytest

from tiered.controller import requests
from tiered.controller.change_descriptions import OF_BROKERS, VALUE_MAX, DescribedChange, describe_changes
from tiered.controller.requests import Request
from tiered.errors import Code, Refused
from tiered.ids import TopicId
from tiered.metadata.changes import AclAdded, AclRemoved, DelegationTokenSet, ListEdit, ScramCredentialSet
from tiered.metadata.image import Image
from tiered.security.secret import HIDDEN

ID = TopicId("AAAAAAAAAAAAAAAAAAAAAw")
NO = Refused(Code.POLICY_VIOLATION, "no")
ACL = ("TOPIC", "LITERAL", "orders", "User:alice", "*", "READ", "ALLOW")
ACL_WORDS = "ALLOW READ on TOPIC (LITERAL) to User:alice from *"
NEW, OLD = requests.CreateTopic("new", 3, configs={"retention.ms": "1"}), requests.CreateTopic("old")
CREDENTIAL = ScramCredentialSet("bob", "SCRAM-SHA-256", "salt-1", "stored-1", "server-1", 4096)
TOKEN = DelegationTokenSet("token-1", "User:bob", "User:alice", (), 1, 2, 3)
EDITS = {"a": "1", "b": None, "c": ListEdit(("x",), ("y",)), "ssl.key.password": "hush"}
EDIT_WORDS = "a=1 b=reset c=+x-y ssl.key.password=[hidden]"
QUOTA = requests.QuotaAlteration((("user", "bob"), ("client-id", None)), (("request_percentage", 5.0), ("x", None)))

CASES: list[tuple[object, object, list[DescribedChange]]] = [
    (NEW, object(), [DescribedChange("CREATE", "TOPIC", "new", "partitions=3 retention.ms=1")]),
    (
        requests.CreateTopics((NEW, OLD)),
        (NO, object()),
        [DescribedChange("CREATE", "TOPIC", "old")],
    ),
    (requests.DeleteTopic("t"), object(), [DescribedChange("DELETE", "TOPIC", "t")]),
    (requests.CreatePartitions("t", 7), object(), [DescribedChange("ALTER", "TOPIC", "t", "partitions=7")]),
    (requests.CreatePartitions("t", 7, validate_only=True), object(), []),
    (requests.AlterTopicConfigs("t", EDITS), object(), [DescribedChange("ALTER_CONFIGS", "TOPIC", "t", EDIT_WORDS)]),
    (requests.AlterTopicConfigs("t", EDITS, validate_only=True), object(), []),
    (
        requests.AlterBrokerConfigs(-1, {"a": "1"}, replace=True),
        object(),
        [DescribedChange("ALTER_CONFIGS", "BROKER", "", "a=1 all others reset")],
    ),
    (requests.UnregisterBroker(7), None, [DescribedChange("DELETE", "BROKER", "7")]),
    (
        requests.ReportDisk(7, "i", "full"),
        3,
        [DescribedChange("ALTER", "BROKER", "7", "disk full: moved leadership of 3 partitions")],
    ),
    (requests.ReportDisk(7, "i", "full"), None, [DescribedChange("ALTER", "BROKER", "7", "disk full")]),
    (requests.ReportDisk(7, "i", "usable"), 0, []),
    (
        requests.ElectLeaders(False, ((ID, 0), (ID, 1))),
        ((ID, 0, Code.ELECTION_NOT_NEEDED), (ID, 1, Code.NONE)),
        [DescribedChange("ALTER", "TOPIC", f"{ID}-1", "unclean leader elected")],
    ),
    (
        requests.Reassign((requests.Move(ID, 0, (1, 2)), requests.Move(ID, 1, None), requests.Move(ID, 2, (9,)))),
        (None, None, NO),
        [
            DescribedChange("ALTER", "TOPIC", f"{ID}-0", "replicas=1,2"),
            DescribedChange("ALTER", "TOPIC", f"{ID}-1", "cancelled"),
        ],
    ),
    (
        requests.AlterGroupConfigs("g", {"consumer.session.timeout.ms": "50000"}),
        {},
        [DescribedChange("ALTER_CONFIGS", "GROUP", "g", "consumer.session.timeout.ms=50000")],
    ),
    (
        requests.AcknowledgeLosses(((ID, 0, 4),)),
        None,
        [DescribedChange("ALTER", "CLUSTER", "kafka-cluster", f"loss of {ID}-0 in epoch 4 acknowledged")],
    ),
    (
        requests.UpdateFeatures((requests.FeatureUpdate("f", 2),)),
        None,
        [DescribedChange("ALTER", "CLUSTER", "kafka-cluster", "features f=2")],
    ),
    (requests.CreateAcls((AclAdded(*ACL),)), (None,), [DescribedChange("CREATE", "ACL", "orders", ACL_WORDS)]),
    (requests.CreateAcls((AclAdded(*ACL),)), (NO,), []),
    (
        requests.DeleteAcls((requests.AclChoice("ANY", "ANY", None, None, None, "ANY", "ANY"),) * 2),
        (NO, (AclRemoved(*ACL),)),
        [DescribedChange("DELETE", "ACL", "orders", ACL_WORDS)],
    ),
    (
        requests.AlterScramCredentials((requests.ScramDeletion("alice", "SCRAM-SHA-512"),), (CREDENTIAL,)),
        {"alice": NO, "bob": None},
        [DescribedChange("ALTER", "USER", "bob", "SCRAM-SHA-256")],
    ),
    (
        requests.AlterScramCredentials((requests.ScramDeletion("alice", "SCRAM-SHA-512"),)),
        {"alice": None},
        [DescribedChange("DELETE", "USER", "alice", "SCRAM-SHA-512")],
    ),
    (
        requests.AlterClientQuotas((QUOTA,)),
        (None,),
        [DescribedChange("ALTER", "QUOTA", "user=bob client-id=<default>", "request_percentage=5.0 x=removed")],
    ),
    (
        requests.RotateBrokerSecret(1, "hush"),
        2,
        [DescribedChange("ALTER", "CLUSTER", "kafka-cluster", "new secret of the brokers")],
    ),
    (
        requests.CreateDelegationToken("User:bob", "User:alice"),
        TOKEN,
        [DescribedChange("CREATE", "DELEGATION_TOKEN", "token-1", "owner=User:bob")],
    ),
    (
        requests.RenewDelegationToken("token-1", "User:bob"),
        5,
        [DescribedChange("ALTER", "DELEGATION_TOKEN", "token-1", "renewed")],
    ),
    (
        requests.ExpireDelegationToken("token-1", "User:bob"),
        5,
        [DescribedChange("DELETE", "DELEGATION_TOKEN", "token-1", "expiry")],
    ),
]


@pytest.mark.parametrize(("request_", "reply", "expected"), CASES, ids=lambda each: type(each).__name__)
def test_request_is_described_by_what_it_changed(
    request_: object, reply: object, expected: list[DescribedChange]
) -> None:
    assert list(describe_changes(request_, reply, Image())) == expected


def test_request_without_a_reply_is_described_by_what_it_may_have_changed() -> None:
    both = describe_changes(requests.CreateTopics((NEW, OLD)), None, Image())
    assert [each.resource_name for each in both] == ["new", "old"]
    users = requests.AlterScramCredentials((requests.ScramDeletion("alice", "SCRAM-SHA-512"),), (CREDENTIAL,))
    assert [each.resource_name for each in describe_changes(users, None, Image())] == ["alice", "bob"]
    rules = requests.DeleteAcls((requests.AclChoice("TOPIC", "LITERAL", "orders", None, None, "ANY", "ANY"),))
    assert list(describe_changes(rules, None, Image())) == [
        DescribedChange("DELETE", "ACL", "orders", "ANY ANY on TOPIC (LITERAL) to any from any")
    ]
    election = requests.ElectLeaders(preferred=False)
    (all_of_them,) = describe_changes(election, None, Image())
    assert all_of_them.detail == "unclean leader elected, all partitions"


def test_each_request_is_described_or_comes_from_brokers_alone() -> None:
    described = {type(request) for request, _, expected in CASES if expected}
    assert described & set(OF_BROKERS) == {requests.ReportDisk}, "it moves leaderships"
    assert described | set(OF_BROKERS) == set(get_args(Request))


def test_no_description_has_a_secret() -> None:
    texts = [str(each) for request, reply, _ in CASES for each in describe_changes(request, reply, Image())]
    assert texts and not [text for text in texts for secret in ("hush", "salt-1", "stored-1") if secret in text]


def test_long_value_hides_no_other_setting() -> None:
    changed = requests.AlterTopicConfigs("orders", {"a": "x" * VALUE_MAX, "b": "x" * 1000, "retention.ms": "1"})
    (found,) = describe_changes(changed, None, Image())
    assert found.detail == f"a={'x' * VALUE_MAX} b={'x' * (VALUE_MAX - 3)}... retention.ms=1"


def test_secret_is_hidden_however_it_is_given() -> None:
    """The controller would refuse both, and may not have replied."""
    given: dict[str, str | ListEdit | None] = {"ssl.keystore.key": ListEdit(("hush",)), "SASL.JAAS.CONFIG": "hush"}
    (found,) = describe_changes(requests.AlterBrokerConfigs(1, given), None, Image())
    assert found.detail == f"ssl.keystore.key={HIDDEN} SASL.JAAS.CONFIG={HIDDEN}"
