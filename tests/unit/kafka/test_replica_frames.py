"""Tests of the hand-written frames of a follower's Fetch against the codec, and with hostile bytes."""

from __future__ import annotations

import time
from contextlib import suppress
from random import Random

import pytest

from tests.fuzz.mutations import mutate
from tests.fuzz.rounds import SECONDS_MOST
from tests.unit.kafka.test_frames import response_frame
from tests.unit.kafka.values import Drawn
from tiered.ids import TopicId
from tiered.peers import DivergingEpoch, PartitionFetch, ReplicaFetch
from tiered_api.kafka.client.peers import make_fetch_request
from tiered_api.kafka.protocol.codec import Malformed, encode
from tiered_api.kafka.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from tiered_api.kafka.protocol.primitives import id_raw
from tiered_api.kafka.server.fetch import frames, replica_frames
from tiered_api.kafka.server.fetch.replica_frames import VERSION

CREDENTIAL = bytes(range(16))
TOPICS = [TopicId("A" * 21 + each) for each in "Qgw"]


def draw_fetch(seed: int) -> ReplicaFetch:
    chance = Random(seed)
    places = [(topic, n) for topic in TOPICS[: seed % 4] for n in range(chance.choice((1, 2, 126, 127, 200)))]
    wanted = [
        PartitionFetch(
            topic, n, chance.randint(0, 9), chance.getrandbits(62), chance.randint(-1, 9), chance.getrandbits(62),
            chance.getrandbits(62),
        )
        for topic, n in places
    ]  # fmt: skip
    return ReplicaFetch(chance.randint(0, 9), chance.getrandbits(63), 500, 10 << 20, chance.getrandbits(20), wanted)


def frame_of(request: FetchRequest) -> memoryview:
    return memoryview(b"head\0" + encode(request, VERSION))


@pytest.mark.parametrize("seed", range(12))
def test_leader_parses_the_requests_of_a_follower(seed: int) -> None:
    asked = draw_fetch(seed)
    frame = frame_of(make_fetch_request(asked, CREDENTIAL))
    assert replica_frames.is_replica_fetch(frame)
    read = replica_frames.parse_request(frame, 4)
    assert read is not None
    assert read[:5] == (asked.node_id, asked.incarnation, CREDENTIAL, asked.max_wait_ms, asked.max_bytes)
    assert read.partitions == asked.partitions
    assert read.partition_max_bytes == [asked.partition_max_bytes] * len(asked.partitions)
    assert sum(count for _, count in read.topics) == len(read.partitions)
    assert [raw for raw, _ in read.topics] == [id_raw(topic) for topic in TOPICS[: seed % 4]]
    assert frames.parse_request(frame, VERSION, 4).replica_id == asked.node_id


def test_request_of_a_consumer_is_no_replica_fetch() -> None:
    for seed in range(300):
        request: FetchRequest = Drawn(seed).message(FetchRequest, VERSION)
        request.replica_state, request.cluster_id = ReplicaState(), None
        frame = frame_of(request)
        assert not replica_frames.is_replica_fetch(frame) or replica_frames.parse_request(frame, 4) is None
        assert frames.parse_request(frame, VERSION, 4).replica_id == -1


def test_unusual_request_with_a_replica_id_is_parsed_as_a_consumers() -> None:
    """No follower of ours writes such a frame, or such a version."""
    for request in (
        FetchRequest(replica_state=ReplicaState(3, 7)),
        FetchRequest(replica_state=ReplicaState(3, 7), credential=CREDENTIAL[1:]),
        FetchRequest(replica_state=ReplicaState(3, 7), credential=CREDENTIAL + b"c"),
        FetchRequest(replica_state=ReplicaState(3, 7), credential=CREDENTIAL, cluster_id="c"),
        FetchRequest(replica_state=ReplicaState(3, 7), credential=CREDENTIAL, rack_id="r"),
        FetchRequest(replica_state=ReplicaState(3, 7), credential=CREDENTIAL, session_id=1, session_epoch=1),
        FetchRequest(
            replica_state=ReplicaState(3, 7),
            credential=CREDENTIAL,
            topics=[FetchTopic(topic_id=TOPICS[0], partitions=[FetchPartition(0, replica_directory_id=TOPICS[1])])],
        ),
    ):
        frame = frame_of(request)
        assert not replica_frames.is_replica_fetch(frame) or replica_frames.parse_request(frame, 4) is None
        assert frames.parse_request(frame, VERSION, 4).replica_id == 3
    for version in range(4, 19):
        named = {"replica_state": ReplicaState(5)} if version >= 15 else {"replica_id": 5}
        body = encode(FetchRequest(**named), version)
        frame = memoryview((b"\0" if version >= 12 else b"") + body)
        assert frames.parse_request(frame, version, 0).replica_id == 5


def test_reply_of_a_leader_equals_that_of_the_codec() -> None:
    rows = [
        (PartitionData(0, 0, 90, log_start_offset=5, local_start_offset=40, cold_end_offset=60), None),
        (PartitionData(1, 0, 8, log_start_offset=0, local_start_offset=0, cold_end_offset=0), DivergingEpoch(2, 6)),
        (
            PartitionData(2, 109, 20, log_start_offset=1, local_start_offset=12, cold_end_offset=3),
            DivergingEpoch(-1, 0),
        ),
        (PartitionData(3, 0, 1 << 40, log_start_offset=7, local_start_offset=8, cold_end_offset=9), None),
    ]
    rows[0][0].may_have_gaps = rows[1][0].may_have_gaps = True
    founds: list[frames.PartitionResult | bytes] = []
    for row, diverging in rows:
        row.aborted_transactions, row.records = None, b"records" if row.partition_index == 0 else b""
        if diverging:
            row.diverging_epoch = EpochEndOffset(*diverging)
        tags = replica_frames.encode_tags(row.local_start_offset, row.cold_end_offset, diverging, row.may_have_gaps)
        fields = (row.partition_index, row.error_code, row.high_watermark, -1, row.log_start_offset, row.records, tags)
        founds.append(frames.PartitionResult(*fields))
    whole = FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPICS[0], partitions=[row for row, _ in rows])])
    theirs = response_frame(1, VERSION, encode(whole, VERSION))
    for _ in range(2):
        made = frames.encode_response(VERSION, 77, [(id_raw(TOPICS[0]), founds)], 1)
        assert b"".join(part for part in made if isinstance(part, bytes)) == theirs
        founds[3] = replica_frames.encode_idle(3, 1 << 40, 7, 8, 9)


def test_hostile_bytes_raise_only_malformed() -> None:
    chance = Random(1)
    seeds = [bytes(frame_of(make_fetch_request(draw_fetch(seed), CREDENTIAL))) for seed in range(4)]
    for _ in range(3_000):
        frame = memoryview(mutate(chance, chance.choice(seeds)))
        before = time.process_time()
        with suppress(Malformed):
            replica_frames.parse_request(frame, 4)
        assert time.process_time() - before < SECONDS_MOST, frame.hex()
    many = encode(
        FetchRequest(topics=[FetchTopic()] * 10_001, replica_state=ReplicaState(1, 1), credential=CREDENTIAL), VERSION
    )
    with pytest.raises(Malformed, match="more than"):
        replica_frames.parse_request(memoryview(b"\0" + many), 0)
