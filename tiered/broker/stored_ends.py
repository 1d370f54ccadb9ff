"""Notes in the metadata log the partitions that are in the bucket as a whole: a lost disk takes nothing of them.

A partition that rests with all of it in the bucket is noted with its end. The note goes with the next record: the
controller is asked at once, and the record waits for nothing. Where all disks go before the controller has taken that
in, the loss of that record is not named.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from tiered.controller.requests import NoteStoredEnds, StoredEnd
from tiered.errors import Refused, Unavailable
from tiered.ids import UNKNOWN_END
from tiered.log_limiter import LogLimiter
from tiered.metadata.image import Image, PartitionImage
from tiered.ports import Clock
from tiered.replication.leader_replica import LeaderReplica

log = logging.getLogger(__name__)

REST_SECONDS = 60.0
"""Between two looks. A log that has the same end in both of them rests."""
ENDS_MAX = 1_000
"""In one request."""
CHECKED_AT_ONCE = 200
"""Logs, before others have a turn."""
ASK_SECONDS = 10.0
RETRY_SECONDS = 1.0
"""Before what was not taken is said again."""


class StoredEnds:
    """Of one broker. `ask` is `Broker.submit`. `untold`: those whose loss the cluster is still to hear of, by what is
    noted now."""

    def __init__(
        self,
        ask: Callable[[Any, float], Awaitable[Any]],
        replicas: Callable[[], Iterable[LeaderReplica]],
        unreported_losses: Callable[[], Collection[LeaderReplica]],
        image: Callable[[], Image],
        node_id: int,
        incarnation: str,
        clock: Clock,
    ) -> None:
        self._ask = ask
        self._replicas = replicas
        self._unreported_losses = unreported_losses
        self._image = image
        self._node_id = node_id
        self._incarnation = incarnation
        self._clock = clock
        self._log_limiter = LogLimiter(clock)
        self._written: dict[LeaderReplica, None] = {}
        """Those that are noted with an end beyond which something was written."""
        self._resting: dict[LeaderReplica, int] = {}
        """The end of each at the last look, where all of it was in the bucket."""
        self._check_due = False
        self._wake = asyncio.Event()

    def on_lead(self, replica: LeaderReplica) -> None:
        """It is led here from now on; nothing was written yet under this leader."""
        known = self._get_partition_image(replica)
        if known is not None and known.stored_end != UNKNOWN_END:
            replica.on_next_append = partial(self._on_append, replica)

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick())
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._submit(self._take_written())
                if self._check_due:
                    self._check_due = False
                    await self._check_replicas()
                if self._written:  # not taken, or a loss is still to be told, or there are many
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
        """Takes those that were written to and are to be noted so."""
        untold = set(self._unreported_losses())
        self._written = {each: None for each in self._written if not each.is_stopped}
        found = [each for each in self._written if each not in untold][:ENDS_MAX]
        for replica in found:
            del self._written[replica]
        return dict.fromkeys(found, UNKNOWN_END)

    async def _check_replicas(self) -> None:
        """Looks at all that is led here, with turns for others in between, and has it noted. Logs that
        are written to meanwhile go first."""
        untold = set(self._unreported_losses())
        before, self._resting = self._resting, {}
        found: dict[LeaderReplica, int] = {}
        for number, replica in enumerate(list(self._replicas()), 1):
            if not replica.is_stopped and replica not in untold:
                self._check_replica(replica, before.get(replica, UNKNOWN_END), found)
            if number % CHECKED_AT_ONCE == 0:
                await self._clock.sleep(0)
            if len(found) == ENDS_MAX:
                await self._submit(found)
                await self._submit(self._take_written())
                found = {}
        await self._submit(found)

    def _check_replica(self, replica: LeaderReplica, last_end: int, found: dict[LeaderReplica, int]) -> None:
        """Notes in `found` that it rests where it did at the look before, or that it does not rest as it is noted."""
        end, known = replica.stored_end, self._get_partition_image(replica)
        if known is None:
            return
        if end != UNKNOWN_END:
            self._resting[replica] = end
        if known.stored_end != UNKNOWN_END and known.stored_end < replica.log.end_offset:
            found[replica] = UNKNOWN_END
        elif known.stored_end != end != UNKNOWN_END and last_end == end:
            found[replica] = end
            replica.on_next_append = partial(self._on_append, replica)

    def _get_partition_image(self, replica: LeaderReplica) -> PartitionImage | None:
        """Returns the partition as the cluster knows it, if it is led here under the epoch that it has there."""
        topic = self._image().topics_by_id.get(replica.topic_id)
        known = topic.partitions[replica.partition] if topic is not None else None
        return known if known is not None and known.leader_epoch == replica.leader_epoch else None

    async def _submit(self, ends: Mapping[LeaderReplica, int]) -> None:
        if not ends:
            return
        said = (StoredEnd(each.topic_id, each.partition, each.leader_epoch, end) for each, end in ends.items())
        try:
            await self._ask(NoteStoredEnds(self._node_id, self._incarnation, tuple(said)), ASK_SECONDS)
        except (Refused, Unavailable) as error:
            unsaid = self._log_limiter.admit()
            if unsaid is not None:
                log.warning("where logs end is noted later partitions=%d unsaid=%d why=%s", len(ends), unsaid, error)
            self._written |= {each: None for each, end in ends.items() if end == UNKNOWN_END}
