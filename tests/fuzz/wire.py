"""Fuzzing of Kafka requests as the broker reads them: the header, then the body by hand or by the codec."""

from __future__ import annotations

from contextlib import suppress

from tests.fuzz.frames import check as check_codec
from tests.fuzz.frames import check_header
from tiered.controller import request_codec
from tiered.errors import Corrupt
from tiered.groups import subscription
from tiered_api.kafka.protocol.codec import Malformed, decode
from tiered_api.kafka.protocol.headers import decode_request_header
from tiered_api.kafka.protocol.messages.fetch import FetchRequest
from tiered_api.kafka.protocol.messages.produce import ProduceRequest
from tiered_api.kafka.server.dispatch import FETCH, PRODUCE
from tiered_api.kafka.server.fetch import frames as fetch_frames
from tiered_api.kafka.server.fetch import replica_frames, request_cache
from tiered_api.kafka.server.produce import frames as produce_frames

FIXED = 10
"""Bytes of a header before the client id; the last of them are its length."""


def check(kind: str, data: bytes) -> None:
    """Gives an input to its first reader. Only Malformed and Corrupt may be raised, and soon; the codec must agree."""
    if kind == "frame":
        check_frame(data)
    elif kind == "between":
        for read in (request_codec.decode_request, request_codec.decode_reply):
            with suppress(Corrupt):
                read(data)
    else:
        assert kind == "subscription", kind
        with suppress(Corrupt):
            subscription.parse_topics(data)


def check_frame(data: bytes) -> None:
    """Checks a request without its length."""
    check_header(data)
    try:
        header = decode_request_header(memoryview(data))
    except Malformed:
        return
    if header.api is None:
        return
    tags = FIXED + max(int.from_bytes(data[FIXED - 2 : FIXED], "big", signed=True), 0)
    if header.key == PRODUCE:
        check_produce(memoryview(data), header.version, tags, header.position)
    elif header.key == FETCH:
        check_fetch(memoryview(data), header.version, tags, header.position)
    check_codec(header.api.request_type, header.version, data[header.position :])


def check_produce(view: memoryview, version: int, tags: int, body: int) -> None:
    """Checks that the codec reads the same records from a request that the hand-written parser accepts. The tags of the
    header begin at `tags`."""
    try:
        asked = produce_frames.parse_request(view, version, tags)
    except Malformed:
        return
    if asked.records_length_at:
        produce_frames.parse_records_only(view, version, asked.records_length_at)
    try:
        slow: ProduceRequest = decode(ProduceRequest, version, view, body)
    except Malformed:
        return
    assert [part for topic in asked.topics for part in topic.partitions] == [
        (part.index, part.records) for topic in slow.topic_data for part in topic.partition_data
    ]


def check_fetch(view: memoryview, version: int, tags: int, body: int) -> None:
    """Checks a fetch likewise. The cached form of a request must read the same request again."""
    if replica_frames.is_replica_fetch(view):
        with suppress(Malformed):
            replica_frames.parse_request(view, tags)
    try:
        asked = fetch_frames.parse_request(view, version, tags)
    except Malformed:
        return
    head = request_cache.remember_request(view, asked)
    assert head is None or request_cache.parse_cached(view, head) == asked
    try:
        slow: FetchRequest = decode(FetchRequest, version, view, body)
    except Malformed:
        return
    assert (asked.max_wait_ms, asked.min_bytes, asked.max_bytes) == (slow.max_wait_ms, slow.min_bytes, slow.max_bytes)
    assert sum(len(topic.partitions) for topic in asked.topics) == sum(len(topic.partitions) for topic in slow.topics)
