"""Notes in the metadata log of partitions that lie completely in the bucket: a lost disk takes nothing of them.

An idle partition is noted with its end once all of it is in the bucket. The next append withdraws the note: the request
goes out at once, and the record does not wait for it. If all disks are lost before that request is committed, the
report of losses does not name this record. A leader with `flush=bucket` notes that its chain and segments have all of
a partition (R7).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from tiered.controller.channel import RequestChannel
from tiered.controller.member_view import MemberView
from tiered.controller.requests import NoteStoredEnds, StoredEnd
from tiered.durability.possible_losses import PossibleLosses
from tiered.errors import Refused, Unavailable
from tiered.ids import UNKNOWN_END, TopicId
from tiered.log_limiter import LogLimiter
from tiered.metadata.features import CHAINS
from tiered.metadata.parts.topics import PartitionImage
from tiered.ports import Clock
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.led_partitions import LedPartitions
from tiered.system.turns import each_of

ChainedNote = tuple[TopicId, int, int, bool]
"""A row of `NoteStoredEnds.chained`."""

log = logging.getLogger(__name__)

REST_SECONDS = 20.0
"""Pause between two checks. A log that has the same end in both is idle."""
ENDS_MAX = 1_000
"""Most notes in one request."""
SUBMIT_SECONDS = 10.0
RETRY_SECONDS = 1.0
"""Pause before notes are sent again that were refused or got no reply."""


class StoredEnds:
    """The notes of one broker. A leader with an unreported loss keeps its note: the report goes by the noted end."""

    def __init__(
        self,
        view: MemberView,
        channel: RequestChannel,
        led_partitions: LedPartitions,
        losses: PossibleLosses,
        clock: Clock,
    ) -> None:
        self._view = view
        self._channel = channel
        self._led_partitions = led_partitions
        self._losses = losses
        self._clock = clock
        self._log_limiter = LogLimiter(clock)
        self._written: dict[LeaderReplica, None] = {}
        """Leaders with records above their noted end."""
        self._idle: dict[LeaderReplica, int] = {}
        """By leader: its end at the last check, if all of its log was in the bucket."""
        self._check_due = False
        self._wake = asyncio.Event()

    def on_lead(self, replica: LeaderReplica) -> None:
        """Watches a partition that has a noted end for its next append; this leader has written nothing yet."""
        known = self._get_partition_image(replica)
        if known is not None and known.stored_end != UNKNOWN_END:
            replica.on_next_append = partial(self._on_append, replica)

    async def run(self) -> None:
        """Sends notes until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick())
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._submit(self._take_written())
                if self._check_due:
                    self._check_due = False
                    await self._check_replicas()
                if self._written:  # the request failed, a loss is unreported, or there are many
                    await self._clock.sleep(RETRY_SECONDS)
                    self._wake.set()

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(REST_SECONDS)
            self._check_due = True
            self._wake.set()

    def _on_append(self, replica: LeaderReplica) -> None:
        self._written[replica] = None
        self._wake.set()

    def _take_written(self) -> dict[LeaderReplica, int]:
        """Takes leaders whose notes have to be withdrawn, as many as one request may name."""
        unreported = self._losses.unreported
        self._written = {each: None for each in self._written if not each.is_stopped}
        found = [each for each in self._written if each not in unreported][:ENDS_MAX]
        for replica in found:
            del self._written[replica]
        return dict.fromkeys(found, UNKNOWN_END)

    async def _check_replicas(self) -> None:
        """Checks all partitions that this broker leads, and sends the notes that have to change.

        Between two requests, notes of logs that were written to meanwhile are withdrawn.
        """
        unreported = self._losses.unreported
        before, self._idle = self._idle, {}
        found: dict[LeaderReplica, int] = {}
        chained: list[ChainedNote] = []
        async for replica in each_of(list(self._led_partitions.list_leaders())):
            if not replica.is_stopped and replica not in unreported:
                self._check_replica(replica, before.get(replica, UNKNOWN_END), found, chained)
            if len(found) == ENDS_MAX:
                await self._submit(found)
                await self._submit(self._take_written())
                found = {}
            if len(chained) == ENDS_MAX:
                await self._send((), tuple(chained))
                chained = []
        await self._submit(found)
        if chained:
            await self._send((), tuple(chained))

    def _check_replica(
        self, replica: LeaderReplica, last_end: int, found: dict[LeaderReplica, int], chained: list[ChainedNote]
    ) -> None:
        """Adds a leader to `found` if its note has to change: it is idle since the last check, or was written to. Adds
        it to `chained` if it needs no chain of an earlier one any more, and the metadata log says otherwise."""
        end, known = replica.stored_end, self._get_partition_image(replica)
        if known is None:
            return
        is_in_bucket = replica.chain_stored_end is not None
        if is_in_bucket or known.chains:
            needs_one = replica.has_own_chain_only and not (known.is_in_bucket and len(known.chains) == 1)
            if (needs_one or not is_in_bucket) and self._view.image.metadata_version >= CHAINS:
                chained.append((replica.topic_id, replica.partition, known.partition_epoch, is_in_bucket))
        if end != UNKNOWN_END:
            self._idle[replica] = end
        if known.stored_end != UNKNOWN_END and known.stored_end < replica.log.end_offset:
            found[replica] = UNKNOWN_END
        elif known.stored_end != end != UNKNOWN_END and last_end == end:
            found[replica] = end
            replica.on_next_append = partial(self._on_append, replica)

    def _get_partition_image(self, replica: LeaderReplica) -> PartitionImage | None:
        """Returns the partition in the newest image; None if the image has another leader epoch."""
        topic = self._view.image.topics_by_id.get(replica.topic_id)
        known = topic.partitions[replica.partition] if topic is not None else None
        return known if known is not None and known.leader_epoch == replica.leader_epoch else None

    async def _submit(self, ends: Mapping[LeaderReplica, int]) -> None:
        if not ends:
            return
        notes = (StoredEnd(each.topic_id, each.partition, each.leader_epoch, end) for each, end in ends.items())
        if not await self._send(tuple(notes), ()):
            self._written |= {each: None for each, end in ends.items() if end == UNKNOWN_END}

    async def _send(self, ends: tuple[StoredEnd, ...], chained: tuple[ChainedNote, ...]) -> bool:
        """Sends one request. Returns False if it failed."""
        request = NoteStoredEnds(self._view.node_id, self._view.incarnation, ends, chained)
        try:
            await self._channel.submit(request, SUBMIT_SECONDS)
        except (Refused, Unavailable) as error:
            suppressed = self._log_limiter.admit()
            if suppressed is not None:
                log.warning(
                    "stored ends are noted later partitions=%d suppressed=%d why=%s",
                    len(ends) + len(chained), suppressed, error,
                )  # fmt: skip
            return False
        return True
