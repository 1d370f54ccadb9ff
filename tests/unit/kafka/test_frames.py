"""Tests of the hand-written frames of Produce and Fetch against the codec, and with hostile bytes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from random import Random
from struct import Struct
from typing import Any

import pytest

from tests.fuzz.mutations import mutate
from tests.fuzz.rounds import SECONDS_MOST
from tests.unit.kafka.values import Drawn
from tiered_api.kafka.protocol import headers
from tiered_api.kafka.protocol.codec import Malformed, decode, encode
from tiered_api.kafka.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tiered_api.kafka.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tiered_api.kafka.protocol.primitives import ELEMENTS_MAX, id_raw, skip_tags, varint
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.fetch import frames as fetch_frames
from tiered_api.kafka.server.fetch import request_cache
from tiered_api.kafka.server.produce import frames as produce_frames

PRODUCE, FETCH = range(3, 14), range(4, 19)
SEEDS = range(12)
SIZE = Struct(">i")
Parse = Callable[[memoryview, int, int], Any]


def echo(version: int, flexible: int, name: str, topic_id: str) -> bytes:
    """Returns a topic as it is encoded in requests and replies."""
    if version >= 13:
        return id_raw(topic_id)
    raw = name.encode()
    return (varint(len(raw) + 1) if version >= flexible else len(raw).to_bytes(2, "big")) + raw


def response_frame(key: int, version: int, body: bytes) -> bytes:
    """Returns a whole response, with its length."""
    head = headers.encode_response_header(key, version, 77)
    return SIZE.pack(len(head) + len(body)) + head + body


@pytest.mark.parametrize("version", PRODUCE)
def test_produce_requests_parse_as_the_codec_decodes_them(version: int) -> None:
    for seed in SEEDS:
        asked: ProduceRequest = Drawn(seed).message(ProduceRequest, version)
        frame = b"head" + tags(version, 9) + encode(asked, version)
        read = produce_frames.parse_request(memoryview(frame), version, 4)
        assert read[:3] == (asked.transactional_id, asked.acks, asked.timeout_ms)
        assert [(topic.echo, topic.name, topic.partitions) for topic in read.topics] == [
            (
                echo(version, 9, topic.name, topic.topic_id),
                "" if version >= 13 else topic.name,
                [(part.index, part.records) for part in topic.partition_data],
            )
            for topic in asked.topic_data
        ]


@pytest.mark.parametrize("version", PRODUCE)
def test_records_of_a_partition_are_found_in_the_frame(version: int) -> None:
    records = bytes(range(61)) * 5
    asked = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(3, records)])])
    frame = memoryview(tags(version, 9) + encode(asked, version))
    head = produce_frames.parse_request(frame, version, 0).records_length_at
    assert bytes(produce_frames.parse_records_only(frame, version, head) or b"") == records
    assert produce_frames.parse_records_only(frame[:-1], version, head) is None


@pytest.mark.parametrize("version", PRODUCE)
def test_produce_replies_equal_those_of_the_codec(version: int) -> None:
    for seed in SEEDS:
        draw = Drawn(seed)
        answer: ProduceResponse = draw.message(ProduceResponse, version)
        answer.throttle_time_ms, answer.node_endpoints = 0, []
        for topic in answer.responses:
            topic.partition_responses = [produce_result(draw, version, each) for each in topic.partition_responses]
        topics = [
            (echo(version, 9, topic.name, topic.topic_id), [outcome(each) for each in topic.partition_responses])
            for topic in answer.responses
        ]
        assert produce_frames.encode_response(version, 77, topics) == response_frame(
            0, version, encode(answer, version)
        )


def produce_result(draw: Drawn, version: int, drawn: PartitionProduceResponse) -> PartitionProduceResponse:
    """Returns the part of a drawn response that our broker sends: no leaders, and errors only after a failure."""
    fields = (drawn.index, drawn.error_code, drawn.base_offset, drawn.log_append_time_ms, drawn.log_start_offset)
    if not drawn.error_code:
        return PartitionProduceResponse(*fields)
    errors = [BatchIndexAndErrorMessage(each.batch_index, "why") for each in drawn.record_errors]
    return PartitionProduceResponse(*fields, errors, drawn.error_message)


def outcome(part: PartitionProduceResponse) -> produce_frames.ProduceResult:
    errors = tuple((each.batch_index, each.batch_index_error_message or "") for each in part.record_errors)
    fields = (part.index, part.error_code, part.base_offset, part.log_append_time_ms, part.log_start_offset)
    return produce_frames.ProduceResult(*fields, part.error_message, errors)


@pytest.mark.parametrize("version", PRODUCE)
def test_template_makes_the_same_reply(version: int) -> None:
    topic = echo(version, 9, "orders", "x" * 21 + "w")
    whole = produce_frames.encode_response(version, 77, [(topic, [produce_frames.ProduceResult(5, 0, 6, 7, 8)])])
    assert produce_frames.ResponseTemplate(version, topic, 5).fill(77, 6, 7, 8) == whole


@pytest.mark.parametrize("version", FETCH)
def test_fetch_requests_parse_as_the_codec_decodes_them(version: int) -> None:
    for seed in SEEDS:
        asked: FetchRequest = Drawn(seed).message(FetchRequest, version)
        frame = b"head" + tags(version, 12) + encode(asked, version)
        read = fetch_frames.parse_request(memoryview(frame), version, 4)
        session = (asked.session_id, asked.session_epoch)
        limits = (asked.max_wait_ms, asked.min_bytes, asked.max_bytes)
        assert read[:6] == (*limits, asked.isolation_level == 1, *session)
        assert [tuple(topic) for topic in read.topics] == [
            (
                echo(version, 12, topic.topic, topic.topic_id),
                "" if version >= 13 else topic.topic,
                [
                    (part.partition, part.fetch_offset, part.partition_max_bytes, part.current_leader_epoch)
                    for part in topic.partitions
                ],
            )
            for topic in asked.topics
        ]


@pytest.mark.parametrize("version", FETCH)
def test_partitions_of_a_fetch_are_no_work_for_the_garbage_collector(version: int) -> None:
    wanted = [FetchPartition(partition=place, fetch_offset=place) for place in range(100)]
    body = encode(FetchRequest(topics=[FetchTopic(topic="t", partitions=wanted)]), version)
    parsed = fetch_frames.parse_request(memoryview(b"\0" * (version >= 12) + body), version, 0)
    gc.collect(0)
    assert len(parsed.topics[0].partitions) == 100
    assert not any(map(gc.is_tracked, parsed.topics[0].partitions))


@pytest.mark.parametrize("version", FETCH)
def test_cached_fetch_equals_the_parsed_one(version: int) -> None:
    known = 0
    for seed in range(60):
        asked: FetchRequest = Drawn(seed).message(FetchRequest, version)
        del asked.topics[1:]
        frame = b"head" + tags(version, 12) + encode(asked, version)
        first = fetch_frames.parse_request(memoryview(frame), version, 4)
        head = request_cache.remember_request(memoryview(frame), first)
        if head is None:
            continue
        for topic in asked.topics:
            for part in topic.partitions:
                part.fetch_offset, part.partition_max_bytes = part.fetch_offset ^ 77, 5
        moved = b"head" + tags(version, 12) + encode(asked, version)
        assert moved[: first.rows_at] == frame[: first.rows_at]
        assert request_cache.parse_cached(memoryview(moved), head) == fetch_frames.parse_request(
            memoryview(moved), version, 4
        )
        chance = Random(seed)
        for _ in range(40):
            behind = bytearray(moved)
            behind[chance.randrange(first.rows_at, len(behind))] ^= 1 << chance.randrange(8)
            other = bytes(behind[: len(behind) - chance.choice((0, 0, 0, 1, 5))])
            again = request_cache.parse_cached(memoryview(other), head)
            assert again is None or again == fetch_frames.parse_request(memoryview(other), version, 4)
        known += 1
    assert bool(known) == (version >= 12)


def test_long_requests_are_not_cached() -> None:
    asked = FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=n) for n in range(1000)])])
    frame = memoryview(b"head" + tags(12, 12) + encode(asked, 12))
    head = request_cache.remember_request(frame, fetch_frames.parse_request(frame, 12, 4))
    assert head is not None
    assert head.request.topics[0].partitions == []
    asked.rack_id = "r" * request_cache.BYTES_MAX
    frame = memoryview(b"head" + tags(12, 12) + encode(asked, 12))
    assert request_cache.remember_request(frame, fetch_frames.parse_request(frame, 12, 4)) is None


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("version", range(12, 19))
def test_reply_of_one_partition_equals_that_of_the_codec(version: int, committed: bool) -> None:
    topic = echo(version, 12, "orders", "x" * 21 + "w")
    for data in (b"", b"r" * 10, b"r" * 200, b"r" * 20_000, b"r" * 3_000_000):
        for aborted in ((), ((1, 2),), tuple((n, n + 1) for n in range(200))):
            one = fetch_frames.PartitionResult(3, 0, 9, 8, 7, data, aborted_txns=aborted if committed else ())
            whole = fetch_frames.encode_response(version, 77, [(topic, [one])], 1, read_committed=committed)
            assert fetch_frames.encode_single_response(version, 77, topic, one, committed) == whole


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("version", FETCH)
def test_fetch_replies_equal_those_of_the_codec(version: int, committed: bool) -> None:
    for seed in SEEDS:
        answer: FetchResponse = Drawn(seed).message(FetchResponse, version)
        answer.throttle_time_ms, answer.session_id, answer.node_endpoints = 0, 0, []
        answer.responses = [fetch_result(each, committed) for each in answer.responses]
        topics = [
            (echo(version, 12, topic.topic, topic.topic_id), [partition_result(each) for each in topic.partitions])
            for topic in answer.responses
        ]
        pieces = fetch_frames.encode_response(
            version, 77, topics, len(topics), read_committed=committed, code=answer.error_code if version >= 7 else 0
        )
        made = b"".join(piece for piece in pieces if isinstance(piece, bytes))
        assert made == response_frame(1, version, encode(answer, version))


def test_many_records_in_memory_are_not_copied_into_the_reply() -> None:
    large = bytes(fetch_frames.JOINED_BYTES + 1)
    found = fetch_frames.PartitionResult(1, 0, 9, 9, 0, large)
    for parts in (
        fetch_frames.encode_response(12, 5, [(b"\2t", [found])], 1),
        fetch_frames.encode_single_response(12, 5, b"\2t", found, False),
    ):
        assert any(part is large for part in parts)
        joined = b"".join(part for part in parts if isinstance(part, bytes))
        assert SIZE.unpack_from(joined)[0] == len(joined) - 4


def fetch_result(topic: FetchableTopicResponse, committed: bool) -> FetchableTopicResponse:
    """Returns the part of a drawn response that our broker sends: no leaders, no other replicas."""
    parts = [
        PartitionData(
            partition_index=each.partition_index,
            error_code=each.error_code,
            high_watermark=each.high_watermark,
            last_stable_offset=each.last_stable_offset,
            log_start_offset=each.log_start_offset,
            aborted_transactions=(each.aborted_transactions or []) if committed else None,
            records=each.records or b"",
        )
        for each in topic.partitions
    ]
    return FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=parts)


def partition_result(part: PartitionData) -> fetch_frames.PartitionResult:
    offsets = (part.high_watermark, part.last_stable_offset, part.log_start_offset)
    aborted = tuple((each.producer_id, each.first_offset) for each in part.aborted_transactions or ())
    return fetch_frames.PartitionResult(
        part.partition_index, part.error_code, *offsets, part.records, aborted_txns=aborted
    )


def tags(version: int, flexible: int) -> bytes:
    """Returns the tagged fields of the header: the parsers begin there."""
    return b"\0" if version >= flexible else b""


def is_read(parse: Parse, frame: bytes, version: int) -> bool:
    """True if a request is accepted, within a time limit; otherwise it is malformed. Nulls count as empty."""
    before = time.process_time()
    try:
        parse(memoryview(frame), version, 0)
    except Malformed:
        return False
    finally:
        assert time.process_time() - before < SECONDS_MOST, frame.hex()
    return True


def is_read_by_codec(table: type[Message], version: int, flexible: int, frame: bytes) -> bool:
    try:
        at = skip_tags(frame, 0, len(frame)) if version >= flexible else 0
        decode(table, version, frame, at)
    except (Malformed, IndexError):
        return False
    return True


PARSERS = [
    *((produce_frames.parse_request, ProduceRequest, 9, version) for version in PRODUCE),
    *((fetch_frames.parse_request, FetchRequest, 12, version) for version in FETCH),
]


@pytest.mark.parametrize(("parse", "table", "flexible", "version"), PARSERS)
def test_parsers_accept_what_the_codec_accepts(parse: Parse, table: type[Message], flexible: int, version: int) -> None:
    rng = Random(version)
    for seed in SEEDS:
        body = tags(version, flexible) + encode(Drawn(seed).message(table, version), version)
        for frame in [mutate(rng, body) for _ in range(25)]:
            assert is_read(parse, frame, version) or not is_read_by_codec(table, version, flexible, frame), frame.hex()


@pytest.mark.parametrize(("parse", "table", "flexible", "version"), PARSERS)
def test_cut_request_is_malformed(parse: Parse, table: type[Message], flexible: int, version: int) -> None:
    for seed in SEEDS:
        body = tags(version, flexible) + encode(Drawn(seed).message(table, version), version)
        for size in range(0, len(body), 1 + len(body) // 50):
            with pytest.raises(Malformed):
                parse(memoryview(body[:size]), version, 0)


def test_topics_without_partitions_are_bounded_too() -> None:
    empty = SIZE.pack(ELEMENTS_MAX) + bytes(6) * ELEMENTS_MAX
    with pytest.raises(Malformed, match="more than"):
        produce_frames.parse_request(memoryview(b"\xff\xff\0\1" + bytes(4) + empty), 7, 0)
    head = b"\xff" * 4 + bytes(12) + b"\0"
    with pytest.raises(Malformed, match="more than"):
        fetch_frames.parse_request(memoryview(head + empty), 4, 0)
    with pytest.raises(Malformed, match="more than"):
        fetch_frames.parse_request(memoryview(head + bytes(8) + bytes(4) + empty), 7, 0)
