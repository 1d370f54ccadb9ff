"""Tests of the codec's rules, one by one. test_codec_oracles.py shows that its bytes are Kafka's."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kafka.values import OURS, TABLES, Drawn, versions
from tiered.ids import encode_uuid
from tiered_api.kafka.protocol import primitives
from tiered_api.kafka.protocol.codec import Malformed, decode, decode_in_pieces, encode, encode_in_pieces, has_pieces
from tiered_api.kafka.protocol.messages.api_versions import ApiVersionsResponse
from tiered_api.kafka.protocol.messages.create_partitions import CreatePartitionsRequest
from tiered_api.kafka.protocol.messages.delete_groups import DeleteGroupsRequest
from tiered_api.kafka.protocol.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from tiered_api.kafka.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    PartitionData,
)
from tiered_api.kafka.protocol.messages.find_coordinator import FindCoordinatorRequest
from tiered_api.kafka.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tiered_api.kafka.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tiered_api.kafka.protocol.messages.offset_delete import OffsetDeleteRequest
from tiered_api.kafka.protocol.schema import ZERO_ID, Message

T = TypeVar("T")


@pytest.mark.parametrize("name", TABLES | OURS)
def test_every_table_decodes_to_what_was_encoded(name: str) -> None:
    table = (TABLES | OURS)[name]
    for version in versions(table):
        for seed in range(20, 24):
            message = Drawn(seed).message(table, version)
            assert decode(table, version, memoryview(encode(message, version))) == message, (version, seed)


@pytest.mark.parametrize("name", TABLES | OURS)
def test_defaults_decode_to_defaults(name: str) -> None:
    table = (TABLES | OURS)[name]
    for version in versions(table):
        made = decode(table, version, encode(table(), version))
        assert made == table()
        assert type(made) is table


def test_fields_that_a_version_lacks_decode_to_defaults() -> None:
    asked = MetadataRequest(topics=[MetadataRequestTopic(topic_id="x" * 22, name="a")], allow_auto_topic_creation=False)
    assert encode(asked, 1) == bytes.fromhex("00000001 0001 61")
    read = decode(MetadataRequest, 1, encode(asked, 1))
    assert read.allow_auto_topic_creation is True
    assert read.topics == [MetadataRequestTopic(topic_id=ZERO_ID, name="a")]


def test_defaults_are_not_shared() -> None:
    body = encode(FetchResponse(responses=[]), 4)
    one, other = decode(FetchResponse, 4, body), decode(FetchResponse, 4, body)
    one.node_endpoints.append(None)  # type: ignore[arg-type]
    assert other.node_endpoints == [] == FetchResponse().node_endpoints


def test_null_and_empty_are_distinguished() -> None:
    """In Metadata null means all topics, and empty means none."""
    for version, null, empty in ((1, "ffffffff", "00000000"), (9, "00", "01")):
        for topics, digits in ((None, null), ([], empty)):
            body = encode(MetadataRequest(topics=topics), version)
            assert body.hex().startswith(digits)
            assert decode(MetadataRequest, version, body).topics == topics


def test_any_negative_length_is_null() -> None:
    assert decode(MetadataRequest, 1, bytes.fromhex("80000000")).topics is None


def test_nullable_struct_follows_a_byte() -> None:
    """KIP-893 defines the byte."""
    for cursor, digits in ((None, "ff"), (Cursor(topic_name="a", partition_index=7), "01 02 61 00000007 00")):
        asked = DescribeTopicPartitionsRequest(cursor=cursor)
        body = encode(asked, 0)
        assert body == bytes.fromhex("01 000007d0" + digits + "00")
        assert decode(DescribeTopicPartitionsRequest, 0, body) == asked


def test_tagged_fields_with_defaults_are_not_written() -> None:
    """librdkafka before 2.2 reads one byte too few of every tagged field."""
    assert encode(ApiVersionsResponse(), 3) == bytes.fromhex("0000 01 00000000 00")
    assert encode(ApiVersionsResponse(zk_migration_ready=True), 3) == bytes.fromhex("0000 01 00000000 01 03 01 01")


def test_tags_are_written_in_order_and_read_in_any_order() -> None:
    partition = PartitionData(diverging_epoch=EpochEndOffset(epoch=5), current_leader=LeaderIdAndEpoch(1, 2))
    answer = FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])])
    body = encode(answer, 12).hex()
    first, second = "000d00000005ffffffffffffffff00", "0109000000010000000200"
    assert first + second in body
    assert decode(FetchResponse, 12, bytes.fromhex(body.replace(first + second, second + first))) == answer


def test_unknown_tags_are_skipped() -> None:
    tags = "02 05 01 ff 8101 03 aabbcc"
    found = decode(FindCoordinatorRequest, 4, bytes.fromhex("00 02 02 67" + tags))
    assert found.coordinator_keys == ["g"]
    partition = FetchPartition(partition=1, replica_directory_id="x" * 21 + "w")
    asked = FetchRequest(topics=[FetchTopic(partitions=[partition])])
    body, known = encode(asked, 17).hex(), "0010" + primitives.id_raw(partition.replica_directory_id).hex()
    assert "01" + known in body
    more = body.replace("01" + known, "03" + "0902ffff" + known + "050100")
    assert decode(FetchRequest, 17, bytes.fromhex(more)) == asked


def test_lengths_of_several_bytes_decode() -> None:
    """A varint length counts from one, so that the step to two bytes is at 127."""
    for size in (126, 127, 128, 16_382, 16_383, 32_767):
        asked = DeleteGroupsRequest(groups_names=["g" * size])
        assert decode(DeleteGroupsRequest, 2, encode(asked, 2)) == asked
        assert decode(DeleteGroupsRequest, 1, encode(asked, 1)) == asked
    assert encode(DeleteGroupsRequest(groups_names=["g" * 126]), 2)[:2] == bytes.fromhex("02 7f")
    assert encode(DeleteGroupsRequest(groups_names=["g" * 127]), 2)[:3] == bytes.fromhex("02 8001")
    for size in (126, 127, 255, 256, 1000):
        assert decode(FetchRequest, 7, encode(forget_partitions(size), 7)) == forget_partitions(size)
        assert decode(FetchRequest, 17, encode(forget_partitions(size), 17)) == forget_partitions(size, "")


def forget_partitions(count: int, topic: str = "t") -> FetchRequest:
    return FetchRequest(forgotten_topics_data=[ForgottenTopic(topic=topic, partitions=list(range(count)))])


@pytest.mark.parametrize(
    ("message", "version", "why"),
    [
        (HeartbeatRequest(group_id=None), 4, "NoneType"),  # type: ignore[arg-type]
        (HeartbeatRequest(group_id=None), 0, "NoneType"),  # type: ignore[arg-type]
        (HeartbeatRequest(group_id="g" * 32_768), 0, "32767"),
        (HeartbeatRequest(group_id="g" * 32_768), 4, "too long"),
        (HeartbeatRequest(group_id="\ud800"), 4, "surrogates"),
        (HeartbeatRequest(generation_id=2**31), 4, "2147483647"),
        (HeartbeatResponse(error_code=2**15), 4, "32767"),
        (MetadataRequest(topics=None), 0, "NoneType"),
        (MetadataRequest(topics=[None]), 0, "NoneType"),  # type: ignore[list-item]
        (MetadataRequest(topics=[MetadataRequestTopic(topic_id="AAAA", name="a")]), 12, "16 byte"),
        (DeleteGroupsRequest(groups_names=[None]), 2, "NoneType"),  # type: ignore[list-item]
        (forget_partitions(1, None), 7, "NoneType"),  # type: ignore[arg-type]
        (HeartbeatRequest(), 5, "no version 5"),
    ],
)
def test_value_out_of_range_cannot_be_encoded(message: Message, version: int, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        encode(message, version)


@pytest.mark.parametrize(
    ("table", "version", "frame", "why"),
    [
        (HeartbeatRequest, 5, "", "no version 5"),
        (HeartbeatRequest, 0, "ffff 00000000 0001 6d", "group_id: null"),
        (HeartbeatRequest, 4, "00 00000000 02 6d 00 00", "group_id: null"),
        (HeartbeatRequest, 0, "0001 67 00000000 0002 6d", "member_id: longer"),
        (HeartbeatRequest, 0, "0001 67 00000000 0001", "member_id: longer"),
        (HeartbeatRequest, 0, "0001 67 0000", "requires a buffer"),
        (HeartbeatResponse, 0, "0000 00", "after the end of the message"),
        (HeartbeatRequest, 0, "0001 ff 00000000 0001 6d", "utf-8"),
        (HeartbeatRequest, 0, "0002 c080 00000000 0001 6d", "utf-8"),
        (HeartbeatResponse, 4, "00000000 0000 00 00", "after the end of the message"),
        (HeartbeatRequest, 4, "ffffffff10", "32 bits"),
        (HeartbeatRequest, 4, "8080808080 01", "32 bits"),
        (HeartbeatRequest, 4, "828080808000 67 00000000 02 6d 00 00", "32 bits"),
        (HeartbeatRequest, 4, "ffffffff0f", "longer"),
        (HeartbeatRequest, 4, "ff", "index out of"),
        (HeartbeatRequest, 4, "02 67 00000000 02 6d 00 01 00 7f", "longer than its frame"),
        (HeartbeatRequest, 4, "02 67 00000000 02 6d 00 65", "more than 100 tagged fields"),
        (MetadataRequest, 0, "ffffffff", "topics: null"),
        (MetadataRequest, 1, "7fffffff", "topics: more elements"),
        (MetadataRequest, 1, "00000002 0001 61", "topics: more elements"),
        (MetadataRequest, 12, "ffffffff0f", "topics: more elements"),
        (OffsetDeleteRequest, 0, "0001 67 00000001 0001 74 00000002 00000000", "partitions: more elements"),
        (CreatePartitionsRequest, 2, "02 02 74 00000003 02 05 00000000", "broker_ids: more elements"),
        (
            FetchRequest,
            12,
            "ffffffff 00000000 00000000 00000000 00 00000000 00000000 01 01 01 01 00 02 00 00",
            "its stated size",
        ),
        (
            FetchRequest,
            12,
            "ffffffff 00000000 00000000 00000000 00 00000000 00000000 01 01 01 01 00 01 02",
            "longer",
        ),
    ],
)
def test_broken_frame_is_malformed(table: type[Message], version: int, frame: str, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        decode(table, version, memoryview(bytes.fromhex(frame)))


def test_bytes_behind_a_request_are_ignored() -> None:
    """Kafka ignores them too: librdkafka 2.16 sends three bytes too many in a request for all topics."""
    asked = decode(MetadataRequest, 13, bytes.fromhex("00 00 00 00 01 00 00"))
    assert asked == MetadataRequest(topics=None, allow_auto_topic_creation=False)
    assert decode(HeartbeatRequest, 0, bytes.fromhex("0001 67 00000000 0001 6d 00")).member_id == "m"


def test_varint_may_be_longer_than_necessary() -> None:
    assert decode(HeartbeatRequest, 4, bytes.fromhex("8280808000 67 00000000 02 6d 00 00")).group_id == "g"


def test_string_limit_is_the_same_in_flexible_versions() -> None:
    frame = primitives.varint(2) + primitives.varint(32_769) + b"g" * 32_768 + b"\0"
    with pytest.raises(Malformed, match="groups_names"):
        decode(DeleteGroupsRequest, 2, frame)


def test_number_of_elements_of_a_request_is_bounded() -> None:
    def frame(count: int) -> bytes:
        return primitives.varint(count + 1) + b"\1" * count + b"\0"

    assert len(decode(DeleteGroupsRequest, 2, frame(primitives.ELEMENTS_MAX)).groups_names) == primitives.ELEMENTS_MAX
    with pytest.raises(Malformed, match="more than 100000 elements"):
        decode(DeleteGroupsRequest, 2, frame(primitives.ELEMENTS_MAX + 1))


def test_elements_of_all_arrays_count_together() -> None:
    half = primitives.ELEMENTS_MAX // 2
    asked = forget_partitions(half - 1)
    asked.forgotten_topics_data *= 2
    assert decode(FetchRequest, 7, encode(asked, 7)) == asked
    asked.forgotten_topics_data *= 2
    with pytest.raises(Malformed, match="elements"):
        decode(FetchRequest, 7, encode(asked, 7))


def test_reply_may_have_many_elements() -> None:
    """A reply comes from a broker: the metadata of a cluster is no attack."""
    answer = MetadataResponse(brokers=[MetadataResponseBroker(1, "a", 2)] * (primitives.ELEMENTS_MAX + 1))
    assert len(decode(MetadataResponse, 12, encode(answer, 12)).brokers) == primitives.ELEMENTS_MAX + 1


def test_decode_begins_at_the_given_position() -> None:
    body = encode(HeartbeatRequest(group_id="g"), 4)
    assert decode(HeartbeatRequest, 4, memoryview(b"header" + body), 6).group_id == "g"


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3))
def test_varints_decode_to_what_was_encoded(value: int, behind: bytes) -> None:
    written = primitives.varint(value)
    assert primitives.read_varint(memoryview(written + behind), 0) == (value, len(written))


@given(st.binary(min_size=16, max_size=16))
def test_ids_have_kafkas_text_form(raw: bytes) -> None:
    assert primitives.id_text(raw) == encode_uuid(UUID(bytes=raw))
    assert primitives.id_raw(primitives.id_text(raw)) == raw


def run_steps(steps: Generator[None, None, T]) -> tuple[T, int]:
    """Returns the result of a generator, and the number of its steps."""
    count = 1
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value, count
        count += 1


@pytest.mark.parametrize("name", TABLES | OURS)
def test_pieces_of_a_message_are_the_whole_message(name: str) -> None:
    table = (TABLES | OURS)[name]
    version = versions(table)[-1]
    message = Drawn(1).message(table, version)
    written = encode(message, version)
    assert run_steps(encode_in_pieces(message, version))[0] == written
    assert run_steps(decode_in_pieces(table, version, written))[0] == decode(table, version, written)


def test_large_message_is_encoded_and_decoded_in_pieces() -> None:
    count = 3 * primitives.PIECE_ELEMENTS + 1
    topics = [MetadataResponseTopic(0, f"t{number}", ZERO_ID) for number in range(count)]
    answer = MetadataResponse(topics=topics)
    assert has_pieces(answer) and not has_pieces(MetadataResponse(topics=topics[: primitives.PIECE_ELEMENTS]))
    written, steps = run_steps(encode_in_pieces(answer, 12))
    assert (written, steps) == (encode(answer, 12), 4)
    names = DeleteGroupsRequest([f"g{number}" for number in range(count)])
    assert run_steps(decode_in_pieces(DeleteGroupsRequest, 2, encode(names, 2))) == (names, 4)


def test_elements_of_inner_arrays_count_as_those_of_a_message() -> None:
    partitions = [MetadataResponsePartition(0, number) for number in range(primitives.PIECE_ELEMENTS)]
    assert has_pieces(MetadataResponse(topics=[MetadataResponseTopic(0, "t", ZERO_ID, partitions=partitions)]))
    assert not has_pieces(MetadataResponse(topics=[MetadataResponseTopic(0, "t", ZERO_ID, partitions=partitions[1:])]))


def test_message_that_is_malformed_is_refused_in_pieces_too() -> None:
    names = DeleteGroupsRequest([f"g{number}" for number in range(3 * primitives.PIECE_ELEMENTS)])
    with pytest.raises(Malformed):
        run_steps(decode_in_pieces(DeleteGroupsRequest, 2, encode(names, 2)[:-2]))
    names.groups_names[-1] = None  # type: ignore[call-overload]
    with pytest.raises(Malformed):
        run_steps(encode_in_pieces(names, 2))
