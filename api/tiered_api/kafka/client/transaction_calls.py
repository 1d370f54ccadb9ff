"""Requests between brokers about transactions, in Kafka's frames: WriteTxnMarkers and AddPartitionsToTxn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tiered.errors import Code, Unavailable
from tiered.ids import TopicPartition
from tiered.peers import MarkerRequest, PartitionCodes, TransactionPartitions
from tiered_api.kafka.client.client import code_from_number
from tiered_api.kafka.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tiered_api.kafka.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

MARKERS_VERSION, ADD_PARTITIONS_VERSION = 2, 5


def make_markers_request(markers: Sequence[MarkerRequest], credential: bytes) -> WriteTxnMarkersRequest:
    """Returns the request with these markers, in their order."""
    return WriteTxnMarkersRequest(
        [
            WritableTxnMarker(
                each.producer_id, each.producer_epoch, each.commit,
                [WritableTxnMarkerTopic(name, numbers) for name, numbers in _by_topic(each.partitions).items()],
                each.coordinator_epoch, each.version,
            )
            for each in markers
        ],
        credential,
    )  # fmt: skip


def read_markers_response(response: WriteTxnMarkersResponse, count: int) -> list[PartitionCodes]:
    """Returns the codes of each marker. Raises `Unavailable` if the reply has another number of markers."""
    if len(response.markers) != count:
        raise Unavailable(f"reply has {len(response.markers)} markers instead of {count}")
    return [
        {
            TopicPartition(topic.name, each.partition_index): code_from_number(each.error_code)
            for topic in marker.topics
            for each in topic.partitions
        }
        for marker in response.markers
    ]


def make_add_partitions_request(
    transactions: Sequence[TransactionPartitions], credential: bytes
) -> AddPartitionsToTxnRequest:
    """Returns the request with these transactions."""
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                each.transactional_id, each.producer_id, each.producer_epoch, each.verify_only,
                [AddPartitionsToTxnTopic(name, numbers) for name, numbers in _by_topic(each.partitions).items()],
            )
            for each in transactions
        ],
        credential=credential,
    )  # fmt: skip


def read_add_partitions_response(response: AddPartitionsToTxnResponse, count: int) -> list[PartitionCodes]:
    """Returns the codes of each transaction. Raises `Unavailable` if the reply has another number of them."""
    if response.error_code == Code.NONE.number and len(response.results_by_transaction) != count:
        raise Unavailable(f"reply has {len(response.results_by_transaction)} transactions instead of {count}")
    return [
        {
            TopicPartition(topic.name, each.partition_index): code_from_number(each.partition_error_code)
            for topic in transaction.topic_results
            for each in topic.results_by_partition
        }
        for transaction in response.results_by_transaction
    ]


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in partitions:
        topics[topic].append(number)
    return topics
