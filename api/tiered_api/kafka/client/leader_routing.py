"""Requests about partitions and groups, sent to the leader or coordinator, and sent again if it has moved.

One rule for all of them: if the broker cannot be connected, the request was not sent, and the broker is looked up again
for the client's retry time. If the reply is lost, the caller decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import KafkaClient, NotConnected, code_from_number, to_refused
from tiered_api.kafka.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tiered_api.kafka.protocol.schema import Message

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
"""Timestamps with a special meaning in ListOffsets."""
STALE_LEADER_CODES = {
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.LEADER_NOT_AVAILABLE,
    Code.FENCED_LEADER_EPOCH,
    Code.UNKNOWN_LEADER_EPOCH,
    Code.REPLICA_NOT_AVAILABLE,
    Code.KAFKA_STORAGE_ERROR,
}
"""The partition is led by another broker, or has no leader at present."""
GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators in FindCoordinator."""
STALE_COORDINATOR_CODES = {Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_LOAD_IN_PROGRESS}

W = TypeVar("W")
V = TypeVar("V")
A = TypeVar("A", bound=Message)

PartitionOutcomes = dict[TopicPartition, V | Refused]
"""By partition: the value, or the refusal."""


async def send_to_leaders(
    client: KafkaClient,
    requested: Mapping[TopicPartition, W],
    make_request: Callable[[Mapping[TopicPartition, W]], Message],
    response_type: type[A],
    read_response: Callable[[A], Iterable[tuple[TopicPartition, int, V]]],
) -> PartitionOutcomes[V]:
    """Sends one request to each leader for its partitions. Partitions with a wrong leader are retried for the client's
    retry time. Each partition has its own outcome. Raises `Unavailable` if a reply is lost, or if no leader could be
    connected for the whole time."""
    out: PartitionOutcomes[V] = {}
    left = dict(requested)
    deadline = client.new_deadline()
    unsent: NotConnected | None = None
    for pause in client.backoffs():
        shares, leaderless = await client.group_by_leader(left)
        out.update(leaderless)
        for node, share in shares.items():
            try:
                request = make_request({tp: left[tp] for tp in share})
                got = await client.send(request, response_type, node_id=node, connects_once=True)
            except NotConnected as fault:
                unsent = fault
                continue
            except Unavailable:
                client.forget_leaders(share)  # it may have stopped for good
                raise
            for tp, number, value in read_response(got):
                out[tp] = to_refused(number, str(tp)) if number else value
        left = {tp: want for tp, want in left.items() if tp not in out or _must_retry(out[tp])}
        if not left or client.has_passed(deadline):
            break
        client.forget_leaders(left)
        await pause()
    if unsent is not None and not left.keys() <= out.keys():
        client.forget_leaders(left)
        raise unsent
    return out


def _must_retry(outcome: object) -> bool:
    return isinstance(outcome, Refused) and (
        outcome.code in STALE_LEADER_CODES or outcome.code is Code.OFFSET_NOT_AVAILABLE
    )


async def send_to_coordinator(
    client: KafkaClient,
    name: str,
    request: Message,
    response_type: type[A],
    read_error_code: Callable[[A], int],
    timeout: float | None = None,
    kind: int = GROUP,
    version_max: int | None = None,
    deadline: int | None = None,
) -> A:
    """Sends a request to the coordinator of a group, or of a transactional id, and returns the reply. While there is
    none, or it loads, or it cannot be connected, it is looked up again until the deadline: by default for the client's
    retry time. Then the last reply is returned, or the last fault raised."""
    deadline = client.new_deadline() if deadline is None else deadline
    for pause in client.backoffs():
        node = await find_coordinator(client, name, deadline, kind)
        try:
            got = await client.send(
                request, response_type, node_id=node, timeout=timeout, version_max=version_max, connects_once=True
            )
        except Unavailable as fault:
            client.coordinators.pop((kind, name), None)
            if not isinstance(fault, NotConnected) or client.has_passed(deadline):
                raise
        else:
            if code_from_number(read_error_code(got)) not in STALE_COORDINATOR_CODES or client.has_passed(deadline):
                return got
            client.coordinators.pop((kind, name), None)
        await pause()
    raise AssertionError("pauses never end")


async def find_coordinator(client: KafkaClient, name: str, deadline: int | None = None, kind: int = GROUP) -> int:
    """Returns the coordinator of a group, or of a transactional id. Raises `Refused` if the cluster has none for it."""
    if (kind, name) in client.coordinators:
        return client.coordinators[kind, name]
    deadline = client.new_deadline() if deadline is None else deadline
    for pause in client.backoffs():
        request = FindCoordinatorRequest(key=name, key_type=kind, coordinator_keys=[name])
        got = await client.send(request, FindCoordinatorResponse)
        found = got.coordinators[0] if got.coordinators else got
        if not found.error_code:
            client.add_broker(found.node_id, found.host, found.port)
            client.coordinators[kind, name] = found.node_id
            return found.node_id
        if code_from_number(found.error_code) not in STALE_COORDINATOR_CODES or client.has_passed(deadline):
            what = "group" if kind == GROUP else "transactional id"
            raise to_refused(found.error_code, f"no coordinator for {what} {name}", found.error_message)
        await pause()
    raise AssertionError("pauses never end")


async def list_offsets(
    client: KafkaClient, timestamps: Mapping[TopicPartition, int], *, read_committed: bool = False
) -> PartitionOutcomes[tuple[int, int]]:
    """Returns (offset, timestamp) by each partition's timestamp in ms, or one of the special ones above; offset -1 if
    no record is as late."""

    def make(share: Mapping[TopicPartition, int]) -> Message:
        topics: dict[str, ListOffsetsTopic] = {}
        for (topic, partition), timestamp in share.items():
            each = topics.setdefault(topic, ListOffsetsTopic(name=topic))
            each.partitions.append(ListOffsetsPartition(partition_index=partition, timestamp=timestamp))
        isolation = 1 if read_committed else 0
        return ListOffsetsRequest(
            replica_id=-1, isolation_level=isolation, topics=list(topics.values()), timeout_ms=client.timeout_ms
        )

    def read(got: ListOffsetsResponse) -> Iterable[tuple[TopicPartition, int, tuple[int, int]]]:
        for topic in got.topics:
            for each in topic.partitions:
                yield TopicPartition(topic.name, each.partition_index), each.error_code, (each.offset, each.timestamp)

    return await send_to_leaders(client, timestamps, make, ListOffsetsResponse, read)


async def list_offsets_at(
    client: KafkaClient, partitions: Iterable[TopicPartition], timestamp: int, *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    """Returns the offset of each partition at one timestamp. Raises `Refused` if one of them has none."""
    got = await list_offsets(client, dict.fromkeys(partitions, timestamp), read_committed=read_committed)
    return {tp: value[0] for tp, value in require_all(got).items()}


def cap_last_stable(last_stable: int | None, high_watermark: int | None) -> int | None:
    """Returns a last stable offset that is not above the high watermark, which another request looked up earlier."""
    return last_stable if last_stable is None or high_watermark is None else min(last_stable, high_watermark)


def require_all(outcomes: PartitionOutcomes[V]) -> dict[TopicPartition, V]:
    """Returns all values. Raises the first refusal, if a partition has one."""
    out = {}
    for tp, value in outcomes.items():
        if isinstance(value, Refused):
            raise value
        out[tp] = value
    return out
