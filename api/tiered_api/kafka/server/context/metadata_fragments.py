"""Topics of Metadata replies, encoded once and kept while they stay the same.

All kinds of clients request all topics again and again, and few topics change. A fragment is the bytes of one topic in
one format of the reply. It is cut out of a whole reply, so that only the table of the message defines the encoding of a
topic.
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import PartitionImage, TopicImage
from tiered.metadata.topic_names import INTERNAL
from tiered_api.kafka.protocol.codec import encode
from tiered_api.kafka.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tiered_api.kafka.protocol.primitives import varint
from tiered_api.kafka.server.context.advertised_brokers import live_brokers
from tiered_api.kafka.server.context.error_codes import TOPIC_OPERATIONS

TOPIC_FORMAT = (0, 1, 1, 1, 1, 5, 5, 7, 8, 9, 10, 10, 10, 10)
"""By version of the reply: the first version with the same format of topics."""
TRAILING_BYTES = (0, 0, 0, 0, 0, 0, 0, 0, 4, 5, 5, 1, 1, 3)
"""By version: bytes of the reply after its topics."""
FRAGMENT_BYTES_MAX = 64 << 20
FLEXIBLE = 9


class TopicFragments:
    """Fragments by topic and format. They hold for one set of live brokers: a change of the set clears all."""

    def __init__(self, bytes_max: int = FRAGMENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._live_brokers: frozenset[int] = frozenset()
        self._image: Image | None = None
        self._fragments: dict[tuple[str, int, bool], tuple[TopicImage, bytes]] = {}

    def use_image(self, image: Image) -> None:
        """Makes later fragments those of `image`."""
        if image is self._image:
            return
        self._image = image
        alive = live_brokers(image)
        if alive != self._live_brokers:
            self._live_brokers = alive
            self._clear()

    def get_fragment(self, topic: TopicImage, version: int, with_operations: bool) -> bytes:
        """Returns the bytes of `topic` in a reply of `version`."""
        place = (topic.topic_id, TOPIC_FORMAT[version], with_operations)
        kept = self._fragments.get(place)
        if kept is not None and kept[0] is topic:
            return kept[1]
        made = encode_fragment(make_topic_response(topic, self._live_brokers, with_operations), version)
        if kept is not None:
            self._bytes -= len(kept[1])
        if self._bytes + len(made) > self._bytes_max:
            self._clear()
        self._fragments[place] = topic, made
        self._bytes += len(made)
        return made

    def _clear(self) -> None:
        self._fragments.clear()
        self._bytes = 0


def encode_fragment(topic: MetadataResponseTopic, version: int) -> bytes:
    """Returns one topic as in a reply of `version`. The count of topics takes as many bytes for one topic as for
    none."""
    empty = len(encode(MetadataResponse(), version)) - TRAILING_BYTES[version]
    whole = encode(MetadataResponse(topics=[topic]), version)
    return whole[empty : len(whole) - TRAILING_BYTES[version]]


def join_fragments(head: MetadataResponse, version: int, fragments: list[bytes]) -> bytes:
    """Returns the whole reply. `head` has everything except the topics."""
    body = encode(head, version)
    end = len(body) - TRAILING_BYTES[version]
    size = _encode_count(len(fragments), version)
    return b"".join((body[: end - (1 if version >= FLEXIBLE else 4)], size, *fragments, body[end:]))


def _encode_count(count: int, version: int) -> bytes:
    return varint(count + 1) if version >= FLEXIBLE else count.to_bytes(4, "big")


def make_topic_response(
    topic: TopicImage, live_ids: frozenset[int], with_operations: bool = False
) -> MetadataResponseTopic:
    """Returns one topic as a Metadata message."""
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL,
        partitions=[_make_partition_response(number, each, live_ids) for number, each in enumerate(topic.partitions)],
        **({"topic_authorized_operations": TOPIC_OPERATIONS} if with_operations else {}),
    )


def advertised_leader(partition: PartitionImage, live_ids: frozenset[int]) -> tuple[Code, int]:
    """Returns the leader for clients, and LEADER_NOT_AVAILABLE if it is not live."""
    if partition.leader in live_ids:
        return Code.NONE, partition.leader
    return Code.LEADER_NOT_AVAILABLE, NO_LEADER


def _make_partition_response(
    number: int, partition: PartitionImage, live_ids: frozenset[int]
) -> MetadataResponsePartition:
    code, leader = advertised_leader(partition, live_ids)
    return MetadataResponsePartition(
        error_code=code.number,
        partition_index=number,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=[each for each in partition.replicas if each not in live_ids],
    )
