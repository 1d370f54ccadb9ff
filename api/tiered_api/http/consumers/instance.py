"""One REST v2 consumer: how its user wants records, what it reads, and how far it has read.

What must outlive a restart is in the group's coordinator: the member with its wish, and committed offsets. Positions
that were not committed are here only, so a record may be read twice, as with every consumer that commits later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import orjson

from tiered.errors import Code, Refused, Unavailable
from tiered.groups.requests import NO_OFFSET, PartitionOffset, CommitOffsets, CommitOffsetsReply, FetchOffsetsReply, FetchOffsets, Request
from tiered.ids import TopicId, TopicPartition
from tiered_api.http.consumers.coordinator_calls import patiently
from tiered_api.http.consumers.member import Membership, Wish
from tiered_api.http.consumers.topic_patterns import Pattern
from tiered_api.http.partitions.remote_partition import Source, bounds, source_of
from tiered_api.http.server.context import Site
from tiered_api.http.server.errors import CONSUMER_NOT_FOUND, ILLEGAL_STATE, HttpError

MARK = "tiered-rest"
SESSION_MS = 300_000
"""The coordinator that could miss a member dies with it: this is the time that it has after a restart."""
METADATA_BYTES = 4096


@dataclass(frozen=True)
class Choices:
    """What a consumer is created with. Times in ms."""

    format: str = "binary"
    reset: str = "latest"
    auto_commit: bool = True
    min_bytes: int = 1
    timeout_ms: int = 1_000

    def kept(self, wish: Wish) -> bytes:
        """For the member's metadata."""
        return orjson.dumps({"of": MARK, **asdict(self), "topics": wish.topics, "pattern": wish.pattern})

    @classmethod
    def found(cls, kept: bytes) -> tuple[Choices, Wish] | None:
        """The reverse of `kept`; None when it is not ours: whoever is in the group may say what he likes."""
        try:
            given = orjson.loads(kept)
            if not isinstance(given, dict) or given.pop("of", "") != MARK:
                return None
            wish, made = Wish(tuple(given.pop("topics")), given.pop("pattern")), cls(**given)
            Pattern(wish.pattern)
        except (ValueError, KeyError, TypeError):
            return None
        like = cls()
        same = all(type(value) is type(getattr(like, name)) for name, value in asdict(made).items())
        return (made, wish) if same and all(isinstance(topic, str) for topic in wish.topics) else None


class Spot(NamedTuple):
    """An offset, and of which topic: one that is deleted and made again has other records."""

    topic_id: str
    offset: int


class Instance:
    """A consumer and its place in a group. One request at a time may use it, within `use`. `place` counts the times
    that what it reads changed: what was begun under an earlier one counts for nothing."""

    def __init__(self, site: Site, group: str, name: str, choices: Choices, peer: str) -> None:
        self.group = group
        self.name = name
        self.choices = choices
        self.peer = peer
        """The address of the client that made it, or came for it first after a restart."""
        self.turn = asyncio.Lock()
        self.used_ns = site.clock.mono_ns()
        self.membership: Membership | None = None
        self.given: list[TopicPartition] = []
        """Partitions that the user chose by hand."""
        self.place = 0
        self._site = site
        self._ended = False
        self._last: TopicPartition | None = None
        self._positions: dict[TopicPartition, Spot] = {}
        self._uncommitted: dict[TopicPartition, Spot] = {}

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """HttpError 404 when it ended while others had their turn."""
        async with self.turn:
            if self._ended:
                raise HttpError(CONSUMER_NOT_FOUND, f"consumer {self.name!r} is deleted")
            yield

    # -- what it reads ------------------------------------------------------------------------------------------------

    async def subscribe(self, wish: Wish) -> None:
        """Becomes a member, or changes what the member wishes for."""
        if self.given:
            raise HttpError(ILLEGAL_STATE, "partitions are assigned by hand: a subscription excludes that")
        before = self.membership
        if before is not None:
            if before.wish == wish and before.failure is None:
                return
            await before.stop()
            await self._revoked()
        self.join(wish, before.member_id if before is not None else "")

    def join(self, wish: Wish, member_id: str = "") -> None:
        """Becomes a member, or goes on as one."""
        self.membership = Membership(
            self._site.node.coordinators.ask, self._site.clock, self.group, self.name, wish, self.choices.kept(wish),
            session_ms=min(SESSION_MS, self._site.node.settings.group_max_session_timeout_ms),
            counts=self._site.instances.counts, names=self._site.instances.names(wish),
            revoked=self._revoked, member_id=member_id,
        )  # fmt: skip

    async def unsubscribe(self) -> None:
        """Leaves the group and forgets where it was."""
        membership = self.membership
        if membership is not None:
            await membership.stop()
        await self._revoked()
        self.membership, self.given = None, []
        if membership is not None:
            await membership.leave()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions, whatever others of the group read."""
        if self.membership is not None:
            raise HttpError(ILLEGAL_STATE, "there is a subscription: an assignment by hand excludes that")
        given = list(dict.fromkeys(partitions))
        for at in given:
            self.topic_id(at)
        self.given = given
        self.place += 1
        self._keep_only(self.given)

    async def partitions(self, seconds: float) -> list[TopicPartition]:
        """What it reads now; waits for its first place in the group. Empty while that is not known."""
        if self.membership is None:
            return self.given
        try:
            async with self._site.patience(seconds):
                await self.membership.settled.wait()
        except TimeoutError:
            return []
        if self.membership.failure is not None:
            raise Refused(self.membership.failure.code, self.membership.failure.why)
        return self.membership.assigned or []

    def own(self, at: TopicPartition) -> None:
        """HttpError when a partition is not this consumer's now."""
        mine = self.given if self.membership is None else self.membership.assigned or []
        if at not in mine:
            raise HttpError(ILLEGAL_STATE, f"{at} is not assigned to this consumer")

    def topic_id(self, at: TopicPartition) -> TopicId:
        """`Refused(UNKNOWN_TOPIC_OR_PARTITION)` when there is no such partition."""
        topic = self._site.node.image.topics.get(at.topic)
        if topic is None or at.partition >= len(topic.partitions):
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {at}")
        return topic.topic_id

    def source(self, at: TopicPartition, patience: float | None = None) -> Source:
        """The partition, wherever it is led."""
        return source_of(self._site, at, self.topic_id(at), patience)

    async def _revoked(self) -> None:
        """The place in the group is about to change: what was read counts for whoever has it next."""
        self.place += 1
        self._positions.clear()
        if self.choices.auto_commit:
            await self.commit_if_it_may()
        self._uncommitted.clear()

    def _keep_only(self, partitions: Iterable[TopicPartition]) -> None:
        mine = set(partitions)
        self._positions = {at: offset for at, offset in self._positions.items() if at in mine}
        self._uncommitted = {at: offset for at, offset in self._uncommitted.items() if at in mine}

    # -- how far it is ------------------------------------------------------------------------------------------------

    def in_turn(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """The same, beginning behind the one that gave last: one that always has more must not keep all to itself."""
        cut = next((n + 1 for n, at in enumerate(partitions) if at == self._last), 0)
        return [*partitions[cut:], *partitions[:cut]]

    def pass_over(self, at: TopicPartition) -> None:
        """The next read begins behind this one."""
        self._last = at

    async def position(self, at: TopicPartition, source: Source) -> int | None:
        """The next offset to read: where it is, else what the group committed, else as it chose. None: nowhere."""
        spot = self._positions.get(at)
        if spot is None or spot.topic_id != source.topic_id:
            place = self.place
            committed = (await self.committed([at]))[0]
            start = committed.offset if committed.offset != NO_OFFSET else await self._reset(source)
            if start is None or place != self.place:
                return None
            spot = self._positions[at] = Spot(source.topic_id, start)
        return spot.offset

    async def _reset(self, source: Source) -> int | None:
        if self.choices.reset == "none":
            return None
        start, end = await bounds(source)
        return start if self.choices.reset == "earliest" else end

    async def out_of_range(self, at: TopicPartition, source: Source) -> None:
        """What it wanted to read is gone: goes on where it chose to."""
        place, start = self.place, await self._reset(source)
        if start is None:
            raise HttpError(ILLEGAL_STATE, f"the offset of {at} is gone and auto.offset.reset is none")
        if place == self.place:
            self._positions[at] = Spot(source.topic_id, start)

    def seek(self, at: TopicPartition, offset: int) -> None:
        self._positions[at] = Spot(self.topic_id(at), offset)

    def has_read(self, ahead: Mapping[TopicPartition, Spot], last: TopicPartition | None) -> None:
        """Records below these offsets are given out, those of `last` last."""
        self._positions.update(ahead)
        self._uncommitted.update(ahead)
        self._last = last or self._last

    async def commit_if_it_may(self) -> None:
        """Commits what was given out, unless the group does not take it: whoever has its place reads it again."""
        with contextlib.suppress(Refused, HttpError, Unavailable):
            await self.commit_read()

    async def commit_read(self) -> list[PartitionOffset]:
        """Commits all that was given out and is not committed yet, of topics that are still there."""
        topics, given_out = self._site.node.image.topics_by_id, dict(self._uncommitted)
        offsets = [
            PartitionOffset(at.topic, at.partition, spot.offset, topic_id=spot.topic_id)
            for at, spot in sorted(given_out.items())
            if spot.topic_id in topics
        ]
        if offsets:
            await self.commit(offsets)
        for at, spot in given_out.items():
            if self._uncommitted.get(at) == spot:
                del self._uncommitted[at]
        return offsets

    async def commit(self, offsets: list[PartitionOffset]) -> None:
        """Refused when the group does not take one of them."""
        member = self.membership
        named = CommitOffsets(self.group, tuple(offsets))
        if member is not None:
            named = CommitOffsets(self.group, tuple(offsets), member.generation, member.member_id, member.instance_id)
        answer: CommitOffsetsReply = await self._ask(named)
        for row, code in zip(offsets, answer.codes, strict=True):
            if code is not Code.NONE:
                raise Refused(code, f"the offset of {row.topic}-{row.partition} was not committed: {code.name}")

    async def committed(self, partitions: list[TopicPartition]) -> list[PartitionOffset]:
        """What the group committed, in the order of `partitions`; nothing of earlier topics of their names."""
        topics = self._site.node.image.topics
        ids = tuple((name, topics[name].topic_id) for name in {at.topic for at in partitions} & topics.keys())
        request = FetchOffsets(self.group, tuple(partitions), topic_ids=ids)
        answer: FetchOffsetsReply = await self._ask(request)
        if answer.code is not Code.NONE:
            raise Refused(answer.code, f"the offsets of the group cannot be read: {answer.code.name}")
        return list(answer.offsets)

    async def _ask(self, request: Request) -> Any:
        return await patiently(self._site, lambda: self._site.node.coordinators.ask(self.group, request))

    async def end(self) -> None:
        """The instance is deleted, or nobody has used it for long."""
        await self.unsubscribe()
        self._ended = True

    async def let_go(self) -> None:
        """It lives elsewhere from now on, as the same member of its group."""
        self._ended = True
        if self.membership is not None:
            await self.membership.stop()
