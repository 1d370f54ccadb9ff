"""Topics of very many partitions: one decision about them is one turn of the event loop, in which nobody is served."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.unit.controller.test_controller import controller, decide
from tiered.controller import requests
from tiered.controller.requests import Request
from tiered.metadata.changes import BrokerFenced
from tiered.metadata.image import Image

NOW = 1_000
MANY = 1_000


def count_calls(work: Callable[[], object]) -> int:
    """Returns how many functions `work` calls, in Python and in C: the same on every machine."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def reassign_all(image: Image, *replicas: int) -> Request:
    topic = image.topics["t"]
    moves = (requests.Move(topic.topic_id, p, replicas) for p in range(len(topic.partitions)))
    return requests.Reassign(tuple(moves))


REQUESTS: dict[str, tuple[Callable[[Image], Request], int]] = {
    "create": (lambda _: requests.CreateTopic("new", MANY, 2), 18),
    "create as assigned": (lambda _: requests.CreateTopic("new", assignments=[[1, 2]] * MANY), 19),
    "validate": (lambda _: requests.CreateTopic("new", MANY, 2, validate_only=True), 18),
    "add partitions": (lambda _: requests.CreatePartitions("t", 2 * MANY), 18),
    "delete": (lambda _: requests.DeleteTopic("t"), 4),
    "configure": (lambda _: requests.AlterTopicConfigs("t", {"min.insync.replicas": "1"}), 8),
    "elect": (lambda image: requests.ElectLeaders(True, None), 15),
    "move": (lambda image: reassign_all(image, 2, 3), 28),
    "move nowhere": (lambda image: reassign_all(image, 1, 2), 28),
    "fence": (lambda image: requests.FenceBroker(1, image.brokers[1].incarnation), 30),
}

"""Each with the most calls for a partition. A new partition took 58, a moved one 75, and a deleted one 12."""


@pytest.mark.parametrize("name", REQUESTS)
def test_decision_about_large_topic_takes_few_calls_for_each_partition(name: str) -> None:
    make, most = REQUESTS[name]
    shard = controller(1, 2, 3)
    decide(shard, requests.CreateTopic("t", MANY, 2))
    request = make(shard.image)
    calls = count_calls(lambda: decide(shard, request)) / MANY
    assert calls <= most, calls


def test_equal_partitions_share_one_object() -> None:
    shard = controller(1, 2, 3)
    decision = shard.decide(requests.CreateTopic("t", MANY, 2), NOW)
    for image in (shard.image.apply(decision.changes), decision.after):
        assert image is not None
        partitions = image.topics["t"].partitions
        assert len({id(each) for each in partitions}) == len({id(each.replicas) for each in partitions}) == 3
        assert [each.leader for each in partitions[:4]] == [1, 2, 3, 1]
    shard.apply(decision.changes)
    node = shard.image.brokers[1]
    decide(shard, requests.FenceBroker(1, node.incarnation))
    assert len({id(each) for each in shard.image.topics["t"].partitions}) == 3


CHANGED: tuple[Request, ...] = (
    requests.CreateTopic("new", 3, 2),
    requests.CreateTopics((requests.CreateTopic("new", 3), requests.CreateTopic("t"))),
    requests.CreatePartitions("t", 7),
    requests.DeleteTopic("t"),
    requests.AlterTopicConfigs("t", {"min.insync.replicas": "2"}),
)


@pytest.mark.parametrize("request_", CHANGED, ids=lambda each: type(each).__name__)
def test_image_of_decision_is_the_image_that_its_changes_make(request_: Request) -> None:
    shard = controller(1, 2)
    decide(shard, requests.CreateTopic("t", 3, 2))
    decision = shard.decide(request_, NOW)
    assert decision.after == shard.image.apply(decision.changes)
    shard.apply(decision.changes)
    assert shard.image is decision.after


def test_image_of_decision_is_not_taken_after_other_changes() -> None:
    shard = controller(1, 2)
    decide(shard, requests.CreateTopic("t", 3, 2))
    delete, node = shard.decide(requests.DeleteTopic("t"), NOW), shard.image.brokers[2]
    shard.apply((BrokerFenced(2, node.incarnation),))
    shard.apply(delete.changes)
    assert shard.image.brokers[2].fenced and not shard.image.topics


def test_validated_topic_is_not_in_the_image() -> None:
    shard = controller(1)
    request = requests.CreateTopics((requests.CreateTopic("a"), requests.CreateTopic("b", validate_only=True)))
    decision = shard.decide(request, NOW)
    shard.apply(decision.changes)
    assert decision.after is None and list(shard.image.topics) == ["a"]
