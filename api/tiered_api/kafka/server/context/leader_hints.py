"""The current leader inside error replies (KIP-951): a "not leader" reply names the leader and its address, so that a
client need not request metadata first."""

from __future__ import annotations

from struct import Struct

from tiered.errors import Code
from tiered.ids import TopicId
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import TopicImage
from tiered_api.kafka.protocol.primitives import id_text, varint
from tiered_api.kafka.server.context.advertised_brokers import advertised_brokers

NOT_LEADER_CODES = frozenset((Code.NOT_LEADER_OR_FOLLOWER.number, Code.FENCED_LEADER_EPOCH.number))
"""Error codes that come with the current leader."""
NO_TAGS = b"\0"

_LEADER = Struct(">BBBiiB")
"""One tagged field: number of fields, tag, size, leader, leader epoch, no inner tags."""
_LEADER_BYTES = 9
_INT = Struct(">i")


class LeaderHints:
    """The leaders that one reply names, for a client of one listener. `tag` is the tag of the leader in a partition."""

    def __init__(self, image: Image, listener: str, tag: int) -> None:
        self._image = image
        self._tag = tag
        self._brokers = {
            broker.node_id: (host, port, broker.rack) for broker, host, port in advertised_brokers(image, listener)
        }
        self._hinted_leaders: dict[int, None] = {}

    def tags_by_name(self, name: str, partition: int) -> bytes:
        """Returns the tagged fields of a partition, empty if no leader is known."""
        return self._leader_tags(self._image.topics.get(name), partition)

    def tags_by_id(self, topic_id: bytes, partition: int) -> bytes:
        """Returns the same for a topic id."""
        return self._leader_tags(self._image.topics_by_id.get(TopicId(id_text(topic_id))), partition)

    def endpoint_tags(self) -> bytes:
        """Returns the tagged fields of the whole reply: the addresses of the leaders that it names."""
        if not self._hinted_leaders:
            return NO_TAGS
        nodes = [varint(len(self._hinted_leaders) + 1)]
        for node_id in self._hinted_leaders:
            host, port, rack = self._brokers[node_id]
            nodes += (
                _INT.pack(node_id),
                _encode_compact_text(host),
                _INT.pack(port),
                _encode_compact_text(rack or None),
                NO_TAGS,
            )
        body = b"".join(nodes)
        return b"".join((b"\1\0", varint(len(body)), body))

    def _leader_tags(self, topic: TopicImage | None, number: int) -> bytes:
        if topic is None or not 0 <= number < len(topic.partitions):
            return NO_TAGS
        partition = topic.partitions[number]
        if partition.leader not in self._brokers:
            return NO_TAGS
        self._hinted_leaders[partition.leader] = None
        return _LEADER.pack(1, self._tag, _LEADER_BYTES, partition.leader, partition.leader_epoch, 0)


def _encode_compact_text(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    raw = text.encode()
    return varint(len(raw) + 1) + raw
