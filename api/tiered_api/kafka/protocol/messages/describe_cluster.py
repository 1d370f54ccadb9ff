"""DescribeCluster (API key 60)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import OUR_TAGS, Kind, Message, array, boolean, integer, message, string


@message(60, "0-2", "0+")
@dataclass(slots=True)
class DescribeClusterRequest(Message):
    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = integer(Kind.INT8, "1+", default=1)
    include_fenced_brokers: bool = boolean("2+")
    include_health: bool = boolean("0+", tag=OUR_TAGS, tagged="0+")


@dataclass(slots=True)
class DescribeClusterBroker:
    broker_id: int = integer(Kind.INT32)
    host: str = string()
    port: int = integer(Kind.INT32)
    rack: str | None = string(nullable="0+", default=None)
    is_fenced: bool = boolean("2+")
    is_stopped: bool = boolean("2+", tag=OUR_TAGS, tagged="2+")


@dataclass(slots=True)
class PossibleLoss:
    topic: str = string()
    partition: int = integer(Kind.INT32)
    leader_epoch: int = integer(Kind.INT32)
    from_offset: int = integer(Kind.INT64)
    at_ms: int = integer(Kind.INT64)


@message(60, "0-2", "0+")
@dataclass(slots=True)
class DescribeClusterResponse(Message):
    throttle_time_ms: int = integer(Kind.INT32)
    error_code: int = integer(Kind.INT16)
    error_message: str | None = string(nullable="0+", default=None)
    endpoint_type: int = integer(Kind.INT8, "1+", default=1)
    cluster_id: str = string()
    controller_id: int = integer(Kind.INT32, default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = integer(Kind.INT32, default=-2147483648)
    problems: list[str] | None = array(Kind.STRING, "0+", nullable="0+", default=None, tag=OUR_TAGS, tagged="0+")
    store_away_since_ms: int = integer(Kind.INT64, "0+", default=-1, tag=OUR_TAGS + 1, tagged="0+")
    losses: list[PossibleLoss] | None = array(
        PossibleLoss, "0+", nullable="0+", default=None, tag=OUR_TAGS + 2, tagged="0+"
    )
