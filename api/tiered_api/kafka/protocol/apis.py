"""The supported APIs and their versions: the source of ApiVersions responses and of the lookup for every request.

The versions are those of Kafka 4.2. A request with an unsupported key or version ends its connection, as in Kafka.
ApiVersions is the exception (KIP-511): it always gets a response, so that a client of any age learns the versions. The
message tables are imported at first use, so that starting a broker imports none.

Brokers use Kafka's frames among themselves too, with API keys that Kafka does not have; so does our command line.
ApiVersions does not list these keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from tiered_api.kafka.protocol.schema import Message

API_VERSIONS = 18
NEVER_FLEXIBLE = 32767
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True)
class Api:
    """One API. ApiVersions lists the versions `low` to `high`; the broker refuses those below `served_from`.

    From version `flexible` on, messages have tagged fields and varint lengths (KIP-482). A request may have up to
    `max_request_bytes`, because small elements become Python objects many times their size. Produce has its own limit.
    """

    key: int
    name: str
    low: int
    high: int
    flexible: int
    served_from: int = 0
    max_request_bytes: int = 2 << 20
    before_login: bool = False
    """True if a connection may send it before the login."""
    is_long_poll: bool = False
    """True if a response waits for an event. A stopping broker ends such connections at once."""

    @property
    def served_versions(self) -> range:
        """Returns the versions that the broker serves."""
        return range(max(self.low, self.served_from), self.high + 1)

    def is_flexible(self, version: int) -> bool:
        """True if the version has tagged fields."""
        return version >= self.flexible

    @property
    def module_name(self) -> str:
        """Returns the name of the API's modules: its tables and its handler."""
        return _WORD.sub("_", self.name).lower()

    @cached_property
    def request_type(self) -> type[Message]:
        """Returns the table of the requests."""
        return self._table("Request")

    @cached_property
    def response_type(self) -> type[Message]:
        """Returns the table of the responses."""
        return self._table("Response")

    def _table(self, what: str) -> type[Message]:
        tables: Any = import_module(f"tiered_api.kafka.protocol.messages.{self.module_name}")
        table: type[Message] = getattr(tables, self.name + what)
        return table


_TABLE = (
    # The broker lists Produce 0-2 but refuses them: librdkafka before 2.4 would send some codecs uncompressed without
    # them (KAFKA-18659).
    Api(0, "Produce", 0, 13, 9, served_from=3),
    Api(1, "Fetch", 4, 18, 12),
    Api(2, "ListOffsets", 1, 11, 6),
    Api(3, "Metadata", 0, 13, 9),
    Api(8, "OffsetCommit", 2, 10, 8),
    Api(9, "OffsetFetch", 1, 10, 6),
    Api(10, "FindCoordinator", 0, 6, 3),
    Api(11, "JoinGroup", 0, 9, 6, max_request_bytes=1 << 20),
    Api(12, "Heartbeat", 0, 4, 4),
    Api(13, "LeaveGroup", 0, 5, 4),
    Api(14, "SyncGroup", 0, 5, 4),
    Api(15, "DescribeGroups", 0, 6, 5),
    Api(16, "ListGroups", 0, 5, 3),
    Api(17, "SaslHandshake", 0, 1, NEVER_FLEXIBLE, before_login=True),
    Api(API_VERSIONS, "ApiVersions", 0, 4, 3, before_login=True),
    Api(19, "CreateTopics", 2, 7, 5, max_request_bytes=1 << 20),
    Api(20, "DeleteTopics", 1, 6, 4),
    Api(21, "DeleteRecords", 0, 2, 2),
    Api(22, "InitProducerId", 0, 5, 2),
    Api(23, "OffsetForLeaderEpoch", 2, 4, 4),
    Api(24, "AddPartitionsToTxn", 0, 5, 3),
    Api(25, "AddOffsetsToTxn", 0, 4, 3),
    Api(26, "EndTxn", 0, 5, 3),
    Api(27, "WriteTxnMarkers", 1, 2, 1, max_request_bytes=160 << 10),
    Api(28, "TxnOffsetCommit", 0, 5, 3),
    Api(29, "DescribeAcls", 1, 3, 2),
    Api(30, "CreateAcls", 1, 3, 2),
    Api(31, "DeleteAcls", 1, 3, 2),
    Api(32, "DescribeConfigs", 1, 4, 4),
    Api(33, "AlterConfigs", 0, 2, 2),
    Api(35, "DescribeLogDirs", 1, 4, 2),
    Api(36, "SaslAuthenticate", 0, 2, 2, before_login=True),
    Api(37, "CreatePartitions", 0, 3, 2),
    Api(38, "CreateDelegationToken", 1, 3, 2, max_request_bytes=64 << 10),
    Api(39, "RenewDelegationToken", 1, 2, 2, max_request_bytes=64 << 10),
    Api(40, "ExpireDelegationToken", 1, 2, 2, max_request_bytes=64 << 10),
    Api(41, "DescribeDelegationToken", 1, 3, 2, max_request_bytes=64 << 10),
    Api(42, "DeleteGroups", 0, 2, 2),
    Api(43, "ElectLeaders", 0, 2, 2),
    Api(44, "IncrementalAlterConfigs", 0, 1, 1),
    Api(45, "AlterPartitionReassignments", 0, 1, 0),
    Api(46, "ListPartitionReassignments", 0, 0, 0),
    Api(47, "OffsetDelete", 0, 0, NEVER_FLEXIBLE),
    Api(48, "DescribeClientQuotas", 0, 1, 1, max_request_bytes=64 << 10),
    Api(49, "AlterClientQuotas", 0, 1, 1, max_request_bytes=256 << 10),
    Api(50, "DescribeUserScramCredentials", 0, 0, 0),
    Api(51, "AlterUserScramCredentials", 0, 0, 0, max_request_bytes=64 << 10),
    Api(55, "DescribeQuorum", 0, 2, 0),
    Api(57, "UpdateFeatures", 0, 2, 0),
    Api(60, "DescribeCluster", 0, 2, 0),
    Api(61, "DescribeProducers", 0, 0, 0),
    Api(64, "UnregisterBroker", 0, 0, 0),
    Api(65, "DescribeTransactions", 0, 0, 0),
    Api(66, "ListTransactions", 0, 2, 0),
    Api(68, "ConsumerGroupHeartbeat", 0, 1, 0),
    Api(69, "ConsumerGroupDescribe", 0, 1, 0),
    Api(74, "ListConfigResources", 0, 1, 0),
    Api(75, "DescribeTopicPartitions", 0, 0, 0),
    Api(83, "InitializeShareGroupState", 0, 0, 0, max_request_bytes=1 << 20),
    Api(84, "ReadShareGroupState", 0, 0, 0, max_request_bytes=1 << 20),
    Api(85, "WriteShareGroupState", 0, 1, 0, max_request_bytes=1 << 20),
    Api(86, "DeleteShareGroupState", 0, 0, 0, max_request_bytes=1 << 20),
    Api(87, "ReadShareGroupStateSummary", 0, 1, 0, max_request_bytes=1 << 20),
)

_INTER_BROKER_TABLE = (
    Api(20001, "TieredFollow", 0, 0, 0, is_long_poll=True),
    Api(20002, "TieredSubmit", 0, 0, 0, max_request_bytes=16 << 20),
    Api(20003, "TieredHeard", 0, 0, 0),
    Api(20006, "TieredActFor", 0, 0, 0, max_request_bytes=16 << 10),
    Api(20009, "TieredQuotaUse", 0, 0, 0, max_request_bytes=2 << 20),
    Api(20010, "TieredAppendAt", 0, 0, 0, max_request_bytes=16 << 20),
)

_OPERATOR_TABLE = (
    Api(20004, "TieredAcknowledge", 0, 0, 0),
    Api(20005, "TieredCompact", 0, 0, 0),
    Api(20007, "TieredRotateSecret", 0, 0, 0),
    Api(20008, "TieredMetrics", 0, 0, 0),
)

APIS: dict[int, Api] = {api.key: api for api in _TABLE}
"""Kafka's APIs."""
INTER_BROKER_APIS: dict[int, Api] = {api.key: api for api in _INTER_BROKER_TABLE}
"""Our APIs between brokers."""
OPERATOR_APIS: dict[int, Api] = {api.key: api for api in _OPERATOR_TABLE}
"""Our APIs for our own command line."""
ALL_APIS: dict[int, Api] = APIS | INTER_BROKER_APIS | OPERATOR_APIS
_SERVED = {(api.key, version): api for api in ALL_APIS.values() for version in api.served_versions}


def find_api(key: int, version: int) -> Api | None:
    """Returns the API of a request, or None if its key or version is not served."""
    return _SERVED.get((key, version))


def advertised_versions() -> list[tuple[int, int, int]]:
    """Returns the entries of ApiVersions: key, lowest and highest version."""
    return [(api.key, api.low, api.high) for api in _TABLE]
