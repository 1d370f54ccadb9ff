"""Tests of recorded frames of other clients and of Kafka 4.2.0: each decodes, and encodes to the same bytes."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.unit.kafka.golden_frames import FRAMES
from tiered_api.kafka.protocol import apis, codec, headers
from tiered_api.kafka.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsResponse
from tiered_api.kafka.protocol.messages.fetch import FetchResponse
from tiered_api.kafka.protocol.messages.join_group import JoinGroupResponse
from tiered_api.kafka.protocol.messages.metadata import MetadataResponse
from tiered_api.kafka.protocol.messages.produce import ProduceRequest
from tiered_api.kafka.protocol.schema import Message


class Exchange(NamedTuple):
    """A request and its reply."""

    client: str
    header: headers.RequestHeader
    api: apis.Api
    request: bytes
    response: bytes

    @property
    def decode_request(self) -> Message:
        """The request that the client sent."""
        return codec.decode(self.api.request_type, self.header.version, memoryview(self.request), self.header.position)

    @property
    def decode_response(self) -> Message:
        """The response that Kafka sent."""
        _, position = headers.decode_response_header(self.api, self.header.version, self.response)
        return codec.decode(self.api.response_type, self.header.version, memoryview(self.response), position)


def exchange(client: str, request: str, response: str) -> Exchange:
    header = headers.decode_request_header(bytes.fromhex(request))
    assert header.api is not None
    return Exchange(client, header, header.api, bytes.fromhex(request), bytes.fromhex(response))


EXCHANGES = {f"{each.api.name} {each.header.version}": each for each in (exchange(*frames) for frames in FRAMES)}


@pytest.mark.parametrize("name", EXCHANGES)
def test_request_of_a_client_encodes_to_the_same_bytes(name: str) -> None:
    each = EXCHANGES[name]
    header = headers.encode_request_header(
        each.api, each.header.version, each.header.correlation_id, each.header.client_id
    )
    assert header + codec.encode(each.decode_request, each.header.version) == each.request


@pytest.mark.parametrize("name", EXCHANGES)
def test_response_of_kafka_encodes_to_the_same_bytes(name: str) -> None:
    each = EXCHANGES[name]
    header = headers.encode_response_header(each.api.key, each.header.version, each.header.correlation_id)
    assert header + codec.encode(each.decode_response, each.header.version) == each.response


def test_recordings_have_nearly_every_api() -> None:
    """No recorded client sends the other APIs. Hand-written requests and other brokers use them."""
    unseen = {api.name for api in apis.APIS.values()} - {each.api.name for each in EXCHANGES.values()}
    assert unseen == {
        "AddOffsetsToTxn",
        "AddPartitionsToTxn",
        "AlterConfigs",
        "AlterPartitionReassignments",
        "ConsumerGroupDescribe",
        "ConsumerGroupHeartbeat",
        "CreateAcls",
        "CreateDelegationToken",
        "DeleteAcls",
        "DeleteShareGroupState",
        "DescribeAcls",
        "AlterUserScramCredentials",
        "DescribeDelegationToken",
        "DescribeProducers",
        "DescribeQuorum",
        "DescribeTransactions",
        "ElectLeaders",
        "EndTxn",
        "ExpireDelegationToken",
        "InitializeShareGroupState",
        "ListConfigResources",
        "ListTransactions",
        "OffsetForLeaderEpoch",
        "ReadShareGroupState",
        "ReadShareGroupStateSummary",
        "RenewDelegationToken",
        "SaslAuthenticate",
        "SaslHandshake",
        "TxnOffsetCommit",
        "UnregisterBroker",
        "UpdateFeatures",
        "WriteShareGroupState",
        "WriteTxnMarkers",
    }


def test_kafka_offers_the_same_versions() -> None:
    theirs = EXCHANGES["ApiVersions 4"].decode_response
    ranges = {each.api_key: (each.min_version, each.max_version) for each in theirs.api_keys}  # type: ignore[attr-defined]
    assert {key: ranges[key] for key in apis.APIS} == {api.key: (api.low, api.high) for api in apis.APIS.values()}


def test_request_of_a_java_producer_decodes() -> None:
    decode_request = EXCHANGES["Produce 13"].decode_request
    assert isinstance(decode_request, ProduceRequest)
    assert (decode_request.transactional_id, decode_request.acks, decode_request.timeout_ms) == (None, -1, 1500)
    (topic,) = decode_request.topic_data
    (partition,) = topic.partition_data
    assert isinstance(partition.records, memoryview)
    assert b"one" in bytes(partition.records)


def test_decoded_records_are_views_of_the_frame() -> None:
    each = EXCHANGES["Fetch 18"]
    frame = bytearray(each.response)
    _, position = headers.decode_response_header(each.api, 18, each.response)
    decode_response = codec.decode(FetchResponse, 18, memoryview(frame), position)
    records = decode_response.responses[0].partitions[0].records
    at = bytes(frame).index(bytes(records))
    frame[at] ^= 0xFF
    assert records[0] == frame[at]


def test_response_of_kafka_decodes() -> None:
    metadata = EXCHANGES["Metadata 13"].decode_response
    assert isinstance(metadata, MetadataResponse)
    assert metadata.cluster_id == "dGllcmVkLXBlZXItMDAwMA"
    topics = {topic.name: topic.topic_id for topic in metadata.topics}
    assert topics.keys() == {"orders", "__consumer_offsets"}
    described = EXCHANGES["DescribeTopicPartitions 0"].decode_response
    assert isinstance(described, DescribeTopicPartitionsResponse)
    assert described.next_cursor is None
    assert [(topic.name, topic.topic_id) for topic in described.topics] == [("orders", topics["orders"])]
    joined = EXCHANGES["JoinGroup 9"].decode_response
    assert isinstance(joined, JoinGroupResponse)
    assert (joined.error_code, joined.protocol_name) == (79, None)
    assert joined.member_id.startswith("console-consumer-")
