"""One REST v2 consumer: how its user wants records, what it reads, and how far it has read.

What must outlive a restart is in the group's coordinator: the member with its wish, and committed offsets. Positions
that were not committed are here only, so a record may be read twice, as with every consumer that commits later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import orjson

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.metadata.groups.requests import NO_OFFSET, Commit, CommitOffsets, Committed, Fetched, FetchOffsets
from tiered.replication.replica import Replica
from tiered_api.http.consumers.membership import Membership, Wish
from tiered_api.http.errors import ILLEGAL_STATE, HttpError
from tiered_api.http.site import Site

MARK = "tiered-rest"
COMMIT_SECONDS = 30.0
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
        """The reverse of `kept`; None when it is not ours."""
        try:
            given = orjson.loads(kept)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(given, dict) or given.pop("of", "") != MARK:
            return None
        wish = Wish(tuple(given.pop("topics")), given.pop("pattern"))
        return cls(**given), wish


class Instance:
    """A consumer and its place in a group. One request at a time may use it: hold `turn`."""

    def __init__(self, site: Site, group: str, name: str, choices: Choices) -> None:
        self.group = group
        self.name = name
        self.choices = choices
        self.turn = asyncio.Lock()
        self.used_ns = site.clock.mono_ns()
        self.membership: Membership | None = None
        self.given: list[TopicPartition] = []
        """Partitions that the user chose by hand."""
        self._site = site
        self._positions: dict[TopicPartition, int] = {}
        self._uncommitted: dict[TopicPartition, int] = {}

    # -- what it reads ------------------------------------------------------------------------------------------------

    def subscribe(self, wish: Wish) -> None:
        """Becomes a member, or changes what the member wishes for."""
        if self.given:
            raise HttpError(ILLEGAL_STATE, "partitions are assigned by hand: a subscription excludes that")
        if self.membership is not None:
            raise HttpError(ILLEGAL_STATE, "this consumer has a subscription: delete that first")
        self.membership = Membership(
            self._site.node.coordinators.ask, self._site.clock, self.group, self.name, wish, self.choices.kept(wish),
            session_ms=min(SESSION_MS, self._site.node.settings.group_max_session_timeout_ms),
            counts=self._counts, revoked=self._revoked,
        )  # fmt: skip

    async def unsubscribe(self) -> None:
        """Leaves the group and forgets where it was."""
        membership, self.membership = self.membership, None
        self.given = []
        if membership is not None:
            if self.choices.auto_commit:
                await self.commit_read(membership)
            await membership.leave()
        self._positions.clear()
        self._uncommitted.clear()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions, whatever others of the group read."""
        if self.membership is not None:
            raise HttpError(ILLEGAL_STATE, "there is a subscription: an assignment by hand excludes that")
        self.given = list(dict.fromkeys(partitions))
        for at in self.given:
            self.replica(at)
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
            raise self.membership.failure
        return self.membership.assigned or []

    def own(self, at: TopicPartition) -> None:
        """HttpError when a partition is not this consumer's now."""
        mine = self.given if self.membership is None else self.membership.assigned or []
        if at not in mine:
            raise HttpError(ILLEGAL_STATE, f"{at} is not assigned to this consumer")

    def replica(self, at: TopicPartition) -> Replica:
        return self._site.node.replica(*at)

    def _counts(self) -> Mapping[str, int]:
        return {topic.name: len(topic.partitions) for topic in self._site.node.image.topics.values()}

    async def _revoked(self) -> None:
        """The place in the group is about to change: what was read counts for whoever has it next."""
        if self.choices.auto_commit and self.membership is not None:
            await self.commit_read(self.membership)
        self._positions.clear()
        self._uncommitted.clear()

    def _keep_only(self, partitions: Iterable[TopicPartition]) -> None:
        mine = set(partitions)
        self._positions = {at: offset for at, offset in self._positions.items() if at in mine}
        self._uncommitted = {at: offset for at, offset in self._uncommitted.items() if at in mine}

    # -- how far it is ------------------------------------------------------------------------------------------------

    async def position(self, at: TopicPartition) -> int | None:
        """The next offset to read: where it is, else what the group committed, else as it chose. None: nowhere."""
        if at not in self._positions:
            committed = (await self.committed([at]))[0]
            start = committed.offset if committed.offset != NO_OFFSET else self._reset(self.replica(at))
            if start is None:
                return None
            self._positions[at] = start
        return self._positions[at]

    def _reset(self, replica: Replica) -> int | None:
        if self.choices.reset == "none":
            return None
        return replica.log_start_offset if self.choices.reset == "earliest" else replica.high_watermark

    def out_of_range(self, at: TopicPartition) -> None:
        """What it wanted to read is gone: goes on where it chose to."""
        start = self._reset(self.replica(at))
        if start is None:
            raise HttpError(ILLEGAL_STATE, f"the offset of {at} is gone and auto.offset.reset is none")
        self._positions[at] = start

    def seek(self, at: TopicPartition, offset: int) -> None:
        self._positions[at] = offset

    def has_read(self, at: TopicPartition, following: int) -> None:
        """Records below `following` were given out."""
        self._positions[at] = self._uncommitted[at] = following

    async def commit_read(self, membership: Membership | None = None) -> list[Commit]:
        """Commits all that was given out and is not committed yet."""
        offsets = [Commit(at.topic, at.partition, offset) for at, offset in sorted(self._uncommitted.items())]
        if offsets:
            try:
                await self.commit(offsets, membership)
            except (Refused, HttpError):
                if membership is None:
                    raise
                return []  # its place is gone: whoever has it now reads these records again
            for each in offsets:
                self._uncommitted.pop(TopicPartition(each.topic, each.partition), None)
        return offsets

    async def commit(self, offsets: list[Commit], membership: Membership | None = None) -> None:
        """HttpError when the group does not take one of them."""
        member = membership or self.membership
        named = CommitOffsets(self.group, tuple(offsets))
        if member is not None:
            named = CommitOffsets(self.group, tuple(offsets), member.generation, member.member_id, member.instance_id)
        answer: Committed = await self._site.node.coordinators.ask(self.group, named, COMMIT_SECONDS)
        for row, code in zip(offsets, answer.codes, strict=True):
            if code is not Code.NONE:
                raise Refused(code, f"the offset of {row.topic}-{row.partition} was not committed: {code.name}")

    async def committed(self, partitions: list[TopicPartition]) -> list[Commit]:
        """What the group committed, in the order of `partitions`."""
        request = FetchOffsets(self.group, tuple(partitions))
        answer: Fetched = await self._site.node.coordinators.ask(self.group, request, COMMIT_SECONDS)
        if answer.code is not Code.NONE:
            raise Refused(answer.code, f"the offsets of the group cannot be read: {answer.code.name}")
        return list(answer.offsets)

    async def end(self) -> None:
        """The instance is deleted, or nobody has used it for long."""
        await self.unsubscribe()
