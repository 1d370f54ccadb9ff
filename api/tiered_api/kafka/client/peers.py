"""How this broker asks others: `tiered.peers.Peers` in Kafka's frames.

Answers come in order on a connection, and one that is late holds up all behind it. So each connection has one request
at a time, and there are as many as are needed at once: a long poll delays nothing. Brokers of one cluster know the same
versions, so that nothing is negotiated. Nothing is sent twice by itself: only the caller knows what may be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TypeVar

from tiered.config.listeners import host_and_port
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicId
from tiered.peers import (
    Diverging,
    FetchedPart,
    FollowAnswer,
    FollowAsk,
    HeardAnswer,
    ReplicaFetch,
    SubmitAnswer,
)
from tiered.ports import Net
from tiered_api.kafka.client.client import code_of
from tiered_api.kafka.client.connection import Link
from tiered_api.kafka.client.response_buffers import KEPT_BYTES, FrameMemory
from tiered_api.kafka.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from tiered_api.kafka.protocol.messages.tiered_follow import TieredFollowRequest, TieredFollowResponse
from tiered_api.kafka.protocol.messages.tiered_heard import TieredHeardRequest, TieredHeardResponse
from tiered_api.kafka.protocol.messages.tiered_submit import TieredSubmitRequest, TieredSubmitResponse
from tiered_api.kafka.protocol.schema import Message

AT_ONCE = 64
"""Requests to one broker that are under way; more wait for their turn, within their time."""
IDLE_MAX = 4
"""Connections to one broker that lie ready."""
FETCH_VERSION = 17
CONNECT_SECONDS = 3.0
"""A way that was cut and is mended is taken again soon."""
REST_SECONDS = 10.0
"""Memory for copied records is let go when none came for so long."""
ANSWERS_FIRST = 0.9
"""Part of a caller's time that the other side is told of, so that its answer comes before the end."""

A = TypeVar("A", bound=Message)


class _Broker:
    """The connections to one address."""

    def __init__(self, at_once: int) -> None:
        self.idle: list[Link] = []
        self.turns = asyncio.Semaphore(at_once)
        self.asking = 0


class KafkaPeers:
    """Implements `Peers`. `cluster_id` and `credential` are said with every request among brokers once they are known;
    `at_once` requests to one broker may be under way. `kept_bytes` of memory are kept for large answers."""

    def __init__(
        self,
        net: Net,
        *,
        client_id: str = "broker",
        cluster_id: str = "",
        credential: bytes = b"",
        at_once: int = AT_ONCE,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self.cluster_id = cluster_id
        self.credential = credential
        self._at_once = at_once
        self._net = net
        self._client_id = client_id
        self._brokers: dict[str, _Broker] = {}
        self._links: dict[Link, None] = {}
        self._memory = FrameMemory(kept_bytes)
        self._copied_at = 0.0

    async def follow(self, address: str, ask: FollowAsk, timeout: float) -> FollowAnswer:
        """See `Peers.follow`."""
        request = TieredFollowRequest(
            self.cluster_id, self.credential, ask.node_id, ask.incarnation, ask.slot, ask.applied,
            ask.controller_epoch, ask.wait_ms,
        )  # fmt: skip
        answer = await self.ask(address, request, TieredFollowResponse, timeout)
        _check(answer.error_code, answer.error_message)
        return FollowAnswer(
            answer.controller_epoch, answer.next_slot, tuple(answer.entries), answer.too_old, answer.store_age_ms
        )

    async def submit(
        self, address: str, request: bytes, timeout: float, going: Callable[[], None] = lambda: None
    ) -> SubmitAnswer:
        """See `Peers.submit`."""
        timeout_ms = int(timeout * 1000 * ANSWERS_FIRST)
        asked = TieredSubmitRequest(self.cluster_id, self.credential, timeout_ms, request)
        answer = await self.ask(address, asked, TieredSubmitResponse, timeout, going=going)
        _check(answer.error_code, answer.error_message)
        return SubmitAnswer(answer.reply, answer.slot)

    async def heard(self, address: str, timeout: float) -> HeardAnswer:
        """See `Peers.heard`."""
        request = TieredHeardRequest(self.cluster_id, self.credential)
        answer = await self.ask(address, request, TieredHeardResponse, timeout)
        _check(answer.error_code, answer.error_message)
        return HeardAnswer(
            answer.controller_epoch, answer.controller, answer.heard_ms_ago, answer.node_id, answer.incarnation
        )

    async def fetch(self, address: str, ask: ReplicaFetch, timeout: float) -> Sequence[FetchedPart]:
        """See `Peers.fetch`. Records are views of the answer's frame."""
        request = fetch_request(ask, self.credential)
        answer = await self.ask(address, request, FetchResponse, timeout, FETCH_VERSION)
        _check(answer.error_code, None)
        parts = list(_fetched(answer))
        now = asyncio.get_running_loop().time()
        if any(part.records for part in parts):
            self._copied_at = now
        elif now - self._copied_at > REST_SECONDS:
            self._memory.rest()
        return parts

    async def reach(self, address: str, timeout: float) -> None:
        """See `Peers.reach`."""
        (await self._net.connect(*_place(address), timeout)).close()

    async def is_gone(self, address: str, timeout: float) -> bool:
        """See `Peers.is_gone`."""
        try:
            await self.reach(address, timeout)
        except Unavailable as error:
            return error.refused
        return False

    async def close(self) -> None:
        """Ends all connections; who waits on one is told."""
        for link in list(self._links):
            link.close()
        self._links.clear()
        self._brokers.clear()

    # -- connections --------------------------------------------------------------------------------------------------

    async def ask(
        self,
        address: str,
        request: Message,
        answer: type[A],
        timeout: float,
        version: int = 0,
        going: Callable[[], None] = lambda: None,
    ) -> A:
        """The answer of the broker at `address`. `Unavailable`: it cannot be reached, or was asked and did not answer
        in time; `going` is called in between."""
        broker = self._brokers.setdefault(address, _Broker(self._at_once))
        broker.asking += 1
        end = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(end):
                await broker.turns.acquire()
            try:
                return await self._exchange(broker, address, request, answer, end, version, going)
            finally:
                broker.turns.release()
        except TimeoutError:
            raise Unavailable(f"{address} has {self._at_once} requests to answer first") from None
        except (Unavailable, Corrupt) as error:
            # What lies ready is as old as what has just failed.
            while broker.idle:
                self._drop(broker.idle.pop())
            raise Unavailable(str(error), refused=isinstance(error, Unavailable) and error.refused) from None
        finally:
            broker.asking -= 1
            if not broker.asking and not broker.idle and self._brokers.get(address) is broker:
                del self._brokers[address]

    async def _exchange(
        self,
        broker: _Broker,
        address: str,
        request: Message,
        answer: type[A],
        end: float,
        version: int,
        going: Callable[[], None],
    ) -> A:
        loop = asyncio.get_running_loop()
        link = self._ready(broker) or await self._open(address, end - loop.time())
        going()
        try:
            got = await link.ask(request, answer, end - loop.time(), version)
        except BaseException:
            self._drop(link)  # its answer may still come, ahead of the next one
            raise
        self._keep(broker, link)
        return got

    def _ready(self, broker: _Broker) -> Link | None:
        """The connection that was used last, of those that are whole."""
        while broker.idle:
            link = broker.idle.pop()
            if link.closed is None:
                return link
            self._drop(link)
        return None

    async def _open(self, address: str, timeout: float) -> Link:
        try:
            stream = await self._net.connect(*_place(address), min(timeout, CONNECT_SECONDS))
        except Unavailable as error:
            raise Unavailable(str(error), refused=True) from None
        link = Link(stream, address, self._client_id, self._memory)
        self._links[link] = None
        return link

    def _keep(self, broker: _Broker, link: Link) -> None:
        if link.closed is None and len(broker.idle) < IDLE_MAX and link in self._links:
            broker.idle.append(link)
        else:
            self._drop(link)

    def _drop(self, link: Link) -> None:
        self._links.pop(link, None)
        link.close()


def fetch_request(ask: ReplicaFetch, credential: bytes) -> FetchRequest:
    """What a follower asks, as the one request of a Fetch without a session."""
    topics: dict[str, FetchTopic] = {}
    for each in ask.partitions:
        topic = topics.get(each.topic_id)
        if topic is None:
            topic = topics[each.topic_id] = FetchTopic(topic_id=each.topic_id)
        topic.partitions.append(
            FetchPartition(
                each.partition, each.leader_epoch, each.offset, each.last_epoch, each.log_start_offset,
                ask.partition_max_bytes, local_start_offset=each.local_start_offset,
            )
        )  # fmt: skip
    return FetchRequest(
        replica_state=ReplicaState(ask.node_id, ask.incarnation),
        credential=credential,
        max_wait_ms=ask.max_wait_ms,
        min_bytes=1,
        max_bytes=ask.max_bytes,
        topics=list(topics.values()),
    )


def _fetched(answer: FetchResponse) -> Iterator[FetchedPart]:
    for topic in answer.responses:
        topic_id = TopicId(topic.topic_id)
        for part in topic.partitions:
            diverging = part.diverging_epoch
            yield FetchedPart(
                topic_id,
                part.partition_index,
                part.error_code,
                part.high_watermark,
                part.log_start_offset,
                part.local_start_offset,
                part.cold_end_offset,
                Diverging(diverging.epoch, diverging.end_offset) if diverging.end_offset >= 0 else None,
                part.records or b"",
            )


def _place(address: str) -> tuple[str, int]:
    place = host_and_port(address)
    if place is None:
        raise Unavailable(f"{address!r} is no HOST:PORT")
    return place


def _check(number: int, message: str | None) -> None:
    if number:
        _refuse(number, message)


def _refuse(number: int, message: str | None) -> NoReturn:
    code = code_of(number)
    raise Refused(code, message or code.name)
