"""Tests of topics in Metadata replies: the joined fragments equal the bytes of the codec."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiered.ids import TopicId
from tiered.metadata.image import Image
from tiered.metadata.parts.brokers import BrokerImage, BrokersImage
from tiered.metadata.parts.topics import PartitionImage, TopicImage
from tiered_api.kafka.protocol.codec import decode, encode
from tiered_api.kafka.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from tiered_api.kafka.server.context.metadata_fragments import TopicFragments, join_fragments, make_topic_response

ALL = range(14)


def topic(name: str, partitions: int = 2) -> TopicImage:
    topic_id = TopicId(name.ljust(21, "A") + "A")
    return TopicImage(name, topic_id, (PartitionImage((1, 2), 1, 7, (1,)),) * partitions, {}, 0)


def image(*alive: int) -> Image:
    brokers = {each: BrokerImage(each, "i", "d", "h:1", "", each in alive, 0) for each in (1, 2)}
    return Image(brokers_image=BrokersImage(brokers))


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("count", [0, 1, 3, 126, 127, 300])
def test_joined_fragments_equal_the_whole_reply(version: int, count: int) -> None:
    head = MetadataResponse(brokers=[MetadataResponseBroker(1, "host", 9092)], cluster_id="c", controller_id=1)
    topics = [topic(f"t{number}", number % 3) for number in range(count)]
    fragments = TopicFragments()
    fragments.use_image(image(1))
    made = join_fragments(head, version, [fragments.get_fragment(each, version, False) for each in topics])
    whole = replace(head, topics=[make_topic_response(each, frozenset({1})) for each in topics])
    assert made == encode(whole, version)
    assert len(decode(MetadataResponse, version, made).topics) == count


def test_versions_with_equal_bytes_share_a_fragment() -> None:
    fragments, one = TopicFragments(), topic("t")
    fragments.use_image(image(1))
    made = [fragments.get_fragment(one, version, False) for version in ALL]
    assert len({id(each) for each in made}) == len(set(made)) == 7
    assert all(fragments.get_fragment(one, version, False) is made[version] for version in ALL)


def test_changed_topic_is_encoded_again_and_a_lost_broker_changes_all() -> None:
    fragments, one, other = TopicFragments(), topic("t"), topic("u")
    fragments.use_image(image(1, 2))
    before = [fragments.get_fragment(each, 12, False) for each in (one, other)]
    assert fragments.get_fragment(replace(one, partitions=one.partitions * 2), 12, False) != before[0]
    fragments.use_image(image(1, 2))
    assert fragments.get_fragment(other, 12, False) is before[1]
    fragments.use_image(image(1))
    after = fragments.get_fragment(other, 12, False)
    assert after != before[1]
    answer = decode(MetadataResponse, 12, join_fragments(MetadataResponse(), 12, [after]))
    assert answer.topics[0].partitions[0].offline_replicas == [2]
    fragments.use_image(image(2))
    orphan = decode(
        MetadataResponse, 12, join_fragments(MetadataResponse(), 12, [fragments.get_fragment(other, 12, False)])
    )
    assert (orphan.topics[0].partitions[0].error_code, orphan.topics[0].partitions[0].leader_id) == (5, -1)


def test_silent_broker_is_reported_offline() -> None:
    fragments, one, cluster = TopicFragments(), topic("t"), image(1, 2)
    fragments.use_image(cluster)
    before = fragments.get_fragment(one, 12, False)
    brokers = dict(cluster.brokers) | {2: replace(cluster.brokers[2], fenced=True)}
    fragments.use_image(replace(cluster, brokers_image=BrokersImage(brokers)))
    answer = decode(
        MetadataResponse, 12, join_fragments(MetadataResponse(), 12, [fragments.get_fragment(one, 12, False)])
    )
    assert before != fragments.get_fragment(one, 12, False)
    assert answer.topics[0].partitions[0].offline_replicas == [2]


def test_memory_of_fragments_is_bounded() -> None:
    size = len(TopicFragments().get_fragment(topic("t000"), 12, False))
    fragments = TopicFragments(bytes_max=10 * size)
    for number in range(100):
        fragments.get_fragment(topic(f"t{number:03}"), 12, False)
        assert len(fragments._fragments) <= 10
    last = fragments.get_fragment(topic("t099"), 12, False)
    assert decode(MetadataResponse, 12, join_fragments(MetadataResponse(), 12, [last])).topics[0].name == "t099"
