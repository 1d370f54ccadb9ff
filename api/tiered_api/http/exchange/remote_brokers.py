"""Requests to other brokers, so that every broker serves every partition and every group. They are Kafka's own
requests, at fixed versions.

Requests name topics by id and name the leader epoch (KIP-320). So a broker that no longer leads the partition, or that
has another topic of that name, refuses them. No request is repeated here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from tiered.broker.broker import Broker
from tiered.broker.encryption import inter_broker_net
from tiered.config.listeners import WILDCARDS, parse_host_port
from tiered.errors import Code, Refused, Unavailable
from tiered.hot.validation import LogAppendInfo
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.parts.topics import TopicImage
from tiered.replication.read_result import ReadResult
from tiered.security.principal import ANONYMOUS, BROKER, Caller, Principal
from tiered_api.http.exchange.errors import HttpError, OverQuota
from tiered_api.kafka.client.client import code_from_number
from tiered_api.kafka.client.error_sentences import explain_error
from tiered_api.kafka.client.leader_routing import STALE_LEADER_CODES
from tiered_api.kafka.client.peers import KafkaPeers
from tiered_api.kafka.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tiered_api.kafka.protocol.schema import Message

REQUEST_SECONDS = 5.0
"""Time that another broker has to reply, beyond the wait that the request allows."""
COLD_READ_MS = 9_000
"""Longest wait of a read for the bucket at the other broker."""
LONG_POLLS_MAX = 512
"""Most long polls at one broker."""
PRODUCE, FETCH, LIST_OFFSETS = 13, 16, 10
ACKS_ALL = -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1

A = TypeVar("A", bound=Message)


class LeaderNotFound(Refused):
    """No broker handled the request: the leader was not found, or does not lead any more. The request may be
    repeated."""


class Leader(NamedTuple):
    """The leader of a partition: node id, leader epoch and HOST:PORT."""

    node_id: int
    epoch: int
    address: str


class OffsetQuery(NamedTuple):
    """A look-up of one offset: the topic id and the leader epoch that are meant, and the timestamp or its name."""

    topic_id: TopicId
    leader_epoch: int
    timestamp: int


class RemoteBrokers:
    """The connections of one broker's HTTP server to other brokers. Long polls have connections of their own, so that
    they do not delay short requests.

    The other broker judges a request as that of the `caller` that is given, and charges it. Without one it is a request
    of this broker. A read raises `OverQuota` if the caller is over a quota there.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._own = Caller(Principal(BROKER, str(broker.settings.node_id)), "")
        net = inter_broker_net(broker.world.net, broker.startup_settings, lambda: broker.tls)
        login = broker.settings.inter_broker_login()
        self._short_requests = KafkaPeers(net, client_id="http", login_node_id=login, pool_bytes=0)
        self._long_polls = KafkaPeers(
            net, client_id="http", login_node_id=login, in_flight_max=LONG_POLLS_MAX, pool_bytes=0
        )

    async def close(self) -> None:
        """Ends all connections."""
        await self._short_requests.close()
        await self._long_polls.close()

    # -- leader -------------------------------------------------------------------------------------------------------

    def topic(self, tp: TopicPartition, topic_id: TopicId) -> TopicImage:
        """Returns a topic by its id. Raises `Refused` (UNKNOWN_TOPIC_OR_PARTITION) if it was deleted."""
        topic = self._broker.image.topics_by_id.get(topic_id)
        if topic is None or tp.partition >= len(topic.partitions):
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"{tp} does not exist any more")
        return topic

    def leader(self, tp: TopicPartition, topic_id: TopicId) -> Leader:
        """Returns the leader by this broker's metadata. Raises `LeaderNotFound` if no broker leads the partition
        now."""
        partition = self.topic(tp, topic_id).partitions[tp.partition]
        if partition.leader < 0:
            raise LeaderNotFound(Code.LEADER_NOT_AVAILABLE, f"no broker leads {tp} now")
        if partition.leader == self._broker.settings.node_id:
            unopened = self._broker.hosted_replicas.unopened_leaders.get(tp)
            if unopened is not None:
                raise Refused(Code.KAFKA_STORAGE_ERROR, f"{tp} is not served: {unopened[1]}")
            self._broker.hosted_replicas.openings.prefer(tp)
            raise LeaderNotFound(Code.NOT_LEADER_OR_FOLLOWER, f"this broker is about to lead {tp}: retry")
        return Leader(partition.leader, partition.leader_epoch, self._broker.view.address_of(partition.leader))

    def redirect_error(self, target: str, node_id: int, reason: str) -> HttpError:
        """Returns a 307 to the same `target` on another broker, with the reason."""
        broker = self._broker.image.brokers.get(node_id)
        place = parse_host_port(broker.http) if broker is not None and broker.live else None
        if broker is None or place is None:
            raise Refused(Code.LEADER_NOT_AVAILABLE, f"broker {node_id} {reason}, and cannot be reached")
        where = broker.advertised_http or f"http://{broker.http}"
        if not broker.advertised_http and place[0] in WILDCARDS:  # Kafka clients know this broker by a name
            advertised = next((found for text in broker.listeners.values() if (found := parse_host_port(text))), place)
            where = (
                f"http://[{advertised[0]}]:{place[1]}" if ":" in advertised[0] else f"http://{advertised[0]}:{place[1]}"
            )
        if self._broker.settings.http_scheme == "https" and not where.startswith("https:"):
            # A client may send its login there, in plain text.
            raise Refused(Code.LEADER_NOT_AVAILABLE, f"broker {node_id} {reason}, and has no https")
        return HttpError(307, f"broker {node_id} {reason}", (("Location", f"{where}{target}"),))

    # -- partitions ---------------------------------------------------------------------------------------------------

    async def produce(
        self,
        leader: Leader,
        tp: TopicPartition,
        topic_id: TopicId,
        data: bytes | bytearray,
        timeout_ms: int,
        caller: Caller | None = None,
    ) -> LogAppendInfo:
        """Produces one batch with acks=all. Raises `LeaderNotFound` if it was surely not written. Raises every other
        `Refused` of the leader; REQUEST_TIMED_OUT also if the outcome is unknown."""
        rows = [PartitionProduceData(tp.partition, data)]
        request = ProduceRequest(None, ACKS_ALL, timeout_ms, [TopicProduceData(topic_id=topic_id, partition_data=rows)])
        seconds = timeout_ms / 1000 + REQUEST_SECONDS
        try:
            got = await self._send(self._short_requests, leader, request, ProduceResponse, seconds, PRODUCE, caller)
            [[part]] = [each.partition_responses for each in got.responses]
        except Unavailable as fault:
            why = f"broker {leader.node_id} did not confirm records for {tp}, they may yet be there: {fault}"
            raise Refused(Code.REQUEST_TIMED_OUT, why) from None
        code = code_from_number(part.error_code)
        if code is Code.NONE:
            count = int.from_bytes(data[57:61], "big")
            return LogAppendInfo(part.base_offset, part.base_offset + count - 1, part.log_append_time_ms, False)
        kind = LeaderNotFound if code in STALE_LEADER_CODES and part.base_offset < 0 else Refused
        why = part.error_message or f"broker {leader.node_id} refuses records for {tp}: {explain_error(code.number)}"
        raise kind(code, why)

    async def append_at(
        self, leader: Leader, tp: TopicPartition, topic_id: TopicId, data: bytes, end_offset: int, timeout_ms: int
    ) -> None:
        """Appends one batch in the name of this broker if the log of the partition ends at `end_offset`. Returns once
        it is committed. Raises `Refused` with OFFSET_OUT_OF_RANGE if the log ends elsewhere, and `Unavailable` if the
        outcome is unknown."""
        self._short_requests.credential = self._broker.credential
        seconds = timeout_ms / 1000
        await self._short_requests.append_at(
            leader.address, topic_id, tp.partition, leader.epoch, end_offset, data, seconds
        )

    async def fetch(
        self,
        leader: Leader,
        tp: TopicPartition,
        topic_id: TopicId,
        offset: int,
        max_bytes: int,
        wait_ms: int,
        read_committed: bool = False,
        caller: Caller | None = None,
    ) -> ReadResult:
        """Fetches whole batches from the one that has `offset`; with `wait_ms`, waits for the first batch."""
        pool = self._long_polls if wait_ms else self._short_requests
        partition = FetchPartition(tp.partition, leader.epoch, offset, partition_max_bytes=max_bytes)
        topics = [FetchTopic("", topic_id, [partition])]
        part = (await self._fetch(pool, leader, topics, max_bytes, wait_ms, read_committed, caller))[0]
        code = code_from_number(part.error_code)
        if code is not Code.NONE:
            raise _leader_refusal(leader, tp, code)
        # The frame belongs to this caller alone; a copy frees it.
        return ReadResult(
            bytes(part.records or b""),
            part.high_watermark,
            part.log_start_offset,
            part.last_stable_offset,
            tuple((aborted.producer_id, aborted.first_offset) for aborted in part.aborted_transactions or ()),
        )

    async def wait_for_more(
        self,
        leader: Leader,
        ends: Sequence[tuple[TopicPartition, TopicId, int]],
        wait_ms: int,
        read_committed: bool = False,
        caller: Caller | None = None,
    ) -> bool:
        """Returns True if one of these partitions of one leader has new records at its offset in time, or an error to
        report."""
        topics: dict[TopicId, FetchTopic] = {}
        for tp, topic_id, offset in ends:
            topic = topics.setdefault(topic_id, FetchTopic("", topic_id))
            topic.partitions.append(FetchPartition(tp.partition, -1, offset, partition_max_bytes=1))
        parts = await self._fetch(self._long_polls, leader, list(topics.values()), 1, wait_ms, read_committed, caller)
        return any(part.error_code or part.records for part in parts)

    async def _fetch(
        self,
        pool: KafkaPeers,
        leader: Leader,
        topics: list[FetchTopic],
        max_bytes: int,
        wait_ms: int,
        read_committed: bool,
        caller: Caller | None,
    ) -> list[PartitionData]:
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=READ_COMMITTED if read_committed else READ_UNCOMMITTED,
            topics=topics,
        )
        got = await self._send(pool, leader, request, FetchResponse, wait_ms / 1000 + REQUEST_SECONDS, FETCH, caller)
        if got.error_code == Code.THROTTLING_QUOTA_EXCEEDED.number and got.throttle_time_ms:
            raise OverQuota(got.throttle_time_ms)
        if got.error_code:
            raise Refused(code_from_number(got.error_code), f"broker {leader.node_id} refuses to serve reads")
        return [part for topic in got.responses for part in topic.partitions]

    async def list_offsets(
        self,
        leader: Leader,
        wanted: Mapping[TopicPartition, OffsetQuery],
        read_committed: bool = False,
        caller: Caller | None = None,
    ) -> dict[TopicPartition, int | Refused]:
        """Returns the offsets of partitions of one leader; -1 if no record is as late.

        The result of a partition is UNKNOWN_TOPIC_ID if the leader knows another topic of its name.
        """
        topics: dict[TopicId, ListOffsetsTopic] = {}
        for tp, (topic_id, epoch, timestamp) in wanted.items():
            topic = topics.setdefault(topic_id, ListOffsetsTopic(tp.topic, topic_id=topic_id))
            topic.partitions.append(ListOffsetsPartition(tp.partition, epoch, timestamp))
        isolation = READ_COMMITTED if read_committed else READ_UNCOMMITTED
        request = ListOffsetsRequest(-1, isolation, list(topics.values()), int(REQUEST_SECONDS * 900))
        got = await self._send(
            self._short_requests, leader, request, ListOffsetsResponse, REQUEST_SECONDS, LIST_OFFSETS, caller
        )
        if got.throttle_time_ms and not got.topics:
            raise OverQuota(got.throttle_time_ms)
        found: dict[TopicPartition, int | Refused] = {}
        for each in got.topics:
            for part in each.partitions:
                tp, code = TopicPartition(each.name, part.partition_index), code_from_number(part.error_code)
                found[tp] = part.offset if code is Code.NONE else _leader_refusal(leader, tp, code)
        return found

    # -- brokers ------------------------------------------------------------------------------------------------------

    async def send_request(
        self,
        node_id: int,
        request: Message,
        response_type: type[A],
        version: int,
        wait_seconds: float = 0,
        caller: Caller | None = None,
    ) -> A:
        """Sends a request to a broker, this one included, and returns the reply. `wait_seconds` is how long the broker
        may wait before it replies. Raises `Unavailable` and `LeaderNotFound`."""
        leader = Leader(node_id, -1, self._broker.view.address_of(node_id))
        seconds = wait_seconds + REQUEST_SECONDS
        return await self._send(self._short_requests, leader, request, response_type, seconds, version, caller)

    async def _send(
        self,
        pool: KafkaPeers,
        leader: Leader,
        request: Message,
        response_type: type[A],
        seconds: float,
        version: int,
        caller: Caller | None,
    ) -> A:
        pool.credential = self._broker.credential  # known once the broker has read its store
        judged = self._find_judged(caller)
        try:
            return await pool.send(leader.address, request, response_type, seconds, version, caller=judged)
        except Unavailable as fault:
            if not fault.refused and leader.address:
                raise
            raise LeaderNotFound(
                Code.LEADER_NOT_AVAILABLE, f"broker {leader.node_id} cannot be reached: {fault}"
            ) from None

    def _find_judged(self, caller: Caller | None) -> Caller:
        """Returns the caller that the request names. An anonymous one has a client id only if quotas may ask for it:
        each change of the caller costs one request more. The first one also proves that a broker has opened the
        connection."""
        named = caller or self._own
        quotas = self._broker.client_quotas
        if named.principal != ANONYMOUS or quotas.table.has_client_quotas:
            return named
        return named._replace(client_id="")


def _leader_refusal(leader: Leader, tp: TopicPartition, code: Code) -> Refused:
    kind = LeaderNotFound if code in STALE_LEADER_CODES else Refused
    return kind(code, f"broker {leader.node_id} cannot serve {tp}: {explain_error(code.number)}")
