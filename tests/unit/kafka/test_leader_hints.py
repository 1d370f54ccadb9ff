"""Tests of replies that name the leader of a partition that another broker leads. Their bytes equal those of the
codec."""

from __future__ import annotations

import pytest

from tests.unit.kafka.test_frames import echo, response_frame
from tiered.errors import Code
from tiered.ids import TopicId
from tiered.metadata.image import Image
from tiered.metadata.parts.brokers import BrokerImage, BrokersImage
from tiered.metadata.parts.topics import PartitionImage, TopicImage, TopicsImage
from tiered_api.kafka.protocol.codec import encode
from tiered_api.kafka.protocol.messages import fetch, produce
from tiered_api.kafka.protocol.primitives import id_raw
from tiered_api.kafka.protocol.schema import ZERO_ID
from tiered_api.kafka.server.context.leader_hints import NO_TAGS, NOT_LEADER_CODES, LeaderHints
from tiered_api.kafka.server.fetch import frames as fetch_frames
from tiered_api.kafka.server.produce import frames as produce_frames

TOPIC_ID = TopicId("A" * 21 + "Q")
MOVED = Code.NOT_LEADER_OR_FOLLOWER.number
LONG = "a-host-with-a-name-that-is-so-long-that-its-endpoint-takes-more-bytes-than-one-of-a-varint.example.org" * 2


def image() -> Image:
    """Returns an image where broker n leads partition n of `t`. No broker leads 4, broker 3 is unreachable, broker 0
    lacks the listener."""
    hosts = {0: {}, 1: {"L": "one:9092"}, 2: {"L": f"{LONG}:65535"}, 3: {"L": "three:1"}}
    brokers = {
        node: BrokerImage(node, "i", "d", "h:1", "rack" if node == 2 else "", node != 3, 0, listeners)
        for node, listeners in hosts.items()
    }
    partitions = tuple(PartitionImage((0, 1, 2, 3), node, 40 + node, (1,)) for node in (0, 1, 2, 3, -1))
    topic = TopicImage("t", TOPIC_ID, partitions, {}, 0)
    return Image(brokers_image=BrokersImage(brokers), topics_image=TopicsImage({"t": topic}, {TOPIC_ID: topic}))


def test_hints_are_sent_with_error_codes_of_a_changed_leader() -> None:
    assert {6, 74} == NOT_LEADER_CODES


@pytest.mark.parametrize("version", range(10, 14))
def test_produce_reply_names_leaders_and_their_addresses(version: int) -> None:
    leaders = LeaderHints(image(), "L", 0)
    told = [leaders.tags_by_id(id_raw(TOPIC_ID), n) if n % 2 else leaders.tags_by_name("t", n) for n in range(-1, 6)]
    outcomes = [
        produce_frames.ProduceResult(n, MOVED, why="no", tags=tags) for n, tags in zip(range(-1, 6), told, strict=True)
    ]
    topic = echo(version, 9, "t", TOPIC_ID)
    made = produce_frames.encode_response(version, 77, [(topic, outcomes)], leaders.endpoint_tags())
    parts = [produce.PartitionProduceResponse(n, MOVED, -1, error_message="no") for n in range(-1, 6)]
    parts[2].current_leader = produce.LeaderIdAndEpoch(1, 41)
    parts[3].current_leader = produce.LeaderIdAndEpoch(2, 42)
    names = ("t", ZERO_ID) if version < 13 else ("", TOPIC_ID)
    whole = produce.ProduceResponse(
        [produce.TopicProduceResponse(*names, parts)],
        node_endpoints=[produce.NodeEndpoint(1, "one", 9092), produce.NodeEndpoint(2, LONG, 65535, "rack")],
    )
    assert made == response_frame(0, version, encode(whole, version))


@pytest.mark.parametrize("version", range(16, 19))
def test_fetch_reply_names_leaders_and_their_addresses(version: int) -> None:
    leaders = LeaderHints(image(), "L", 1)
    founds = [fetch_frames.PartitionResult(n, MOVED, tags=leaders.tags_by_id(id_raw(TOPIC_ID), n)) for n in (2, 2, 0)]
    (made,) = fetch_frames.encode_response(version, 77, [(id_raw(TOPIC_ID), founds)], 1, tags=leaders.endpoint_tags())
    parts = [
        fetch.PartitionData(n, MOVED, -1, aborted_transactions=None, records=b"", current_leader=leader)
        for n, leader in (
            (2, fetch.LeaderIdAndEpoch(2, 42)), (2, fetch.LeaderIdAndEpoch(2, 42)), (0, fetch.LeaderIdAndEpoch()),
        )
    ]  # fmt: skip
    whole = fetch.FetchResponse(
        responses=[fetch.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=parts)],
        node_endpoints=[fetch.NodeEndpoint(2, LONG, 65535, "rack")],
    )
    assert made == response_frame(1, version, encode(whole, version))


def test_reply_has_no_hint_if_no_leader_is_known() -> None:
    leaders = LeaderHints(image(), "L", 0)
    assert [leaders.tags_by_name("t", n) for n in (0, 3, 4, 5, -1)] == [NO_TAGS] * 5
    assert leaders.tags_by_name("unknown", 1) == NO_TAGS
    assert LeaderHints(image(), "OTHER", 0).tags_by_name("t", 1) == NO_TAGS
    assert leaders.endpoint_tags() == NO_TAGS
