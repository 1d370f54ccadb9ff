"""One REST v2 consumer: its record format, its assignment and its positions (I34).

The group's coordinator keeps all that must survive a restart: the member with its subscription, and committed offsets.
Positions that are not committed are kept here only, so records may be read twice, as with every consumer that commits
later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from tiered.errors import Code, Refused, Unavailable
from tiered.groups.requests import (
    NO_OFFSET,
    CommitOffsets,
    CommitOffsetsReply,
    FetchOffsets,
    FetchOffsetsReply,
    PartitionOffset,
    Request,
)
from tiered.ids import TopicId, TopicPartition
from tiered.security.acls import Operation, ResourceType
from tiered.security.principal import ANONYMOUS, Caller
from tiered.spending import spent_by, written_by
from tiered_api.http.consumers.coordinator_calls import retry_while_loading
from tiered_api.http.consumers.member import MemberConfig, RestMember
from tiered_api.http.consumers.positions import ConsumerPosition, ConsumerPositions
from tiered_api.http.consumers.subscriptions import Subscription, TopicCatalog
from tiered_api.http.consumers.topic_patterns import TopicPattern
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import CONSUMER_NOT_FOUND, ILLEGAL_STATE, KAFKA_ERROR, HttpError
from tiered_api.http.exchange.metering import BackgroundMeter
from tiered_api.http.partitions.remote_partition import AnyPartition, fetch_bounds, open_partition
from tiered_api.kafka.client.error_sentences import explain_error

FORMATS = ("binary", "json", "avro", "jsonschema", "protobuf")
RESETS = ("earliest", "latest", "none")
TIMEOUT_MS_MAX = 30_000
USER_DATA_MARK = "tiered-rest"
SESSION_MS = 300_000
"""Session timeout of the members. The instance and the coordinator are in one process, so it only bounds the time after
a restart."""
METADATA_BYTES = 4096
STORED_SECONDS = 5.0
"""Longest time that a changed subscription waits until the group has stored it."""
FETCHED_ROWS = 1_000
"""Partitions whose committed offsets one decision of the coordinator looks up."""
NAMED_PARTITIONS = 5
"""Most partitions that an error names."""


@dataclass(frozen=True)
class ConsumerConfig:
    """The settings of a consumer. Times are in ms."""

    format: str = "binary"
    reset: str = "latest"
    auto_commit: bool = True
    min_bytes: int = 1
    timeout_ms: int = 1_000
    read_committed: bool = True
    owner: str = str(ANONYMOUS)
    """The principal that created the consumer. Nobody else can use it."""

    def to_user_data(self, subscription: Subscription) -> bytes:
        """Returns the settings and the subscription as user data for the member's metadata."""
        return orjson.dumps(
            {"of": USER_DATA_MARK, **asdict(self), "topics": subscription.topics, "pattern": subscription.pattern}
        )

    @classmethod
    def from_user_data(cls, user_data: bytes) -> tuple[ConsumerConfig, Subscription] | None:
        """Reverses `to_user_data`. Returns None for data of another client: every member of the group may write what it
        likes."""
        try:
            given = orjson.loads(user_data)
            if not isinstance(given, dict) or given.pop("of", "") != USER_DATA_MARK:
                return None
            subscription, made = Subscription(tuple(given.pop("topics")), given.pop("pattern")), cls(**given)
            TopicPattern(subscription.pattern)
        except (ValueError, KeyError, TypeError):
            return None
        like = cls()
        fits = (
            all(type(value) is type(getattr(like, name)) for name, value in asdict(made).items())
            and made.format in FORMATS
            and made.reset in RESETS
            and 0 <= made.timeout_ms <= TIMEOUT_MS_MAX
        )
        return (made, subscription) if fits and all(isinstance(topic, str) for topic in subscription.topics) else None


class ConsumerInstance:
    """A consumer and its membership in a group. One request at a time may use it, within `use`. `assignment_version`
    counts changes of the assignment: work that began under an earlier assignment has no effect."""

    def __init__(
        self, context: HttpContext, topics: TopicCatalog, group: str, name: str, config: ConsumerConfig, caller: Caller
    ) -> None:
        self.group = group
        self.name = name
        self.config = config
        self.caller = caller
        """The owner, and the address from which it used the consumer last. It judges what the consumer may read."""
        self.has_user: Callable[[], bool] = lambda: True
        """True while the user of that last use is there, with one of its passwords."""
        self.holder = caller.holder
        """The holder that the consumer counts for: its owner, or the network that created it, or used it first after a
        restart."""
        self.lock = asyncio.Lock()
        self.last_used_ns = context.clock.mono_ns()
        self.member: RestMember | None = None
        self.manual_assignment: list[TopicPartition] = []
        """Partitions that the user assigned by hand."""
        self.assignment_version = 0
        self.has_unknown_reads = False
        """True if an earlier process may have read for this consumer, and this one has not read yet."""
        self._context = context
        self._topics = topics
        self._is_closed = False
        self._last_read: TopicPartition | None = None
        self._positions = ConsumerPositions()
        self._has_new_reset = False

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """Waits for its turn. Raises `HttpError` 404 if the consumer was deleted meanwhile."""
        async with self.lock:
            if self._is_closed:
                raise HttpError(CONSUMER_NOT_FOUND, f"consumer {self.name!r} is deleted")
            yield

    # -- assignment ---------------------------------------------------------------------------------------------------

    async def subscribe(self, subscription: Subscription) -> None:
        """Becomes a member, or changes the member's subscription.

        A change waits for its rebalance for a while, because the group stores the subscription with the rebalance.
        """
        if self.manual_assignment:
            raise HttpError(ILLEGAL_STATE, "partitions are assigned by hand: a consumer cannot also subscribe")
        before = self.member
        if before is not None:
            if before.subscription == subscription and before.failure is None:
                return
            await before.stop()
            await self._on_revoked()
        known = (before.member_id, before.known_metadata) if before is not None else ("", None)
        changed = self.join(subscription, *known)
        if before is not None:
            with contextlib.suppress(TimeoutError):
                async with self._context.timeout(STORED_SECONDS):
                    await changed.join_done.wait()

    def join(self, subscription: Subscription, member_id: str = "", known_metadata: bytes | None = None) -> RestMember:
        """Becomes a member, or continues a membership. The group may have the member with `known_metadata`."""
        context, user_data = self._context, self.config.to_user_data(subscription)
        session_ms = min(SESSION_MS, context.broker.settings.group_max_session_timeout_ms)
        config = MemberConfig(self.group, self.name, user_data, session_ms, self.holder)
        topics = self._topics.subscribe(subscription, self._may_read)
        submit = context.broker.group_coordinators.submit
        meter = BackgroundMeter(context.broker.client_quotas, self.caller.principal.name, self.caller.client_id)
        with spent_by(meter), written_by(meter.charge_written):  # its task pays for the topics that a pattern matches
            self.member = RestMember(submit, context.clock, config, topics, self._on_revoked, member_id, known_metadata)
        return self.member

    @property
    def is_fenced(self) -> bool:
        """True if the group has another member in its place."""
        return self.member is not None and self.member.is_fenced

    def may_stay(self) -> bool:
        """False if the user of the consumer was removed, has other passwords, or may not read in the group any more."""
        is_allowed = self._context.broker.authorization.is_allowed
        return self.has_user() and is_allowed(self.caller, Operation.READ, ResourceType.GROUP, self.group)

    def _may_read(self, topic: str) -> bool:
        return self._context.broker.authorization.is_allowed(self.caller, Operation.READ, ResourceType.TOPIC, topic)

    async def unsubscribe(self) -> None:
        """Leaves the group and forgets the positions."""
        membership = self.member
        if membership is not None:
            await membership.stop()
        await self._on_revoked()
        self.member, self.manual_assignment = None, []
        if membership is not None:
            await membership.leave()

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assigns these partitions by hand, independent of the group's members. With automatic commits it commits the
        positions before that, because those in other partitions are forgotten."""
        if self.member is not None:
            raise HttpError(ILLEGAL_STATE, "the consumer has a subscription: partitions cannot be assigned too")
        given = list(dict.fromkeys(partitions))
        for tp in given:
            self.find_topic_id(tp)
        if self.config.auto_commit:
            await self.try_commit_uncommitted()
        self.manual_assignment = given
        self.assignment_version += 1
        self._positions.retain(given)
        self._positions.drop_lost(self._context.broker.image.topics_by_id)

    async def assigned_partitions(self, seconds: float) -> list[TopicPartition]:
        """Returns the partitions to read now. Waits for the first assignment; returns an empty list if there is none in
        time."""
        if self.member is None:
            return self.manual_assignment
        try:
            async with self._context.timeout(seconds):
                await self.member.join_done.wait()
        except TimeoutError:
            return []
        if self.member.failure is not None:
            raise Refused(self.member.failure.code, self.member.failure.why)
        return self.member.assigned or []

    def check_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Raises `HttpError` for the first partition that is not assigned to this consumer."""
        mine = frozenset(self.manual_assignment if self.member is None else self.member.assigned or ())
        for tp in partitions:
            if tp not in mine:
                raise HttpError(ILLEGAL_STATE, f"{tp} is not assigned to this consumer")

    def find_topic_id(self, tp: TopicPartition) -> TopicId:
        """Returns the id of the topic. Raises `Refused` (UNKNOWN_TOPIC_OR_PARTITION) if there is no such partition."""
        topic = self._context.broker.image.topics.get(tp.topic)
        if topic is None or tp.partition >= len(topic.partitions):
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp} does not exist")
        return topic.topic_id

    def find_read_topic_id(self, tp: TopicPartition) -> str:
        """Returns the id of the topic that this consumer reads as `tp`: the user names offsets of its records.

        Before the first read this is the topic that has the name. Raises `Refused` with UNKNOWN_TOPIC_OR_PARTITION if
        there is no such partition.
        """
        topic_id, spot = self.find_topic_id(tp), self._positions.find(tp)
        return spot.topic_id if spot is not None else topic_id

    def open_partition(self, tp: TopicPartition, lookup_seconds: float | None = None) -> AnyPartition:
        """Returns the partition, led here or elsewhere."""
        return open_partition(self._context, tp, self.find_topic_id(tp), lookup_seconds, self.caller)

    async def _on_revoked(self) -> None:
        """Prepares for a new assignment. With automatic commits it commits the positions, because another member may
        get the partitions."""
        self.assignment_version += 1
        uncommitted = self._positions.revoke()
        self._positions.drop_lost(self._context.broker.image.topics_by_id)
        if self.config.auto_commit:
            await self._try_commit_positions(uncommitted)

    # -- offsets ------------------------------------------------------------------------------------------------------

    def rotate_partitions(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Returns the partitions in an order that starts after the one read last, so that a busy partition does not
        block the others."""
        cut = next((n + 1 for n, tp in enumerate(partitions) if tp == self._last_read), 0)
        return [*partitions[cut:], *partitions[:cut]]

    def skip_partition(self, tp: TopicPartition) -> None:
        """Makes the next read start after this partition."""
        self._last_read = tp

    async def resolve_position(self, tp: TopicPartition, source: AnyPartition) -> int | None:
        """Returns the next offset to read: the position, else the committed offset, else the reset offset. None if the
        assignment changed, or while a transaction may change the committed offset of a read_committed consumer
        (KIP-447)."""
        spot = self._positions.find(tp)
        if spot is None or spot.topic_id != source.topic_id:
            version = self.assignment_version
            reply = await self._fetch_offsets([tp], require_stable=self.config.read_committed)
            if reply.unstable:  # a later read asks again, once the transaction is over
                return None
            committed = reply.offsets[0].offset
            why = f"group {self.group} has no offset of {tp}"
            start = committed if committed != NO_OFFSET else await self._reset_offset(source, why)
            if version != self.assignment_version:
                return None
            spot = ConsumerPosition(source.topic_id, start)
            if committed != NO_OFFSET:
                self._positions.begin(tp, spot)
            else:
                self._reset(tp, spot)
        return spot.offset

    def _reset(self, tp: TopicPartition, spot: ConsumerPosition) -> None:
        self._positions.reset(tp, spot)
        self._has_new_reset = True

    async def try_commit_new_resets(self) -> None:
        """Commits the positions that resets gave since the last call, if this consumer commits by itself. A broker that
        ends after the read loses no record from there on."""
        if self._has_new_reset and self.config.auto_commit:
            self._has_new_reset = False
            await self.try_commit_uncommitted()

    async def _reset_offset(self, source: AnyPartition, why: str) -> int:
        """Returns the offset of the setting for resets. `why` says which offset is missing.

        Raises `HttpError` (50002, as the REST Proxy) if the consumer is to have none.
        """
        if self.config.reset == "none":
            ways = "choose one by POST .../positions, or earliest or latest"
            raise HttpError(KAFKA_ERROR, f"{why}, and auto.offset.reset is none: {ways}")
        start, end = await fetch_bounds(source, self.config.read_committed)
        return start if self.config.reset == "earliest" else end

    async def reset_position(self, tp: TopicPartition, source: AnyPartition, position: int) -> None:
        """Continues at the reset offset: the offset at the current position does not exist."""
        version = self.assignment_version
        start = await self._reset_offset(source, f"{tp} has no offset {position}")
        if version == self.assignment_version:
            self._reset(tp, ConsumerPosition(source.topic_id, start))

    def seek(self, tp: TopicPartition, topic_id: TopicId, offset: int) -> None:
        """Moves the position to an offset of the topic `topic_id`. If another topic has its name by now, the next read
        ignores the position."""
        self._positions.move({tp: ConsumerPosition(topic_id, offset)})

    def mark_read(self, positions: Mapping[TopicPartition, ConsumerPosition], last: TopicPartition | None) -> None:
        """Moves the positions past delivered records; `last` is the partition of the last record."""
        self._positions.move(positions)
        self._last_read = last or self._last_read
        self.has_unknown_reads = False

    def mark_lost(self, positions: Mapping[TopicPartition, ConsumerPosition]) -> None:
        """Notes delivered records of partitions that were taken away before the delivery."""
        self._positions.lose(positions)

    async def try_commit_uncommitted(self) -> None:
        """Commits the positions that the group does not have. If the group refuses, the next owner of the partitions
        reads from those that it has."""
        await self._try_commit_positions(self._positions.uncommitted())

    async def _try_commit_positions(self, positions: Mapping[TopicPartition, ConsumerPosition]) -> None:
        with contextlib.suppress(Refused, HttpError, Unavailable):
            await self._commit_positions(positions)

    async def commit_positions(self) -> list[PartitionOffset]:
        """Commits all positions, as `commitSync()` of Kafka's consumer does. Returns them: an empty list if there are
        none.

        Raises `Refused` (ILLEGAL_GENERATION) once, and commits nothing, if records were read that cannot be committed
        any more.
        """
        lost = self._positions.take_lost(self._context.broker.image.topics_by_id)
        if lost:
            others = f" and {len(lost) - NAMED_PARTITIONS} others" if len(lost) > NAMED_PARTITIONS else ""
            names = ", ".join(map(str, lost[:NAMED_PARTITIONS])) + others
            why = f"the assignment changed before a commit: records read of {names} come again"
            raise Refused(Code.ILLEGAL_GENERATION, f"{why}. The next commit has the positions of then")
        if self.has_unknown_reads:
            self.has_unknown_reads = False
            why = "the broker of this consumer restarted, or is another one: records read before and not committed"
            raise Refused(Code.ILLEGAL_GENERATION, f"{why} come again")
        return await self._commit_positions(self._positions.all())

    async def _commit_positions(self, positions: Mapping[TopicPartition, ConsumerPosition]) -> list[PartitionOffset]:
        """Commits positions in topics that still exist."""
        topics = self._context.broker.image.topics_by_id
        offsets = [
            PartitionOffset(tp.topic, tp.partition, spot.offset, topic_id=spot.topic_id)
            for tp, spot in sorted(positions.items())
            if spot.topic_id in topics
        ]
        if offsets:
            await self.commit(offsets)
        return offsets

    async def commit(self, offsets: list[PartitionOffset]) -> None:
        """Commits offsets. Raises `Refused` if the group does not accept one of them."""
        member = self.member
        named = CommitOffsets(self.group, tuple(offsets), holder=self.holder)
        if member is not None:
            named = replace(
                named,
                generation=member.generation,
                member_id=member.member_id,
                instance_id=member.instance_id,
            )
        reply: CommitOffsetsReply = await self._call_coordinator(named)
        for row, code in zip(offsets, reply.codes, strict=True):
            if code is Code.NONE:
                spot = ConsumerPosition(row.topic_id, row.offset)
                self._positions.note_committed(TopicPartition(row.topic, row.partition), spot)
        for row, code in zip(offsets, reply.codes, strict=True):
            if code is not Code.NONE:
                raise Refused(
                    code, f"the offset of {row.topic}-{row.partition} was not committed: {explain_error(code.number)}"
                )

    async def fetch_committed(self, partitions: list[TopicPartition]) -> list[PartitionOffset]:
        """Returns the committed offsets in the order of `partitions`, without those of earlier topics of the same
        names."""
        found = list[PartitionOffset]()
        for first in range(0, len(partitions), FETCHED_ROWS):
            piece = partitions[first : first + FETCHED_ROWS]
            found += (await self._fetch_offsets(piece, require_stable=False)).offsets
            await asyncio.sleep(0)  # a coordinator in this process replies without a wait
        return found

    async def _fetch_offsets(self, partitions: list[TopicPartition], *, require_stable: bool) -> FetchOffsetsReply:
        topics = self._context.broker.image.topics
        ids = tuple((name, topics[name].topic_id) for name in {tp.topic for tp in partitions} & topics.keys())
        request = FetchOffsets(self.group, tuple(partitions), topic_ids=ids, require_stable=require_stable)
        reply: FetchOffsetsReply = await self._call_coordinator(request)
        if reply.code is not Code.NONE:
            raise Refused(reply.code, f"the offsets of the group cannot be read: {explain_error(reply.code.number)}")
        return reply

    async def _call_coordinator(self, request: Request) -> Any:
        return await retry_while_loading(
            self._context, lambda: self._context.broker.group_coordinators.submit(self.group, request)
        )

    async def close(self) -> None:
        """Ends the consumer: its user deleted it, or it was idle for too long."""
        await self.unsubscribe()
        self._is_closed = True

    async def detach(self) -> None:
        """Stops here without leaving the group: another broker serves the same member from now on."""
        self._is_closed = True
        if self.member is not None:
            await self.member.stop()
