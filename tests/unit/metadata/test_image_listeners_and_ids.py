"""Tests of metadata for the Kafka protocol: advertised listeners and allocated producer ids."""

from __future__ import annotations

import pytest

from tiered.config.settings import Settings
from tiered.controller import requests
from tiered.controller.controller import PRODUCER_IDS, Controller
from tiered.errors import Corrupt
from tiered.ids import TopicId
from tiered.metadata import changes as kinds
from tiered.metadata import image as images
from tiered.metadata.image import Image


def controller() -> Controller:
    """Returns a controller with one registered broker."""
    made = Controller(Image(), Settings(), lambda: TopicId("A" * 22))
    told = {"PLAINTEXT": "here:9092"}
    made.apply(made.decide(requests.RegisterBroker(1, "i1", "d", "127.0.0.1:1", listeners=told), 0).changes)
    return made


def test_broker_registers_advertised_listeners_and_may_change_them() -> None:
    made = controller()
    assert made.image.brokers[1].listeners == {"PLAINTEXT": "here:9092"}
    announce = requests.AnnounceBroker(1, "i1", "127.0.0.1:2", {"PLAINTEXT": "here:40000"})
    made.apply(made.decide(announce, 1).changes)
    assert (made.image.brokers[1].http, made.image.brokers[1].listeners["PLAINTEXT"]) == ("127.0.0.1:2", "here:40000")
    assert made.decide(announce, 2).changes == ()
    mapped = requests.AnnounceBroker(1, "i1", "127.0.0.1:2", {"PLAINTEXT": "here:40000"}, "http://there:80")
    made.apply(made.decide(mapped, 3).changes)
    assert made.image.brokers[1].advertised_http == "http://there:80"
    assert images.from_json(images.to_json(made.image)) == made.image


def test_producer_ids_are_unique_also_after_a_replay() -> None:
    made = controller()
    blocks = []
    for _ in range(3):
        decision = made.decide(requests.AllocateProducerIds(1), 0)
        made.apply(decision.changes)
        blocks.append((decision.reply.first, decision.reply.count))
    assert blocks == [(0, PRODUCER_IDS), (PRODUCER_IDS, PRODUCER_IDS), (2 * PRODUCER_IDS, PRODUCER_IDS)]
    again = images.from_json(images.to_json(made.image))
    assert again == made.image and again.next_producer_id == 3 * PRODUCER_IDS
    with pytest.raises(Corrupt):
        again.apply([kinds.ProducerIdsAllocated(1, 0, PRODUCER_IDS)])


def test_entries_from_before_listeners_are_read() -> None:
    old = kinds.to_json(kinds.BrokerRegistered(1, "i", "d", "127.0.0.1:1", "", 5))
    del old["listeners"], old["advertised_http"]
    assert kinds.from_json(old) == kinds.BrokerRegistered(1, "i", "d", "127.0.0.1:1", "", 5)
    with pytest.raises(Corrupt):
        kinds.from_json({**old, "more": 1})
    del old["rack"]
    with pytest.raises(Corrupt):
        kinds.from_json(old)


def test_snapshot_from_before_producer_ids_is_read() -> None:
    body = images.to_json(controller().image)
    del body["next_producer_id"]
    for broker in body["brokers"]:
        del broker["listeners"]
    again = images.from_json(body)
    assert again.next_producer_id == 0 and again.brokers[1].listeners == {}
