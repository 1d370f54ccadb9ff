"""Each request of a caller has its cost in changes; requests that brokers send for themselves cost nothing."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.unit.controller.test_change_descriptions import ACL, CREDENTIAL, ID
from tiered.controller import requests
from tiered.controller.change_costs import count_changes
from tiered.controller.change_descriptions import OF_BROKERS
from tiered.controller.requests import Request
from tiered.ids import TopicId
from tiered.metadata.changes import AclAdded, TopicCreated
from tiered.metadata.image import Image

DEFAULT = 7
IMAGE = Image().apply(
    [TopicCreated("t", ID, ((1,), (1,), (1,)), {}, 0), TopicCreated("u", TopicId("u" * 22), ((1,),), {}, 0)]
)
CHOICE = requests.AclChoice("TOPIC", "LITERAL", None, None, None, "ANY", "ANY")
QUOTA = requests.QuotaAlteration((("user", "bob"),), ())

COSTS: list[tuple[Request, int]] = [
    (requests.CreateTopic("new", 5), 5),
    (requests.CreateTopic("new"), DEFAULT),
    (requests.CreateTopic("new", assignments=((1,), (2,))), 2),
    (requests.CreateTopic("new", 5, validate_only=True), 5),
    (requests.CreateTopics((requests.CreateTopic("a", 2), requests.CreateTopic("b", 3))), 5),
    (requests.CreateTopics((requests.CreateTopic("a", 2, validate_only=True), requests.CreateTopic("b", 3))), 5),
    (requests.DeleteTopic("t"), 3),
    (requests.DeleteTopic("absent"), 0),
    (requests.CreatePartitions("t", 8), 5),
    (requests.CreatePartitions("t", 2), 0),
    (requests.CreatePartitions("t", 8, validate_only=True), 5),
    (requests.CreatePartitions("absent", 8), 0),
    (requests.AlterTopicConfigs("t", {"a": "1", "b": "2"}), 1),
    (requests.AlterTopicConfigs("t", {"a": "1"}, validate_only=True), 1),
    (requests.AlterBrokerConfigs(-1, {"a": "1"}), 1),
    (requests.AlterGroupConfigs("g", {"a": "1"}), 1),
    (requests.UnregisterBroker(1), 1),
    (requests.ElectLeaders(True, ((ID, 0), (ID, 1))), 2),
    (requests.ElectLeaders(True), 4),
    (requests.Reassign((requests.Move(ID, 0, (1,)), requests.Move(ID, 1, None))), 2),
    (requests.AcknowledgeLosses(((ID, 0, 1),)), 1),
    (requests.UpdateFeatures((requests.FeatureUpdate("transaction.version", 2),)), 1),
    (requests.CreateAcls((AclAdded(*ACL), AclAdded(*ACL))), 2),
    (requests.DeleteAcls((CHOICE, CHOICE)), 2),
    (requests.AlterScramCredentials((requests.ScramDeletion("a", "x"),), (CREDENTIAL,)), 2),
    (requests.AlterClientQuotas((QUOTA, QUOTA)), 2),
    (requests.AlterClientQuotas((QUOTA,), validate_only=True), 1),
    (requests.RotateBrokerSecret(1, "00"), 1),
    (requests.CreateDelegationToken("User:a", "User:a"), 1),
    (requests.RenewDelegationToken("t", "User:a"), 1),
    (requests.ExpireDelegationToken("t", "User:a", -1), 1),
]


@pytest.mark.parametrize(("request_", "cost"), COSTS)
def test_request_of_a_caller_costs_its_changes(request_: Request, cost: int) -> None:
    assert count_changes(request_, IMAGE, DEFAULT) == cost


def test_each_request_has_a_cost_or_comes_from_brokers() -> None:
    """A new request stands in `OF_BROKERS`, or here with a cost."""
    charged = {type(request) for request, cost in COSTS if cost}
    assert charged | set(OF_BROKERS) == set(get_args(Request))
    assert not charged & set(OF_BROKERS)
